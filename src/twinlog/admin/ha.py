"""Replication: is it healthy, and if not, why. One sentence first, then the facts.

A twinlog broker answers request 907 with everything; of an Apache 4.9 broker the offsets in its
runtime statistics are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twinlog.admin.brokers import broker_runtime
from twinlog.admin.client import Admin
from twinlog.client.errors import ClientError, RequestCodeNotSupportedError
from twinlog.client.net.calls import json_object
from twinlog.client.net.routes import BrokerData
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.numbers import number_of


@dataclass(frozen=True, slots=True)
class ReplicaState:
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


@dataclass(frozen=True, slots=True)
class MetadataState:
    """How far a twinlog slave is with its master's topics, groups and offsets."""

    address: str
    behind_records: int
    sync_age_ms: int | None
    """Since all four tables were last known to be the master's."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupHAStatus:
    """One master with its slaves."""

    broker_name: str
    master_address: str | None
    max_offset: int
    confirmed_offset: int | None
    role: str
    replicas: tuple[ReplicaState, ...]
    problems: tuple[str, ...]
    metadata: tuple[MetadataState, ...] = ()

    @property
    def is_healthy(self) -> bool:
        return not self.problems

    @property
    def sentence(self) -> str:
        """For people."""
        if self.problems:
            return f"{self.broker_name} is not healthy: {'; '.join(self.problems)}"
        if not self.replicas:
            return f"{self.broker_name} has no slave: nothing is replicated"
        count = len(self.replicas)
        slaves = "1 slave" if count == 1 else f"{count} slaves"
        return f"{self.broker_name} is healthy: {slaves} in sync with {self.master_address}"


async def ha_status(admin: Admin, *, cluster: str | None = None) -> list[GroupHAStatus]:
    """The replication of every group of brokers."""
    info = await admin.cluster()
    rivals = await _rivals(admin)
    return [
        _with_rivals(await _group_status(admin, info.brokers[name]), rivals)
        for name in info.names(cluster)
    ]


async def _rivals(admin: Admin) -> list[Mapping[str, Any]]:
    """Brokers that twinlog name servers keep out of the route because another has their place."""
    found: list[Mapping[str, Any]] = []
    for address in admin.instance.name_servers.addresses:
        try:
            answer = await admin.ask(address, RequestCode.TWINLOG_INFO, action="name server")
            data = json_object(answer)
        except ClientError:
            continue  # An Apache name server, or one that does not answer.
        found += [rival for rival in data.get("rivals") or () if isinstance(rival, Mapping)]
    return found


def _with_rivals(status: GroupHAStatus, rivals: Sequence[Mapping[str, Any]]) -> GroupHAStatus:
    """Two brokers with one name and id: whoever has not the place still takes what it is sent."""
    seen = dict.fromkeys(
        _rival_text(rival.get("brokerId"), rival.get("holder"), rival.get("address"))
        for rival in rivals
        if rival.get("brokerName") == status.broker_name
    )
    return replace(status, problems=tuple(dict.fromkeys((*seen, *status.problems))))


def _rival_text(broker_id: object, holder: object, rival: object) -> str:
    kind = "masters" if broker_id == MASTER_ID else f"slaves with id {broker_id}"
    return f"two {kind}: {holder} is in the route, {rival} is not: stop one of the two"


async def _group_status(admin: Admin, broker: BrokerData) -> GroupHAStatus:
    master = broker.master_address
    slaves = {i: a for i, a in broker.addresses.items() if i != MASTER_ID}
    if master is None:
        problem = "no master is registered" + (
            f", {len(slaves)} slave(s) serve reads" if slaves else ""
        )
        return GroupHAStatus(broker.name, None, 0, None, "", (), (problem,))
    try:
        answer = await admin.ask(master, RequestCode.GET_BROKER_HA_STATUS, action="HA status")
    except RequestCodeNotSupportedError:
        status = await _compare_offsets(admin, broker, master, slaves)
    except ClientError as error:
        return GroupHAStatus(
            broker.name, master, 0, None, "", (), (f"the master does not answer: {error}",)
        )
    else:
        status = parse_ha_status(json_object(answer), broker.name, master, len(slaves))
    return await _with_metadata(admin, status, slaves)


async def _with_metadata(
    admin: Admin, status: GroupHAStatus, slaves: Mapping[int, str]
) -> GroupHAStatus:
    """What the slaves say of the master's tables; Apache's say nothing."""
    found = []
    for address in slaves.values():
        try:
            answer = await admin.ask(address, RequestCode.GET_BROKER_HA_STATUS, action="HA status")
        except ClientError:
            continue  # An Apache slave, or one that is gone: the master knows how far it is.
        own = json_object(answer).get("twinlog") or {}
        found.append(parse_metadata(own.get("metadata") or {}, address))
    return replace(status, metadata=tuple(found))


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
    problems = [
        f"slave {r.address} {r.reason or f'is {r.lag_bytes} bytes behind'}"
        for r in replicas
        if not r.is_in_sync
    ]
    if not replicas:
        departed = own.get("departed") or ()
        last = f", the last one left: {departed[-1].get('reason', '')}" if departed else ""
        expected = registered_slaves or departed or own.get("role") == "SYNC_MASTER"
        if expected:
            problems.append(f"no slave is connected{last}")
    # What the master itself was told; with an Apache name server nobody else knows.
    problems += dict.fromkeys(
        _rival_text(MASTER_ID, master, rival.get("address")) for rival in own.get("rivals") or ()
    )
    return GroupHAStatus(
        broker_name=broker_name,
        master_address=master,
        max_offset=number_of(data.get("masterCommitLogMaxOffset", 0)),
        confirmed_offset=own.get("confirmedOffset"),
        role=str(own.get("role", "")),
        replicas=replicas,
        problems=tuple(problems),
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
    )


def _known_offset(value: Any) -> int | None:
    return None if value is None or number_of(value) < 0 else number_of(value)


async def _compare_offsets(
    admin: Admin, broker: BrokerData, master: str, slaves: Mapping[int, str]
) -> GroupHAStatus:
    """An Apache master does not tell: its end and its slaves' ends do."""
    runtime = await broker_runtime(admin, master)
    end = number_of(runtime.get("commitLogMaxOffset", 0))
    replicas, problems = [], []
    for address in slaves.values():
        try:
            slave = await broker_runtime(admin, address)
        except ClientError as error:
            problems.append(f"slave {address} does not answer: {error}")
            continue
        # The slave was asked later, so it may be ahead of what the master said.
        lag = max(0, end - number_of(slave.get("commitLogMaxOffset", 0)))
        replicas.append(ReplicaState(address, end - lag, lag, is_in_sync=lag == 0))
        if lag:
            problems.append(f"slave {address} is {lag} bytes behind")
    return GroupHAStatus(broker.name, master, end, None, "", tuple(replicas), tuple(problems))
