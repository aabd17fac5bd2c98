"""Queues of a mirror: made in the target, kept in order, and the offsets of groups carried over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinlog.admin.client import Admin
from twinlog.admin.topics import create_topic
from twinlog.client.errors import TopicNotFoundError
from twinlog.message.properties import ORIGIN_PLACE, ORIGIN_TOPIC
from twinlog.spark.errors import OptionError, UnreachableError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import Offsets
from twinlog.spark.read.access import as_pipeline_errors
from twinlog.spark.read.rows import open_transport
from twinlog.spark.read.transport import select_queues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORIGIN = ("concat_ws(',', broker, queue_id, queue_offset) AS origin", "topic AS origin_topic")
FINDINGS_MAX = 100


def source_queues(source: Mapping[str, str]) -> dict[str, int]:
    """Return how many queues each topic of the source has (on the broker that has most)."""
    options = SourceOptions.parse(source)
    transport = open_transport(options)
    try:
        found: dict[str, int] = {}
        for topic, _, queue in select_queues(options, transport.queues()):
            found[topic] = max(found.get(topic, 0), queue + 1)
        return found
    finally:
        transport.close()


def prepare_topics(
    queues: Mapping[str, int], name_server: str, to_topic: str | None, *, is_spread: bool = False
) -> None:
    """Make the topics that the target does not have, with as many queues.

    Those that it has need as many, too, unless messages are spread.

    Raises:
        OptionError: a topic of the target has fewer queues than its source.
        UnreachableError: the target does not answer.
    """
    if not queues:
        return
    wanted = {to_topic: max(queues.values())} if to_topic else dict(queues)
    with as_pipeline_errors():
        asyncio.run(_prepare(wanted, name_server, is_spread=is_spread))


async def _prepare(wanted: Mapping[str, int], name_server: str, *, is_spread: bool) -> None:
    async with Admin(name_server) as admin:
        for topic, count in wanted.items():
            try:
                route = await admin.route(topic)
            except TopicNotFoundError:
                made = await create_topic(admin, topic, read_queues=count)
                if not made.is_complete:
                    raise UnreachableError(
                        "BROKER_UNREACHABLE",
                        f"topic {topic!r} was not created on every broker of the target: check "
                        "that all of them run, and try again",
                    ) from None
                continue
            there = {queue.queue_id for queue in route.write_queues(topic, with_master_only=False)}
            if not is_spread and not set(range(count)) <= there:
                raise OptionError(
                    "BAD_OPTION",
                    f"topic {topic!r} has {len(there)} queues in the target and {count} in its "
                    "source: add queues to the target, or spread the messages (--spread)",
                )


def copies(session: SparkSession, name_server: str, topics: str) -> DataFrame:
    """Return where the copies are, and of what."""
    options = {"nameServer": name_server, "subscribe": topics}
    rows = (
        session.read.format("twinlog")
        .options(**options)
        .schema(
            "topic STRING, broker STRING, queue_id INT, queue_offset BIGINT, "
            "properties MAP<STRING,STRING>"
        )
    )
    place = f"split(properties['{ORIGIN_PLACE}'], ',')"
    return (
        rows.load()
        .where(f"properties['{ORIGIN_PLACE}'] IS NOT NULL")
        .selectExpr(
            "topic", "broker", "queue_id", "queue_offset",
            f"coalesce(properties['{ORIGIN_TOPIC}'], topic) AS from_topic",
            f"{place}[0] AS from_broker",
            f"CAST({place}[1] AS INT) AS from_queue", f"CAST({place}[2] AS BIGINT) AS from_offset",
        )
    )  # fmt: skip


def check_order(places: DataFrame) -> list[dict[str, Any]]:
    """Demand that each queue's messages are in one queue of the target, in their order."""
    places.createOrReplaceTempView("twinlog_copies")
    session = places.sparkSession
    order = session.sql(
        "SELECT topic, from_topic, from_broker, from_queue, from_offset, queue_id, queue_offset "
        "FROM (SELECT *, max(from_offset) OVER (PARTITION BY topic, broker, queue_id, from_topic, "
        "from_broker, from_queue ORDER BY queue_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 "
        "PRECEDING) AS before FROM twinlog_copies) WHERE before > from_offset"
    )
    split = session.sql(
        "SELECT topic, from_topic, from_broker, from_queue, count(DISTINCT broker, queue_id) AS "
        "queues FROM twinlog_copies GROUP BY topic, from_topic, from_broker, from_queue "
        "HAVING queues > 1"
    )
    found = [("OUT_OF_ORDER", row) for row in order.limit(FINDINGS_MAX).collect()]
    found += [("QUEUE_SPREAD", row) for row in split.limit(FINDINGS_MAX).collect()]
    session.catalog.dropTempView("twinlog_copies")
    return [{"kind": kind, **row.asDict()} for kind, row in found]


def translate(
    places: DataFrame, source: Mapping[str, str], name_server: str, groups: Sequence[str]
) -> dict[str, int]:
    """Commit in the target, for each group, the first message that it has not consumed.

    Where two queues of the source share one of the target, the earlier place counts: a message may
    be consumed twice, none is left out.
    """
    transport = open_transport(SourceOptions.parse(source))
    try:
        committed = {group: transport.group_offsets(group) for group in groups}
    finally:
        transport.close()
    found = _targets(places, committed)
    target = open_transport(
        SourceOptions.parse({"nameServer": name_server, "subscribePattern": ".*"})
    )
    try:
        for group, offsets in found.items():
            if offsets:
                target.commit_group(group, offsets)
    finally:
        target.close()
    return {group: len(offsets) for group, offsets in found.items()}


def _targets(places: DataFrame, committed: Mapping[str, Offsets]) -> dict[str, Offsets]:
    """Look all places of all groups up at once: the copies are read a single time."""
    found: dict[str, Offsets] = {group: {} for group in committed}
    wanted = [(g, *key, at) for g, offsets in committed.items() for key, at in offsets.items()]
    if not wanted:
        return found
    from pyspark.sql.functions import broadcast, expr

    keys = ["from_topic", "from_broker", "from_queue"]
    kinds = "group STRING, from_topic STRING, from_broker STRING, from_queue INT, at BIGINT"
    offsets_of = places.sparkSession.createDataFrame(wanted, kinds)
    place = (
        "coalesce(min(CASE WHEN from_offset >= at THEN queue_offset END), "
        "max(queue_offset) + 1) AS place"
    )
    rows = (
        places.join(broadcast(offsets_of), keys)
        .groupBy("group", *keys, "topic", "broker", "queue_id")
        .agg(expr(place))
        .collect()
    )
    for row in rows:
        known, key = found[row["group"]], (row["topic"], row["broker"], row["queue_id"])
        known[key] = min(int(row["place"]), known.get(key, int(row["place"])))
    return found
