"""An idempotent send is answered SEND_OK only when what its mode promises is true of its record.

Generated: sends and repeats of several producers, ordinary messages between them, writes, flushes,
slaves that join, acknowledge, fall behind and leave, some of which were empty and begin in the
middle of the log, time-outs; in every mode. The store, the table of producers, the queue of waiting
replies and the counting of acknowledgements are the production ones; the oracle keeps itself what
is written and flushed, and of each record whether enough slaves have had it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from support.stores import make_store, message, small_config
from twinlog.broker.errors import BrokerError
from twinlog.broker.processors.send_once import SendOnce
from twinlog.broker.put.idempotence import ProducerTable
from twinlog.broker.put.once_service import IdempotentSends
from twinlog.broker.put.replies import PutReplies
from twinlog.broker.role import Role
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.ha.acks import AckTable
from twinlog.ha.group_transfer import GroupTransferService
from twinlog.ha.status import DepartedStatus
from twinlog.message.ids import NO_HOST
from twinlog.message.once import ONCE_NAME, Mark
from twinlog.remoting.codec import decode_header
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.framing import FrameSplitter
from twinlog.runtime.broker_config import BrokerRole, FlushDiskType
from twinlog.runtime.failures import Failures
from twinlog.store.status import PutMessageStatus
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimDisk

PRODUCERS = st.sampled_from(["p", "q"])
QUEUES = st.sampled_from([0, 1])
SLAVES = st.sampled_from(["s1", "s2"])
RUNS_MAX = 3  # So few that places are forgotten all the time.
SLAVE_TIMEOUT_MS = 3000
FLUSH_TIMEOUT_MS = 5000
OK, DISK, NO_SLAVE, SLAVE = 0, 10, 11, 12


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    logging.getLogger("twinlog").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("twinlog").setLevel(logging.NOTSET)


class Stored:
    """What the oracle knows about a record."""

    def __init__(self, number: int, start: int, end: int, queue_offset: int, body: bytes) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.is_confirmed = False
        self.queue_offset = queue_offset
        self.body = body


class Asked:
    """A request that waits for its answer."""

    def __init__(self, records: Sequence[Stored], must_wait: bool) -> None:
        self.records = records
        self.must_wait = must_wait


class Connection:
    """The far end: every answer goes to the machine at the moment it leaves."""

    def __init__(self, answered: Any) -> None:
        self._answered = answered

    def write(self, data: bytes) -> None:
        for frame in FrameSplitter().feed(bytes(data)):
            command = decode_header(*frame)
            self._answered(command.opaque, command.code, command.ext())

    def write_run(self, data: bytes, count: int) -> None:
        self.write(data)

    def write_pieces(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def reply(self, request: Any, code: int = 0, *, remark: Any = None, header: Any = None) -> None:
        self._answered(request.opaque, code, {k: str(v) for k, v in (header or {}).items()})


class OnceMachine(RuleBasedStateMachine):
    """One master."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.connection = Connection(self.answered)
        self.waiting: dict[int, Asked] = {}
        self.opaque = 0
        self.stored: dict[tuple[str, int], list[Stored]] = {}
        self.answer_count = 0
        # What is said by a callback: the broker would contain it, and go on.
        self.faults: list[str] = []
        self.failures = Failures()
        self.failures.listener = lambda what, error: self.faults.append(f"{what}: {error!r}")
        # The oracle: how far the log is written and flushed, and what each slave has.
        self.end = self.flushed = 0
        self.acks: dict[str, int] = {}
        self.starts: dict[str, int] = {}
        self.had_partial = False
        self.records: list[Stored] = []

    @initialize(
        role=st.sampled_from([BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER]),
        flush=st.sampled_from(FlushDiskType),
        in_sync=st.sampled_from([1, 2, 2, 3]),
        fall_behind=st.sampled_from([600, 1 << 28]),
    )
    def begin(self, role: BrokerRole, flush: FlushDiskType, in_sync: int, fall_behind: int) -> None:
        config = small_config(
            "/store", broker_role=role, flush_disk_type=flush, in_sync_replicas=in_sync,
            slave_timeout=SLAVE_TIMEOUT_MS, sync_flush_timeout=FLUSH_TIMEOUT_MS,
        )  # fmt: skip
        self.ack_count = in_sync - 1
        self.wants_slaves = role is BrokerRole.SYNC_MASTER and self.ack_count > 0
        self.wants_flush = flush is FlushDiskType.SYNC_FLUSH
        self.clock = ManualClock()
        disk = SimDisk()
        self.store = make_store(config, disk, self.clock)
        sends = IdempotentSends(self.store, disk, self.clock, "/store")
        sends.table = ProducerTable(runs_max=RUNS_MAX)
        self.loop.run_until_complete(self.store.load())
        self.store.open_for_puts()
        self.ack_table = AckTable()
        self.transfer = GroupTransferService(
            self.ack_table, self.clock, ack_count=self.ack_count, fall_behind_max=fall_behind,
            timeout_ms=SLAVE_TIMEOUT_MS,
        )  # fmt: skip
        self.replies = PutReplies(
            config, clock=self.clock, appended=self.store.appended, flushed=self.store.flushed,
            replication=self.transfer, store_host=NO_HOST, stats=StoreStats(0),
            role=Role(config), failures=self.failures,
        )  # fmt: skip
        self.sends = sends
        self.once = SendOnce(sends, self.replies)

    # What clients do.

    @rule(producer=PRODUCERS, queue_id=QUEUES, must_wait=st.sampled_from([True, True, False]))
    def send(self, producer: str, queue_id: int, must_wait: bool) -> None:
        """The next number of a producer."""
        records = self.stored.setdefault((producer, queue_id), [])
        mark = Mark(producer, 0, len(records), queue_id, "T")
        assert self.once.known_count(mark, 1) == 0
        one = message(len(records), queue_id=queue_id, size=40 + 30 * (len(records) % 3))
        one.properties += f"\x02{ONCE_NAME}{mark.text()}".encode()
        result = self.store.put(one)
        assert result.status is PutMessageStatus.PUT_OK
        self.once.stored(mark, result, is_elsewhere=False)
        record = Stored(
            mark.number, result.physical_offset, result.end_offset, result.queue_offset,
            bytes(one.body),
        )  # fmt: skip
        records.append(record)
        self.records.append(record)
        opaque = self.ask([record], must_wait)
        reply = (self.connection, opaque, 0, queue_id, result.queue_offset, result.physical_offset)
        self.replies.add(result, reply, must_wait)

    @rule(queue_id=QUEUES, must_wait=st.booleans())
    def send_ordinary(self, queue_id: int, must_wait: bool) -> None:
        result = self.store.put(message(7, queue_id=queue_id))
        record = Stored(0, result.physical_offset, result.end_offset, result.queue_offset, b"")
        self.records.append(record)
        opaque = self.ask([record], must_wait)
        reply = (self.connection, opaque, 0, queue_id, result.queue_offset, result.physical_offset)
        self.replies.add(result, reply, must_wait)

    @precondition(lambda self: any(self.stored.values()))
    @rule(data=st.data(), must_wait=st.sampled_from([True, True, False]))
    def repeat(self, data: st.DataObject, must_wait: bool) -> None:
        """Any message that was sent before, or some that follow each other, once more."""
        key = data.draw(st.sampled_from(sorted(key for key, value in self.stored.items() if value)))
        first = data.draw(st.integers(0, len(self.stored[key]) - 1))
        self.repeat_from(key, first, data.draw(st.integers(1, 3)), must_wait)

    def repeat_from(self, key: tuple[str, int], first: int, count: int, must_wait: bool) -> None:
        again = self.stored[key][first : first + count]
        mark = Mark(key[0], 0, first, key[1], "T")
        assert self.once.known_count(mark, len(again)) == len(again)
        opaque = self.ask(again, must_wait)
        request: Any = RemotingCommand.request(310)
        request.opaque = opaque
        places = self.once.places(mark, [record.body for record in again])
        is_known = all(place.queue_offset >= 0 for place in places)
        self.once.answer_repeat(self.connection, request, mark, places, must_wait)  # type: ignore[arg-type]
        # A slave that began in the middle counts later than it could.
        if is_known and not self.had_partial and self.missing(again, must_wait) is None:
            assert opaque not in self.waiting, "true already, and not said"

    @rule()
    def repeat_another_body(self) -> None:
        """A repeat by its number with other content is refused, whatever else waits."""
        for (producer, queue_id), records in self.stored.items():
            if records and records[-1].end <= self.end:
                mark = Mark(producer, 0, len(records) - 1, queue_id, "T")
                with pytest.raises(BrokerError):
                    self.once.places(mark, [b"something else"])

    # What the machines do.

    @rule()
    def write(self) -> None:
        self.end = self.store.commit_log.tail
        self.store.write_pending()
        assert self.store.appended.value == self.end

    @rule()
    def flush(self) -> None:
        self.write()  # The loop that flushes would do it.
        # Before the call: what it releases is true by then.
        self.flushed = self.end
        self.loop.run_until_complete(self.store.flush_service.flush())

    @rule(slave=SLAVES, share=st.sampled_from([0.0, 0.5, 1.0]))
    def slave_joins(self, slave: str, share: float) -> None:
        if slave in self.acks:
            return
        self.acks[slave], self.starts[slave] = int(self.end * share), 0
        self.count()
        self.ack_table.join(slave, self.acks[slave], self.clock.monotonic_ms())
        self.transfer.acks_changed()

    @rule(slave=SLAVES, share=st.sampled_from([0.3, 0.7, 1.0]))
    def empty_slave_joins(self, slave: str, share: float) -> None:
        """It is sent the log from somewhere on, and will never have what is before."""
        ends = [record.end for record in self.records if record.end <= self.end]
        if slave in self.acks or not ends:
            return
        start = ends[int((len(ends) - 1) * share)]
        self.acks[slave] = self.starts[slave] = start
        self.had_partial = True
        self.ack_table.join(slave, start, self.clock.monotonic_ms(), start_offset=start)
        self.transfer.acks_changed()

    @rule(slave=SLAVES, share=st.sampled_from([0.3, 0.7, 1.0]))
    def slave_acks(self, slave: str, share: float) -> None:
        if slave not in self.acks:
            return
        self.acks[slave] += int((self.end - self.acks[slave]) * share)
        self.count()
        self.ack_table.ack(
            slave, self.acks[slave], sent_offset=self.end, end_offset=self.end,
            now_ms=self.clock.monotonic_ms(),
        )  # fmt: skip
        self.transfer.acks_changed()

    @rule(slave=SLAVES)
    def slave_leaves(self, slave: str) -> None:
        if self.acks.pop(slave, None) is not None:
            self.ack_table.leave(slave)
            now = self.clock.now_ms()
            self.transfer.replica_left(DepartedStatus(slave, now, now, 0, "test"))

    @rule(duration_ms=st.sampled_from([60, 1500, 4000]))
    def time_passes(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    # The oracle.

    def count(self) -> None:
        for record in self.records:
            has = [
                name
                for name, ack in self.acks.items()
                if self.starts[name] <= record.start and record.end <= ack
            ]
            record.is_confirmed |= len(has) >= self.ack_count

    def missing(self, records: Sequence[Stored], must_wait: bool) -> int | None:
        """The code of what does not hold for these records; None when all does."""
        end = max(record.end for record in records)
        if end > self.end:
            return -1
        if must_wait and self.wants_slaves and not all(one.is_confirmed for one in records):
            return SLAVE
        if must_wait and self.wants_flush and end > self.flushed:
            return DISK
        return None

    def ask(self, records: Sequence[Stored], must_wait: bool) -> int:
        self.opaque += 1
        self.waiting[self.opaque] = Asked(records, must_wait)
        return self.opaque

    def answered(self, opaque: int, code: int, ext: dict[str, str]) -> None:
        asked = self.waiting.pop(opaque)  # KeyError: answered twice.
        self.answer_count += 1
        missing = self.missing(asked.records, asked.must_wait)
        place = ext.get("queueOffset")
        if code == OK:
            assert missing is None, f"SEND_OK while {missing} is what holds"
        else:
            assert code in (DISK, NO_SLAVE, SLAVE)
            assert self.wants_slaves or code == DISK, "nobody waits for slaves here"
            # A place that is forgotten is waited for a little longer than its record needs.
            is_careful = place == "-1" or self.had_partial
            assert missing is not None or is_careful, f"{code}, and all of it holds"
        assert place in ("-1", str(asked.records[0].queue_offset)), "another message's place"

    @invariant()
    def every_answer_was_true(self) -> None:
        assert self.faults == []

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.write()
                self.clock.advance(SLAVE_TIMEOUT_MS + FLUSH_TIMEOUT_MS)
                self.every_answer_was_true()
                assert not self.waiting, "never answered"
                assert self.replies.waiting_count == 0
        finally:
            self.loop.close()


TestOnceAnswers = OnceMachine.TestCase
TestOnceAnswers.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    # Shrinking a run of forty steps takes minutes; what was seen is short enough.
    phases=[phase for phase in Phase if phase is not Phase.shrink],
)


