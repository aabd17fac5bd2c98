"""Requests to etcd: its HTTP gateway (`/v3/...`), JSON in and out, keys and values in base64.

A request is one connection. Whether a request may have had an effect is part of the error: what was
never sent has none, what was sent and not answered may have one, now or later.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from twinlog.runtime.numbers import number_or_none

_LOG = logging.getLogger("twinlog.controller")
ANSWER_MAX = 16 * 1024 * 1024
LINE_MAX = 1024 * 1024
CONNECT_MS = 1_000
ANSWER_MS = 2_000


class EtcdError(Exception):
    """No answer, or none that can be used. The request may have had its effect."""


class EtcdNotReachedError(EtcdError):
    """Nobody was asked: the request had no effect."""


def text64(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def bytes64(text: str) -> bytes:
    return base64.b64decode(text)


def number(value: Any) -> int:
    """etcd writes 64-bit numbers as text, and leaves out those that are 0."""
    found = number_or_none(str(value or 0))
    if found is None:
        raise EtcdError(f"etcd answered {str(value)[:40]!r} where a number belongs")
    return found


def revision_of(answer: dict[str, Any]) -> int:
    """At which revision of its data etcd answered; never 0."""
    header = answer.get("header")
    found = number(header.get("revision")) if isinstance(header, dict) else 0
    if not found:
        raise EtcdError("an answer of etcd without a revision")
    return found


def entries_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Keys and values of a range."""
    entries = answer.get("kvs") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise EtcdError("an answer of etcd whose keys cannot be read")
    return entries


class EtcdClient:
    """Asks the first of `addresses` that can be reached, then the one that answered last."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)

    @property
    def shown(self) -> str:
        return ", ".join(self.addresses)

    async def call(self, path: str, payload: dict[str, Any]) -> dict[str, Any]:
        """One answer.

        Raises:
            EtcdNotReachedError: it was not asked.
            EtcdError: it was asked, and what it did is not known.
        """
        async with aclosing(self.stream(path, payload)) as answers:
            try:
                async with asyncio.timeout(ANSWER_MS / 1000):
                    async for answer in answers:
                        return answer
            except TimeoutError as error:
                raise EtcdError(f"etcd at {self.shown} does not answer in time") from error
        raise EtcdError(f"etcd at {self.shown} closed the connection without an answer")

    async def stream(
        self, path: str, payload: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Answers as they come, until the connection ends. Raises as `call` does."""
        reader, writer = await self._connect()
        try:
            writer.write(_request(path, urlsplit(self.addresses[0]).netloc, payload))
            try:
                await writer.drain()
                async for line in _lines(reader):
                    yield _answer(line)
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:
                raise EtcdError(f"etcd at {self.addresses[0]}: {error}") from error
        finally:
            writer.close()
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Whoever is reached becomes the first to be asked."""
        problem = ""
        for address in list(self.addresses):
            parts = urlsplit(address)
            tls = ssl.create_default_context() if parts.scheme == "https" else None
            try:
                async with asyncio.timeout(CONNECT_MS / 1000):
                    found = await asyncio.open_connection(
                        parts.hostname, parts.port, ssl=tls, limit=LINE_MAX
                    )
            except (OSError, TimeoutError) as error:
                problem = f"{address}: {error or 'no answer in time'}"
                self.addresses.append(self.addresses.pop(0))
                continue
            return found
        raise EtcdNotReachedError(f"etcd cannot be reached: {problem}")


def _request(path: str, host: str, payload: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(payload)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _lines(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """The lines of the answer's body: one for a plain answer, one for each event of a stream."""
    status = await reader.readline()
    fields: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()
    if not status.startswith(b"HTTP/1."):
        raise ValueError(f"not an HTTP answer: {status[:40]!r}")
    if fields.get("transfer-encoding", "").lower() == "chunked":
        async for line in _chunked(reader):
            yield line
        return
    size = int(fields.get("content-length", "-1"))
    if size > ANSWER_MAX:
        raise ValueError(f"an answer of {size} bytes")
    data = await (reader.read(ANSWER_MAX) if size < 0 else reader.readexactly(size))
    if data.strip():
        yield data


async def _chunked(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    rest = b""
    while size := int((await reader.readline()).strip() or b"0", 16):
        if size > ANSWER_MAX or len(rest) > ANSWER_MAX:
            raise ValueError(f"a chunk of {size} bytes")
        rest += await reader.readexactly(size)
        await reader.readline()
        *whole, rest = rest.split(b"\n")
        for line in whole:
            if line.strip():
                yield line
    if rest.strip():
        yield rest


def _answer(line: bytes) -> dict[str, Any]:
    """An answer, or the error that etcd tells; of a stream what is under `result`."""
    try:
        data = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EtcdError(f"an answer that is not a JSON object: {error}") from error
    if "error" in data:
        told = data["error"]
        text = told.get("message") if isinstance(told, dict) else told
        raise EtcdError(f"etcd says: {text}")
    result = data.get("result", data)
    if not isinstance(result, dict):
        raise EtcdError(f"an answer without a result: {line[:100]!r}")
    return result
