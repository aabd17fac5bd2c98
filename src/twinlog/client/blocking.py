"""The same names, blocking: a thin facade that runs the asyncio client in a thread of its own.

    with Producer("group", name_server="127.0.0.1:9876") as producer:
        receipt = producer.send(Message("orders", b"body"))

Handlers are plain functions and run in a pool of threads. Any thread may call; a child process may
not: open a new client after a fork.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from twinlog.client.consumer import pull_consumer as _pull
from twinlog.client.consumer import push_consumer as _push
from twinlog.client.consumer.consumer_core import ConsumeFrom
from twinlog.client.consumer.positions import ConsumerHealth
from twinlog.client.consumer.push_consumer import RetryLater
from twinlog.client.errors import (
    ClientClosedError,
    ClientError,
    ClientForkedError,
    InvalidHandlerError,
    SendOutcome,
)
from twinlog.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
from twinlog.client.net.calls import PullResult
from twinlog.client.options import ProducerOptions, PullOptions, PushOptions, TransactionOptions
from twinlog.client.producer import producer as _producer
from twinlog.client.producer import transaction as _transaction
from twinlog.client.producer.health import ProducerHealth
from twinlog.client.producer.transaction import TransactionReceipt, TransactionState
from twinlog.client.queues import MessageQueue
from twinlog.runtime.process import process_id

__all__ = [
    "ClientError",
    "ConsumeFrom",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "SendOutcome",
    "SendReceipt",
    "SendStatus",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
]

T = TypeVar("T")
PlainHandler = TypeVar("PlainHandler", bound=Callable[..., None])
_END_S = 0.5  # For calls that have their outcome already: two turns of the loop.


class _LoopThread:
    """An event loop in a thread, for one client."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = process_id()
        self._is_closed = False
        # A call is on the loop, or refused: none may come between its last one and its end.
        self._submitting = threading.Lock()

    def check_usable(self) -> None:
        if self._process_id != process_id():
            raise ClientForkedError(
                f"this client was opened by process {self._process_id} and cannot be used in its "
                f"child {process_id()}: open a new client after the fork"
            )
        if self._is_closed:
            raise ClientClosedError("this client is closed: open a new one")

    def is_foreign_or_own(self) -> bool:
        """Of another process, or the loop's own thread."""
        is_own = threading.current_thread() is self._thread
        return is_own or self._process_id != process_id()

    def start(self) -> None:
        self.check_usable()
        if self._loop is not None:
            return
        self._loop = asyncio.new_event_loop()
        # A daemon, so that a program that forgets to close can still end.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def submit(
        self, coroutine: Coroutine[Any, Any, T], *, is_last: bool = False
    ) -> concurrent.futures.Future[T]:
        """Run it in the loop; after the last one all others are refused."""
        with self._submitting:
            try:
                self.check_usable()
                if self._loop is None:
                    raise ClientClosedError("this client is not started: use 'with' or start()")
                if threading.current_thread() is self._thread:
                    raise ClientError("a blocking client cannot be called from its own event loop")
            except ClientError:
                coroutine.close()
                raise
            self._is_closed = is_last
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], *, is_last: bool = False) -> T:
        future = self.submit(coroutine, is_last=is_last)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C, or what another signal raised: the call must not go on without its caller.
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """A plain function, run on the loop's thread: it may touch the client's state."""

        async def on_loop() -> T:
            return function(*arguments)

        return self.run(on_loop())

    def close(self) -> None:
        self._is_closed = True
        if self._loop is None or self._thread is None or self._process_id != process_id():
            return
        if threading.current_thread() is not self._thread:
            asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    """Let calls that have their outcome return it, and end the others: no future stays open."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=_END_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # One more turn: what the calls returned is handed to the threads that wait for it.
    await asyncio.sleep(0)


class _Blocking:
    """Start, close and the with block, for all four clients."""

    _client: Any

    def __init__(self, name: str) -> None:
        self._thread = _LoopThread(f"twinlog-{name}")
        self._closed = threading.Event()  # Or about to be.
        self._first_close = threading.Lock()  # Taken by the first one, for good.
        self._closer: int | None = None
        self._ended = threading.Event()

    def start(self) -> Self:
        """Connect; the `with` block does it."""
        self._thread.start()
        try:
            self._thread.run(self._client.start())
        except BaseException:
            self._thread.close()
            raise
        return self

    def close(self) -> None:
        """End cleanly; the `with` block does it. Of several, each returns when all is ended."""
        if not self._first_close.acquire(blocking=False):
            if not self._is_waited_for_by_close():
                self._ended.wait()
            return
        self._closer = threading.get_ident()
        self._closed.set()
        try:
            self._thread.run(self._client.close(), is_last=True)
        except ClientClosedError:
            return  # Never started: nothing to close.
        except ClientForkedError:
            return  # The parent's to close.
        finally:
            try:
                self._thread.close()
            finally:
                self._ended.set()

    def _is_waited_for_by_close(self) -> bool:
        """Whether a close can only end when this thread goes on; its own thread, when a signal's
        handler closes, or a fork's, where nothing else runs."""
        return self._closer in (None, threading.get_ident()) or self._thread.is_foreign_or_own()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """The name under which brokers list this client."""
        return str(self._client.client_id)


