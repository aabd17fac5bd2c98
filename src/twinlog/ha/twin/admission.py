"""Why a slave that has said who it is may not join this broker."""

from __future__ import annotations

from collections.abc import Iterable

from twinlog.ha.connection import HAConnection
from twinlog.ha.group_replication import GroupReplication
from twinlog.ha.settings import HASettings
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.ha.twin.wire import ErrorCode, Hello


def hello_refusal(
    connection: HAConnection,
    settings: HASettings,
    twin: TwinIdentity,
    group: GroupReplication | None,
) -> tuple[ErrorCode, str] | None:
    """Role, TLS, credentials, and in a controlled group the epoch; None: it may."""
    if settings.is_slave:
        return ErrorCode.NOT_A_MASTER, "this broker is a slave: replicate from its master"
    if settings.tls is not None and not connection.is_tls:
        return ErrorCode.TLS_WANTED, (
            "this master takes twinlog slaves over TLS only: set twinlogHATLS=true there"
        )
    is_open = not (connection.is_tls or connection.is_local)
    if is_open and (reason := twin.open_refusal(connection.host)):
        return ErrorCode.NO_CREDENTIALS, reason
    if group is None:
        return None
    hello = connection.hello
    assert hello is not None
    return group.hello_refusal(hello)


def with_same_id(
    connection: HAConnection, connections: Iterable[HAConnection]
) -> list[tuple[HAConnection, Hello]]:
    """Other connections whose slaves have proved that they have the id of this one."""
    mine = connection.hello
    assert mine is not None
    return [
        (other, theirs)
        for other in connections
        if other is not connection
        and (theirs := other.hello) is not None
        and theirs.replica_id == mine.replica_id
        and other.core.is_proved
    ]
