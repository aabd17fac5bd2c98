"""The guard of a promoted broker on its own: how long it lives, what it forgets."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.broker.pair.metadata_log import decode_change, split_change
from twinlog.broker.pair.skip_guard import BROADCAST_LIFE_MS, LIFE_MS, TRIES_MAX, Armed, SkipGuard
from twinlog.runtime.disk import write_atomically
from twinlog.runtime.sealed import encode_saved
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimDisk


def armed() -> tuple[SkipGuard, ManualClock, SimDisk]:
    clock = ManualClock()
    disk = SimDisk()
    disk.make_directories("/s")
    guard = SkipGuard(disk, "/s", clock)
    guard.promoted({"t": {0: 5, 1: 0}})
    return guard, clock, disk


def asks(
    guard: SkipGuard, offset: int, *, group: str = "g", queue: int = 0, committed: int = 3,
    connection: dict[str, Any] | None = None,
) -> int | None:  # fmt: skip
    connection = {} if connection is None else connection
    return guard.pull(group, "t", queue, offset, connection, committed=committed, queue_end=20)


def test_only_the_first_place_asked_for_decides() -> None:
    guard, _, _ = armed()
    assert asks(guard, 6) == 3
    assert asks(guard, 5) is None
    assert asks(guard, 6) is None
    assert asks(guard, 1, queue=1) == 0


def test_who_insists_is_let_through() -> None:
    """A client that keeps its offsets itself, in a group that committed once."""
    guard, _, _ = armed()
    assert [asks(guard, 9) for _ in range(TRIES_MAX + 1)] == [3] * TRIES_MAX + [None]
    assert guard.commit("g", "t", 0, 9) == 9


def test_what_is_not_known_is_left_alone() -> None:
    fresh = SkipGuard(SimDisk(), "/s", ManualClock())
    fresh.log_is_shorter({"t": {0: 5}})
    assert fresh.pull("g", "other", 0, 9, {}, committed=3, queue_end=20) is None
    assert fresh.commit("g", "other", 0, 9) == 9
    assert fresh.commit("g", "t", 2, 9) == 9


def test_a_promoted_copy_had_nothing_of_what_it_does_not_know() -> None:
    """An empty one as well: whoever has read something has read it elsewhere."""
    guard = SkipGuard(SimDisk(), "/s", ManualClock())
    guard.promoted({})
    assert guard.is_armed
    assert asks(guard, 6, committed=0) == 0
    assert asks(guard, 30, group="h", committed=-1) == 0
    assert asks(guard, 20, group="TOOLS_CONSUMER", committed=-1) is None
    assert asks(guard, 9, group="came since", committed=3) is None


@pytest.mark.parametrize("begins_again", ["log_is_shorter", "promoted"])
def test_what_was_empty_at_a_promotion_is_remembered_by_the_next_start(begins_again: str) -> None:
    """Killed before anybody came: by then the queue has messages, at places read elsewhere."""
    clock, disk = ManualClock(), SimDisk()
    disk.make_directories("/s")
    SkipGuard(disk, "/s", clock).promoted({"known": {0: 4}})
    again = SkipGuard(disk, "/s", clock)
    again.load()
    getattr(again, begins_again)({"known": {0: 6}, "t": {0: 9}})
    assert asks(again, 5, committed=-1) == 0
    assert asks(again, 9, group="came since", committed=9) is None
    assert again.pull("g", "known", 0, 6, {}, committed=-1, queue_end=6) == 4


def test_a_group_without_offsets_that_has_not_asked_was_in_the_lost_tail() -> None:
    """It may have committed to the old master only; a new one asks first, on its connection."""
    guard, _, _ = armed()
    new: dict[str, Any] = {}
    guard.asked("g", "t", 0, new)
    assert asks(guard, 9, committed=-1) == 5
    assert asks(guard, 9, group="h", committed=-1, connection=new) == 5
    assert asks(guard, 1, queue=1, committed=-1, connection=new) == 0
    assert asks(guard, 9, committed=-1, connection=new) is None


def test_what_was_asked_before_the_log_was_cut_counts_no_more() -> None:
    guard, _, _ = armed()
    running: dict[str, Any] = {}
    guard.asked("g", "t", 0, running)
    guard.log_is_shorter({"t": {0: 8}})
    assert asks(guard, 9, committed=-1, connection=running) == 5, "the earlier end counts on"


def copied(armed: Armed | None) -> SkipGuard:
    """The guard of a slave that is promoted after it has heard this in its log."""
    assert armed is not None
    clock, disk = ManualClock(), SimDisk()
    disk.make_directories("/s")
    slave = SkipGuard(disk, "/s", clock)
    for body in split_change(armed, 40):
        change = decode_change(body)
        assert isinstance(change, Armed)
        slave.heard(change)
    assert not slave.is_armed
    again = SkipGuard(disk, "/s", clock)
    again.load(was_master=False)
    assert not again.is_armed
    again.promoted({"t": {0: 15, 1: 15}})
    return again


def test_a_second_switch_sends_back_who_has_not_come_since_the_first() -> None:
    guard, _, _ = armed()
    second = copied(guard.armed)
    assert asks(second, 16, committed=14) == 14
    assert asks(second, 9, group="came", committed=6) is None
    assert asks(second, 9, group="late", committed=5) == 5
    assert second.commit("late too", "t", 0, 9, committed=4) == 5
    third = copied(second.armed)
    assert asks(third, 9, group="late", committed=5) == 5


def test_each_of_several_ends_counts_for_those_who_were_beyond_it() -> None:
    """Three power losses: who came back after the first was in the tail that the second took."""
    guard, _, _ = armed()  # Ends at 5.
    for end in (10, 20):
        guard.log_is_shorter({"t": {0: end}})
    assert asks(guard, 15, committed=7) == 7
    assert asks(guard, 15, group="came", committed=11) is None
    assert asks(guard, 9, group="shared", committed=7) is None
    assert asks(copied(guard.armed), 15, committed=7) == 7


@given(
    ends=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    committed=st.integers(0, 12),
    ahead=st.integers(0, 12),
    is_copied=st.booleans(),
)
def test_nobody_goes_on_beyond_an_end_that_it_has_not_come_back_from(
    ends: list[int], committed: int, ahead: int, is_copied: bool
) -> None:
    guard, _, _ = armed()
    for end in ends:
        guard.log_is_shorter({"t": {0: end}})
    known = [5, *ends]
    if is_copied:
        guard, known = copied(guard.armed), [*known, 15]
    offset = committed + ahead
    was_lost = offset > known[-1] or any(committed <= end < offset for end in known[:-1])
    goal = asks(guard, offset, committed=committed)
    assert (goal is not None) == was_lost
    assert goal is None or goal <= committed


def test_it_ends_after_an_hour() -> None:
    guard, clock, _ = armed()
    clock.advance(LIFE_MS)
    assert asks(guard, 6) is None
    assert not guard.is_armed
    guard, clock, _ = armed()
    clock.advance(LIFE_MS)
    assert guard.commit("g", "t", 0, 9) == 9


def test_for_broadcasting_members_it_ends_earlier_and_counts_each() -> None:
    guard, clock, _ = armed()
    one: dict[str, Any] = {}
    assert guard.pull_broadcast("g", "t", 0, 9, one) == 5
    assert guard.pull_broadcast("g", "t", 0, 9, one) is None
    assert guard.pull_broadcast("g", "t", 0, 4, {}) is None
    assert guard.pull_broadcast("g", "t", 0, 9, {}) == 5
    clock.advance(BROADCAST_LIFE_MS)
    assert guard.pull_broadcast("g", "t", 0, 9, {}) is None
    assert asks(guard, 6) == 3


def test_a_file_that_is_damaged_or_old_arms_nothing() -> None:
    _, clock, disk = armed()
    again = SkipGuard(disk, "/s", clock)
    again.load()
    assert again.is_armed
    assert asks(again, 6) == 3
    clock.advance(LIFE_MS)
    late = SkipGuard(disk, "/s", clock)
    late.load()
    assert not late.is_armed
    disk.unlink("/s/twinlog/promotion.json")
    file = disk.open("/s/twinlog/promotion.json", create=True)
    file.pwritev([b"{nonsense"], 0)
    damaged = SkipGuard(disk, "/s", clock)
    damaged.load()
    assert not damaged.is_armed


@pytest.mark.parametrize("step_ms", [-50, 50, -LIFE_MS, LIFE_MS, -48 * LIFE_MS, 48 * LIFE_MS])
def test_a_wall_clock_that_is_set_neither_disarms_nor_prolongs_it(step_ms: int) -> None:
    guard, clock, _ = armed()
    clock.step_wall(step_ms)
    assert asks(guard, 15) == 3
    assert guard.pull_broadcast("g", "t", 0, 9, {}) == 5
    clock.advance(LIFE_MS - 1)
    assert guard.commit("other", "t", 0, 9) == 5
    clock.advance(1)
    assert guard.commit("other", "t", 0, 9) == 9
    assert not guard.is_armed


def test_a_restart_after_the_wall_clock_was_set_back_keeps_it() -> None:
    _, clock, disk = armed()
    clock.step_wall(-5 * LIFE_MS)
    again = SkipGuard(disk, "/s", clock)
    again.load()
    assert asks(again, 15) == 3
    clock.advance(LIFE_MS)
    assert asks(again, 15) is None


@given(st.lists(st.tuples(st.integers(-3 * LIFE_MS, 3 * LIFE_MS), st.integers(0, 9)), max_size=6))
def test_a_copy_has_heard_the_last_promotion_whatever_the_clock_was_set_to(
    steps: list[tuple[int, int]],
) -> None:
    guard, clock, _ = armed()
    copy = SkipGuard(SimDisk(), "/s", clock)
    copy.heard(guard.armed or pytest.fail("not armed"))
    guard.on_armed = copy.heard
    end = 5
    for step_ms, end in steps:
        clock.step_wall(step_ms)
        guard.log_is_shorter({"t": {0: end}})
    copy.load(was_master=True)
    assert asks(copy, 15, committed=end + 1) == end


def test_who_stands_in_a_tail_that_came_back_goes_on_there() -> None:
    guard, _, _ = armed()
    heard: list[Armed] = []
    guard.on_armed = heard.append
    assert asks(guard, 9, group="before") == 3
    guard.tail_came({"t": {0: 9, 1: 0}})
    assert asks(guard, 9) is None
    assert asks(guard, 10, group="beyond") == 3
    assert guard.commit("other", "t", 0, 9) == 9
    assert heard[0].ends["t"] == {0: 9, 1: 0}


@pytest.mark.parametrize("step_ms", [-2 * LIFE_MS, -1, 0, 1, 2 * LIFE_MS])
def test_copies_tell_the_later_one_whatever_the_clocks_say(step_ms: int) -> None:
    """Consumers passed over messages: a master whose clock had been set back armed its guard again,
    and its slave took that for the older of the two."""
    guard, clock, disk = armed()
    copy = SkipGuard(SimDisk(), "/s", ManualClock())
    assert guard.armed is not None
    copy.heard(guard.armed)
    clock.step_wall(step_ms)
    again = SkipGuard(disk, "/s", clock)
    again.load()
    again.log_is_shorter({"t": {0: 2, 1: 0}})
    assert again.armed is not None
    copy.heard(again.armed)
    copy.promoted({"t": {0: 9, 1: 0}})
    assert asks(copy, 4, committed=1) == 1
    assert asks(copy, 9, group="came between", committed=8) is None


@pytest.mark.parametrize("step_ms", [-3 * LIFE_MS, 3 * LIFE_MS])
@pytest.mark.parametrize(("age_ms", "expected"), [(LIFE_MS - 1, 3), (LIFE_MS, None)])
def test_the_hour_counts_by_the_clock_of_whoever_remembers_it(
    step_ms: int, age_ms: int, expected: int | None
) -> None:
    """What a master says lasts an hour on its slave, however far apart their clocks are."""
    guard, _, _ = armed()
    clock, disk = ManualClock(), SimDisk()
    disk.make_directories("/s")
    clock.step_wall(step_ms)
    copy = SkipGuard(disk, "/s", clock)
    assert guard.armed is not None
    copy.heard(guard.armed)
    clock.advance(age_ms)
    copy.heard(guard.armed)  # It is written again whenever the master starts.
    again = SkipGuard(disk, "/s", clock)
    again.load(was_master=False)
    again.promoted({"t": {0: 9, 1: 0}})
    assert asks(again, 6) == expected


def rebooted(clock: ManualClock, disk: SimDisk, step_ms: int = 0) -> SkipGuard:
    """The guard of a master whose machine booted again, with another idea of the time."""
    clock.step_wall(step_ms)
    again = SkipGuard(disk.crash(random.Random(1)), "/s", clock)
    again.load()
    return again


@pytest.mark.parametrize("step_ms", [-48 * LIFE_MS, 0, LIFE_MS, 48 * LIFE_MS])
def test_a_reboot_goes_on_with_what_was_left_whatever_the_wall_clock_says(step_ms: int) -> None:
    """Consumers passed over messages: the clock had gone ahead by an hour when it came back."""
    _, clock, disk = armed()
    again = rebooted(clock, disk, step_ms)
    assert asks(again, 15) == 3
    clock.advance(LIFE_MS - 1)
    assert asks(again, 15, group="late") == 3
    clock.advance(1)
    assert asks(again, 15, group="later") is None


def test_what_has_passed_of_the_hour_is_saved_as_it_passes() -> None:
    guard, clock, disk = armed()
    for _ in range(12 * 30):
        clock.advance(5000)
        guard.tick()
    clock.advance(59_000)
    guard.tick()  # Too soon after the last.
    again = rebooted(clock, disk, LIFE_MS)
    clock.advance(LIFE_MS // 2 - 1)
    assert asks(again, 15) == 3
    clock.advance(1)
    assert asks(again, 15, group="late") is None


@pytest.mark.parametrize("is_slave", [False, True])
def test_one_that_is_over_stays_over_at_the_next_boot(is_slave: bool) -> None:
    guard, clock, disk = armed()
    if is_slave:
        told, disk = guard.armed, SimDisk()
        disk.make_directories("/s")
        guard = SkipGuard(disk, "/s", clock)
        assert told is not None
        guard.heard(told)
    clock.advance(LIFE_MS)
    guard.tick()
    again = rebooted(clock, disk, -48 * LIFE_MS)
    assert not again.is_armed
    again.promoted({"t": {0: 15}})
    assert asks(again, 9) is None


def test_a_file_of_an_earlier_release_counts_by_the_wall_clock() -> None:
    _, clock, disk = armed()
    path = "/s/twinlog/promotion.json"
    write_atomically(disk, path, encode_saved(Armed(clock.now_ms(), {"t": {0: 5}})))
    clock.advance(LIFE_MS - 1)
    assert asks(rebooted(clock, disk), 6) == 3
    clock.advance(1)
    assert asks(rebooted(clock, disk), 6) is None
