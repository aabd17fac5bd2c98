"""A look at the queues of a cluster: which there are, where they begin and end, who is silent.

One request for each topic and broker, whatever the number of queues. Routes change seldom: a stream
that goes on asks for them every other second, and at once after somebody was silent. A queue is
gone only when a living master says so; a name server that has just started knows of no topic, and a
broker that is down is in no route.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from twinlog.client.errors import (
    BrokerError,
    BrokerTopicNotFoundError,
    ClientError,
    NameServerUnreachableError,
    NoBrokerError,
    TopicNotFoundError,
    TransportError,
)
from twinlog.client.net import calls
from twinlog.client.net.answers import body_as
from twinlog.client.net.instance import ClientInstance
from twinlog.client.queues import MessageQueue
from twinlog.message.layout import PHYSICAL_OFFSET_AT
from twinlog.message.names import is_user_topic
from twinlog.remoting.bodies.common import TopicList
from twinlog.remoting.bodies.ha import HARuntimeInfo
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.admin import GetTopicStatsInfoRequestHeader
from twinlog.spark.decode.records import LogSlice, chain
from twinlog.spark.errors import nearest_name
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import QueueKey
from twinlog.spark.read.absent import away_brokers, route_events
from twinlog.spark.read.transport import Heads, select_queues

log = logging.getLogger("twinlog.spark")
TAIL_ROWS = 32  # looked at at once for the end of what is confirmed; a broker gives no more
NAME_SERVER = "name server"
ROUTES_SECONDS = 2.0
ROUTES_AT_ONCE = 64
LOOKS_MAX = 20
Pull = Callable[[MessageQueue, int, int], Awaitable[Any]]
Bounds = dict[QueueKey, tuple[int, int]]


class Survey:
    """Asks name servers and brokers about queues."""

    def __init__(self, client: ClientInstance, options: SourceOptions, pull: Pull) -> None:
        self.client, self.options, self.pull = client, options, pull
        self._present: list[QueueKey] = []  # the queues of the routes, as of `_present_at`
        self._present_at = float("-inf")
        self._sure: dict[QueueKey, tuple[str, int]] = {}  # confirmed ends, and who said so
        self._masters: dict[str, str] = {}  # addresses of brokers that no known route names
        self._lasts: dict[QueueKey, int] = {}  # when the newest message of a queue was stored

    async def queues(self) -> list[QueueKey]:
        """Return the queues of the topics that the options may mean, as the routes have them."""
        names: Iterable[str] = self.options.topics or self.options.assign
        if self.options.pattern is not None:
            names = await self._topics()
        ordered, found = sorted(names), []
        for begin in range(0, len(ordered), ROUTES_AT_ONCE):
            some = ordered[begin : begin + ROUTES_AT_ONCE]
            for queues in await asyncio.gather(*map(self._queues_of, some)):
                found += queues
        return found

    async def _topics(self) -> list[str]:
        answer = await self.client.ask_name_servers(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, action="list of topics"
        )
        return list(body_as(answer, TopicList).topic_list)

    async def _near(self, present: Iterable[QueueKey]) -> list[QueueKey]:
        """Return queues of topics named like those that are missing, for the error about these."""
        missing = {*self.options.topics}.difference(key[0] for key in present)
        if not missing:
            return []
        users = [name for name in await self._topics() if is_user_topic(name)]
        names = {nearest_name(name, users) for name in missing}
        return [
            queue for name in names if name is not None for queue in await self._queues_of(name)
        ]

    async def all_queues(self) -> list[QueueKey]:
        """Return the same for a read that has only this look: nothing may be away unnoticed.

        Raises:
            NoBrokerError: there is no broker, or one that was in the route has left it; with
                failOnDataLoss=false the latter is only told.
        """
        found, living = await self._queues_and_brokers()
        if not living:
            raise NoBrokerError(
                "the name server knows no broker: start one, or check the brokers' namesrvAddr"
            )
        away = away_brokers(await route_events(self.client), living, self.options.outage_ms)
        if away:
            text = "; ".join(f"broker {name} is away: {why}" for name, why in away.items())
            if self.options.fail_on_data_loss:
                raise NoBrokerError(
                    f"{text}. Wait until it is back, or set failOnDataLoss=false to read without it"
                )
            log.warning("reading without the messages of an absent broker: %s", text)
        return found + await self._near(found)

    async def _queues_and_brokers(self) -> tuple[list[QueueKey], set[str]]:
        """Return both as of one moment: a broker may come back between two questions."""
        living = set(await self.client.cluster_brokers())
        for _ in range(LOOKS_MAX):
            found = await self.queues()
            before, living = living, set(await self.client.cluster_brokers())
            if living == before:
                return found, living
        raise NoBrokerError(
            "brokers kept joining and leaving while their queues were listed: try again"
        )

    async def _queues_of(self, topic: str) -> list[QueueKey]:
        try:
            route = await self.client.refresh_route(topic)
        except TopicNotFoundError:
            return []  # never there, or deleted since the list was made
        return [(q.topic, q.broker_name, q.queue_id) for q in route.read_queues(topic)]

    async def _recent_queues(self, known: Collection[QueueKey]) -> list[QueueKey]:
        """Return the queues of the routes; where a stream goes on they may be a moment old."""
        now = asyncio.get_running_loop().time()
        if not known or not self._present or now - self._present_at >= ROUTES_SECONDS:
            self._present = await self.queues()
            self._present_at = now
        return self._present

    async def heads(self, known: Collection[QueueKey]) -> Heads:
        """Look at the queues that the options ask for, and at those that are known already."""
        silent: dict[str, str] = {}
        chosen: list[QueueKey] = []
        try:
            present = await self._recent_queues(known)
            if not present and not await self.client.cluster_brokers():
                raise NoBrokerError("the name server knows no broker yet")
            near = [] if known else await self._near(present)
            chosen = select_queues(self.options, [*present, *near], known)
        except (NameServerUnreachableError, NoBrokerError) as error:
            present = []
            silent[NAME_SERVER] = str(error)
        places = {key[:2] for key in present}
        missing = set(known).difference(present)
        # A broker that registers a topic with fewer queues says itself that the others are gone.
        gone = {key for key in missing if key[:2] in places}
        bounds, more, quiet = await self._ask({*chosen, *known} - gone)
        if silent or quiet or more:
            self._present = []
        lasts = {key: self._lasts[key] for key in bounds if key in self._lasts}
        return Heads(bounds, frozenset(gone | more), {**silent, **quiet}, lasts)

    async def bounds(self, keys: Sequence[QueueKey]) -> Bounds:
        """Return first and end offset of queues.

        Raises:
            TransportError: a broker does not answer.
        """
        for topic in {key[0] for key in keys}:
            await self.client.route(topic)
        groups = _by_place(keys)
        parts = await asyncio.gather(*(self._place(*at, ids) for at, ids in groups.items()))
        found = {key: ends for part in parts for key, ends in part.items()}
        return await self._confirmed_bounds(found)

    async def _ask(self, keys: Iterable[QueueKey]) -> tuple[Bounds, set[QueueKey], dict[str, str]]:
        """Return the bounds of queues, which of them are gone, and who did not answer."""
        groups = _by_place(keys)
        asked = (self._place(*at, ids) for at, ids in groups.items())
        parts = await asyncio.gather(*asked, return_exceptions=True)
        bounds: Bounds = {}
        gone: set[QueueKey] = set()
        silent: dict[str, str] = {}
        for (topic, broker), part in zip(groups, parts, strict=True):
            if isinstance(part, dict):
                bounds |= part
            elif isinstance(part, BrokerTopicNotFoundError) and self._is_of_master(part, broker):
                gone |= {(topic, broker, number) for number in groups[topic, broker]}
            elif isinstance(part, ClientError):
                silent[broker] = str(part)
            else:
                raise part
        try:
            bounds = await self._confirmed_bounds(bounds)
        except ClientError as error:
            return {}, gone, {**silent, "confirmed offsets": str(error)}
        return bounds, gone, silent

    async def is_gone(self, key: QueueKey) -> bool:
        """Say whether a queue that was there is gone, by the rule of `heads`."""
        topic, broker, _ = key
        try:
            present = await self._queues_of(topic)
            if any(there[:2] == key[:2] for there in present):
                return key not in present
            await self._place(topic, broker, ())
        except BrokerTopicNotFoundError as error:
            return self._is_of_master(error, broker)
        except ClientError:
            return False
        return False

    def _is_of_master(self, error: BrokerError, broker: str) -> bool:
        return error.address in (self.client.master_address(broker), self._masters.get(broker))

    async def _place(self, topic: str, broker: str, queue_ids: Collection[int]) -> Bounds:
        """Return the bounds of a topic's queues on one broker, with one request."""
        if broker not in self.client.brokers:
            await self._ask_unrouted(topic, broker)
        table = await calls.topic_offsets(self.client, topic, broker)
        found: Bounds = {}
        for number in set(queue_ids).intersection(table):
            ends = table[number]
            found[topic, broker, number] = (ends.min_offset, ends.max_offset)
            self._lasts[topic, broker, number] = ends.last_update_timestamp
        for number in set(queue_ids).difference(table):  # to be read, not to be written
            queue = MessageQueue(topic, broker, number)
            low, high = (
                await calls.min_offset(self.client, queue),
                await calls.max_offset(self.client, queue),
            )
            found[topic, broker, number] = (low, high)
        return {key: (min(max(0, low), high), high) for key, (low, high) in found.items()}

    async def _ask_unrouted(self, topic: str, broker: str) -> None:
        """Ask a master that no known route names whether it has a topic: it may have had only this.

        Raises:
            BrokerTopicNotFoundError: it does not have it.
        """
        registered = (await self.client.cluster_brokers()).get(broker)
        address = registered.master_address if registered is not None else None
        if address is None:
            return
        self._masters[broker] = address
        await self.client.transport.call(
            address, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequestHeader(topic),
            timeout_ms=self.client.settings.request_timeout_ms, action="queue offsets",
        )  # fmt: skip

    # What replicas have confirmed

    async def _confirmed_bounds(self, bounds: Bounds) -> Bounds:
        """Lower the ends to what the replicas of a SYNC_MASTER have confirmed."""
        if self.options.isolation != "confirmed":
            return bounds
        limits = {name: await self._confirmed(name) for name in {key[1] for key in bounds}}
        found = {}
        for key, (low, high) in bounds.items():
            address, limit = limits[key[1]]
            end = high
            if limit is not None and self._sure.get(key) != (address, high):
                end = await self._confirmed_end(key, low, high, limit)
                self._sure[key] = (address, end)
            found[key] = (low, end)
        return found

    async def _confirmed_end(self, key: QueueKey, begin: int, end: int, limit: int) -> int:
        """Step back over the tail that is not confirmed yet; it is what is under way."""
        while end > begin:
            low = max(begin, end - TAIL_ROWS)
            good = await self._confirmed_rows(key, low, end, limit)
            if good:
                return low + good
            end = low
        return end

    async def _confirmed_rows(self, key: QueueKey, low: int, high: int, limit: int) -> int:
        """Count the rows from `low` on that end at or before the physical offset `limit`."""
        at = low
        while at < high:
            answer = await self.pull(MessageQueue(*key), at, high - at)
            if not answer.body:
                return high - low  # deleted meanwhile: the read will tell
            data = LogSlice.over(answer.body, 0)
            places = chain(data)
            if not len(places):
                return high - low  # damaged: the read will tell
            tops = data.ints(">i8", places + PHYSICAL_OFFSET_AT) + data.ints(">i4", places)
            good = int(np.searchsorted(tops, limit, "right"))
            at += good
            if good < len(tops):
                break
        return at - low

    async def _confirmed(self, broker: str) -> tuple[str, int | None]:
        """Ask a SYNC_MASTER of ours how far its replicas are; None where that has no answer."""
        target = calls.readable(self.client, broker, 0)
        if target.is_slave:
            return target.address, None  # what a slave has is on two machines
        try:
            answer = await self.client.transport.call(
                target.address, RequestCode.GET_BROKER_HA_STATUS, {},
                timeout_ms=self.client.settings.request_timeout_ms, action="confirmed offset",
            )  # fmt: skip
        except BrokerError:
            return target.address, None  # Apache's 4.9 does not know the request
        except TransportError as error:
            self.client.connection_failed(target.address, error)
            return target.address, None
        own = body_as(answer, HARuntimeInfo).twinlog
        confirmed = own.confirmed_offset or 0
        is_told = own.role == "SYNC_MASTER" and confirmed > 0
        # What was there when the ends were asked for is confirmed where nothing is under way.
        is_behind = own.marks.appended <= 0 or confirmed < own.marks.appended
        return target.address, confirmed if is_told and is_behind else None


def _by_place(keys: Iterable[QueueKey]) -> dict[tuple[str, str], list[int]]:
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for topic, broker, number in sorted(keys):
        groups[topic, broker].append(number)
    return groups