class Producer(_Blocking):
    """See `twinlog.client.Producer`; the arguments are the same."""

    _client: _producer.Producer

    @property
    def producer_id(self) -> str | None:
        """Of an idempotent producer: the name under which brokers drop its repeats."""
        return self._client.producer_id

    def __init__(
        self, group: str, *, name_server: str | Sequence[str], **options: Unpack[ProducerOptions]
    ) -> None:
        super().__init__(f"producer-{group}")
        self._client = _producer.Producer(group, name_server=name_server, **options)

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send a message and wait for the broker's answer."""
        return self._thread.run(self._client.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None
    ) -> concurrent.futures.Future[SendReceipt]:
        """Send without waiting; `result()` of the future is the receipt."""
        return self._thread.submit(self._client.send(message, queue=queue))

    def send_value(
        self,
        topic: str,
        value: Any,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
    ) -> SendReceipt:
        """Send what the producer's serializer makes of a value."""
        return self._thread.run(
            self._client.send_value(
                topic, value, tags=tags, keys=keys, properties=properties,
                sharding_key=sharding_key,
            )
        )  # fmt: skip

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendReceipt]:
        """Send messages of one topic as one batch request: all are stored or none."""
        return self._thread.run(self._client.send_batch(list(messages), queue=queue))

    def send_many(self, messages: Iterable[Message]) -> list[SendReceipt]:
        """The fast way for many: one crossing between the threads for all of them."""
        return self._thread.run(self._client.send_many(list(messages)))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an answer: nobody knows whether it was stored."""
        self._thread.run(self._client.send_oneway(message, queue=queue))

    def request(self, message: Message, *, timeout_ms: int = 3000) -> ReceivedMessage:
        """Send a request and wait for the reply of whoever consumes it."""
        return self._thread.run(self._client.request(message, timeout_ms=timeout_ms))

    def reply(self, request: ReceivedMessage, body: bytes) -> SendReceipt:
        """Answer a request that a handler got."""
        return self._thread.run(self._client.reply(request, body))

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic."""
        return self._thread.run(self._client.queues(topic))

    def health(self) -> ProducerHealth:
        """How this producer is, without asking anybody."""
        return self._thread.call(self._client.health)

    def flush(self) -> None:
        """Return when everything that was taken has its outcome."""
        self._thread.run(self._client.flush())


class TransactionProducer(Producer):
    """See `twinlog.client.TransactionProducer`; `check` and `execute` are plain functions."""

    _client: _transaction.TransactionProducer

    def __init__(
        self,
        group: str,
        *,
        check: Callable[[ReceivedMessage], TransactionState],
        name_server: str | Sequence[str],
        **options: Unpack[TransactionOptions],
    ) -> None:
        _Blocking.__init__(self, f"transactions-{group}")
        self._client = _transaction.TransactionProducer(
            group, check=_in_thread(check), name_server=name_server, **options
        )

    def send_in_transaction(
        self, message: Message, execute: Callable[[Message, str], TransactionState]
    ) -> TransactionReceipt:
        """Send a message that appears only if `execute` says so."""
        return self._thread.run(self._client.send_in_transaction(message, _in_thread(execute)))

    def transaction(self, message: Message) -> _BlockingTransaction:
        """A `with` block that commits when it ends and rolls back when it raises."""
        return _BlockingTransaction(self._thread, self._client.transaction(message))


