"""What the master of a controlled group may call confirmed, and whether it may answer early. Pure.

Rules R1, R2, R5 and R6. Has no counterpart in RocketMQ 4.9; in 5.x it is the confirm offset of
AutoSwitchHAService, which takes the set as it believes it to be and so lost messages.

A record is confirmed when every member of every set that may be committed has it: the set that is
known, and in addition each set that was proposed and whose outcome is not known yet. A proposal
that was sent may be committed at any time until a newer set epoch is seen, so it is never just
forgotten: it is withdrawn by having the present set committed again.

Offsets given here are durable ones where the group flushes synchronously. Times come from a clock
that counts while the machine sleeps.

Invariants: `confirmed` never falls; it exceeds no acknowledgement that it needs at the moment it
moves; a connection that was replaced acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NEVER_MS = -(2**62)


@dataclass(slots=True)
class ReplicaLink:
    """A connection of this epoch whose log was shown to be a prefix of ours."""

    connection: int
    incarnation: str
    acked: int
    log_start: int


@dataclass(frozen=True, slots=True)
class SetProposal:
    """A set to be committed in the place of the one with `set_epoch`. `incarnations` are those for
    which the replicas were seen to be caught up; they are never refreshed (R3). `reason` is why a
    replica leaves."""

    epoch: int
    set_epoch: int
    members: frozenset[int]
    incarnations: Mapping[int, str]
    reason: str = ""


@dataclass(slots=True)
class _Joining:
    """Replicas that count already, and are proposed once they have what is confirmed, and the log
    up to `tables_end`."""

    members: frozenset[int]
    tables_end: int
    incarnations: dict[int, str] = field(default_factory=dict)


class Authority:
    """One master in one epoch. A promotion makes a new one: no acknowledgement outlives it."""

    def __init__(
        self,
        *,
        own_id: int,
        incarnation: str,
        epoch: int,
        epoch_start: int,
        members: frozenset[int],
        set_epoch: int,
    ) -> None:
        assert own_id in members
        self.own_id = own_id
        self.incarnation = incarnation
        self.epoch = epoch
        self.members = members
        self.set_epoch = set_epoch
        self.confirmed = 0
        self.lease_until_ms = NEVER_MS
        self._epoch_start = epoch_start
        self._own_end = 0
        self._links: dict[int, ReplicaLink] = {}
        self._sent: list[SetProposal] = []
        self._joining: _Joining | None = None

    # Confirmed (R1)

    @property
    def required(self) -> frozenset[int]:
        """Everybody whose acknowledgement a record needs, besides this master's own."""
        members = self.members.union(*(proposal.members for proposal in self._sent))
        if self._joining is not None:
            members |= self._joining.members
        return members - {self.own_id}

    def own_end(self, offset: int) -> None:
        """This master has everything below `offset`."""
        self._own_end = max(self._own_end, offset)
        self._advance()

    def connected(
        self, replica_id: int, connection: int, incarnation: str, acked: int, log_start: int = 0
    ) -> None:
        """A replica's log, which begins at `log_start`, was compared with ours in this epoch; it
        replaces what it had before."""
        self._links[replica_id] = ReplicaLink(connection, incarnation, acked, log_start)
        self._advance()

    def acknowledged(self, replica_id: int, connection: int, offset: int) -> None:
        link = self._links.get(replica_id)
        if link is None or link.connection != connection:
            return  # A connection that has been replaced: its words are about another process.
        link.acked = max(link.acked, offset)
        self._advance()

    def disconnected(self, replica_id: int, connection: int) -> None:
        link = self._links.get(replica_id)
        if link is not None and link.connection == connection:
            del self._links[replica_id]
            if self._joining is not None and replica_id in self._joining.incarnations:
                self._joining = None  # Nobody was told of it.
                self._advance()

    def acked_by(self, replica_id: int) -> int | None:
        link = self._links.get(replica_id)
        return None if link is None else link.acked

    def log_start_of(self, replica_id: int) -> int:
        """Where the log of a connected replica begins."""
        return self._links[replica_id].log_start

    def process_of(self, replica_id: int) -> str:
        """The incarnation that is connected; empty without a connection."""
        link = self._links.get(replica_id)
        return "" if link is None else link.incarnation

    def _advance(self) -> None:
        offset = self._own_end
        for replica_id in self.required:
            link = self._links.get(replica_id)
            if link is None:
                return
            offset = min(offset, link.acked)
        self.confirmed = max(self.confirmed, offset)

    # Changes of the set (R2, R3)

    @property
    def is_joining(self) -> bool:
        """Whether a replica counts already that nobody was told of."""
        return self._joining is not None

    @property
    def is_changing(self) -> bool:
        return bool(self._sent) or self._joining is not None

    def shrink(self, replica_id: int, reason: str = "") -> SetProposal:
        """Propose the set without `replica_id`; the result is sent until it is answered."""
        assert not self.is_changing
        assert replica_id in self.members - {self.own_id}
        return self._propose(self.members - {replica_id}, {}, reason)

    def join(self, replica_id: int, tables_end: int = 0) -> None:
        """Begin to admit `replica_id`: from now on nothing is confirmed that it does not have.

        Proposed as soon as it has what is confirmed, see `proposal`; under load it never would if
        confirmed went on without it. `tables_end` is where a snapshot of topics, groups and offsets
        ends that is in its log, or comes there: older records of them may have expired.
        """
        assert not self.is_changing
        assert replica_id not in self.members
        incarnations = {replica_id: self._links[replica_id].incarnation}
        self._joining = _Joining(self.members | {replica_id}, tables_end, incarnations)

    def give_up_joining(self) -> None:
        """It does not catch up. A proposal that was not sent is nobody's business."""
        self._joining = None
        self._advance()

    def proposal(self) -> SetProposal | None:
        """What the controller is to be asked now, until it answers; None when there is nothing."""
        if self._joining is not None and self._is_caught_up(self._joining):
            joining, self._joining = self._joining, None
            return self._propose(joining.members, joining.incarnations)
        return self._sent[-1] if self._sent else None

    def _is_caught_up(self, joining: _Joining) -> bool:
        """R3, for the very process and connection that is proposed."""
        for replica_id, incarnation in joining.incarnations.items():
            link = self._links.get(replica_id)
            if link is None or link.incarnation != incarnation:
                return False
            if link.acked < max(self.confirmed, self._epoch_start, joining.tables_end):
                return False
        return True

    def _propose(
        self, members: frozenset[int], incarnations: Mapping[int, str], reason: str = ""
    ) -> SetProposal:
        proposal = SetProposal(self.epoch, self.set_epoch, members, dict(incarnations), reason)
        self._sent.append(proposal)
        return proposal

    def rejected(self, set_epoch: int) -> None:
        """The controller refused the proposal over `set_epoch`. Another copy of it may still be on
        its way, so the present set is proposed: once that is committed, the copy is stale."""
        if not self._sent or set_epoch != self.set_epoch:
            return
        if self._sent[-1].set_epoch == set_epoch and self._sent[-1].members != self.members:
            self._propose(self.members, {})

    def withdrawn(self, proposal: SetProposal) -> None:
        """The controller refused the proposal, and no other copy of it can be on its way."""
        self._sent = [sent for sent in self._sent if sent != proposal]
        self._advance()

    def committed(self, set_epoch: int, members: frozenset[int]) -> None:
        """A newer set of this epoch, stored on this broker before it is counted by."""
        assert self.own_id in members
        if set_epoch <= self.set_epoch:
            return
        self.set_epoch, self.members = set_epoch, members
        self._sent = [proposal for proposal in self._sent if proposal.set_epoch >= set_epoch]
        self._joining = None  # It was made over the old set.
        self._advance()

    # Early answers (R5, R6)

    def granted(self, sent_ms: int, lease_ms: int, epoch: int, incarnation: str) -> None:
        """The answer to a heartbeat that left at `sent_ms`. Counted from then, not from now: the
        controller counts from a later moment."""
        if (epoch, incarnation) == (self.epoch, self.incarnation) and lease_ms > 0:
            self.lease_until_ms = max(self.lease_until_ms, sent_ms + lease_ms)

    def surrender(self) -> None:
        """No early answer any more until a lease is granted again: before a hand-over."""
        self.lease_until_ms = NEVER_MS

    def may_answer_early(self, now_ms: int) -> bool:
        """Whether a reply may leave before its record is confirmed; asked when it leaves."""
        return now_ms < self.lease_until_ms
