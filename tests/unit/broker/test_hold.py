"""Held pulls: woken by their queue, answered at their deadline, dropped with their connection."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from twinlog.broker.pull import hold as hold_module
from twinlog.broker.pull.hold import HeldPull, PullRequestHold


class Timer:
    def __init__(self, at: float, callback: Callable[..., object], arguments: tuple[Any, ...]):
        self.at, self.callback, self.arguments = at, callback, arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0
        self._timers: list[tuple[float, int, Timer]] = []

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def boot_ms(self) -> int:
        return self.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        raise NotImplementedError

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> Timer:
        timer = Timer(self.now + delay_ms, callback, arguments)
        heapq.heappush(self._timers, (timer.at, id(timer), timer))
        return timer

    def advance(self, duration_ms: int) -> None:
        end = self.now + duration_ms
        while self._timers and self._timers[0][0] <= end:
            at, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, int(at))
            if not timer.is_cancelled:
                timer.callback(*timer.arguments)
        self.now = end

    @property
    def timer_count(self) -> int:
        return sum(not timer.is_cancelled for _, _, timer in self._timers)


class Connection:
    def __init__(self) -> None:
        self.is_closed = False


class World:
    """A hold over queues that are just numbers; a pull matches when `matching` says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ends: dict[tuple[str, int], int] = {}
        self.matching: Callable[[HeldPull], bool] = lambda held: True
        self.answered: list[HeldPull] = []
        self.failed: list[HeldPull] = []
        self.poisoned: set[HeldPull] = set()
        self.hold = PullRequestHold(
            self.clock,
            max_offset=lambda topic, queue_id: self.ends.get((topic, queue_id), 0),
            try_answer=self._try,
            answer=self._answer,
            failed=lambda held, error: self.failed.append(held),
        )

    def _answer(self, held: HeldPull) -> None:
        if held in self.poisoned:
            raise ValueError("a property of 5,000 digits")
        self.answered.append(held)

    def _try(self, held: HeldPull) -> bool:
        if not self.matching(held):
            held.scan_offset = self.ends[held.key]
            return False
        self._answer(held)
        return True

    def park(
        self, offset: int = 0, timeout: int = 15_000, queue_id: int = 0, connection: Any = None
    ) -> HeldPull:
        held = HeldPull(
            ("T", queue_id),
            offset,
            self.clock.now + timeout,
            connection or Connection(),
            None,
            None,
        )
        self.hold.add(held)
        return held

    def arrive(self, queue_id: int = 0) -> None:
        key = ("T", queue_id)
        self.ends[key] = self.ends.get(key, 0) + 1
        self.hold.queues_moved([key])


@pytest.fixture
def world() -> World:
    return World()


def test_message_wakes_only_those_of_its_queue(world: World) -> None:
    first, _ = world.park(), world.park(queue_id=1)
    world.arrive()
    assert world.answered == [first]
    assert len(world.hold) == 1


def test_message_that_does_not_match_leaves_the_pull_waiting(world: World) -> None:
    held = world.park()
    world.matching = lambda held: False
    world.arrive()
    assert world.answered == []
    assert held.scan_offset == 1, "what did not match is not looked at again"
    world.matching = lambda held: True
    world.arrive()
    assert world.answered == [held]


def test_pull_ahead_of_its_queue_waits_on(world: World) -> None:
    held = world.park(offset=2)
    world.arrive()
    world.arrive()
    assert world.answered == []
    world.arrive()
    assert world.answered == [held]


def test_deadlines_are_kept_one_by_one_with_one_timer(world: World) -> None:
    late, soon = world.park(timeout=9_000), world.park(timeout=1_000)
    assert world.clock.timer_count == 1
    world.clock.advance(999)
    assert world.answered == []
    world.clock.advance(1)
    assert world.answered == [soon]
    world.clock.advance(8_000)
    assert world.answered == [soon, late]
    assert len(world.hold) == 0
    assert world.clock.timer_count == 0


def test_answered_pull_is_not_answered_again_at_its_deadline(world: World) -> None:
    held = world.park(timeout=1_000)
    world.arrive()
    world.clock.advance(5_000)
    assert world.answered == [held]


