"""The same names, blocking: a thin facade that runs the asyncio client in a thread of its own.

    with Producer("group", name_server="127.0.0.1:9876") as producer:
        receipt = producer.send(Message("orders", b"body"))

Handlers are plain functions and run in a pool of threads. Any thread may call; a child process may
not: open a new client after a fork.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from twinlog.client.consumer import pull_consumer as _pull
from twinlog.client.consumer import push_consumer as _push
from twinlog.client.consumer.consumer_core import ConsumeFrom
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
from twinlog.client.producer import producer as _producer
from twinlog.client.producer import transaction as _transaction
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
_END_S = 0.5  # For calls that have their outcome already: two turns of the loop.


class _LoopThread:
    """An event loop in a thread, for one client."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process_id = process_id()
        self._is_closed = False

    def check_usable(self) -> None:
        if self._process_id != process_id():
            raise ClientForkedError(
                f"this client was opened by process {self._process_id} and cannot be used in its "
                f"child {process_id()}: open a new client after the fork"
            )
        if self._is_closed:
            raise ClientClosedError("this client is closed: open a new one")

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

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        try:
            self.check_usable()
            if self._loop is None:
                raise ClientClosedError("this client is not started: use 'with' or call start()")
            if threading.current_thread() is self._thread:
                raise ClientError("a blocking client cannot be called from its own event loop")
        except ClientError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.submit(coroutine).result()

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
        self._closed = threading.Event()

    def start(self) -> Self:
        self._thread.start()
        try:
            self._thread.run(self._client.start())
        except BaseException:
            self._thread.close()
            raise
        return self

    def close(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            self._thread.run(self._client.close())
        except ClientClosedError:
            return  # Never started: nothing to close.
        except ClientForkedError:
            return  # The parent's to close.
        finally:
            self._thread.close()

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
        return str(self._client.client_id)


class Producer(_Blocking):
    """See `twinlog.client.Producer`; the arguments are the same."""

    _client: _producer.Producer

    @property
    def producer_id(self) -> str | None:
        return self._client.producer_id

    def __init__(self, group: str, *, name_server: str | Sequence[str], **options: Any) -> None:
        super().__init__(f"producer-{group}")
        self._client = _producer.Producer(group, name_server=name_server, **options)

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        return self._thread.run(self._client.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None
    ) -> concurrent.futures.Future[SendReceipt]:
        """Send without waiting; `result()` of the future is the receipt."""
        return self._thread.submit(self._client.send(message, queue=queue))

    def send_batch(
        self, messages: Iterable[Message], *, queue: MessageQueue | None = None
    ) -> list[SendReceipt]:
        return self._thread.run(self._client.send_batch(list(messages), queue=queue))

    def send_many(self, messages: Iterable[Message]) -> list[SendReceipt]:
        """The fast way for many: one crossing between the threads for all of them."""
        return self._thread.run(self._client.send_many(list(messages)))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        self._thread.run(self._client.send_oneway(message, queue=queue))

    def request(self, message: Message, *, timeout_ms: int = 3000) -> ReceivedMessage:
        return self._thread.run(self._client.request(message, timeout_ms=timeout_ms))

    def reply(self, request: ReceivedMessage, body: bytes) -> SendReceipt:
        return self._thread.run(self._client.reply(request, body))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._thread.run(self._client.queues(topic))

    def flush(self) -> None:
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
        **options: Any,
    ) -> None:
        _Blocking.__init__(self, f"transactions-{group}")
        self._client = _transaction.TransactionProducer(
            group, check=_in_thread(check), name_server=name_server, **options
        )

    def send_in_transaction(
        self, message: Message, execute: Callable[[Message, str], TransactionState]
    ) -> TransactionReceipt:
        return self._thread.run(self._client.send_in_transaction(message, _in_thread(execute)))

    def transaction(self, message: Message) -> _BlockingTransaction:
        return _BlockingTransaction(self._thread, self._client.transaction(message))


class _BlockingTransaction:
    def __init__(self, thread: _LoopThread, transaction: _transaction.Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def id(self) -> str:
        return self._transaction.id

    @property
    def receipt(self) -> SendReceipt:
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


class PushConsumer(_Blocking):
    """See `twinlog.client.PushConsumer`; handlers are plain functions, run in threads."""

    _client: _push.PushConsumer

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        concurrency: int = 20,
        **options: Any,
    ) -> None:
        super().__init__(f"push-{group}")
        self._pool = concurrent.futures.ThreadPoolExecutor(concurrency, f"twinlog-{group}")
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
        wrapped = _in_thread(handler, self._pool)
        self._thread.run(self._client.subscribe(topic, expression, wrapped, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        self._thread.run(self._client.unsubscribe(topic))

    def pause(self) -> None:
        self._thread.call(self._client.pause)

    def resume(self) -> None:
        self._thread.call(self._client.resume)

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._thread.call(lambda: self._client.assignment)

    def run_forever(self) -> None:
        """Wait until another thread closes the consumer, or for Ctrl-C."""
        self._closed.wait()

    def close(self) -> None:
        super().close()
        self._pool.shutdown(wait=False, cancel_futures=True)


class PullConsumer(_Blocking):
    """See `twinlog.client.PullConsumer`."""

    _client: _pull.PullConsumer

    def __init__(self, group: str, *, name_server: str | Sequence[str], **options: Any) -> None:
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
        self._thread.run(self._client.subscribe(topic, expression, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        self._thread.run(self._client.unsubscribe(topic))

    def assign(self, queues: Iterable[MessageQueue], *, expression: str = "*") -> None:
        self._thread.run(self._client.assign(list(queues), expression=expression))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._thread.run(self._client.queues(topic))

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._thread.call(lambda: self._client.assignment)

    def poll(self, timeout_ms: float = 5000, max_count: int = 32) -> list[ReceivedMessage]:
        return self._thread.run(self._client.poll(timeout_ms, max_count))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        # One message at a time across the threads: a message counts as done when the next is asked.
        while not self._closed.is_set():
            yield from self.poll(1000, 1)

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self._thread.run(self._client.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._thread.run(self._client.committed(queue))

    def position(self, queue: MessageQueue) -> int:
        return self._thread.call(self._client.position, queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._thread.call(self._client.seek, queue, offset)

    def seek_to_begin(self, *queues: MessageQueue) -> None:
        self._thread.run(self._client.seek_to_begin(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        self._thread.run(self._client.seek_to_end(*queues))

    def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        self._thread.run(self._client.seek_to_time(timestamp_ms, *queues))

    def begin_offset(self, queue: MessageQueue) -> int:
        return self._thread.run(self._client.begin_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        return self._thread.run(self._client.end_offset(queue))

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._thread.run(self._client.offset_for_time(queue, timestamp_ms))

    def pause(self, *queues: MessageQueue) -> None:
        self._thread.call(self._client.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        self._thread.call(self._client.resume, *queues)

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        suspend_ms: int = 0,
        expression: str = "*",
    ) -> PullResult:
        return self._thread.run(
            self._client.pull(
                queue, offset, max_count=max_count, suspend_ms=suspend_ms, expression=expression
            )
        )


def _in_thread(
    function: Callable[..., T], pool: concurrent.futures.Executor | None = None
) -> Callable[..., Awaitable[T]]:
    """An async function that runs a plain one outside of the loop."""
    if not callable(function):
        raise InvalidHandlerError(f"the handler must be a function, not {function!r}")
    if asyncio.iscoroutinefunction(function):
        raise InvalidHandlerError(
            "the handler is async: use twinlog.client, or write a plain function"
        )

    async def run(*arguments: Any) -> T:
        call = functools.partial(function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    return run
