"""The keys of a `namesrv.conf`, typed. Answers to NamesrvConfig and NettyServerConfig, and to
5.x's ControllerConfig for a controller inside the name server."""

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
_HOME = os.path.join(os.path.expanduser("~"), "namesrv")


class NamesrvConfig(msgspec.Struct, kw_only=True):
    """Everything a name server can be told. Made from a file by `load_namesrv_config`."""

    rocketmq_home: str | None = None
    bind_address: str = "127.0.0.1"
    listen_port: _Port = 9876
    kv_config_path: str = os.path.join(_HOME, "kvConfig.json")
    config_store_path: str = os.path.join(_HOME, "namesrv.properties")
    product_env_name: str = "center"
    cluster_test: bool = False
    order_message_enable: bool = False
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"

    # Only accounts of `conf/plain_acl.yml` below rocketmqHome may ask; Apache's has no such key.
    acl_enable: bool = False
    # Quotas of one address, 0: none. Above what one machine does that serves many clients (a proxy,
    # a benchmark), below what ends a server; see docs/OPERATIONS.md.
    twinlog_connections_per_address: _Natural = 8_000
    twinlog_requests_per_address: _Natural = 1_000_000
    twinlog_bytes_in_flight_per_address: _Natural = 256 * 1024 * 1024

    # Where log lines go and how they look; see `runtime/log_config.py`.
    twinlog_log_level: LogLevel = LogLevel.INFO
    twinlog_log_format: LogFormat = LogFormat.PLAIN
    twinlog_log_file: str = ""
    twinlog_log_file_size: _Positive = 64 * 1024 * 1024
    twinlog_log_file_count: _Natural = 10

    # Keys of 5.x.
    scan_not_active_broker_interval: _Positive = 5000
    need_wait_for_service: bool = False
    wait_seconds_for_service: _Natural = 45
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    delete_topic_with_broker_registration: bool = False
    return_order_topic_config_to_broker: bool = True
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True

    # A controller inside the name server: keys of 5.x.
    enable_controller_in_namesrv: bool = False
    controller_d_leger_group: str | None = None
    controller_d_leger_peers: str | None = None
    controller_d_leger_self_id: str | None = None
    controller_store_path: str = os.path.join(_HOME, "controller")
    enable_elect_unclean_master: bool = False
    notify_broker_role_changed: bool = True
    process_read_event: bool = False

    use_tls: bool = False
    tls: TlsConfig = msgspec.field(default_factory=TlsConfig)

    server_channel_max_idle_time_seconds: _Natural = 120
    server_socket_snd_buf_size: _Natural = 0
    server_socket_rcv_buf_size: _Natural = 0
    server_socket_backlog: _Positive = 1024
    write_buffer_high_water_mark: _Natural = 0
    write_buffer_low_water_mark: _Natural = 0

    # Threads and buffers of a JVM: accepted, shown, without effect.
    server_worker_threads: int = 8
    server_callback_executor_threads: int = 0
    server_selector_threads: int = 3
    server_oneway_semaphore_value: int = 256
    server_async_semaphore_value: int = 64
    server_pooled_byte_buf_allocator_enable: bool = True
    use_epoll_native_selector: bool = False
    default_thread_pool_nums: int = 16
    default_thread_pool_queue_capacity: int = 10000
    client_request_thread_pool_nums: int = 8
    client_request_thread_pool_queue_capacity: int = 50000
    un_register_broker_queue_capacity: int = 3000
    controller_thread_pool_nums: int = 16
    controller_request_thread_pool_queue_capacity: int = 50000

    def to_properties(self) -> str:
        """Apache's `key=value` form, for `-p` and for GET_BROKER_CONFIG or GET_NAMESRV_CONFIG."""
        return properties_text(self)

    def check(self) -> list[str]:
        """What no single value can show. Returns warnings; raises ConfigValueError naming a key."""
        if self.enable_controller_in_namesrv:
            # Brokers that rely on it would all be masters.
            reason = "twinlog has no controller yet; remove the key to start"
            raise ConfigValueError("enableControllerInNamesrv", reason)
        return []


NAMESRV_NOT_APPLICABLE = frozenset(
    name
    for name in NamesrvConfig.__struct_fields__
    if "thread" in name
    or name.endswith(("_queue_capacity", "_semaphore_value", "_allocator_enable"))
    or name in {"use_epoll_native_selector", "process_read_event"}
)
