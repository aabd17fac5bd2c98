"""Groups of brokers, put together of what each of their replicas says.

`group_of` is where the command line and the console get the facts that `observe/health.py` judges.
Of an Apache 4.9 master, which says nothing about its slaves, the ends of the logs are compared.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from twinlog.admin.client import Admin
from twinlog.admin.failover import STATUS_TIMEOUT_MS
from twinlog.admin.ha import (
    GroupHAStatus,
    RemainingReplica,
    ReplicaState,
    lost_group,
    replica_facts,
    slave_facts,
    with_services,
)
from twinlog.admin.replicas import ReplicaFacts, all_replicas
from twinlog.client.errors import ClientError
from twinlog.client.net.answers import body_as
from twinlog.observe.health import GroupFacts, RivalFacts, ServerFacts
from twinlog.remoting.bodies.route import MASTER_ID
from twinlog.remoting.bodies.twinlog import NameServerInfo, RivalInfo
from twinlog.remoting.codes import RequestCode


async def ha_status(
    admin: Admin,
    *,
    cluster: str | None = None,
    without: Collection[str] = (),
    controlled: Collection[str] = (),
) -> list[GroupHAStatus]:
    """The replication of every group of brokers but `without`, all asked at the same time. Brokers
    of `controlled` groups have less time: their controller says what matters."""
    info = await admin.cluster()
    names = [name for name in info.names(cluster) if name not in without]
    if not names:
        return []
    rivals, answered = await _rivals(admin)
    timeout_ms = admin.instance.settings.request_timeout_ms
    quick_ms = min(timeout_ms, STATUS_TIMEOUT_MS)
    asked = [
        all_replicas(admin, info, timeout_ms=limit_ms, names=some)
        for limit_ms, some in (
            (timeout_ms, [name for name in names if name not in controlled]),
            (quick_ms, [name for name in names if name in controlled]),
        )
    ]
    found = list(itertools.chain(*await asyncio.gather(*asked)))
    return [
        _with_rivals(group_of(name, [f for f in found if f.group == name]), rivals, answered)
        for name in names
    ]


async def _rivals(admin: Admin) -> tuple[list[RivalInfo], set[str]]:
    """Brokers that twinlog name servers keep out of the route because another has their place, and
    the name servers that said so."""
    found: list[RivalInfo] = []
    answered: set[str] = set()
    for address in admin.instance.name_servers.addresses:
        try:
            answer = await admin.ask(address, RequestCode.TWINLOG_INFO, action="name server")
            found += body_as(answer, NameServerInfo).rivals
        except ClientError:
            continue  # An Apache name server, or one that does not answer.
        answered.add(address)
    return found, answered


def _with_rivals(
    status: GroupHAStatus, rivals: Iterable[RivalInfo], answered: Collection[str]
) -> GroupHAStatus:
    """Two brokers with one name and id: whoever has not the place still takes what it is sent. What
    a broker has heard of a name server that `answered` may be half a minute old."""
    seen = tuple(
        RivalFacts(rival.broker_id, rival.holder, rival.address)
        for rival in rivals
        if rival.broker_name == status.broker_name
    )
    heard = (
        replace(rival, namesrv="") for rival in status.facts.rivals if rival.namesrv not in answered
    )
    both = tuple(dict.fromkeys((*seen, *heard)))
    return replace(status, facts=replace(status.facts, rivals=both))


def group_of(name: str, members: Sequence[ReplicaFacts]) -> GroupHAStatus:
    """A group out of what each registered replica of it said, or did not."""
    slaves = [facts for facts in members if facts.broker_id != MASTER_ID]
    status = replace(
        _as_its_master_says(name, members, slaves),
        metadata=tuple(facts.metadata for facts in slaves if facts.metadata is not None),
        remaining=tuple(map(_remaining, slaves)),
        servers=tuple(map(_server, members)),
    )
    return replace(status, facts=slave_facts(status))


def _as_its_master_says(
    name: str, members: Sequence[ReplicaFacts], slaves: Sequence[ReplicaFacts]
) -> GroupHAStatus:
    master = next((facts for facts in members if facts.broker_id == MASTER_ID), None)
    if master is None:
        return lost_group(name, None, "", len(slaves))
    if master.error:
        return lost_group(name, master.address, master.error, len(slaves))
    if not master.is_twinlog:
        return _compared(master, slaves)
    if master.status is None:  # It does not lead: in the middle of a change of roles, perhaps.
        return lost_group(name, master.address, "", len(slaves))
    facts = replace(master.status.facts, registered_slaves=len(slaves))
    services = {facts.broker_id: facts.address for facts in slaves}
    return with_services(replace(master.status, facts=facts), services)


def _compared(master: ReplicaFacts, slaves: Sequence[ReplicaFacts]) -> GroupHAStatus:
    """An Apache master does not tell: its end and its slaves' ends do."""
    end = master.appended or 0
    replicas = tuple(
        _compared_slave(facts, end) for facts in slaves if facts.is_reached
    )  # Others are missing among the registered slaves.
    group = GroupFacts(
        name=master.group,
        master_address=master.address,
        replicas=tuple(map(replica_facts, replicas)),
        registered_slaves=len(slaves),
    )
    return GroupHAStatus(master.group, master.address, end, None, "", replicas, group)


def _compared_slave(facts: ReplicaFacts, end: int) -> ReplicaState:
    # The slave may have been asked later, and be ahead of what the master said.
    lag = max(0, end - (facts.appended or 0))
    return ReplicaState(
        facts.address, end - lag, lag, is_in_sync=lag == 0, broker_id=facts.broker_id,
        service=facts.address,
    )  # fmt: skip


def _remaining(facts: ReplicaFacts) -> RemainingReplica:
    return facts.remaining or RemainingReplica(facts.broker_id, facts.address, error=facts.error)


def _server(facts: ReplicaFacts) -> ServerFacts:
    name = f"{facts.group}:{facts.broker_id}"
    if facts.error:
        return ServerFacts(
            kind="broker", name=name, address=facts.address, error=facts.error,
            is_slave=facts.broker_id != MASTER_ID,
        )  # fmt: skip
    return facts.server or ServerFacts(kind="broker", name=name, address=facts.address)
