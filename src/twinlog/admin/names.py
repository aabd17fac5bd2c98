"""Topics as an operator sees them. Imports almost nothing: `twinlog topic list` uses it."""

from __future__ import annotations

from collections.abc import Iterable

from twinlog.message import names
from twinlog.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, reply_topic


def system_names(clusters: Iterable[str], brokers: Iterable[str]) -> frozenset[str]:
    """Topics of RocketMQ's own in a cluster: the fixed ones, clusters and brokers."""
    known = {*SYSTEM_TOPICS, *brokers}
    for cluster in clusters:
        known |= {cluster, reply_topic(cluster)}
    return frozenset(known)


def is_user_topic(name: str, system: frozenset[str] = SYSTEM_TOPICS) -> bool:
    """Whether it is a user's, where `system` are the names of the system in this cluster."""
    return name not in system and names.is_user_topic(name)


def kind_of_topic(name: str, system: frozenset[str]) -> str:
    """user, system, retry or dlq."""
    if name.startswith(RETRY_PREFIX):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dlq"
    return "user" if is_user_topic(name, system) else "system"
