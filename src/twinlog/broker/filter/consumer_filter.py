"""Filters of consumers: tag hashes and compiled SQL92 expressions (ConsumerFilterManager).

A SQL92 subscription is compiled once, when its heartbeat comes; one that does not compile leaves
no entry, and its pulls are told so. Owns `config/consumerFilter.json`: an entry outlives the
connections of its group by `filterDataCleanTimeSpan`.

Retry topics are subscribed as a whole. With `filterSupportRetry` what lies in one is filtered by
the expression that its group has for the topic the message came from.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from twinlog.broker.filter.bloom import BloomParameters
from twinlog.broker.filter.sql92 import FilterSyntaxError, Sql92Filter, compile_filter
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message.names import RETRY_PREFIX
from twinlog.message.properties import PROPERTY_RETRY_TOPIC, decode_properties
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.runtime.clock import Clock, SteadyWall
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.numbers import number_of
from twinlog.runtime.saving import TableSaver
from twinlog.store.filter import MessageFilter, TagsCodeFilter

_LOG = logging.getLogger("twinlog.broker")
_UNSEEN_MS = 30_000  # Who was connected when the file was written is taken for gone this long.


class ConsumerFilterData:
    """A compiled expression of one group for one topic."""

    __slots__ = (
        "born_ms",
        "client_version",
        "compiled",
        "dead_ms",
        "expression",
        "expression_type",
        "positions",
    )

    def __init__(
        self,
        data: SubscriptionData,
        compiled: Sql92Filter,
        positions: tuple[int, ...],
        born_ms: int,
    ) -> None:
        self.expression = data.sub_string
        self.expression_type = data.expression_type
        self.client_version = data.sub_version
        self.compiled = compiled
        self.positions = positions
        self.born_ms = born_ms
        self.dead_ms = 0  # 0: somebody of the group is connected.


# New expressions of one heartbeat, in characters: 30 ms of the loop. A short one counts for more.
COMPILED_MAX = 10_000
_COMPILED_EACH = 64


class ConsumerFilterManager:
    """Compiled filters by (topic, group)."""

    def __init__(self, config: BrokerConfig, file: ConfigFile, clock: Clock) -> None:
        self._config = config
        self.file = file
        self._clock = clock
        self._steady = SteadyWall(clock)
        self._bloom = BloomParameters.of(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._filters: dict[tuple[str, str], ConsumerFilterData] = {}
        self._saved: dict[str, Any] | None = None
        self.saver = TableSaver("filters", self._write)
        self._compile_left = COMPILED_MAX

    def heartbeat(self) -> None:
        """A new heartbeat begins: so much of its expressions may be compiled on the loop.

        The rest comes with the client's next heartbeats; until then its pulls are answered that
        there is no filter yet.
        """
        self._compile_left = COMPILED_MAX

    def find(self, topic: str, group: str) -> ConsumerFilterData | None:
        return self._filters.get((topic, group))

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Note a heartbeat's subscriptions; an expression is compiled when it is new."""
        topics = set()
        for data in subscriptions:
            topics.add(data.topic)
            if data.is_tag_type:
                self._filters.pop((data.topic, group), None)
            elif data.sub_string:
                self._register(group, data)
        now = self._clock.now_ms()
        for (topic, name), known in self._filters.items():
            if name == group and topic not in topics and not known.dead_ms:
                known.dead_ms = now

    def _register(self, group: str, data: SubscriptionData) -> None:
        key = (data.topic, group)
        known = self._filters.get(key)
        if known is not None and known.expression == data.sub_string:
            known.client_version = max(known.client_version, data.sub_version)
            known.dead_ms = 0
            return
        if known is not None and data.sub_version < known.client_version:
            return  # An older member of the group: the newest subscription holds.
        self._compile_left -= len(data.sub_string) + _COMPILED_EACH
        if self._compile_left < 0:
            _LOG.warning("filter put off group=%s topic=%s", group, data.topic)
            return
        try:
            compiled = compile_filter(data.expression_type, data.sub_string)
        except FilterSyntaxError as error:
            _LOG.warning("filter refused group=%s topic=%s error=%s", group, data.topic, error)
            self._filters.pop(key, None)
            return
        positions = self._bloom.positions(f"{group}#{data.topic}")
        self._filters[key] = ConsumerFilterData(data, compiled, positions, self._clock.now_ms())

    def group_gone(self, group: str) -> None:
        """Nobody of the group is connected any more."""
        now = self._clock.now_ms()
        for (_, name), known in self._filters.items():
            if name == group and not known.dead_ms:
                known.dead_ms = now

    # The file

    def load(self) -> None:
        """Read the file. With other Bloom parameters nothing of it is taken, as in Apache."""
        data = self.file.load()
        if data is None:
            return
        try:
            found = self._read(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Heartbeats bring every filter again: not worth refusing the start for.
            _LOG.warning("filters not taken over path=%s reason=%r", self.file.path, error)
            return
        if found is None:
            _LOG.info("filters not taken over path=%s reason=bloom", self.file.path)
            return
        self._filters = found
        self._saved = data

    def _read(self, data: dict[str, Any]) -> dict[tuple[str, str], ConsumerFilterData] | None:
        found: dict[tuple[str, str], ConsumerFilterData] = {}
        for topic, entry in (data.get("filterDataByTopic") or {}).items():
            for group, values in ((entry or {}).get("groupFilterData") or {}).items():
                if not self._is_same_bloom(values.get("bloomFilterData")):
                    return None
                known = self._from_json(str(topic), values)
                if known is not None:
                    found[(str(topic), str(group))] = known
        return found

    def _is_same_bloom(self, data: Any) -> bool:
        return (
            isinstance(data, dict)
            and data.get("bitNum") == self._bloom.bit_count
            and len(data.get("bitPos") or ()) == self._bloom.position_count
        )

    def _from_json(self, topic: str, values: dict[str, Any]) -> ConsumerFilterData | None:
        expression = str(values.get("expression") or "")
        data = SubscriptionData(
            topic,
            expression,
            expression_type=str(values.get("expressionType")),
            sub_version=number_of(values.get("clientVersion") or 0),
        )
        try:
            compiled = Sql92Filter(expression)
        except FilterSyntaxError as error:
            _LOG.warning("filter not loaded topic=%s error=%s", topic, error)
            return None
        born_ms = number_of(values.get("bornTime") or 0)
        positions = tuple(number_of(bit) for bit in values["bloomFilterData"]["bitPos"])
        known = ConsumerFilterData(data, compiled, positions, born_ms)
        dead_ms = number_of(values.get("deadTime") or 0)
        known.dead_ms = dead_ms or max(born_ms, self._clock.now_ms() - _UNSEEN_MS)
        return known

    async def save(self) -> None:
        """Forget who is gone for too long and write the file if anything changed."""
        oldest = self._steady.now_ms() - self._config.filter_data_clean_time_span
        for key, known in list(self._filters.items()):
            if known.dead_ms and known.dead_ms <= oldest:
                del self._filters[key]
        if self.to_json() != self._saved:
            self.saver.touched()
        await self.saver.save()

    async def _write(self) -> None:
        value = self.to_json()
        await self.file.save(value)
        self._saved = value

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for (topic, group), known in self._filters.items():
            entry = table.setdefault(topic, {"groupFilterData": {}, "topic": topic})
            entry["groupFilterData"][group] = {
                "bloomFilterData": {"bitNum": self._bloom.bit_count, "bitPos": known.positions},
                "bornTime": known.born_ms,
                "clientVersion": known.client_version,
                "consumerGroup": group,
                "dead": bool(known.dead_ms),
                "deadTime": known.dead_ms,
                "expression": known.expression,
                "expressionType": known.expression_type,
                "topic": topic,
            }
        return {"filterDataByTopic": table}


class RetryMessageFilter:
    """What a group wants of its retry topic (ExpressionForRetryMessageFilter).

    Each record is asked by the expression for the topic it came from; a topic that the group
    subscribes by tags, or not at all, lets everything through.
    """

    needs_properties = True
    pairs = None

    def __init__(self, filters: ConsumerFilterManager, group: str) -> None:
        self._filters = filters
        self._group = group

    def matches_tags_code(self, tags_code: int) -> bool:
        return True

    def matches_properties(self, properties: bytes) -> bool:
        decoded = decode_properties(properties)
        known = self._filters.find(decoded.get(PROPERTY_RETRY_TOPIC, ""), self._group)
        return known is None or known.compiled.matches(decoded)


def retry_filter(filters: ConsumerFilterManager, topic: str) -> MessageFilter | None:
    """The filter of a retry topic under `filterSupportRetry`; None for other topics."""
    if not topic.startswith(RETRY_PREFIX):
        return None
    return RetryMessageFilter(filters, topic.removeprefix(RETRY_PREFIX))


def message_filter(data: SubscriptionData, compiled: Sql92Filter | None) -> MessageFilter | None:
    """What the store asks; None when everything is wanted."""
    if compiled is not None:
        return compiled
    if data.is_all or data.class_filter_mode:
        return None
    return TagsCodeFilter(data.code_set)
