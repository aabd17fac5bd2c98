"""Addresses in, or an error that shows what was given."""

from __future__ import annotations

import asyncio

import pytest

from twinlog.client.errors import InvalidAddressError, NameServerUnreachableError
from twinlog.client.net.name_servers import NameServers, discover, parse_name_servers


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("h:9876", ["h:9876"]),
        (" a:1 ; b:2;a:1;", ["a:1", "b:2"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
        ("[::1]:9876", ["[::1]:9876"]),
        ("http://h:8080/rocketmq/nsaddr", ["http://h:8080/rocketmq/nsaddr"]),
    ],
)
def test_lists_of_addresses(given: object, expected: list[str]) -> None:
    assert parse_name_servers(given) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "is empty"),
        (" ; ", "is empty"),
        ("localhost", "has no port"),
        (":9876", "has no port"),
        ("h:port", "'port' is not a port"),
        ("h:0", "not a port"),
        ("h:70000", "not a port"),
        ("tcp://h:1", "is not an address of the form host:port"),
        ("h:1/x", "is not an address of the form host:port"),
        (9876, "must be text"),
        ([1], "must be text"),
        (None, "must be text"),
    ],
)
def test_what_is_no_address(given: object, reason: str) -> None:
    with pytest.raises(InvalidAddressError, match=reason):
        parse_name_servers(given)  # type: ignore[arg-type]


def test_the_one_that_answers_is_asked_first() -> None:
    servers = NameServers(["a:1", "b:1", "c:1"])
    servers.answered("b:1")
    assert servers.in_order() == ["b:1", "c:1", "a:1"]
    servers.answered("unknown:1")
    assert servers.in_order()[0] == "b:1"


def test_a_new_list_replaces_the_old_one() -> None:
    servers = NameServers(["a:1"], start=5)
    assert not servers.replace(["a:1"])
    assert not servers.replace([])
    assert servers.replace(["b:1", "a:1"])
    assert servers.addresses == ["b:1", "a:1"]
    assert NameServers([]).in_order() == []


async def serve(answer: bytes) -> tuple[asyncio.Server, str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        assert request.startswith(b"GET /rocketmq/nsaddr HTTP/1.0\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_discovery_reads_a_plain_list() -> None:
    server, url = await serve(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\na:1;b:2\r\n\r\n")
    async with server:
        assert await discover(url) == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\nno", "404"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "html"),
        (b"", "HTTP answer"),
    ],
)
async def test_discovery_says_what_came_instead(answer: bytes, reason: str) -> None:
    server, url = await serve(answer)
    async with server:
        with pytest.raises(NameServerUnreachableError, match=reason):
            await discover(url)


async def test_discovery_without_a_server() -> None:
    server, url = await serve(b"")
    server.close()
    await server.wait_closed()
    with pytest.raises(NameServerUnreachableError, match="did not return the addresses"):
        await discover(url)
