"""Bytes that leave before the turn of the loop ends, in order with those that could not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from twinlog.runtime.direct_write import DIRECT_SIZE_MAX, DirectWriter


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    try:
        yield transport, theirs
    finally:
        transport.abort()
        theirs.close()


async def test_small_pieces_are_with_the_peer_before_the_turn_ends() -> None:
    async with connected() as (transport, peer):
        DirectWriter(transport).writelines([b"head", memoryview(b"body")])
        assert peer.recv(100) == b"headbody"


async def test_what_waits_in_the_transport_goes_first() -> None:
    async with connected() as (transport, peer):
        writer = DirectWriter(transport)
        filler = bytes(8 << 20)
        transport.write(filler)
        taken = len(peer.recv(1 << 20))  # The socket has room again, the transport has more.
        assert transport.get_write_buffer_size() > 0
        writer.writelines([b"behind"])
        received = await read(peer, len(filler) + 6 - taken)
        assert received[-6:] == b"behind"


async def test_what_the_socket_does_not_take_follows_through_the_transport() -> None:
    async with connected() as (transport, peer):
        writer = DirectWriter(transport)
        frames = [bytes([number]) * 60_000 for number in range(64)]
        for frame in frames:
            writer.writelines([frame[:10], frame[10:]])
        assert await read(peer, 64 * 60_000) == b"".join(frames)


async def test_large_ones_are_the_transports() -> None:
    async with connected() as (transport, peer):
        data = bytes(DIRECT_SIZE_MAX + 1)
        DirectWriter(transport).writelines([data])
        assert await read(peer, len(data)) == data


@pytest.mark.parametrize("has_socket", [False, True])
async def test_a_broken_socket_is_found_by_the_transport(has_socket: bool) -> None:
    class Transport(asyncio.Transport):
        lines: list[Any] = []

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, data: Any) -> None:
            self.lines.append(bytes(data))

        def writelines(self, pieces: Any) -> None:
            self.lines += pieces

    ours, theirs = socket.socketpair()
    theirs.close()
    transport = Transport({"socket": ours} if has_socket else {})
    DirectWriter(transport).writelines([b"a", b"b"])
    assert b"".join(transport.lines) == b"ab"
    transport.lines.clear()
    ours.close()


async def read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await asyncio.get_running_loop().sock_recv(peer, 1 << 20)
    return data
