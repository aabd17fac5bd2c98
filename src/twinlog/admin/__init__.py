"""Operations of an administrator, as functions that return values.

    async with Admin("127.0.0.1:9876") as admin:
        names = await topics.list_topics(admin)

`topics`, `groups`, `brokers`, `messages`, `ha` and `health` hold the functions; each is imported
when it is first used, so that a short command stays short.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinlog.admin import brokers, groups, ha, health, messages, topics
    from twinlog.admin.client import Admin, ClusterInfo, Gathered

__all__ = [
    "Admin",
    "ClusterInfo",
    "Gathered",
    "brokers",
    "groups",
    "ha",
    "health",
    "messages",
    "topics",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name[0].islower():
        return importlib.import_module(f"twinlog.admin.{name}")
    return getattr(importlib.import_module("twinlog.admin.client"), name)
