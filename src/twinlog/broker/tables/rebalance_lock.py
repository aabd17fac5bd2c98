"""Who has locked which queue for ordered consumption (RocketMQ's RebalanceLockManager). Pure.

A lock belongs to (group, queue) and one client; it ends 60 s after its last renewal, so a client
that died keeps others waiting for that long at most. Time is passed in, monotonic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

LOCK_LIVE_MS_MAX = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime of 4.9.

QueueT = TypeVar("QueueT")


class RebalanceLockManager(Generic[QueueT]):
    """Locks by group. A queue is any hashable value."""

    def __init__(self, live_ms_max: int = LOCK_LIVE_MS_MAX) -> None:
        self._live_ms_max = live_ms_max
        self._groups: dict[str, dict[QueueT, tuple[str, int]]] = {}

    def try_lock_batch(
        self, group: str, queues: Iterable[QueueT], *, client_id: str, now_ms: int
    ) -> list[QueueT]:
        """Lock what is free, expired or already the client's; return what it has locked now."""
        held = self._groups.setdefault(group, {})
        granted = []
        for queue in queues:
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or self._is_expired(owner, now_ms):
                held[queue] = (client_id, now_ms)
                granted.append(queue)
        return granted

    def unlock_batch(self, group: str, queues: Iterable[QueueT], *, client_id: str) -> None:
        """Give back what the client has locked; the rest is not its business."""
        held = self._groups.get(group, {})
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]

    def owner(self, group: str, queue: QueueT, now_ms: int) -> str | None:
        entry = self._groups.get(group, {}).get(queue)
        if entry is None or self._is_expired(entry, now_ms):
            return None
        return entry[0]

    def forget_expired(self, now_ms: int) -> None:
        """Drop dead locks, so that groups which never come back cost nothing."""
        for group in list(self._groups):
            held = self._groups[group]
            for queue in [q for q, entry in held.items() if self._is_expired(entry, now_ms)]:
                del held[queue]
            if not held:
                del self._groups[group]

    def _is_expired(self, entry: tuple[str, int], now_ms: int) -> bool:
        return now_ms - entry[1] > self._live_ms_max
