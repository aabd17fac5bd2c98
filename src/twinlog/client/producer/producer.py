"""Sends messages. Corresponds to DefaultMQProducer.

    async with Producer("group", name_server="127.0.0.1:9876") as producer:
        receipt = await producer.send(Message("orders", b"body", tags="a", keys=["o-1"]))

Sends are pipelined: many may be on their way over one connection, none needs a task. With
`linger_ms` they are gathered into RocketMQ's batch requests, which is several times faster for
small messages. Only a receipt with status SEND_OK is an acknowledgement in the broker's mode.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Self, Unpack

from twinlog.client.errors import (
    BufferFullError,
    ClientClosedError,
    ClientError,
    InvalidMessageError,
    UsageError,
)
from twinlog.client.hooks import guarded
from twinlog.client.lifetime import Lifetime
from twinlog.client.message import (
    Message,
    ReceivedMessage,
    SendReceipt,
    check_batch,
    check_group,
    check_message,
    check_queue,
    encode_user_properties,
    is_checked_topic,
)
from twinlog.client.net.instance import ClientInstance, MemberRole
from twinlog.client.producer.accumulator import Accumulator, LaneKey
from twinlog.client.producer.batching import Batching
from twinlog.client.producer.bodies import Bodies
from twinlog.client.producer.fault_strategy import FaultStrategy
from twinlog.client.producer.health import ProducerHealth, health_of
from twinlog.client.producer.idempotent import IdempotentLanes
from twinlog.client.producer.outgoing import (
    SendRequest,
    all_receipts,
    batch_element,
    send_command,
    set_error,
)
from twinlog.client.producer.request_reply import RequestReply
from twinlog.client.producer.room import Room
from twinlog.client.producer.runs import pack_run
from twinlog.client.producer.selector import choose_by_key
from twinlog.client.producer.sender import Sender
from twinlog.client.producer.waiting_room import Guest, WaitingRoom, find_queues_until
from twinlog.client.queues import MessageQueue
from twinlog.client.serializers import Serializer
from twinlog.client.settings import ClientSettings, resolve
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.limits import BATCH_UNUSUAL_MAX, MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX

YIELD_EVERY = 256  # Messages between two looks at what the brokers answered.

# A future for the caller, the message's id, and what the hook wants back. A run of messages has one
# future, a list of ids, and no hook.
Ticket = tuple["asyncio.Future[Any]", str | list[str], Any]


class Producer(Lifetime):
    """Sends messages to the topics of a cluster.

    Args:
        group: Name of the producer group.
        name_server: `host:port`, several separated by `;`, or an http address that lists them.
        send_timeout_ms: Limit for a send with all its retries, and before it for the wait for room.
        retry_count: How often a send is made again after a failure of unknown outcome, on another
            broker if there is one. What certainly was not stored is tried until the time is up.
        retry_when_not_ok: Send again also when the status is not SEND_OK. Makes copies.
        linger_ms: None: every message in a request of its own. A number: messages wait that long
            for others of their topic and leave as one batch; 0 gathers what is sent in one turn
            of the event loop.
        batch_size_max, batch_count_max: A batch leaves at once when it has reached one of them.
        buffer_size_max, in_flight_max: Above these `send_nowait` raises BufferFullError, and `send`
            waits for room; it raises that error when there is none within its time-out.
        compress_over: Bodies of at least this size are compressed; None: never.
        compression: zlib (every consumer reads it), lz4 or zstd (consumers from 4.9.4 on).
        message_size_max: The broker's `maxMessageSize`.
        avoid_slow_brokers: RocketMQ's `sendLatencyFaultEnable`.
        idempotent: The broker drops repeats, so a retry never makes a copy. Only with twinlog's
            brokers. Sends are retried until `send_timeout_ms` is over, to the same queue.
        producer_id, epoch: For an idempotent producer that must survive its process: opened again
            with the same id (and epoch), it may send everything again in the same order, and what
            the broker has is not stored twice. A higher epoch begins to count again.
        serializer: Makes bodies of values, for `send_value`.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        send_timeout_ms: int = 3000,
        retry_count: int = 2,
        retry_when_not_ok: bool = False,
        linger_ms: float | None = None,
        batch_size_max: int = 64 * 1024,
        batch_count_max: int = 1000,
        buffer_size_max: int = 32 * 1024 * 1024,
        in_flight_max: int = 2000,
        compress_over: int | None = 4096,
        compression: str | None = "zlib",
        message_size_max: int = MESSAGE_SIZE_MAX,
        avoid_slow_brokers: bool = False,
        idempotent: bool = False,
        producer_id: str | None = None,
        epoch: int = 0,
        serializer: Serializer | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.group = check_group(group)
        if send_timeout_ms <= 0 or retry_count < 0:
            raise UsageError("send_timeout_ms must be above 0, and retry_count at least 0")
        if batch_size_max > message_size_max:
            raise UsageError(
                f"batch_size_max must be at most {message_size_max}, the limit of a broker"
            )
        self._instance = ClientInstance(name_server, resolve(**settings), name=group)
        self._send_timeout_ms = send_timeout_ms
        self._buffer_size_max = buffer_size_max
        self._in_flight_max = in_flight_max
        self._message_size_max = message_size_max
        self._bodies = Bodies(
            compress_over=compress_over, compression=compression, size_max=message_size_max,
            serializer=serializer,
        )  # fmt: skip
        self._hooks = self._instance.settings.hooks
        self._has_linger = linger_ms is not None
        self._room = Room(is_full=self._is_over_limit, usage=self._usage)
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._closing = False
        self._instance.add_member(self)
        self._instance.on_failure.append(self._instance_failed)
        self._sender = Sender(
            self._instance, group, self._outcome, attempts_max=retry_count + 1,
            retry_when_not_ok=retry_when_not_ok,
            faults=FaultStrategy(is_enabled=avoid_slow_brokers),
        )  # fmt: skip
        # Keyed messages always pass through lanes: that is what keeps their order under retries.
        accumulator = Accumulator(
            linger_ms=linger_ms or 0, size_max=batch_size_max, count_max=batch_count_max
        )
        self._batching = Batching(
            accumulator, self._sender, self._instance.clock, send_timeout_ms=send_timeout_ms
        )
        self._waiting_room = WaitingRoom(
            self._instance, tell=self._fail_ticket, changed=self._wake_waiters
        )
        self._once: IdempotentLanes | None = None
        if idempotent:
            self._once = IdempotentLanes(
                self._instance, self._sender, epoch=epoch, size_max=batch_size_max,
                producer_id=producer_id,
                count_max=min(batch_count_max, BATCH_UNUSUAL_MAX), timeout_ms=send_timeout_ms,
                tell=self._fail_ticket, changed=self._wake_waiters,
            )  # fmt: skip
        elif producer_id is not None or epoch:
            raise UsageError("producer_id and epoch need idempotent=True")
        self._request_reply = RequestReply(self._instance, self._send_special)

    # Life

    async def start(self) -> Self:
        """Connect; the `async with` block does it."""
        self._request_reply.start()
        await self._instance.start()
        if self._once is not None and not self._once.producer_id:
            self._once.producer_id = self._instance.unique_ids.next_id()
        return self

    async def close(self) -> None:
        """Send what waits, wait for the answers (at most `send_timeout_ms`), then disconnect.

        Everything that was taken has its outcome then: a receipt, or an error.
        """
        if self._closing:
            await self._instance.wait_stopped()
            return
        if self._instance.is_abandoned():
            self._instance.abandon()
        self._closing = True
        try:
            if self._instance.is_running:
                with contextlib.suppress(TimeoutError):  # What is still open fails below.
                    async with asyncio.timeout(self._send_timeout_ms / 1000 + 1):
                        await self.flush()
        finally:
            try:
                await self._instance.stop()
            finally:
                self._fail_all()

    def _fail_all(self) -> None:
        error = ClientClosedError("the producer was closed in the meantime")
        self._waiting_room.fail_all(error)
        for ticket in self._batching.take_all():
            self._fail_ticket(ticket, error)
        self._sender.fail_all()
        self._request_reply.fail_all()
        if self._once is not None:
            self._once.fail_all()
        self._room.fail_all(error)

    @property
    def client_id(self) -> str:
        """The name under which brokers list this producer."""
        return self._instance.client_id

    def health(self) -> ProducerHealth:
        """How this producer is, without asking anybody."""
        return health_of(self._instance, self._sender.outstanding, self._buffered())

    # Sending

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send a message and wait for the broker's answer.

        Args:
            message: What to send.
            queue: Exactly there; else by the message's sharding key, else in turn.
            timeout_ms: Instead of `send_timeout_ms`.

        Raises:
            ClientError: see `twinlog.client.errors`; `error.retriable` says whether to try again,
                `error.outcome` whether the message is stored.
        """
        self._check_open()
        if self._is_over_limit():
            await self._wait_for_room(timeout_ms or self._send_timeout_ms)
        return await self._enqueue(message, queue, timeout_ms)

    async def send_value(
        self,
        topic: str,
        value: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> SendReceipt:
        """Send a value: its body is what the producer's serializer makes of it.

        Raises:
            InvalidMessageError: the serializer cannot write the value; nothing was sent.
        """
        body = self._bodies.of_value(value)
        return await self.send(
            Message(
                topic, body, tags=tags, keys=keys, properties=properties,
                sharding_key=sharding_key,
            )
        )  # fmt: skip

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None
    ) -> asyncio.Future[SendReceipt]:
        """Send without waiting; await the future for the receipt.

        Raises:
            BufferFullError: too much is on its way; nothing was taken.
        """
        self._check_open()
        if self._is_over_limit():
            raise BufferFullError(f"{self._usage()}: await some of the futures, or use send()")
        return self._enqueue(message, queue, None)

    async def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendReceipt]:
        """Send messages of one topic as one batch request: all are stored or none."""
        batch = list(messages)
        if not batch:
            return []
        self._check_open()
        self._not_idempotent("send_batch", "use send_many, which gathers batches by itself")
        check_batch(batch)
        if queue is not None:
            check_queue(queue, batch[0].topic)
        if self._is_over_limit():
            await self._wait_for_room(self._send_timeout_ms)
        tickets: list[Ticket] = []
        elements = []
        for message in batch:
            body, properties, ticket = self._prepare(message)
            elements.append(batch_element(body, properties, message.flag))
            tickets.append(ticket)
        data = b"".join(elements)
        if len(data) > self._message_size_max:
            raise InvalidMessageError(
                f"the batch has {len(data)} bytes; the limit is {self._message_size_max}: split it"
            )
        key = LaneKey(batch[0].topic, queue, batch[0].wait_store_ok)
        self._batching.send_batch(key, data, tickets)
        return list(await asyncio.gather(*(ticket[0] for ticket in tickets)))

    async def send_many(self, messages: Iterable[Message]) -> list[SendReceipt]:
        """Send many messages, waiting only when the buffer is full; receipts in the same order.

        Raises the first error, after every message has had its outcome.
        """
        outcomes: list[asyncio.Future[SendReceipt] | asyncio.Future[list[SendReceipt]]] = []
        source = iter(messages)
        is_more = True
        while is_more:
            # Answers must be read while we send, or their time limits pass unseen.
            await asyncio.sleep(0)
            chunk: list[Message] = []
            failure: Exception | None = None
            try:
                chunk.extend(islice(source, YIELD_EVERY))
            except Exception as error:  # What came before it is sent.
                failure = error
            start = 0
            while start < len(chunk):
                self._check_open()
                if self._is_over_limit() or self._batching.is_backed_up:
                    # More would only wait here, and other senders would wait behind it.
                    await self._wait_for_room(None, is_bulk=True)
                start = self._enqueue_some(chunk, start, outcomes)
            if failure is not None:
                raise failure
            is_more = len(chunk) == YIELD_EVERY
        return await all_receipts(outcomes)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an answer: as fast as it gets, and nobody knows whether it arrived."""
        self._instance.check_usable()
        self._not_idempotent("send_oneway", "use send")
        body, properties, ticket = self._prepare(message)
        ticket[0].cancel()
        if queue is not None:
            check_queue(queue, message.topic)
        sys_flag, body = self._bodies.compressed(body)
        request = self._request(message, body, properties.decode(), [ticket], queue, sys_flag)
        queues = await find_queues_until(self._instance, message.topic, request.deadline_ms)
        if queue is None and message.sharding_key is not None:
            request.pin(choose_by_key(queues, message.sharding_key))
        route = self._instance.cached_route(message.topic)
        assert route is not None
        address = self._sender.choose(request, route)
        command = send_command(request, self.group)
        await self._instance.transport.oneway(address, command)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be sent to now."""
        route = await self._instance.route(topic, create=True)
        return route.write_queues(topic)

    async def request(self, message: Message, *, timeout_ms: int = 3000) -> ReceivedMessage:
        """Send a request and wait for the consumer's reply.

        Raises:
            RequestReplyTimeoutError: no reply in time.
        """
        return await self._request_reply.request(message, timeout_ms)

    async def reply(self, request: ReceivedMessage, body: bytes) -> SendReceipt:
        """Answer a message that was sent with `request`."""
        return await self._request_reply.reply(request, body)

    async def flush(self) -> None:
        """Wait until nothing is on its way: everything taken so far has its receipt or error."""
        self._instance.check_loop()
        self._batching.drain(force=True)
        while self._is_busy():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter
            self._batching.drain(force=True)

    # From message to request

    def _enqueue_some(self, messages: list[Message], start: int, outcomes: list[Any]) -> int:
        """Take a run of plain messages, or else one message. Returns where to go on."""
        if self._has_linger and self._once is None and self._hooks is None:
            run = self._enqueue_run(messages, start)
            if run is not None:
                outcomes.append(run[0])
                return start + run[1]
        outcomes.append(self._enqueue(messages[start], None, None))
        return start + 1

    def _enqueue_run(
        self, messages: list[Message], start: int
    ) -> tuple[asyncio.Future[list[SendReceipt]], int] | None:
        """The future of a run and the number of its messages; None: not a plain one."""
        first = messages[start]
        if type(first) is not Message or not is_checked_topic(first.topic):
            return None
        loop = self._instance.own_loop()
        key = self._batching.free_lane(first)
        size_room, count_room = self._batching.room(key)
        run = pack_run(
            messages, start, self._instance.unique_ids,
            size_room=size_room, count_room=count_room, body_size_max=self._bodies.plain_size_max,
        )  # fmt: skip
        if run is None:
            return None
        future: asyncio.Future[list[SendReceipt]] = loop.create_future()
        self._batching.add(key, run.data, (future, run.ids, None), len(run.ids))
        return future, len(run.ids)

    def _check_open(self) -> None:
        if self._closing:
            raise ClientClosedError("this producer is closed: open a new one")
        self._instance.check_usable()

    def _enqueue(
        self, message: Message, queue: MessageQueue | None, timeout_ms: int | None
    ) -> asyncio.Future[SendReceipt]:
        if queue is not None:
            check_message(message, self._message_size_max)
            check_queue(queue, message.topic)
        if self._once is not None:
            return self._enqueue_once(self._once, message, queue)
        if self._has_linger and queue is None and self._is_plain(message):
            return self._enqueue_free(message)
        body, properties, ticket = self._prepare(message)
        pinned = queue or self._queue_of_key(message)
        sys_flag = 0
        if len(body) > self._bodies.plain_size_max:
            sys_flag, body = self._bodies.compressed(body)
        if message.sharding_key is not None and pinned is None:
            self._enqueue_when_routed(message, body, properties, ticket, sys_flag, timeout_ms)
            return ticket[0]
        if not self._has_linger and message.sharding_key is None:
            text = properties.decode()
            self._sender.send(
                self._request(message, body, text, [ticket], pinned, sys_flag, timeout_ms)
            )
            return ticket[0]
        self._to_lane(message, body, properties, ticket, pinned, sys_flag)
        return ticket[0]

    def _enqueue_once(
        self, once: IdempotentLanes, message: Message, queue: MessageQueue | None
    ) -> asyncio.Future[SendReceipt]:
        body, properties, ticket = self._prepare(message)
        sys_flag, body = self._bodies.compressed(body)
        once.add(message, body, properties, ticket, sys_flag=sys_flag, queue=queue)
        return ticket[0]

    def _not_idempotent(self, call: str, advice: str) -> None:
        if self._once is not None:
            raise UsageError(f"an idempotent producer has no {call}: {advice}")

    @property
    def producer_id(self) -> str | None:
        """The id under which the broker drops repeats; None without `idempotent`."""
        return None if self._once is None else self._once.producer_id

    def _is_plain(self, message: Message) -> bool:
        """Whether it may go to any queue in any batch. What is not a message is found out later."""
        return (
            type(message) is Message
            and type(message.body) is bytes
            and message.sharding_key is None
            and not message.delay_level
            and len(message.body) <= self._bodies.plain_size_max
        )

    def _enqueue_free(self, message: Message) -> asyncio.Future[SendReceipt]:
        """The common case of automatic batching: any queue, nothing special. Kept short."""
        body, properties, ticket = self._prepare(message)
        element = batch_element(body, properties, message.flag)
        self._batching.add(self._batching.free_lane(message), element, ticket)
        return ticket[0]

    def _to_lane(
        self,
        message: Message,
        body: bytes,
        properties: bytes,
        ticket: Ticket,
        pinned: MessageQueue | None,
        sys_flag: int,
    ) -> None:
        key = LaneKey(message.topic, pinned, message.wait_store_ok)
        if sys_flag or message.delay_level:  # Not in a batch with others.
            request = self._request(message, body, properties.decode(), [ticket], pinned, sys_flag)
            self._batching.add_single(key, request)
        else:
            self._batching.add(key, batch_element(body, properties, message.flag), ticket)

    def _enqueue_when_routed(
        self,
        message: Message,
        body: bytes,
        properties: bytes,
        ticket: Ticket,
        sys_flag: int,
        timeout_ms: int | None,
    ) -> None:
        """The queue of a key follows from the route, which is not there yet."""
        key = message.sharding_key
        assert key is not None

        def place(queues: list[MessageQueue]) -> None:
            pinned = choose_by_key(queues, key)
            self._to_lane(message, body, properties, ticket, pinned, sys_flag)

        guest = Guest(self._deadline_ms(timeout_ms), len(body), ticket, place)
        self._waiting_room.add(message.topic, guest)

    def _deadline_ms(self, timeout_ms: int | None) -> float:
        return self._instance.clock.monotonic_ms() + (timeout_ms or self._send_timeout_ms)

    def _queue_of_key(self, message: Message) -> MessageQueue | None:
        """None: no key, or its queue is not known yet, or others wait to know theirs."""
        if message.sharding_key is None or self._waiting_room.has(message.topic):
            return None
        route = self._instance.cached_route(message.topic)
        queues = route.write_queues(message.topic, with_master_only=False) if route else []
        return choose_by_key(queues, message.sharding_key) if queues else None

    def _prepare(self, message: Message) -> tuple[bytes, bytes, Ticket]:
        loop = self._instance.own_loop()
        context = None if self._hooks is None else guarded(self._hooks.before_send, message)
        body = check_message(message, self._message_size_max)
        unique_id = self._instance.unique_ids.next_id()
        properties = encode_user_properties(message, unique_id)
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise InvalidMessageError(
                f"the properties have {len(properties)} bytes; the limit is {PROPERTIES_SIZE_MAX}"
            )
        return body, properties, (loop.create_future(), unique_id, context)

    def _request(
        self,
        message: Message,
        body: bytes,
        properties: str,
        tickets: list[Ticket],
        queue: MessageQueue | None,
        sys_flag: int,
        timeout_ms: int | None = None,
    ) -> SendRequest:
        clock = self._instance.clock
        return SendRequest(
            message.topic, body, properties, tickets=tickets, born_ms=clock.now_ms(),
            deadline_ms=self._deadline_ms(timeout_ms),
            flag=message.flag, sys_flag=sys_flag, queue=queue,
        )  # fmt: skip

    def _send_special(
        self,
        message: Message,
        *,
        properties: dict[str, str],
        code: int = RequestCode.SEND_MESSAGE_V2,
        sys_flag: int = 0,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """A message with properties of RocketMQ's own: transactions, requests, replies."""
        self._check_open()
        body, encoded, ticket = self._prepare(message)
        flag, body = self._bodies.compressed(body)
        extra = "".join(f"\x02{name}\x01{value}" for name, value in properties.items())
        request = self._request(
            message, body, encoded.decode() + extra, [ticket], self._queue_of_key(message),
            sys_flag | flag, timeout_ms,
        )  # fmt: skip
        request.code = code
        key = message.sharding_key
        if key is not None and not request.is_pinned:

            def place(queues: list[MessageQueue]) -> None:
                request.pin(choose_by_key(queues, key))
                self._sender.send(request)

            guest = Guest(request.deadline_ms, request.size, ticket, place)
            self._waiting_room.add(message.topic, guest)
            return ticket[0]
        self._sender.send(request)
        return ticket[0]

    # Outcomes

    def _fail_ticket(self, ticket: Ticket, error: ClientError) -> None:
        """A message that is not part of any request yet failed."""
        future, _, context = ticket
        set_error(future, error)
        if self._hooks is not None:
            guarded(self._hooks.after_send, context, None, error)

    def _outcome(
        self, request: SendRequest, receipts: list[SendReceipt] | None, error: ClientError | None
    ) -> None:
        hooks = self._hooks
        index = 0
        for future, ids, context in request.tickets:
            outcome: Any = None
            if receipts is not None and type(ids) is list:
                outcome = receipts[index : index + len(ids)]
                index += len(ids)
            elif receipts is not None:
                outcome = receipts[index]
                index += 1
            if not future.done():
                if error is None:
                    future.set_result(outcome)
                else:
                    set_error(future, error)
            if hooks is not None:
                guarded(hooks.after_send, context, outcome, error)
        if request.once is not None:
            assert self._once is not None
            self._once.finished(request, error)
        self._batching.finished(request)
        self._wake_waiters()

    # Back-pressure

    def _buffered(self) -> int:
        size = self._sender.outstanding_size + self._batching.size + self._waiting_room.size
        return size if self._once is None else size + self._once.size

    def _is_busy(self) -> bool:
        """Whether anything that was taken has no outcome yet."""
        return bool(
            self._sender.outstanding
            or self._waiting_room.count
            or self._room.count
            or self._buffered()
        )

    def _is_over_limit(self) -> bool:
        sender = self._sender
        return (
            sender.outstanding >= self._in_flight_max
            or sender.outstanding_size + self._batching.size >= self._buffer_size_max
            or (self._once is not None and self._buffered() >= self._buffer_size_max)
        )

    def _usage(self) -> str:
        count, size = self._sender.outstanding, self._buffered()
        return f"{count} requests and {size} bytes are on their way"

    async def _wait_for_room(self, timeout_ms: int | None, *, is_bulk: bool = False) -> None:
        self._instance.check_usable()
        self._instance.own_loop()

        def is_full() -> bool:
            return self._is_over_limit() or (is_bulk and self._batching.is_backed_up)

        await self._room.wait(timeout_ms, self._wake_waiters, is_full)

    def _wake_waiters(self) -> None:
        self._room.wake()
        if self._idle_waiters and not self._sender.outstanding and not self._room.count:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _instance_failed(self) -> None:
        """Nobody waits for a producer that no longer works."""
        self._fail_all()
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(ClientClosedError("this producer has failed, see the log"))

    # GroupMember

    @property
    def role(self) -> MemberRole:
        """As what brokers list it."""
        return MemberRole.PRODUCER

    def heartbeat_data(self) -> dict[str, Any]:
        """What brokers are told of it."""
        return {"groupName": self.group}

    def routes_changed(self) -> None:
        """Routes are looked up for each send: nothing to do."""
