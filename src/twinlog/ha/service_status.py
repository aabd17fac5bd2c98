"""The status of an HAService, put together when somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from twinlog.ha.acks import AckTable, ReplicaAck
from twinlog.ha.client import HAClient
from twinlog.ha.connection import HAConnection
from twinlog.ha.followers import Followers
from twinlog.ha.group_replication import GroupReplication
from twinlog.ha.group_transfer import GroupTransferService
from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.settings import HASettings
from twinlog.ha.status import DepartedStatus, HAStatus, ReplicaStatus
from twinlog.ha.twin.catch_up import MasterCatchUp
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.observe.health import why_not_in_sync
from twinlog.runtime.clock import Clock
from twinlog.runtime.watermark import Watermark


class Service(Protocol):
    """The HAService."""

    settings: HASettings
    acks: AckTable
    group_transfer: GroupTransferService
    confirmed: Watermark
    listen_port: int
    client: HAClient | None
    followers: Followers
    group: GroupReplication | None
    catch_up: MasterCatchUp | None
    twin: TwinIdentity | None

    @property
    def connections(self) -> Sequence[HAConnection]: ...


def status_of(
    service: Service,
    log: ReplicaLog,
    clock: Clock,
    departed: Iterable[DepartedStatus],
    task_count: int,
) -> HAStatus:
    """The truth of this moment."""
    replicas = tuple(_replica(service, log, clock, c) for c in service.connections)
    twin = service.twin
    return HAStatus(
        is_master=not service.settings.is_slave,
        role=service.settings.role,
        max_offset=log.max_offset,
        confirmed_offset=service.confirmed.value,
        listen_port=service.listen_port,
        replicas=replicas,
        departed=tuple(departed),
        missing=_missing(service),
        client=service.client.status() if service.client is not None else None,
        in_sync_count=sum(replica.is_in_sync for replica in replicas),
        task_count=task_count,
        incomplete=service.catch_up.reason if service.catch_up is not None else "",
        known_confirmed=twin.mark.value if twin is not None else -1,
        is_in_doubt=twin is not None and twin.mark.is_in_doubt,
        needed_slaves=service.group_transfer.ack_count if service.settings.is_sync else 0,
    )


def _missing(service: Service) -> tuple[DepartedStatus, ...]:
    """In a controlled group it is the controller who knows its replicas."""
    if service.settings.is_slave or service.group is not None:
        return ()
    return service.followers.missing([replica.name for replica in service.acks.replicas])


def _replica(
    service: Service, log: ReplicaLog, clock: Clock, connection: HAConnection
) -> ReplicaStatus:
    core = connection.core
    now_ms = clock.monotonic_ms()
    ack = ack_of(service, connection)
    lag_bytes = max(0, log.max_offset - core.ack_offset) if ack else log.max_offset
    ack_age_ms = now_ms - ack.acked_ms if ack else 0
    why = ""
    if ack:
        why = why_not_in_sync(
            lag_bytes,
            now_ms - ack.moved_ms,
            service.settings.sync_limits,
            unheard_ms=ack_age_ms,
            report_ms=_report_ms(service.settings, connection),
        )
    return ReplicaStatus(
        address=connection.address,
        state=core.state.name,
        ack_offset=core.ack_offset,
        next_offset=core.next_offset,
        lag_bytes=lag_bytes,
        lag_ms=now_ms - ack.caught_up_ms if ack and lag_bytes else 0,
        bytes_per_second=connection.flow.rate(now_ms),
        since_ms=connection.since_ms,
        is_in_sync=ack is not None and not why,
        reason=core.reason or why,
        is_slave=ack is not None,
        ack_age_ms=ack_age_ms,
        dialect="twin" if connection.is_twin else "classic",
        received_offset=core.received_offset,
        durable_offset=core.durable_offset,
        wants_durable=core.is_durable,
    )


def _report_ms(settings: HASettings, connection: HAConnection) -> int:
    """How often a slave reports at least: as it said, else as this broker would."""
    hello = connection.hello
    said_ms = settings.send_heartbeat_interval_ms if hello is None else hello.report_ms
    return min(said_ms, settings.housekeeping_interval_ms)


def ack_of(service: Service, connection: HAConnection) -> ReplicaAck | None:
    for replica in service.acks.replicas:
        if replica.name == connection.address:
            return replica
    return None
