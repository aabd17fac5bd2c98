"""`twinlog spark mirror`: topics to another cluster, going on where it stopped, and the proof.

The checkpoint of a Spark stream remembers how far it is. What a message was before travels with it
(see `move`), its place too: by that the verification knows it again, and consumer offsets are
translated. A message goes to the queue it had, and a queue is never cut within a batch, so each
queue keeps its order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinlog.runtime.numbers import is_number
from twinlog.spark.errors import NotFoundError
from twinlog.spark.jobs.common import (
    Progress,
    Summary,
    follow_query,
    session_of,
    source_options,
    watcher,
    with_parallelism,
)
from twinlog.spark.jobs.mirror_queues import (
    ORIGIN,
    check_order,
    copies,
    prepare_topics,
    source_queues,
    translate,
)
from twinlog.spark.jobs.move import SENT_COLUMNS
from twinlog.spark.write.encode import ORIGIN_UNIQ_KEY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FINDINGS_MAX = 100
# What must be equal besides topic and id; bodies by their digest.
_COMPARED = ("keys", "tags", "flag", "sha2(body, 256) AS digest")
_STREAM_ONLY = {
    "startingoffsets", "endingoffsets", "maxoffsetspertrigger", "maxbytespertrigger",
    "minoffsetspertrigger", "maxtriggerdelay", "commitgroup", "startingtimestamp",
    "startingoffsetsbytimestamp", "startinggroup",
}  # fmt: skip


def mirror(
    options: Mapping[str, str],
    name_server: str,
    checkpoint: str | Path,
    *,
    to_topic: str | None = None,
    exactly_once: bool = False,
    once: bool = True,
    verify: bool = False,
    keep_queue: bool = True,
    groups: Sequence[str] = (),
    trigger: str = "5 seconds",
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Copy topics to another cluster and go on from the checkpoint at the next call.

    Args:
        options: options of the format "twinlog" for the source (path or nameServer).
        name_server: of the cluster to send to.
        checkpoint: directory of the stream's checkpoint.
        to_topic: the topic to send to; else each message's own.
        exactly_once: the target drops repeats (twinlog brokers only); else at least once.
        once: copy what is there now and end; else go on until stopped.
        verify: afterwards compare all that was copied so far with the target's topics.
        keep_queue: send to the queue that the message had, in order; topics that the target does
            not have are made with as many queues. Else rows are spread over the target's queues.
        groups: consumer groups whose offsets are translated and committed in the target.
        trigger: how often a batch starts when it goes on.
        spark: a session to use.
        spark_master: Spark master of a session that this starts.
        progress: where to show progress.
    """
    begin = time.monotonic()
    show = progress or Progress()
    source = {"startingOffsets": "earliest", **source_options(options)}
    target = {"nameServer": name_server, **({"topic": to_topic} if to_topic else {})}
    if exactly_once:
        target["exactlyOnce"] = "true"
    if keep_queue:
        source["keepOrder"] = "true"
    if keep_queue or exactly_once:
        prepare_topics(source_queues(source), name_server, to_topic, is_spread=not keep_queue)
    columns = [*SENT_COLUMNS, *(["queue_id"] if keep_queue else []), *ORIGIN]
    with session_of(spark, "mirror", master=spark_master) as session:
        source = with_parallelism(source, session)
        rows = session.readStream.format("twinlog").options(**source).load()
        writer = rows.selectExpr(*columns).writeStream.format("twinlog").options(**target)
        writer = writer.option("checkpointLocation", str(checkpoint))
        by: dict[str, Any] = {"availableNow": True} if once else {"processingTime": trigger}
        start = writer.trigger(**by).start
        query = follow_query(start, watcher("mirror", show))
        copied = sum(part["numInputRows"] for part in query.recentProgress)
        facts: dict[str, Any] = {"rows": copied, "to_topic": to_topic}
        facts["checkpoint"] = str(checkpoint)
        findings: list[dict[str, Any]] = []
        if verify:
            show.show("mirror: comparing")
            findings = _compare(session, source, name_server, Path(checkpoint), to_topic, facts)
            if keep_queue:
                topics = to_topic or ",".join(sorted(source_queues(source)))
                findings += check_order(copies(session, name_server, topics))
        if groups:
            topics = to_topic or ",".join(sorted(source_queues(source)))
            places = copies(session, name_server, topics)
            facts["groups"] = translate(places, source, name_server, groups)
    show.end()
    return Summary("mirror", facts, findings, seconds=time.monotonic() - begin)


# Verification


def copied_offsets(checkpoint: Path, number: int) -> dict[str, Any]:
    """The offsets at which a batch of the stream ended; empty when the checkpoint has none."""
    path = checkpoint / "offsets" / str(number)
    if not path.exists():
        return {}
    last = json.loads(path.read_text().splitlines()[-1])
    offsets: dict[str, Any] = last.get("offsets", {})
    return offsets


def _compare(
    session: SparkSession,
    source: Mapping[str, str],
    name_server: str,
    checkpoint: Path,
    to_topic: str | None,
    facts: dict[str, Any],
) -> list[dict[str, Any]]:
    """Count equal messages on both sides, from where the stream began to where it is now."""
    commits = [int(p.name) for p in (checkpoint / "commits").iterdir() if is_number(p.name)]
    until = copied_offsets(checkpoint, max(commits, default=-1))
    if not until:
        raise NotFoundError(
            "NOTHING_COPIED", f"{checkpoint} has no finished batch to compare: run the mirror first"
        )
    given = {name: value for name, value in source.items() if name.lower() not in _STREAM_ONLY}
    given["endingOffsets"] = json.dumps(until)
    # The first batch is empty and pins the start; its file goes after a hundred batches.
    pinned = copied_offsets(checkpoint, 0)
    given["startingOffsets"] = json.dumps(pinned) if pinned else "earliest"
    rows = session.read.format("twinlog").options(**given).load()
    sent = rows.selectExpr(
        *([f"'{to_topic}' AS topic"] if to_topic else ["topic"]), "msg_id", *_COMPARED
    )
    topics = to_topic or ",".join(sorted(until))
    target = {"nameServer": name_server, "subscribe": topics}
    there = session.read.format("twinlog").options(**target).load()
    found = there.selectExpr("topic", f"properties['{ORIGIN_UNIQ_KEY}'] AS msg_id", *_COMPARED)
    sides = sent.selectExpr("*", "1 AS here", "0 AS there").unionByName(
        found.selectExpr("*", "0 AS here", "1 AS there")
    )
    names = [name for name in sides.columns if name not in ("here", "there")]
    counted = sides.groupBy(*names).agg({"here": "sum", "there": "sum"})
    counted = counted.withColumnsRenamed({"sum(here)": "here", "sum(there)": "there"}).cache()
    totals = counted.agg({"here": "sum", "there": "sum"}).first()
    facts["compared"] = int(totals["sum(here)"] or 0) if totals is not None else 0
    facts["in_target"] = int(totals["sum(there)"] or 0) if totals is not None else 0
    unequal = counted.where("here != there").limit(FINDINGS_MAX).collect()
    counted.unpersist()
    return [finding_of(row.asDict()) for row in unequal]


def finding_of(row: dict[str, Any]) -> dict[str, Any]:
    """What is wrong with a message that is `here` times in the source and `there` in the target."""
    kind = "MISSING_IN_TARGET" if row["there"] < row["here"] else "REPEATED_IN_TARGET"
    if not row["here"]:
        kind = "ONLY_IN_TARGET"
    names = ("topic", "msg_id", "keys", "tags", "here", "there")
    return {"kind": kind, **{name: row[name] for name in names}}
