"""Who has locked which queue for ordered consumption (RocketMQ's RebalanceLockManager). Pure.

A lock belongs to (group, queue) and one client; it ends 60 s after its last renewal, so a client
that died keeps others waiting for that long at most. Time is passed in, monotonic.

In a controlled group a change of owner is also a record of the log (`on_moved`): the next master,
and this one after a restart, honours it. What could not be recorded is not granted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

LOCK_LIVE_MS_MAX = 60_000  # rocketmq.broker.rebalance.lockMaxLiveTime of 4.9.
LOCKS_MAX = 500_000  # Some 150 MB: queues and groups that do not exist can be locked, too.

QueueT = TypeVar("QueueT")


class RebalanceLockManager(Generic[QueueT]):
    """Locks by group. A queue is any hashable value."""

    def __init__(self, live_ms_max: int = LOCK_LIVE_MS_MAX) -> None:
        self._live_ms_max = live_ms_max
        self._groups: dict[str, dict[QueueT, tuple[str, int]]] = {}
        self._count = 0  # Of all locks; counted again with each sweep.
        # Told (group, client, queues) when queues get another owner; no client: they have none.
        # False: nobody else will know of it, so it must not be.
        self.on_moved: Callable[[str, str, list[QueueT]], bool] | None = None

    def try_lock_batch(
        self,
        group: str,
        queues: Iterable[QueueT],
        *,
        client_id: str,
        now_ms: int,
        is_sure: bool = True,
    ) -> list[QueueT]:
        """Lock what is free, expired or already the client's; return what it has locked now.

        `is_sure`: nobody else can be the master. Else a renewal, too, must be recorded: a master
        that was replaced would renew forever what the next one gives to another client.
        """
        held = self._groups.setdefault(group, {})
        kept: list[QueueT] = []
        moved: list[QueueT] = []
        room = LOCKS_MAX - self._count
        for queue in queues:
            owner = held.get(queue)
            if owner is None and len(moved) >= room:
                continue
            if owner is not None and owner[0] == client_id and is_sure:
                kept.append(queue)
            elif owner is None or owner[0] == client_id or self._is_expired(owner, now_ms):
                moved.append(queue)
        granted = kept + moved if self._tell(group, client_id, moved) else kept
        before = len(held)
        held.update(dict.fromkeys(granted, (client_id, now_ms)))
        self._count += len(held) - before
        return granted

    def _tell(self, group: str, client_id: str, queues: list[QueueT]) -> bool:
        return not queues or self.on_moved is None or self.on_moved(group, client_id, queues)

    def unlock_batch(self, group: str, queues: Iterable[QueueT], *, client_id: str) -> None:
        """Give back what the client has locked; the rest is not its business."""
        held = self._groups.get(group, {})
        freed = []
        for queue in queues:
            owner = held.get(queue)
            if owner is not None and owner[0] == client_id:
                del held[queue]
                freed.append(queue)
        self._count -= len(freed)
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
            dead = [q for q, entry in held.items() if self._is_expired(entry, now_ms)]
            for queue in dead:
                del held[queue]
            self._tell(group, "", dead)
            if not held:
                del self._groups[group]
        self._count = sum(map(len, self._groups.values()))

    def _is_expired(self, entry: tuple[str, int], now_ms: int) -> bool:
        return now_ms - entry[1] > self._live_ms_max
