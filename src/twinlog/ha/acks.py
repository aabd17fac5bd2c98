"""Who has what: acknowledged offsets per replica. Pure.

Corresponds to the ack mark `push2SlaveMaxOffset` of RocketMQ's HAService, which is one number, the
maximum over all comers and all time. Here each replica has its own, and a replica that is gone has
none: a dead slave, or a peer that claimed too much once, confirms nothing.

The classic dialect has no identity, so one slave may look like two: after a power loss its old
connection stays half open next to the new one. When a second connection comes from one host, what
the first had acknowledged is doubted, and counts again only when it acknowledges bytes that were
sent to it after that. A dead process never does; a second slave of the same host soon will.

An empty slave of the classic dialect is sent the last file of the log only, and so is one of the
twin dialect that asks for it. What it acknowledges says nothing about the files before, for which
sends may be waiting: such a replica is *partial*, and counts when nobody waits for what it will
never have.

Invariants: an acknowledgement never exceeds what was sent to that replica (or what it had when it
joined), and never falls while the replica stays.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReplicaAck:
    """One replica.

    `caught_up_ms` is the latest time of which it has everything that the master had then: under
    load nobody ever has all of this moment. `moved_ms` is when it last acknowledged something new,
    or when there was nothing to acknowledge.
    """

    name: str
    ack_offset: int
    acked_ms: int
    caught_up_ms: int
    doubted_offset: int = -1
    moved_ms: int = 0
    mark_offset: int = -1
    mark_ms: int = 0
    start_offset: int = 0
    joined_ms: int = 0
    is_partial: bool = False

    @property
    def counted_offset(self) -> int | None:
        """What may be counted for it; None while it is in doubt."""
        is_counted = self.ack_offset > self.doubted_offset and not self.is_partial
        return self.ack_offset if is_counted else None


class AckTable:
    """Acknowledged offsets of the replicas that are connected now."""

    def __init__(self) -> None:
        self._replicas: dict[str, ReplicaAck] = {}
        self._may_be_partial = False  # Looked at with every acknowledgement.
        self.latest_start = 0
        """Beyond this every replica that ever joined has what it acknowledges."""

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def replicas(self) -> tuple[ReplicaAck, ...]:
        return tuple(self._replicas.values())

    @property
    def partial(self) -> list[ReplicaAck]:
        """Those that do not count yet, in the order of where they begin."""
        if not self._may_be_partial:
            return []
        found = [replica for replica in self._replicas.values() if replica.is_partial]
        self._may_be_partial = bool(found)
        return sorted(found, key=lambda replica: replica.start_offset)

    def join(self, name: str, ack_offset: int, now_ms: int, *, start_offset: int = 0) -> ReplicaAck:
        """A replica reported for the first time. The same name again replaces the old entry.

        `start_offset`: where the log of a replica that was empty will begin.
        """
        assert ack_offset >= 0
        replica = ReplicaAck(name, ack_offset, now_ms, now_ms, moved_ms=now_ms)
        replica.start_offset, replica.joined_ms = start_offset, now_ms
        replica.is_partial = start_offset > 0
        self._may_be_partial |= replica.is_partial
        self.latest_start = max(self.latest_start, start_offset)
        self._replicas[name] = replica
        return replica

    def ack(
        self, name: str, ack_offset: int, *, sent_offset: int, end_offset: int, now_ms: int
    ) -> None:
        """`name` has everything below `ack_offset`; `end_offset` is the end of the master's log."""
        assert ack_offset <= sent_offset <= end_offset, (ack_offset, sent_offset, end_offset)
        replica = self._replicas[name]
        if ack_offset > replica.ack_offset:
            replica.ack_offset = ack_offset
            replica.moved_ms = now_ms
        replica.acked_ms = now_ms
        if ack_offset >= end_offset:
            replica.caught_up_ms = replica.moved_ms = now_ms
        elif ack_offset < replica.mark_offset:
            return
        elif replica.mark_offset >= 0:
            replica.caught_up_ms = max(replica.caught_up_ms, replica.mark_ms)
        replica.mark_offset, replica.mark_ms = end_offset, now_ms

    def log_extended(self, old_end: int, now_ms: int) -> None:
        """The log ended at `old_end` until now: who had that was waiting for nothing."""
        for replica in self._replicas.values():
            if replica.ack_offset >= old_end:
                replica.caught_up_ms = replica.moved_ms = now_ms

    def doubt(self, name: str, *, sent_offset: int) -> None:
        """`name` may be a dead connection of a slave that is back: believe only what is new."""
        if (replica := self._replicas.get(name)) is not None:
            replica.doubted_offset = max(replica.doubted_offset, sent_offset)

    def leave(self, name: str) -> None:
        """The replica is gone and its acknowledgement with it."""
        self._replicas.pop(name, None)

    @property
    def lowest(self) -> int:
        """What some replica lacks begins here at the earliest; far away without replicas."""
        return min((replica.ack_offset for replica in self._replicas.values()), default=1 << 62)

    def acked_by(self, count: int) -> int | None:
        """The offset that `count` replicas have acknowledged, None when there are fewer."""
        assert count >= 1
        if count == 1:
            # Whoever says so, one has it: doubt is only about counting one slave twice.
            best: int | None = None
            for replica in self._replicas.values():
                if not replica.is_partial and (best is None or replica.ack_offset > best):
                    best = replica.ack_offset
            return best
        offsets = [
            offset
            for replica in self._replicas.values()
            if (offset := replica.counted_offset) is not None
        ]
        if len(offsets) < count:
            return None
        offsets.sort(reverse=True)
        return offsets[count - 1]

    def has_range(self, count: int, start: int, end: int) -> bool:
        """Whether `count` replicas have everything from `start` to `end`."""
        having = [
            replica
            for replica in self._replicas.values()
            if replica.start_offset <= start
            and (offset := replica.counted_offset) is not None
            and end <= offset
        ]
        return len(having) >= count

    def latest_start_of(self, count: int, end: int) -> int:
        """Where the log of the `count`-th replica begins, of those that count up to `end`."""
        starts = [
            replica.start_offset
            for replica in self._replicas.values()
            if not replica.is_partial and replica.ack_offset >= end
        ]
        starts.sort()
        return starts[count - 1] if len(starts) >= count else self.latest_start

    def nearest(self, count: int) -> ReplicaAck | None:
        """The replica whose acknowledgement decides what `count` replicas have."""
        if count == 1 == len(self._replicas):  # Asked for each synchronous send of a pair.
            (replica,) = self._replicas.values()
            return None if replica.is_partial else replica
        whole = [replica for replica in self._replicas.values() if not replica.is_partial]
        if len(whole) < count:
            return None
        whole.sort(key=lambda replica: -replica.ack_offset)
        return whole[count - 1]
