"""What push and pull consumers share: membership, rebalance, readers, offsets.

Corresponds to RebalanceImpl, RebalanceService and the consumer half of MQClientInstance. One task
owns the assignment; everybody else asks it for a round.

Letting go of a queue: pull no more, start no more handlers, wait a moment for those that run,
commit, and only then is it let go. Taking a queue that another member may still hold waits a moment
first, so that its last commit is seen. Neither is a guarantee: RocketMQ has no fencing, so a
message may be handled twice around a change of members, never lost.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from twinlog.client.consumer.listener import RebalanceListener
from twinlog.client.consumer.offset_store import OffsetStore, RemoteOffsetStore
from twinlog.client.consumer.queue_reader import QueueReader, ReadLimits
from twinlog.client.consumer.rebalance import (
    AllocateStrategy,
    allocate,
    allocate_averagely,
    difference,
)
from twinlog.client.consumer.subscription import parse_subscription
from twinlog.client.errors import ClientClosedError, ClientError, TopicNotFoundError, UsageError
from twinlog.client.message import ReceivedMessage, check_topic
from twinlog.client.net import calls
from twinlog.client.net.instance import ClientInstance, MemberRole
from twinlog.client.queues import MessageQueue
from twinlog.message.names import RETRY_PREFIX, retry_topic
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request

_LOG = logging.getLogger("twinlog.client")
REBALANCE_MS = 20_000  # Java's.
RETRY_MS = 1000  # After a round that could not do everything.
LOCK_RENEW_MS = 20_000  # Java's; the broker forgets a lock after 60 s.
LOCK_VALID_MS = 30_000  # Java's: older than this a lock is not relied upon.
RELEASE_WAIT_MS = 150
TAKEOVER_WAIT_MS = 250  # Longer than others wait before they let go.


class ConsumeFrom(enum.Enum):
    """Where a group starts that has no offset yet. Names of RocketMQ's ConsumeFromWhere."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a group consumes."""

    is_push: bool = True
    is_broadcast: bool = False
    is_ordered: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    consume_timestamp_ms: int = 0
    strategy: AllocateStrategy = allocate_averagely
    limits: ReadLimits = field(default_factory=ReadLimits)
    commit_ms: int = 5000
    commits_by_timer: bool = True
    listener: RebalanceListener | None = None
    revoke_timeout_ms: int = 5000


