"""Clients that send while something happens to the group, and what was answered when.

`RawLoad` is the measuring client: an open loop that sends to whoever the route calls the master,
looks for a new route after an error (or after half a second without an answer), and repeats what
was not acknowledged. `ClientLoad` is twinlog's own Producer; `ProgramLoad` reads what a client
program of `tests/interop` reports.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from failover_groups import QUEUES, TOPIC

from support.ha_load import Connection, send_command
from twinlog.client import Message, Producer
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError, RequestTimeoutError
from twinlog.runtime.clock import SystemClock

STORED = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
)
_TIMEOUT_MS = 3_000
_SUSPICIOUS_S = 0.5
_ROUTE_PAUSE_S = 0.02


class Acknowledged:
    """Times of acknowledgements and the longest time between two, since `mark`."""

    def __init__(self) -> None:
        self.bodies: dict[bytes, float] = {}
        self._last_s = time.monotonic()
        self._longest_s = 0.0
        self.refused: list[str] = []
        self.unknown = 0

    def note(self, body: bytes) -> None:
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._last_s)
        self._last_s = now
        self.bodies[body] = now

    def mark(self) -> None:
        self._longest_s = 0.0

    def restart_clock(self) -> None:
        """A gap counts from here: what was before it is not what is measured."""
        self._last_s, self._longest_s = time.monotonic(), 0.0

    @property
    def gap_s(self) -> float:
        return max(self._longest_s, 0.0)

    async def more(self, count: int = 50, *, within_s: float = 90) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.bodies) + count
        deadline = time.monotonic() + within_s
        while len(self.bodies) < wanted:
            if time.monotonic() > deadline:
                raise AssertionError(f"no sends any more: {self.refused[-1:]}")
            await asyncio.sleep(0.005)


class NoLoad(Acknowledged):
    """For rows that bring their own."""

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def more(self, count: int = 50, *, within_s: float = 90) -> None:
        pass


class RawLoad(Acknowledged):
    """`rate` sends per second, without the help of any client library."""

    def __init__(self, name_server: str, rate: int) -> None:
        super().__init__()
        self._name_server = name_server
        self._rate = rate
        self._client = RemotingClient(clock=SystemClock())
        self._master = ""
        self._number = 0
        self._again: deque[bytes] = deque()
        self._open: dict[bytes, float] = {}
        self._troubled = asyncio.Event()
        self._is_failing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._troubled.set()
        self._tasks = [asyncio.create_task(each()) for each in (self._follow_route, self._run)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._client.close()

    async def _follow_route(self) -> None:
        while True:
            await self._troubled.wait()
            self._troubled.clear()
            header = {"topic": TOPIC}
            command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            try:
                answer = await self._client.invoke(self._name_server, command, 500)
                brokers = fastjson.loads(answer.body)["brokerDatas"] if answer.code == 0 else []
            except (RemotingError, OSError, ValueError, KeyError):
                brokers = []
            found = [b["brokerAddrs"].get("0") for b in brokers]
            if found and found[0]:
                self._master = found[0]
            elif not self._master:
                self._troubled.set()
            await asyncio.sleep(_ROUTE_PAUSE_S)

    async def _run(self) -> None:
        started, sent = time.monotonic(), 0
        while True:
            now = time.monotonic()
            due = int((now - started) * self._rate)
            if self._master:
                # While nobody answers one at a time is asked for: the machine has other work.
                for _ in range(min(due - sent, 1 if self._is_failing else 50)):
                    self._send(self._next(), now)
            sent = due
            oldest = next(iter(self._open.values()), now)
            if now - oldest > _SUSPICIOUS_S:
                self._troubled.set()
            await asyncio.sleep(0.02 if self._is_failing else 0.002)

    def _next(self) -> bytes:
        if self._again:
            return self._again.popleft()
        self._number += 1
        return b"%d" % self._number

    def _send(self, body: bytes, now: float) -> None:
        command = send_command(body, topic=TOPIC, queue_id=int(body) % QUEUES)
        self._open[body] = now
        master = self._master

        def answered(answer: Request | None, error: RemotingError | None) -> None:
            self._open.pop(body, None)
            if isinstance(error, RequestTimeoutError):
                self._client.close_connection(master, "it does not answer")
            self._answered(body, answer, error)

        self._client.submit(master, command, _TIMEOUT_MS, answered)

    def _answered(self, body: bytes, answer: Request | None, error: RemotingError | None) -> None:
        self._is_failing = answer is None
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.note(body)
            return
        if not self._tasks:
            return  # The measurement is over.
        if answer is not None and answer.code in STORED:
            self.unknown += 1
        text = repr(error) if answer is None else f"{answer.code} {answer.remark}"
        self.refused.append(text[:200])
        self._again.append(body)
        self._troubled.set()


class ClientLoad(Acknowledged):
    """twinlog's Producer; a call that it gives up on is a failed call."""

    def __init__(self, name_server: str, rate: int) -> None:
        super().__init__()
        self._producer = Producer("load", name_server=name_server)
        self._pause_s = 1 / rate
        self._number = 0
        self._sends: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._producer.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._sends)
        await self._producer.close()

    async def _run(self) -> None:
        started, sent = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - started) / self._pause_s)
            for _ in range(due - sent):
                task = asyncio.create_task(self._one())
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
            sent = due
            await asyncio.sleep(self._pause_s)

    async def _one(self) -> None:
        self._number += 1
        body = b"%d" % self._number
        try:
            receipt = await self._producer.send(Message(TOPIC, body))
        except Exception as error:
            self.refused.append(repr(error)[:200])
            return
        if receipt.status.name == "SEND_OK":
            self.note(body)
        else:
            self.unknown += 1


