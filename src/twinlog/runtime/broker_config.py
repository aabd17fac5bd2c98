"""The keys of a 4.9 `broker.conf`, typed. Answers to BrokerConfig, MessageStoreConfig,
NettyServerConfig and NettyClientConfig, which Apache fills from the same file.

Names, defaults and meanings are Apache's. What differs on purpose: `bindAddress` is loopback, and
the advertised addresses follow it. Keys of 5.x that 4.9 lacks are those that replication and
failover need. Our own start with `twinlog`.

A value that follows from others is filled in when the struct is made: the HA port from the service
port, the advertised addresses from the bind address, the broker name from the host.
"""

from __future__ import annotations

import os
import socket
from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from twinlog.runtime.address_set import AddressSet
from twinlog.runtime.addresses import is_host_and_port, is_wildcard, local_address
from twinlog.runtime.config_format import (
    ConfigValueError,
    parse_delay_levels,
    parse_hours,
    properties_text,
)
from twinlog.runtime.log_config import LogFormat, LogLevel
from twinlog.runtime.numbers import INT32_MAX, INT64_MAX
from twinlog.runtime.tls import TlsConfig

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
# Java's int and long: a larger number is none there, and no counter or buffer here can hold it.
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=INT32_MAX)]
PositiveLong: TypeAlias = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]
NaturalLong: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]

_CPUS = os.cpu_count() or 1
HA_PORT_FOLLOWS = -1  # `haListenPort` was not given: it is the service port plus one.
CONSUME_QUEUE_UNIT_SIZE = 20
# Started without it, every broker of a 5.x file would be a master.
_NO_CONTROLLER = (
    "twinlog has no controller yet, nobody would elect a master: remove the key, and set brokerRole"
    " and brokerId of each broker"
)
_NO_SYNC_STATE_SET = (
    "belongs to the controller mode of 5.x, which twinlog does not have yet: remove the key and say"
    " with inSyncReplicas how many replicas a SYNC_MASTER waits for"
)


