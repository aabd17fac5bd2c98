"""Which slaves of a master are missing: those that left and neither returned nor were replaced.

A name server forgets whoever has left its route. The master knows who followed it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinlog.ha.status import DepartedStatus
from twinlog.runtime.limits import HA_DEPARTED_COUNT_MAX


def follower(address: str) -> str:
    """What stays when a slave connects again: its id, in the classic dialect its host.

    Classic slaves of one host are not told apart: one that stays speaks for all.
    """
    place, _, replica_id = address.partition("/")
    return f"/{replica_id}" if replica_id else place.rpartition(":")[0]


class Followers:
    """Remembers departures, the last of each slave."""

    def __init__(self) -> None:
        self._left: dict[str, DepartedStatus] = {}
        self._most = 0  # So many were here at once: a new one in place of a lost one is no loss.

    def left(self, departed: DepartedStatus, others: Iterable[str]) -> None:
        """`others` are the addresses of the slaves that stay."""
        name = follower(departed.address)
        self._most = max(self._most, len({name, *map(follower, others)}))
        self._left.pop(name, None)
        self._left[name] = departed
        if len(self._left) > HA_DEPARTED_COUNT_MAX:
            del self._left[next(iter(self._left))]

    def missing(self, connected: Iterable[str]) -> tuple[DepartedStatus, ...]:
        """Whoever is not among the `connected`, the last to leave first."""
        here = {follower(address) for address in connected}
        gone = [departed for name, departed in self._left.items() if name not in here]
        return tuple(gone[::-1][: max(0, self._most - len(here))])
