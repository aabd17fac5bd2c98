"""The compiled steps of the simulated loop are those of the Python reference, number by number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from twinlog.runtime.compiled import is_pure_asked, load
from twinlog.testing import sim_loop
from twinlog.testing.group.sim import run_group_seed
from twinlog.testing.ha_sim import run_seed
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_steps import SimDeadlock, SimStepsExceeded, Steps, StepsInPython
from twinlog.testing.swarm.sim import run_swarm_seed

needs_compiled = pytest.mark.skipif(
    is_pure_asked() or load("twinlog.testing._sim_steps") is None, reason="not compiled"
)
WORLDS: dict[str, Callable[[int], str]] = {
    "pair": lambda seed: run_seed(seed, dialect="twin").digest,
    "group": lambda seed: run_group_seed(seed, dialect="mixed").digest,
    "swarm": lambda seed: run_swarm_seed(seed).digest,
}


@needs_compiled
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("seed", [3, 17])
def test_both_forms_take_the_same_steps(
    world: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = WORLDS[world](seed)
    monkeypatch.setattr(sim_loop, "Steps", StepsInPython)
    assert WORLDS[world](seed) == compiled


@pytest.fixture(params=[StepsInPython, Steps])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimLoop]:
    monkeypatch.setattr(sim_loop, "Steps", request.param)
    made = SimLoop(1, step_max=1000)
    yield made
    made.finish()


def test_a_run_that_nothing_can_end_is_a_deadlock(loop: SimLoop) -> None:
    with pytest.raises(SimDeadlock):
        loop.run_until_complete(loop.create_future())


def test_a_run_that_spins_ends(loop: SimLoop) -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(SimStepsExceeded, match="1000 steps"):
        loop.run_until_complete(spin())


def test_a_cancelled_timer_does_not_move_time(loop: SimLoop) -> None:
    async def run() -> float:
        loop.call_later(5.0, print).cancel()
        await asyncio.sleep(7.0)
        return loop.now_s

    assert loop.run_until_complete(run()) == 7.0


def test_the_callbacks_of_a_killed_host_are_dropped_and_of_a_paused_one_wait(
    loop: SimLoop,
) -> None:
    killed, paused = loop.add_host("killed"), loop.add_host("paused")
    ran: list[str] = []

    async def run() -> None:
        for host in (killed, paused):
            loop.call_later(1.0, ran.append, host.name, context=loop.context_of(host))
            loop.call_soon(ran.append, host.name, context=loop.context_of(host))
        loop.kill(killed)
        loop.pause(paused)
        await asyncio.sleep(2.0)
        assert not ran
        loop.resume(paused)
        await asyncio.sleep(1.0)

    loop.run_until_complete(run())
    assert ran == ["paused", "paused"]


def test_a_callback_that_raises_is_a_failure_of_the_run(loop: SimLoop) -> None:
    async def run() -> None:
        loop.call_soon(int, "x")
        await asyncio.sleep(1.0)

    loop.run_until_complete(run())
    assert len(loop.failures) == 1
    assert "ValueError" in loop.failures[0]