class ConsumerCore:
    """One member of a consumer group."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        settings: ConsumerSettings,
        *,
        deliver: Callable[[QueueReader, list[ReceivedMessage]], None],
        released: Callable[[QueueReader], None],
        offsets: OffsetStore | None = None,
    ) -> None:
        self.group = group
        self.instance = instance
        self.settings = settings
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.is_draining = False
        self.offsets = offsets or RemoteOffsetStore(instance, group)
        # Listed as a member from the first subscription on; never with chosen queues.
        self.role = MemberRole.UNLISTED
        self._deliver = deliver
        self._released = released
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._is_stopping = False
        self._is_started = False
        self._last_version = 0
        instance.add_member(self)

    # Life

    async def start(self) -> bool:
        """Connect and begin to work. False when it works already."""
        self.instance.on_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        await self.instance.start()
        if self._is_started:
            return False
        self._is_started = True
        tasks = self.instance.tasks
        tasks.contained("rebalance", self._run)
        if self.settings.commits_by_timer:
            tasks.contained("commit offsets", self._commit_loop)
        if self.settings.is_ordered and not self.settings.is_broadcast:
            tasks.contained("renew locks", self._lock_loop)
        return True

    async def stop(self, handler_timeout_ms: float) -> None:
        """Let go of every queue: handlers end (at most so long), offsets are committed."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self._wake.set()
        try:
            if self._is_started and self.instance.is_running:
                await self._look_for_masters()
                await self._release(list(self.readers), wait_ms=handler_timeout_ms)
        finally:
            try:
                await self.instance.stop()
            finally:
                closed = ClientClosedError("this consumer was closed in the meantime")
                for waiter in self._waiters:
                    if not waiter.done():
                        waiter.set_exception(closed)

    async def _look_for_masters(self) -> None:
        """One may be back since the last look: the last offsets belong there, not on a slave."""
        for broker_name, topic in {q.broker_name: q.topic for q in self.readers}.items():
            try:
                await self.instance.look_for_master(broker_name, topic)
            except ClientError as error:
                _LOG.debug(
                    "cannot find out which replica is the master broker=%s reason=%s",
                    broker_name,
                    error,
                )

    # Subscriptions

    async def subscribe(
        self, topic: str, expression: str | None, *, sql: bool = False
    ) -> SubscriptionData:
        """Add or replace a subscription; returns when its queues are assigned.

        A topic that does not exist yet is fine: its queues are taken when it appears.
        """
        check_topic(topic)
        self.instance.check_usable()
        subscription = parse_subscription(topic, expression, sql=sql, version=self._version())
        await self._look_up(topic)
        if sql:
            await self._check_sql(subscription)
        before = self.subscriptions.get(topic)
        self.subscriptions[topic] = subscription
        try:
            await self._join()
        except BaseException:  # Also when the caller gives up: nobody handles what comes.
            if self.subscriptions.get(topic) is subscription:
                self._restore(topic, before)
            raise
        for queue, reader in list(self.readers.items()):
            if queue.topic == topic and reader.subscription is not subscription:
                reader.change(subscription)
        return subscription

    def _restore(self, topic: str, before: SubscriptionData | None) -> None:
        """A subscription did not come about: what was there before holds again."""
        if before is not None:
            self.subscriptions[topic] = before
            return
        del self.subscriptions[topic]
        for queue, reader in self.readers.items():
            if queue.topic == topic:
                reader.stop()
        self._wake.set()  # The next round lets go of them.

    async def unsubscribe(self, topic: str) -> None:
        if self.subscriptions.pop(topic, None) is None:
            raise UsageError(
                f"this consumer is not subscribed to topic {topic!r}: call subscribe() first"
            )
        await self.instance.heartbeat()
        await self.round()

    async def assign(
        self, queues: list[MessageQueue], subscribe: Callable[[str], SubscriptionData]
    ) -> None:
        """Read exactly `queues`, outside of the group's rebalance."""
        change = difference(list(self.readers), queues)
        await self._release(change.revoked, wait_ms=0)
        for queue in change.gained:
            offset = await self._start_offset(queue)
            if self._is_stopping:
                raise ClientClosedError("this consumer was closed in the meantime")
            self.make_reader(queue, subscribe(queue.topic), offset).start()

    async def _join(self) -> None:
        self.role = MemberRole.CONSUMER
        if self.settings.is_push and not self.settings.is_broadcast:
            retry = retry_topic(self.group)
            if retry not in self.subscriptions:
                self.subscriptions[retry] = parse_subscription(retry, "*", version=self._version())
        await self.instance.heartbeat()
        self.instance.check_admitted()
        await self.round()

    def _version(self) -> int:
        """Rises with each subscription, also within one millisecond: brokers keep the highest."""
        self._last_version = max(self._last_version + 1, self.instance.clock.now_ms())
        return self._last_version

    async def _look_up(self, topic: str) -> None:
        try:
            await self.instance.route(topic)
        except TopicNotFoundError:
            _LOG.warning("topic does not exist yet, waiting for it topic=%s", topic)

    async def _check_sql(self, subscription: SubscriptionData) -> None:
        route = self.instance.cached_route(subscription.topic)
        if route is not None and route.brokers:
            broker_name = next(iter(route.brokers))
            await calls.check_client_config(self.instance, self.group, broker_name, subscription)

    # GroupMember

    def heartbeat_data(self) -> dict[str, Any]:
        settings = self.settings
        return {
            "consumeFromWhere": settings.consume_from.value,
            "consumeType": "CONSUME_PASSIVELY" if settings.is_push else "CONSUME_ACTIVELY",
            "groupName": self.group,
            "messageModel": "BROADCASTING" if settings.is_broadcast else "CLUSTERING",
            "subscriptionDataSet": [s.to_json() for s in self.subscriptions.values()],
            "unitMode": False,
        }

    def routes_changed(self) -> None:
        if isinstance(self.offsets, RemoteOffsetStore):
            self.offsets.forget_committed()
        self._wake.set()

    def _members_changed(self, connection: Any, request: Request) -> None:
        if request.ext().get("consumerGroup") != self.group or self._is_stopping:
            return
        # Whoever takes a queue from us reads the committed offset within moments.
        self.instance.tasks.job("commit before rebalance", self.commit(wait=False))
        self._wake.set()

    # Rebalance

    async def round(self) -> None:
        """Ask for a rebalance and wait until one that began after now is done."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wake.set()
        await waiter

    async def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            waiters, self._waiters = self._waiters, []
            try:
                is_complete = await self._rebalance()
            except BaseException:
                self._waiters[:0] = waiters
                raise
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            try:
                async with asyncio.timeout((REBALANCE_MS if is_complete else RETRY_MS) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _rebalance(self) -> bool:
        """One round. False when something has to be tried again soon."""
        is_complete = True
        for topic in list(self.subscriptions):
            try:
                is_complete &= await self._rebalance_topic(topic)
            except TopicNotFoundError:
                # The route poll looks for it; the heartbeat creates the retry topic.
                is_complete &= not topic.startswith(RETRY_PREFIX)
            except ClientError as error:
                _LOG.warning("rebalance failed topic=%s reason=%s", topic, error)
                is_complete = False
        orphans = [q for q in self.readers if q.topic not in self.subscriptions]
        if orphans and self.role is MemberRole.CONSUMER:
            is_complete &= await self._let_go(orphans)
        return is_complete

    async def _rebalance_topic(self, topic: str) -> bool:
        route = await self.instance.route(topic)
        queues = route.read_queues(topic)
        if self.settings.is_broadcast:
            target, is_alone = queues, True
        else:
            members = await self._member_ids(list(route.brokers))
            if self.instance.client_id not in members:
                # The broker does not know us (yet, or any more): keep what we have and say hello.
                await self.instance.heartbeat()
                return False
            is_alone = len(members) == 1
            target = allocate(self.settings.strategy, self.instance.client_id, queues, members)
        if self._is_stopping:
            return True  # Whoever stops it lets go of everything.
        current = [queue for queue in self.readers if queue.topic == topic]
        revoked = difference(current, target).revoked
        is_complete = await self._let_go(
            {*revoked, *(q for q in current if self.readers[q].process.is_dropped)}
        )
        # Also those that were dropped just now and are ours again.
        gained = difference(list(self.readers), target).gained
        if not gained or self._is_stopping:
            return is_complete
        if not is_alone:
            await self.instance.clock.sleep_ms(TAKEOVER_WAIT_MS)
        return await self._take(gained) and is_complete

    async def _member_ids(self, broker_names: list[str]) -> list[str]:
        error: ClientError | None = None
        for broker_name in broker_names:
            try:
                members = await calls.consumer_ids(self.instance, self.group, broker_name)
            except ClientError as failure:
                error = failure
                continue
            if members:
                return members
        if error is not None:
            raise error
        return []

    async def _take(self, queues: Collection[MessageQueue]) -> bool:
        found = await asyncio.gather(*(self._prepare(queue) for queue in queues))
        offsets = {queue: offset for queue, offset in found if offset is not None}
        await self._tell("on_assigned", list(offsets))
        for queue, offset in offsets.items():
            self._begin(queue, offset)
        return len(offsets) == len(queues)

    async def _tell(self, what: str, queues: list[MessageQueue]) -> None:
        """The user's listener, in its time; what it raises is the user's to read in the log."""
        listener = self.settings.listener
        if listener is None or not queues:
            return
        try:
            async with asyncio.timeout(self.settings.revoke_timeout_ms / 1000):
                await getattr(listener, what)(sorted(queues))
        except Exception as error:
            # The listener's own error, or its time is up: queues must change hands anyway.
            _LOG.warning(
                "%s of the listener failed group=%s error=%r", what, self.group, error,
                exc_info=error,
            )  # fmt: skip

    async def _prepare(self, queue: MessageQueue) -> tuple[MessageQueue, int | None]:
        """Where to begin in a queue that is ours now; None when that is not known yet."""
        try:
            if not await self._locked(queue):
                return queue, None
            return queue, await self._start_offset(queue)
        except ClientError as error:
            _LOG.warning("queue not assigned yet queue=%s reason=%s", queue, error)
            return queue, None

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        subscription = self.subscriptions.get(queue.topic)
        if self._is_stopping or subscription is None or queue in self.readers:
            return
        reader = self.make_reader(queue, subscription, offset)
        if self.settings.is_ordered:
            reader.locked_until_ms = self.instance.clock.monotonic_ms() + LOCK_VALID_MS
        self.offsets.update(queue, offset)
        reader.start()
        _LOG.info("queue assigned group=%s queue=%s offset=%d", self.group, queue, offset)

    def make_reader(
        self, queue: MessageQueue, subscription: SubscriptionData, offset: int
    ) -> QueueReader:
        reader = QueueReader(
            self.instance, self.group, queue, subscription, offset,
            limits=self.settings.limits, deliver=self._deliver, skipped=self._skipped,
        )  # fmt: skip
        reader.is_paused = self.is_draining
        self.readers[queue] = reader
        return reader

    def _skipped(self, reader: QueueReader) -> None:
        """Nothing for us up to here: that is progress too."""
        if not reader.is_released and self.settings.commits_by_timer:
            self.offsets.update(reader.queue, reader.process.commit_offset)

    async def _start_offset(self, queue: MessageQueue) -> int:
        committed = await self.offsets.read(queue)
        if committed is not None:
            return committed
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        settings = self.settings
        if settings.consume_from is ConsumeFrom.FIRST_OFFSET or is_retry:
            return await calls.min_offset(self.instance, queue)
        if settings.consume_from is ConsumeFrom.LAST_OFFSET:
            return await calls.max_offset(self.instance, queue)
        return await calls.offset_for_time(self.instance, queue, settings.consume_timestamp_ms)

    async def _let_go(self, queues: Collection[MessageQueue]) -> bool:
        """At a rebalance. A locked queue whose handler still runs stays ours until it ends, or the
        next member would begin next to it; False: there is one."""
        if self._needs_locks:
            readers = [self.readers[queue] for queue in queues if queue in self.readers]
            for reader in readers:
                reader.stop()
            await asyncio.gather(*(reader.wait_idle(RELEASE_WAIT_MS) for reader in readers))
            queues = [reader.queue for reader in readers if not reader.running]
            await self._release(queues, wait_ms=0)
            return len(queues) == len(readers)
        await self._release(queues, wait_ms=RELEASE_WAIT_MS)
        return True

    async def _release(self, queues: Collection[MessageQueue], *, wait_ms: float) -> None:
        if not queues:
            return
        readers = [self.readers[queue] for queue in queues if queue in self.readers]
        for reader in readers:
            reader.stop()
        await asyncio.gather(*(reader.wait_idle(wait_ms) for reader in readers))
        for reader in readers:
            self._released(reader)
        await self._tell("on_revoked", [reader.queue for reader in readers])
        try:
            await self.offsets.commit([reader.queue for reader in readers], wait=True)
        except ClientError as error:
            _LOG.warning("last offsets not committed group=%s reason=%s", self.group, error)
        for reader in readers:
            reader.is_released = True
            self.readers.pop(reader.queue, None)
            self.offsets.forget(reader.queue)
            _LOG.info("queue released group=%s queue=%s", self.group, reader.queue)
        if self._needs_locks:  # One whose handler still runs keeps its lock until it ends.
            await self._unlock([reader.queue for reader in readers if not reader.running])

    # Offsets

    async def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group: commit the new offsets, then read from there."""
        owned = [queue for queue in offsets if queue in self.readers]
        await self._release(owned, wait_ms=RELEASE_WAIT_MS)
        for queue in owned:
            try:
                await calls.commit_offset(
                    self.instance, self.group, queue, offsets[queue], wait=True
                )
            except ClientError as error:
                _LOG.warning("offset not reset queue=%s reason=%s", queue, error)
        self._wake.set()

    async def commit(self, *, wait: bool) -> None:
        await self.offsets.commit(wait=wait)

    async def _commit_loop(self) -> None:
        while True:
            await self.instance.clock.sleep_ms(self.settings.commit_ms)
            await self.offsets.commit(wait=False)

    # Locks of ordered consumption

    @property
    def _needs_locks(self) -> bool:
        return self.settings.is_ordered and not self.settings.is_broadcast

    async def _locked(self, queue: MessageQueue) -> bool:
        if not self._needs_locks:
            return True
        locked = await calls.lock_queues(self.instance, self.group, queue.broker_name, [queue])
        return queue in locked

    def is_locked(self, reader: QueueReader) -> bool:
        """Whether order is safe on this queue: the broker's lock is ours and fresh."""
        if not self._needs_locks:
            return True
        until = reader.locked_until_ms
        return until is not None and self.instance.clock.monotonic_ms() < until

    async def _lock_loop(self) -> None:
        while True:
            is_complete = await self.renew_locks()
            await self.instance.clock.sleep_ms(LOCK_RENEW_MS if is_complete else RETRY_MS)

    async def renew_locks(self) -> bool:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self.readers:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        is_complete = True
        for broker_name, queues in by_broker.items():
            try:
                locked = await calls.lock_queues(self.instance, self.group, broker_name, queues)
            except ClientError as error:
                _LOG.warning("locks not renewed broker=%s reason=%s", broker_name, error)
                is_complete = False
                continue
            now_ms = self.instance.clock.monotonic_ms()
            for queue in queues:
                reader = self.readers.get(queue)
                if reader is None:
                    continue
                if queue in locked:
                    was_locked = self.is_locked(reader)
                    reader.locked_until_ms = now_ms + LOCK_VALID_MS
                    if not was_locked:
                        self._deliver(reader, [])
                else:
                    reader.locked_until_ms = 0
                    is_complete = False
        return is_complete

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        for broker_name in {queue.broker_name for queue in queues}:
            mine = [queue for queue in queues if queue.broker_name == broker_name]
            try:
                await calls.unlock_queues(self.instance, self.group, broker_name, mine)
            except ClientError as error:
                _LOG.warning("locks not given back broker=%s reason=%s", broker_name, error)
