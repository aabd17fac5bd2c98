"""Who was in the set before the present epoch, and when that counts (rule R8). Pure.

A new master may be alone in its set, and lose power before its disk has what it acknowledged as a
slave. Whoever was in the set with it, and was only killed, has all of that.
"""

from __future__ import annotations

from twinlog.controller.elect import Ballot, Standing
from twinlog.controller.record import Election, GroupRecord


def former_set(record: GroupRecord, winner: Standing, election: Election) -> frozenset[int]:
    """Who has all that was confirmed before the epoch that begins now. Where the last one left
    nothing in the log of the winner, who was needed to confirm it, nothing was confirmed in it."""
    if election is not Election.CLEAN:
        return frozenset()  # What is lost is lost.
    is_told = winner.last_epoch >= record.master_epoch
    return record.sync_state_set | (frozenset() if is_told else record.former_set)


def unless_former_have_more(
    ballot: Ballot, record: GroupRecord, standings: dict[int, Standing]
) -> Ballot:
    """All of the set is in doubt, and no log that is here has even the beginning of this epoch: who
    was in the set before is waited for, should none that lost nothing be here (R8)."""
    winner = ballot.winner
    if winner is None or ballot.election is not Election.INCOMPLETE:
        return ballot
    if winner.last_epoch >= record.master_epoch:
        return ballot
    known = {n: standings.get(n) for n in sorted(record.former_set) if _may_return(record, n)}
    absent = tuple(n for n, s in known.items() if s is None or not s.is_alive)
    has_all = any(s is not None and s.is_candidate for s in known.values())
    return Ballot(None, waiting_for=absent) if absent and not has_all else ballot


def _may_return(record: GroupRecord, n: int) -> bool:
    """An id is gone when another one was given to its address since: the disk was lost."""
    replica = record.replicas.get(n)
    if replica is None or replica.learner:
        return False
    later = (other for m, other in record.replicas.items() if m > n)
    return not any(replica.address and other.address == replica.address for other in later)
