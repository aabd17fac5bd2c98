"""Topics and groups that RocketMQ names itself, and who is "system". Pure; imports almost nothing.

Corresponds to the name constants of TopicValidator and MixAll. What a broker refuses in a name, and
in which words, is in `broker/names.py`.
"""

from __future__ import annotations

import re
from typing import Final

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
METADATA_TOPIC: Final = "rmq_sys_twinlog_metadata"  # Apache keeps this prefix for system topics.

TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # Every broker has it: reading with it creates no group.
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
# Their offsets say how far a broker itself is: no client sets or removes one. One from outside
# would hide transactions that are not decided.
BROKERS_OWN_GROUPS: Final = frozenset({TRANSACTION_GROUP})

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"  # A queue of its own over messages of other topics.
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

SYSTEM_TOPICS: Final = frozenset(
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
SEND_FORBIDDEN_TOPICS: Final = frozenset(
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

# Those that every broker has from its start, in the order of its table.
BOOT_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
# Also those that only clients and tools of RocketMQ's own use.
SYSTEM_GROUPS: Final = frozenset(
    {
        *BOOT_GROUPS,
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "SCHEDULE_CONSUMER",
        "SELF_TEST_P_GROUP",
        "CID_HOUSEKEEPING",
        "__MONITOR_CONSUMER",
        INNER_PRODUCER_GROUP,
        TRANSACTION_GROUP,
    }
)

GROUP_LENGTH_MAX: Final = 255  # Apache's clients check it; topics made of the name must still fit.
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def has_legal_characters(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    return cluster + REPLY_SUFFIX


def is_system_topic(topic: str) -> bool:
    """Whether it is one of RocketMQ's own. A group's topics are not (see `is_user_topic`)."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_user_topic(topic: str) -> bool:
    """Whether messages of users are sent to it by this name."""
    return (
        not is_system_topic(topic)
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX, LMQ_PREFIX))
        and not topic.endswith(REPLY_SUFFIX)
    )


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)
