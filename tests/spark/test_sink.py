"""Rows into topics: the sink, and the jobs that move data with it, against our own broker."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from storefiles import StoreFiles

from support.processes import Process, process_group, wait_until
from support.raw_log import raw_bodies
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.admin import Admin
from twinlog.admin.topics import create_topic
from twinlog.client import MessageQueue, SendReceipt, SendStatus
from twinlog.spark.errors import NotFoundError, OptionError, UnreachableError
from twinlog.spark.jobs.archive import archive
from twinlog.spark.jobs.mirror import mirror
from twinlog.spark.jobs.move import export, import_rows, replay
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.rows import plan_batch, read_window
from twinlog.spark.run import faults
from twinlog.spark.write.encode import Chunk
from twinlog.spark.write.sending import RowSender, SinkError, Task, send_rows
from twinlog.spark.write.sink import SinkOptions

pytestmark = pytest.mark.timeout(300)
COLUMNS = ("topic", "queue_id", "queue_offset", "body", "keys", "tags", "flag", "properties")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("cluster")
    for name in ("n", "m"):
        (directory / name).mkdir()
    started: list[Process] = []
    try:
        server = start_twinlog_namesrv(directory / "n")
        started.append(server)
        started.append(start_twinlog_broker(directory / "m", namesrv=server.address))
        yield server.address
    finally:
        for process in reversed(started):
            process.kill()


def rows_of(namesrv: str, topic: str) -> list[dict[str, Any]]:
    options = SourceOptions.parse({"nameServer": namesrv, "subscribe": topic})
    windows = plan_batch(options, Pushed())
    return [row for w in windows for b in read_window(options, w, COLUMNS) for row in b.to_pylist()]


def send(namesrv: str, rows: list[dict[str, Any]], **options: str) -> int:
    given = SinkOptions.parse({"nameServer": namesrv, **options})
    return send_rows(given, iter([pa.RecordBatch.from_pylist(rows)]), Task())


def test_every_column_of_a_row_arrives(namesrv: str) -> None:
    plain = {"keys": None, "tags": None, "flag": None, "properties": None, "queue_id": 1}
    full = {"keys": "k1 k2", "tags": "a", "flag": 7, "properties": [("mine", "x")], "queue_id": 1}
    rows = [{"body": b"one", **full}, {"body": b"two", **plain}]
    schema = pa.schema(
        [("body", pa.binary()), ("keys", pa.string()), ("tags", pa.string()), ("flag", pa.int32()),
         ("properties", pa.map_(pa.string(), pa.string())), ("queue_id", pa.int32())]
    )  # fmt: skip
    options = SinkOptions.parse({"nameServer": namesrv, "topic": "every"})
    assert send_rows(options, iter([pa.RecordBatch.from_pylist(rows, schema=schema)]), Task()) == 2
    found = rows_of(namesrv, "every")
    assert [(r["body"], r["queue_id"], r["keys"], r["tags"], r["flag"]) for r in found] == [
        (b"one", 1, "k1 k2", "a", 7),
        (b"two", 1, None, None, 0),
    ]
    assert dict(found[0]["properties"])["mine"] == "x"


def test_delayed_rows_and_the_time_of_birth(namesrv: str) -> None:
    born = datetime(2020, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    rows = [{"body": b"later", "delay_level": 1, "born_ts": born}, {"body": b"now"}]
    assert send(namesrv, rows, topic="delayed") == 2
    found = wait_until(
        lambda: len(rows := rows_of(namesrv, "delayed")) == 2 and rows, "the delayed row"
    )
    later = next(dict(row["properties"]) for row in found if row["body"] == b"later")
    assert later["ORIGIN_BORN_TIME"] == "1577934245679"
    assert later["DELAY"] == "1"


def test_a_rate_is_a_limit(namesrv: str) -> None:
    begin = time.monotonic()
    assert send(namesrv, [{"body": b"x"}] * 100, topic="slow", ratePerSecond="200") == 100
    assert time.monotonic() - begin >= 0.49


def test_no_more_rows_are_on_their_way_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.VARIABLE, raising=False)  # Set for a session of other tests.

    async def fill() -> tuple[int, int]:
        options = SinkOptions.parse({"nameServer": "x:1", "topic": "t", "maxInFlight": "100"})
        sender, answers = RowSender(options, Task()), []

        class Silent:
            once = None

            async def send_members(self, *_: Any, **__: Any) -> asyncio.Future[Any]:
                answers.append(asyncio.get_running_loop().create_future())
                return answers[-1]

        async def all_chunks() -> None:
            for number in range(10):
                chunk = Chunk("t", b"", 25, number * 25, number * 25 + 24)
                await sender._one_chunk(Silent(), None, chunk)  # type: ignore[arg-type]

        task = asyncio.create_task(all_chunks())
        for _ in range(100):  # turns of the loop, not time: nothing else wakes the task
            await asyncio.sleep(0)
        stopped_at, most = len(answers), sender.pending_rows
        ok = SendReceipt(SendStatus.SEND_OK, "", MessageQueue("t", "b", 0), 0)
        while not task.done():
            for answer in answers:
                if not answer.done():
                    answer.set_result(ok)
                    break
            await asyncio.sleep(0)
            most = max(most, sender.pending_rows)
        return stopped_at, most

    assert asyncio.run(fill()) == (4, 100)


def test_sharding_keys_keep_their_order(namesrv: str) -> None:
    rows = [{"body": b"%d" % n, "sharding_key": f"s{n % 5}"} for n in range(300)]
    assert send(namesrv, rows, topic="sharded", maxInFlight="50") == 300
    found = rows_of(namesrv, "sharded")
    for shard in range(5):
        own = [r for r in found if int(r["body"]) % 5 == shard]
        assert len({r["queue_id"] for r in own}) == 1
        assert [int(r["body"]) for r in own] == list(range(shard, 300, 5))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"body": None, "tags": "a"}, "row 1 of task 0: its body is null"),
        ({"body": b"", "tags": "a"}, "row 1 of task 0: body is empty"),
        ({"body": b"x", "tags": "a\x01b"}, "row 1 of task 0: tags must not contain the characters"),
        ({"body": b"x", "tags": "a", "properties": {"p": "v\x02"}}, "row 1 .*: property 'p'"),
        ({"body": b"x", "tags": "a", "queue_id": 99}, "row 1 of task 0: topic .* no queue 99"),
        ({"body": b"x" * 5_000_000, "tags": "a"}, "row 1 of task 0"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named_and_those_before_it_are_kept(
    namesrv: str, row: dict[str, Any], text: str
) -> None:
    topic = f"illegal-{time.time_ns()}"
    kinds = {"body": pa.binary(), "tags": pa.string(), "queue_id": pa.int32()}
    kinds["properties"] = pa.map_(pa.string(), pa.string())
    schema = pa.schema([(name, kind) for name, kind in kinds.items() if name in row])
    rows = [{"body": b"good", "tags": "a"}, row, {"body": b"never", "tags": "a"}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    options = SinkOptions.parse({"nameServer": namesrv, "topic": topic})
    with pytest.raises(SinkError, match=rf"\[ROW_ILLEGAL\] {text}"):
        send_rows(options, iter([batch]), Task())
    assert [r["body"] for r in rows_of(namesrv, topic)] == [b"good"]


@pytest.mark.parametrize("given", [{}, {"exactlyOnce": "true", "producerId": "dead"}])
def test_rows_that_cannot_be_sent_go_to_the_dead_letters(
    namesrv: str, tmp_path: Path, given: dict[str, str]
) -> None:
    topic = f"letters-{time.time_ns()}"
    rows: list[dict[str, Any]] = [{"body": b"%d" % n, "queue_id": n % 4} for n in range(40)]
    rows[7]["body"], rows[23]["queue_id"], rows[39]["body"] = None, 99, b"x" * 5_000_000
    schema = pa.schema([("body", pa.binary()), ("queue_id", pa.int32())])
    batches = [
        pa.RecordBatch.from_pylist(rows[at : at + 20], schema=schema) for at in range(0, 40, 20)
    ]
    place = {"deadLetterPath": str(tmp_path / "dead")}
    options = SinkOptions.parse({"nameServer": namesrv, "topic": topic, **place, **given})
    for _ in range(2):  # done again: the letters are there once
        assert send_rows(options, iter(batches), Task()) == 37
    wanted = Counter(row["body"] for n, row in enumerate(rows) if n not in (7, 23, 39))
    times = 1 if given else 2
    found = Counter(row["body"] for row in rows_of(namesrv, topic))
    assert found == Counter(dict.fromkeys(wanted, times))
    letters = pq.read_table(tmp_path / "dead").sort_by("reason").to_pylist()
    assert [(row["body"], row["queue_id"]) for row in letters] == [
        (rows[n]["body"], rows[n]["queue_id"]) for n in (23, 39, 7)
    ]
    for letter, text in zip(letters, ("no queue 99", "row 39", "row 7 .*is null"), strict=True):
        assert re.search(text, letter["reason"])
    with pytest.raises(OptionError, match="BAD_PLACE"):
        SinkOptions.parse({"nameServer": namesrv, "deadLetterPath": "ftp://x/y"})


def test_a_topic_that_does_not_exist_is_named_with_its_row(tmp_path: Path) -> None:
    with process_group() as group:
        server = start_twinlog_namesrv(tmp_path / "n")
        group.add(server)
        broker = start_twinlog_broker(
            tmp_path / "b", namesrv=server.address, autoCreateTopicEnable=False,
            mappedFileSizeCommitLog=1 << 24,
        )  # fmt: skip
        group.add(broker)
        server.wait_for_text(f"address={broker.address}")
        asyncio.run(make_topic(server.address, "there"))
        rows = [{"body": b"%d" % n, "topic": "there"} for n in range(300)]
        wrong = [{"body": b"x", "topic": "there"}, {"body": b"y", "topic": "missing"}]
        batches = [pa.RecordBatch.from_pylist(part) for part in (rows, wrong)]
        for given in ({}, {"exactlyOnce": "true", "producerId": "p"}, {"ratePerSecond": "9999"}):
            options = SinkOptions.parse({"nameServer": server.address, **given})
            words = r"\[TOPIC_NOT_FOUND\] row 301 of task 0: .*missing.*autoCreateTopicEnable"
            with pytest.raises(NotFoundError, match=words):
                send_rows(options, iter(batches), Task())
        found = raw_bodies(broker.store, "there")
        assert {found[row["body"]] for row in rows} == {3}
        assert raw_bodies(broker.store, "missing") == {}


def test_options_that_cannot_be_kept_are_refused(namesrv: str) -> None:
    with pytest.raises(OptionError, match="needs the option producerId"):
        send(namesrv, [{"body": b"x"}], topic="t", exactlyOnce="true")
    with pytest.raises(OptionError, match="it has an effect only with exactlyOnce=true"):
        SinkOptions.parse({"nameServer": namesrv, "producerId": "p"})
    with pytest.raises(OptionError, match="letters, digits"):
        SinkOptions.parse({"nameServer": namesrv, "exactlyOnce": "true", "producerId": "a,b"})
    with pytest.raises(OptionError, match="did you mean 'maxInFlight'"):
        SinkOptions.parse({"nameServer": namesrv, "maxInFligth": "1"})
    for name in ("topic", "group"):
        for value in ("", "a b", "x" * 300):
            text = f"option {name}='{value[:200]}': it must be 1 to"
            with pytest.raises(OptionError, match=text):
                SinkOptions.parse({"nameServer": namesrv, name: value})
    with pytest.raises(OptionError, match="option nameServer='broker': 'broker' has no port"):
        SinkOptions.parse({"nameServer": "broker", "topic": "t"})
    with pytest.raises(UnreachableError):
        send("127.0.0.1:9", [{"body": b"x"}], topic="t", sendTimeoutMs="300", sendRetries="0")


async def make_topic(namesrv: str, topic: str) -> None:
    async with Admin(namesrv) as admin:
        await create_topic(admin, topic)


def content(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter((r["body"], r["keys"], r["tags"]) for r in rows)


@pytest.mark.spark
def test_replay_export_import_and_mirror_give_equal_rows(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(80)
    store = tmp_path / "store"
    wanted = content([r for r in files.rows if r["topic"] == "orders"])
    chosen = {"subscribe": "orders"}
    dry = replay(store, namesrv, chosen, to_topic="replayed", dry_run=True, spark=spark)
    assert dry.facts["rows"] == 40
    replay(store, namesrv, chosen, to_topic="replayed", spark=spark)
    found = rows_of(namesrv, "replayed")
    assert content(found) == wanted
    origin = {dict(r["properties"])["ORIGIN_UNIQ_KEY"] for r in found}
    assert origin == {r["msg_id"] for r in files.rows if r["topic"] == "orders"}

    assert export(store, tmp_path / "out", chosen, spark=spark).facts["rows"] == 40
    import_rows(tmp_path / "out", namesrv, to_topic="imported", spark=spark)
    assert content(rows_of(namesrv, "imported")) == wanted
    export(store, tmp_path / "files", chosen, form="parquet", spark=spark)
    import_rows(tmp_path / "files", namesrv, to_topic="imported-2", spark=spark)
    assert content(rows_of(namesrv, "imported-2")) == wanted

    source = {"path": str(store), "subscribe": "orders"}
    mirror(source, namesrv, tmp_path / "check", to_topic="mirrored", spark=spark)
    files.fill(20)
    mirror(source, namesrv, tmp_path / "check", to_topic="mirrored", spark=spark)
    everything = content([r for r in files.rows if r["topic"] == "orders"])
    assert content(rows_of(namesrv, "mirrored")) == everything


IDENTITY = ("topic", "queue_id", "queue_offset", "body", "keys", "tags", "flag")


def archived(spark: Any, place: Path, *columns: str) -> Counter[Any]:
    reader = spark.read.format("twinlog").option("archive", str(place))
    rows = reader.option("subscribePattern", ".*").load().selectExpr(*IDENTITY, *columns).collect()
    return Counter(tuple(bytes(v) if isinstance(v, bytearray) else v for v in row) for row in rows)


@pytest.mark.spark
def test_an_archive_that_is_replayed_into_an_empty_cluster_gives_equal_rows(
    spark: Any, tmp_path: Path
) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(200)
    files.put("orders", 2, b"no keys, no tags", {"mine": "own value"}, flag=5)
    archive(tmp_path / "one", {"path": str(tmp_path / "store")}, spark=spark)
    with process_group() as group:
        server = start_twinlog_namesrv(tmp_path / "n")
        group.add(server)
        broker = start_twinlog_broker(tmp_path / "b", namesrv=server.address)
        group.add(broker)
        server.wait_for_text(f"address={broker.address}")
        facts = replay(tmp_path / "one", server.address, keep_queue=True, spark=spark).facts
        assert facts["rows"] == 201
        archive(tmp_path / "two", {"nameServer": server.address}, spark=spark)
    own = "properties['mine'] AS mine"
    # What a message was before: its id and the time of its birth travel as properties.
    before = archived(spark, tmp_path / "one", own, "msg_id", "unix_millis(born_ts) AS born")
    after = archived(
        spark, tmp_path / "two", own, "properties['ORIGIN_UNIQ_KEY'] AS msg_id",
        "CAST(properties['ORIGIN_BORN_TIME'] AS BIGINT) AS born",
    )  # fmt: skip
    assert after == before
    assert after.total() == 201


@pytest.mark.spark
def test_an_archive_with_a_gap_is_not_replayed(spark: Any, namesrv: str, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    for _ in range(3):
        files.fill(40)
        archive(tmp_path / "out", {"path": str(tmp_path / "store")}, spark=spark)
    middle = sorted((tmp_path / "out" / "_manifest").iterdir())[1]
    middle.unlink()
    topic = f"gap-{time.time_ns()}"
    words = r"ARCHIVE_GAP\] events broker broker-a queue 0: the archive ends at 5, .* begin at 10"
    for is_dry in (True, False):
        with pytest.raises(Exception, match=words):
            replay(tmp_path / "out", namesrv, to_topic=topic, dry_run=is_dry, spark=spark)
    with pytest.raises(Exception, match="TOPIC_NOT_FOUND"):
        rows_of(namesrv, topic)
