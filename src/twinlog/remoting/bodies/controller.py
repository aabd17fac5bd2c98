"""Bodies of RocketMQ 5's controller requests."""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.remoting.bodies.common import Body


class SyncStateSet(Body):
    """1001, 1003, 1004, 1008."""

    sync_state_set: list[int] = msgspec.field(default_factory=list)
    sync_state_set_epoch: int = 0


class BrokerMemberGroup(Body):
    """Addresses by controller id."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)


class ElectMasterResponseBody(Body):
    """1002."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] = msgspec.field(default_factory=list)


class ReplicaIdentity(Body):
    broker_name: str
    broker_id: int
    broker_address: str
    alive: bool = False


class ReplicasInfo(Body):
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync_replicas: list[ReplicaIdentity] = msgspec.field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = msgspec.field(default_factory=list)


class BrokerReplicasInfo(Body):
    """1006, by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = msgspec.field(default_factory=dict)


class EpochEntry(Body):
    epoch: int
    start_offset: int
    end_offset: int = 2**63 - 1


class EpochEntryCache(Body):
    """1007, answered by a broker."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epoch_list: list[EpochEntry] = msgspec.field(default_factory=list)
    max_offset: int = 0


class ReplicaFacts(Body):
    """One replica as its controller sees it. Numbers of a replica that was never heard are None."""

    broker_id: int
    address: str
    ha_address: str = ""
    is_member: bool = False
    is_learner: bool = False
    is_alive: bool = False
    is_closed: bool = False
    """Its connection to the controller closed: the process ended."""
    is_doubtful: bool = False
    is_writable: bool = True
    priority: int = 0
    heard_ms: int | None = None
    """Since its last heartbeat."""
    last_epoch: int | None = None
    end: int | None = None
    confirmed: int | None = None
    link_ms: int | None = None
    """Since it heard its master."""
    clock: str = ""
    """What is wrong with its clock."""


class GroupFacts(Body):
    """One group: what is decided, and what its controller knows besides (10020)."""

    cluster: str
    broker_name: str
    master_broker_id: int | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    election: str = ""
    broker_role: str = ""
    flush_disk_type: str = ""
    min_in_sync_replicas: int = 1
    total_replicas: int = 0
    frozen: str = ""
    waiting: str = ""
    """Why no master is elected."""
    hand_over_to: int | None = None
    lease_left_ms: int = 0
    replicas: list[ReplicaFacts] = msgspec.field(default_factory=list)


class ControllerGroups(Body):
    """Answer to 10020."""

    groups: list[GroupFacts] = msgspec.field(default_factory=list)


UNREGISTERED = "it unregistered"
"""Reason of the event `broker-left` when a broker has said so itself."""


class Events(Body):
    """Answer to 10023, oldest first."""

    events: list[dict[str, Any]] = msgspec.field(default_factory=list)
