"""The producer and the consumers of the demo: ordinary users of `twinlog.client`, with a ledger."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass

from twinlog.cli.demo.ledger import Ledger
from twinlog.client import Message, Producer, PushConsumer, ReceivedMessage

SENDERS = (
    96  # Each has one send in flight, so that well over 64 are open at the moment of the kill.
)
CONSUMERS = 2
TOPIC = "demo"
GROUP = "demo-readers"
SLOW_SHARE = 0.5  # Readers that lag stay this far behind the writers until the kill.
RETRY_PAUSE_SECONDS = 0.05  # Between two tries while no master takes sends.


@dataclass(frozen=True, slots=True)
class Load:
    """How much traffic."""

    size: int = 256
    rate: int = 0  # Messages per second; 0 = as fast as the pair acknowledges.


class Stopwatch:
    """Seconds since the run began."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._start = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._start


class Traffic:
    """Writes numbered messages and reads them back, entering both in the ledger."""

    def __init__(self, name_server: str, load: Load, ledger: Ledger, now: Stopwatch) -> None:
        self._name_server = name_server
        self._load = load
        self._ledger = ledger
        self._now = now
        self._numbers = itertools.count()
        self._is_writing = False
        self._senders: list[asyncio.Task[None]] = []
        self._producer: Producer | None = None
        self._consumers: list[PushConsumer] = []
        # Until the master dies the readers lag behind on purpose: what they have not read by then
        # is what only the slave can give them.
        self._is_reading_slowly = True
        self._rush = asyncio.Event()
        self._rushed = 0  # Messages that left before their time, which `rate` does not count.

    async def start(self) -> None:
        self._producer = Producer("demo-writers", name_server=self._name_server)
        await self._producer.start()
        for _ in range(CONSUMERS):
            consumer = PushConsumer(GROUP, name_server=self._name_server)
            await consumer.start()
            await consumer.subscribe(TOPIC, "*", self._consume)
            self._consumers.append(consumer)
        self._is_writing = True
        self._senders = [asyncio.ensure_future(self._send_forever()) for _ in range(SENDERS)]

    def rush(self, *, is_on: bool) -> None:
        """Send as fast as possible whatever the rate: at the kill many sends must be open."""
        if is_on:
            self._rush.set()
        else:
            self._rush.clear()

    def hurry(self) -> None:
        """From now on read as fast as the messages come."""
        self._is_reading_slowly = False

    def check(self) -> None:
        """Raise when traffic cannot go on. Ours lives in this process: it goes on as long as we."""

    async def stop_writing(self) -> None:
        self._is_writing = False
        await asyncio.gather(*self._senders)
        self._senders = []

    async def stop(self) -> None:
        self._is_writing = self._is_reading_slowly = False
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)
        consumers, self._consumers = self._consumers, []
        for consumer in consumers:
            await consumer.close()
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def _send_forever(self) -> None:
        while self._is_writing:
            number = next(self._numbers)
            await self._pace(number)
            if not await self._send(number):
                await asyncio.sleep(RETRY_PAUSE_SECONDS)

    async def _pace(self, number: int) -> None:
        if not self._load.rate:
            return
        ahead = (number - self._rushed) / self._load.rate - self._now()
        if ahead > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rush.wait(), ahead)
                self._rushed += 1

    async def _send(self, number: int) -> bool:
        assert self._producer is not None
        body = b"%010d" % number
        message = Message(TOPIC, body.ljust(self._load.size, b"."), keys=[str(number)])
        started = self._now()
        self._ledger.in_flight += 1
        try:
            receipt = await self._producer.send(message)
        except Exception as error:
            # Whatever went wrong, the outcome of this send is unknown; the ledger says how often.
            self._ledger.leave_unknown(type(error).__name__)
            return False
        finally:
            self._ledger.in_flight -= 1
        status = receipt.status.name
        if status != "SEND_OK":
            self._ledger.leave_unknown(status)
            return True
        self._ledger.acknowledge(number, self._now(), (self._now() - started) * 1000)
        return True

    async def _consume(self, message: ReceivedMessage) -> None:
        queue = (message.queue.broker_name, message.queue.queue_id)
        number = int(message.body[:10])
        self._ledger.consume(number, queue, message.queue_offset, self._now())
        while self._is_reading_slowly and self._is_keeping_up():  # noqa: ASYNC110 -- no event.
            await asyncio.sleep(0.02)

    def _is_keeping_up(self) -> bool:
        return len(self._ledger.consumed) > SLOW_SHARE * len(self._ledger.acknowledged)
