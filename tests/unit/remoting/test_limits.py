"""Every bound of the server is reached here: a peer that goes beyond it costs only itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from twinlog.remoting import codec
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import TooManyRequestsError
from twinlog.remoting.limits import DEFAULT_LIMITS
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock

ECHO, BIG, HOLD = 1, 2, 3
BIG_BODY = bytes(64 * 1024)


class Held:
    """A handler that can be told to keep requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[ServerConnection, Request]] = []
        self.handled = 0

    def __call__(self, connection: ServerConnection, request: Request) -> None:
        self.handled += 1
        if request.code == HOLD:
            self.requests.append((connection, request))
        elif request.code == BIG:
            connection.reply(request, body=BIG_BODY)
        else:
            connection.reply(request, body=request.body)


@asynccontextmanager
async def serving(handler: Held, **limits: int) -> AsyncIterator[tuple[RemotingServer, int]]:
    server = RemotingServer(handler, clock=SystemClock(), limits=replace(DEFAULT_LIMITS, **limits))
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.close()


def request(code: int, body: bytes = b"", opaque: int = 0) -> bytes:
    command = RemotingCommand.request(code, body=body)
    command.opaque = opaque
    return codec.encode_command(command)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event.
            await asyncio.sleep(0.01)


async def settled(value: Callable[[], int]) -> int:
    """The value once it has stood still for a while."""
    last, since = value(), 0
    while since < 10:
        await asyncio.sleep(0.02)
        since = since + 1 if value() == last else 0
        last = value()
    return last


async def read_answers(reader: asyncio.StreamReader, count: int) -> list[Request]:
    answers = []
    for _ in range(count):
        async with asyncio.timeout(30):
            opening = await reader.readexactly(4)
            rest = await reader.readexactly(int.from_bytes(opening, "big"))
        answers.append(codec.decode_command(opening + rest))
    return answers


async def is_served(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(ECHO, b"ping"))
    (answer,) = await read_answers(reader, 1)
    writer.close()
    return answer.body == b"ping"


async def test_peer_that_does_not_read_is_not_read_from_and_then_gets_everything() -> None:
    handler = Held()
    async with serving(handler) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        transport = writer.transport
        transport.pause_reading()
        for opaque in range(1000):
            writer.write(request(BIG, opaque=opaque))
        handled = await settled(lambda: handler.handled)
        assert 0 < handled < 1000
        (connection,) = server.connections
        assert connection.is_congested
        assert await is_served(port)
        transport.resume_reading()
        answers = await read_answers(reader, 1000)
        assert [answer.opaque for answer in answers] == list(range(1000))
        assert all(len(answer.body) == len(BIG_BODY) for answer in answers)
        await until(lambda: not connection.is_congested)
        writer.close()


async def test_answers_out_of_turn_wait_for_a_congested_peer() -> None:
    handler = Held()
    async with serving(handler) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        writer.transport.pause_reading()
        for opaque in range(500):
            writer.write(request(HOLD, opaque=opaque))
        await until(lambda: len(handler.requests) == 500)
        (connection,) = server.connections
        waiting = iter(handler.requests)

        def answer_some() -> None:
            while not connection.is_congested and not connection.is_closed:
                _, held = next(waiting, (None, None))
                if held is None:
                    return
                connection.reply(held, body=BIG_BODY)
            connection.when_writable(answer_some)

        answer_some()
        await until(lambda: connection.is_congested)
        writer.transport.resume_reading()
        answers = await read_answers(reader, 500)
        assert len(answers) == 500
        writer.close()


async def test_peer_that_lets_answers_pile_up_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handler = Held()
    async with serving(handler, write_buffer_max=4 * 1024 * 1024) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        writer.transport.pause_reading()
        for opaque in range(500):
            writer.write(request(HOLD, opaque=opaque))
        await until(lambda: len(handler.requests) == 500)
        for connection, held in handler.requests:
            connection.reply(held, body=BIG_BODY)
        await until(lambda: not server.connections)
        assert handler.requests[0][0].is_closed
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1
        assert "the peer does not read" in lines[0]
        assert await is_served(port)
        writer.close()


async def test_too_many_requests_in_flight_stop_the_reading_until_some_are_answered() -> None:
    handler = Held()
    async with serving(handler, requests_in_flight_max=10) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for opaque in range(30):  # One by one: what comes in one read is handled in one go.
            writer.write(request(HOLD, opaque=opaque))
            await writer.drain()
            await asyncio.sleep(0.002)
        held = await settled(lambda: len(handler.requests))
        assert 10 <= held < 30
        for _ in range(30):
            for connection, request_held in handler.requests:
                connection.reply(request_held)
            handler.requests.clear()
            await asyncio.sleep(0.01)
        assert len(await read_answers(reader, 30)) == 30
        writer.close()


async def test_too_many_bytes_in_flight_stop_the_reading() -> None:
    handler = Held()
    async with serving(handler, bytes_in_flight_max=1024 * 1024) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = bytes(200_000)
        for opaque in range(40):
            writer.write(request(HOLD, body, opaque))
        held = await settled(lambda: len(handler.requests))
        assert 5 <= held < 40
        answered = 0
        while answered < 40:
            for connection, request_held in handler.requests:
                connection.reply(request_held)
            handler.requests.clear()
            answered += len(await read_answers(reader, 1))
        writer.close()


