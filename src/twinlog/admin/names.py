"""Names that belong to RocketMQ itself. Imports almost nothing: `twinlog topic list` uses it."""

from __future__ import annotations

from collections.abc import Iterable

from twinlog.client.queues import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

SYSTEM_TOPICS = frozenset(
    (
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)


def system_names(clusters: Iterable[str], brokers: Iterable[str]) -> frozenset[str]:
    """Topics of RocketMQ's own in a cluster: the fixed ones, clusters and brokers."""
    names = {*SYSTEM_TOPICS, *brokers}
    for cluster in clusters:
        names |= {cluster, f"{cluster}_REPLY_TOPIC"}
    return frozenset(names)


def is_user_topic(name: str, system: frozenset[str] = SYSTEM_TOPICS) -> bool:
    return (
        name not in system
        and not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX, "rmq_sys_"))
        and not name.endswith("_REPLY_TOPIC")
    )


def kind_of_topic(name: str, system: frozenset[str]) -> str:
    """user, system, retry or dlq."""
    if name.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if name.startswith(DLQ_TOPIC_PREFIX):
        return "dlq"
    return "user" if is_user_topic(name, system) else "system"
