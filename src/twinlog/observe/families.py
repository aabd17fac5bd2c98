"""Every metric, declared once: its name, kind, labels, what it says, and who has it.

Collectors make samples of these, docs/METRICS.md is written out of them, and tests compare both
with what a scrape of real servers gives. Names that begin with `rocketmq_` are RocketMQ 5's, with
its labels; of a counter the text of a scrape has the name with `_total`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


BROKER, NAMESRV, CONTROLLER = "broker", "name server", "controller"
ALL = (BROKER, NAMESRV, CONTROLLER)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `is_conditional`: it has series only in some states or with some settings."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    servers: tuple[str, ...] = (BROKER,)
    is_conditional: bool = False

    @property
    def exposed_name(self) -> str:
        """As the text of a scrape and queries have it."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


FAMILIES: list[Family] = []


def _family(
    name: str,
    kind: Kind,
    text: str,
    *labels: str,
    servers: tuple[str, ...] = (BROKER,),
    is_conditional: bool = False,
) -> Family:
    family = Family(name, kind, text, labels, servers, is_conditional)
    FAMILIES.append(family)
    return family


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# RocketMQ 5's

_TOPIC = ("topic", "message_type", "is_system")
_CONSUMED = ("topic", "consumer_group", "is_retry", "is_system")
_STORAGE = ("storage_type", "storage_medium")

MESSAGES_IN = _family(
    "rocketmq_messages_in", _C, "Messages that producers sent. message_type is always unspecified.",
    *_TOPIC, is_conditional=True,
)  # fmt: skip
THROUGHPUT_IN = _family(
    "rocketmq_throughput_in", _C, "Bytes of the messages that producers sent, as stored.",
    *_TOPIC, is_conditional=True,
)  # fmt: skip
MESSAGES_OUT = _family(
    "rocketmq_messages_out", _C, "Messages that were handed to consumers.", *_CONSUMED,
    is_conditional=True,
)  # fmt: skip
THROUGHPUT_OUT = _family(
    "rocketmq_throughput_out", _C, "Bytes of the messages that were handed to consumers.",
    *_CONSUMED, is_conditional=True,
)  # fmt: skip
LAG_MESSAGES = _family(
    "rocketmq_consumer_lag_messages", _G, "Messages that a group has not consumed yet.",
    *_CONSUMED, is_conditional=True,
)  # fmt: skip
LAG_LATENCY = _family(
    "rocketmq_consumer_lag_latency", _G,
    "Age of the oldest message that a group has not consumed, in ms; 0 without one.",
    *_CONSUMED, is_conditional=True,
)  # fmt: skip
INFLIGHT_MESSAGES = _family(
    "rocketmq_consumer_inflight_messages", _G,
    "Messages that were handed to a group's members and are not consumed yet.",
    *_CONSUMED, is_conditional=True,
)  # fmt: skip
READY_MESSAGES = _family(
    "rocketmq_consumer_ready_messages", _G, "Messages that no member of a group has received yet.",
    *_CONSUMED, is_conditional=True,
)  # fmt: skip
QUEUEING_LATENCY = _family(
    "rocketmq_consumer_queueing_latency", _G,
    "Age of the oldest message that no member of a group has received yet, in ms; 0 without one.",
    *_CONSUMED, is_conditional=True,
)  # fmt: skip
SEND_TO_DLQ = _family(
    "rocketmq_send_to_dlq_messages", _C, "Messages that were moved to the dead letters of a "
    "group.", *_CONSUMED,
    is_conditional=True,
)  # fmt: skip
PRODUCER_CONNECTIONS = _family(
    "rocketmq_producer_connections", _G, "Connections of producers.",
    "language", "version", "protocol_type", is_conditional=True,
)  # fmt: skip
CONSUMER_CONNECTIONS = _family(
    "rocketmq_consumer_connections", _G, "Connections of consumers.",
    "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system",
    is_conditional=True,
)  # fmt: skip
BROKER_PERMISSION = _family("rocketmq_broker_permission", _G, "brokerPermission: 2 W, 4 R, 6 RW.")
PROCESSOR_WATERMARK = _family(
    "rocketmq_processor_watermark", _G,
    "Requests that wait: sends for disk or slaves, pulls for messages.", "processor",
)  # fmt: skip
TOPIC_NUMBER = _family("rocketmq_topic_number", _G, "Topics.")
GROUP_NUMBER = _family("rocketmq_consumer_group_number", _G, "Consumer groups.")
STORAGE_SIZE = _family("rocketmq_storage_size", _G, "Bytes of the commit log.", *_STORAGE)
FLUSH_BEHIND = _family(
    "rocketmq_storage_flush_behind_bytes", _G, "Bytes of the log that are not on disk yet.",
    *_STORAGE,
)  # fmt: skip
DISPATCH_BEHIND = _family(
    "rocketmq_storage_dispatch_behind_bytes", _G,
    "Bytes of the log that are in no queue yet, so that no consumer finds them.", *_STORAGE,
)  # fmt: skip
RESERVE_TIME = _family(
    "rocketmq_storage_message_reserve_time", _G, "Age of the oldest message, in ms.", *_STORAGE
)
HALF_MESSAGES = _family("rocketmq_half_messages", _G, "Transactions that are not decided yet.")
COMMIT_MESSAGES = _family("rocketmq_commit_messages", _C, "Transactions that were committed.")
ROLLBACK_MESSAGES = _family("rocketmq_rollback_messages", _C, "Transactions that were rolled back.")