async def test_connection_above_the_limit_is_closed_and_counted_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(Held(), connections_max=3) as (server, port):
        writers = []
        for _ in range(3):
            writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
        await until(lambda: len(server.connections) == 3)
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(reader.readexactly(1), 30)
            writer.close()
        await until(lambda: "count=5" in caplog.text)
        assert len(caplog.records) == 1
        writers.pop().close()
        await until(lambda: len(server.connections) == 2)
        assert await is_served(port)
        for writer in writers:
            writer.close()


async def test_idle_peer_is_closed_and_a_talking_one_is_not() -> None:
    async with serving(Held(), idle_ms_max=1500) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(server.connections) == 2)
        closed = asyncio.ensure_future(idle_reader.read())
        async with asyncio.timeout(30):
            while not closed.done():
                writer.write(request(ECHO))
                await read_answers(reader, 1)
                await asyncio.sleep(0.05)
        assert closed.result() == b""
        assert len(server.connections) == 1
        writer.close()
        idle_writer.close()


async def test_frame_that_never_becomes_complete_is_cut_off() -> None:
    async with serving(Held(), frame_completion_ms_max=1000) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(ECHO, bytes(100))[:50])
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        await until(lambda: not server.connections)
        assert server.partial_bytes == 0
        writer.close()


async def test_long_incomplete_frames_wait_for_room_and_all_get_through() -> None:
    """Ten frames of 1 MiB under a bound of 2 MiB: some wait, none starves."""
    handler = Held()
    async with serving(handler, partial_bytes_max=2 * 1024 * 1024) as (server, port):
        body = bytes(1024 * 1024)
        most = 0

        async def send_slowly() -> None:
            nonlocal most
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            data = request(ECHO, body)
            for position in range(0, len(data), 100_000):
                writer.write(data[position : position + 100_000])
                await asyncio.sleep(0)
                most = max(most, server.partial_bytes)
            (answer,) = await read_answers(reader, 1)
            assert len(answer.body) == len(body)
            writer.close()

        async with asyncio.timeout(60):
            await asyncio.gather(*(send_slowly() for _ in range(10)))
        assert most < 6 * 1024 * 1024
        assert server.partial_bytes == 0
        assert not any(connection.is_waiting_for_room for connection in server.connections)


async def test_small_requests_are_served_while_long_frames_hold_all_room() -> None:
    async with serving(Held(), partial_bytes_max=256 * 1024) as (server, port):
        hoarders = []
        for _ in range(4):
            hoarder = socket.create_connection(("127.0.0.1", port))
            hoarder.setblocking(False)
            hoarders.append(hoarder)
            hoarder.send(request(ECHO, bytes(4 * 1024 * 1024))[:200_000])
        await until(lambda: server.is_short_of_room)
        assert await is_served(port)
        for hoarder in hoarders:
            hoarder.close()
        await until(lambda: server.partial_bytes == 0)


async def test_client_refuses_more_than_its_own_bound() -> None:
    async with serving(Held()) as (_, port):
        limits = replace(DEFAULT_LIMITS, pending_requests_max=5)
        client = RemotingClient(clock=SystemClock(), limits=limits)
        address = f"127.0.0.1:{port}"
        connection = await client.connect(address)
        failed: list[object] = []
        for _ in range(5):
            hold = RemotingCommand.request(HOLD)
            client.submit(address, hold, 30_000, lambda _, error: failed.append(error))
        with pytest.raises(TooManyRequestsError, match="5 requests"):
            connection.submit(RemotingCommand.request(HOLD), 30_000, lambda *_: None)
        await client.close()
        assert len(failed) == 5


async def test_stopping_server_does_not_wait_for_a_peer_that_does_not_read() -> None:
    handler = Held()
    async with serving(handler) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        writer.transport.pause_reading()
        for opaque in range(500):
            writer.write(request(BIG, opaque=opaque))
        await until(lambda: any(connection.is_congested for connection in server.connections))
        async with asyncio.timeout(30):
            await server.close()
        assert not server.connections
        writer.close()


async def test_bytes_in_flight_of_one_address_stop_its_reading() -> None:
    """Each connection is below its own limit; together they are above that of their address."""
    handler = Held()
    async with serving(handler, bytes_per_address_max=1_000_000) as (server, port):
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for opaque, (_, writer) in enumerate(streams):
            writer.write(request(HOLD, bytes(400_000), opaque))
        await until(lambda: all(each._is_reading_paused for each in server.connections))
        assert len(handler.requests) == 4
        for connection, held in handler.requests:
            connection.reply(held)
        await until(lambda: not any(each._is_reading_paused for each in server.connections))
        for _, writer in streams:
            writer.write(request(ECHO, b"again"))
        for reader, writer in streams:
            assert (await read_answers(reader, 2))[1].body == b"again"
            writer.close()


async def test_an_address_never_takes_all_connections() -> None:
    async with serving(Held(), connections_max=5, connections_per_address_max=100) as (server, _):
        port = await server.listen("127.0.0.1", 0)
        refused: list[str] = []
        server.on_refused = lambda connection, code, reason: refused.append(reason)
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        await until(lambda: bool(refused))
        assert len(server.connections) == 4
        for _, writer in streams:
            writer.close()