class BrokerRole(StrEnum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class FlushDiskType(StrEnum):
    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class HADialect(StrEnum):
    AUTO = "auto"
    CLASSIC = "classic"
    TWIN = "twin"


class Reseed(StrEnum):
    TAIL = "tail"
    ALL = "all"
    MANUAL = "manual"


class BrokerConfig(msgspec.Struct, kw_only=True):
    """Everything a broker can be told. Made from a file by `load_broker_config`."""

    # Identity and addresses.
    rocketmq_home: str | None = None
    namesrv_addr: str | None = None
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = ""
    broker_id: int = 0
    bind_address: str = "127.0.0.1"
    broker_ip1: str = ""
    broker_ip2: str = ""
    listen_port: Port = 10911
    ha_listen_port: Annotated[int, Meta(ge=-1, le=65535)] = HA_PORT_FOLLOWS
    region_id: str = "DefaultRegion"

    # Role and replication.
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    sync_flush_timeout: Positive = 5000
    slave_timeout: Positive = 3000
    slave_read_enable: bool = False
    offset_check_in_slave: bool = False
    ha_master_address: str | None = None
    ha_send_heartbeat_interval: Positive = 5000
    ha_housekeeping_interval: Positive = 20000
    ha_transfer_batch_size: Positive = 32 * 1024
    ha_slave_fallbehind_max: Positive = 256 * 1024 * 1024
    ha_flow_control_enable: bool = False  # 5.x: limits what one slave is sent.
    max_ha_transfer_byte_in_second: PositiveLong = 100 * 1024 * 1024
    duplication_enable: bool = False
    twinlog_ha_dialect: HADialect = HADialect.AUTO
    twinlog_reseed: Reseed = Reseed.TAIL
    twinlog_metadata_in_log: bool = False
    # Shared secret of the pair; both ends have it or neither.
    twinlog_ha_secret: str = ""
    # Certificates on the HA port, both ways; the files are those of `tls.server.*`, `tls.client.*`.
    twinlog_ha_tls: bool = False
    # Addresses and networks of peers that may go without credentials (Apache's): slaves of this
    # master, or the master of this slave. Loopback may too, while neither of the two above is set.
    twinlog_ha_classic_peers: str = ""
    # The account with which this broker asks others that have access control.
    twinlog_access_key: str = ""
    twinlog_secret_key: str = ""
    # Ask accounts for no more than 4.9 does; see `broker/acl_guard.py`.
    twinlog_acl_as_apache: bool = False
    # Quotas of one address, 0: none. Above what one machine does that serves many clients (a proxy,
    # a benchmark), below what ends a server; see docs/OPERATIONS.md.
    twinlog_connections_per_address: Natural = 8_000
    twinlog_requests_per_address: Natural = 1_000_000
    twinlog_bytes_in_flight_per_address: NaturalLong = 256 * 1024 * 1024
    twinlog_creations_per_address: Natural = 1_000
    # Where log lines go and how they look; see `runtime/log_config.py`.
    twinlog_log_level: LogLevel = LogLevel.INFO
    twinlog_log_format: LogFormat = LogFormat.PLAIN
    twinlog_log_file: str = ""
    twinlog_log_file_size: PositiveLong = 64 * 1024 * 1024
    twinlog_log_file_count: Natural = 10
    # 5.x: an empty slave copies the last file only.
    sync_from_last_file: bool = False

    # Controller mode: keys of 5.x.
    enable_controller_mode: bool = False
    controller_addr: str = ""
    all_ack_in_sync_state_set: bool = False
    in_sync_replicas: Positive = 2  # The master included: one slave, as 4.9 waits for.
    min_in_sync_replicas: Positive = 1
    total_replicas: Positive = 1
    ha_max_time_slave_not_catchup: PositiveLong = 15000
    broker_heartbeat_interval: PositiveLong = 1000
    broker_not_active_timeout_millis: PositiveLong = 10000
    sync_broker_metadata_period: PositiveLong = 5000
    check_sync_state_set_period: PositiveLong = 5000
    broker_election_priority: int = 2147483647

    # Store: files.
    store_path_root_dir: str = os.path.join(os.path.expanduser("~"), "store")
    store_path_commit_log: str | None = None
    read_only_commit_log_store_paths: str | None = None
    mapped_file_size_commit_log: Annotated[int, Meta(ge=512, le=2**31 - 1)] = 1024 * 1024 * 1024
    mapped_file_size_consume_queue: Positive = 300000 * CONSUME_QUEUE_UNIT_SIZE
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: Positive = 48 * 1024 * 1024
    bit_map_length_consume_queue_ext: Positive = 64
    message_index_enable: bool = True
    message_index_safe: bool = False
    max_hash_slot_num: Positive = 5000000
    max_index_num: Annotated[int, Meta(ge=2)] = 20000000
    max_msgs_num_batch: Positive = 64
    default_query_max_num: Positive = 32
    max_message_size: Annotated[int, Meta(ge=10, le=INT32_MAX)] = 4 * 1024 * 1024
    check_crc_on_recover: bool = True

    # Store: flushing.
    flush_interval_commit_log: Positive = 500
    flush_commit_log_timed: bool = True
    flush_commit_log_least_pages: Natural = 4
    flush_commit_log_thorough_interval: Positive = 10000
    commit_interval_commit_log: Positive = 200
    commit_commit_log_least_pages: Natural = 4
    commit_commit_log_thorough_interval: Positive = 200
    flush_interval_consume_queue: Positive = 1000
    flush_consume_queue_least_pages: Natural = 2
    flush_consume_queue_thorough_interval: Positive = 60000
    flush_delay_offset_interval: PositiveLong = 10000
    flush_consumer_offset_interval: Positive = 5000
    flush_consumer_offset_history_interval: Positive = 60000
    os_page_cache_busy_time_out_mills: PositiveLong = 1000

    # Store: retention.
    delete_when: str = "04"
    file_reserved_time: Natural = 72
    disk_max_used_space_ratio: Percent = 75
    disk_space_clean_forcibly_ratio: Percent = 85
    disk_space_warning_level_ratio: Percent = 90
    clean_file_forcibly_enable: bool = True
    clean_resource_interval: Positive = 10000
    delete_commit_log_files_interval: Natural = 100
    delete_consume_queue_files_interval: Natural = 100
    destroy_maped_file_interval_forcibly: Positive = 120000
    redelete_hanged_file_interval: Positive = 120000
    disk_fall_recorded: bool = True

    # Reading.
    max_transfer_bytes_on_message_in_memory: Positive = 256 * 1024
    max_transfer_count_on_message_in_memory: Positive = 32
    max_transfer_bytes_on_message_in_disk: Positive = 64 * 1024
    max_transfer_count_on_message_in_disk: Positive = 8
    access_message_in_memory_max_ratio: Percent = 40
    transfer_msg_by_heap: bool = True
    long_polling_enable: bool = True
    short_polling_time_mills: PositiveLong = 1000
    disable_consume_if_consumer_read_slowly: bool = False
    consumer_fallbehind_threshold: PositiveLong = 16 * 1024 * 1024 * 1024

    # Topics, groups, filters.
    broker_permission: Annotated[int, Meta(ge=0, le=15)] = 6
    default_topic_queue_nums: Positive = 8
    auto_create_topic_enable: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    notify_consumer_ids_changed_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    enable_property_filter: bool = False
    filter_support_retry: bool = False
    enable_calc_filter_bit_map: bool = False
    expect_consumer_num_use_filter: Positive = 32
    max_error_rate_of_bloom_filter: Percent = 20
    filter_data_clean_time_span: PositiveLong = 86400000
    filter_server_nums: Natural = 0
    store_reply_message_enable: bool = True

    # Delay and transactions.
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    enable_schedule_message_stats: bool = True
    enable_schedule_async_deliver: bool = False
    schedule_async_deliver_max_pending_limit: Positive = 2000
    schedule_async_deliver_max_resend_num2_blocked: Natural = 3
    reject_transaction_message: bool = False
    transaction_time_out: PositiveLong = 6000
    transaction_check_max: Positive = 15
    transaction_check_interval: PositiveLong = 60000

    # Registration.
    register_name_server_period: Positive = 30000
    register_broker_timeout_mills: Positive = 6000
    compressed_register: bool = False
    force_register: bool = True
    fetch_namesrv_addr_by_address_server: bool = False

    # Flow control.
    broker_fast_failure_enable: bool = True
    wait_time_mills_in_send_queue: PositiveLong = 200
    wait_time_mills_in_pull_queue: PositiveLong = 5000
    wait_time_mills_in_heartbeat_queue: PositiveLong = 31000
    wait_time_mills_in_transaction_queue: PositiveLong = 3000
    start_accept_send_request_time_stamp: NaturalLong = 0

    # Security.
    acl_enable: bool = False
    use_tls: bool = False
    config_black_list: str = "configBlackList;brokerConfigPath"
    tls: TlsConfig = msgspec.field(default_factory=TlsConfig)

    # Metrics: keys of 5.x.
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_port: Port = 5557
    metrics_prom_exporter_host: str = ""
    metrics_label: str = ""
    enable_detail_stat: bool = True
    auto_delete_unused_stats: bool = False

    # Network.
    server_channel_max_idle_time_seconds: Natural = 120
    server_socket_snd_buf_size: Natural = 0
    server_socket_rcv_buf_size: Natural = 0
    server_socket_backlog: Positive = 1024
    write_buffer_high_water_mark: Natural = 0
    write_buffer_low_water_mark: Natural = 0
    connect_timeout_millis: Positive = 3000
    channel_not_active_interval: Positive = 60000
    client_channel_max_idle_time_seconds: Natural = 120
    client_socket_snd_buf_size: Natural = 0
    client_socket_rcv_buf_size: Natural = 0
    client_close_socket_if_timeout: bool = True

    # Features that twinlog does not have: true refuses the start.
    enable_d_leger_commit_log: bool = False
    d_leger_group: str | None = None
    d_leger_peers: str | None = None
    d_leger_self_id: str | None = None
    preferred_leader_id: str | None = None
    is_enable_batch_push: bool = False
    store_path_d_ledger_commit_log: str | None = None
    enable_lmq: bool = False
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: Positive = 20000
    message_store_plug_in: str = ""

    # Threads, locks and buffers of a JVM: accepted, shown, without effect.
    send_message_thread_pool_nums: int = min(_CPUS, 4)
    put_message_future_thread_pool_nums: int = min(_CPUS, 4)
    pull_message_thread_pool_nums: int = 16 + 2 * _CPUS
    process_reply_message_thread_pool_nums: int = 16 + 2 * _CPUS
    query_message_thread_pool_nums: int = 8 + _CPUS
    admin_broker_thread_pool_nums: int = 16
    client_manage_thread_pool_nums: int = 32
    consumer_manage_thread_pool_nums: int = 32
    heartbeat_thread_pool_nums: int = min(32, _CPUS)
    end_transaction_thread_pool_nums: int = max(8 + 2 * _CPUS, 4 * min(_CPUS, 4))
    send_thread_pool_queue_capacity: int = 10000
    put_thread_pool_queue_capacity: int = 10000
    pull_thread_pool_queue_capacity: int = 100000
    reply_thread_pool_queue_capacity: int = 10000
    query_thread_pool_queue_capacity: int = 20000
    client_manager_thread_pool_queue_capacity: int = 1000000
    consumer_manager_thread_pool_queue_capacity: int = 1000000
    heartbeat_thread_pool_queue_capacity: int = 50000
    end_transaction_pool_queue_capacity: int = 100000
    use_reentrant_lock_when_put_message: bool = True
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = 4096
    debug_lock_enable: bool = False
    put_msg_index_hight_water: int = 600000
    high_speed_mode: bool = False
    max_delay_time: int = 40
    isolate_log_enable: bool = False
    commercial_enable: bool = True
    commercial_timer_count: int = 1
    commercial_trans_count: int = 1
    commercial_big_count: int = 1
    commercial_base_count: int = 1
    server_worker_threads: int = 8
    server_callback_executor_threads: int = 0
    server_selector_threads: int = 3
    server_oneway_semaphore_value: int = 256
    server_async_semaphore_value: int = 64
    server_pooled_byte_buf_allocator_enable: bool = True
    use_epoll_native_selector: bool = False
    client_worker_threads: int = 4
    client_callback_executor_threads: int = _CPUS
    client_oneway_semaphore_value: int = 65535
    client_async_semaphore_value: int = 65535
    client_pooled_byte_buf_allocator_enable: bool = False

    def __post_init__(self) -> None:
        if not self.broker_name:
            self.broker_name = socket.gethostname() or "DEFAULT_BROKER"
        own = "" if self.broker_ip1 and self.broker_ip2 else self._own_address()
        self.broker_ip1 = self.broker_ip1 or own
        self.broker_ip2 = self.broker_ip2 or own
        if self.ha_listen_port == HA_PORT_FOLLOWS:
            # A service port of 0 is chosen by the system; so is the HA port then.
            self.ha_listen_port = self.listen_port + 1 if self.listen_port else 0

    def _own_address(self) -> str:
        return local_address() if is_wildcard(self.bind_address) else self.bind_address

    @property
    def is_master(self) -> bool:
        return self.broker_role is not BrokerRole.SLAVE

    @property
    def vip_listen_port(self) -> int:
        """RocketMQ's "fast" port: the service port minus two."""
        return max(0, self.listen_port - 2)

    @property
    def commit_log_paths(self) -> list[str]:
        """Where commit-log segments are written; several when the key holds a list."""
        text = self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")
        return [path.strip() for path in text.split(",") if path.strip()]

    @property
    def read_only_commit_log_paths(self) -> list[str]:
        """Where older segments are read from."""
        text = self.read_only_commit_log_store_paths or ""
        return [path.strip() for path in text.split(",") if path.strip()]

    @property
    def ha_classic_peers(self) -> AddressSet:
        return AddressSet(self.twinlog_ha_classic_peers)

    @property
    def consume_queue_file_size(self) -> int:
        """`mappedFileSizeConsumeQueue`, rounded up to whole entries."""
        return -(-self.mapped_file_size_consume_queue // CONSUME_QUEUE_UNIT_SIZE) * (
            CONSUME_QUEUE_UNIT_SIZE
        )

    @property
    def delay_levels(self) -> dict[int, int]:
        """Delay in ms by level, from 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def delete_when_hours(self) -> tuple[int, ...]:
        return parse_hours(self.delete_when)

    @property
    def disk_max_used_ratio(self) -> float:
        """`diskMaxUsedSpaceRatio` within the bounds that Apache applies, 10 to 95 percent."""
        return min(max(self.disk_max_used_space_ratio, 10), 95) / 100

    @property
    def namesrv_addresses(self) -> list[str]:
        return [part.strip() for part in (self.namesrv_addr or "").split(";") if part.strip()]

    def to_properties(self) -> str:
        """Apache's `key=value` form, for `-p` and for GET_BROKER_CONFIG or GET_NAMESRV_CONFIG."""
        return properties_text(self)

    def check(self) -> list[str]:
        """What no single value can show. Returns warnings; raises ConfigValueError naming a key."""
        self._check_refused()
        warnings = self._check_role()
        if bool(self.twinlog_access_key) != bool(self.twinlog_secret_key):
            missing = "twinlogSecretKey" if self.twinlog_access_key else "twinlogAccessKey"
            raise ConfigValueError(missing, "an account needs both its keys")
        if self.acl_enable and not self.is_master and not self.twinlog_access_key:
            warnings.append(
                "twinlogAccessKey: not given; a master with aclEnable=true will refuse this slave's"
                " requests for topics, groups and offsets"
            )
        if self.twinlog_ha_tls and self.twinlog_ha_dialect is HADialect.CLASSIC:
            raise ConfigValueError("twinlogHATLS", "twinlogHADialect=classic has no TLS")
        for key, parse in (
            ("messageDelayLevel", "delay_levels"),
            ("deleteWhen", "delete_when_hours"),
            ("twinlogHAClassicPeers", "ha_classic_peers"),
        ):
            try:
                getattr(self, parse)
            except ValueError as error:
                raise ConfigValueError(key, str(error)) from error
        for address in self.namesrv_addresses:
            if not is_host_and_port(address):
                reason = f"{address!r} is not host:port; semicolons go between several"
                raise ConfigValueError("namesrvAddr", reason)
        ports = {"listenPort": self.listen_port, "haListenPort": self.ha_listen_port}
        if self.listen_port and self.ha_listen_port in (self.listen_port, self.vip_listen_port):
            raise ConfigValueError("haListenPort", f"is also the service or VIP port: {ports}")
        if 0 < self.listen_port < 3:
            raise ConfigValueError("listenPort", "leaves no room for the VIP port below it")
        if self.fetch_namesrv_addr_by_address_server:
            warnings.append("fetchNamesrvAddrByAddressServer: not supported, namesrvAddr is used")
        if self.enable_consume_queue_ext:
            warnings.append(
                "enableConsumeQueueExt: such files are neither written nor read; filters and"
                " delayed messages work without them, also where Apache wrote them"
            )
        return warnings

    def _check_role(self) -> list[str]:
        if not self.is_master and self.broker_id <= 0:
            raise ConfigValueError("brokerId", "Slave's brokerId must be > 0")
        if self.is_master and self.broker_id != 0:
            given, self.broker_id = self.broker_id, 0
            return [f"brokerId: {given} is that of a slave; a {self.broker_role} has 0"]
        return []

    def _check_refused(self) -> None:
        """Ignoring one of these silently would lose what the operator relies on."""
        absent = "twinlog does not have this; remove the key to start"
        for key, is_wanted, reason in (
            ("enableDLegerCommitLog", self.enable_d_leger_commit_log, absent),
            ("enableLmq", self.enable_lmq, absent),
            ("enableMultiDispatch", self.enable_multi_dispatch, absent),
            ("messageStorePlugIn", bool(self.message_store_plug_in), absent),
            ("enableControllerMode", self.enable_controller_mode, _NO_CONTROLLER),
            ("allAckInSyncStateSet", self.all_ack_in_sync_state_set, _NO_SYNC_STATE_SET),
            ("minInSyncReplicas", self.min_in_sync_replicas > 1, _NO_SYNC_STATE_SET),
        ):
            if is_wanted:
                raise ConfigValueError(key, reason)


# Accepted because people's files hold them; nothing here has such a part.
NOT_APPLICABLE = frozenset(
    name
    for name in BrokerConfig.__struct_fields__
    if "thread" in name
    or name.endswith(("_queue_capacity", "_semaphore_value", "_allocator_enable"))
    or name.startswith(("commercial_", "transient_store_pool_"))
    or name
    in {
        "use_reentrant_lock_when_put_message",
        "fast_fail_if_no_buffer_in_store_pool",
        "warm_maped_file_enable",
        "flush_least_pages_when_warm_maped_file",
        "commit_interval_commit_log",
        "commit_commit_log_least_pages",
        "commit_commit_log_thorough_interval",
        "debug_lock_enable",
        "put_msg_index_hight_water",
        "high_speed_mode",
        "max_delay_time",
        "isolate_log_enable",
        "use_epoll_native_selector",
        "transfer_msg_by_heap",
        "flush_consumer_offset_history_interval",
        "destroy_maped_file_interval_forcibly",
        "redelete_hanged_file_interval",
        "filter_server_nums",
    }
)
