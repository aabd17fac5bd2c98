"""Idempotent sending: each message has a number on its queue, and the broker drops repeats.

RocketMQ's clients have nothing like it; the rules are those of Kafka's idempotent producer. One
request of a queue is on its way at a time and messages that come meanwhile leave together in the
next, so numbers never overtake each other. A request is repeated with the same numbers to the same
queue until its time is up. When it is up and nobody knows whether the broker has it, the queue is
closed for this producer: going on could only lose order or make copies.

Queues are chosen by position (the n-th message of a topic goes to the same queue every time), so
who opens a producer with the same id and sends everything again repeats the same numbers. A message
that failed keeps its position for that: if another took it, the next run would give the broker
another message under the same number, or send the same one to another queue. With an id of the
caller a topic therefore takes nothing more after a failure, whatever its outcome.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from twinlog.client.errors import (
    ClientClosedError,
    ClientError,
    IdempotenceLostError,
    IdempotenceNotSupportedError,
    MessageIllegalError,
    TopicNotFoundError,
    UsageError,
)
from twinlog.client.message import Message
from twinlog.client.net.instance import ClientInstance
from twinlog.client.producer.outgoing import SendRequest, batch_element
from twinlog.client.producer.retry import backoff_ms, is_unlimited
from twinlog.client.producer.selector import choose_by_key
from twinlog.client.producer.sender import Sender
from twinlog.client.producer.waiting_room import find_queues, find_queues_until
from twinlog.client.queues import MessageQueue
from twinlog.message.once import ONCE_NAME, PRODUCER_ID_LENGTH_MAX, Mark, is_producer_id
from twinlog.remoting.codes import RequestCode

_MARK_SIZE_MAX = PRODUCER_ID_LENGTH_MAX + 200


class _Item:
    """One message that waits for its number."""

    __slots__ = (
        "body", "deadline_ms", "is_lone", "message", "properties", "queue", "sys_flag", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        message: Message,
        body: bytes,
        properties: bytes,
        ticket: Any,
        sys_flag: int,
        queue: MessageQueue | None,
        deadline_ms: float,
    ) -> None:
        self.message = message
        self.body = body
        self.properties = properties
        self.ticket = ticket
        self.sys_flag = sys_flag
        self.queue = queue
        self.deadline_ms = deadline_ms  # By then its queue must be known.
        self.is_lone = bool(sys_flag or message.delay_level)


class _Members:
    """Messages that are encoded and numbered already: a request of their own."""

    __slots__ = ("body", "count", "ticket")

    def __init__(self, body: bytes, count: int, ticket: Any) -> None:
        self.body = body
        self.count = count
        self.ticket = ticket


class Lane:
    """One queue: its next number and what waits for it."""

    __slots__ = ("assigned", "broken", "in_flight", "next_number", "queue", "waiting")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.next_number = 0
        self.assigned = 0  # The number that a message which comes now will have.
        self.in_flight = False
        self.waiting: deque[_Item | _Members] = deque()
        self.broken: ClientError | None = None


class IdempotentLanes:
    """Numbers messages and hands them to the sender, one request per queue at a time."""

    def __init__(
        self,
        instance: ClientInstance,
        sender: Sender,
        *,
        producer_id: str | None,
        epoch: int,
        size_max: int,
        count_max: int,
        timeout_ms: int,
        tell: Callable[[Any, ClientError], None],
        changed: Callable[[], None],
    ) -> None:
        if producer_id is not None and not is_producer_id(producer_id):
            raise UsageError(
                f"producer_id must be 1 to {PRODUCER_ID_LENGTH_MAX} letters, digits or the "
                f"characters _ . : -, not {producer_id!r}"
            )
        if epoch < 0:
            raise UsageError(f"epoch must be 0 or larger, not {epoch}")
        self.producer_id = producer_id or ""  # The producer gives it one when it starts.
        self._is_repeatable = producer_id is not None  # Another run may send the same again.
        self._closed: dict[str, ClientError] = {}  # Topics that take nothing more.
        self.size = 0
        self._epoch = epoch
        self._instance = instance
        self._sender = sender
        self._size_max = size_max
        self._count_max = count_max
        self._timeout_ms = timeout_ms
        self._tell = tell  # Gives the ticket of a message that was not sent its error.
        self._changed = changed
        self._lanes: dict[MessageQueue, Lane] = {}
        # Queues of a topic as they were at the first send: a number belongs to its queue for good.
        self._layouts: dict[str, list[MessageQueue]] = {}
        self._sent: dict[str, int] = {}
        self._unrouted: dict[str, list[_Item]] = {}

    def add(
        self,
        message: Message,
        body: bytes,
        properties: bytes,
        ticket: Any,
        *,
        sys_flag: int,
        queue: MessageQueue | None,
    ) -> None:
        """Take a message; its future is told what became of it."""
        topic = message.topic
        if topic in self._closed:
            self._tell(ticket, self._closed[topic])
            return
        deadline_ms = self._instance.clock.monotonic_ms() + self._timeout_ms
        item = _Item(message, body, properties, ticket, sys_flag, queue, deadline_ms)
        self.size += len(body)
        if topic in self._layouts:
            self._place(item)
            return
        waiting = self._unrouted.get(topic)
        if waiting is not None:
            waiting.append(item)
            return
        self._unrouted[topic] = [item]
        self._instance.tasks.contained("layout", lambda: self._find_layout(topic), about=topic)

    async def layout(self, topic: str) -> list[MessageQueue]:
        """The queues among which messages of the topic are spread, in turn; as at the first send.

        Raises ClientError when there are none.
        """
        if topic not in self._layouts:
            deadline_ms = self._instance.clock.monotonic_ms() + self._timeout_ms
            queues = await find_queues_until(self._instance, topic, deadline_ms)
            await self._require(topic, queues)
            self._take_layout(topic, queues)
        return self._layouts[topic]

    def _take_layout(self, topic: str, queues: list[MessageQueue]) -> None:
        self._layouts.setdefault(topic, queues)
        for item in self._unrouted.pop(topic, ()):
            self._place(item)

    async def _require(self, topic: str, queues: list[MessageQueue]) -> None:
        """All brokers of a topic must drop repeats, or nothing is sent to any of them.

        Another run must find the same queues. Each broker creates a topic when it gets the first
        message, so a run that ends early may leave a topic that only some brokers have.
        """
        for name in dict.fromkeys(queue.broker_name for queue in queues):
            address = self._instance.master_address(name)
            if address is None:
                continue
            try:
                await self._sender.require_once(address, self._timeout_ms)
            except IdempotenceNotSupportedError:
                raise
            except ClientError:
                continue  # It is away: what is sent to it asks again.
        route = self._instance.cached_route(topic)
        is_new = route is not None and route.is_template
        if is_new and self._is_repeatable and len({queue.broker_name for queue in queues}) > 1:
            raise TopicNotFoundError(
                f"topic {topic!r} does not exist. A producer that can be run again needs it before "
                "the first message, or the next run may find fewer queues and spread the messages "
                f"otherwise: create it, for example with `twinlog topic create {topic}`"
            )

    def take_turns(self, topic: str, count: int) -> int:
        """The place among the queues of the next message of a topic; `count` of them are taken."""
        first = self._sent.get(topic, 0)
        self._sent[topic] = first + count
        return first

    def next_number(self, queue: MessageQueue) -> int:
        """The number that the next message to a queue must have."""
        lane = self._lanes.get(queue)
        return 0 if lane is None else lane.assigned

    def add_members(self, queue: MessageQueue, data: bytes, count: int, ticket: Any) -> None:
        """Take members of a batch that have their marks: numbers from `next_number` on."""
        if queue.topic in self._closed:
            self._tell(ticket, self._closed[queue.topic])
            return
        self.size += len(data)
        self._append(queue, _Members(data, count, ticket), count)

    async def _find_layout(self, topic: str) -> None:
        """For those that wait; each is told when its own time is up, or nothing would help."""
        attempt = 0
        earlier: ClientError | None = None
        while waiting := self._unrouted.get(topic):
            deadline_ms = min(item.deadline_ms for item in waiting)
            try:
                queues = await find_queues(self._instance, topic, deadline_ms, earlier)
                await self._require(topic, queues)
            except ClientError as error:
                attempt += 1
                earlier = error
                self._dismiss(topic, error, only_late=is_unlimited(error))
                left_ms = int(deadline_ms - self._instance.clock.monotonic_ms())
                await self._instance.clock.sleep_ms(min(backoff_ms(attempt), max(1, left_ms)))
            else:
                self._take_layout(topic, queues)

    def _dismiss(self, topic: str, error: ClientError, *, only_late: bool) -> None:
        """Tell those whose time is up, and with an id of the caller all others, too."""
        now_ms = self._instance.clock.monotonic_ms()
        waiting = self._unrouted.pop(topic, [])
        staying = [item for item in waiting if only_late and item.deadline_ms > now_ms]
        late = [item for item in waiting if not only_late or item.deadline_ms <= now_ms]
        for item in late:
            self._fail(item, error)
        if late and self._is_repeatable:
            self._closed[topic] = self._lost(f"topic {topic!r}", error)
            for item in staying:
                self._fail(item, self._closed[topic])
        elif staying:
            self._unrouted[topic] = staying
        self._changed()

    def _place(self, item: _Item) -> None:
        self._append(item.queue or self._choose(item.message), item, 1)

    def _append(self, queue: MessageQueue, item: _Item | _Members, count: int) -> None:
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = Lane(queue)
        lane.waiting.append(item)
        lane.assigned += count
        if not lane.in_flight and len(lane.waiting) == 1:
            # At the end of this turn, so that what is sent in one turn travels together.
            asyncio.get_running_loop().call_soon(self._leave, lane)

    def _choose(self, message: Message) -> MessageQueue:
        queues = self._layouts[message.topic]
        if message.sharding_key is not None:
            return choose_by_key(queues, message.sharding_key)
        return queues[self.take_turns(message.topic, 1) % len(queues)]

    def _leave(self, lane: Lane) -> None:
        if lane.broken is not None:
            waiting, lane.waiting = lane.waiting, deque()
            for item in waiting:
                self._fail(item, lane.broken)
            self._changed()
            return
        if lane.in_flight or not lane.waiting:
            return
        request = self._next_request(lane)
        request.once = lane
        lane.in_flight = True
        self._sender.send(request)

    def _next_request(self, lane: Lane) -> SendRequest:
        first = lane.waiting.popleft()
        if isinstance(first, _Members):
            self.size -= len(first.body)
            return self._members(lane, first)
        items = self._take(lane, first)
        self.size -= sum(len(item.body) for item in items)
        return self._single(lane, items[0]) if len(items) == 1 else self._batch(lane, items)

    def _take(self, lane: Lane, first: _Item) -> list[_Item]:
        """As many as fit one request; one that must travel alone does."""
        waiting = lane.waiting
        items = [first]
        size = len(items[0].body) + len(items[0].properties) + _MARK_SIZE_MAX
        while waiting and not items[0].is_lone and len(items) < self._count_max:
            item = waiting[0]
            if isinstance(item, _Members):
                break
            size += len(item.body) + len(item.properties) + _MARK_SIZE_MAX
            same = item.message.wait_store_ok == items[0].message.wait_store_ok
            if item.is_lone or not same or size > self._size_max:
                break
            items.append(item)
            waiting.popleft()
        return items

    def _mark(self, lane: Lane, index: int) -> str:
        number = lane.next_number + index
        queue = lane.queue
        mark = Mark(self.producer_id, self._epoch, number, queue.queue_id, queue.topic)
        return f"{ONCE_NAME}{mark.text()}"

    def _single(self, lane: Lane, item: _Item) -> SendRequest:
        clock = self._instance.clock
        return SendRequest(
            item.message.topic, item.body, f"{item.properties.decode()}\x02{self._mark(lane, 0)}",
            tickets=[item.ticket], born_ms=clock.now_ms(),
            deadline_ms=clock.monotonic_ms() + self._timeout_ms,
            flag=item.message.flag, sys_flag=item.sys_flag, queue=lane.queue,
        )  # fmt: skip

    def _batch(self, lane: Lane, items: list[_Item]) -> SendRequest:
        clock = self._instance.clock
        elements = [
            batch_element(
                item.body,
                item.properties + b"\x02" + self._mark(lane, index).encode(),
                item.message.flag,
            )
            for index, item in enumerate(items)
        ]
        wait = "true" if items[0].message.wait_store_ok else "false"
        return SendRequest(
            items[0].message.topic, b"".join(elements), f"WAIT\x01{wait}",
            tickets=[item.ticket for item in items], born_ms=clock.now_ms(),
            deadline_ms=clock.monotonic_ms() + self._timeout_ms,
            code=RequestCode.SEND_BATCH_MESSAGE, queue=lane.queue,
        )  # fmt: skip

    def _members(self, lane: Lane, members: _Members) -> SendRequest:
        clock = self._instance.clock
        request = SendRequest(
            lane.queue.topic, members.body, "WAIT\x01true", tickets=[members.ticket],
            born_ms=clock.now_ms(), deadline_ms=clock.monotonic_ms() + self._timeout_ms,
            code=RequestCode.SEND_BATCH_MESSAGE, queue=lane.queue,
        )  # fmt: skip
        request.count = members.count
        return request

    def finished(self, request: SendRequest, error: ClientError | None) -> None:
        """A request of ours has its outcome: go on, or close the queue."""
        lane: Lane = request.once
        lane.in_flight = False
        if error is None:
            lane.next_number += request.count
        elif self._is_repeatable and not _is_of_the_message(request, error):
            topic = lane.queue.topic
            lane.broken = self._closed.setdefault(topic, self._lost(f"topic {topic!r}", error))
        elif not error.is_safe_to_repeat or getattr(error, "is_out_of_sequence", False):
            queue = f"queue {lane.queue.broker_name}/{lane.queue.queue_id} of {lane.queue.topic!r}"
            lane.broken = self._lost(queue, error)
        if lane.waiting:
            asyncio.get_running_loop().call_soon(self._leave, lane)

    def _lost(self, what: str, error: ClientError) -> IdempotenceLostError:
        return IdempotenceLostError(
            f"{what} is closed for producer {self.producer_id}: an earlier send failed ({error}). "
            "Open a producer with the same producer_id and send everything again in the same order"
        )

    def fail_all(self) -> None:
        """The producer is closed: what waits is told so."""
        error = ClientClosedError("the producer was closed in the meantime")
        for topic in list(self._unrouted):
            self._dismiss(topic, error, only_late=False)
        for lane in self._lanes.values():
            lane.broken = lane.broken or error
            while lane.waiting:
                self._fail(lane.waiting.popleft(), error)

    def _fail(self, item: _Item | _Members, error: ClientError) -> None:
        self.size -= len(item.body)
        self._tell(item.ticket, error)


def _is_of_the_message(request: SendRequest, error: ClientError) -> bool:
    """Whether every run fails with it, so that the message never had a number."""
    return isinstance(error, MessageIllegalError) and request.count == 1
