"""TLS and plain text on one port, told apart by the first byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from twinlog.remoting.client import RemotingClient
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import ConnectError, RemotingError
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.tls import ServerTls, TlsConfig, TlsMode, client_tls, server_tls

BODY = bytes(range(256)) * 4096


def echo(connection: ServerConnection, request: Request) -> None:
    header = {"tls": "true" if connection.is_tls else "false"}
    connection.reply(request, header=header, body=request.body)


@asynccontextmanager
async def serving(tls: ServerTls) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(echo, clock=SystemClock(), tls=tls)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.close()


@pytest.fixture(scope="module")
def context() -> ssl.SSLContext:
    made = server_tls(TlsConfig(server_mode=TlsMode.PERMISSIVE, test_mode_enable=True)).context
    assert made is not None
    return made


async def ask(address: str, *, is_tls: bool, body: bytes = b"x") -> Request:
    tls = client_tls(TlsConfig(), use_tls=is_tls)
    client = RemotingClient(clock=SystemClock(), tls=tls)
    try:
        return await client.invoke(address, RemotingCommand.request(1, body=body), 30_000)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("mode", "is_tls", "is_served"),
    [
        (TlsMode.DISABLED, False, True),
        (TlsMode.DISABLED, True, False),
        (TlsMode.PERMISSIVE, False, True),
        (TlsMode.PERMISSIVE, True, True),
        (TlsMode.ENFORCING, False, False),
        (TlsMode.ENFORCING, True, True),
    ],
)
async def test_mode_decides_who_is_served(
    context: ssl.SSLContext, mode: TlsMode, is_tls: bool, is_served: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    async with serving(ServerTls(mode, context)) as (_, address):
        if not is_served:
            with pytest.raises(RemotingError):
                await ask(address, is_tls=is_tls)
            assert len(caplog.records) == 1
            assert "connection refused" in caplog.text
            return
        answer = await ask(address, is_tls=is_tls)
        assert answer.ext() == {"tls": "true" if is_tls else "false"}


async def test_large_bodies_pass_through_tls_both_ways(context: ssl.SSLContext) -> None:
    async with serving(ServerTls(TlsMode.ENFORCING, context)) as (_, address):
        answer = await ask(address, is_tls=True, body=BODY)
        assert answer.body == BODY


async def test_many_requests_over_one_tls_connection(context: ssl.SSLContext) -> None:
    async with serving(ServerTls(TlsMode.PERMISSIVE, context)) as (_, address):
        tls = client_tls(TlsConfig(), use_tls=True)
        client = RemotingClient(clock=SystemClock(), tls=tls)
        answers = await asyncio.gather(
            *(
                client.invoke(address, RemotingCommand.request(1, body=b"%d" % n), 30_000)
                for n in range(500)
            )
        )
        assert [int(answer.body) for answer in answers] == list(range(500))
        await client.close()


async def test_permissive_server_without_certificate_refuses_tls_only() -> None:
    async with serving(ServerTls(TlsMode.PERMISSIVE, None)) as (_, address):
        assert (await ask(address, is_tls=False)).code == 0
        with pytest.raises(ConnectError):
            await ask(address, is_tls=True)


async def test_broken_handshake_costs_one_connection_and_one_line(
    context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ServerTls(TlsMode.PERMISSIVE, context)) as (server, address):
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16\x03\x01\x00\x05hello" + bytes(100))
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()
        assert len(caplog.records) == 1
        assert "reason=TLS" in caplog.text
        assert (await ask(address, is_tls=True)).code == 0
        assert not any(connection.is_closed for connection in server.connections)
