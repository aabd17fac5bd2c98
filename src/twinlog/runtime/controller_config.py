"""The keys of a `controller.conf`, typed. Corresponds to RocketMQ 5's ControllerConfig."""

from __future__ import annotations

import os
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from twinlog.runtime.config_format import ConfigValueError, properties_text
from twinlog.runtime.log_config import LogFormat, LogLevel
from twinlog.runtime.tls import TlsConfig

_Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
_Positive: TypeAlias = Annotated[int, Meta(ge=1)]
_Natural: TypeAlias = Annotated[int, Meta(ge=0)]
CONTROLLER_PORT = 9878
LEASE_MS_MIN = 500


class ControllerConfig(msgspec.Struct, kw_only=True):
    """Everything a controller can be told. Made from a file by `load_controller_config`."""

    rocketmq_home: str | None = None
    bind_address: str = "127.0.0.1"
    listen_port: _Port = CONTROLLER_PORT
    controller_store_path: str = os.path.join(os.path.expanduser("~"), "DledgerController")
    controller_d_leger_group: str = "default-group"
    controller_d_leger_peers: str | None = None
    controller_d_leger_self_id: str = "n0"
    enable_elect_unclean_master: bool = False
    notify_broker_role_changed: bool = True
    twinlog_lease_ms: Annotated[int, Meta(ge=LEASE_MS_MIN, le=60_000)] = 2_000
    twinlog_controller_etcd: str = ""

    acl_enable: bool = False
    use_tls: bool = False
    tls: TlsConfig = msgspec.field(default_factory=TlsConfig)

    twinlog_log_level: LogLevel = LogLevel.INFO
    twinlog_log_format: LogFormat = LogFormat.PLAIN
    twinlog_log_file: str = ""
    twinlog_log_file_size: _Positive = 64 * 1024 * 1024
    twinlog_log_file_count: _Natural = 10

    # Of Apache's implementation: accepted, shown, without effect.
    controller_type: str = "DLedger"
    scan_not_active_broker_interval: _Positive = 5_000
    scan_inactive_master_interval: _Positive = 5_000
    controller_thread_pool_nums: int = 16
    controller_request_thread_pool_queue_capacity: int = 50_000
    mapped_file_size: int = 1024 * 1024 * 1024
    is_process_read_event: bool = False

    def to_properties(self) -> str:
        """Apache's `key=value` form, for `-p` and for GET_CONTROLLER_CONFIG."""
        return properties_text(self)

    def check(self) -> list[str]:
        """What no single value can show. Returns warnings; raises ConfigValueError naming a key."""
        if self.twinlog_controller_etcd:
            reason = "several controllers on etcd are not there yet; remove the key to start"
            raise ConfigValueError("twinlogControllerEtcd", reason)
        peers = [peer for peer in (self.controller_d_leger_peers or "").split(";") if peer]
        if len(peers) > 1:
            reason = "twinlog's controllers share their state in etcd; name one peer at most"
            raise ConfigValueError("controllerDLegerPeers", reason)
        return []


CONTROLLER_NOT_APPLICABLE = frozenset(
    {
        "controller_type",
        "scan_not_active_broker_interval",
        "scan_inactive_master_interval",
        "controller_thread_pool_nums",
        "controller_request_thread_pool_queue_capacity",
        "mapped_file_size",
        "is_process_read_event",
    }
)
