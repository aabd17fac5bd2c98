"""Every replica of every group with its marks, asked at the same time and within a deadline.

Each is asked for itself, so that what is left of a group without a master is seen too, and one
that does not answer holds up nobody. `admin/ha_groups.py` puts their answers together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twinlog.admin.brokers import broker_runtime
from twinlog.admin.client import Admin, ClusterInfo
from twinlog.admin.ha import (
    GroupHAStatus,
    MetadataState,
    RemainingReplica,
    ReplicaState,
    apache_server,
    group_status,
    known_offset,
    parse_metadata,
    remaining_replica,
    server_facts,
)
from twinlog.client.errors import ClientError, RequestCodeNotSupportedError
from twinlog.client.net.answers import body_as
from twinlog.observe.health import ServerFacts
from twinlog.remoting.bodies.ha import HARuntimeInfo
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.numbers import number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """What one replica says of itself, or why it said nothing. None: it does not say."""

    group: str
    broker_id: int
    address: str
    error: str = ""
    role: str = ""
    min_offset: int | None = None
    appended: int | None = None
    flushed: int | None = None
    confirmed: int | None = None
    dispatched: int | None = None
    link_reason: str = ""  # A slave's: why its last connection to the master ended.
    status: GroupHAStatus | None = None  # A master's: the group as it sees it.
    remaining: RemainingReplica | None = None  # A slave as it sees itself.
    metadata: MetadataState | None = None
    server: ServerFacts | None = None
    is_twinlog: bool = True

    @property
    def is_reached(self) -> bool:
        return not self.error

    @property
    def is_master(self) -> bool:
        return self.is_reached and self.broker_id == MASTER_ID

    @property
    def slaves(self) -> tuple[ReplicaState, ...]:
        """A master's slaves; whoever only looked at its HA port is none."""
        replicas = self.status.replicas if self.status is not None else ()
        return tuple(replica for replica in replicas if replica.is_slave)


async def all_replicas(
    admin: Admin, info: ClusterInfo, *, timeout_ms: float, names: Iterable[str] | None = None
) -> list[ReplicaFacts]:
    """Every registered replica of these groups, or of all, by group and id."""
    places = [
        (name, broker_id, address)
        for name in (info.names() if names is None else names)
        for broker_id, address in sorted(info.brokers[name].broker_addrs.items())
    ]
    return list(
        await asyncio.gather(
            *(ask_replica(admin, *place, timeout_ms=timeout_ms) for place in places)
        )
    )


async def ask_replica(
    admin: Admin, group: str, broker_id: int, address: str, *, timeout_ms: float
) -> ReplicaFacts:
    """One replica; never raises for one that is away, and never takes longer than told."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await _ask(admin, group, broker_id, address, timeout_ms)
    except (ClientError, TimeoutError) as error:
        text = str(error) or f"no answer within {timeout_ms / 1000:g} s"
        return ReplicaFacts(group=group, broker_id=broker_id, address=address, error=text)


async def _ask(
    admin: Admin, group: str, broker_id: int, address: str, timeout_ms: float
) -> ReplicaFacts:
    try:
        answer = await admin.ask(
            address, RequestCode.GET_BROKER_HA_STATUS, action="HA status", timeout_ms=timeout_ms
        )
    except RequestCodeNotSupportedError:
        runtime = await broker_runtime(admin, address, int(timeout_ms))
        end = number_of(runtime.get("commitLogMaxOffset", 0))
        behind = number_of(runtime.get("dispatchBehindBytes", 0))
        return ReplicaFacts(
            group=group, broker_id=broker_id, address=address, is_twinlog=False,
            role="SLAVE" if broker_id != MASTER_ID else "MASTER", appended=end,
            min_offset=number_of(runtime.get("commitLogMinOffset", 0)), dispatched=end - behind,
            remaining=None if broker_id == MASTER_ID else RemainingReplica(broker_id, address, end),
            server=apache_server(f"{group}:{broker_id}", address, runtime),
        )  # fmt: skip
    return facts_of(body_as(answer, HARuntimeInfo), group, broker_id, address)


def facts_of(info: HARuntimeInfo, group: str, broker_id: int, address: str) -> ReplicaFacts:
    """What a twinlog broker says of itself."""
    own, is_master = info.twinlog, info.master
    link, marks = info.ha_client_runtime_info.twinlog, own.marks
    confirmed = own.confirmed_offset if is_master else own.known_confirmed_offset
    return ReplicaFacts(
        group=group,
        broker_id=broker_id,
        address=address,
        role=own.role,
        min_offset=known_offset(marks.min),
        appended=known_offset(marks.appended),
        flushed=known_offset(marks.flushed),
        confirmed=known_offset(confirmed),
        dispatched=known_offset(marks.dispatched),
        link_reason="" if is_master else link.last_disconnect_reason,
        status=group_status(info, group, address, 0) if is_master else None,
        remaining=None if is_master else remaining_replica(info, broker_id, address),
        metadata=None if is_master else parse_metadata(own.metadata, address),
        server=server_facts(own),
    )


def slave_of(
    master: ReplicaFacts, slave: ReplicaFacts, slaves: Sequence[ReplicaFacts]
) -> ReplicaState | None:
    """The master's view of a slave. A twin's address ends in its id; others are known by host."""
    for state in master.slaves:
        if state.address.endswith(f"/{slave.broker_id}"):
            return state
    host = slave.address.rpartition(":")[0]
    unnamed = [s for s in master.slaves if "/" not in s.address]
    same_host = [s for s in unnamed if s.address.rpartition(":")[0] == host]
    rivals = [s for s in slaves if s.address.rpartition(":")[0] == host]
    return same_host[0] if len(same_host) == 1 and len(rivals) == 1 else None
