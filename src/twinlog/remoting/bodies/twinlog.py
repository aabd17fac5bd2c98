"""Answers to twinlog's own requests: who a replica is, and what a name server knows."""

from __future__ import annotations

import msgspec

from twinlog.remoting.bodies.common import Body, DataVersion

SLAVE_ROLE = "SLAVE"


class ReplicaInfo(Body):
    """Answer to TWINLOG_REPLICA. The last three only when they were asked for."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_role: str
    store_id: str
    promotion: int
    log_min: int
    log_end: int
    confirmed: int
    master_end: int
    is_linked: bool
    replica_ids: list[int]
    in_sync_replicas: int
    replica_uid: str = ""
    is_controlled: bool = False
    damage: str = ""  # Why it cannot lead before its log is whole, and what to do.
    master_role: str = ""
    master_address: str = ""
    heard_ms: int = 0
    digest: int | None = None
    message_count: int | None = None
    count_end: int | None = None

    @property
    def is_slave(self) -> bool:
        return self.broker_role == SLAVE_ROLE


class RivalInfo(Body):
    """A broker that a name server keeps out of the route: `holder` has its place."""

    broker_name: str = ""
    broker_id: int = 0
    address: str = ""
    holder: str = ""


class BrokerInfo(Body):
    """Answer of a broker to TWINLOG_INFO: who it is (`broker_id` as text, as in headers), which of
    its processes answers, and the versions of its tables."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: str = ""
    twinlog: str = ""
    broker_role: str = ""
    ha_address: str = ""
    idempotent_sends: bool = False
    process: str = msgspec.field(default="", name="run")
    topics_version: DataVersion | None = None
    groups_version: DataVersion | None = None


class NameServerInfo(Body):
    """Answer of a name server to TWINLOG_INFO, next to how its tasks fare."""

    rivals: list[RivalInfo] = msgspec.field(default_factory=list)
    controller: str = ""
