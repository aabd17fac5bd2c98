"""Automatic batches on their way: the shell around the accumulator. Belongs to one producer.

Messages go into the accumulator; what is full or has waited long enough leaves as batch requests,
as many at a time as are useful.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from twinlog.client.message import Message
from twinlog.client.producer.accumulator import Accumulator, Batch, LaneKey
from twinlog.client.producer.outgoing import SendRequest
from twinlog.client.producer.sender import Sender
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.clock import Clock

# Bytes of batches on their way. More would not be faster: it only waits at the broker, and the time
# limit of a request runs while it does.
IN_FLIGHT_SIZE_MAX = 4 * 1024 * 1024


class Batching:
    """Gathers messages by lane and sends their batches."""

    def __init__(
        self, accumulator: Accumulator, sender: Sender, clock: Clock, *, send_timeout_ms: int
    ) -> None:
        self._accumulator = accumulator
        self._sender = sender
        self._clock = clock
        self._send_timeout_ms = send_timeout_ms
        # One key object for each topic, with and without waiting for the store.
        self._free_lanes: dict[str, LaneKey] = {}
        self._free_lanes_unsafe: dict[str, LaneKey] = {}
        # Batches that are ready while as much as is useful is on its way.
        self._outbox: deque[Batch] = deque()
        self._outbox_size = 0
        self._timer: Any = None
        self._is_draining = False

    @property
    def size(self) -> int:
        """Bytes that have not left."""
        return self._accumulator.size + self._outbox_size

    @property
    def is_backed_up(self) -> bool:
        """Whether batches wait although as much as is useful is on its way."""
        return self._outbox_size > 0

    def free_lane(self, message: Message) -> LaneKey:
        """The lane of messages that may go to any queue."""
        keys = self._free_lanes if message.wait_store_ok else self._free_lanes_unsafe
        key = keys.get(message.topic)
        if key is None:
            key = keys[message.topic] = LaneKey(message.topic, None, message.wait_store_ok)
        return key

    def room(self, key: LaneKey) -> tuple[int, int]:
        """Bytes and messages that still fit into the batch of this lane."""
        return self._accumulator.room(key)

    def add(self, key: LaneKey, element: bytes, ticket: Any, count: int = 1) -> None:
        """Put one message, or `count` in one piece."""
        if self._accumulator.add(key, element, ticket, self._clock.monotonic_ms(), count):
            self.drain()
        elif self._timer is None:
            self._schedule()

    def add_single(self, key: LaneKey, request: SendRequest) -> None:
        """Put a message that travels alone and keeps its place in the lane."""
        self._accumulator.add_single(key, request.body, request, self._clock.monotonic_ms())
        self.drain()

    def drain(self, *, force: bool = False) -> None:
        """Send every batch that is due."""
        if self._is_draining:
            return
        self._is_draining = True
        now_ms = self._clock.monotonic_ms()
        outbox, sender = self._outbox, self._sender
        try:
            for batch in self._accumulator.take_ready(now_ms, force=force):
                outbox.append(batch)
                self._outbox_size += batch.size
            while outbox and sender.outstanding_size < IN_FLIGHT_SIZE_MAX:
                self._send_out(outbox.popleft(), now_ms)
        finally:
            self._is_draining = False
        if self._timer is None:
            self._schedule()

    def finished(self, request: SendRequest) -> None:
        """A request has its outcome: what waited for it may leave."""
        if request.batch is not None:
            self._accumulator.finished(request.batch)
            if request.is_pinned or self._outbox:
                self.drain()

    def take_all(self) -> list[Any]:
        """The tickets of everything that has not left: the producer is closed."""
        batches = [*self._outbox, *self._accumulator.take_all()]
        self._outbox.clear()
        self._outbox_size = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tickets: list[Any] = []
        for batch in batches:
            tickets += batch.tickets[0].tickets if batch.is_single else batch.tickets
        return tickets

    def _schedule(self) -> None:
        if self._is_draining:
            return
        ready_ms = self._accumulator.next_ready_ms()
        if ready_ms is None:
            return
        loop = asyncio.get_running_loop()
        delay_ms = ready_ms - self._clock.monotonic_ms()
        if delay_ms <= 0:
            self._timer = loop.call_soon(self._drain_by_timer)
        else:
            self._timer = loop.call_later(delay_ms / 1000, self._drain_by_timer)

    def _drain_by_timer(self) -> None:
        self._timer = None
        self.drain()

    def _send_out(self, batch: Batch, now_ms: int) -> None:
        self._outbox_size -= batch.size
        if batch.is_single:
            request: SendRequest = batch.tickets[0]
            request.batch = batch
            request.deadline_ms = now_ms + self._send_timeout_ms
            self._sender.send(request)
        else:
            self.send_batch(batch.key, b"".join(batch.elements), batch.tickets, batch)

    def send_batch(
        self, key: LaneKey, data: bytes, tickets: list[Any], batch: Batch | None = None
    ) -> None:
        """Send the members of one batch request now."""
        wait = "true" if key.wait_store_ok else "false"
        request = SendRequest(
            key.topic, data, f"WAIT\x01{wait}", tickets=tickets, born_ms=self._clock.now_ms(),
            deadline_ms=self._clock.monotonic_ms() + self._send_timeout_ms,
            code=RequestCode.SEND_BATCH_MESSAGE, queue=key.queue, batch=batch,
        )  # fmt: skip
        self._sender.send(request)