# Ours: replication

HEALTHY = _family(
    "twinlog_healthy", _G, "1 when the server finds no problem with itself, 0 otherwise.",
    servers=ALL,
)  # fmt: skip
HEALTH_FINDING = _family(
    "twinlog_health_finding", _G, "1 for each thing that the server finds wrong with itself.",
    "code", "level", servers=ALL, is_conditional=True,
)  # fmt: skip
ROLE = _family("twinlog_broker_role", _G, "1 for the role that the broker has.", "role")
LOG_OFFSET = _family(
    "twinlog_log_offset_bytes", _G,
    "Positions in the log: min, appended, flushed, dispatched, confirmed.", "mark",
)  # fmt: skip
REPLICAS = _family("twinlog_replicas", _G, "Slaves that are connected to this master.")
REPLICAS_IN_SYNC = _family("twinlog_replicas_in_sync", _G, "Slaves that are in sync.")
REPLICAS_NEEDED = _family(
    "twinlog_replicas_needed", _G, "Slaves that must have a send before it is answered."
)
REPLICA_LAG_BYTES = _family(
    "twinlog_replica_lag_bytes", _G, "Bytes that a slave has not acknowledged.", "replica",
    is_conditional=True,
)  # fmt: skip
REPLICA_LAG_SECONDS = _family(
    "twinlog_replica_lag_seconds", _G,
    "Age of the newest moment from which a slave has every message; 0 when it has all.", "replica",
    is_conditional=True,
)  # fmt: skip
REPLICA_ACK_AGE = _family(
    "twinlog_replica_ack_age_seconds", _G, "Time since the last acknowledgement of a slave.",
    "replica", is_conditional=True,
)  # fmt: skip
REPLICA_IN_SYNC = _family(
    "twinlog_replica_in_sync", _G, "1 when a slave is in sync, 0 when it is not.", "replica",
    is_conditional=True,
)  # fmt: skip
REPLICA_STATE = _family(
    "twinlog_replica_state", _G, "1 for the state of a connection to the HA port.",
    "replica", "state", is_conditional=True,
)  # fmt: skip
EPOCH = _family("twinlog_epoch", _G, "Epoch of a broker in a controlled group; 0 in a fixed pair.")
IN_SYNC_SET = _family(
    "twinlog_in_sync_set_size", _G,
    "On the master of a controlled group: members of the sync-state set, itself included.",
    is_conditional=True,
)  # fmt: skip
SLAVE_LINKED = _family(
    "twinlog_slave_linked", _G, "On a slave: 1 while it is connected to its master.",
    is_conditional=True,
)  # fmt: skip
SLAVE_STOPPED = _family(
    "twinlog_slave_stopped", _G,
    "On a slave: 1 when it has stopped replicating although its master is there (damage, "
    "divergence).",
    is_conditional=True,
)  # fmt: skip
SLAVE_BEHIND = _family(
    "twinlog_slave_behind_bytes", _G, "On a slave: bytes of the master's log that it lacks.",
    is_conditional=True,
)  # fmt: skip
METADATA_BEHIND = _family(
    "twinlog_metadata_behind_records", _G,
    "On a slave: records of topics, groups and offsets that it has not applied.",
    is_conditional=True,
)  # fmt: skip
METADATA_AGE = _family(
    "twinlog_metadata_sync_age_seconds", _G,
    "On a slave: time since its tables were last known to be the master's.", is_conditional=True,
)  # fmt: skip
RIVALS = _family("twinlog_rivals", _G, "Living brokers that claim the name and id of this one.")

# Ours: the store

SENDS_REFUSED = _family(
    "twinlog_sends_refused", _G, "1 while the broker takes no sends although it is a master."
)
PUTS_NOT_OK = _family(
    "twinlog_puts_not_ok", _C, "Sends that were stored or refused with another status than 0.",
    "status",
)  # fmt: skip
PUT_SECONDS = _family(
    "twinlog_put_seconds", _H, "Time from the first put of a turn to its place in the log."
)
FSYNC_SECONDS = _family("twinlog_fsync_seconds", _H, "Time of one sync of the commit log.")
DISK_USED = _family(
    "twinlog_disk_used_ratio", _G, "Used share of a disk, from 0 to 1.", "directory"
)
DISK_FREE = _family("twinlog_disk_free_bytes", _G, "Bytes that are left on a disk.", "directory")
DISK_REFUSE = _family(
    "twinlog_disk_refuse_ratio", _G, "How full a disk may be before sends are refused.",
    "directory",
)  # fmt: skip
UNSAVED = _family("twinlog_unsaved_tables", _G, "Tables that cannot be written to their files.")
DELAY_MESSAGES = _family(
    "twinlog_delay_messages", _G, "Delayed messages that wait for their time.", "level",
    is_conditional=True,
)  # fmt: skip
QUEUE_LAG = _family(
    "twinlog_consumer_queue_lag_messages", _G,
    "Messages of one queue that a group has not consumed; with twinlogMetricsPerQueue=true.",
    "topic", "consumer_group", "queue_id", is_conditional=True,
)  # fmt: skip

