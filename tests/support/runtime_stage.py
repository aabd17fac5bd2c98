"""Brokers whose configuration is changed while they run, and what is connected to them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from support.local_brokers import Brokers, pull, until
from twinlog.broker.server import Broker
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.disk import DiskSpace, PosixDisk


class Stage:
    """Brokers of a test, and how they are changed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.brokers = Brokers(directory)
        self._closing: list[Callable[[], Awaitable[None]]] = []

    async def start(self, **config: Any) -> Broker:
        return await self.brokers.start("one", **config)

    async def change(self, broker: Broker, **values: object) -> None:
        body = "".join(f"{key}={_text(value)}\n" for key, value in values.items()).encode()
        answer = await self.brokers.call(broker, RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert answer.code == 0, answer.remark

    async def send(self, broker: Broker, body: bytes = b"body", **more: str) -> int:
        return (await self.brokers.send(broker, body, topic="t", **more)).code

    async def pull_count(self, broker: Broker, **more: Any) -> int:
        """How many messages a pull for 32 brings."""
        answer = await pull(self.brokers, broker, 0, maxMsgNums=32, **more)
        assert answer.code == 0, answer.remark
        return int(answer.ext()["nextBeginOffset"])

    def damage(self, broker: Broker, body: bytes) -> None:
        """Flip a bit in the first record with this body, on disk."""
        path = Path(broker.store.commit_log.segments.segments[0].path)
        with path.open("r+b") as file:
            at = file.read().index(body)
            file.seek(at)
            file.write(bytes([body[0] ^ 1]))

    async def slave(self, broker: Broker) -> ClassicSlave:
        """One that says where it is when a test wants it to."""
        slave = await ClassicSlave.connect(broker)
        self._closing.append(slave.close)
        await until(lambda: len(broker.ha.acks) == 1)
        return slave

    async def recorder(self, *, answers: bool = True) -> Recorder:
        recorder = Recorder(answers)
        await recorder.start()
        self._closing.append(recorder.close)
        return recorder

    async def client(self) -> Client:
        client = Client()
        self._closing.append(client.close)
        return client

    async def stop(self) -> None:
        for close in self._closing:
            await close()
        await self.brokers.stop()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class ClassicSlave:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, broker: Broker) -> ClassicSlave:
        slave = cls(*await asyncio.open_connection("127.0.0.1", broker.ha.listen_port))
        slave.report(broker.store.commit_log.max_offset)
        return slave

    def report(self, offset: int) -> None:
        self.writer.write(struct.pack(">q", offset))

    async def frame(self) -> tuple[int, bytes]:
        offset, size = struct.unpack(">qi", await self.reader.readexactly(12))
        return offset, await self.reader.readexactly(size)

    async def close(self) -> None:
        self.writer.close()


class Recorder:
    """A name server that keeps what it is sent."""

    def __init__(self, answers: bool) -> None:
        self.answers = answers
        self.requests: list[tuple[int, dict[str, str]]] = []

    async def start(self) -> None:
        self._server = RemotingServer(self._take, clock=SystemClock())
        port = await self._server.listen("127.0.0.1", 0)
        self.address = f"127.0.0.1:{port}"

    def _take(self, connection: ServerConnection, request: Request) -> None:
        self.requests.append((request.code, request.ext()))
        if self.answers:
            header = {"changed": "false"} if request.code == RequestCode.QUERY_DATA_VERSION else {}
            connection.reply(request, header=header)

    def count(self, code: int) -> int:
        return sum(known == code for known, _ in self.requests)

    async def close(self) -> None:
        await self._server.close()


class Client:
    """A client that brokers may ask, too."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.remoting = RemotingClient(
            clock=SystemClock(), request_handler=lambda c, request: self.asked.append(request.code)
        )

    async def call(self, broker: Broker, code: int, body: bytes) -> Request:
        command = RemotingCommand.request(code, None, body)
        return await self.remoting.invoke(broker.address, command, 30_000)

    async def close(self) -> None:
        await self.remoting.close()


class FullDisk(PosixDisk):
    """As full as a test says."""

    percent = 50

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(used=self.percent, usable=100 - self.percent)
