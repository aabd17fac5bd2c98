"""Server and client over real sockets on loopback: requests both ways, time-outs, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from twinlog.remoting.client import ClientConnection, RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode, SerializeType
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import (
    CommandError,
    ConnectError,
    ConnectionClosedError,
    RemotingError,
    RequestTimeoutError,
)
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock

SILENT, REFUSED, BUG, ECHO = 900, 901, 902, 903


def handle(connection: ServerConnection, request: Request) -> None:
    if request.code == SILENT:
        return
    if request.code == REFUSED:
        raise CommandError("not today", ResponseCode.NO_PERMISSION)
    if request.code == BUG:
        raise ZeroDivisionError("a bug")
    connection.reply(request, header=request.ext(), body=request.body)


@pytest.fixture
async def server() -> AsyncIterator[RemotingServer]:
    server = RemotingServer(handle, clock=SystemClock())
    yield server
    await server.close()


@pytest.fixture
async def address(server: RemotingServer) -> str:
    return f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock())
    yield client
    await client.close()


@pytest.mark.parametrize("form", list(SerializeType))
async def test_answer_comes_back_in_the_form_of_the_request(
    client: RemotingClient, address: str, form: SerializeType
) -> None:
    request = RemotingCommand.request(ECHO, {"k": "v", "n": 7}, b"body", serialize_type=form)
    answer = await client.invoke(address, request, 30_000)
    assert answer.code == 0
    assert answer.is_response
    assert answer.ext() == {"k": "v", "n": "7"}
    assert answer.body == b"body"
    assert answer.serialize_type == form


async def test_many_submitted_requests_are_each_answered_once(
    client: RemotingClient, address: str
) -> None:
    answers: list[bytes] = []
    done = asyncio.Event()

    def answered(response: Request | None, error: RemotingError | None) -> None:
        assert response is not None, error
        answers.append(response.body)
        if len(answers) == 5000:
            done.set()

    for index in range(5000):
        client.submit(address, RemotingCommand.request(ECHO, body=b"%d" % index), 30_000, answered)
        if index == 10:  # The first wait for the connection, the rest go straight.
            await client.connect(address)
    async with asyncio.timeout(30):
        await done.wait()
    assert sorted(map(int, answers)) == list(range(5000))


async def test_refusal_and_bug_are_answered_and_the_connection_stays(
    client: RemotingClient, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = await client.invoke(address, RemotingCommand.request(REFUSED), 30_000)
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "not today")
    bug = await client.invoke(address, RemotingCommand.request(BUG), 30_000)
    assert bug.code == ResponseCode.SYSTEM_ERROR
    assert bug.remark == "ZeroDivisionError: a bug"
    assert "contained failure of request 902" in caplog.text
    first = client.connection(address)
    assert first is not None
    assert (await client.invoke(address, RemotingCommand.request(ECHO), 30_000)).code == 0
    assert client.connection(address) is first


async def test_unanswered_request_times_out_and_the_next_one_works(
    client: RemotingClient, address: str
) -> None:
    await client.invoke(address, RemotingCommand.request(ECHO), 30_000)  # It is connected now.
    with pytest.raises(RequestTimeoutError, match="request 900"):
        await client.invoke(address, RemotingCommand.request(SILENT), 100)
    assert (await client.invoke(address, RemotingCommand.request(ECHO), 30_000)).code == 0


async def test_refused_connection_says_which_address(client: RemotingClient) -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1: "):
        await client.invoke("127.0.0.1:1", RemotingCommand.request(ECHO), 30_000)
    with pytest.raises(ConnectError, match="is not host:port"):
        await client.invoke("nonsense", RemotingCommand.request(ECHO), 30_000)


async def test_lost_connection_fails_what_waits_and_the_next_request_dials_again(
    client: RemotingClient, server: RemotingServer, address: str
) -> None:
    waiting = asyncio.ensure_future(client.invoke(address, RemotingCommand.request(SILENT), 30_000))
    await _until(lambda: len(server.connections) == 1)
    await client.invoke(address, RemotingCommand.request(ECHO), 30_000)
    for connection in list(server.connections):
        connection.close("test")
    with pytest.raises(ConnectionClosedError):
        await waiting
    assert (await client.invoke(address, RemotingCommand.request(ECHO), 30_000)).code == 0


async def test_server_asks_the_client_over_the_clients_connection(
    server: RemotingServer, address: str
) -> None:
    notified = asyncio.Event()

    def client_handler(connection: ClientConnection, request: Request) -> None:
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            assert request.is_oneway
            notified.set()
        else:
            connection.reply(request, header={"said": "yes"})

    client = RemotingClient(clock=SystemClock(), request_handler=client_handler)
    await client.invoke(address, RemotingCommand.request(ECHO), 30_000)
    (connection,) = server.connections
    answer = await connection.invoke(RemotingCommand.request(307), 30_000)
    assert answer.ext() == {"said": "yes"}
    connection.oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))
    async with asyncio.timeout(30):
        await notified.wait()
    gone: list[Any] = []
    connection.on_close(gone.append)
    await client.close()
    await _until(lambda: gone == [connection])
    with pytest.raises(ConnectionClosedError):
        await connection.invoke(RemotingCommand.request(307), 30_000)


async def test_oneway_is_never_answered(client: RemotingClient, address: str) -> None:
    await client.oneway(address, RemotingCommand.request(ECHO))
    await client.oneway(address, RemotingCommand.request(REFUSED))
    assert (await client.invoke(address, RemotingCommand.request(ECHO), 30_000)).code == 0


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event.
            await asyncio.sleep(0.01)
