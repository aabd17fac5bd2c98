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
from twinlog.remoting.bodies.ha import HAConnectionInfo, HADetail, HARuntimeInfo
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


def remaining_replica(info: HARuntimeInfo, broker_id: int, address: str) -> RemainingReplica:
    """What a slave says."""
    own, client = info.twinlog, info.ha_client_runtime_info
    link = client.twinlog
    return RemainingReplica(
        broker_id=broker_id,
        address=address,
        max_offset=client.max_offset,
        confirmed_offset=known_offset(own.known_confirmed_offset),
        master_end=known_offset(link.known_master_end),
        # Not when a connection ended: a stopped process accepts them and says nothing.
        master_seen_ms=client.last_read_timestamp,
        state=link.state,
        link_reason=link.last_disconnect_reason,
        damage=link.damage,
        is_controlled=own.is_controlled,
    )


def server_facts(own: HADetail) -> ServerFacts | None:
    """What a broker says of itself; None of one that does not."""
    try:
        return msgspec.convert(own.server, ServerFacts)
    except msgspec.ValidationError:
        return None


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


def group_status(
    info: HARuntimeInfo, broker_name: str, master: str, registered_slaves: int
) -> GroupHAStatus:
    """What a master says."""
    replicas = tuple(map(replica_state, info.ha_connection_info))
    own = info.twinlog
    left = [departed.reason for departed in own.departed if departed.was_slave]
    server = server_facts(own)
    facts = GroupFacts(
        name=broker_name,
        master_address=master,
        role=own.role,
        replicas=tuple(replica_facts(replica) for replica in replicas),
        registered_slaves=registered_slaves,
        needed_slaves=own.needed_slaves,
        departed_reason=left[-1] if left else None,
        missing=tuple(missing_slave(gone.addr, gone.until_ms, gone.reason) for gone in own.missing),
        # What the master itself was told; with an Apache name server nobody else knows.
        rivals=tuple(
            RivalFacts(MASTER_ID, master, rival.address, rival.namesrv) for rival in own.rivals
        ),
        incomplete=own.incomplete,
    )
    return GroupHAStatus(
        broker_name=broker_name,
        master_address=master,
        max_offset=info.master_commit_log_max_offset,
        confirmed_offset=own.confirmed_offset,
        role=facts.role,
        replicas=replicas,
        facts=facts,
        servers=() if server is None else (server,),
    )


def replica_facts(replica: ReplicaState) -> ReplicaFacts:
    return ReplicaFacts(
        replica.known_address,
        replica.is_slave,
        replica.is_in_sync,
        replica.lag_bytes,
        replica.reason,
    )


def replica_state(info: HAConnectionInfo) -> ReplicaState:
    own = info.twinlog
    return ReplicaState(
        address=info.addr,
        ack_offset=info.slave_ack_offset,
        lag_bytes=info.diff,
        is_in_sync=info.in_sync,
        state=own.state,
        lag_ms=own.lag_ms,
        bytes_per_second=info.transferred_byte_in_second,
        since_ms=own.since_ms,
        reason=own.reason,
        received_offset=known_offset(own.received_offset),
        durable_offset=known_offset(own.durable_offset),
        is_slave=own.is_slave,
    )


def known_offset(value: int | None) -> int | None:
    """What a broker does not know is -1 in its answers."""
    return None if value is None or value < 0 else value
