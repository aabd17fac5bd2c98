"""What this broker is in its group, now: the one place that parts ask, or subscribe to.

A broker of a fixed pair is what its file says; only between SYNC_MASTER and ASYNC_MASTER may it
change while it runs. A broker of a controlled group begins as a slave that follows nobody and
becomes what its controller decides (`replicas.py`); the file's `brokerRole` is then the group's
policy. RocketMQ writes the role into its configuration objects, which everybody reads when it
suits them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from twinlog.runtime.config import BrokerConfig, BrokerRole

# Members that are asked for in hot paths: by their class they cost ten times as much.
_SLAVE: Final = BrokerRole.SLAVE
_SYNC_MASTER: Final = BrokerRole.SYNC_MASTER

MASTER_ID = 0
NO_ID = -1


@dataclass(frozen=True, slots=True)
class RoleState:
    """One role in one epoch. `broker_role` is SLAVE, or how a master of this group answers."""

    broker_role: BrokerRole
    broker_id: int
    epoch: int = 0

    @property
    def is_master(self) -> bool:
        return self.broker_role is not _SLAVE


class Role:
    """Asked by parts each time they need it. `change` tells those who subscribed."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.is_controlled = config.enable_controller_mode
        """Whether a controller decides. Never changes; an attribute, because each send asks."""
        self._state: RoleState | None = None
        self._subscribers: list[Callable[[], None]] = []
        if config.enable_controller_mode:
            self._state = RoleState(_SLAVE, NO_ID)

    @property
    def broker_role(self) -> BrokerRole:
        return self._config.broker_role if self._state is None else self._state.broker_role

    @property
    def broker_id(self) -> int:
        """The id that this broker registers with: 0 of a master."""
        return self._config.broker_id if self._state is None else self._state.broker_id

    @property
    def is_master(self) -> bool:
        return self.broker_role is not _SLAVE

    @property
    def is_slave(self) -> bool:
        return self.broker_role is _SLAVE

    @property
    def is_sync(self) -> bool:
        """Whether sends wait for other replicas."""
        return self.broker_role is _SYNC_MASTER

    @property
    def epoch(self) -> int:
        """Of a controlled group's master or slave; 0 in a fixed pair and before the first."""
        return 0 if self._state is None else self._state.epoch

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, in the order of subscription."""
        self._subscribers.append(changed)

    def change(self, state: RoleState) -> None:
        """In a controlled group only."""
        assert self._state is not None
        assert state.epoch >= self._state.epoch, (state, self._state)
        if state == self._state:
            return
        self._state = state
        for changed in self._subscribers:
            changed()
