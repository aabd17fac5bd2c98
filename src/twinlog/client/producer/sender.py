"""Sends on their way: pipelined, retried, bounded.

The I/O half of a producer. A send that goes well costs one request object and one callback; no
task. Sends that fail or have no route yet are collected and looked after together by one task, so
that a broken connection with ten thousand requests on it makes one route look-up, not ten thousand.
"""

from __future__ import annotations

import asyncio
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
    SendOutcome,
    with_outcome,
)
from twinlog.client.message import SendReceipt
from twinlog.client.net.instance import ClientInstance, no_answer
from twinlog.client.net.routes import TopicRoute
from twinlog.client.net.transport import translate
from twinlog.client.producer.fault_strategy import FaultStrategy
from twinlog.client.producer.outgoing import SendRequest, ids_of, read_receipts, send_command
from twinlog.client.producer.retry import RetryAction, backoff_ms, decide, is_unlimited
from twinlog.client.producer.selector import RoundRobin
from twinlog.client.queues import MessageQueue
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.twinlog import BrokerInfo
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.clock import TimerHandle

_LOG = logging.getLogger("twinlog.client")
_WATCH_MS = 250
_SILENCE_MS = 1_000  # So long without any answer, and the route is asked for again.
_ONCE_ATTEMPT_MS = 5000
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
        self._asking: set[SendRequest] = set()  # Wait to hear whether their broker drops repeats.
        self._watch: TimerHandle | None = None
        self._heard_ms = 0
        self.outstanding = 0
        self.outstanding_size = 0

    def send(self, request: SendRequest) -> None:
        """Take a request; its outcome is told later, never before this returns."""
        self.outstanding += 1
        self.outstanding_size += request.size
        if self._watch is None:
            clock = self._instance.clock
            self._heard_ms = clock.monotonic_ms()
            self._watch = clock.call_later_ms(_WATCH_MS, self._watch_silence)
        self._dispatch(request)

    def _watch_silence(self) -> None:
        """A broker that stands still answers nothing and closes nothing. Another one may have
        taken over: new sends need not wait until the first has run out of its time."""
        self._watch = None
        if not self.outstanding or not self._instance.is_running:
            return
        clock = self._instance.clock
        if clock.monotonic_ms() - self._heard_ms >= _SILENCE_MS:
            for topic in self._selectors:
                self._instance.tasks.job("route", self._ask_route(topic), about=topic)
        self._watch = clock.call_later_ms(_WATCH_MS, self._watch_silence)

    async def _ask_route(self, topic: str) -> None:
        try:
            await self._instance.refresh_route(topic)
        except ClientError as error:
            _LOG.info("no new route topic=%s reason=%s", topic, error)

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
                    f"topic {request.topic!r} has no queue on a master that accepts messages now"
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
            raise NoWritableQueueError(
                f"broker {request.queue.broker_name!r} has no master at the moment"
            )
        return broker.master_address

    def _submit(self, request: SendRequest, address: str) -> None:
        if request.once is not None and address not in self._once_brokers:
            self._asking.add(request)
            self._instance.tasks.job(
                "ask broker", self._ask_broker(request, address), about=address,
                failed=lambda error: self._not_asked(request, error),
            )  # fmt: skip
            return
        started_ms = self._instance.clock.monotonic_ms()
        timeout_ms = request.deadline_ms - started_ms
        if request.once is not None:
            # A repeat does no harm, and the broker that is silent may not be the master any more.
            timeout_ms = min(timeout_ms, _ONCE_ATTEMPT_MS)
        request.attempt += 1

        def answered(answer: Request | None, error: RemotingError | None) -> None:
            if answer is None:
                assert error is not None
                self._lost(request, address, error)
            else:
                self._answered(request, address, answer, started_ms)

        command = send_command(request, self._group)
        try:
            self._instance.transport.remoting.submit(
                address, command, max(1.0, timeout_ms), answered
            )
        except RemotingError as error:
            self._lost(request, address, error)
        except ClientClosedError as error:
            self._failed(request, error)

    async def _ask_broker(self, request: SendRequest, address: str) -> None:
        """Before the first idempotent send to a broker: it must be one that drops repeats."""
        left_ms = request.deadline_ms - self._instance.clock.monotonic_ms()
        failure: ClientError | None = None
        try:
            await self.require_once(address, max(1.0, left_ms))
        except ClientError as error:
            # The question was lost, not the message: that has not been written anywhere.
            failure = with_outcome(error, SendOutcome.NOT_STORED)
        if request not in self._asking:
            return  # Given up meanwhile.
        self._asking.discard(request)
        if failure is None:
            self._submit(request, address)
        elif isinstance(failure, IdempotenceNotSupportedError):
            self._finish(request, None, failure)
        else:
            request.attempt += 1
            self._failed(request, failure)

    def _not_asked(self, request: SendRequest, error: Exception) -> None:
        if request in self._asking:
            self._asking.discard(request)
            failure = with_outcome(ClientError(repr(error)), SendOutcome.NOT_STORED)
            self._finish(request, None, failure)

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
                raise RequestCodeNotSupportedError(3, "its answer lacks idempotentSends")
        except RequestCodeNotSupportedError as error:
            raise IdempotenceNotSupportedError(
                f"broker {address} does not support idempotent sends, as it is not twinlog or too "
                f"old: it would store repeats, so nothing was sent ({error})"
            ) from error
        self._once_brokers.add(address)

    def _answered(
        self, request: SendRequest, address: str, answer: Request, started_ms: int
    ) -> None:
        self._heard_ms = self._instance.clock.monotonic_ms()
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
            request.receipts = receipts
            request.outcome = SendOutcome.STORED
            self._look_after(request)
            return
        self._finish(request, receipts, None)

    def _lost(self, request: SendRequest, address: str, error: RemotingError) -> None:
        translated = translate(error, address)
        self._instance.connection_failed(address, translated)
        if request.queue is not None and isinstance(translated, BrokerUnreachableError):
            self._faults.failed(request.queue.broker_name, self._instance.clock.monotonic_ms())
        self._failed(request, translated)

    def _failed(self, request: SendRequest, error: ClientError, *, has_route: bool = True) -> None:
        """An attempt failed: try again, or tell. `error` speaks of this attempt alone."""
        request.outcome = request.outcome.combined_with(error.outcome)
        if not is_unlimited(error):
            request.failures += 1
        action = decide(
            error,
            attempt=request.failures,
            # A repeat does no harm, and without a route nothing was tried: only time limits them.
            attempts_max=self._attempts_max if request.once is None and has_route else _NO_LIMIT,
            is_pinned=request.is_pinned,
            time_left_ms=request.deadline_ms - self._instance.clock.monotonic_ms(),
        )
        is_stored = error.outcome is SendOutcome.STORED and request.once is None
        if action is RetryAction.GIVE_UP or is_stored or not self._instance.is_running:
            self._give_up(request, error)
            return
        if action is RetryAction.ANOTHER_BROKER and request.queue is not None:
            request.tried += (request.queue.broker_name,)
        request.error = error
        self._look_after(request)

    def _give_up(self, request: SendRequest, error: ClientError) -> None:
        """Tell the last error, with the outcome of all attempts together."""
        if request.receipts is not None:
            # An earlier attempt is stored: its receipt says more than the error of a repeat.
            self._finish(request, request.receipts, None)
            return
        outcome = request.outcome.combined_with(error.outcome)
        note = ""
        if outcome is not error.outcome:
            note = "; an earlier attempt may have been stored"
        self._finish(request, None, with_outcome(error, outcome, note))

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
            self._instance.tasks.contained("send recovery", self._recover)

    async def _recover(self) -> None:
        """Find routes, wait a little, send again in the old order; until nothing waits."""
        try:
            while self._waiting:
                pause_ms = max(backoff_ms(request.attempt) for request in self._waiting)
                if pause_ms:
                    await self._instance.clock.sleep_ms(max(0, min(pause_ms, self._left_ms())))
                errors = await self._find_routes()
                waiting, self._waiting = self._waiting, deque()
                for request in waiting:
                    try:
                        self._send_again(request, errors.get(request.topic))
                    except Exception as error:  # Whoever waits for this one is told.
                        self._instance.tasks.failures.note("send again", error, request.topic)
                        failure = with_outcome(ClientError(repr(error)), SendOutcome.UNKNOWN)
                        self._finish(request, None, failure)
        finally:
            self._is_recovering = False

    def _left_ms(self) -> float:
        """Until the first of those that wait must be told."""
        first = min((request.deadline_ms for request in self._waiting), default=0.0)
        return first - self._instance.clock.monotonic_ms()

    async def _find_routes(self) -> dict[str, ClientError]:
        """Ask for the routes that are missing or known to be wrong."""
        topics = {
            request.topic
            for request in self._waiting
            if request.error is None
            or request.error.refresh_route
            or self._instance.cached_route(request.topic) is None
        }
        found = await asyncio.gather(*(self._find_route(topic) for topic in topics))
        return {topic: error for topic, error in zip(topics, found, strict=True) if error}

    async def _find_route(self, topic: str) -> ClientError | None:
        """Ask for one route, no longer than the first of those that wait may take."""
        try:
            async with asyncio.timeout(max(1.0, self._left_ms()) / 1000):
                await self._instance.refresh_route(topic, create=True)
        except TimeoutError:
            return None  # Who must be told now is, the others ask again.
        except ClientError as error:
            return error
        return None

    def _send_again(self, request: SendRequest, route_error: ClientError | None) -> None:
        route = self._instance.cached_route(request.topic)
        if route is None:
            request.attempt += 1
            error = route_error or request.error or no_answer(self._instance, request.topic)
            self._failed(request, error, has_route=False)
            return
        if request.deadline_ms <= self._instance.clock.monotonic_ms():
            self._give_up(request, request.error or route_error or _too_late(request))
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
        waiting, self._waiting = [*self._waiting, *self._asking], deque()
        self._asking.clear()
        for request in waiting:
            self._give_up(request, ClientClosedError("the producer was closed in the meantime"))


def _too_late(request: SendRequest) -> ClientError:
    return NoWritableQueueError(
        f"the message to topic {request.topic!r} could not be sent within its timeout"
    )


def _knows_once(body: bytes | memoryview) -> bool:
    try:
        return fastjson.loads_as(bytes(body), BrokerInfo).idempotent_sends
    except ValueError:
        return False
