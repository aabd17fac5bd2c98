"""Sends on their way: pipelined, retried, bounded.

The I/O half of a producer. A send that goes well costs one request object and one callback; no
task. Sends that fail or have no route yet are collected and looked after together by one task, so
that a broken connection with ten thousand requests on it makes one route look-up, not ten thousand.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from twinlog.client.errors import (
    BrokerUnreachableError,
    ClientClosedError,
    ClientError,
    IdempotenceNotSupportedError,
    NoWritableQueueError,
    RequestCodeNotSupportedError,
)
from twinlog.client.fault_strategy import FaultStrategy
from twinlog.client.instance import DEFAULT_TOPIC, ClientInstance
from twinlog.client.message import SendReceipt
from twinlog.client.outgoing import SendRequest, ids_of, read_receipts, send_command
from twinlog.client.queues import MessageQueue
from twinlog.client.retry import RetryAction, backoff_ms, decide
from twinlog.client.routes import TopicRoute
from twinlog.client.selector import RoundRobin
from twinlog.client.transport import translate
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import RemotingError

_LOG = logging.getLogger("twinlog.client")
_NO_LIMIT = 1 << 30

# Called once for each request: receipts in the order of its tickets, or the error.
Outcome = Callable[[SendRequest, list[SendReceipt] | None, ClientError | None], None]


class Sender:
    """Takes requests; tells `outcome` what became of each of them."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        outcome: Outcome,
        *,
        attempts_max: int,
        retry_when_not_ok: bool,
        faults: FaultStrategy,
    ) -> None:
        self._instance = instance
        self._group = group
        self._outcome = outcome
        self._attempts_max = attempts_max
        self._retry_when_not_ok = retry_when_not_ok
        self._faults = faults
        self._selectors: dict[str, tuple[TopicRoute, list[MessageQueue], RoundRobin]] = {}
        self._waiting: deque[SendRequest] = deque()
        self._is_recovering = False
        self._once_brokers: set[str] = set()  # Known to drop repeats.
        self.outstanding = 0
        self.outstanding_size = 0

    def send(self, request: SendRequest) -> None:
        """Take a request; its outcome is told later, never before this returns."""
        self.outstanding += 1
        self.outstanding_size += request.size
        self._dispatch(request)

    def _dispatch(self, request: SendRequest) -> None:
        route = self._instance.cached_route(request.topic)
        if route is None:
            self._look_after(request)
            return
        try:
            address = self.choose(request, route)
        except ClientError as error:
            self._failed(request, error)
            return
        self._submit(request, address)

    def choose(self, request: SendRequest, route: TopicRoute) -> str:
        """Give the request a queue (unless it is pinned) and return its master's address."""
        if not request.is_pinned:
            known = self._selectors.get(request.topic)
            if known is None or known[0] is not route:
                start = self._instance.clock.monotonic_ms() if known is None else known[2].index
                known = (route, route.write_queues(request.topic), RoundRobin(start))
                self._selectors[request.topic] = known
            _, queues, selector = known
            if not queues:
                raise NoWritableQueueError(
                    f"topic {request.topic!r} has no queue on a master that takes messages now"
                )
            now_ms = self._instance.clock.monotonic_ms()
            request.queue = selector.choose(
                queues,
                avoid=request.tried,
                is_available=(lambda name: self._faults.is_available(name, now_ms))
                if self._faults.has_paused
                else None,
            )
        assert request.queue is not None
        broker = route.brokers.get(request.queue.broker_name)
        if broker is None or broker.master_address is None:
            raise NoWritableQueueError(f"broker {request.queue.broker_name!r} has no master now")
        return broker.master_address

    def _submit(self, request: SendRequest, address: str) -> None:
        if request.once is not None and address not in self._once_brokers:
            self._instance.tasks.spawn("ask broker", self._ask_broker(request, address))
            return
        started_ms = self._instance.clock.monotonic_ms()
        timeout_ms = request.deadline_ms - started_ms
        request.attempt += 1

        def answered(answer: Request | None, error: RemotingError | None) -> None:
            if answer is None:
                assert error is not None
                self._lost(request, address, error)
            else:
                self._answered(request, address, answer, started_ms)

        command = send_command(request, self._group, DEFAULT_TOPIC)
        try:
            self._instance.transport.remoting.submit(
                address, command, max(1.0, timeout_ms), answered
            )
        except RemotingError as error:
            self._lost(request, address, error)

    async def _ask_broker(self, request: SendRequest, address: str) -> None:
        """Before the first idempotent send to a broker: it must be one that drops repeats."""
        left_ms = request.deadline_ms - self._instance.clock.monotonic_ms()
        try:
            await self.require_once(address, max(1.0, left_ms))
        except IdempotenceNotSupportedError as error:
            self._finish(request, None, error)
        except ClientError as error:
            request.attempt += 1
            self._failed(request, error)
        else:
            self._submit(request, address)

    async def require_once(self, address: str, timeout_ms: float) -> None:
        """Raise IdempotenceNotSupportedError unless the broker there drops repeats."""
        if address in self._once_brokers:
            return
        try:
            answer = await self._instance.transport.call(
                address, RequestCode.TWINLOG_INFO, timeout_ms=timeout_ms,
                action="question whether the broker knows idempotent sends",
            )  # fmt: skip
            if not _knows_once(answer.body):
                raise RequestCodeNotSupportedError(3, "no idempotentSends in its answer")
        except RequestCodeNotSupportedError as error:
            raise IdempotenceNotSupportedError(
                f"broker {address} is not twinlog (or too old): it would store repeats, so an "
                f"idempotent producer does not send to it ({error})"
            ) from error
        self._once_brokers.add(address)

    def _answered(
        self, request: SendRequest, address: str, answer: Request, started_ms: int
    ) -> None:
        ids = ids_of(request.tickets)
        try:
            receipts = read_receipts(answer, request, ids, address)
        except ClientError as error:
            self._failed(request, error)
            return
        if self._faults.is_enabled or self._faults.has_paused:
            now_ms = self._instance.clock.monotonic_ms()
            assert request.queue is not None
            self._faults.succeeded(request.queue.broker_name, now_ms - started_ms, now_ms)
        if not self._instance.is_announced(address):
            self._instance.announce_soon(address)
        if (
            self._retry_when_not_ok
            and not receipts[0].is_acknowledged
            and request.attempt < self._attempts_max
            and (not request.is_pinned or request.once is not None)
        ):
            request.tried += (receipts[0].queue.broker_name,)
            self._look_after(request)
            return
        self._finish(request, receipts, None)

    def _lost(self, request: SendRequest, address: str, error: RemotingError) -> None:
        translated = translate(error, address)
        if not translated.is_safe_to_repeat:
            request.is_unknown = True
        self._instance.connection_failed(address, translated)
        if request.queue is not None and isinstance(translated, BrokerUnreachableError):
            self._faults.failed(request.queue.broker_name, self._instance.clock.monotonic_ms())
        self._failed(request, translated)

    def _failed(self, request: SendRequest, error: ClientError) -> None:
        action = decide(
            error,
            attempt=request.attempt,
            # A repeat does no harm: only time limits it.
            attempts_max=self._attempts_max if request.once is None else _NO_LIMIT,
            is_pinned=request.is_pinned,
            time_left_ms=request.deadline_ms - self._instance.clock.monotonic_ms(),
        )
        if action is RetryAction.GIVE_UP or not self._instance.is_running:
            self._finish(request, None, error)
            return
        if action is RetryAction.ANOTHER_BROKER and request.queue is not None:
            request.tried += (request.queue.broker_name,)
        request.error = error
        self._look_after(request)

    def _finish(
        self, request: SendRequest, receipts: list[SendReceipt] | None, error: ClientError | None
    ) -> None:
        self.outstanding -= 1
        self.outstanding_size -= request.size
        self._outcome(request, receipts, error)

    # Recovery

    def _look_after(self, request: SendRequest) -> None:
        self._waiting.append(request)
        if not self._is_recovering:
            self._is_recovering = True
            self._instance.tasks.spawn("send recovery", self._recover())

    async def _recover(self) -> None:
        """Find routes, wait a little, send again in the old order; until nothing waits."""
        try:
            while self._waiting:
                pause_ms = max(backoff_ms(request.attempt) for request in self._waiting)
                if pause_ms:
                    await self._instance.clock.sleep_ms(pause_ms)
                errors = await self._find_routes()
                waiting, self._waiting = self._waiting, deque()
                for request in waiting:
                    self._send_again(request, errors.get(request.topic))
        finally:
            self._is_recovering = False

    async def _find_routes(self) -> dict[str, ClientError]:
        """Ask for the routes that are missing or known to be wrong."""
        topics = {
            request.topic
            for request in self._waiting
            if request.error is None
            or request.error.refresh_route
            or self._instance.cached_route(request.topic) is None
        }
        errors: dict[str, ClientError] = {}
        for topic in topics:
            try:
                await self._instance.refresh_route(topic, create=True)
            except ClientError as error:
                errors[topic] = error
        return errors

    def _send_again(self, request: SendRequest, route_error: ClientError | None) -> None:
        route = self._instance.cached_route(request.topic)
        if route is None:
            request.attempt += 1
            self._failed(
                request, route_error or request.error or NoWritableQueueError(request.topic)
            )
            return
        if request.deadline_ms <= self._instance.clock.monotonic_ms():
            self._finish(request, None, request.error or route_error or ClientError("timed out"))
            return
        try:
            address = self.choose(request, route)
        except ClientError as error:
            request.attempt += 1
            self._failed(request, error)
            return
        self._submit(request, address)

    def fail_all(self) -> None:
        """The producer is closed: what waits is told so."""
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            self._finish(request, None, ClientClosedError("the producer was closed meanwhile"))


def _knows_once(body: bytes | memoryview) -> bool:
    try:
        answer = fastjson.loads(bytes(body))
    except ValueError:
        return False
    return isinstance(answer, dict) and answer.get("idempotentSends") is True
