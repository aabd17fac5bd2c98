"""A record that a slave has received, and that has decayed before it was dispatched.

Cutting the log back to it and asking the master again takes away what the slave has acknowledged,
for as long as that takes. In a group with a controller it may be elected meanwhile, and everything
behind the damage would be missing. So the record is first fetched from a replica and written in its
place; the log is cut only where nobody has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from twinlog.ha.damage import FINGERPRINT_SIZE_MAX
from twinlog.runtime.clock import Clock
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.integrity.heal import Healer
from twinlog.store.log.commit_log import CommitLog
from twinlog.store.recovery.reput import ReputService

_LOG = logging.getLogger("twinlog.broker")
_PAUSE_MS: Final = 500
_TRIES: Final = 6  # Replicas are found in the first seconds.


class DispatchDamage:
    """What a broker does when its dispatcher stops at a damaged record."""

    def __init__(
        self,
        *,
        log: CommitLog,
        reput: ReputService,
        healer: Healer,
        clock: Clock,
        tasks: TaskOwner,
        is_twin: Callable[[], bool],
        is_controlled: bool,
        cut: Callable[[int, str], None],
    ) -> None:
        """`cut` takes the log back to an offset, and asks the master for the rest again."""
        self._log = log
        self._reput = reput
        self._healer = healer
        self._clock = clock
        self._tasks = tasks
        self._is_twin = is_twin
        self._is_controlled = is_controlled
        self._cut = cut
        self._healing = self._healed = -1

    def found(self, offset: int, reason: str) -> None:
        if offset == self._healing:
            return
        # What stops there again was not cured by the replica's bytes.
        if offset == self._healed or not (self._is_twin() or self._healer.replicas()):
            self._cut(offset, reason)
            return
        self._healing = offset
        self._tasks.job("heal-before-dispatch", self._heal(offset, reason))

    async def _heal(self, offset: int, reason: str) -> None:
        try:
            if await self._is_healed(offset):
                self._healed = offset
                self._reput.healed()
            elif self._reput.damage_offset == offset:
                self._cut(offset, reason)
        except OffsetOutOfRangeError:
            pass  # Cut or expired meanwhile.
        finally:
            self._healing = -1

    async def _is_healed(self, offset: int) -> bool:
        """In a group with a controller until it is: others count on what comes behind it."""
        tries = 0
        while self._reput.damage_offset == offset:
            if await self._healer.heal_record(offset):
                return True
            tries += 1
            if await self._is_everywhere(offset) or (tries >= _TRIES and not self._is_controlled):
                return False
            if tries == _TRIES:
                _LOG.error("damage waits for a replica with a good copy offset=%d", offset)
            await self._clock.sleep_ms(_PAUSE_MS)
        return False

    async def _is_everywhere(self, offset: int) -> bool:
        """Whether a replica has the same bytes: then it is the master's own damage."""
        for replica in self._healer.replicas():
            mine = self._log.read_to_check(offset, FINGERPRINT_SIZE_MAX)
            if await replica.read(offset, len(mine)) == mine:
                return True
        return False
