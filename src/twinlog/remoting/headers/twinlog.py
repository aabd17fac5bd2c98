"""Between twinlogs: 10001, 10002. Who asks says who it is; a client that asks says nothing."""

from __future__ import annotations

from twinlog.remoting.headers.base import Header


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
