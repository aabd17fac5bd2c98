"""One peer has its share of a turn of the loop, however much it sent in one packet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from support.local_brokers import until
from support.raw_peer import frame, request
from twinlog.remoting.command import Request
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock, TimerHandle
from twinlog.runtime.loop_share import LONG_SHARE_MS, SHARE_MS

COUNT = 40


class SlowClock(SystemClock):
    """Time that passes when a request is handled, and not otherwise."""

    def __init__(self) -> None:
        self.passed_ms = 0
        self.pauses: list[int] = []  # When the loop was left to others.

    def monotonic_ms(self) -> int:
        return self.passed_ms

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: object
    ) -> TimerHandle:
        self.pauses.append(self.passed_ms)
        return super().call_later_ms(delay_ms, callback, *arguments)


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


# Requests that are handled in steps

STEPS = 60


def connect_stepping(
    clock: SlowClock, *, fails_at: int = -1
) -> tuple[RemotingServer, Callable[[], tuple[ServerConnection, Peer]], list[int]]:
    """A server whose requests take a millisecond for each of many steps, and what was done."""
    done: list[int] = []

    def handle(connection: ServerConnection, request: Request) -> None:
        def steps() -> Iterator[None]:
            for number in range(STEPS):
                clock.passed_ms += 1
                done.append(request.opaque)
                if number == fails_at:
                    raise ValueError("no more")
                yield
            connection.reply(request)

        connection.in_steps(request, steps())

    server = RemotingServer(handle, clock=clock)

    def dial() -> tuple[ServerConnection, Peer]:
        connection, peer = ServerConnection(server, handle), Peer()
        connection.connection_made(peer)
        return connection, peer

    return server, dial, done


async def test_a_long_request_is_done_in_parts_and_those_behind_it_wait() -> None:
    clock = SlowClock()
    _, dial, done = connect_stepping(clock)
    connection, peer = dial()
    connection.data_received(request(opaque=1) + request(opaque=2))
    assert len(done) <= LONG_SHARE_MS, "others wait for a part of the first request"
    assert not peer.is_reading
    await until(lambda: peer.answers == 2)
    assert done == [1] * STEPS + [2] * STEPS
    assert peer.is_reading


async def test_long_requests_of_many_peers_take_turns() -> None:
    clock = SlowClock()
    _, dial, done = connect_stepping(clock)
    peers = [dial() for _ in range(3)]
    for number, (connection, _) in enumerate(peers):
        connection.data_received(request(opaque=number))
    clock.pauses.clear()
    await until(lambda: all(peer.answers for _, peer in peers))
    parts = [after - before for before, after in itertools.pairwise(clock.pauses)]
    assert max(parts) <= LONG_SHARE_MS, "all of them together have one share at a time"
    first_end = len(done) - 1 - done[::-1].index(0)
    assert set(done[:first_end]) == {0, 1, 2}, "the second does not wait for the end of the first"


async def test_the_long_request_of_a_peer_that_left_is_not_gone_on_with() -> None:
    _, dial, done = connect_stepping(SlowClock())
    connection, _ = dial()
    other, answered = dial()
    connection.data_received(request(opaque=1))
    connection.connection_lost(None)
    other.data_received(request(opaque=2))
    await until(lambda: answered.answers == 1)
    assert done.count(1) < STEPS
    assert done.count(2) == STEPS


async def test_an_error_in_a_later_step_is_answered_and_the_next_request_handled() -> None:
    _, dial, done = connect_stepping(SlowClock(), fails_at=STEPS // 2)
    connection, peer = dial()
    connection.data_received(request(opaque=1) + request(opaque=2))
    await until(lambda: peer.answers == 2)
    assert not connection.is_closed
    assert done.count(2) == STEPS // 2 + 1
