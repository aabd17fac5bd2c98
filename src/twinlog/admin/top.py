"""One look at a cluster for `twinlog top`: health, brokers, the busiest topics and groups.

Rates are what totals grew by since the look before; of the first look they are the brokers' own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from twinlog.admin.brokers import BrokerSummary
from twinlog.admin.client import Admin, gather
from twinlog.admin.ha import GroupHAStatus
from twinlog.admin.health import ClusterHealth, cluster_health
from twinlog.client.errors import RequestCodeNotSupportedError
from twinlog.observe.health import Health, ServerFacts
from twinlog.remoting.bodies.busiest import Busiest, BusyGroup, BusyTopic
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.numbers import number_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLine:
    """One broker. None where it is not known."""

    name: str
    broker_id: int
    role: str
    address: str
    state: str
    in_rate: float | None = None
    out_rate: float | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    disk_ratio: float | None = None
    loop_lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicLine:
    topic: str
    rate: float
    bytes_rate: float


@dataclass(frozen=True, slots=True)
class GroupLine:
    group: str
    topic: str
    rate: float
    lag: int


@dataclass(frozen=True, slots=True)
class TopView:
    """What is on the screen, and the totals that the next look needs."""

    health: Health
    brokers: tuple[BrokerLine, ...] = ()
    topics: tuple[TopicLine, ...] = ()
    groups: tuple[GroupLine, ...] = ()
    totals: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    at_ms: int = 0


class _Rates:
    """What totals grew by, a second."""

    def __init__(self, before: TopView | None, now_ms: int) -> None:
        self._before = before
        self._now_ms = now_ms
        self.totals: dict[tuple[str, ...], int] = {}

    def of(self, key: tuple[str, ...], total: int, otherwise: float) -> float:
        self.totals[key] = self.totals.get(key, 0) + total
        before = self._before
        elapsed_ms = 0 if before is None else self._now_ms - before.at_ms
        if before is None or key not in before.totals or elapsed_ms <= 0:
            return otherwise
        return max(0, total - before.totals[key]) * 1000 / elapsed_ms


async def look(admin: Admin, before: TopView | None, now_ms: int) -> TopView:
    """Ask all servers at the same time."""
    found = await cluster_health(admin)

    async def ask(address: str) -> Busiest:
        try:
            answer = await admin.ask(address, RequestCode.TWINLOG_BUSIEST, action="busiest topics")
        except RequestCodeNotSupportedError:
            return Busiest()
        return msgspec.json.decode(answer.body, type=Busiest)

    (busiest,) = await asyncio.gather(
        gather([entry.address for entry in found.brokers if entry.error is None], ask)
    )
    rates = _Rates(before, now_ms)
    brokers = tuple(_broker_line(found, entry, rates) for entry in found.brokers)
    topics = [
        _topic_line(address, topic, rates)
        for address, answer in busiest.values.items()
        for topic in answer.topics
    ]
    groups = [
        _group_line(address, group, rates)
        for address, answer in busiest.values.items()
        for group in answer.groups
    ]
    return TopView(
        found.health,
        brokers,
        _merged_topics(topics),
        _merged_groups(groups),
        rates.totals,
        now_ms,
    )


def _broker_line(found: ClusterHealth, entry: BrokerSummary, rates: _Rates) -> BrokerLine:
    name, role = entry.name, entry.runtime.get("haRole", "")
    role = role or ("MASTER" if entry.broker_id == 0 else "SLAVE")
    if entry.error is not None:
        return BrokerLine(name=name, broker_id=entry.broker_id, role=role, address=entry.address,
                          state="down")  # fmt: skip
    facts: Mapping[str, ServerFacts] = {server.address: server for server in found.servers}
    server = facts.get(entry.address)
    group = next((g for g in found.groups if g.broker_name == name), None)
    lag = _lag(group, entry.broker_id) if group is not None else (None, None)
    puts = number_of(entry.runtime.get("putMessageTimesTotal", "0") or 0)
    gets = number_of(entry.runtime.get("msgGetTotalTodayNow", "0") or 0)
    return BrokerLine(
        name=name,
        broker_id=entry.broker_id,
        role=role,
        address=entry.address,
        state=_state(entry, server),
        in_rate=rates.of(("in", entry.address), puts, entry.put_tps),
        out_rate=rates.of(("out", entry.address), gets, entry.get_tps),
        lag_bytes=lag[0],
        lag_ms=lag[1],
        disk_ratio=max((d.used_ratio for d in server.disks), default=None) if server else None,
        loop_lag_ms=server.loop_lag_ms if server else None,
    )


def _state(entry: BrokerSummary, server: ServerFacts | None) -> str:
    if server is not None and server.refusal and not server.is_slave:
        return "refuses"
    return "drained" if entry.is_drained else "up"


def _lag(group: GroupHAStatus, broker_id: int) -> tuple[int | None, int | None]:
    """Of a slave, as its master sees it: the twin dialect has its id, else there is one slave."""
    if broker_id == 0:
        return None, None
    slaves = [replica for replica in group.replicas if replica.is_slave]
    own = [replica for replica in slaves if replica.broker_id == broker_id]
    chosen = own or (slaves if len(slaves) == 1 else [])
    return (chosen[0].lag_bytes, chosen[0].lag_ms) if chosen else (None, None)


def _topic_line(address: str, topic: BusyTopic, rates: _Rates) -> TopicLine:
    rate = rates.of(("topic", address, topic.topic), topic.total, topic.tps)
    size = rates.of(("size", address, topic.topic), topic.bytes_total, topic.bytes_per_second)
    return TopicLine(topic.topic, rate, size)


def _group_line(address: str, group: BusyGroup, rates: _Rates) -> GroupLine:
    rate = rates.of(("group", address, group.group, group.topic), group.total, group.tps)
    return GroupLine(group.group, group.topic, rate, group.lag)


def _merged_topics(lines: list[TopicLine]) -> tuple[TopicLine, ...]:
    """Over all brokers, the busiest first."""
    merged: dict[str, TopicLine] = {}
    for line in lines:
        known = merged.get(line.topic, TopicLine(line.topic, 0.0, 0.0))
        merged[line.topic] = TopicLine(
            line.topic, known.rate + line.rate, known.bytes_rate + line.bytes_rate
        )
    return tuple(sorted(merged.values(), key=lambda line: (-line.rate, line.topic)))


def _merged_groups(lines: list[GroupLine]) -> tuple[GroupLine, ...]:
    """A slave knows the group as well, and perhaps less: of lags the largest counts."""
    merged: dict[tuple[str, str], GroupLine] = {}
    for line in lines:
        key = (line.group, line.topic)
        known = merged.get(key, GroupLine(line.group, line.topic, 0.0, 0))
        merged[key] = GroupLine(
            line.group, line.topic, known.rate + line.rate, max(known.lag, line.lag)
        )
    return tuple(sorted(merged.values(), key=lambda line: (-line.rate, -line.lag, line.group)))
