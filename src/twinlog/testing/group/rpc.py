"""A client of few words: frames made and read here, so that no client code covers for a broker."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_steps import SimHost

_IS_RESPONSE = 1
_SIZES = struct.Struct(">II")
_quoted = json.encoder.encode_basestring_ascii


class Answer(NamedTuple):
    """What came back; code -1 when nothing did."""

    code: int
    ext: dict[str, str]
    body: bytes
    remark: str = ""


NOTHING = Answer(-1, {}, b"")
OnAnswer = Callable[[Answer], None]


def encode_request(opaque: int, code: int, ext: dict[str, str], body: bytes) -> bytes:
    # As json.dumps writes it, which makes an encoder for each call.
    pairs = ", ".join([f"{_quoted(key)}: {_quoted(value)}" for key, value in ext.items()])
    return _frame(
        f'{{"code": {code}, "extFields": {{{pairs}}}, "flag": 0, "language": "JAVA",'
        f' "opaque": {opaque}, "version": 407, "serializeTypeCurrentRPC": "JSON"}}',
        body,
    )


def _encode(fields: dict[str, Any], body: bytes) -> bytes:
    return _frame(json.dumps({**fields, "serializeTypeCurrentRPC": "JSON"}), body)


def _frame(text: str, body: bytes) -> bytes:
    header = text.encode()
    return _SIZES.pack(4 + len(header) + len(body), len(header)) + header + body


class _Wire(asyncio.Protocol):
    def __init__(self) -> None:
        self.waiting: dict[int, OnAnswer] = {}
        self.transport: asyncio.Transport | None = None
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= 8:
            size, header_size = _SIZES.unpack_from(self._data)
            if len(self._data) < 4 + size:
                return
            header_end = 8 + (header_size & 0xFFFFFF)
            header = msgspec.json.decode(self._data[8:header_end])
            body = bytes(self._data[header_end : 4 + size])
            del self._data[: 4 + size]
            if header["flag"] & _IS_RESPONSE:
                self._answered(header, body)
            else:
                self._asked(header)

    def _asked(self, header: dict[str, Any]) -> None:
        """A broker's own request: clients of these worlds have nothing to say."""

    def _answered(self, header: dict[str, Any], body: bytes) -> None:
        callback = self.waiting.pop(header["opaque"], None)
        if callback is not None:
            ext = header.get("extFields") or {}
            callback(Answer(header["code"], ext, body, header.get("remark") or ""))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        waiting, self.waiting = self.waiting, {}
        for callback in waiting.values():
            callback(NOTHING)


class Impostor(_Wire):
    """Answers every request with a code that says nothing about who it is."""

    CODE = 2  # SYSTEM_BUSY

    def _asked(self, header: dict[str, Any]) -> None:
        if self.transport is not None:
            fields = {"code": self.CODE, "flag": _IS_RESPONSE, "language": "JAVA", "version": 407}
            self.transport.write(_encode({**fields, "opaque": header["opaque"]}, b""))


class Rpc:
    """One connection for each (name, address); requests of one call of `send` are one packet."""

    def __init__(self, loop: SimLoop, host: SimHost, timeout_s: float = 2.0) -> None:
        self._loop = loop
        self._host = host
        self._timeout_s = timeout_s
        self._wires: dict[str, _Wire] = {}
        self._opaque = 0

    async def _wire(self, address: str) -> _Wire | None:
        wire = self._wires.get(address)
        if wire is not None and wire.transport is not None:
            return wire
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(self._timeout_s):
                connecting = self._loop.network.connect(_Wire, self._host, host, int(port))
                wire = cast(_Wire, (await connecting)[1])
        except (OSError, TimeoutError):
            return None
        self._wires[address] = wire
        return wire

    async def send(
        self, address: str, requests: Sequence[tuple[int, dict[str, str], bytes, OnAnswer]]
    ) -> bool:
        """All in one packet; each callback is called once. False when nothing left."""
        wire = await self._wire(address)
        if wire is None or wire.transport is None:
            for *_, callback in requests:
                callback(NOTHING)
            return False
        packet = b""
        for code, ext, body, callback in requests:
            self._opaque += 1
            wire.waiting[self._opaque] = callback
            packet += encode_request(self._opaque, code, ext, body)
            self._loop.call_later(self._timeout_s, self._expire, wire, self._opaque)
        wire.transport.write(packet)
        return True

    def _expire(self, wire: _Wire, opaque: int) -> None:
        callback = wire.waiting.pop(opaque, None)
        if callback is not None:
            callback(NOTHING)

    async def call(self, address: str, code: int, ext: dict[str, str], body: bytes = b"") -> Answer:
        answer: asyncio.Future[Answer] = self._loop.create_future()

        def answered(value: Answer) -> None:
            if not answer.done():  # Whoever asked may be gone.
                answer.set_result(value)

        await self.send(address, [(code, ext, body, answered)])
        return await answer

    def drop(self) -> None:
        """Close every connection: the next request dials again."""
        for wire in self._wires.values():
            if wire.transport is not None:
                wire.transport.abort()
        self._wires.clear()
