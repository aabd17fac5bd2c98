"""Stores to measure with, and the measurements of the pipeline as functions.

Each function does its work once and returns seconds; the harness repeats and compares.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import struct
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from twinlog.admin.client import Admin
from twinlog.admin.topics import create_topic
from twinlog.client import Message, MessageQueue, blocking
from twinlog.message.hashing import jhash
from twinlog.message.layout import ENTRY, ENTRY_SIZE, MAGIC_V1
from twinlog.message.model import PutMessage
from twinlog.message.properties import encode_properties
from twinlog.message.record import blank_record, decode_record, encode_record
from twinlog.spark.decode.columns import ALL_COLUMNS
from twinlog.spark.jobs.archive import archive
from twinlog.spark.jobs.audit import audit
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_transport, plan_batch, read_window
from twinlog.spark.read.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENT = 256 << 20
QUEUES = 6
TOPICS = ("orders", "events")
LOOK_TOPICS, LOOK_QUEUES = [f"look{number}" for number in range(5)], 200
START_MS = 1_790_000_000_000
HOST = bytes([10, 0, 0, 1]) + struct.pack(">i", 10911)
BODIES = 2048  # different ones, so that a codec of Parquet has about as much to do as in real life
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "


def generate(root: Path, body_size: int, total_bytes: int) -> dict[str, int]:
    """Write a store of about `total_bytes` with bodies of about `body_size`; return its facts."""
    facts = root / "facts.json"
    if facts.exists():
        known: dict[str, int] = json.loads(facts.read_text())
        return known
    (root / "commitlog").mkdir(parents=True)
    (root / "config").mkdir()
    table: dict[str, dict[str, Any]] = {"broker-a": {"perm": 1, "writeQueueNums": 1}}
    for topic in TOPICS:
        queues = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES}
        table[topic] = {"topicName": topic, "perm": 6, **queues}
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    writer = _Writer(root, _bodies(body_size))
    number = 0
    while writer.end < total_bytes:
        writer.put(number)
        number += 1
    writer.close()
    found = {"rows": number, "bytes": writer.end}
    facts.write_text(json.dumps(found))
    return found


def _bodies(size: int) -> list[bytes]:
    """Return JSON documents of about `size` bytes, each another one."""
    rng = Random(7)
    found = []
    for number in range(BODIES):
        head = f'{{"id":{number},"user":"u{rng.randrange(10**6)}","note":"'
        room = max(0, int(size * rng.uniform(0.8, 1.2)) - len(head) - 2)
        found.append((head + "".join(rng.choices(LETTERS, k=room)) + '"}').encode())
    return found


class _Writer:
    def __init__(self, root: Path, bodies: list[bytes]) -> None:
        self.root, self.end = root, 0
        self.queues = {(t, q): bytearray() for t in TOPICS for q in range(QUEUES)}
        self.segment = bytearray()
        self.codes = {tag: jhash(tag) for tag in "abcd"}
        self.bodies = bodies

    def put(self, number: int) -> None:
        topic, queue_id = TOPICS[number % 2], number // 2 % QUEUES
        tag = "abcd"[number % 4]
        properties = encode_properties(
            {"KEYS": f"k{number}", "TAGS": tag, "UNIQ_KEY": f"{number:032X}", "CLUSTER": "bench"}
        )
        body = self.bodies[number % BODIES]
        now = START_MS + number // 50
        message = PutMessage(
            topic=topic, queue_id=queue_id, body=body, properties=properties,
            born_timestamp=now - number % 7, born_host=HOST, store_host=HOST,
        )  # fmt: skip
        queue = self.queues[topic, queue_id]
        record = encode_record(message, len(queue) // ENTRY_SIZE, self.end, now)
        if len(self.segment) + len(record) + 8 > SEGMENT:
            room = SEGMENT - len(self.segment)
            self.segment += blank_record(room)
            self._flush()
            self.end += room
            record = encode_record(message, len(queue) // ENTRY_SIZE, self.end, now)
        queue += ENTRY.pack(self.end, len(record), self.codes[tag])
        self.segment += record
        self.end += len(record)

    def _flush(self) -> None:
        base = self.end // SEGMENT * SEGMENT
        with (self.root / "commitlog" / f"{base:020d}").open("wb") as file:
            file.write(self.segment)
            file.truncate(SEGMENT)
        self.segment = bytearray()

    def close(self) -> None:
        self._flush()
        for (topic, queue_id), entries in self.queues.items():
            directory = self.root / "consumequeue" / topic / str(queue_id)
            directory.mkdir(parents=True)
            with (directory / f"{0:020d}").open("wb") as file:
                file.write(entries)
                file.truncate(max(6_000_000, len(entries)))


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def read_store(spark: SparkSession, store: Path, **options: str) -> float:
    """Read all columns of a store through Spark; return seconds."""
    reader = spark.read.format("twinlog").option("path", str(store))
    frame = reader.option("subscribePattern", ".*").options(**options).load()
    begin = time.perf_counter()
    _noop(frame)
    return time.perf_counter() - begin


def make_parquet(spark: SparkSession, store: Path, out: Path) -> None:
    """Write the rows of a store as zstd Parquet once, for the comparison."""
    if out.exists():
        return
    frame = spark.read.format("twinlog").option("path", str(store))
    rows = frame.option("subscribePattern", ".*").load()
    rows.write.option("compression", "zstd").parquet(str(out))


def read_parquet(spark: SparkSession, parquet: Path) -> float:
    """Read the same rows from Parquet; return seconds."""
    frame = spark.read.parquet(str(parquet))
    begin = time.perf_counter()
    _noop(frame)
    return time.perf_counter() - begin


def read_directly(store: Path) -> float:
    """Decode all columns on one core without Spark; return seconds."""
    options = SourceOptions.parse({"path": str(store), "subscribePattern": ".*"})
    begin = time.perf_counter()
    for window in plan_batch(options, Pushed()):
        for _ in read_window(options, window, ALL_COLUMNS):
            pass
    return time.perf_counter() - begin


def read_plainly(store: Path, rows_max: int = 200_000) -> tuple[float, int]:
    """Walk the log with a Python loop, one record at a time; return seconds and rows."""
    view = StoreView(store)
    log = view.log.segment(0)
    data = memoryview(log.data)
    begin, at, rows = time.perf_counter(), 0, 0
    while rows < rows_max and int.from_bytes(data[at + 4 : at + 8], "big") == MAGIC_V1:
        record = decode_record(data, at, check_crc=False)
        record.property_map  # noqa: B018  # decoding it is part of the work
        at += record.total_size
        rows += 1
    return time.perf_counter() - begin, rows


def read_topics(spark: SparkSession, name_server: str) -> float:
    """Read all columns of a generated store over the network; return seconds."""
    reader = spark.read.format("twinlog").option("nameServer", name_server)
    frame = reader.option("subscribe", ",".join(TOPICS)).load()
    begin = time.perf_counter()
    _noop(frame)
    return time.perf_counter() - begin


def archive_store(spark: SparkSession, store: Path, out: Path, **options: str) -> float:
    """Archive a store exactly once; return seconds."""
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    archive(out, {"path": str(store), **options}, spark=spark)
    return time.perf_counter() - begin


def write_parquet_by_rows(spark: SparkSession, store: Path, out: Path, **options: str) -> float:
    """Write the same rows through the JVM with Spark's streaming Parquet sink; return seconds."""
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    rows = spark.readStream.format("twinlog").option("path", str(store))
    query = (
        rows.option("subscribePattern", ".*").option("startingOffsets", "earliest")
        .options(**options).load()
        .writeStream.format("parquet").option("path", str(out)).option("compression", "zstd")
        .option("checkpointLocation", str(out / "_checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return time.perf_counter() - begin


def audit_stores(spark: SparkSession, master: Path, slave: Path) -> dict[str, Any]:
    """Audit a pair; return the facts of the summary."""
    return audit(master, slave, spark=spark, settle=0).facts


def batch_seconds(spark: SparkSession, store: Path, work: Path, rows: int = 2000) -> list[float]:
    """Stream a store in small batches into nothing; return what each batch took, sorted."""
    check = work / "check"
    shutil.rmtree(check, ignore_errors=True)
    stream = spark.readStream.format("twinlog").option("path", str(store))
    query = (
        stream.option("subscribePattern", ".*").option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(rows)).load()
        .writeStream.format("noop").option("checkpointLocation", str(check))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    batches: list[Any] = [p for p in query.recentProgress if p["numInputRows"]]
    return sorted(p["durationMs"]["triggerExecution"] / 1000 for p in batches[2:])


def make_queues(name_server: str) -> None:
    """Make LOOK_TOPICS topics of LOOK_QUEUES queues, with a message in every tenth queue."""

    async def make() -> None:
        async with Admin(name_server) as admin:
            for topic in LOOK_TOPICS:
                await create_topic(admin, topic, read_queues=LOOK_QUEUES)

    asyncio.run(make())
    with blocking.Producer("bench", name_server=name_server, send_timeout_ms=30_000) as producer:
        for topic in LOOK_TOPICS:
            for queue_id in range(0, LOOK_QUEUES, 10):
                producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", queue_id))


def look_seconds(name_server: str, looks: int = 40) -> list[float]:
    """Let a stream's planner look at all of them again and again; return seconds, sorted."""
    options = SourceOptions.parse(
        {"nameServer": name_server, "subscribePattern": "look.*", "startingOffsets": "earliest"}
    )
    transport = open_transport(options)
    found = []
    try:
        planner = StreamPlanner(options, transport)
        end = planner.latest(planner.initial(), limited=True)
        for number in range(looks + 5):
            begin = time.perf_counter()
            end = planner.latest(end, limited=True)
            if number >= 5:
                found.append(time.perf_counter() - begin)
        assert len(planner.seen) == len(LOOK_TOPICS) * LOOK_QUEUES
    finally:
        transport.close()
    return sorted(found)


def live_latency(
    spark: SparkSession, store: Path, name_server: str, work: Path, seconds: float = 12.0
) -> tuple[float, float]:
    """Stream the files of a broker that is written to; return median ages: oldest, newest row."""
    from pyspark.sql import functions as F  # noqa: N812

    ages: list[tuple[float, float]] = []

    def note(frame: DataFrame, batch: int) -> None:
        low, high = frame.agg(
            F.min(F.unix_millis("born_ts")), F.max(F.unix_millis("born_ts"))
        ).collect()[0]
        if low is not None:
            now = time.time() * 1000
            ages.append(((now - low) / 1000, (now - high) / 1000))

    with blocking.Producer("bench-live", name_server=name_server) as producer:
        producer.send(Message("live", b"the topic is there"))
    stream = spark.readStream.format("twinlog").option("path", str(store))
    query = (
        stream.option("subscribe", "live").schema("born_ts TIMESTAMP").load()
        .writeStream.foreachBatch(note).option("checkpointLocation", str(work / "live")).start()
    )  # fmt: skip
    with blocking.Producer("bench-live", name_server=name_server) as producer:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            producer.send_many([Message("live", b"x" * 100) for _ in range(20)])
            time.sleep(0.02)
    query.stop()
    settled = ages[len(ages) // 3 :]
    return (
        statistics.median(old for old, _ in settled),
        statistics.median(new for _, new in settled),
    )
