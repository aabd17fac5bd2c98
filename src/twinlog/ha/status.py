"""What replication says about itself: values for the log, the status request and the console.

`runtime_info` makes of it the body of request 907 (`remoting/bodies/ha.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from twinlog.remoting.bodies.ha import (
    HAClientDetail,
    HAClientInfo,
    HAConnectionDetail,
    HAConnectionInfo,
    HADeparted,
    HADetail,
    HARuntimeInfo,
)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One connection on the master. `state` is the name of an HAConnectionState."""

    address: str
    state: str
    ack_offset: int
    next_offset: int
    lag_bytes: int
    lag_ms: int
    bytes_per_second: int
    since_ms: int
    is_in_sync: bool
    reason: str
    dialect: str = "classic"
    received_offset: int = -1
    durable_offset: int = -1  # -1: not known, the classic dialect does not say.
    wants_durable: bool = False
    is_slave: bool = True
    """Whether it has reported an offset that counts."""
    ack_age_ms: int = 0


@dataclass(frozen=True, slots=True)
class DepartedStatus:
    """A connection that ended: who, when it came, when it went and why.

    `was_slave` is false for one that said something and was never taken as a slave. Who said
    nothing looked whether the port is open, and is not kept.
    """

    address: str
    since_ms: int
    until_ms: int
    ack_offset: int
    reason: str
    was_slave: bool = True


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The slave's side. Times are wall clock, 0 when it never happened."""

    master_address: str
    state: str
    max_offset: int
    reported_offset: int
    bytes_per_second: int
    since_ms: int
    last_read_ms: int
    last_write_ms: int
    connect_count: int
    last_disconnect_reason: str
    last_disconnect_ms: int
    damage: str
    known_master_end: int = -1


@dataclass(frozen=True, slots=True)
class HAStatus:
    """All of it."""

    is_master: bool
    role: str
    max_offset: int
    confirmed_offset: int
    listen_port: int
    replicas: tuple[ReplicaStatus, ...] = ()
    departed: tuple[DepartedStatus, ...] = ()
    missing: tuple[DepartedStatus, ...] = ()
    """Slaves that left, did not return and were not replaced."""
    client: ClientStatus | None = None
    in_sync_count: int = field(default=0)
    task_count: int = 0
    """Background tasks of the broker: reconnects must not add to them."""
    incomplete: str = ""
    """Why a master takes no sends: its log lacks what was confirmed, or may."""
    known_confirmed: int = -1
    is_in_doubt: bool = False
    needed_slaves: int = 0
    """How many slaves must have a send before it is answered."""


def time_text(wall_ms: int) -> str:
    """UTC to the millisecond, for people."""
    moment = datetime.fromtimestamp(wall_ms / 1000, tz=UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{wall_ms % 1000:03d}Z"


def runtime_info(status: HAStatus) -> HARuntimeInfo:
    """The body of request 907, as far as replication knows it."""
    return HARuntimeInfo(
        master=status.is_master,
        master_commit_log_max_offset=status.max_offset if status.is_master else 0,
        in_sync_slave_nums=status.in_sync_count,
        ha_connection_info=[_connection_info(replica) for replica in status.replicas],
        ha_client_runtime_info=_client_info(status.client),
        twinlog=HADetail(
            role=status.role,
            confirmed_offset=status.confirmed_offset,
            known_confirmed_offset=status.known_confirmed,
            in_doubt=status.is_in_doubt,
            incomplete=status.incomplete,
            needed_slaves=status.needed_slaves,
            task_count=status.task_count,
            departed=[_departed_info(departed) for departed in status.departed],
            missing=[_departed_info(departed) for departed in status.missing],
        ),
    )


def runtime_table(status: HAStatus) -> dict[str, str]:
    """Keys for the broker's runtime information (request 28)."""
    table = {
        "haRole": status.role,
        "haConfirmedOffset": str(status.confirmed_offset),
        "haSlaveCount": str(sum(replica.state == "TRANSFER" for replica in status.replicas)),
        "haInSyncSlaveCount": str(status.in_sync_count),
    }
    if status.known_confirmed >= 0:
        table["haKnownConfirmedOffset"] = str(status.known_confirmed)
    if status.incomplete:
        table["haIncomplete"] = status.incomplete
    if status.is_in_doubt:
        table["haInDoubt"] = "a power loss may have taken bytes that were acknowledged here"
    for index, replica in enumerate(status.replicas):
        table[f"haSlave{index}"] = (
            f"{replica.address} {replica.state} ack={replica.ack_offset}"
            f" received={replica.received_offset} durable={replica.durable_offset}"
            f" behind={replica.lag_bytes} behindMs={replica.lag_ms}"
            f" bytesPerSecond={replica.bytes_per_second} since={time_text(replica.since_ms)}"
            + (f" reason={replica.reason}" if replica.reason else "")
        )
    if left := [departed for departed in status.departed if departed.was_slave]:
        last = left[-1]
        table["haLastDisconnect"] = f"{last.address} {time_text(last.until_ms)} {last.reason}"
    if client := status.client:
        table["haMasterAddress"] = client.master_address
        table["haClientState"] = client.state
        if client.last_disconnect_ms:
            when = time_text(client.last_disconnect_ms)
            table["haClientLastDisconnect"] = f"{when} {client.last_disconnect_reason}"
        if client.damage:
            table["haClientDamage"] = client.damage
    return table


def _connection_info(replica: ReplicaStatus) -> HAConnectionInfo:
    return HAConnectionInfo(
        addr=replica.address,
        slave_ack_offset=replica.ack_offset,
        diff=replica.lag_bytes,
        in_sync=replica.is_in_sync,
        transferred_byte_in_second=replica.bytes_per_second,
        transfer_from_where=replica.next_offset,
        twinlog=HAConnectionDetail(
            state=replica.state,
            dialect=replica.dialect,
            received_offset=replica.received_offset,
            durable_offset=replica.durable_offset,
            counts_durable=replica.wants_durable,
            lag_ms=replica.lag_ms,
            is_slave=replica.is_slave,
            ack_age_ms=replica.ack_age_ms,
            since_ms=replica.since_ms,
            reason=replica.reason,
        ),
    )


def _departed_info(departed: DepartedStatus) -> HADeparted:
    return HADeparted(
        addr=departed.address,
        since_ms=departed.since_ms,
        until_ms=departed.until_ms,
        slave_ack_offset=departed.ack_offset,
        reason=departed.reason,
        was_slave=departed.was_slave,
    )


def _client_info(client: ClientStatus | None) -> HAClientInfo:
    if client is None:
        return HAClientInfo(twinlog=HAClientDetail(state="READY"))
    return HAClientInfo(
        master_addr=client.master_address or None,
        transferred_byte_in_second=client.bytes_per_second,
        max_offset=client.max_offset,
        last_read_timestamp=client.last_read_ms,
        last_write_timestamp=client.last_write_ms,
        activated=client.state == "TRANSFER",
        twinlog=HAClientDetail(
            state=client.state,
            since_ms=client.since_ms,
            connect_count=client.connect_count,
            last_disconnect_ms=client.last_disconnect_ms,
            last_disconnect_reason=client.last_disconnect_reason,
            damage=client.damage,
            known_master_end=client.known_master_end,
        ),
    )
