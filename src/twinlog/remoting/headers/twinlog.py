"""Between twinlogs: 10001 to 10008. Who asks says who it is, a client nothing."""

from __future__ import annotations

from twinlog.remoting.headers.base import Header, Long


class TwinlogInfoRequestHeader(Header):
    """10001."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: str | None = None
    ha_address: str | None = None
    address: str | None = None


class TwinlogOffsetsRequestHeader(Header):
    """10002."""

    cluster_name: str | None = None
    broker_name: str | None = None


class TwinlogReplicaRequestHeader(Header):
    """10003. The first five are a peer's; `count_from` and the digest want the log to be read."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: str | None = None
    address: str | None = None
    promotion: Long = 0
    count_from: Long | None = None
    digest_start: Long = 0
    digest_end: Long | None = None


class TwinlogPromoteRequestHeader(Header):
    """10004."""

    broker_name: str
    broker_role: str
    log_end: Long
    promotion: Long = 0
    compared_end: Long = 0


class TwinlogRelayRequestHeader(Header):
    """10005. The body is a frame as a client sent it to another broker of the group."""

    client_address: str = ""


class TwinlogLogRangeRequestHeader(Header):
    """10006 and 10007. The store id says of which log."""

    store_id: str = ""
    offset: Long = -1
    size: Long = 0


class TwinlogScrubRequestHeader(Header):
    """10008. `begin` starts a pass now."""

    begin: bool = False
