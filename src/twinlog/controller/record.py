"""What is decided about one group: its master, its sync-state set, its replicas. Pure.

Corresponds to RocketMQ 5's SyncStateInfo and BrokerReplicaInfo, kept as one value. A record is
replaced as a whole, by compare-and-set on `version`; everything that is not in it (who is alive,
who holds a lease until when) is rebuilt from heartbeats.

Invariants (`check`): the master is a member of the set; members and master are registered; no
learner is a member; `version`, `master_epoch` and `sync_state_set_epoch` only grow.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Election(StrEnum):
    """How the master of this epoch came to be; a rejoining replica may only be cut below what it
    knows as confirmed when an epoch in between was not clean (rule R9)."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    INCOMPLETE = "incomplete"


class Policy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the group promises. It is the group's, not a broker's: a switch never changes it."""

    broker_role: str = "SYNC_MASTER"
    flush_disk_type: str = "ASYNC_FLUSH"
    min_in_sync_replicas: int = 1
    total_replicas: int = 0
    enable_elect_unclean_master: bool = False

    @property
    def answers_early(self) -> bool:
        """Whether a master answers before every member of the set has the record."""
        return self.broker_role == "ASYNC_MASTER"

    @property
    def needs_lease(self) -> bool:
        """Whether a deposed master could give an answer that an election must wait for (R6)."""
        return self.answers_early or self.enable_elect_unclean_master

    @property
    def is_durable(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"


class Replica(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One store of the group. `uid` is the store's own, `check_code` what it applied with."""

    broker_id: int
    uid: str = ""
    check_code: str = ""
    address: str = ""
    ha_address: str = ""
    learner: bool = False
    priority: int = 2**31 - 1


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that is decided about a group. `admitted` holds, for each member, the incarnation that
    was shown to be complete when it was admitted: until its machine loses power, it is.
    `former_set` has everything that was confirmed before this epoch. `confirmed` is how far the
    members were known to have the log when the record was written; a process of one of them that
    begins with less is in doubt, also for a controller that has just started. `lineage` tells this
    group from another one of the same name: the incarnation of its first master."""

    cluster: str
    group: str
    version: int = 0
    lineage: str = ""
    master_epoch: int = 0
    master_broker_id: int | None = None
    master_incarnation: str = ""
    election: Election = Election.CLEAN
    sync_state_set: frozenset[int] = frozenset()
    sync_state_set_epoch: int = 0
    former_set: frozenset[int] = frozenset()
    confirmed: int = 0
    admitted: dict[int, str] = {}
    policy: Policy = Policy()
    replicas: dict[int, Replica] = {}

    def check(self) -> None:
        members = self.sync_state_set
        assert members <= self.replicas.keys(), (members, self.replicas)
        assert not any(self.replicas[member].learner for member in members), members
        assert self.master_broker_id is None or self.master_broker_id in members
        assert (self.master_broker_id is None) == (self.master_epoch == 0)

    def knows(self, broker_id: int, stored: GroupRecord | None) -> bool:
        """Whether a replica is registered, and not only by its id, as in a record that was
        restored. `stored` is what the replica itself has kept of an earlier one."""
        mine = self.replicas.get(broker_id)
        its = None if stored is None else stored.replicas.get(broker_id)
        return mine is not None and (its is None or not its.ha_address or bool(mine.ha_address))

    def what_is_newer(self, known_epoch: int, stored: GroupRecord | None) -> str:
        """What a replica knows that this record does not have. A set that is older than the
        master's is as bad as an older epoch: it may have members that have left since."""
        if known_epoch > self.master_epoch:
            return f"epoch {known_epoch}"
        if stored is None or stored.master_epoch != self.master_epoch:
            return ""
        if stored.sync_state_set_epoch <= self.sync_state_set_epoch:
            return ""
        return f"sync-state set epoch {stored.sync_state_set_epoch}"

    def same_stores(self, other: GroupRecord, found: dict[int, T]) -> dict[int, T]:
        """Those of `found` whose ids belong to the same stores in both records: a controller that
        lost its state may have given some of them again."""
        uids = {
            n: (replica.uid, self.replicas[n].uid)
            for n, replica in other.replicas.items()
            if n in self.replicas
        }
        same = {n for n, (its, mine) in uids.items() if its == mine or not its or not mine}
        return {n: value for n, value in found.items() if n in same}

    @property
    def voters(self) -> frozenset[int]:
        """Replicas that may become members."""
        return frozenset(n for n, replica in self.replicas.items() if not replica.learner)


def changed(record: GroupRecord, **fields: object) -> GroupRecord:
    """The next version of `record`. Only what still concerns a member stays in `admitted`."""
    following = msgspec.structs.replace(record, version=record.version + 1, **fields)
    kept = {n: token for n, token in following.admitted.items() if n in following.sync_state_set}
    if kept != following.admitted:
        following = msgspec.structs.replace(following, admitted=kept)
    following.check()
    assert following.master_epoch >= record.master_epoch
    assert following.sync_state_set_epoch >= record.sync_state_set_epoch
    return following


def next_broker_id(record: GroupRecord) -> int:
    """Ids begin with 1 and are never used again while their replica is registered."""
    return max(record.replicas, default=0) + 1