class ProgramLoad(Acknowledged):
    """A client program that sends one message after the other and reports each.

    `news` are the events since the last call: name of the event, number, text."""

    def __init__(self, prefix: str, news: Callable[[], list[tuple[str, int, str]]]) -> None:
        super().__init__()
        self._prefix = prefix
        self._news = news
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            for name, number, text in self._news():
                if name == "sent" and text in ("SEND_OK", "OK"):
                    self.note(f"{self._prefix}-{number}:".encode())
                elif name == "sent":
                    self.unknown += 1
                elif name == "failed":
                    self.refused.append(text[:200])
            await asyncio.sleep(0.01)


def read_log(group: Any, deadline_s: float = 60) -> dict[bytes, int]:
    """Every body in the topic, as the master shows it, with how often it is there."""
    found: dict[bytes, int] = {}
    connection = Connection(group.facts().master, timeout_s=10)
    deadline = time.monotonic() + deadline_s
    try:
        for queue in range(QUEUES):
            offset, end = 0, _max_offset(connection, queue)
            while offset < end:
                assert time.monotonic() < deadline, f"queue {queue} not read: {offset} of {end}"
                offset = _pull(connection, queue, offset, found)
    finally:
        connection.close()
    return found


def _max_offset(connection: Connection, queue: int) -> int:
    header = {"topic": TOPIC, "queueId": str(queue)}
    return int(connection.call(RequestCode.GET_MAX_OFFSET, header).ext()["offset"])


def _pull(connection: Connection, queue: int, offset: int, found: dict[bytes, int]) -> int:
    header = {
        "consumerGroup": "reader", "topic": TOPIC, "queueId": str(queue), "sysFlag": "4",
        "queueOffset": str(offset), "maxMsgNums": "256", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip
    answer = connection.call(RequestCode.PULL_MESSAGE, header)
    place, data = 0, answer.body if answer.code == ResponseCode.SUCCESS else b""
    while place < len(data):
        record = decode_record(data, place)
        found[bytes(record.body)] = found.get(bytes(record.body), 0) + 1
        place += record.total_size
    return max(offset, int(answer.ext().get("nextBeginOffset", offset)))
