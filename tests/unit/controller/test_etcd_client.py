"""What a client of etcd makes of answers that no etcd gives: an error of its own, never another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from support.processes import free_port
from twinlog.controller.etcd_client import EtcdClient, EtcdError, EtcdNotReachedError
from twinlog.controller.etcd_store import EtcdRecordStore
from twinlog.controller.record import GroupRecord
from twinlog.controller.store import StoreOutcome
from twinlog.runtime.clock import SystemClock


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[str]:
    """Somebody who answers every request with `data` and closes."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    await asyncio.gather(*serving)


def http(body: bytes, *, status: bytes = b"200 OK", fields: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 " + status + b"\r\n" + (fields or length) + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked\r\n"
BAD = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "no JSON": http(b"<html>"),
    "no object": http(b"[1]"),
    "lone surrogate": http(b'{"a": "\\ud800"}'),
    "not UTF-8": http(b'{"a": "\xff"}'),
    "an error": http(b'{"error": "etcdserver: no leader", "code": 14}', status=b"503 Unavailable"),
    "an error in a stream": http(b'{"error": {"message": "mvcc: compacted"}}'),
    "a shorter body": http(b"{}", fields=b"Content-Length: 100\r\n"),
    "a length that is none": http(b"{}", fields=b"Content-Length: x\r\n"),
    "too long": http(b"{}", fields=b"Content-Length: 99999999999\r\n"),
    "a chunk that is none": http(b"zz\r\n{}\r\n", fields=CHUNKED),
    "a chunk too long": http(b"fffffffffff\r\n{}", fields=CHUNKED),
    "a chunk cut off": http(b"10\r\n{}", fields=CHUNKED),
    "a line without end": http(b"x" * (2 << 20), fields=CHUNKED),
    "a result that is none": http(b'{"result": 5}'),
}
WRONG = {
    **BAD,
    "no header": http(b"{}"),
    "a header that is none": http(b'{"header": 5, "succeeded": true}'),
    "a revision that is none": http(b'{"header": {"revision": "\xc2\xb2"}, "succeeded": true}'),
    "keys that are none": http(b'{"header": {"revision": "1"}, "kvs": 5}'),
    "a key that is none": http(b'{"header": {"revision": "1"}, "kvs": [5]}'),
    "a value that is none": http(b'{"header": {"revision": "1"}, "kvs": [{"value": "!"}]}'),
    "a leader that is none": http(b'{"header": {"revision": "1"}, "kvs": [{"value": "e30="}]}'),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_answer_is_an_error_with_an_unknown_outcome(name: str) -> None:
    async with answering(BAD[name]) as url:
        with pytest.raises(EtcdError) as caught:
            await EtcdClient([url]).call("/v3/kv/txn", {})
        assert not isinstance(caught.value, EtcdNotReachedError)


async def test_who_is_not_reached_was_not_asked_and_the_next_one_is() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(EtcdNotReachedError, match="cannot be reached"):
        await EtcdClient([nobody]).call("/v3/kv/range", {})
    async with answering(http(b'{"a": 1}')) as url:
        client = EtcdClient([nobody, url])
        assert await client.call("/v3/kv/range", {}) == {"a": 1}
        assert client.addresses[0] == url


@pytest.mark.parametrize("name", WRONG)
async def test_nobody_leads_by_a_wrong_answer(name: str) -> None:
    async with answering(WRONG[name]) as url:
        store = EtcdRecordStore([url], "g", SystemClock())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await store.lead()
        assert not store.is_leading
        assert store.leader is None


def leading(store: EtcdRecordStore) -> EtcdRecordStore:
    store._create_revision = 7
    store._until_ms = 2**60
    return store


# To a write these say that it was not done: it is stale, not unknown.
REFUSALS = {
    "keys that are none", "a key that is none", "a value that is none", "a leader that is none",
    "no header",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(WRONG) - REFUSALS))
async def test_a_write_that_was_answered_wrongly_is_unknown(name: str) -> None:
    async with answering(WRONG[name]) as url:
        store = leading(EtcdRecordStore([url], "g", SystemClock()))
        record = GroupRecord(cluster="c", group="b", version=1)
        assert await store.commit(record) is StoreOutcome.UNKNOWN


async def test_a_write_of_one_who_does_not_lead_any_more_deposes_it() -> None:
    body = b'{"responses": [{"response_range": {"kvs": [{"create_revision": "8"}]}}]}'
    async with answering(http(body)) as url:
        store = leading(EtcdRecordStore([url], "g", SystemClock()))
        record = GroupRecord(cluster="c", group="b", version=1)
        assert await store.commit(record) is StoreOutcome.STALE
        assert not store.is_leading
