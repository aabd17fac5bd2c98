"""A stream and an exactly-once sink through automatic failover: every row is read once.

The parts that run inside Spark's processes (planner, tasks of the source, tasks of the sink) are
called here as Spark calls them, without the JVM: a batch that fails is done again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.failover_group import Group, running_group, switch
from support.processes import wait_until
from twinlog.admin.client import Admin
from twinlog.admin.topics import create_topic
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_transport, read_window
from twinlog.spark.write.sending import SinkError, Task, send_rows
from twinlog.spark.write.sink import SinkOptions

TOPIC = "rows"
BATCH_ROWS = 120
DEADLINE_S = 90


class Sink(threading.Thread):
    """The batches of a query that writes; each is repeated until it is done, as Spark does it."""

    def __init__(self, name_server: str) -> None:
        super().__init__(name="sink")
        given = {"nameServer": name_server, "topic": TOPIC, "exactlyOnce": "true"}
        # Short, so that a failover does end tasks, which are then done again.
        self.options = SinkOptions.parse({**given, "sendTimeoutMs": "4000"})
        self.done = self.repeated = 0
        self.pause_s = 0.0
        self.error: BaseException | None = None
        self.is_ended = threading.Event()

    def rows(self, number: int) -> Iterator[pa.RecordBatch]:
        bodies = [b"%d:%d" % (number, row) for row in range(BATCH_ROWS)]
        for first in range(0, BATCH_ROWS, 40):
            yield pa.RecordBatch.from_pylist([{"body": b} for b in bodies[first : first + 40]])

    def run(self) -> None:
        try:
            while not self.is_ended.is_set():
                try:
                    send_rows(self.options, self.rows(self.done), Task(0, "query", self.done))
                except SinkError:
                    self.repeated += 1
                else:
                    self.done += 1
                self.is_ended.wait(self.pause_s)
        except BaseException as error:
            self.error = error
            raise


class Stream(threading.Thread):
    """The batches of a query that reads."""

    def __init__(self, name_server: str) -> None:
        super().__init__(name="stream")
        given = {"nameServer": name_server, "subscribe": TOPIC, "startingOffsets": "earliest"}
        self.options = SourceOptions.parse({**given, "pollTimeoutMs": "2000"})
        self.bodies: Counter[bytes] = Counter()
        self.error: BaseException | None = None
        self.is_ended = threading.Event()

    def run(self) -> None:
        transport = open_transport(self.options)
        planner = StreamPlanner(self.options, transport)
        try:
            start = planner.latest(planner.initial(), limited=True)
            while not self.is_ended.is_set():
                end = planner.latest(start, limited=True)
                for window in planner.partitions(start, end):
                    patience = self.options.outage_ms
                    for batch in read_window(self.options, window, ("body",), patience_ms=patience):
                        self.bodies.update(batch.column("body").to_pylist())
                self.is_ended.wait(0.05 if end == start else 0)
                start = end
        except BaseException as error:
            self.error = error
            raise
        finally:
            transport.close()


def goes_on(sink: Sink, stream: Stream, what: str, batches: int = 3) -> None:
    """Wait until both have got further."""
    wanted = sink.done + batches

    def is_further() -> bool:
        assert sink.error is None, sink.error
        assert stream.error is None, stream.error
        last = b"%d:0" % (wanted - 1)
        return sink.done >= wanted and last in stream.bodies

    wait_until(is_further, f"the sink and the stream go on after {what}", deadline_s=DEADLINE_S)


def kill(group: Group) -> None:
    master = group.master
    master.kill()
    wait_until(lambda: group.master is not master, "another master", deadline_s=DEADLINE_S)
    group.restart(master)


def hand_over(group: Group) -> None:
    asyncio.run(switch(group))


def story(directory: Path, faults: list[Callable[[Group], None]]) -> tuple[Sink, Stream]:
    """Run the faults one after the other under load, and count."""
    with running_group(directory, 2) as group:
        address = group.namesrv.address

        async def make() -> None:
            async with Admin(address) as admin:
                await create_topic(admin, TOPIC, read_queues=4)

        wait_until(lambda: bool(group.events()), "a master is elected", deadline_s=DEADLINE_S)
        group.wait_in_sync(deadline_s=DEADLINE_S)
        asyncio.run(make())
        sink, stream = Sink(address), Stream(address)
        sink.start()
        stream.start()
        try:
            goes_on(sink, stream, "the start")
            for fault in faults:
                fault(group)
                goes_on(sink, stream, fault.__name__)
                group.wait_in_sync(deadline_s=DEADLINE_S)
            sink.is_ended.set()
            sink.join(DEADLINE_S)
            total = sink.done * BATCH_ROWS
            wait_until(
                lambda: stream.bodies.total() >= total or stream.error is not None,
                "the stream has read everything", deadline_s=DEADLINE_S,
            )  # fmt: skip
        finally:
            sink.is_ended.set()
            stream.is_ended.set()
            sink.join(DEADLINE_S)
            stream.join(DEADLINE_S)
    return sink, stream


def check(sink: Sink, stream: Stream) -> None:
    wanted = {b"%d:%d" % (batch, row) for batch in range(sink.done) for row in range(BATCH_ROWS)}
    repeated = {body: count for body, count in stream.bodies.items() if count != 1}
    assert sink.error is None
    assert stream.error is None
    assert (wanted - stream.bodies.keys(), stream.bodies.keys() - wanted, repeated) == (
        set(), set(), {},
    )  # fmt: skip


@pytest.mark.timeout(400)
def test_rows_are_counted_exactly_through_a_kill_and_a_switch(tmp_path: Path) -> None:
    check(*story(tmp_path, [kill, hand_over]))


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_rows_are_counted_exactly_through_many_failovers(tmp_path: Path, seed: int) -> None:
    from random import Random

    random = Random(seed)
    faults: list[Any] = [random.choice([kill, kill, hand_over]) for _ in range(10)]
    check(*story(tmp_path, faults))
