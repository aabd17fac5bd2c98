"""The states of an HA connection, for each end and dialect: what may follow what. Pure.

Every change of a core's state is a row here and legal by its presence; a core moves through `after`
alone, so a step without a row is a bug of this side and never a silent change. What a frame may be
in which state is a table too, next to the core that reads it (`FRAMES`). The states are RocketMQ
5's; HANDSHAKE is the twin dialect's, SUSPEND the classic one's: a peer that is held open, silent
and uncounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from twinlog.ha.wire import HAConnectionState, LocalProtocolError


class Step(Enum):
    """What happens to a connection."""

    MET = "the two have said who they are"
    JOINED = "the place to go on from is known"
    HELD = "the peer is refused and held"
    ENDED = "an end of stream, a fault, silence, or this side's wish"


_READY = HAConnectionState.READY
_HANDSHAKE = HAConnectionState.HANDSHAKE
_TRANSFER = HAConnectionState.TRANSFER
_SUSPEND = HAConnectionState.SUSPEND
_SHUTDOWN = HAConnectionState.SHUTDOWN

Table = Mapping[HAConnectionState, Mapping[Step, HAConnectionState]]

CLASSIC_SENDER: Final[Table] = {
    _READY: {Step.JOINED: _TRANSFER, Step.HELD: _SUSPEND, Step.ENDED: _SHUTDOWN},
    _TRANSFER: {Step.HELD: _SUSPEND, Step.ENDED: _SHUTDOWN},
    _SUSPEND: {Step.ENDED: _SHUTDOWN},
    _SHUTDOWN: {},
}
# A classic slave says where it is and takes what comes: there is nothing to wait for.
CLASSIC_RECEIVER: Final[Table] = {
    _TRANSFER: {Step.ENDED: _SHUTDOWN},
    _SHUTDOWN: {},
}
# The same for both ends.
TWIN: Final[Table] = {
    _READY: {Step.MET: _HANDSHAKE, Step.ENDED: _SHUTDOWN},
    _HANDSHAKE: {Step.JOINED: _TRANSFER, Step.ENDED: _SHUTDOWN},
    _TRANSFER: {Step.ENDED: _SHUTDOWN},
    _SHUTDOWN: {},
}


def after(table: Table, state: HAConnectionState, step: Step) -> HAConnectionState:
    """The state that follows.

    Raises:
        LocalProtocolError: the table has no such row.
    """
    following = table[state].get(step)
    if following is None:
        raise LocalProtocolError(f"{step.name} in state {state.name}: {step.value}")
    return following
