"""Topic and group names: what they may look like and which the system keeps for itself.

Answers to RocketMQ's TopicValidator and to the name helpers of MixAll. Pure.
"""

from __future__ import annotations

import re

from twinlog.runtime.limits import TOPIC_LENGTH_MAX

AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
METADATA_TOPIC = "rmq_sys_twinlog_metadata"  # Apache keeps this prefix for system topics.

SYSTEM_TOPIC_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

# Records of these topics mean something to the broker itself: a client must not forge them.
SEND_FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        METADATA_TOPIC,
    }
)

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)

GROUP_LENGTH_MAX = 255  # Apache's clients check it; topics made of the name must still fit.
_OFFSET_TOPIC_LENGTH_MAX = GROUP_LENGTH_MAX + len("%RETRY%")
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    return cluster + "_REPLY_TOPIC"


def spoils_path(name: str) -> bool:
    """Whether a directory of this name would be another place than the name says."""
    return "/" in name or has_control(name)


def has_control(name: str) -> bool:
    """Whether a character of `name` is one that no name has: NUL, line breaks and their like."""
    return _CONTROL.search(name) is not None


def offset_fault(group: str, topic: str) -> str | None:
    """Say why no offset is kept under these names; None when it is.

    Apache keeps any; what cannot be the name of a group or topic is only waste in the table.
    """
    if not group.strip() or not topic.strip():
        return "The specified group or topic is blank."
    if has_control(group) or has_control(topic):
        return "The specified group or topic contains control characters."
    if len(group) > GROUP_LENGTH_MAX or len(topic) > _OFFSET_TOPIC_LENGTH_MAX:
        return "The specified group or topic is longer than a name may be."
    return None


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def topic_fault(topic: str | None) -> str | None:
    """Say what is wrong with a topic name, in Apache's words; None when nothing is."""
    if topic is None or not topic.strip():
        return "The specified topic is blank."
    if _NAME.fullmatch(topic) is None:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > TOPIC_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


def group_fault(group: str | None) -> str | None:
    """Say what is wrong with a group name; None when nothing is."""
    if group is None or not group.strip():
        return "The specified group is blank."
    if _NAME.fullmatch(group) is None:
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > GROUP_LENGTH_MAX:
        return "The specified group is longer than group max length 255."
    return None
