"""Operations of an administrator, as functions that return values.

    async with Admin("127.0.0.1:9876") as admin:
        names = await topics.list_topics(admin)

`topics`, `groups`, `brokers`, `messages` and `ha` hold the functions.
"""

from twinlog.admin import brokers, groups, ha, messages, topics
from twinlog.admin.client import Admin, ClusterInfo, Gathered

__all__ = [
    "Admin",
    "ClusterInfo",
    "Gathered",
    "brokers",
    "groups",
    "ha",
    "messages",
    "topics",
]
