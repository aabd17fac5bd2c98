"""Replication: is it healthy, and if not, why. One sentence first, then the facts. Pure.

What a group is, and what its brokers say of it: the bodies of request 907. `admin/ha_groups.py`
puts a group together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from twinlog.admin.brokers import first_number
from twinlog.observe.health import (
    DiskFacts,
    Facts,
    GroupFacts,
    Health,
    ReplicaFacts,
    RivalFacts,
    ServerFacts,
    SlaveFacts,
    judge,
    missing_slave,
    time_text,
)
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.runtime.numbers import number_of, number_or_none


class ReplicaState(Struct, frozen=True):
    """One slave, as its master sees it; for Apache's, as the two brokers' offsets tell."""

    address: str
    ack_offset: int
    lag_bytes: int
    is_in_sync: bool
    state: str = ""
    lag_ms: int | None = None
    bytes_per_second: int | None = None
    since_ms: int | None = None
    reason: str = ""
    received_offset: int | None = None
    durable_offset: int | None = None  # None: the classic dialect does not say.
    is_slave: bool = True
    """Whether it has reported an offset: a connection alone is no slave."""
    broker_id: int | None = None
    service: str = ""
    """Where its clients find it; `address` is that of the connection, whose port is nobody's."""

    @property
    def known_address(self) -> str:
        return self.service or self.address


class RemainingReplica(Struct, frozen=True):
    """A slave as it sees itself: what is left when its master is lost."""

    broker_id: int
    address: str
    max_offset: int = 0
    confirmed_offset: int | None = None
    """How far the log is known to be on enough replicas."""
    master_end: int | None = None
    """Where its master's log ended when it last heard of it."""
    master_seen_ms: int = 0
    state: str = ""
    link_reason: str = ""
    damage: str = ""
    is_controlled: bool = False
    error: str = ""


class MetadataState(Struct, frozen=True):
    """How far a twinlog slave is with its master's topics, groups and offsets."""

    address: str
    behind_records: int
    sync_age_ms: int | None
    """Since all four tables were last known to be the master's."""
    problems: tuple[str, ...] = ()


class GroupHAStatus(Struct, frozen=True):
    """One master with its slaves."""

    broker_name: str
    master_address: str | None
    max_offset: int
    confirmed_offset: int | None
    role: str
    replicas: tuple[ReplicaState, ...]
    facts: GroupFacts
    metadata: tuple[MetadataState, ...] = ()
    remaining: tuple[RemainingReplica, ...] = ()
    servers: tuple[ServerFacts, ...] = ()
    """What the group's brokers say of themselves."""

    @property
    def health(self) -> Health:
        """Of the group and of the brokers in it. That a master is down is said once."""
        told = self.master_address if self.facts.master_error else None
        servers = tuple(server for server in self.servers if server.address != told)
        return judge(Facts(servers=servers, groups=(self.facts,)))

    def with_decided(self, problem: str) -> GroupHAStatus:
        """With what its controller finds wrong; empty when nothing is."""
        return replace(self, facts=replace(self.facts, decided=problem))

    @property
    def problems(self) -> tuple[str, ...]:
        return self.health.problems

    @property
    def is_healthy(self) -> bool:
        return self.health.is_healthy

    @property
    def is_master_lost(self) -> bool:
        return self.master_address is None or bool(self.facts.master_error)

    @property
    def sentence(self) -> str:
        """For people."""
        health = self.health
        if not health.is_healthy:
            return health.sentence(self.broker_name)
        count = sum(replica.is_slave for replica in self.replicas)
        if not count:
            return f"{self.broker_name} has no slave: nothing is replicated"
        slaves = "1 slave" if count == 1 else f"{count} slaves"
        return f"{self.broker_name} is healthy: {slaves} in sync with {self.master_address}"


def with_services(status: GroupHAStatus, slaves: Mapping[int, str]) -> GroupHAStatus:
    """Connections of slaves as the brokers that they are: by id in the twin dialect, else by host
    where it leaves no doubt."""
    replicas = tuple(_with_service(replica, status.replicas, slaves) for replica in status.replicas)
    facts = replace(status.facts, replicas=tuple(map(replica_facts, replicas)))
    return replace(status, replicas=replicas, facts=facts)


def _with_service(
    replica: ReplicaState, every: Sequence[ReplicaState], slaves: Mapping[int, str]
) -> ReplicaState:
    connection, _, text = replica.address.partition("/")
    broker_id = number_or_none(text)
    if broker_id is None:
        host = connection.rpartition(":")[0]
        here = [i for i, address in slaves.items() if address.rpartition(":")[0] == host]
        rivals = [r for r in every if r.is_slave and r.address.rpartition(":")[0] == host]
        broker_id = here[0] if replica.is_slave and len(here) == len(rivals) == 1 else None
    if broker_id is None:
        return replica
    return replace(replica, broker_id=broker_id, service=slaves.get(broker_id, ""))


def lost_group(name: str, master: str | None, error: str, slaves: int) -> GroupHAStatus:
    facts = GroupFacts(
        name=name, master_address=master, master_error=error, registered_slaves=slaves
    )
    return GroupHAStatus(name, master, 0, None, "", (), facts)


