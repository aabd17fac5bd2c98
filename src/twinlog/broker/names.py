"""What a broker refuses in the name of a topic or group, in Apache's words.

Corresponds to the checks of RocketMQ's TopicValidator. The names themselves are in
`message/names.py`. Pure.
"""

from __future__ import annotations

import re

from twinlog.message.names import (
    BROKERS_OWN_GROUPS,
    GROUP_LENGTH_MAX,
    RETRY_PREFIX,
    has_legal_characters,
)
from twinlog.runtime.limits import TOPIC_LENGTH_MAX

_OFFSET_TOPIC_LENGTH_MAX = GROUP_LENGTH_MAX + len(RETRY_PREFIX)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
    if fault := own_fault(group):
        return fault
    if len(group) > GROUP_LENGTH_MAX or len(topic) > _OFFSET_TOPIC_LENGTH_MAX:
        return "The specified group or topic is longer than a name may be."
    return None


def own_fault(group: str) -> str | None:
    """Say why no peer sets offsets of this group; None when one may."""
    if group in BROKERS_OWN_GROUPS:
        return f"The offsets of {group} are the broker's own."
    return None


def topic_fault(topic: str | None) -> str | None:
    """Say what is wrong with a topic name, in Apache's words; None when nothing is."""
    if topic is None or not topic.strip():
        return "The specified topic is blank."
    if not has_legal_characters(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > TOPIC_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


def group_fault(group: str | None) -> str | None:
    """Say what is wrong with a group name; None when nothing is."""
    if group is None or not group.strip():
        return "The specified group is blank."
    if not has_legal_characters(group):
        return "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > GROUP_LENGTH_MAX:
        return "The specified group is longer than group max length 255."
    return None