def test_check_answers_those_whose_queue_moved_without_a_match(world: World) -> None:
    moved, _ = world.park(), world.park(queue_id=1)
    world.matching = lambda held: False
    world.arrive()
    world.hold.check()
    assert world.answered == [moved]


def test_closed_connection_takes_its_pulls_along(world: World) -> None:
    gone, stays = Connection(), Connection()
    for queue_id in range(50):
        world.park(queue_id=queue_id, connection=gone)
    kept = world.park(connection=stays)
    gone.is_closed = True
    world.hold.connection_closed(gone)
    assert len(world.hold) == 1
    world.arrive()
    assert world.answered == [kept]


def test_stop_answers_everybody(world: World) -> None:
    pulls = [world.park(queue_id=n % 3) for n in range(9)]
    world.hold.release_all()
    world.hold.stop()
    assert sorted(map(id, world.answered)) == sorted(map(id, pulls))
    assert len(world.hold) == 0


def test_number_of_held_pulls_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_module, "HELD_PULLS_MAX", 2)
    world.park()
    assert not world.hold.is_full
    world.park()
    assert world.hold.is_full


def test_answered_pulls_do_not_wait_for_their_deadline_in_memory(world: World) -> None:
    connection = Connection()
    for _ in range(10):
        for _ in range(1000):
            world.park(offset=world.ends.get(("T", 0), 0), timeout=600_000, connection=connection)
        world.arrive()
        assert len(world.hold) == 0
        assert len(world.hold._deadlines) <= hold_module.STALE_DEADLINES_MAX
    for _ in range(3000):
        world.park(offset=100, timeout=600_000, connection=connection)
    world.hold.connection_closed(connection)
    assert len(world.hold._deadlines) <= hold_module.STALE_DEADLINES_MAX


def test_a_pull_that_cannot_be_answered_costs_no_other(world: World) -> None:
    """Whichever way it is looked at: a message, the check, the deadline, the stop."""

    def release_by_check() -> None:
        world.ends["T", 0] = world.ends.get(("T", 0), 0) + 1
        world.hold.check()

    ways: list[Callable[[], None]] = [
        world.arrive,
        release_by_check,
        lambda: world.clock.advance(20_000),
        world.hold.release_all,
    ]
    for release in ways:
        offset = world.ends.get(("T", 0), 0)
        held = [world.park(offset=offset) for _ in range(3)]
        world.answered, world.failed, world.poisoned = [], [], {held[1]}
        release()
        assert world.answered == [held[0], held[2]]
        assert world.failed == [held[1]]
        assert not len(world.hold)


MANY = 1_000


def take_time(world: World) -> None:
    """To look at a pull takes a millisecond."""

    def match(held: HeldPull) -> bool:
        world.clock.now += 1
        return True

    world.matching = match


def test_very_many_of_one_queue_are_woken_in_several_turns(world: World) -> None:
    take_time(world)
    parked = [world.park() for _ in range(MANY)]
    world.arrive()
    assert 0 < len(world.answered) < 100, "others have their turn before the rest"
    world.arrive()
    world.arrive()
    world.hold.check()
    world.clock.advance(2 * MANY)
    assert world.answered == parked, "each once, in their order"
    assert len(world.hold) == 0


def test_very_many_deadlines_pass_in_several_turns(world: World) -> None:
    in_turns: list[int] = []

    def answer(held: HeldPull) -> None:
        world.clock.now += 1
        world.answered.append(held)

    def call_later_ms(delay_ms: float, callback: Callable[..., object], *_: Any) -> Timer:
        in_turns.append(len(world.answered))
        return plain(delay_ms, callback)

    plain, world.clock.call_later_ms = world.clock.call_later_ms, call_later_ms  # type: ignore[method-assign]
    world.hold._answer = answer
    parked = [world.park(timeout=10) for _ in range(MANY)]
    world.clock.advance(2 * MANY)
    assert world.answered == parked
    assert len(set(in_turns)) > MANY // 100


def test_those_that_wait_for_a_turn_go_with_their_connection(world: World) -> None:
    take_time(world)
    connection = Connection()
    for _ in range(MANY):
        world.park(connection=connection)
    world.arrive()
    seen = len(world.answered)
    world.hold.connection_closed(connection)
    world.clock.advance(1000)
    assert len(world.answered) == seen
    assert len(world.hold) == 0