def slave_facts(status: GroupHAStatus) -> GroupFacts:
    problems = {state.address: state.problems for state in status.metadata}
    slaves = tuple(
        SlaveFacts(
            replica.address,
            is_linked=replica.state in ("TRANSFER", ""),  # Apache's slaves do not say.
            link_reason=replica.link_reason,
            damage=replica.damage,
            metadata_problems=problems.get(replica.address, ()),
        )
        for replica in status.remaining
        if not replica.error
    )
    seen_ms = max((replica.master_seen_ms for replica in status.remaining), default=0)
    seen = time_text(seen_ms) if seen_ms and status.is_master_lost else ""
    is_controlled = any(replica.is_controlled for replica in status.remaining)
    return replace(status.facts, slaves=slaves, last_seen=seen, is_controlled=is_controlled)


def parse_remaining(data: Mapping[str, Any], broker_id: int, address: str) -> RemainingReplica:
    """The body of 907 from a slave."""
    own = data.get("twinlog") or {}
    client = data.get("haClientRuntimeInfo") or {}
    link = client.get("twinlog") or {}
    return RemainingReplica(
        broker_id=broker_id,
        address=address,
        max_offset=number_of(client.get("maxOffset", 0)),
        confirmed_offset=_known_offset(own.get("knownConfirmedOffset")),
        master_end=_known_offset(link.get("knownMasterEnd")),
        # Not when a connection ended: a stopped process accepts them and says nothing.
        master_seen_ms=number_of(client.get("lastReadTimestamp") or 0),
        state=str(link.get("state", "")),
        link_reason=str(link.get("lastDisconnectReason", "") or ""),
        damage=str(link.get("damage", "") or ""),
        is_controlled=bool(own.get("isControlled")),
    )


def parse_server(own: Mapping[str, Any]) -> list[ServerFacts]:
    """What a broker says of itself; nothing from one that does not."""
    try:
        return [msgspec.convert(own["server"], ServerFacts)]
    except (KeyError, msgspec.ValidationError):
        return []


def apache_server(name: str, address: str, runtime: Mapping[str, str]) -> ServerFacts:
    """Of Apache's runtime statistics; its limits are their defaults."""
    ratio = first_number(runtime.get("commitLogDiskRatio", ""))
    return ServerFacts(
        kind="broker", name=name, address=address, disks=(DiskFacts("the log", ratio),)
    )


def parse_metadata(table: Mapping[str, Any], address: str) -> MetadataState:
    """The keys of a slave that begin with `metadata`, as its runtime information has them."""
    prefix = "metadataProblem "
    age = table.get("metadataSyncAgeMs")
    return MetadataState(
        address=address,
        behind_records=number_of(table.get("metadataBehindRecords", 0)),
        sync_age_ms=None if age is None else number_of(age),
        problems=tuple(
            f"does not take the master's {key.removeprefix(prefix)}: {reason}"
            for key, reason in table.items()
            if key.startswith(prefix)
        ),
    )


def parse_ha_status(
    data: Mapping[str, Any], broker_name: str, master: str, registered_slaves: int
) -> GroupHAStatus:
    """The body of 907: RocketMQ 5's members, and ours under `twinlog`."""
    replicas = tuple(parse_replica(item) for item in data.get("haConnectionInfo") or ())
    own = data.get("twinlog") or {}
    left = [item for item in own.get("departed") or () if item.get("wasSlave", True)]
    facts = GroupFacts(
        name=broker_name,
        master_address=master,
        role=str(own.get("role", "")),
        replicas=tuple(replica_facts(replica) for replica in replicas),
        registered_slaves=registered_slaves,
        needed_slaves=number_of(own.get("neededSlaves", 0)),
        departed_reason=str(left[-1].get("reason", "")) if left else None,
        missing=tuple(
            missing_slave(
                str(item.get("addr", "")),
                number_of(item.get("untilMs", 0)),
                str(item.get("reason", "")),
            )
            for item in own.get("missing") or ()
        ),
        # What the master itself was told; with an Apache name server nobody else knows.
        rivals=tuple(
            RivalFacts(MASTER_ID, master, str(rival.get("address")))
            for rival in own.get("rivals") or ()
        ),
        incomplete=str(own.get("incomplete", "") or ""),
    )
    return GroupHAStatus(
        broker_name=broker_name,
        master_address=master,
        max_offset=number_of(data.get("masterCommitLogMaxOffset", 0)),
        confirmed_offset=own.get("confirmedOffset"),
        role=facts.role,
        replicas=replicas,
        facts=facts,
        servers=tuple(parse_server(own)),
    )


def replica_facts(replica: ReplicaState) -> ReplicaFacts:
    return ReplicaFacts(
        replica.known_address,
        replica.is_slave,
        replica.is_in_sync,
        replica.lag_bytes,
        replica.reason,
    )


def parse_replica(item: Mapping[str, Any]) -> ReplicaState:
    own = item.get("twinlog") or {}
    return ReplicaState(
        address=str(item.get("addr", "")),
        ack_offset=number_of(item.get("slaveAckOffset", 0)),
        lag_bytes=number_of(item.get("diff", 0)),
        is_in_sync=bool(item.get("inSync", False)),
        state=str(own.get("state", "")),
        lag_ms=own.get("lagMs"),
        bytes_per_second=item.get("transferredByteInSecond"),
        since_ms=own.get("sinceMs"),
        reason=str(own.get("reason", "") or ""),
        received_offset=_known_offset(own.get("receivedOffset")),
        durable_offset=_known_offset(own.get("durableOffset")),
        is_slave=bool(own.get("isSlave", True)),
    )


def _known_offset(value: Any) -> int | None:
    return None if value is None or number_of(value) < 0 else number_of(value)
