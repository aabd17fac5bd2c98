"""A well-behaved producer and consumer in a process of their own, while others attack.

    python normal_client.py NAME_SERVER TOPIC

Every line on standard input names what happens from then on. At its end nothing more is sent, and
when everything that was acknowledged with SEND_OK has arrived (or after the deadline) one JSON
object is printed: what is missing, and how long sends took in each phase.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import defaultdict

from twinlog.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)

PAUSE_S = 0.01
ARRIVAL_DEADLINE_S = 60.0


class NormalClient:
    def __init__(self, name_server: str, topic: str) -> None:
        self._name_server = name_server
        self._topic = topic
        self._phase = "start"
        self._must_end = asyncio.Event()
        self._has_arrived = asyncio.Event()
        self._number = 0
        self.acknowledged: set[bytes] = set()
        self.arrived: set[bytes] = set()
        self.took_ms: defaultdict[str, list[float]] = defaultdict(list)
        self.failed: defaultdict[str, int] = defaultdict(int)
        self.reasons: defaultdict[str, int] = defaultdict(int)

    async def run(self) -> None:
        settings = {"name_server": self._name_server, "route_poll_ms": 500, "heartbeat_ms": 1000}
        consumer = PushConsumer(
            "normal", consume_from=ConsumeFrom.FIRST_OFFSET, commit_ms=300, **settings
        )
        async with consumer, Producer("normal", retry_count=0, **settings) as producer:
            await consumer.subscribe(self._topic, "*", self._handle)
            reading = asyncio.create_task(self._read_phases())
            while not self._must_end.is_set():
                await self._send(producer)
                await asyncio.sleep(PAUSE_S)
            await reading
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_arrived(), ARRIVAL_DEADLINE_S)
        print(json.dumps(self._report()), flush=True)

    async def _handle(self, message: ReceivedMessage) -> None:
        self.arrived.add(message.body)
        self._has_arrived.set()

    async def _all_arrived(self) -> None:
        while not self.acknowledged <= self.arrived:
            self._has_arrived.clear()
            await self._has_arrived.wait()

    async def _send(self, producer: Producer) -> None:
        self._number += 1
        body, phase, began = b"normal %08d" % self._number, self._phase, time.monotonic()
        try:
            receipt = await producer.send(Message(self._topic, body))
        except ClientError as error:
            self._failed(phase, f"{type(error).__name__}: {error}")
            return
        if receipt.status is not SendStatus.SEND_OK:
            self._failed(phase, str(receipt))
            return
        self.took_ms[phase].append((time.monotonic() - began) * 1000)
        self.acknowledged.add(body)

    def _failed(self, phase: str, reason: str) -> None:
        self.failed[phase] += 1
        self.reasons[reason[:300]] += 1

    async def _read_phases(self) -> None:
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            self._phase = line.strip()
        self._must_end.set()

    def _report(self) -> dict[str, object]:
        phases = {}
        for phase in (*self.took_ms, *(set(self.failed) - set(self.took_ms))):
            took = sorted(self.took_ms[phase]) or [0.0]
            phases[phase] = {
                "sent": len(self.took_ms[phase]),
                "failed": self.failed[phase],
                "p50": round(took[len(took) // 2], 1),
                "p99": round(took[len(took) * 99 // 100], 1),
                "max": round(took[-1], 1),
            }
        missing = sorted(body.decode() for body in self.acknowledged - self.arrived)
        return {
            "acknowledged": len(self.acknowledged),
            "missing": missing[:20],
            "missing_count": len(missing),
            "phases": phases,
            "reasons": dict(list(self.reasons.items())[:10]),
        }


if __name__ == "__main__":
    asyncio.run(NormalClient(sys.argv[1], sys.argv[2]).run())
