"""The tables of states: every state can be reached, and none is left but by a row."""

from __future__ import annotations

import pytest

from twinlog.ha import states
from twinlog.ha.states import Step, after
from twinlog.ha.twin import receiver, sender
from twinlog.ha.wire import HAConnectionState, LocalProtocolError

TABLES = {
    "classic sender": (states.CLASSIC_SENDER, HAConnectionState.READY),
    "classic receiver": (states.CLASSIC_RECEIVER, HAConnectionState.TRANSFER),
    "twin": (states.TWIN, HAConnectionState.READY),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_every_one_can_end(name: str) -> None:
    table, first = TABLES[name]
    reached, left = {first}, [first]
    while left:
        new = set(table[left.pop()].values()) - reached
        reached |= new
        left += new
    assert reached == set(table)
    for state, rows in table.items():
        is_last = state is HAConnectionState.SHUTDOWN
        assert rows == {} if is_last else rows[Step.ENDED] is HAConnectionState.SHUTDOWN


@pytest.mark.parametrize("name", TABLES)
def test_a_step_without_a_row_is_a_bug_of_this_side(name: str) -> None:
    table, _ = TABLES[name]
    for state, rows in table.items():
        for step in Step:
            if step in rows:
                assert after(table, state, step) is rows[step]
            else:
                with pytest.raises(LocalProtocolError, match=f"{step.name} in state {state.name}"):
                    after(table, state, step)


@pytest.mark.parametrize("frames", [sender.FRAMES, receiver.FRAMES])
def test_every_living_state_of_the_twin_dialect_knows_its_frames(frames: object) -> None:
    assert set(frames) == set(states.TWIN) - {HAConnectionState.SHUTDOWN}  # type: ignore[call-overload]
