"""Filters of consumers: tag hashes and compiled SQL92 expressions (ConsumerFilterManager).

A SQL92 subscription is compiled once, when its heartbeat comes; one that does not compile leaves
no entry, and its pulls are told so. Owns `config/consumerFilter.json`: an entry outlives the
connections of its group by `filterDataCleanTimeSpan`.

Retry topics are subscribed as a whole. With `filterSupportRetry` what lies in one is filtered by
the expression that its group has for the topic the message came from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from twinlog.broker.filter.bloom import BloomParameters
from twinlog.broker.filter.sql92 import (
    FilterSyntaxError,
    Sql92Filter,
    compile_filter,
    load_parser,
    parser_loaded,
)
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.message.names import RETRY_PREFIX
from twinlog.message.properties import PROPERTY_RETRY_TOPIC, decode_properties
from twinlog.remoting import fastjson
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


COMPILED_MAX = 10_000  # Characters of new expressions of one heartbeat: 30 ms.
_COMPILED_EACH = 64  # A short one counts for more.
FILTERS_MAX = 50_000  # Some 3 KB each. They outlive their consumers by a day.
_NONE: dict[str, ConsumerFilterData] = {}


class CompileBudget:
    """How much of the expressions of one heartbeat is compiled.

    The rest comes with the client's next heartbeats; until then its pulls are answered that there
    is no filter yet.
    """

    def __init__(self) -> None:
        self._left = COMPILED_MAX
        self.put_off = 0

    def takes(self, expression: str) -> bool:
        self._left -= len(expression) + _COMPILED_EACH
        self.put_off += self._left < 0
        return self._left >= 0


class ConsumerFilterManager:
    """Compiled filters by group and topic."""

    def __init__(self, config: BrokerConfig, file: ConfigFile, clock: Clock) -> None:
        self._config = config
        self.file = file
        self._clock = clock
        self._steady = SteadyWall(clock)
        self._bloom = BloomParameters.of(
            config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter
        )
        self._filters: dict[str, dict[str, ConsumerFilterData]] = {}
        self._count = 0
        # Group and topic of those without a consumer, in the order in which they became so.
        self._dead: dict[tuple[str, str], None] = {}
        self.saver = TableSaver("filters", self._write)
        # Loads it now, or begins to: what needs it comes with the next heartbeats then.
        self.want_parser: Callable[[], None] = load_parser

    def find(self, topic: str, group: str) -> ConsumerFilterData | None:
        return self._filters.get(group, _NONE).get(topic)

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], budget: CompileBudget
    ) -> Iterator[None]:
        """Note a heartbeat's subscriptions, in steps; an expression is compiled when it is new."""
        topics = set()
        for data in subscriptions:
            topics.add(data.topic)
            if data.is_tag_type:
                self._forget(group, data.topic)
            elif data.sub_string:
                self._register(group, data, budget)
                yield
        for topic, known in self._filters.get(group, _NONE).items():
            if topic not in topics:
                self._died(group, topic, known)

    def _register(self, group: str, data: SubscriptionData, budget: CompileBudget) -> None:
        known = self.find(data.topic, group)
        if known is not None and known.expression == data.sub_string:
            if known.dead_ms or data.sub_version > known.client_version:
                known.client_version = max(known.client_version, data.sub_version)
                known.dead_ms = 0
                self._dead.pop((group, data.topic), None)
                self.saver.touched()
            return
        if known is not None and data.sub_version < known.client_version:
            return  # An older member of the group: the newest subscription holds.
        if not budget.takes(data.sub_string) or not self._has_room():
            return
        if not parser_loaded.is_set():
            self.want_parser()
        if not parser_loaded.is_set():
            budget.put_off += 1
            return
        self._forget(group, data.topic)
        try:
            compiled = compile_filter(data.expression_type, data.sub_string)
        except FilterSyntaxError as error:
            _LOG.warning("filter refused group=%s topic=%s error=%s", group, data.topic, error)
            return
        positions = self._bloom.positions(f"{group}#{data.topic}")
        new = ConsumerFilterData(data, compiled, positions, self._clock.now_ms())
        self._keep(group, data.topic, new)

    def _has_room(self) -> bool:
        """For one more: who is gone longest makes room."""
        if self._count >= FILTERS_MAX and self._dead:
            self._forget(*next(iter(self._dead)))
        return self._count < FILTERS_MAX

    def _keep(self, group: str, topic: str, known: ConsumerFilterData) -> None:
        self._filters.setdefault(group, {})[topic] = known
        self._count += 1
        if known.dead_ms:
            self._dead[(group, topic)] = None
        self.saver.touched()

    def _forget(self, group: str, topic: str) -> None:
        filters = self._filters.get(group, _NONE)
        if topic in filters:
            del filters[topic]
            if not filters:
                del self._filters[group]
            self._count -= 1
            self._dead.pop((group, topic), None)
            self.saver.touched()

    def _died(self, group: str, topic: str, known: ConsumerFilterData) -> None:
        if not known.dead_ms:
            known.dead_ms = self._clock.now_ms()
            self._dead[(group, topic)] = None
            self.saver.touched()

    def group_gone(self, group: str) -> None:
        """Nobody of the group is connected any more."""
        for topic, known in self._filters.get(group, _NONE).items():
            self._died(group, topic, known)

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
        for (group, topic), known in found.items():
            self._keep(group, topic, known)

    def _read(self, data: dict[str, Any]) -> dict[tuple[str, str], ConsumerFilterData] | None:
        """By group and topic; None: the file is of other parameters."""
        found: dict[tuple[str, str], ConsumerFilterData] = {}
        for topic, entry in (data.get("filterDataByTopic") or {}).items():
            for group, values in ((entry or {}).get("groupFilterData") or {}).items():
                if not self._is_same_bloom(values.get("bloomFilterData")):
                    return None
                known = self._from_json(str(topic), values)
                if known is not None:
                    found[(str(group), str(topic))] = known
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
        for group, topic in list(self._dead):
            if self._filters[group][topic].dead_ms <= oldest:
                self._forget(group, topic)
        await self.saver.save()

    async def _write(self) -> None:
        await self.file.save_parts(self._parts())

    def _parts(self) -> Iterator[bytes]:
        """The file, a filter in each part; it may change between them."""
        opening = b'{\n\t"filterDataByTopic":{'
        for topic, groups in self._groups_by_topic().items():
            name = fastjson.dumps(topic)
            opening += b'\n\t\t%b:{\n\t\t\t"groupFilterData":{' % name
            for group, known in groups:
                text = fastjson.dumps_pretty({group: self._values(topic, group, known)}, level=3)
                yield opening + text[1 : -len(b"\n\t\t\t}")]
                opening = b","
            yield b'\n\t\t\t},\n\t\t\t"topic":%b\n\t\t}' % name
        yield b"\n\t}\n}" if opening == b"," else opening + b"}\n}"

    def _groups_by_topic(self) -> dict[str, list[tuple[str, ConsumerFilterData]]]:
        found: dict[str, list[tuple[str, ConsumerFilterData]]] = {}
        for group, filters in self._filters.items():
            for topic, known in filters.items():
                found.setdefault(topic, []).append((group, known))
        return found

    def _values(self, topic: str, group: str, known: ConsumerFilterData) -> dict[str, Any]:
        return {
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
