"""A vital task that dies takes its owner down, with its reason; a contained one starts again."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from twinlog.cli.serve import Lifetime
from twinlog.runtime.failures import KINDS_MAX, WHAT_MAX, Failures
from twinlog.runtime.tasks import RESTART_MS_MAX, Kind, TaskOwner
from twinlog.testing.manual_clock import ManualClock

DEADLINE_S = 30


async def forever() -> None:
    await asyncio.Event().wait()


async def die(reason: str) -> None:
    await asyncio.sleep(0)
    raise OSError(reason)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_the_first_reason_is_kept_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str]] = []
    owner = TaskOwner("store", on_failure=lambda name, error: told.append((name, str(error))))
    flush = owner.vital("flush", lambda: die("disk gone"))
    clean = owner.vital("clean", lambda: die("later"))
    await asyncio.wait([flush, clean])
    assert owner.failed is not None
    assert (owner.failed[0], str(owner.failed[1])) == ("store/flush", "disk gone")
    assert told == [("store/flush", "disk gone"), ("store/clean", "later")]
    assert "task died name=store/flush error=OSError('disk gone')" in caplog.text
    await owner.stop()


async def test_a_stop_ends_every_task_and_is_no_failure() -> None:
    told: list[str] = []
    owner = TaskOwner("store", on_failure=lambda name, error: told.append(name))
    owner.vital("a", forever)
    owner.contained("b", forever)
    owner.job("c", forever())
    owner.round("d", lambda: 0, lambda: None)
    owner.job("cancelled before it began", forever())
    await owner.stop()
    assert (owner.count, owner.failed, told, owner.failures.count) == (0, None, [], 0)
    assert owner.kinds == {"a": Kind.VITAL, "b": Kind.CONTAINED, "d": Kind.CONTAINED}


async def test_a_process_ends_with_the_first_reason() -> None:
    lifetime = Lifetime()
    owner = TaskOwner("broker", on_failure=lambda name, error: lifetime.fail(f"{name}: {error}"))
    owner.vital("flush", lambda: die("disk gone"))
    async with asyncio.timeout(DEADLINE_S):
        await lifetime.ended()
    lifetime.fail("something that follows from it")
    assert lifetime.failure == "broker/flush: disk gone"
    await owner.stop()


async def test_a_contained_task_starts_again_after_pauses_that_grow() -> None:
    clock = ManualClock()
    told: list[str] = []
    owner = TaskOwner("broker", lambda name, _: told.append(name), clock=clock)
    starts: list[int] = []

    async def run() -> None:
        starts.append(clock.monotonic_ms())
        raise ValueError("bad table")

    owner.contained("register", run)
    while len(starts) < 12:
        await asyncio.sleep(0)
        clock.advance(50)
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1000 < pauses[-1] <= RESTART_MS_MAX + 100
    assert not told
    failure = owner.failures.table["task register"]
    assert failure.count >= 11
    assert failure.last_error == "ValueError: bad table"
    shown = owner.failures.status()
    assert shown["containedFailures"] == str(failure.count)
    assert "bad table" in shown["containedFailure task register"]
    await owner.stop()


async def test_a_failed_round_costs_that_round() -> None:
    owner = TaskOwner("broker")
    rounds: list[int] = []

    def action() -> None:
        rounds.append(len(rounds))
        if len(rounds) == 2:
            raise KeyError("topic")

    owner.round("stats", lambda: 1, action)
    await until(lambda: len(rounds) >= 4)
    assert owner.failures.table["timer stats"].count == 1
    await owner.stop()


async def test_what_fails_while_it_is_cancelled_does_not_begin_again() -> None:
    owner = TaskOwner("broker")
    begun: list[str] = []

    async def fail_at_the_end(name: str) -> None:
        begun.append(name)
        try:
            await forever()
        finally:
            raise RuntimeError("the transport is closed")

    tasks = [
        owner.contained("link", lambda: fail_at_the_end("link")),
        owner.round("stats", lambda: 0, lambda: fail_at_the_end("stats")),
    ]
    await until(lambda: len(begun) == 2)
    async with asyncio.timeout(DEADLINE_S):
        await owner.stop()
    assert [task.cancelled() for task in tasks] == [True, True]
    assert (begun, owner.failures.count) == (["link", "stats"], 2)


async def test_a_job_is_not_started_again_and_who_waits_is_told() -> None:
    owner = TaskOwner("broker")
    told: list[str] = []
    task = owner.job("register", die("gone"), about="t", failed=lambda e: told.append(str(e)))
    await asyncio.wait([task])
    assert told == ["gone"]
    assert owner.failures.table["job register"].last_about == "t"
    with pytest.raises(OSError, match="gone"):
        await task
    await owner.stop()


def fail_at(failures: Failures, what: str, error: Exception) -> None:
    def function() -> None:
        raise error

    assert not failures.contain(what, function)


def test_a_kind_is_logged_once_and_at_powers_of_ten(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    for _ in range(1234):
        fail_at(failures, "request 15", ValueError("bad"))
    assert failures.count == 1234
    assert [r.getMessage().rpartition("=")[2] for r in caplog.records] == ["1", "10", "100", "1000"]
    assert "test_tasks.py:" in caplog.text
    assert "Traceback" not in caplog.text


def test_what_peers_can_provoke_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures()
    for number in range(WHAT_MAX + KINDS_MAX):
        fail_at(failures, f"request {number}", ValueError("x\n\ud800" * 1000))
    assert len(failures.table) <= WHAT_MAX + 1
    assert failures.count == WHAT_MAX + KINDS_MAX
    assert max(len(text) for text in failures.status().values()) < 2000
    failures.status()["containedFailure other"].encode()


async def test_an_owner_may_give_up_a_task_that_never_works() -> None:
    told: list[str] = []
    clock = ManualClock()
    owner = TaskOwner("client", lambda name, _: told.append(name), clock=clock, tries_max=3)
    starts: list[int] = []

    async def run() -> None:
        starts.append(clock.monotonic_ms())
        raise ValueError("a bug")

    task = owner.contained("rebalance", run)
    while not task.done():
        await asyncio.sleep(0)
        clock.advance(50)
    assert (len(starts), told) == (3, ["client/rebalance"])
    await owner.stop()
