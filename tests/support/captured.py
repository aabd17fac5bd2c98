"""A broker in the state in which Apache's was when a frame was captured, without sockets.

The log is cut at the byte where Apache's log ended; queues and index are rebuilt from it. A
connection is the real one on a transport that keeps what is written.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinlog.broker.server import Broker, build_broker
from twinlog.remoting import fastjson
from twinlog.remoting.codec import decode_command
from twinlog.remoting.command import Request
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.config import BrokerConfig, BrokerRole
from twinlog.testing.simdisk import SimDisk

VECTORS = Path(__file__).parent.parent / "vectors"
FRAMES = VECTORS / "frames"
SEGMENT_SIZE = 65536
LOG_END = 1 << 40
ROOT = "/store"


def frame(name: str, kind: str) -> bytes:
    return (FRAMES / f"{name}.{kind}.bin").read_bytes()


def request_frame(name: str) -> bytes:
    return frame(name, "request")


def response(name: str) -> Request:
    return decode_command(frame(name, "response"))


@dataclass
class Memory(asyncio.Transport):
    """A transport that keeps what is written."""

    peer: tuple[str, int] = ("127.0.0.1", 44524)
    written: bytearray = field(default_factory=bytearray)
    is_shut: bool = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer, "sockname": ("127.0.0.1", 40911)}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    protocol: Any = None

    def close(self) -> None:
        if not self.is_shut:
            self.is_shut = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class Peer:
    """One client of the broker."""

    def __init__(self, server: RemotingServer, *, port: int = 44524) -> None:
        self._server = server
        self.transport = Memory(("127.0.0.1", port))
        self.connection = ServerConnection(server, server._handler)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    async def ask(self, data: bytes, *, deadline_s: float = 30.0) -> Request:
        """Send one frame and wait for its answer; what else comes is kept for `pushed`."""
        opaque = decode_command(data).opaque
        self.connection.data_received(data)
        return await self.next(lambda c: c.is_response and c.opaque == opaque, deadline_s)

    def tell(self, data: bytes) -> None:
        """Send one frame that has no answer."""
        self.connection.data_received(data)

    async def next(self, wanted: Any, deadline_s: float = 30.0) -> Request:
        """The next command that is `wanted`; it is taken out."""
        async with asyncio.timeout(deadline_s):
            while True:
                self._server.flush()
                for start, end in self._frames():
                    command = decode_command(bytes(self.transport.written[start:end]))
                    if wanted(command):
                        del self.transport.written[start:end]
                        return command
                await asyncio.sleep(0.001)

    def pushed(self) -> list[Request]:
        """Requests of the broker that have come so far."""
        self._server.flush()
        return [
            command
            for start, end in self._frames()
            if not (command := decode_command(bytes(self.transport.written[start:end]))).is_response
        ]

    def _frames(self) -> list[tuple[int, int]]:
        found, at, data = [], 0, self.transport.written
        while len(data) - at >= 4:
            size = 4 + int.from_bytes(data[at : at + 4], "big")
            if at + size > len(data):
                break
            found.append((at, at + size))
            at += size
        return found

    def close(self) -> None:
        self.transport.close()


def write_file(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    if data:
        file.pwritev([data], 0)
    file.close()


def write_log(disk: SimDisk, end: int) -> None:
    """Apache's commit log up to `end`, as after a crash: everything else is rebuilt."""
    disk.make_directories(f"{ROOT}/commitlog")
    for source in sorted((VECTORS / "store" / "commitlog").iterdir()):
        start = int(source.name)
        if start >= end:
            continue
        data = source.read_bytes()[: max(0, end - start)]
        write_file(disk, f"{ROOT}/commitlog/{source.name}", data + bytes(SEGMENT_SIZE - len(data)))
    write_file(disk, f"{ROOT}/abort", b"")


@asynccontextmanager
async def world(*, end: int = LOG_END, tables: bool = True, **config: Any) -> AsyncIterator[Broker]:
    """A broker on Apache's log, cut at `end`; with `tables` its topics, groups and offsets too."""
    disk = SimDisk()
    write_log(disk, end)
    disk.make_directories(f"{ROOT}/config")
    if tables:
        for file in (VECTORS / "store" / "config").glob("*.json"):
            write_file(disk, f"{ROOT}/config/{file.name}", file.read_bytes())
    values: dict[str, Any] = {
        "broker_cluster_name": "vecCluster",
        "broker_name": "vec-broker",
        "broker_ip1": "127.0.0.1",
        "broker_ip2": "127.0.0.1",
        "listen_port": 40911,
        "store_path_root_dir": ROOT,
        "mapped_file_size_commit_log": SEGMENT_SIZE,
        "mapped_file_size_consume_queue": 6000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
        "enable_property_filter": True,
        "transaction_check_interval": 3_600_000,  # Tests call the check themselves.
        "transaction_time_out": 2000,
        "transaction_check_max": 4,
    }
    broker = build_broker(BrokerConfig(**{**values, **config}), rng=random.Random(1), disk=disk)
    await open_without_ports(broker)
    try:
        yield broker
    finally:
        await broker.stop()


async def open_without_ports(broker: Broker) -> None:
    """Start all but what would change the state: ports, and deliveries that are long due."""

    async def no_ports() -> None:
        return

    broker._start_ports = no_ports  # type: ignore[method-assign]
    broker.schedule.start = lambda **_: None  # type: ignore[method-assign]
    await broker.start()


def slave_config() -> dict[str, Any]:
    return {"broker_role": BrokerRole.SLAVE, "broker_id": 1, "listen_port": 41911}


def records() -> list[dict[str, Any]]:
    """Every message of the log, in order."""
    lines = (VECTORS / "expected" / "commitlog.jsonl").read_text().splitlines()
    return [row for line in lines if (row := json.loads(line))["kind"] == "message"]


def log_end_at(topic: str, queue_id: int, max_offset: int) -> int:
    """An end of the log at which this queue had `max_offset` messages: the latest such."""
    for row in records():
        if (row["topic"], row["queueId"], row["queueOffset"]) == (topic, queue_id, max_offset):
            end: int = row["physicalOffset"]
            return end
    return LOG_END


def body_of(command: Request) -> Any:
    """The body as JSON where it is JSON, else as bytes."""
    if command.body[:1] in (b"{", b"["):
        return fastjson.loads(command.body)
    return command.body
