"""Answer to GET_BROKER_HA_STATUS (907): RocketMQ 5's HARuntimeInfo, and ours under `twinlog`.

Brokers of RocketMQ 5 leave out what is ours, and 4.9's do not know the request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.remoting.bodies.common import Body


class HAConnectionDetail(Body):
    """What a master of ours knows of a connection besides."""

    state: str = ""
    dialect: str = ""
    received_offset: int = -1
    durable_offset: int = -1  # -1: not known, the classic dialect does not say.
    counts_durable: bool = False
    lag_ms: int | None = None
    is_slave: bool = True
    ack_age_ms: int | None = None
    since_ms: int | None = None
    reason: str = ""


class HAConnectionInfo(Body):
    """One slave, as its master sees it."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int | None = None
    transfer_from_where: int = 0
    twinlog: HAConnectionDetail = msgspec.field(default_factory=HAConnectionDetail)


class HADeparted(Body):
    """A connection that ended."""

    addr: str = ""
    since_ms: int = 0
    until_ms: int = 0
    slave_ack_offset: int = 0
    reason: str = ""
    was_slave: bool = True


class HAClientDetail(Body):
    """What a slave of ours knows of its link besides."""

    state: str = ""
    since_ms: int = 0
    connect_count: int = 0
    last_disconnect_ms: int = 0
    last_disconnect_reason: str = ""
    damage: str = ""
    known_master_end: int = -1


class HAClientInfo(Body):
    """The slave's side."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False
    twinlog: HAClientDetail = msgspec.field(default_factory=HAClientDetail)


class HARival(Body):
    """A living broker that claims the name and id of the one that answers."""

    address: str = ""
    namesrv: str = ""
    in_route: bool = False


class HAMarks(Body):
    """How far each stage of a replica's own log is."""

    min: int = -1
    appended: int = -1
    flushed: int = -1
    dispatched: int = -1


class HADetail(Body):
    """What a broker of ours says besides."""

    role: str = ""
    confirmed_offset: int | None = None
    known_confirmed_offset: int = -1
    in_doubt: bool = False
    incomplete: str = ""
    needed_slaves: int = 0
    task_count: int = 0
    departed: list[HADeparted] = msgspec.field(default_factory=list)
    missing: list[HADeparted] = msgspec.field(default_factory=list)
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    failures: dict[str, str] = msgspec.field(default_factory=dict)
    rivals: list[HARival] = msgspec.field(default_factory=list)
    is_controlled: bool = False
    marks: HAMarks = msgspec.field(default_factory=HAMarks)
    server: dict[str, Any] | None = None  # Its ServerFacts, from which its health is judged.


class HARuntimeInfo(Body):
    """All of it."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: list[HAConnectionInfo] = msgspec.field(default_factory=list)
    ha_client_runtime_info: HAClientInfo = msgspec.field(default_factory=HAClientInfo)
    twinlog: HADetail = msgspec.field(default_factory=HADetail)
