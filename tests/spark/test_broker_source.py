"""The network transport against our own servers: the same rows as from the files."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.processes import Process
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.admin.client import Admin
from twinlog.admin.topics import create_topic
from twinlog.client import Message, blocking
from twinlog.spark.decode.columns import ALL_COLUMNS, arrow_schema
from twinlog.spark.errors import DataLossError, NotFoundError, OptionError, UnreachableError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import to_json
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_transport, plan_batch, read_window
from twinlog.spark.read.store_view import StoreView

DEADLINE_S = 60
COUNT = 700


@dataclass
class Pair:
    """A name server, a master and its slave."""

    namesrv: Any
    master: Any
    slave: Any

    def options(self, **more: str) -> SourceOptions:
        given = {"nameServer": self.namesrv.address, "subscribe": "orders", **more}
        return SourceOptions.parse(given)

    def files(self, store: Path) -> SourceOptions:
        return SourceOptions.parse(
            {"path": str(store), "subscribe": "orders", "brokerName": "broker-a"}
        )


def rows_of(options: SourceOptions) -> list[dict[str, Any]]:
    batches = [
        batch
        for window in plan_batch(options, Pushed())
        for batch in read_window(options, window, ALL_COLUMNS)
    ]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches, arrow_schema()).to_pylist()
    return sorted(rows, key=lambda row: row["phys_offset"])


def stored(pair: Pair, store: Path) -> list[dict[str, Any]]:
    """The rows of a replica's files; none before it has the topic."""
    try:
        return rows_of(pair.files(store))
    except NotFoundError:
        return []


def wait_until(check: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not check():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    for name in ("n", "m", "s"):
        (tmp_path / name).mkdir()
    started: list[Process] = []
    try:
        namesrv = start_twinlog_namesrv(tmp_path / "n")
        started.append(namesrv)
        master = start_twinlog_broker(tmp_path / "m", namesrv=namesrv.address)
        started.append(master)
        slave = start_twinlog_broker(
            tmp_path / "s", namesrv=namesrv.address, brokerId=1, brokerRole="SLAVE"
        )
        started.append(slave)
        yield Pair(namesrv, master, slave)
    finally:
        for process in reversed(started):
            process.kill()


def send(pair: Pair, count: int) -> None:
    with blocking.Producer("producers", name_server=pair.namesrv.address) as producer:
        messages = [
            Message("orders", b"body %d" % n, tags="ab"[n % 2], keys=[f"k{n}"])
            for n in range(count)
        ]
        producer.send_many(messages)


@pytest.mark.timeout(240)
def test_the_network_gives_the_rows_of_the_files(pair: Pair) -> None:
    send(pair, COUNT)
    found = rows_of(pair.options())
    assert len(found) == COUNT
    # A broker writes queue entries a moment after it has acknowledged.
    wait_until(lambda: stored(pair, pair.master.store) == found, "master's files have all")
    tagged = rows_of(pair.options(tags="a"))
    assert [row["keys"] for row in tagged] == [r["keys"] for r in found if r["tags"] == "a"]
    middle = found[300]["store_ts"]
    late = rows_of(pair.options(startingTimestamp=str(round(middle.timestamp() * 1000))))
    assert late == [row for row in found if row["store_ts"] >= middle]

    limits = {"maxOffsetsPerTrigger": "100", "commitGroup": "progress"}
    options = pair.options(startingOffsets="earliest", **limits)
    transport = open_transport(options)
    planner = StreamPlanner(options, transport)
    start = planner.latest(planner.initial(), limited=True)
    end = planner.latest(start, limited=True)
    assert sum(r.rows for w in planner.partitions(start, end) for r in w) <= 100
    assert planner.latest(end, limited=True) != end
    # Where a batch begins the one before it is done: the group knows, the last one's too.
    assert to_json(transport.group_offsets("progress"), {})["offsets"] == end["offsets"]
    marks = end["marks"]["broker-a"]
    with pytest.raises(DataLossError, match="LOG_DIVERGED"):
        transport.check_marks({"broker-a": {**marks, "crc": 1}})
    transport.close()


@pytest.mark.timeout(240)
def test_reads_go_on_from_the_slave_when_the_master_is_killed(pair: Pair) -> None:
    send(pair, COUNT)
    found = rows_of(pair.options())
    options = pair.options(startingOffsets="earliest", maxOffsetsPerTrigger="100")
    transport = open_transport(options)
    planner = StreamPlanner(options, transport)
    start = planner.latest(planner.initial(), limited=True)
    end = planner.latest(start, limited=True)
    wait_until(lambda: stored(pair, pair.slave.store) == found, "slave has all")
    table = StoreView(pair.slave.store)
    wait_until(lambda: "orders" in table.topics(), "slave knows the topic")
    pair.master.kill()
    assert rows_of(pair.options(fetchRetries="10")) == found
    again = planner.latest(end, limited=True)
    assert sum(r.rows for w in planner.partitions(end, again) for r in w) > 50
    transport.close()


def test_no_such_topic_and_no_name_server_are_clear_errors(pair: Pair) -> None:
    send(pair, 1)
    with pytest.raises(NotFoundError, match="TOPIC_NOT_FOUND"):
        rows_of(pair.options(subscribe="nothing"))
    misspelt = pair.options(subscribe="order")
    with pytest.raises(NotFoundError, match=r"no topic 'order'; did you mean 'orders'\?"):
        rows_of(misspelt)
    with (
        contextlib.closing(open_transport(misspelt)) as transport,
        pytest.raises(NotFoundError, match=r"no topic 'order'; did you mean 'orders'\?"),
    ):
        transport.heads({})
    with pytest.raises(OptionError, match="option brokerName"):
        pair.options(brokerName="broker-a")
    with pytest.raises(UnreachableError, match="BROKER_UNREACHABLE"):
        rows_of(pair.options(nameServer="127.0.0.1:9"))
    with pytest.raises(OptionError, match=r"option nameServer: .* is not a name server"):
        rows_of(pair.options(nameServer=pair.master.address))


def test_an_empty_topic_and_a_missing_one_are_the_same_in_files(pair: Pair) -> None:
    send(pair, 1)

    async def make() -> None:
        async with Admin(pair.namesrv.address) as admin:
            await create_topic(admin, "empty", read_queues=3)

    asyncio.run(make())
    wait_until(lambda: "empty" in StoreView(pair.master.store).topics(), "the table is saved")
    files = {"path": str(pair.master.store), "brokerName": "broker-a"}
    for place in (files, {"nameServer": pair.namesrv.address}):
        options = SourceOptions.parse({**place, "subscribe": "empty"})
        transport = open_transport(options)
        bounds = transport.heads({}).bounds
        transport.close()
        assert bounds == {("empty", "broker-a", queue): (0, 0) for queue in range(3)}
        assert rows_of(options) == []
        with pytest.raises(NotFoundError, match=r"TOPIC_NOT_FOUND. there is no topic 'nothing'"):
            rows_of(SourceOptions.parse({**place, "subscribe": "nothing"}))
