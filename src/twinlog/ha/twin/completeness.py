"""Whether a master has all that was ever confirmed, and what a longer slave means to it. Pure.

A master that lost power may lack the end of its log. Two things tell it: its own mark of what was
confirmed, when that lies beyond its end, and its slaves, which know more. After a power loss the
mark may be old, so a master in doubt waits for those that were connected before. Of n replicas of
which k had to acknowledge each record, any n - k + 1 include one that has everything.

What a slave has beyond the master's end is a continuation of the same log, and is fetched: it was
sent once, perhaps acknowledged, and nobody has anything else in that place. When both logs go on
differently, the side that was never confirmed gives way; when neither may, a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

# A slave of an ASYNC_MASTER that came back is there by then: it dials at most every 5 s.
ASYNC_WAIT_MS = 10_000


class TailVerdict(Enum):
    """What becomes of the bytes that a slave has and its master has not."""

    TRUNCATE = "the slave gives them up"
    FETCH = "the master copies them"
    CUT_AND_FETCH = "the master gives up its own, then copies them"
    REFUSE = "a person decides"


def judge_tail(
    common: int,
    *,
    own_end: int,
    own_confirmed: int,
    slave_confirmed: int,
    is_sync: bool,
    can_fetch: bool,
) -> TailVerdict:
    """Both logs are equal up to `common`, and the slave's goes on.

    A SYNC_MASTER has called nothing safe that is not confirmed, so its own unconfirmed tail may be
    moved aside. An ASYNC_MASTER, and one with inSyncReplicas=1, has answered SEND_OK for it.
    """
    if own_end == common:
        if can_fetch:
            return TailVerdict.FETCH
        is_lost = own_confirmed > common
    else:
        is_lost = slave_confirmed > common
        if is_lost and can_fetch and is_sync and own_confirmed <= common:
            return TailVerdict.CUT_AND_FETCH
    return TailVerdict.REFUSE if is_lost else TailVerdict.TRUNCATE


@dataclass(slots=True)
class Completeness:
    """What a starting master still has to find out. `awaited`: brokerIds of the replicas that may
    have what it lost; `deadline_ms`: until when, None for as long as it takes."""

    confirmed: int = 0
    awaited: frozenset[int] = frozenset()
    ack_count: int = 1
    deadline_ms: int | None = None
    heard: set[int] = field(default_factory=set)

    @property
    def missing_count(self) -> int:
        """How many more of the awaited must be heard."""
        if not self.awaited:
            return 0
        needed = max(1, len(self.awaited) - self.ack_count + 1)
        return max(0, needed - len(self.heard & self.awaited))

    def reason(self, log_end: int, now_ms: int) -> str:
        """Why no send is taken yet; empty when the log is complete as far as anyone can tell."""
        if self.confirmed > log_end:
            return (
                f"this log ends at {log_end} and was confirmed up to {self.confirmed}: waiting for"
                " a replica that has the rest"
            )
        is_over = self.deadline_ms is not None and now_ms >= self.deadline_ms
        if self.missing_count and not is_over:
            names = ", ".join(str(number) for number in sorted(self.awaited - self.heard))
            return (
                "this machine lost power, and its replicas may have what it lost: waiting for"
                f" {self.missing_count} of brokerId {names}"
            )
        return ""
