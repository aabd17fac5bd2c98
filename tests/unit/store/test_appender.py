"""The compiled appender against the Python one: the same messages, the same bytes and numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.message.ids import pack_host
from twinlog.message.layout import ENTRY_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.record import RecordError, decode_record
from twinlog.runtime.compiled import load
from twinlog.store.index.index_service import IndexService
from twinlog.store.log import appender
from twinlog.store.queue.consume_queue import ConsumeQueue
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimDisk

V4, V6 = pack_host("10.0.0.7", 10911), pack_host("::1", 10911)
NOW = 1_700_000_000_000
SEGMENT_END = 3000


class End:
    """An appender of one tier with a queue for each topic, and all that it was told."""

    def __init__(self, module: Any, has_index: bool) -> None:
        self.end = module.LogEnd()
        self.end.segment_end = SEGMENT_END
        self.index = None
        if has_index:
            self.index = IndexService(
                SimDisk(), ManualClock(), "/index", slots_max=10, index_max=40
            )
        self.dirty: list[tuple[str, int]] = []
        self.appender = module.Appender(
            self.end, self.index, begin=lambda: NOW, mark_dirty=self.mark_dirty
        )
        self.queues: dict[str, ConsumeQueue] = {}

    def mark_dirty(self, queue: ConsumeQueue, offset: int) -> None:
        queue.dirty_since_ms = 1
        self.dirty.append((queue.topic, offset))

    def queue(self, topic: str) -> ConsumeQueue:
        return self.queues.setdefault(topic, ConsumeQueue(topic, 0, f"/{topic}", 20 * ENTRY_SIZE))

    def append(self, message: PutMessage, code: int) -> Any:
        if not self.appender.is_open:
            self.appender.open()
        try:
            return self.appender.append(message, self.queue(message.topic), code)
        except RecordError as error:
            return type(error), str(error)
        except Exception as error:  # Numbers that fit no field: whatever struct says.
            return Exception, type(error).__name__ in ("error", "OverflowError")

    def close_turn(self) -> list[str]:
        return [queue.topic for queue in self.appender.close()]

    def state(self) -> dict[str, Any]:
        return {
            "tail": self.end.tail,
            "pieces": b"".join(self.end.pieces),
            "dirty": self.dirty,
            "turn": self.appender.turn,
            "time": self.appender.timestamp,
            "queues": {
                topic: (bytes(q.tail), q.next_offset, q.last_physical_end, q.turn, q.turn_offset)
                for topic, q in self.queues.items()
            },
            "index": self.index and (self.index.pending, self.index.bare_offset),
        }


NUMBERS = st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**62])
MESSAGES = st.builds(
    PutMessage,
    topic=st.sampled_from(["T", "other", "t" * 127, "t" * 128, "Stra\u00dfe", ""]),
    queue_id=NUMBERS,
    body=st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(memoryview)),
    properties=st.sampled_from([b"", b"a\x01b", b"p" * 600, bytes(600), bytes(40_000)]),
    flag=NUMBERS,
    sys_flag=st.sampled_from([0, 1, 16, 32, 48, -1, 2**31]),
    born_timestamp=st.integers(0, 2**62),
    born_host=st.sampled_from([V4, V6]),
    store_host=st.sampled_from([V4, V6]),
    reconsume_times=NUMBERS,
    prepared_transaction_offset=st.integers(0, 2**62),
    keys=st.sampled_from([(), ("k",), ("unique", "a", "b")]),
)


@pytest.mark.compiled
@given(
    st.lists(st.tuples(MESSAGES, st.integers(-(2**63), 2**63 - 1), st.booleans())), st.booleans()
)
def test_both_tiers_append_the_same(steps: list[Any], has_index: bool) -> None:
    compiled, pure = End(load("twinlog.store.log._appender"), has_index), End(appender, has_index)
    for message, code, ends_turn in steps:
        assert compiled.append(message, code) == pure.append(message, code)
        if ends_turn:
            assert compiled.close_turn() == pure.close_turn()
    assert compiled.state() == pure.state()


@pytest.fixture(params=["pure", pytest.param("compiled", marks=pytest.mark.compiled)])
def end(request: Any) -> End:
    return End(appender if request.param == "pure" else load("twinlog.store.log._appender"), True)


def message(**changes: Any) -> PutMessage:
    values = {"topic": "T", "queue_id": 3, "body": b"body", "born_host": V4, "store_host": V4}
    return PutMessage(**{**values, **changes})


def test_a_record_is_what_was_put_at_the_place_that_was_free(end: End) -> None:
    first = end.append(message(keys=("k",)), 5)
    second = end.append(message(body=b"next", properties=b"a\x01b"), 6)
    record = decode_record(b"".join(end.end.pieces[1:]))
    assert (first, second) == (0, len(end.end.pieces[0]))
    assert (record.physical_offset, record.queue_offset, record.queue_id) == (second, 1, 3)
    assert (record.body, record.properties, record.store_timestamp) == (b"next", b"a\x01b", NOW)
    assert end.index is not None
    assert end.index.pending == [("T", ("k",), 0, NOW)]
    assert end.index.bare_offset == second


def test_what_does_not_fit_changes_nothing(end: End) -> None:
    assert end.append(message(body=bytes(1000)), 0) == 0
    before = end.state()
    assert end.append(message(body=bytes(2000)), 0) == -1
    assert end.append(message(body=memoryview(bytes(2000))), 0) == -1
    assert end.state() == before
    assert not end.end.fits(SEGMENT_END - end.end.tail - 7)
    assert end.end.fits(SEGMENT_END - end.end.tail - 8)


def test_a_turn_knows_the_queues_that_it_put_to(end: End) -> None:
    end.append(message(topic="A"), 0)
    end.append(message(topic="B"), 0)
    end.append(message(topic="A"), 0)
    assert end.close_turn() == ["A", "B"]
    assert not end.appender.is_open
    end.append(message(topic="B"), 0)
    assert (end.appender.turn, end.queues["B"].turn_offset) == (2, 1)
    assert end.close_turn() == ["B"]
    assert end.dirty == [("A", 0), ("B", end.dirty[1][1])], (
        "a queue that waits already says nothing"
    )


def test_batches_and_records_without_an_entry(end: End) -> None:
    end.appender.open()
    queue = end.queue("T")
    assert end.appender.add_batch(b"records", queue, bytes(2 * ENTRY_SIZE)) == 0
    assert (queue.next_offset, queue.last_physical_end) == (2, 7)
    assert end.appender.add_unqueued(b"half", "T", ("k",)) == 7
    assert end.appender.add_unqueued(b"rolled back", "T", None) == 11
    assert end.index is not None
    assert [item[2] for item in end.index.pending] == [7]
    assert queue.next_offset == 2