@pytest.mark.parametrize("seed", range(60))
def test_long_runs_of_a_sync_master(seed: int) -> None:
    """The same rules by dice: longer, and with more records than the generated runs have."""
    numbers = random.Random(seed)
    machine = OnceMachine()
    try:
        machine.begin(
            BrokerRole.SYNC_MASTER,
            numbers.choice(list(FlushDiskType)),
            numbers.choice([2, 2, 3]),
            numbers.choice([2000, 1 << 28]),
        )
        for _ in range(120):
            step(machine, numbers)
            machine.every_answer_was_true()
    finally:
        machine.teardown()
    assert machine.answer_count > 20


def step(machine: OnceMachine, numbers: random.Random) -> None:
    slave, share = numbers.choice(["s1", "s2"]), numbers.choice([0.3, 0.7, 1.0])
    producer, queue_id = numbers.choice(["p", "q"]), numbers.choice([0, 1])
    known = sorted(key for key, value in machine.stored.items() if value)
    kind = numbers.randrange(16)
    if kind < 4:
        machine.send(producer, queue_id, True)
    elif kind == 4:
        machine.send_ordinary(queue_id, True)
    elif kind < 9 and known:
        key = numbers.choice(known)
        first = numbers.randrange(len(machine.stored[key]))
        machine.repeat_from(key, first, numbers.choice([1, 1, 3]), must_wait=True)
    elif kind == 9:
        machine.flush()
    elif kind == 10:
        machine.slave_joins(slave, share)
    elif kind == 11:
        machine.empty_slave_joins(slave, share)
    elif kind < 14:
        machine.slave_acks(slave, share)
    elif kind == 14:
        machine.slave_leaves(slave)
    else:
        machine.time_passes(numbers.choice([60, 60, 1500]))
    if numbers.random() < 0.6:
        machine.write()
