"""Before a clean stop a master lets another member take over, and passes on what it held back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from twinlog.broker.group.controller_link import BUSY_CODES, ControllerError, ControllerLink
from twinlog.broker.group.role_change import RoleChange
from twinlog.remoting.errors import RemotingError

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOG = logging.getLogger("twinlog.broker")
_RESIGN_MS_MAX = 3_000  # For each of the two parts.
_BUSY_MS = 20
_POLL_MS = 10


class Resignation:
    """Of one broker. Nobody there, or no controller: it stops as it is."""

    def __init__(
        self, broker: Broker, link: ControllerLink, change: RoleChange, wake: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._link = link
        self._change = change
        self._wake = wake

    async def run(self) -> None:
        had_led = bool(self._change.leading_epoch)
        if await self._let_another_lead():
            self._wake()
            await self._pass_on(had_led)

    async def _let_another_lead(self) -> bool:
        """Whether this broker does not lead any more. A switch that somebody else began is as good
        as its own, and a replica that cannot lead, as it stops too, is not the only one."""
        deadline_ms = self._clock.monotonic_ms() + _RESIGN_MS_MAX
        refused: set[int] = set()
        while self._change.leading_epoch:
            heir = self._heir(refused)
            if heir is None or self._clock.monotonic_ms() >= deadline_ms:
                return False
            try:
                await self._link.elect(self._broker.config, heir)
                return True
            except RemotingError as error:
                code = error.code if isinstance(error, ControllerError) else None
                if code in BUSY_CODES:
                    await self._clock.sleep_ms(_BUSY_MS)
                    continue
                _LOG.warning("no switch before the stop to=%d reason=%s", heir, error)
                if code is None:
                    return False
                refused.add(heir)
        return True

    def _heir(self, refused: Collection[int]) -> int | None:
        """As at an election the smallest priority counts. All will have the whole log when the
        switch is made, so it counts more than who has most of it now."""
        group = self._broker.ha.group
        authority = None if group is None else group.authority
        if authority is None:
            return None
        others = authority.members - {authority.own_id} - set(refused)
        acked = ((authority.acked_by(n), n) for n in others)
        living = ((-self._priority(n), end, n) for end, n in acked if end is not None)
        return max(living, default=(0, 0, None))[2]

    def _priority(self, number: int) -> int:
        """`brokerElectionPriority` of a member, as the controller knows it."""
        manager = self._broker.replicas
        record = None if manager is None else manager.record
        replica = None if record is None else record.replicas.get(number)
        return 0 if replica is None else replica.priority

    async def _pass_on(self, had_led: bool) -> None:
        relay = self._broker.relay
        assert relay is not None
        deadline_ms = self._clock.monotonic_ms() + _RESIGN_MS_MAX
        while self._clock.monotonic_ms() < deadline_ms:
            # The next master counts this one until it sees its link close: it must have one.
            is_left = not self._change.leading_epoch and (not had_led or self._broker.ha.is_linked)
            if is_left and not relay.count:
                return
            await self._clock.sleep_ms(_POLL_MS)
