"""The keys of a 4.9 `broker.conf`, typed. Corresponds to BrokerConfig; the bases have what Apache's
MessageStoreConfig, NettyServerConfig and NettyClientConfig hold, filled from the same file.

Names, defaults and meanings are Apache's. What differs on purpose: `bindAddress` is loopback, and
the advertised addresses follow it. Keys of 5.x that 4.9 lacks are those that replication and
failover need. Our own start with `twinlog`.

A value that follows from others is filled in when the struct is made: the HA port from the service
port, the advertised addresses from the bind address, the broker name from the host.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from twinlog.runtime.address_set import AddressSet
from twinlog.runtime.addresses import (
    NOT_A_HOST,
    is_host,
    is_host_and_port,
    is_wildcard,
    local_address,
)
from twinlog.runtime.config_format import parse_delay_levels
from twinlog.runtime.config_key import (
    Finding,
    Natural,
    NaturalLong,
    Percent,
    Port,
    Positive,
    PositiveLong,
    live,
    no_effect,
    refused,
    used,
)
from twinlog.runtime.store_config import FlushDiskType, MessageStoreConfig

__all__ = ["BrokerConfig", "BrokerRole", "FlushDiskType", "HADialect", "Reseed"]

HA_PORT_FOLLOWS = -1  # `haListenPort` was not given: it is the service port plus one.
_ABSENT = "twinlog does not have this; remove the key to start"
_ALL_ACK = "a send of a controlled group always waits for all replicas in sync; false is refused"
_NOT_CONTROLLED = "twinlog knows it in controlled groups only (enableControllerMode=true)"
_ONLY_APACHE = (
    "the broker reports to twinlog's controller every 400 ms, and the controller answers at once"
)
_DLEDGER = "the key belongs to enableDLegerCommitLog, which is refused"
_NO_WAITING = (
    "requests do not wait in queues; the quotas (twinlog*PerAddress) limit what a client may send"
)
_NO_BIT_MAPS = "the key belongs to enableConsumeQueueExt, which has no effect here"


class BrokerRole(StrEnum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class HADialect(StrEnum):
    AUTO = "auto"
    CLASSIC = "classic"
    TWIN = "twin"


class Reseed(StrEnum):
    TAIL = "tail"
    ALL = "all"
    MANUAL = "manual"


class BrokerConfig(MessageStoreConfig, kw_only=True):
    """Everything a broker can be told. Made from a file by `load_broker_config`."""

    # Identity and addresses.
    namesrv_addr: Annotated[str | None, used(
        "Name servers to register with, as in a:9876;b:9876.",
        default="the environment variable NAMESRV_ADDR", is_important=True
    )] = None  # fmt: skip
    broker_cluster_name: Annotated[str, used(
        "The cluster this broker belongs to; clients see it in routes.", is_important=True
    )] = "DefaultCluster"  # fmt: skip
    broker_name: Annotated[str, used(
        "Name of the group of a master and its slaves; all of them have the same name.",
        default="the name of the host", is_important=True
    )] = ""  # fmt: skip
    broker_id: Annotated[int, used(
        "0 for a master, another number above 0 for each slave of the group.", is_important=True
    )] = 0  # fmt: skip
    broker_ip1: Annotated[str, used(
        "Address of this broker that clients get from the name server; they must be able "
        "to reach it.",
        default="bindAddress, or an address of this machine", is_important=True
    )] = ""  # fmt: skip
    broker_ip2: Annotated[str, used(
        "Address of this broker that slaves get for replication.",
        default="bindAddress, or an address of this machine", is_important=True
    )] = ""  # fmt: skip
    listen_port: Annotated[
        Port, used("Port on which clients are served. The VIP port is this one minus two.")
    ] = 10911
    ha_listen_port: Annotated[
        Port, used("Port to which slaves connect.", default="listenPort + 1")
    ] = HA_PORT_FOLLOWS
    region_id: Annotated[
        str, used("Region that is named in answers to sends, for message traces.")
    ] = "DefaultRegion"

    # Role and replication.
    broker_role: Annotated[BrokerRole, live(
        "A SYNC_MASTER answers a send when its slaves have the message, an ASYNC_MASTER at"
        " once; a SLAVE copies its master's log. While it runs, a master can change between"
        " the first two only.",
        is_important=True
    )] = BrokerRole.ASYNC_MASTER  # fmt: skip
    slave_timeout: Annotated[Positive, live(
        "How long a SYNC_MASTER waits for its slaves, in ms; then FLUSH_SLAVE_TIMEOUT."
    )] = 3000  # fmt: skip
    slave_read_enable: Annotated[bool, live("Send consumers that are far behind to a slave.")] = (
        False
    )
    ha_master_address: Annotated[str | None, used(
        "Address of a slave's master, host:haListenPort.", default="from the name server"
    )] = None  # fmt: skip
    ha_send_heartbeat_interval: Annotated[
        Positive, live("Silence after which a heartbeat is sent over an HA connection, in ms.")
    ] = 5000
    ha_housekeeping_interval: Annotated[
        Positive, live("Silence after which an HA connection is closed, in ms.")
    ] = 20000
    ha_transfer_batch_size: Annotated[
        Positive, live("Largest number of bytes of the log in one HA frame.")
    ] = 32 * 1024
    ha_slave_fallbehind_max: Annotated[
        Positive,
        live(
            "A slave that is this many bytes behind or more is not in sync, and a SYNC_MASTER does"
            " not wait for it.",
            aliases=("haMaxGapNotInSync",),  # 5.x renamed it.
        ),
    ] = 256 * 1024 * 1024
    ha_flow_control_enable: Annotated[bool, live(
        "Limit the bytes that one slave gets per second to maxHATransferByteInSecond. A "
        "key of 5.x."
    )] = False  # fmt: skip
    max_ha_transfer_byte_in_second: Annotated[
        PositiveLong, live("Largest number of bytes of the log that one slave gets per second.")
    ] = 100 * 1024 * 1024
    in_sync_replicas: Annotated[Positive, used(
        "How many replicas must have a message, the SYNC_MASTER included. A key of 5.x."
    )] = 2  # One slave, as 4.9 waits for.  # fmt: skip
    sync_from_last_file: Annotated[
        bool, used("An empty slave copies the log from its last file only. A key of 5.x.")
    ] = False
    duplication_enable: Annotated[bool, refused(
        "Show consumers only messages that are confirmed by other replicas.",
        "consumers of a twinlog broker see messages as soon as they are appended; remove "
        "the key to start"
    )] = False  # fmt: skip
    twinlog_ha_dialect: Annotated[HADialect, used(
        "Dialect between replicas: classic is Apache's; twin also proves that both logs "
        "are the same; auto asks the master which dialect it knows."
    )] = HADialect.AUTO  # fmt: skip
    twinlog_reseed: Annotated[Reseed, used(
        "What a slave does with messages that its master does not have: tail moves them "
        "aside; all also copies the whole log again if the two logs share nothing; manual "
        "changes nothing."
    )] = Reseed.TAIL  # fmt: skip
    twinlog_return_as_slave: Annotated[bool, used(
        "A master that was replaced while it was away becomes a slave: brokerRole and a free"
        " brokerId are written into this file. Otherwise it ends with exit code 1."
    )] = False  # fmt: skip
    twinlog_metadata_in_log: Annotated[bool, used(
        "Put topics, groups and offsets into the log even before a twin slave has attached."
    )] = False  # fmt: skip
    twinlog_ha_secret: Annotated[str, used(
        "Shared secret of the twin dialect: each end proves that it knows it. It is never "
        "shown."
    )] = ""  # fmt: skip
    twinlog_ha_tls: Annotated[bool, used(
        "Replicate over TLS only, in the twin dialect. Both ends show a certificate: the "
        "master the one of tls.server.*, and the slave the one of tls.client.*."
    )] = False  # fmt: skip
    twinlog_ha_classic_peers: Annotated[str, used(
        "Addresses and networks of peers that may replicate without credentials, such as "
        "Apache's brokers. Peers on loopback may do so while neither a secret nor TLS is "
        "set."
    )] = ""  # fmt: skip

    # Controller mode: keys of 5.x, and ours.
    enable_controller_mode: Annotated[bool, used(
        "A controller decides which broker of the group is the master. brokerRole then "
        "says how the group answers sends (SYNC_MASTER by default), and the controller "
        "assigns brokerId.",
        is_important=True
    )] = False  # fmt: skip
    controller_addr: Annotated[
        str, used("Controllers of a controlled group, as in a:9878;b:9878.", is_important=True)
    ] = ""
    all_ack_in_sync_state_set: Annotated[
        bool, no_effect("Answer a send when all replicas in sync have it.", _ALL_ACK)
    ] = False
    min_in_sync_replicas: Annotated[Positive, used(
        "Refuse sends of a controlled group while fewer replicas than this are in sync."
    )] = 1  # fmt: skip
    total_replicas: Annotated[Positive, used(
        "Number of replicas of a controlled group. A controller adopts a group that it "
        "does not know when this many replicas are present."
    )] = 1  # fmt: skip
    async_learner: Annotated[bool, used(
        "Copy the log without ever being in sync or elected, in a controlled group."
    )] = False  # fmt: skip
    ha_max_time_slave_not_catchup: Annotated[PositiveLong, live(
        "A slave that acknowledges nothing for this time while bytes wait is not in sync,"
        " in ms. More than 1500 counts as 1500."
    )] = 15000  # fmt: skip
    broker_election_priority: Annotated[
        int, used("Among replicas with equal logs, the one with the smallest number is elected.")
    ] = 2147483647
    twinlog_relay_ms: Annotated[int, used(
        "How long a broker that is no longer the master passes sends of clients with old "
        "routes to the new master, in ms. 0 means not at all."
    )] = 60_000  # fmt: skip
    broker_heartbeat_interval: Annotated[PositiveLong, no_effect(
        "Time between two heartbeats to name servers and controllers, in ms.",
        "the broker sends a heartbeat to twinlog's name servers every second"
    )] = 1000  # fmt: skip
    broker_not_active_timeout_millis: Annotated[PositiveLong, no_effect(
        "Silence after which this broker counts as gone, in ms.",
        "twinlog's name servers take a broker out after 3 s, Apache's after 120 s"
    )] = 10000  # fmt: skip
    sync_broker_metadata_period: Annotated[PositiveLong, no_effect(
        "Time between two questions for the master, in ms.", _ONLY_APACHE
    )] = 5000  # fmt: skip
    controller_heart_beat_timeout_mills: Annotated[PositiveLong, used(
        "Silence after which RocketMQ's own controller counts this broker as gone, in ms."
        " twinlog's controller has limits of its own."
    )] = 10000  # fmt: skip
    check_sync_state_set_period: Annotated[PositiveLong, no_effect(
        "Time between two looks at who is in sync, in ms.", _ONLY_APACHE
    )] = 5000  # fmt: skip

    # Reading.
    default_query_max_num: Annotated[
        Positive, live("Largest number of messages in the answer to a query by unique key.")
    ] = 32
    long_polling_enable: Annotated[
        bool, live("Hold a pull that finds nothing for as long as its client asked.")
    ] = True
    short_polling_time_mills: Annotated[PositiveLong, live(
        "How long a pull that finds nothing is held with longPollingEnable=false, in ms."
    )] = 1000  # fmt: skip
    disable_consume_if_consumer_read_slowly: Annotated[bool, no_effect(
        "Stop groups that are further behind than consumerFallbehindThreshold.",
        "no group is stopped for reading slowly", is_missed=True
    )] = False  # fmt: skip
    consumer_fallbehind_threshold: Annotated[PositiveLong, no_effect(
        "How many bytes a group may be behind.", "no group is stopped for reading slowly"
    )] = 16 * 1024 * 1024 * 1024  # fmt: skip
    flush_consumer_offset_interval: Annotated[
        Positive, live("Time between two saves of the offsets of consumers, in ms.")
    ] = 5000
    flush_consumer_offset_history_interval: Annotated[Positive, no_effect(
        "Time between two entries in a history of offsets.", "no history is kept"
    )] = 60000  # fmt: skip

    # Topics, groups, filters.
    broker_permission: Annotated[Annotated[int, Meta(ge=0, le=15)], live(
        "What clients may do here: 6 is read and write, 4 read only, 2 write only."
    )] = 6  # fmt: skip
    default_topic_queue_nums: Annotated[
        Positive, live("Largest number of queues of a topic that a send creates.")
    ] = 8
    auto_create_topic_enable: Annotated[bool, live(
        "The first send to a topic creates it; turn it off in production.", is_important=True
    )] = True  # fmt: skip
    cluster_topic_enable: Annotated[
        bool, used("Allow sends to the topic that has the cluster's name.")
    ] = True
    broker_topic_enable: Annotated[
        bool, used("Allow sends to the topic that has the broker's name.")
    ] = True
    auto_create_subscription_group: Annotated[
        bool, live("The first consumer of a group creates it.", is_important=True)
    ] = True
    notify_consumer_ids_changed_enable: Annotated[
        bool, live("Tell consumers at once when their group gains or loses a member.")
    ] = True
    trace_topic_enable: Annotated[
        bool, used("Create the topic for message traces.", is_important=True)
    ] = False
    msg_trace_topic_name: Annotated[
        str, used("Name of the topic for message traces.", is_important=True)
    ] = "RMQ_SYS_TRACE_TOPIC"
    trace_on: Annotated[
        bool, used("Tell producers in the answers to their sends that traces are wanted.")
    ] = True
    enable_property_filter: Annotated[bool, live("Allow SQL92 subscriptions.")] = False
    filter_support_retry: Annotated[
        bool, live("Apply SQL92 subscriptions to messages that are consumed again, too.")
    ] = False
    enable_calc_filter_bit_map: Annotated[
        bool, no_effect("Compute filter data when a message arrives.", _NO_BIT_MAPS)
    ] = False
    expect_consumer_num_use_filter: Annotated[
        Positive, used("Groups per topic for which the Bloom filter of subscriptions is sized.")
    ] = 32
    max_error_rate_of_bloom_filter: Annotated[
        Percent, used("Percentage of false hits that the Bloom filter of subscriptions may have.")
    ] = 20
    filter_data_clean_time_span: Annotated[PositiveLong, used(
        "Time after which the filter of a group that is gone is forgotten, in ms."
    )] = 86400000  # fmt: skip
    filter_server_nums: Annotated[Natural, no_effect(
        "Processes that filter by Java classes.", "twinlog has no filter servers"
    )] = 0  # fmt: skip
    store_reply_message_enable: Annotated[
        bool, live("Store replies of the request-reply pattern before they are passed on.")
    ] = True

    # Transactions.
    reject_transaction_message: Annotated[
        bool, live("Refuse transactional messages.", is_important=True)
    ] = False
    transaction_time_out: Annotated[PositiveLong, live(
        "Age at which producers are first asked about an open transaction, in ms.",
        is_important=True
    )] = 6000  # fmt: skip  # fmt: skip
    transaction_check_max: Annotated[Positive, live(
        "How often producers are asked about a transaction before it is given up.",
        is_important=True
    )] = 15  # fmt: skip  # fmt: skip
    transaction_check_interval: Annotated[PositiveLong, live(
        "Time between two rounds of questions about open transactions, in ms.", is_important=True
    )] = 60000  # fmt: skip

    # Registration.
    register_name_server_period: Annotated[Positive, live(
        "Time between two registrations with the name servers, in ms; taken as 10000 to"
        " 60000."
    )] = 30000  # fmt: skip  # fmt: skip
    register_broker_timeout_mills: Annotated[
        Positive, live("How long a registration may take, in ms.")
    ] = 6000
    compressed_register: Annotated[bool, live("Compress the topics in a registration.")] = False
    force_register: Annotated[
        bool, live("Register in every period, not only when the topics have changed.")
    ] = True
    fetch_namesrv_addr_by_address_server: Annotated[bool, no_effect(
        "Ask an HTTP server for the addresses of the name servers.", "namesrvAddr is used",
        is_missed=True, is_important=True
    )] = False  # fmt: skip

    # Flow control.
    broker_fast_failure_enable: Annotated[
        bool, no_effect("Answer requests that waited too long with SYSTEM_BUSY.", _NO_WAITING)
    ] = True
    wait_time_mills_in_send_queue: Annotated[
        PositiveLong, no_effect("How long a send may wait for a thread, in ms.", _NO_WAITING)
    ] = 200
    wait_time_mills_in_pull_queue: Annotated[
        PositiveLong, no_effect("How long a pull may wait for a thread, in ms.", _NO_WAITING)
    ] = 5000
    wait_time_mills_in_heartbeat_queue: Annotated[
        PositiveLong, no_effect("How long a heartbeat may wait for a thread, in ms.", _NO_WAITING)
    ] = 31000
    wait_time_mills_in_transaction_queue: Annotated[
        PositiveLong, no_effect("How long the end of a transaction may wait, in ms.", _NO_WAITING)
    ] = 3000
    start_accept_send_request_time_stamp: Annotated[
        NaturalLong, live("Time in ms since 1970 before which sends are refused.")
    ] = 0
    twinlog_creations_per_address: Annotated[Natural, used(
        "How many topics and groups clients of one address may create per second, and twenty"
        " times as many at once. 0 means no limit."
    )] = 1_000  # fmt: skip

    # Security.
    config_black_list: Annotated[
        str, used("Keys that can never be changed at run time, separated by semicolons.")
    ] = "configBlackList;brokerConfigPath"
    twinlog_access_key: Annotated[str, used(
        "Account that this broker uses with servers that have aclEnable=true: every broker "
        "with its name servers, and a slave with its master. It must be an admin account "
        "there."
    )] = ""  # fmt: skip
    twinlog_secret_key: Annotated[str, used("Secret of twinlogAccessKey; it is never shown.")] = ""
    twinlog_acl_as_apache: Annotated[bool, used(
        "Let every account do what 4.9 lets it do, such as read every body by its offset, lock"
        " and reset every group, or delete log files."
    )] = False  # fmt: skip

    twinlog_metrics_per_queue: Annotated[bool, used(
        "Also show the lag of each queue of each group; this makes as many series as there "
        "are queues."
    )] = False  # fmt: skip
    enable_detail_stat: Annotated[
        bool, no_effect("Keep statistics of each topic.", "twinlog always keeps them")
    ] = True
    auto_delete_unused_stats: Annotated[bool, no_effect(
        "Forget statistics of deleted topics.", "twinlog always forgets them"
    )] = False  # fmt: skip

    # Features that twinlog does not have.
    enable_d_leger_commit_log: Annotated[
        bool, refused("Replicate the log with DLedger.", _ABSENT)
    ] = False
    d_leger_group: Annotated[str | None, no_effect("Name of the DLedger group.", _DLEDGER)] = None
    d_leger_peers: Annotated[
        str | None, no_effect("Addresses of the members of the DLedger group.", _DLEDGER)
    ] = None
    d_leger_self_id: Annotated[
        str | None, no_effect("Which member of the DLedger group this broker is.", _DLEDGER)
    ] = None
    preferred_leader_id: Annotated[
        str | None, no_effect("Which member of the DLedger group should lead.", _DLEDGER)
    ] = None
    is_enable_batch_push: Annotated[
        bool,
        no_effect(
            "Push several entries at once to DLedger's members.",
            _DLEDGER,
            aliases=("enableBatchPush",),  # The name that Apache's setter answers to.
        ),
    ] = False
    store_path_d_ledger_commit_log: Annotated[
        str | None, no_effect("Directory of DLedger's log.", _DLEDGER)
    ] = None
    message_store_plug_in: Annotated[
        str, refused("Java classes that replace the store.", _ABSENT)
    ] = ""

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
    def ha_classic_peers(self) -> AddressSet:
        return AddressSet(self.twinlog_ha_classic_peers)

    @property
    def delay_levels(self) -> dict[int, int]:
        """Delay in ms by level, from 1."""
        return parse_delay_levels(self.message_delay_level)

    @property
    def namesrv_addresses(self) -> list[str]:
        return [part.strip() for part in (self.namesrv_addr or "").split(";") if part.strip()]

    def check(self) -> list[Finding]:
        """What no single value can show. The id of a master becomes 0."""
        return [
            *super().check(),
            *self._check_group(),
            *self._check_role(),
            *self._check_accounts(),
            *self._check_small_languages(),
            *self._check_addresses(),
        ]

    @property
    def controller_addresses(self) -> list[str]:
        return [part.strip() for part in self.controller_addr.split(";") if part.strip()]

    def _check_group(self) -> Iterator[Finding]:
        """Keys of controlled groups, and what of the others they replace."""
        if not self.enable_controller_mode:
            if self.all_ack_in_sync_state_set:
                yield Finding("allAckInSyncStateSet", _NOT_CONTROLLED)
            if self.min_in_sync_replicas > 1:
                yield Finding("minInSyncReplicas", _NOT_CONTROLLED)
            return
        if not self.controller_addresses:
            text = "twinlog needs controllerAddr to know who decides, as in host:9878"
            yield Finding("enableControllerMode", text, about=("controllerAddr",))
        for address in self.controller_addresses:
            if not is_host_and_port(address):
                reason = f"{address!r} is not host:port; semicolons go between several"
                yield Finding("controllerAddr", reason)
        if not self.is_master:
            self.broker_role = BrokerRole.SYNC_MASTER
            text = "SLAVE is not a policy of a controlled group; it answers as SYNC_MASTER"
            yield Finding("brokerRole", text, is_fault=False)
        if self.twinlog_ha_dialect is HADialect.CLASSIC:
            yield Finding("twinlogHADialect", "a controlled group replicates as twin only")

    def _check_role(self) -> Iterator[Finding]:
        if self.enable_controller_mode:
            self.broker_id = 0
            return
        if not self.is_master and self.broker_id <= 0:
            yield Finding("brokerId", "Slave's brokerId must be > 0", about=("brokerRole",))
        if self.is_master and self.broker_id != 0:
            given, self.broker_id = self.broker_id, 0
            text = f"{given} is that of a slave; a {self.broker_role} has 0"
            yield Finding("brokerId", text, is_fault=False, about=("brokerRole",))

    def _check_accounts(self) -> Iterator[Finding]:
        if bool(self.twinlog_access_key) != bool(self.twinlog_secret_key):
            missing = "twinlogSecretKey" if self.twinlog_access_key else "twinlogAccessKey"
            yield Finding(missing, "an account needs both its keys")
        if self.acl_enable and not self.is_master and not self.twinlog_access_key:
            text = (
                "not given; a master with aclEnable=true will refuse this slave's requests for"
                " topics, groups and offsets"
            )
            yield Finding("twinlogAccessKey", text, is_fault=False, about=("brokerRole",))
        if self.twinlog_ha_tls and self.twinlog_ha_dialect is HADialect.CLASSIC:
            yield Finding("twinlogHATLS", "twinlogHADialect=classic has no TLS")

    def _check_small_languages(self) -> Iterator[Finding]:
        for key, parsed in (
            ("messageDelayLevel", "delay_levels"),
            ("deleteWhen", "delete_when_hours"),
            ("twinlogHAClassicPeers", "ha_classic_peers"),
        ):
            try:
                getattr(self, parsed)
            except ValueError as error:
                yield Finding(key, str(error))

    def _check_addresses(self) -> Iterator[Finding]:
        for address in self.namesrv_addresses:
            if not is_host_and_port(address):
                reason = f"{address!r} is not host:port; semicolons go between several"
                yield Finding("namesrvAddr", reason)
        for key, host in (("brokerIP1", self.broker_ip1), ("brokerIP2", self.broker_ip2)):
            if not is_host(host):
                yield Finding(key, NOT_A_HOST, about=("bindAddress",))
        ports = {"listenPort": self.listen_port, "haListenPort": self.ha_listen_port}
        if self.listen_port and self.ha_listen_port in (self.listen_port, self.vip_listen_port):
            text = f"is also the service or VIP port: {ports}"
            yield Finding("haListenPort", text, about=("listenPort",))
        if 0 < self.listen_port < 3:
            yield Finding("listenPort", "leaves no room for the VIP port below it")
