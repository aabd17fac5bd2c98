"""Who has locked which queue for ordered consumption (RocketMQ's RebalanceLockManager). Pure.

A lock belongs to (group, queue) and one client; it ends 60 s after its last renewal, so a client
that died keeps others waiting for that long at most. Time is passed in, monotonic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

LOCK_LIVE_MS_MAX = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime of 4.9.

QueueT = TypeVar("QueueT")


class RebalanceLockManager(Generic[QueueT]):
    """Locks by group. A queue is any hashable value."""

    def __init__(self, live_ms_max: int = LOCK_LIVE_MS_MAX) -> None:
        self._live_ms_max = live_ms_max
        self._groups: dict[str, dict[QueueT, tuple[str, int]]] = {}
        # Told (group, client, queues) when queues get another owner; no client: they have none.
        self.on_moved: Callable[[str, str, list[QueueT]], None] | None = None

    def try_lock_batch(
        self, group: str, queues: Iterable[QueueT], *, client_id: str, now_ms: int
    ) -> list[QueueT]:
        """Lock what is free, expired or already the client's; return what it has locked now."""
        held = self._groups.setdefault(group, {})
        granted, moved = [], []
        for queue in queues:
            owner = held.get(queue)
            if owner is None or owner[0] == client_id or self._is_expired(owner, now_ms):
                if owner is None or owner[0] != client_id:
                    moved.append(queue)
                held[queue] = (client_id, now_ms)
                granted.append(queue)
        self._tell(group, client_id, moved)
        return granted

    def _tell(self, group: str, client_id: str, queues: list[QueueT]) -> None:
        if queues and self.on_moved is not None:
            self.on_moved(group, client_id, queues)

    def unlock_batch(self, group: str, queues: Iterable[QueueT], *, client_id: str) -> None:
        """Give back what the client has locked; the rest is not its business."""
        held = self._groups.get(group, {})
        freed = []
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
                freed.append(queue)
        self._tell(group, "", freed)

    def heard(self, group: str, queues: Iterable[QueueT], client_id: str, now_ms: int) -> None:
        """On a slave: the master gave these queues to `client_id`, or took them back."""
        held = self._groups.setdefault(group, {})
        for queue in queues:
            if client_id:
                held[queue] = (client_id, now_ms)
            else:
                held.pop(queue, None)

    def renew_all(self, now_ms: int) -> None:
        """On a new master: owners have not been asked yet, so each has its whole time again."""
        for held in self._groups.values():
            for queue, (client_id, _) in held.items():
                held[queue] = (client_id, now_ms)

    def snapshot(self) -> list[tuple[str, str, list[QueueT]]]:
        """(group, client, queues) of all locks."""
        found: dict[tuple[str, str], list[QueueT]] = {}
        for group, held in self._groups.items():
            for queue, (client_id, _) in held.items():
                found.setdefault((group, client_id), []).append(queue)
        return [(group, client_id, queues) for (group, client_id), queues in found.items()]

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
