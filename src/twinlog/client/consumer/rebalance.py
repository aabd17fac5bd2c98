"""Which queues are mine: the allocation strategies of RocketMQ, as pure functions.

Corresponds to AllocateMessageQueueAveragely, ...AveragelyByCircle, ...ByConfig, ...ByMachineRoom,
...ConsistentHash, AllocateMachineRoomNearby, and to the diff that RebalanceImpl computes.

Invariant: for one list of client ids, the shares of all clients are disjoint; for every strategy
but ByConfig and ByMachineRoom they cover all queues. Input lists are sorted as in `queues.py`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from twinlog.client.queues import MessageQueue, java_order, sorted_client_ids, sorted_queues


class AllocateStrategy(Protocol):
    """Both lists come sorted; `client_id` is one of `client_ids`."""

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]: ...


def allocate_averagely(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Neighbouring queues to each client, the first `remainder` clients get one more."""
    index = client_ids.index(client_id)
    share, remainder = divmod(len(queues), len(client_ids))
    start = index * share + min(index, remainder)
    return list(queues[start : start + share + (1 if index < remainder else 0)])


def allocate_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Dealt out one by one."""
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


@dataclass(frozen=True, slots=True)
class AllocateByConfig:
    """A fixed list of queues; the rest of the group is not looked at."""

    assigned: tuple[MessageQueue, ...]

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return list(self.assigned)


@dataclass(frozen=True, slots=True)
class AllocateByMachineRoom:
    """Only queues of brokers named `ROOM@...` with ROOM in `rooms`."""

    rooms: frozenset[str]

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        mine = [queue for queue in queues if self._is_in_rooms(queue.broker_name)]
        index = client_ids.index(client_id)
        share, remainder = divmod(len(mine), len(client_ids))
        result = mine[share * index : share * index + share]
        if index < remainder:
            result.append(mine[index + share * len(client_ids)])
        return result

    def _is_in_rooms(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self.rooms


@dataclass(frozen=True, slots=True)
class AllocateByConsistentHash:
    """A ring of `virtual_nodes` points for each client: few queues move when a client comes."""

    virtual_nodes: int = 10

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        ring: dict[int, str] = {}
        for owner in client_ids:
            for index in range(self.virtual_nodes):
                ring[_ring_position(f"{owner}-{index}")] = owner
        positions = sorted(ring)
        if not positions:
            return []
        return [
            queue
            for queue in queues
            if ring[_ring_successor(positions, queue.java_text())] == client_id
        ]


def _ring_position(text: str) -> int:
    digest = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _ring_successor(positions: Sequence[int], text: str) -> int:
    index = bisect_left(positions, _ring_position(text))
    return positions[index if index < len(positions) else 0]


@dataclass(frozen=True, slots=True)
class AllocateNearby:
    """Queues of a machine room go to the clients in it; rooms without clients are shared by all."""

    broker_room: Callable[[MessageQueue], str]
    client_room: Callable[[str], str]
    inner: AllocateStrategy = allocate_averagely

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(self.broker_room(queue), []).append(queue)
        clients: dict[str, list[str]] = {}
        for member in client_ids:
            clients.setdefault(self.client_room(member), []).append(member)
        room = self.client_room(client_id)
        result: list[MessageQueue] = []
        if room in by_room:
            result += self.inner(client_id, by_room.pop(room), clients[room])
        for other in sorted(by_room, key=java_order):
            if other not in clients:
                result += self.inner(client_id, by_room[other], client_ids)
        return result


STRATEGIES: Mapping[str, AllocateStrategy] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_by_circle,
    "CONSISTENT_HASH": AllocateByConsistentHash(),
}


def allocate(
    strategy: AllocateStrategy,
    client_id: str,
    queues: Iterable[MessageQueue],
    client_ids: Iterable[str],
) -> list[MessageQueue]:
    """The queues of `client_id`. Nothing while the broker does not list it: it would overlap."""
    members = sorted_client_ids(client_ids)
    if client_id not in members:
        return []
    ordered = sorted_queues(queues)
    if not ordered:
        return []
    return strategy(client_id, ordered, members)


@dataclass(frozen=True, slots=True)
class RebalanceDiff:
    """What changes: queues to let go, then queues to take."""

    revoked: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]


def difference(
    current: Collection[MessageQueue], target: Collection[MessageQueue]
) -> RebalanceDiff:
    """From what is owned to what should be owned, both in queue order."""
    wanted, owned = set(target), set(current)
    return RebalanceDiff(
        revoked=tuple(sorted_queues(owned - wanted)), gained=tuple(sorted_queues(wanted - owned))
    )