class _BlockingTransaction:
    """One transaction of a blocking producer."""

    def __init__(self, thread: _LoopThread, transaction: _transaction.Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def id(self) -> str:
        """The id of the transaction."""
        return self._transaction.id

    @property
    def receipt(self) -> SendReceipt:
        """Of the stored, still hidden message."""
        return self._transaction.receipt

    def __enter__(self) -> Self:
        self._thread.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, traceback))


class _Consumer(_Blocking):
    """What both consumers can be asked and told about positions."""

    _client: _pull.PullConsumer | _push.PushConsumer

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this member has now."""
        return self._thread.call(lambda: self._client.assignment)

    def unsubscribe(self, topic: str) -> None:
        """Give the queues of a topic back to the group."""
        self._thread.run(self._client.unsubscribe(topic))

    def pause(self, *queues: MessageQueue) -> None:
        """Pull no more of these queues, of all without arguments."""
        self._thread.call(self._client.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Pull these queues, or all, again."""
        self._thread.call(self._client.resume, *queues)

    def drain(self) -> None:
        """Pull no more, let what was handed out end, and commit."""
        self._thread.run(self._client.drain())

    def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each assigned queue are not done yet."""
        return self._thread.run(self._client.lag())

    def health(self) -> ConsumerHealth:
        """How this consumer is, without asking anybody."""
        return self._thread.call(self._client.health)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset; None when there is none."""
        return self._thread.run(self._client.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset` of an assigned queue."""
        self._thread.call(self._client.seek, queue, offset)

    def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go on at the oldest message of these queues, or of all."""
        self._thread.run(self._client.seek_to_begin(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on with what comes from now on."""
        self._thread.run(self._client.seek_to_end(*queues))

    def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after the time."""
        self._thread.run(self._client.seek_to_time(timestamp_ms, *queues))

    def begin_offset(self, queue: MessageQueue) -> int:
        """The oldest offset that is still there."""
        return self._thread.run(self._client.begin_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """One above the newest offset."""
        return self._thread.run(self._client.end_offset(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at or after the time, else the end."""
        return self._thread.run(self._client.offset_for_time(queue, timestamp_ms))


class PushConsumer(_Consumer):
    """See `twinlog.client.PushConsumer`; handlers are plain functions, run in threads."""

    _client: _push.PushConsumer

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        concurrency: int = 20,
        **options: Unpack[PushOptions],
    ) -> None:
        super().__init__(f"push-{group}")
        self._handler_threads: set[int] = set()
        self._pool = concurrent.futures.ThreadPoolExecutor(
            concurrency,
            f"twinlog-{group}",
            lambda: self._handler_threads.add(threading.get_ident()),
        )
        self._client = _push.PushConsumer(
            group, name_server=name_server, concurrency=concurrency, **options
        )

    def subscribe(
        self,
        topic: str,
        expression: str | None,
        handler: Callable[[ReceivedMessage], None],
        *,
        sql: bool = False,
    ) -> None:
        """Call `handler` for the messages of a topic."""
        wrapped = _in_thread(handler, self._pool)
        self._thread.run(self._client.subscribe(topic, expression, wrapped, sql=sql))

    def subscribe_batch(
        self,
        topic: str,
        expression: str | None,
        handler: Callable[[list[ReceivedMessage]], None],
        *,
        max_count: int = 32,
        sql: bool = False,
    ) -> None:
        """Call `handler` with lists of up to `max_count` messages."""
        wrapped = _in_thread(handler, self._pool)
        self._thread.run(
            self._client.subscribe_batch(topic, expression, wrapped, max_count=max_count, sql=sql)
        )

    def on(
        self,
        topic: str,
        expression: str | None = "*",
        *,
        batch_max: int | None = None,
        sql: bool = False,
    ) -> Callable[[PlainHandler], PlainHandler]:
        """Register a handler before the start, as a decorator."""
        register = self._client.on(topic, expression, batch_max=batch_max, sql=sql)

        def decorate(handler: PlainHandler) -> PlainHandler:
            register(_in_thread(handler, self._pool))
            return handler

        return decorate

    def commit(self) -> None:
        """Commit what is done by now and wait for the brokers."""
        self._thread.run(self._client.commit())

    def run_forever(self) -> None:
        """Wait until another thread closes the consumer, or for Ctrl-C.

        Raises when it can no longer work.
        """
        try:
            self._thread.run(self._client.run_forever())
        except ClientClosedError:
            if not self._closed.is_set():
                raise

    def close(self) -> None:
        """Pull no more, let running handlers end, commit, leave the group."""
        super().close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_waited_for_by_close(self) -> bool:
        return threading.get_ident() in self._handler_threads or super()._is_waited_for_by_close()


class PullConsumer(_Consumer):
    """See `twinlog.client.PullConsumer`."""

    _client: _pull.PullConsumer

    def __init__(
        self, group: str, *, name_server: str | Sequence[str], **options: Unpack[PullOptions]
    ) -> None:
        super().__init__(f"pull-{group}")
        self._client = _pull.PullConsumer(group, name_server=name_server, **options)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not self._closed.is_set():
            # What was in hand when it happened is not done: it comes again.
            self._thread.call(self._client.forget_in_hand)
        self.close()

    def subscribe(self, topic: str, expression: str | None = "*", *, sql: bool = False) -> None:
        """Share the queues of a topic with the other members of the group."""
        self._thread.run(self._client.subscribe(topic, expression, sql=sql))

    def assign(self, queues: Iterable[MessageQueue], *, expression: str = "*") -> None:
        """Read exactly these queues, whatever others do."""
        self._thread.run(self._client.assign(list(queues), expression=expression))

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic."""
        return self._thread.run(self._client.queues(topic))

    def poll(self, timeout_ms: float = 5000, max_count: int = 32) -> list[ReceivedMessage]:
        """Up to `max_count` messages; an empty list when none came in time."""
        return self._taken(self._client.poll(timeout_ms, max_count))

    def _taken(self, call: Coroutine[Any, Any, T]) -> T:
        """What a call hands out. An interrupted caller does not have it."""
        try:
            return self._thread.run(call)
        except ClientError:
            raise
        except BaseException:
            with contextlib.suppress(ClientError):
                self.hand_back()
            raise

    def hand_back(self) -> None:
        """What was handed out last is handed out again."""
        self._thread.call(self._client.hand_back)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        # One message at a time across the threads: a message counts as done when the next is asked.
        while not self._closed.is_set():
            yield from self.poll(1000, 1)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was handed out so far, or these offsets."""
        self._thread.run(self._client.commit(offsets))

    @contextlib.contextmanager
    def batch(
        self, timeout_ms: float = 5000, max_count: int = 32
    ) -> Iterator[list[ReceivedMessage]]:
        """Messages that are committed when the block ends without an exception."""
        batch = self._client.batch(timeout_ms, max_count)
        messages = self._taken(_enter(batch))
        try:
            yield messages
        except BaseException as error:
            self._thread.run(_leave(batch, error))
            raise
        self._thread.run(_leave(batch, None))

    def position(self, queue: MessageQueue) -> int:
        """The next offset that will be handed out."""
        return self._thread.call(self._client.position, queue)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        suspend_ms: int = 0,
        expression: str = "*",
    ) -> PullResult:
        """One request to the broker, for those who keep offsets themselves."""
        return self._thread.run(
            self._client.pull(
                queue, offset, max_count=max_count, suspend_ms=suspend_ms, expression=expression
            )
        )


async def _enter(context: AbstractAsyncContextManager[T]) -> T:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Any], error: BaseException | None) -> None:
    """As `async with` does; the error itself goes on in the thread that raised it."""
    kind = None if error is None else type(error)
    try:
        await context.__aexit__(kind, error, None if error is None else error.__traceback__)
    except BaseException as raised:
        if raised is not error:
            raise


def _in_thread(
    function: Callable[..., T], pool: concurrent.futures.Executor | None = None
) -> Callable[..., Awaitable[T]]:
    """An async function that runs a plain one outside of the loop."""
    if not callable(function):
        raise InvalidHandlerError(f"the handler must be a function, not {function!r}")
    if asyncio.iscoroutinefunction(function):
        raise InvalidHandlerError(
            "the handler is async: write a plain function, or use twinlog.client instead"
        )

    def call(*arguments: Any) -> T:
        try:
            return function(*arguments)
        except Exception:
            raise
        except BaseException as error:
            # sys.exit() would end the loop, and every call of the program would wait forever.
            raise ClientError(f"the handler raised {error!r}") from error

    async def run(*arguments: Any) -> T:
        bound = functools.partial(call, *arguments)
        return await asyncio.get_running_loop().run_in_executor(pool, bound)

    return run
