"""Rule R7: which member of the set becomes master. Pure.

RocketMQ 5 sets the set to the new master alone, so that a second failure finds no candidate, and
compares log ends as 32-bit numbers. Here the set keeps its candidates, and numbers have no width.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from twinlog.controller.record import Election, GroupRecord
from twinlog.controller.refusals import NO_REFUSAL, Refusal, RefusalKind


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one replica at the moment of an election."""

    broker_id: int
    incarnation: str
    last_epoch: int
    end: int
    priority: int
    is_alive: bool
    is_complete: bool
    is_writable: bool

    @property
    def is_candidate(self) -> bool:
        return self.is_alive and self.is_complete and self.is_writable


@dataclass(frozen=True, slots=True)
class Ballot:
    """The outcome. Without a winner `waiting_for` names the members whose return would decide."""

    winner: Standing | None
    members: frozenset[int] = frozenset()
    election: Election = Election.CLEAN
    waiting_for: tuple[int, ...] = ()


def elect(
    members: Collection[int], standings: dict[int, Standing], preferred: int | None = None
) -> Ballot:
    """Choose among `members`; `preferred` wins if it is a candidate at all."""
    known = [standings[n] for n in sorted(members) if n in standings]
    candidates = [standing for standing in known if standing.is_candidate]
    if candidates:
        winner = next((s for s in candidates if s.broker_id == preferred), None)
        return Ballot(winner or _best(candidates), frozenset(s.broker_id for s in candidates))
    return _elect_among_doubtful(members, standings)


def elect_first(standings: dict[int, Standing], masters: Collection[int]) -> tuple[Ballot, str]:
    """Without a record: who was the master of a pair, or has the only log. Else why nobody."""
    filled = [s.broker_id for s in standings.values() if s.is_alive and s.end > 0]
    # With all of them here nobody else has anything: a backup was restored there.
    are_all_here = all(s.is_alive for s in standings.values())
    chosen = list(masters) or (filled if are_all_here else [])
    if len(chosen) == 1:
        return Ballot(standings[chosen[0]], frozenset(chosen)), ""
    reason = f"{len(masters)} replicas were the master before, {len(filled)} have messages"
    return Ballot(None), f"{reason}: empty the stores of all but one"


def elect_unclean(standings: Collection[Standing], preferred: int | None = None) -> Ballot:
    """By an operator's command only: any living replica, with whatever it has."""
    living = [standing for standing in standings if standing.is_alive]
    if not living:
        return Ballot(None)
    winner = next((s for s in living if s.broker_id == preferred), None) or _best(living)
    return Ballot(winner, frozenset([winner.broker_id]), Election.UNCLEAN)


def designate_refusal(
    record: GroupRecord, standings: dict[int, Standing], wanted: int, *, is_unclean: bool = False
) -> Refusal:
    """Why the replica that an operator names cannot lead. Another one is not what was asked for:
    an unclean election loses what the one that is taken lacks."""
    replica, standing = record.replicas.get(wanted), standings.get(wanted)
    why = ""
    if replica is None:
        why = "is not registered"
    elif replica.learner:
        why = "is a learner: undrain it first"
    elif not is_unclean and wanted not in record.sync_state_set:
        why = f"is not in the sync-state set {sorted(record.sync_state_set)}"
    elif standing is None or not standing.is_alive:
        return Refusal(RefusalKind.NOT_ALIVE, f"replica {wanted} sends no heartbeats")
    elif not is_unclean and not standing.is_candidate:
        why = "is in doubt" if standing.is_writable else "cannot write"
    return Refusal(RefusalKind.NOT_ELECTED, f"replica {wanted} {why}") if why else NO_REFUSAL


def kind_of(election: Election, winner: Standing, record: GroupRecord) -> Election:
    """How this epoch comes to be. A master that was elected with losses, and died before its log
    said so, leaves that to the next one: without it in the log nobody may be cut (R9)."""
    is_untold = record.election is not Election.CLEAN and winner.last_epoch < record.master_epoch
    return record.election if election is Election.CLEAN and is_untold else election


def _elect_among_doubtful(members: Collection[int], standings: dict[int, Standing]) -> Ballot:
    """Every member is dead or in doubt. With all of them back, the longest log is as good as it
    gets (R8). It may be that of a replica which has left the set: a master that was killed, and
    whose successor lost power before its disk had what both of them acknowledged."""
    living = {n: s for n, s in standings.items() if s.is_alive and s.is_writable}
    waiting_for = tuple(n for n in sorted(members) if n not in living)
    if waiting_for or not members:
        return Ballot(None, waiting_for=waiting_for)
    winner = _best(list(living.values()))
    return Ballot(winner, frozenset([winner.broker_id]), Election.INCOMPLETE)


def _best(standings: list[Standing]) -> Standing:
    """The longest log of the newest epoch; then the smallest priority, then the smallest id."""
    return max(standings, key=lambda s: (s.last_epoch, s.end, -s.priority, -s.broker_id))
