"""`twinlog spark stats`, `latency` and `lag`: what is in the topics, how late, how far behind.

`stats` and `latency` are Spark aggregations over columns without bodies; `lag` reads queue ends
and committed offsets, so it starts no Spark.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinlog.message.names import is_user_topic
from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.errors import DataLossError, NotFoundError, RecordCorruptError
from twinlog.spark.jobs.common import Progress, Summary, kind_of, session_of, source_options
from twinlog.spark.places import local_path
from twinlog.spark.read.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOP = 10
LATENCY_QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
QUANTILE_NAMES = ("p50", "p90", "p99", "p99.9", "max")
ACCURACY = 10000


def place_options(place: str | Path, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options that read a store or an archive.

    Raises:
        NotFoundError: the path is neither.
    """
    kind = kind_of(place)
    if kind == "nothing":
        raise NotFoundError("STORE_NOT_FOUND", f"{place} is neither a store nor an archive")
    given = source_options(options)
    given["path" if kind == "store" else "archive"] = str(place)
    return given


def table_of(
    spark: SparkSession, place: str | Path, columns: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return some columns of a store or an archive as a table."""
    given = place_options(place, options)
    return spark.read.format("twinlog").options(**given).schema(columns).load()


def stats(
    place: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Count topics, tags, sizes, skew and hot keys of a store or an archive."""
    from pyspark.sql import functions as F  # noqa: N812

    begin = time.monotonic()
    show = progress or Progress()
    place_options(place, options)  # What is wrong is said before Spark starts.
    columns = (
        "topic STRING, queue_id INT, store_size INT, store_ts TIMESTAMP, tags STRING, keys STRING"
    )
    with session_of(spark, "stats", master=spark_master) as session:
        rows = table_of(session, place, columns, options).cache()
        show.show("stats: topics")
        topics = rows.groupBy("topic").agg(
            F.count("*").alias("messages"),
            F.sum("store_size").alias("bytes"),
            F.percentile_approx("store_size", [0.5, 0.99, 1.0], ACCURACY).alias("sizes"),
            F.approx_count_distinct("keys").alias("keys"),
            F.min("store_ts").alias("first"),
            F.max("store_ts").alias("last"),
        )
        found = {row.topic: row.asDict() for row in topics.collect()}
        show.show("stats: queues, tags, keys")
        queues = rows.groupBy("topic", "queue_id").count().collect()
        tags = _top(rows.where("tags IS NOT NULL"), "tags")
        keys = _top(rows.where("keys IS NOT NULL"), "keys")
        rows.unpersist()
    show.end()
    facts = {
        "source": str(place),
        "messages": sum(row["messages"] for row in found.values()),
        "bytes": sum(row["bytes"] for row in found.values()),
        "topics": {name: _topic_facts(row, queues) for name, row in sorted(found.items())},
        "tags": tags,
        "hot_keys": keys,
    }
    return Summary("stats", facts, seconds=time.monotonic() - begin)


def _topic_facts(row: dict[str, Any], queues: list[Any]) -> dict[str, Any]:
    counts = sorted((q["count"] for q in queues if q["topic"] == row["topic"]), reverse=True)
    seconds = (row["last"] - row["first"]).total_seconds()
    return {
        "messages": row["messages"],
        "bytes": row["bytes"],
        "size_p50": row["sizes"][0],
        "size_p99": row["sizes"][1],
        "size_max": row["sizes"][2],
        "distinct_keys": row["keys"],
        "queues": len(counts),
        # 1.0 means that all queues got the same; 2.0 that the fullest got twice the mean.
        "queue_skew": round(counts[0] * len(counts) / max(1, sum(counts)), 3),
        "first": row["first"].isoformat(),
        "last": row["last"].isoformat(),
        "per_second": round(row["messages"] / seconds, 1) if seconds > 0 else None,
    }


def _top(rows: DataFrame, column: str) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812

    counted = rows.groupBy("topic", column).count()
    best = counted.orderBy(F.desc("count"), "topic", column).limit(TOP).collect()
    return [{"topic": r["topic"], column: r[column], "messages": r["count"]} for r in best]


def latency(
    place: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    archive: str | Path | None = None,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Measure born to store, and store to archive when `archive` is given, by topic."""
    from pyspark.sql import functions as F  # noqa: N812

    begin = time.monotonic()
    show = progress or Progress()
    place_options(place, options)  # What is wrong is said before Spark starts.
    show.show("latency: born to store")
    with session_of(spark, "latency", master=spark_master) as session:
        columns = "topic STRING, born_ts TIMESTAMP, store_ts TIMESTAMP"
        rows = table_of(session, place, columns, options)
        delay = F.unix_millis("store_ts") - F.unix_millis("born_ts")
        quantiles = F.percentile_approx(delay, list(LATENCY_QUANTILES), ACCURACY)
        found = rows.groupBy("topic").agg(F.count("*").alias("n"), quantiles.alias("q")).collect()
    show.end()
    facts: dict[str, Any] = {"source": str(place), "born_to_store_ms": {}}
    for row in sorted(found, key=lambda row: str(row.topic)):
        values = dict(zip(QUANTILE_NAMES, row.q, strict=True))
        facts["born_to_store_ms"][row.topic] = {"messages": row.n, **values}
    if archive is not None or kind_of(place) == "archive":
        facts["store_to_archive_ms"] = archive_delays(archive or place)
    return Summary("latency", facts, seconds=time.monotonic() - begin)


def archive_delays(archive: str | Path) -> dict[str, dict[str, float]]:
    """Return how long rows waited for their batch: of the oldest and newest row of each file."""
    manifest = Manifest(local_path(archive, "the archive")).require()
    waits: dict[str, list[tuple[float, float]]] = {}
    for batch in manifest.batches():
        path = manifest.directory / f"{batch.sequence:012d}.json"
        if not path.exists():
            continue  # merged by compaction: the time of its commit is not kept
        committed = path.stat().st_mtime * 1000
        for file in batch.files:
            pair = (committed - file.store_ms[0], committed - file.store_ms[1])
            waits.setdefault(file.topic, []).append(pair)
    return {
        topic: {
            "oldest_max": round(max(old for old, _ in pairs), 1),
            "newest_min": round(min(new for _, new in pairs), 1),
            "files": len(pairs),
        }
        for topic, pairs in sorted(waits.items())
    }


def lag(
    store: str | Path, *, group: str | None = None, include_system_topics: bool = False
) -> Summary:
    """Compare consumer groups with the ends of their queues: rows behind, and for how long."""
    begin = time.monotonic()
    view = StoreView(Path(store))
    rows = []
    for name, topics in sorted(view.consumer_offsets().items()):
        if group is not None and name != group:
            continue
        for topic, offsets in sorted(topics.items()):
            if include_system_topics or is_user_topic(topic):
                rows += [_lag_row(view, name, topic, queue, n) for queue, n in offsets.items()]
    if group is not None and not rows:
        raise NotFoundError("GROUP_NOT_FOUND", f"group {group!r} has no offsets in {store}")
    facts = {
        "store": str(store),
        "groups": len({row["group"] for row in rows}),
        "messages_behind": sum(row["behind"] for row in rows),
        "queues": rows,
    }
    return Summary("lag", facts, seconds=time.monotonic() - begin)


def _lag_row(view: StoreView, group: str, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    queue = view.queue(topic, queue_id)
    head = queue.end(view.log) if queue.files else 0
    behind = max(0, head - offset)
    oldest = None
    if behind:
        first = max(offset, queue.begin(view.log.min_offset))
        try:
            stored = view.log.store_time(int(queue.entry(first)["offset"]))
            oldest = max(0, round(time.time() * 1000) - stored)
        except (RecordCorruptError, DataLossError):
            oldest = None
    row = {"group": group, "topic": topic, "queue_id": queue_id, "offset": offset, "end": head}
    return {**row, "behind": behind, "oldest_unread_ms": oldest}
