"""Bodies of RocketMQ 5's controller requests."""

from __future__ import annotations

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
