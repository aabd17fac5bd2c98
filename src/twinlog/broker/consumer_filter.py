"""Filters of consumers: tag hashes and compiled SQL92 expressions (ConsumerFilterManager).

A SQL92 subscription is compiled once, when its heartbeat comes; one that does not compile leaves
no entry, and its pulls are told so. Retry topics are subscribed as a whole and never filtered
unless `filterSupportRetry` says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from twinlog.broker.sql92 import FilterSyntaxError, Sql92Filter
from twinlog.broker.subscription import SubscriptionData
from twinlog.message.properties import decode_properties
from twinlog.message.record import properties_of
from twinlog.store.filter import MessageFilter, TagsCodeFilter

_LOG = logging.getLogger("twinlog.broker")


class ConsumerFilterData:
    """A compiled expression of one group for one topic."""

    __slots__ = ("client_version", "compiled", "expression", "expression_type")

    def __init__(self, data: SubscriptionData, compiled: Sql92Filter) -> None:
        self.expression = data.sub_string
        self.expression_type = data.expression_type
        self.client_version = data.sub_version
        self.compiled = compiled


class ConsumerFilterManager:
    """Compiled filters by (topic, group)."""

    def __init__(self) -> None:
        self._filters: dict[tuple[str, str], ConsumerFilterData] = {}

    def find(self, topic: str, group: str) -> ConsumerFilterData | None:
        return self._filters.get((topic, group))

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Note a heartbeat's subscriptions; an expression is compiled when it is new."""
        for data in subscriptions:
            key = (data.topic, group)
            if data.is_tag_type:
                self._filters.pop(key, None)
                continue
            known = self._filters.get(key)
            if known is not None and known.expression == data.sub_string:
                known.client_version = max(known.client_version, data.sub_version)
                continue
            try:
                self._filters[key] = ConsumerFilterData(data, Sql92Filter(data.sub_string))
            except FilterSyntaxError as error:
                _LOG.warning("filter refused group=%s topic=%s error=%s", group, data.topic, error)
                self._filters.pop(key, None)

    def group_gone(self, group: str) -> None:
        for key in [key for key in self._filters if key[1] == group]:
            del self._filters[key]


class Sql92MessageFilter:
    """SQL92 over the properties of a record."""

    needs_record = True

    def __init__(self, compiled: Sql92Filter) -> None:
        self._matches = compiled.matches

    def matches_tags_code(self, tags_code: int) -> bool:
        return True

    def matches_record(self, record: bytes) -> bool:
        return self._matches(decode_properties(properties_of(record)))


def message_filter(data: SubscriptionData, compiled: Sql92Filter | None) -> MessageFilter | None:
    """What the store asks; None when everything is wanted."""
    if compiled is not None:
        return Sql92MessageFilter(compiled)
    if data.is_all or data.class_filter_mode:
        return None
    return TagsCodeFilter(data.code_set)
