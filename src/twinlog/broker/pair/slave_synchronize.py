"""A slave's copy of its master's tables, asked for every ten seconds (RocketMQ's SlaveSynchronize).

In this order: topics (through the master's VIP port, as Apache does), consumer offsets, delay
offsets, subscription groups. Memory first, then disk. One that fails does not stop the others, and
without a known master nothing is asked and nothing is cleared.

What arrives is checked before it replaces anything: a table that cannot be read or that is empty is
refused with one line, of another cluster's master none is taken, and one whose version is older
than ours is only merged. A copy of a twinlog's log takes tables only while that log is replicated:
a master that was started with an empty disk, or that has another log, would erase what ours says.

Only of a master that is known not to be twinlog are offsets taken as they are, as Apache's slave
does. Otherwise they never move back this way and never beyond the slave's own log: an answer
overtakes the log, and a copy that becomes the master must not skip what it lacks. What was
set back on purpose, and the delay offsets, come through the log. So does every change: of a twinlog
master whose tables were taken once only versions are asked for, and the tables now and then.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from twinlog.broker.delay.schedule import ScheduleMessageService, delay_table
from twinlog.broker.pair.metadata_log import OffsetsMoved
from twinlog.broker.tables import offset_json
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager, offset_table
from twinlog.broker.tables.subscription_group import SubscriptionGroupManager
from twinlog.broker.tables.topic_config import TopicConfigManager, topic_from_json
from twinlog.remoting import fastjson
from twinlog.remoting.addresses import join_address, split_address
from twinlog.remoting.bodies.common import DataVersion, version_of
from twinlog.remoting.bodies.subscription_group import group_from_json
from twinlog.remoting.bodies.twinlog import BrokerInfo
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig

_LOG = logging.getLogger("twinlog.broker")

FIRST_MS = 3_000
PERIOD_MS = 10_000
# Cycles in a row in which a twinlog master is only asked whether anything differs.
SPARED_MAX = 30
_TIMEOUT_MS = 3_000
_VIP_OFFSET = 2


class _Age(enum.Enum):
    SAME = "same"
    NEWER = "newer"
    OLDER = "older"


class _Refused(Exception):
    """What the master sent is not taken over."""


class SlaveSynchronize:
    """Runs on a slave. `master_address` is what the last registration said, None when unknown."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        client: RemotingClient,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        schedule: ScheduleMessageService,
        clock: Clock,
        is_classic: Callable[[], bool],
        queue_end: Callable[[str, int], int],
        is_twin: Callable[[], bool] = lambda: False,
        is_following: Callable[[], bool] = lambda: True,
    ) -> None:
        self._config = config
        self._client = client
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._schedule = schedule
        self._clock = clock
        self._is_classic = is_classic
        self._queue_end = queue_end
        self._is_twin = is_twin
        self._is_following = is_following
        self._base: Any = None  # Of which process of which twinlog master all four were taken.
        self._spared = 0
        self._boot = str(clock.now_ms())
        self._foreign_address: str | None = None
        self._problems: dict[str, str] = {}
        self._taken: dict[str, DataVersion] = {}
        self._gone_back: set[str] = set()
        self.master_address: str | None = None
        self.last_success_ms = 0

    async def run(self) -> None:
        await self._clock.sleep_ms(FIRST_MS)
        while True:
            await self.sync_all()
            await self._clock.sleep_ms(PERIOD_MS)

    async def sync_all(self) -> bool:
        """One cycle; True when all four tables were asked for and taken."""
        master = self._current_master()
        if master is None:
            return False
        process = await self._process_of(master) if self._is_twin() else None
        is_spared = process is not None and process == self._base and self._spared < SPARED_MAX
        if is_spared and not self._problems:
            self._spared += 1
            self.last_success_ms = self._clock.now_ms()
            return True
        self._spared = 0
        steps: list[tuple[str, Callable[[str], Coroutine[Any, Any, None]]]] = [
            ("topics", self._sync_topics),
            ("consumer offsets", self._sync_consumer_offsets),
            ("delay offsets", self._sync_delay_offsets),
            ("subscription groups", self._sync_groups),
        ]
        is_complete = True
        for name, step in steps:
            # Read again each time: a registration may have changed it while a table was on its way.
            address = self._current_master()
            if address is None:
                return False
            is_complete &= await self._try(name, step, address)
        if is_complete:
            self._base = process
            self.last_success_ms = self._clock.now_ms()
        return is_complete

    def add_versions(self, info: BrokerInfo) -> None:
        """For slaves of this broker: which process of it it is, and the versions of its tables."""
        info.process = self._boot
        info.topics_version = self._topics.data_version
        info.groups_version = self._groups.data_version

    async def _process_of(self, address: str) -> tuple[str, str] | None:
        """Which process of a twinlog master it is, when our tables are as its; otherwise None.

        What changed since they were taken comes through the log. So the large tables are not asked
        for again and again, only what they would say.
        """
        try:
            data = await self._ask(address, RequestCode.TWINLOG_INFO)
            info = msgspec.convert(data, BrokerInfo, strict=False)
            if not info.process or info.topics_version is None or info.groups_version is None:
                raise _Refused("the master does not tell the versions of its tables")
            for name, version, ours in (
                ("topics", info.topics_version, self._topics.data_version),
                ("groups", info.groups_version, self._groups.data_version),
            ):
                if version not in (ours, self._taken.get(name)):
                    self._base = None
            return address, info.process
        except (RemotingError, OSError, ValueError, _Refused) as error:
            _LOG.debug("master not asked for versions address=%s reason=%s", address, error)
            return None

    def _current_master(self) -> str | None:
        return self.master_address if self._is_following() else None

    def queues_cut(self, ends: Mapping[tuple[str, int], int]) -> None:
        """The log was cut: offsets follow it back, or they would skip what comes instead."""
        self._offsets.queues_cut(ends)
        self._schedule.queues_cut(ends)

    @property
    def problems(self) -> dict[str, str]:
        """Table -> why its last copy failed, for the status."""
        return dict(self._problems)

    async def _try(
        self, name: str, step: Callable[[str], Coroutine[Any, Any, None]], address: str
    ) -> bool:
        try:
            if address == self._foreign_address and name != "topics":
                raise _Refused("the master belongs to another cluster")
            await step(address)
        except (RemotingError, OSError, ValueError, TypeError, AttributeError, _Refused,
                msgspec.ValidationError) as error:  # fmt: skip
            # Damaged data raises whatever the damage leads to; none of it may stop the others.
            reason = f"{type(error).__name__}: {error}" if not str(error) else str(error)
            if self._problems.get(name) != reason:
                self._problems[name] = reason
                _LOG.warning(
                    "slave sync failed table=%s master=%s reason=%s", name, address, reason
                )
            return False
        if self._problems.pop(name, None) is not None:
            _LOG.info("slave sync works again table=%s master=%s", name, address)
        return True

    async def _ask(self, address: str, code: RequestCode) -> dict[str, Any]:
        answer = await self._client.invoke(address, RemotingCommand.request(code), _TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise _Refused(f"the master answered {answer.code}: {answer.remark}")
        if not self._is_following():
            raise _Refused("the master does not replicate its log to this slave any more")
        loads = offset_json.loads if code == RequestCode.GET_ALL_CONSUMER_OFFSET else fastjson.loads
        value = loads(bytes(answer.body))
        if not isinstance(value, dict):
            raise _Refused("the master's table is not a JSON object")
        return value

    # The four tables

    async def _sync_topics(self, address: str) -> None:
        host, port = split_address(address)
        data = await self._ask(
            join_address(host, port - _VIP_OFFSET), RequestCode.GET_ALL_TOPIC_CONFIG
        )
        received = data.get("topicConfigTable") or {}
        table = {name: topic_from_json(name, value) for name, value in received.items()}
        if not table:
            raise _Refused("the master's topic table is empty; ours is kept")
        is_foreign = self._config.broker_cluster_name not in table
        self._foreign_address = address if is_foreign else None
        if is_foreign:
            raise _Refused(
                f"the master does not know the cluster {self._config.broker_cluster_name!r}:"
                " it belongs to another cluster; our tables are kept"
            )
        self._take("topics", self._topics, table, data.get("dataVersion"))
        await self._topics.saver.save()

    async def _sync_consumer_offsets(self, address: str) -> None:
        data = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = offset_table(data)
        if self._is_classic():
            self._offsets.merge(OffsetsMoved(back=table))
        else:
            self._offsets.take_forward(table, self._queue_end, are_own_taken=True)
        await self._offsets.saver.save()

    async def _sync_delay_offsets(self, address: str) -> None:
        data = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
        if not data.get("offsetTable"):
            return
        if self._is_classic():
            self._schedule.replace(data)
        else:
            # A base for levels that the log has said nothing about.
            self._schedule.replace({"offsetTable": {**delay_table(data), **self._schedule.offsets}})
        await self._schedule.saver.save()

    async def _sync_groups(self, address: str) -> None:
        data = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        received = data.get("subscriptionGroupTable") or {}
        table = {
            name: group_from_json({**value, "groupName": name}) for name, value in received.items()
        }
        if not table:
            raise _Refused("the master's group table is empty; ours is kept")
        self._take("groups", self._groups, table, data.get("dataVersion"))
        await self._groups.saver.save()

    def _take(self, name: str, manager: Any, table: dict[str, Any], version: Any) -> None:
        """Replace a table by a newer one; of an older one take only what is missing here."""
        age = self._judge(name, manager.data_version, version)
        if age is _Age.NEWER:
            manager.replace(table, version)
        elif age is _Age.OLDER:
            missing = {key: value for key, value in table.items() if key not in manager.table}
            if missing:
                manager.replace({**manager.table, **missing}, manager.data_version.to_json())

    # Versions

    def _judge(self, name: str, mine: DataVersion, given: Any) -> _Age:
        """How the master's version stands to the one that was taken over last.

        Equal to our own it needs no copy: the log brought it. But ours is not what decides the age:
        a slave creates groups by itself when consumers come to it, and its version then says
        nothing about the master's.
        """
        theirs = version_of(given, DataVersion())
        if theirs == mine:
            self._taken[name] = theirs
            return _Age.SAME
        taken = self._taken.get(name)
        if taken is None:
            # A fresh slave's version is the time of its start; a loaded one was taken over once.
            taken = mine if mine.counter else DataVersion()
        if theirs == taken:
            return _Age.SAME
        if (theirs.timestamp, theirs.counter) > (taken.timestamp, taken.counter):
            self._taken[name] = theirs
            return _Age.NEWER
        if name not in self._gone_back:
            self._gone_back.add(name)
            _LOG.warning(
                "slave sync: the master's version went back table=%s master=%s taken=%s;"
                " this slave drops nothing", name, theirs, taken,
            )  # fmt: skip
        return _Age.OLDER
