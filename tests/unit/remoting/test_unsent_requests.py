"""A client whose peer does not read: requests wait on our side, where their time can end unsent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twinlog.remoting import codec
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import ConnectionClosedError, RemotingError, RequestTimeoutError
from twinlog.remoting.framing import FrameSplitter
from twinlog.runtime.clock import SystemClock

BODY = bytes(64 * 1024)
IN_BUFFERS_MAX = 24 * 1024 * 1024  # Of both sockets and the transport, generously.


class SlowPeer(asyncio.Protocol):
    """Reads and answers only when told."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.splitter = FrameSplitter()
        self.requests: list[Request] = []
        self.answers = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for frame in self.splitter.feed(data):
            request = codec.decode_header(*frame)
            self.requests.append(request)
            if self.answers:
                self.answer(request)

    def answer(self, request: Request) -> None:
        assert self.transport is not None
        self.transport.write(b"".join(codec.encode_response(0, request.opaque)))

    def stand_still(self) -> None:
        assert self.transport is not None
        self.transport.pause_reading()

    def go_on(self) -> None:
        assert self.transport is not None
        self.transport.resume_reading()


class Told:
    """What became of each request, by number."""

    def __init__(self, client: RemotingClient, address: str) -> None:
        self._client = client
        self._address = address
        self.outcomes: dict[int, Request | RemotingError] = {}

    def submit(self, number: int, timeout_ms: float, body: bytes = BODY) -> None:
        def told(answer: Request | None, error: RemotingError | None) -> None:
            assert number not in self.outcomes
            outcome = error if answer is None else answer
            assert outcome is not None
            self.outcomes[number] = outcome

        command = RemotingCommand.request(number, body=body)
        self._client.submit(self._address, command, timeout_ms, told)

    async def wait_for(self, numbers: range, *, within_s: float = 30) -> None:
        async with asyncio.timeout(within_s):
            while not all(number in self.outcomes for number in numbers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def unsent(self) -> set[int]:
        return {
            number
            for number, outcome in self.outcomes.items()
            if isinstance(outcome, RequestTimeoutError | ConnectionClosedError)
            and not outcome.was_sent
        }


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[SlowPeer, Told, RemotingClient, str]]:
    peer = SlowPeer()
    server = await asyncio.get_running_loop().create_server(lambda: peer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = RemotingClient(clock=SystemClock())
    try:
        told = Told(client, address)
        told.submit(0, 30_000, b"")
        await told.wait_for(range(1))
        yield peer, told, client, address
    finally:
        if peer.transport is not None:
            peer.transport.abort()
        await client.close()
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()


async def congest(told: Told, client: RemotingClient, address: str, timeout_ms: float) -> int:
    """Requests, numbered from 1, until the peer's and our buffers are full and more; how many."""
    connection = client.connection(address)
    assert connection is not None
    number = 0
    while number < 600 or not connection.is_congested:
        number += 1
        told.submit(number, timeout_ms)
        if number % 8 == 0:
            await asyncio.sleep(0)
    return number


async def test_answers_are_read_while_requests_pile_up() -> None:
    """Under a steady load the buffer may never be empty: the answers must count all the same."""
    async with connected() as (peer, told, client, address):
        peer.answers = False
        told.submit(1_000, 30_000, b"early")
        async with asyncio.timeout(30):
            while len(peer.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        peer.stand_still()
        await congest(told, client, address, 30_000)
        peer.answer(peer.requests[1])
        await told.wait_for(range(1_000, 1_001), within_s=10)
        assert isinstance(told.outcomes[1_000], Request)


async def test_requests_whose_time_is_over_are_never_sent() -> None:
    """Or the peer, once it reads again, works for callers that have gone while others wait."""
    async with connected() as (peer, told, client, address):
        peer.stand_still()
        count = await congest(told, client, address, 400)
        await told.wait_for(range(count + 1))
        assert len(told.unsent()) > count - IN_BUFFERS_MAX // len(BODY)
        peer.go_on()
        told.submit(5_000, 10_000)
        await told.wait_for(range(5_000, 5_001))
        assert isinstance(told.outcomes[5_000], Request)
        seen = {request.code for request in peer.requests}
        assert not seen & told.unsent()


async def test_what_waited_leaves_in_its_order_and_all_is_answered() -> None:
    async with connected() as (peer, told, client, address):
        peer.stand_still()
        count = await congest(told, client, address, 30_000)
        peer.go_on()
        await told.wait_for(range(count + 1))
        assert [request.code for request in peer.requests] == list(range(count + 1))
        assert all(isinstance(outcome, Request) for outcome in told.outcomes.values())


async def test_a_request_of_another_kind_does_not_wait_behind_them() -> None:
    """A heartbeat or a question for the route must not need longer than its own time-out."""
    async with connected() as (peer, told, client, address):
        peer.stand_still()
        await congest(told, client, address, 30_000)
        question = asyncio.create_task(
            client.invoke(address, RemotingCommand.request(7_000), 20_000)
        )
        await asyncio.sleep(0)
        peer.go_on()
        await question
        codes = [request.code for request in peer.requests]
        assert codes.index(7_000) < 599


async def test_those_that_wait_when_the_connection_ends_were_not_sent() -> None:
    async with connected() as (peer, told, client, address):
        peer.stand_still()
        count = await congest(told, client, address, 30_000)
        assert peer.transport is not None
        peer.transport.abort()
        await told.wait_for(range(count + 1), within_s=10)
        unsent = told.unsent()
        assert count in unsent
        assert 1 not in unsent


async def test_less_than_half_of_its_time_is_no_reason_to_send() -> None:
    """It would be answered too late: a peer slower than its clients would do nothing else."""
    async with connected() as (peer, told, client, address):
        peer.stand_still()
        count = await congest(told, client, address, 2_000)
        await asyncio.sleep(1.2)
        peer.go_on()
        await told.wait_for(range(count + 1))
        assert count in told.unsent()
        assert isinstance(told.outcomes[1], Request)
