"""What happens to a controller and what it wants done: plain values. Pure.

Times are milliseconds of the controller's own clock that never steps (`CLOCK_BOOTTIME`); time of
day is never used. A `token` names the request that a reply belongs to; it means nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twinlog.controller.membership import Proposal
from twinlog.controller.record import GroupRecord, Policy, Replica
from twinlog.controller.refusals import RefusalKind

Token = Any


@dataclass(frozen=True, slots=True)
class Timing:
    """Limits in milliseconds."""

    lease_ms: int = 2_000
    silence_ms: int = 2_300
    close_grace_ms: int = 500
    heard_by_slaves_ms: int = 10_000
    link_lost_ms: int = 1_500
    unwritable_ms: int = 3_000
    switch_pause_ms: int = 30_000
    hand_over_ms: int = 1_000
    settle_ms: int = 500

    @property
    def lease_wait_ms(self) -> int:
        """How long after the last grant a lease may still be believed: clock rates differ by less
        than 5 %, and a write that was past the check needs a moment (R6)."""
        return self.lease_ms + self.lease_ms // 20 + 200


DEFAULT_TIMING = Timing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A broker's report. `stored` is the newest record it has kept: what a controller that lost
    its state can be rebuilt from. `drained_end` answers a hand-over: nothing is unconfirmed below
    it, sends are held and the lease is given up. `processes` are those of a store in doubt since
    it lost power. `clock_ms` is its own clock when the heartbeat left."""

    group: str
    broker_id: int
    connection: int
    incarnation: str
    cluster: str = ""
    address: str = ""
    known_epoch: int
    last_epoch: int
    end: int
    confirmed: int | None = None
    is_complete: bool = True
    processes: tuple[str, ...] = ()
    is_writable: bool = True
    link_ms: int | None = None
    drained_end: int | None = None
    stored: GroupRecord | None = None
    was_master: bool = False
    clock_ms: int | None = None
    token: Token = None

    def has_what(self, incarnation: str | None) -> bool:
        """Whether this process has what that one had: it is the same, or began after it on the
        same store without a power loss in between."""
        return incarnation == self.incarnation or incarnation in self.processes


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    connection: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class AlterSyncStateSet:
    group: str
    proposal: Proposal
    token: Token = None


@dataclass(frozen=True, slots=True)
class RegisterReplica:
    """A replica applies with its id, or has a new address. The first one brings the policy."""

    cluster: str
    group: str
    replica: Replica
    policy: Policy = field(default_factory=Policy)
    token: Token = None


@dataclass(frozen=True, slots=True)
class ElectMaster:
    """An operator's wish (`designate`, `is_unclean`), or a broker that finds no master."""

    group: str
    designate: int | None = None
    is_unclean: bool = False
    typed_group: str = ""
    token: Token = None


@dataclass(frozen=True, slots=True)
class SetLearner:
    """Drain (True) or undrain (False) a replica."""

    group: str
    broker_id: int
    is_learner: bool
    token: Token = None


@dataclass(frozen=True, slots=True)
class RemoveReplica:
    """Forget a replica; `is_living`: also one that sends heartbeats."""

    group: str
    broker_id: int
    is_living: bool = False
    token: Token = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """An operator says that the replicas present are all there will be."""

    group: str
    typed_group: str
    token: Token = None


@dataclass(frozen=True, slots=True)
class CommitDone:
    group: str
    version: int


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The store did not say whether the record was written, or refused it as stale."""

    group: str
    version: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the store holds after a commit whose outcome was not known."""

    group: str
    record: GroupRecord | None


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: replace the record of version `record.version - 1` in the store."""

    record: GroupRecord


@dataclass(frozen=True, slots=True)
class Reload:
    """Effect: read the group's record from the store until it answers."""

    group: str


@dataclass(frozen=True, slots=True)
class Reply:
    """Effect: answer a request. `error` is empty when what was asked for is done."""

    token: Token
    record: GroupRecord | None
    error: str = ""
    kind: RefusalKind = RefusalKind.NONE
    lease_ms: int = 0
    is_admitted: bool = False
    hand_over_to: int | None = None
    frozen: str = ""


@dataclass(frozen=True, slots=True)
class Hint:
    """Effect: tell a broker to ask (R11)."""

    group: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class Happened:
    """Effect: a line of the journal of events."""

    kind: str
    group: str
    details: Mapping[str, Any]


Effect = Commit | Reload | Reply | Hint | Happened
