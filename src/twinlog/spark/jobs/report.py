"""`twinlog spark report`: one HTML page about a store, its topics, groups and replica.

The page holds everything it shows (styles and SVG inside), so it opens offline and can be mailed.
"""

from __future__ import annotations

import html
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinlog.spark.jobs import plots
from twinlog.spark.jobs.analyse import QUANTILE_NAMES, lag, latency, stats, table_of
from twinlog.spark.jobs.audit import audit
from twinlog.spark.jobs.common import Progress, Summary, kind_of, session_of
from twinlog.spark.places import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUCKETS = 60
TOPICS_SHOWN = 5
STYLE = """
body{font:14px/1.45 system-ui,sans-serif;max-width:1180px;margin:24px auto;
padding:0 16px;color:#222}
h1{font-size:22px}h2{font-size:17px;margin-top:28px;border-bottom:1px solid #ddd}
table{border-collapse:collapse;width:100%}td,th{padding:3px 8px;border-bottom:1px solid #eee;
text-align:right}td:first-child,th:first-child{text-align:left}svg{width:49%;min-width:420px}
svg text{font:11px system-ui,sans-serif;fill:#555}svg .title{font-weight:600;fill:#222}
.good{color:#2a7d3f}.bad{color:#b3261e}
"""


def report(
    place: str | Path,
    out: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    replica: str | Path | None = None,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Write a report about a store or an archive to the file `out`.

    Args:
        place: the store or archive.
        out: the HTML file to write.
        options: options of the format "twinlog".
        replica: the other replica's store, to be audited.
        spark: a session to use.
        spark_master: Spark master of a session that this starts.
        progress: where to show progress.
    """
    begin = time.monotonic()
    show = progress or Progress()
    target = local_path(out, "the report")
    with session_of(spark, "report", master=spark_master) as session:
        numbers = stats(place, options, spark=session, progress=show).facts
        delays = latency(place, options, spark=session, progress=show).facts
        rates = rates_over_time(session, place, options)
        health = None
        if replica is not None:
            health = audit(place, replica, spark=session, progress=show)
    groups = lag(place).facts["queues"] if kind_of(place) == "store" else []
    page = build_page(str(place), numbers, delays, rates, groups, health)
    temporary = Path(f"{target}.{os.getpid()}")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, target)
    facts = {"out": str(out), "bytes": len(page), "messages": numbers["messages"]}
    findings = health.findings if health is not None else []
    return Summary("report", facts, findings, time.monotonic() - begin)


def rates_over_time(
    spark: SparkSession, place: str | Path, options: Mapping[str, str] | None
) -> tuple[list[str], dict[str, list[float]]]:
    """Count messages per topic in equal spans of time: (labels, topic -> messages per second)."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = table_of(spark, place, "topic STRING, store_ts TIMESTAMP", options)
    rows = rows.select("topic", F.unix_millis("store_ts").alias("ms"))
    ends = rows.agg(F.min("ms"), F.max("ms")).first()
    if ends is None or ends[0] is None:
        return [], {}
    low, width = ends[0], max(1, (ends[1] - ends[0]) // BUCKETS + 1)
    bucket = F.floor((F.col("ms") - low) / width).alias("bucket")
    counted = rows.groupBy("topic", bucket).count().collect()
    series: dict[str, list[float]] = {}
    for row in counted:
        line = series.setdefault(row["topic"], [0.0] * BUCKETS)
        line[min(BUCKETS - 1, row["bucket"])] += row["count"] * 1000 / width
    labels = [
        datetime.fromtimestamp((low + number * width) / 1000, UTC).strftime("%m-%d %H:%M:%S")
        for number in range(BUCKETS)
    ]
    return labels, series


def build_page(
    name: str,
    numbers: dict[str, Any],
    delays: dict[str, Any],
    rates: tuple[list[str], dict[str, list[float]]],
    groups: list[dict[str, Any]],
    health: Summary | None,
) -> str:
    """Put the page together. Pure."""
    topics = numbers["topics"]
    best = sorted(topics, key=lambda topic: -topics[topic]["messages"])[:TOPICS_SHOWN]
    labels, series = rates
    sections = [
        f"<h1>twinlog: {html.escape(name)}</h1>",
        f"<p>{numbers['messages']:,} messages, {numbers['bytes']:,} bytes, "
        f"{len(topics)} topics.</p>",
        _health(health),
        "<h2>Rates and sizes</h2>",
        plots.lines("messages per second", {t: series.get(t, []) for t in best}, labels),
        plots.bars("bytes by topic", {topic: topics[topic]["bytes"] for topic in best}),
        _topics(topics),
        "<h2>Latency, born to store, ms</h2>",
        _latency(delays),
        "<h2>Skew</h2>",
        plots.bars("fullest queue / mean", {t: topics[t]["queue_skew"] for t in best}),
        plots.bars("hot keys", {k["keys"]: k["messages"] for k in numbers["hot_keys"]}),
        "<h2>Consumer groups</h2>",
        _groups(groups),
    ]
    body = "\n".join(sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>twinlog report</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def _health(health: Summary | None) -> str:
    if health is None:
        return ""
    if not health.findings:
        text = f"replicas are equal up to physical offset {health.facts['master_end']:,}"
        return f'<h2>Replica</h2><p class="good">{text}</p>'
    rows = [
        [f["kind"], f["phys_offset"], f["topic"], f["queue_id"], f["queue_offset"], f["detail"]]
        for f in health.findings[:20]
    ]
    names = ["kind", "physical offset", "topic", "queue", "queue offset", "detail"]
    text = f"{len(health.findings)} differences"
    return f'<h2>Replica</h2><p class="bad">{text}</p>{plots.table(names, rows)}'


def _topics(topics: dict[str, dict[str, Any]]) -> str:
    names = ["messages", "bytes", "size_p50", "size_p99", "queues", "queue_skew", "per_second"]
    rows = [[topic, *(facts[name] for name in names)] for topic, facts in topics.items()]
    return plots.table(["topic", *names], rows)


def _latency(delays: dict[str, Any]) -> str:
    found = delays["born_to_store_ms"]
    series = {topic: [facts[q] for q in QUANTILE_NAMES] for topic, facts in found.items()}
    shown = dict(list(series.items())[:TOPICS_SHOWN])
    rows = [[topic, *values] for topic, values in series.items()]
    drawn = plots.lines("born to store, ms", shown, list(QUANTILE_NAMES))
    return drawn + plots.table(["topic", *QUANTILE_NAMES], rows)


def _groups(groups: list[dict[str, Any]]) -> str:
    if not groups:
        return "<p>No committed offsets here.</p>"
    names = ["group", "topic", "queue_id", "offset", "end", "behind", "oldest_unread_ms"]
    behind: dict[str, float] = {}
    for row in groups:
        behind[row["group"]] = behind.get(row["group"], 0) + row["behind"]
    rows = [[row[name] for name in names] for row in groups]
    return plots.bars("messages behind", behind) + plots.table(names, rows)
