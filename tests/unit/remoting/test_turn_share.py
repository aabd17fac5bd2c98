"""One peer has its share of a turn of the loop, however much it sent in one packet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from support.raw_peer import frame, request
from twinlog.remoting.command import Request
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.loop_share import SHARE_MS

COUNT = 40


class SlowClock(SystemClock):
    """Time that passes when a request is handled, and not otherwise."""

    def __init__(self) -> None:
        self.passed_ms = 0

    def monotonic_ms(self) -> int:
        return self.passed_ms


class Peer(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 10911)})
        self.is_reading = True
        self.answers = 0

    def write(self, data: Any) -> None:
        self.answers += bytes(data).count(b'"opaque":')

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def connect(clock: SlowClock, cost_ms: int) -> tuple[ServerConnection, Peer]:
    def handle(connection: ServerConnection, request: Request) -> None:
        clock.passed_ms += cost_ms
        connection.reply(request)

    server = RemotingServer(handle, clock=clock)
    connection, peer = ServerConnection(server, handle), Peer()
    connection.connection_made(peer)
    return connection, peer


async def turns_until(condition: Callable[[], bool]) -> int:
    for turns in range(100):
        if condition():
            return turns
        await asyncio.sleep(0)
    raise AssertionError("never")


def packet() -> bytes:
    return b"".join(request(opaque=number) for number in range(COUNT))


async def test_a_packet_of_dear_requests_takes_many_turns() -> None:
    clock = SlowClock()
    connection, peer = connect(clock, SHARE_MS)
    connection.data_received(packet())
    assert clock.passed_ms == SHARE_MS, "others wait for one request, not for all"
    assert not peer.is_reading, "nor is more read meanwhile"
    assert await turns_until(lambda: peer.answers == COUNT) >= COUNT - 1
    assert peer.is_reading


async def test_cheap_requests_are_handled_at_once() -> None:
    connection, peer = connect(SlowClock(), 0)
    connection.data_received(packet())
    assert peer.answers == COUNT


async def test_what_came_before_a_broken_frame_is_answered_first() -> None:
    connection, peer = connect(SlowClock(), SHARE_MS)
    connection.data_received(packet() + frame(b"{}", kind=2))
    assert not connection.is_closed
    await turns_until(lambda: connection.is_closed)
    assert peer.answers == COUNT