# Ours: every server

BUILD_INFO = _family(
    "twinlog_build_info", _G, "Always 1; the labels say what runs, compiled or pure.",
    "version", "python", "code", servers=ALL,
)  # fmt: skip
LOOP_LAG = _family(
    "twinlog_loop_lag_seconds", _H, "How late the event loop was, measured ten times per second.",
    servers=ALL,
)  # fmt: skip
LOOP_LAG_MAX = _family(
    "twinlog_loop_lag_max_seconds", _G, "The longest delay of the event loop in the last minute.",
    servers=ALL,
)  # fmt: skip
REQUESTS_REFUSED = _family(
    "twinlog_requests_refused", _C, "Requests that were answered with an error.",
    "request_code", "response_code", "reason", servers=ALL, is_conditional=True,
)  # fmt: skip
CONTAINED_ERRORS = _family(
    "twinlog_contained_errors", _C, "Errors in the server that cost one request, task or timer.",
    "what", servers=ALL, is_conditional=True,
)  # fmt: skip
CONNECTIONS = _family("twinlog_connections", _G, "Open connections of a port.", "port", servers=ALL)
SERIES_LEFT_OUT = _family(
    "twinlog_series_left_out", _G,
    "Series of a metric that are not shown: it has more than twinlogMetricsSeriesMax, or needs"
    " more than 500 reads.",
    "metric", servers=ALL, is_conditional=True,
)  # fmt: skip
SCRAPE_SECONDS = _family(
    "twinlog_scrape_seconds", _G, "How long the last scrape took; the event loop serves others "
    "meanwhile.",
    servers=ALL,
)  # fmt: skip

# Ours: name server and controller

ROUTE_BROKERS = _family(
    "twinlog_route_brokers", _G, "Brokers in the route, by their role.", "role", servers=(NAMESRV,)
)
DAMAGE_FOUND = _family(
    "twinlog_store_damage_found", _C, "Damaged places of the store that were found."
)
DAMAGE_HEALED = _family(
    "twinlog_store_damage_healed", _C, "Damaged places that were healed from a replica or the log."
)
DAMAGE_OPEN = _family(
    "twinlog_store_damage_open", _G, "Damaged places that are known and not healed."
)
SCRUBBED_BYTES = _family(
    "twinlog_store_scrubbed_bytes", _C, "Bytes of the log that the scrub has checked."
)
SCRUB_PASSES = _family(
    "twinlog_store_scrub_passes", _C, "Scrubs of the whole store that were finished."
)
ROUTE_TOPICS = _family("twinlog_route_topics", _G, "Topics in the route.", servers=(NAMESRV,))
ROUTE_RIVALS = _family(
    "twinlog_route_rivals", _G, "Brokers that are kept out because another has their place.",
    servers=(NAMESRV,),
)  # fmt: skip
GROUPS_WITHOUT_MASTER = _family(
    "twinlog_groups_without_master", _G, "Groups that have slaves in the route and no master.",
    servers=(NAMESRV,),
)  # fmt: skip
CONTROLLER_LEADS = _family(
    "twinlog_controller_leads", _G, "1 while this controller decides.", servers=(CONTROLLER,)
)
GROUP_EPOCH = _family(
    "twinlog_group_epoch", _G, "Epoch of the master of a group.", "broker_name",
    servers=(CONTROLLER,), is_conditional=True,
)  # fmt: skip
GROUP_IN_SYNC = _family(
    "twinlog_group_in_sync_replicas", _G, "Members of the sync-state set of a group.",
    "broker_name", servers=(CONTROLLER,), is_conditional=True,
)  # fmt: skip
GROUP_REPLICAS = _family(
    "twinlog_group_replicas", _G, "Registered replicas of a group.", "broker_name",
    servers=(CONTROLLER,), is_conditional=True,
)  # fmt: skip
FAILOVERS = _family(
    "twinlog_failovers", _C, "Elections of a master, by kind and reason; numbers in a reason are "
    "shown as N.",
    "broker_name", "kind", "reason", servers=(CONTROLLER,), is_conditional=True,
)  # fmt: skip
WITHOUT_MASTER = _family(
    "twinlog_group_without_master_seconds", _C, "Time that a group had no living master.",
    "broker_name", servers=(CONTROLLER,), is_conditional=True,
)  # fmt: skip
GROUP_HAS_MASTER = _family(
    "twinlog_group_has_master", _G, "1 while the controller hears the master of a group.",
    "broker_name", servers=(CONTROLLER,), is_conditional=True,
)  # fmt: skip
