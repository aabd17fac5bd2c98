"""The table of idempotent producers: verdicts, places, cuts, expiry, snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.broker.put import idempotence
from twinlog.broker.put.idempotence import ProducerTable, SnapshotError, Verdict
from twinlog.message.once import Mark, is_producer_id, read_mark

SIZE = 100
NOW = 1_000_000


def mark(number: int, epoch: int = 0, producer: str = "p", queue_id: int = 0) -> Mark:
    return Mark(producer, epoch, number, queue_id, "T")


def fill(table: ProducerTable, numbers: range, *, epoch: int = 0, at: int = 0) -> None:
    """Records of SIZE bytes one behind the other, the n-th at queue offset `at` + n."""
    for index, number in enumerate(numbers):
        offset = at + index
        table.seen(mark(number, epoch), offset, offset * SIZE, (offset + 1) * SIZE, NOW)


def test_a_mark_survives_its_text() -> None:
    one = Mark("query-1:3", 7, 12, 4, "%RETRY%g")
    assert read_mark(f"A\x01b\x02TWINLOG_ONCE\x01{one.text()}\x02TAGS\x01x") == one
    assert read_mark(f"TWINLOG_ONCE\x01{one.text()}") == one
    assert read_mark("XTWINLOG_ONCE\x01p,0,0,0,T") is None
    assert read_mark("TWINLOG_ONCE\x01p,0,-1,0,T") is None
    assert read_mark("TWINLOG_ONCE\x01p,0,0") is None
    assert read_mark("TAGS\x01x") is None
    assert not is_producer_id("a,b")
    assert not is_producer_id("")


@pytest.mark.parametrize(
    ("asked", "count", "verdict", "known"),
    [
        (mark(10), 1, Verdict.NEW, 0),
        (mark(9), 1, Verdict.REPEAT, 1),
        (mark(0), 10, Verdict.REPEAT, 10),
        (mark(8), 5, Verdict.NEW, 2),
        (mark(11), 1, Verdict.GAP, 0),
        (mark(0, epoch=4), 1, Verdict.NEW, 0),
        (mark(1, epoch=4), 1, Verdict.GAP, 0),
        (mark(0, epoch=2), 1, Verdict.STALE, 0),
        (mark(0, producer="other"), 1, Verdict.NEW, 0),
        (mark(1, producer="other"), 1, Verdict.EXPIRED, 0),
        (mark(3, queue_id=1), 1, Verdict.EXPIRED, 0),
    ],
)
def test_verdicts_after_ten_messages_of_epoch_three(
    asked: Mark, count: int, verdict: Verdict, known: int
) -> None:
    table = ProducerTable()
    fill(table, range(10), epoch=3)
    asked = asked if asked.epoch or asked.producer == "other" else asked._replace(epoch=3)
    decision = table.decide(asked, count, NOW)
    assert (decision.verdict, decision.known) == (verdict, known)


def test_a_repeat_of_the_epoch_before_is_known_as_long_as_its_place_is() -> None:
    table = ProducerTable()
    fill(table, range(5), epoch=1)
    fill(table, range(3), epoch=2, at=5)
    assert table.decide(mark(1, 1), 3, NOW).verdict is Verdict.REPEAT
    assert table.decide(mark(4, 1), 2, NOW).verdict is Verdict.STALE


def test_a_forgotten_place_ends_before_the_first_one_that_is_known() -> None:
    table = ProducerTable(runs_max=2)
    for number in range(5):  # Ordinary messages between: each is a run of its own.
        table.seen(mark(number), 2 * number, 200 * number, 200 * number + 100, NOW)
    assert [table.place(mark(number)) is None for number in range(5)] == [True] * 3 + [False] * 2
    for number in range(3):
        assert table.decide(mark(number), 1, NOW).verdict is Verdict.REPEAT
        place = table.forgotten_place(mark(number))
        assert (place.queue_offset, place.safe_end) == (-1, 600)


def test_places_are_those_of_the_originals_also_when_others_wrote_in_between() -> None:
    table = ProducerTable()
    fill(table, range(3), at=10)
    fill(table, range(3, 6), at=20)
    assert [table.place(mark(n)).queue_offset for n in range(6)] == [10, 11, 12, 20, 21, 22]  # type: ignore[union-attr]
    first, second = table.place(mark(3)), table.place(mark(4))
    assert first is not None
    assert second is not None
    assert (first.physical_offset, second.physical_offset) == (2000, -1)
    assert second.safe_end == 2300
    assert table.place(mark(6)) is None


def test_only_so_many_places_are_kept_but_a_repeat_stays_a_repeat() -> None:
    table = ProducerTable(runs_max=2)
    for number in range(4):
        fill(table, range(number, number + 1), at=number * 2)
    assert table.place(mark(0)) is None
    assert table.decide(mark(0), 1, NOW).verdict is Verdict.REPEAT
    assert table.place(mark(3)) is not None


def test_delayed_messages_never_share_a_run() -> None:
    table = ProducerTable()
    table.seen(mark(0), 5, 500, 600, NOW, is_elsewhere=True)
    table.seen(mark(1), 6, 600, 700, NOW)
    assert table.place(mark(1)).physical_offset == 600  # type: ignore[union-attr]


def test_idle_producers_expire_sooner_in_a_full_table_and_newcomers_wait() -> None:
    table = ProducerTable(entries_max=2)
    table.seen(mark(0, producer="a"), 0, 0, 100, NOW)
    table.seen(mark(0, producer="b"), 1, 100, 200, NOW)
    assert table.decide(mark(0, producer="c"), 1, NOW).verdict is Verdict.FULL
    later = NOW + idempotence.IDLE_MS_CROWDED + 1
    table.seen(mark(1, producer="b"), 2, 200, 300, later)
    assert table.decide(mark(0, producer="c"), 1, later).verdict is Verdict.NEW
    assert table.decide(mark(1, producer="a"), 1, later).verdict is Verdict.EXPIRED
    assert table.decide(mark(2, producer="b"), 1, later).verdict is Verdict.NEW
    much_later = later + idempotence.IDLE_MS_MAX
    assert table.decide(mark(2, producer="b"), 1, much_later).verdict is Verdict.NEW
    assert table.decide(mark(2, producer="b"), 1, much_later + 1).verdict is Verdict.EXPIRED


@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda d: b"x" + d, lambda d: b""])
def test_a_spoiled_snapshot_is_refused_and_changes_nothing(spoil: Any) -> None:
    table = ProducerTable()
    fill(table, range(3))
    other = ProducerTable()
    with pytest.raises(SnapshotError):
        other.restore(spoil(table.snapshot(300)))
    assert len(other) == 0


class _Log:
    """A log of records of one size, and what a table must say about it."""

    def __init__(self) -> None:
        self.records: list[tuple[Mark | None, int, int]] = []  # Mark, queue, queue offset.

    def next_offset(self, _: str, queue_id: int) -> int:
        return sum(1 for _, queue, _ in self.records if queue == queue_id)

    def append(self, one: Mark | None, queue_id: int) -> tuple[int, int]:
        offset = self.next_offset("T", queue_id)
        self.records.append((one, queue_id, offset))
        return offset, (len(self.records) - 1) * SIZE

    def rebuilt(self, start: int = 0, table: ProducerTable | None = None) -> ProducerTable:
        table = table or ProducerTable()
        for index, (one, _, offset) in enumerate(self.records[start:], start):
            if one is not None:
                table.seen(one, offset, index * SIZE, (index + 1) * SIZE, NOW)
        return table


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("again"), st.integers(0, 2), st.integers(0, 1), st.integers(1, 6)),
        st.tuples(st.just("epoch"), st.integers(0, 2), st.integers(0, 1), st.just(1)),
        st.tuples(st.just("plain"), st.just(0), st.integers(0, 1), st.integers(1, 2)),
        st.tuples(st.just("cut"), st.just(0), st.just(0), st.integers(1, 6)),
        st.tuples(st.just("snapshot"), st.just(0), st.just(0), st.just(1)),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(1)),
    ),
    max_size=60,
)


class _Run:
    """Producers that send, send again, lose the end of the log and restart."""

    def __init__(self) -> None:
        self.log = _Log()
        self.table = ProducerTable()
        self.position: dict[tuple[int, int], tuple[int, int]] = {}
        self.snapshot = (self.table.snapshot(0), 0)

    def step(self, kind: str, producer: int, queue_id: int, count: int) -> None:
        key = (producer, queue_id)
        epoch, number = self.position.get(key, (0, 0))
        if kind == "plain":
            for _ in range(count):
                self.log.append(None, queue_id)
        elif kind == "epoch":
            self.position[key] = (epoch + 1, 0)
        elif kind == "send":
            self.send(Mark(f"p{producer}", epoch, number, queue_id, "T"), count)
            self.position[key] = (epoch, number + count)
        elif kind == "again":
            first = max(0, number - count)
            self.send(Mark(f"p{producer}", epoch, first, queue_id, "T"), number - first)
        elif kind == "cut":
            self.cut(max(0, len(self.log.records) - count))
        elif kind == "snapshot":
            self.snapshot = (self.table.snapshot(0), len(self.log.records))
        else:
            # The snapshot may know more than the point from which the log is read again.
            table = ProducerTable()
            table.restore(self.snapshot[0])
            self.table = self.log.rebuilt(max(0, self.snapshot[1] - 3), table)
            self.table.truncate(len(self.log.records) * SIZE, self.log.next_offset)

    def send(self, first: Mark, count: int) -> None:
        if not count:
            return
        decision = self.table.decide(first, count, NOW)
        stored = {m for m, _, _ in self.log.records if m is not None}
        wanted = [first._replace(number=first.number + i) for i in range(count)]
        assert decision.verdict in (Verdict.NEW, Verdict.REPEAT)
        assert [m in stored for m in wanted] == [i < decision.known for i in range(count)]
        for one in wanted[: decision.known]:
            place = self.table.place(one)
            assert place is not None
            assert self.log.records[place.safe_end // SIZE - 1][0] is not None
            assert (one, one.queue_id, place.queue_offset) in self.log.records
        for one in wanted[decision.known :]:
            offset, physical = self.log.append(one, one.queue_id)
            self.table.seen(one, offset, physical, physical + SIZE, NOW)

    def cut(self, length: int) -> None:
        """What was cut is sent again by its producers: they go back to what is stored."""
        del self.log.records[length:]
        self.table.truncate(length * SIZE, self.log.next_offset)
        self.snapshot = (self.table.snapshot(0), min(self.snapshot[1], length))
        self.position = {}
        for one, queue_id, _ in self.log.records:
            if one is not None:
                key = (int(one.producer[1:]), queue_id)
                self.position[key] = (one.epoch, one.number + 1)


@settings(max_examples=200, deadline=None)
@given(_STEPS)
def test_the_table_says_what_the_log_has_whatever_happens(steps: list[Any]) -> None:
    run = _Run()
    for step in steps:
        run.step(*step)
        stored = [m for m, _, _ in run.log.records if m is not None]
        assert len(stored) == len(set(stored)), "a message is stored twice"
    rebuilt = run.log.rebuilt()
    for (producer, queue_id), (epoch, number) in run.position.items():
        one = Mark(f"p{producer}", epoch, number, queue_id, "T")
        assert run.table.decide(one, 1, NOW) == rebuilt.decide(one, 1, NOW)
