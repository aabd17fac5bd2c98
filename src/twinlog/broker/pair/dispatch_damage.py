"""A record that a slave has received, and that has decayed before it was dispatched.

Cutting the log back to it and asking the master again takes away what the slave has acknowledged,
for as long as that takes. In a group with a controller it may be elected meanwhile, and everything
behind the damage would be missing. So the record is first fetched from a replica and written in its
place; the log is cut only where nobody has it.

A slave of a fixed pair cuts only while it is connected to its master, which has the rest. Without
one it waits: a promotion is refused until the record is whole, or was given up.
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


def damage_advice(offset: int) -> str:
    """For a replica that is to lead: why it does not, and what to do. -1: nothing is damaged."""
    if offset < 0:
        return ""
    return (
        f"the record at {offset} of the log is damaged, and what is behind it was acknowledged:"
        " start a replica that has the record, from which it is fetched; if there is none, stop"
        " this broker and give up that record alone with `twinlog store give-up`"
    )


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
        is_linked: Callable[[], bool],
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
        self._is_linked = is_linked
        self._is_controlled = is_controlled
        self._cut = cut
        self._healing = self._healed = self._said = -1

    def found(self, offset: int, reason: str) -> None:
        if offset == self._healing:
            return
        if self._may_cut() and not self._may_heal(offset):
            self._cut(offset, reason)
            return
        self._healing = offset
        self._tasks.job("heal-before-dispatch", self._heal(offset, reason))

    def _may_heal(self, offset: int) -> bool:
        """What stops there again was not cured by the replica's bytes."""
        return offset != self._healed and (self._is_twin() or bool(self._healer.replicas()))

    def _may_cut(self) -> bool:
        """Whether somebody has what is behind the record, or a controller knows that it is cut."""
        return self._is_controlled or self._is_linked()

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
            if offset != self._healed and await self._healer.heal_record(offset):
                return True
            if self._may_cut():
                tries += 1
                is_last = tries >= _TRIES and not self._is_controlled
                if is_last or await self._is_everywhere(offset):
                    return False
            self._say_waiting(offset, tries)
            await self._clock.sleep_ms(_PAUSE_MS)
        return False

    def _say_waiting(self, offset: int, tries: int) -> None:
        if tries == _TRIES or (not tries and offset != self._said):
            self._said = offset
            _LOG.error("%s", damage_advice(offset))

    async def _is_everywhere(self, offset: int) -> bool:
        """Whether a replica has the same bytes: then it is the master's own damage."""
        for replica in self._healer.replicas():
            mine = self._log.read_to_check(offset, FINGERPRINT_SIZE_MAX)
            if await replica.read(offset, len(mine)) == mine:
                return True
        return False
