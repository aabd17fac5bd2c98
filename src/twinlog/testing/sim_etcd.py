"""An etcd of the simulation: linearizable transactions and leases behind its HTTP gateway.

Its data survive its process, as those of a cluster with a majority do. What a client may meet: no
answer although the request had its effect, an effect seconds after the connection closed, leases
that end late (never early by etcd's own clock), watches that break.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from twinlog.controller.etcd_client import bytes64
from twinlog.testing.sim_clock import SimClock
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_steps import SimHost

ETCD_PORT = 2379
EXPIRY_PAUSE_MS = 500
LATE_S = (0.1, 0.5, 2.0, 6.0)
Answer = dict[str, Any]


@dataclass(slots=True)
class _Entry:
    value: str
    created: int
    modified: int
    lease: int


class SimEtcd:
    """`unknown_rate` of all requests have an outcome that their sender does not learn."""

    def __init__(self, loop: SimLoop, host: SimHost, rng: random.Random) -> None:
        self.host = host
        self.unknown_rate = 0.0
        self.on_put: Callable[[str, str], None] = lambda key, value: None
        self._loop = loop
        self._clock = SimClock(loop, host)
        self._rng = rng
        self._revision = 1
        self._entries: dict[str, _Entry] = {}
        self._lease_ms: dict[int, int] = {}
        self._until_ms: dict[int, int] = {}
        self._watches: dict[_Connection, str] = {}

    @property
    def address(self) -> str:
        return f"http://{self.host.address}:{ETCD_PORT}"

    def boot(self) -> None:
        """Leases begin again with each process: nobody knows how long the last one was away."""
        self._loop.revive(self.host)
        self._watches.clear()
        now_ms = self._clock.boot_ms()
        self._until_ms = {lease: now_ms + ms for lease, ms in self._lease_ms.items()}
        self._loop.spawn_on(self.host, self._run())

    def boot_if_down(self) -> None:
        if not self.host.is_alive:
            self.boot()

    async def _run(self) -> None:
        await self._loop.create_server(lambda: _Connection(self), None, ETCD_PORT)
        while True:
            await self._clock.sleep_ms(EXPIRY_PAUSE_MS)
            now_ms = self._clock.boot_ms()
            for lease in [n for n, until_ms in self._until_ms.items() if until_ms <= now_ms]:
                self._end_lease(lease)

    # Requests.

    def asked(self, connection: _Connection, path: str, request: Answer) -> None:
        if path == "/v3/watch":
            self._watches[connection] = request["create_request"]["key"]
            connection.begin_stream({"result": {"created": True}})
            return
        answer = {
            "/v3/kv/range": self._range,
            "/v3/kv/txn": self._txn,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
        }[path]
        if self._rng.random() >= self.unknown_rate:
            connection.answer(answer(request))
            return
        connection.close()
        if self._rng.random() < 0.5:
            late_s = self._rng.choice(LATE_S)
            self._loop.call_later(late_s, answer, request, context=self._loop.bare_context)
        elif self._rng.random() < 0.5:
            answer(request)

    def closed(self, connection: _Connection) -> None:
        self._watches.pop(connection, None)

    def _header(self) -> Answer:
        return {"header": {"revision": str(self._revision)}}

    def _range(self, request: Answer) -> Answer:
        first, end = request["key"], request.get("range_end")
        found = sorted(
            key
            for key in self._entries
            if key == first or (end and bytes64(first) <= bytes64(key) < bytes64(end))
        )
        return {**self._header(), "kvs": [self._shown(key) for key in found]}

    def _shown(self, key: str) -> Answer:
        entry = self._entries[key]
        return {
            "key": key,
            "value": entry.value,
            "create_revision": str(entry.created),
            "mod_revision": str(entry.modified),
        }

    def _txn(self, request: Answer) -> Answer:
        is_done = all(self._holds(compare) for compare in request["compare"])
        steps = request.get("success" if is_done else "failure") or []
        responses: list[Answer] = []
        if any("request_put" in step for step in steps):
            self._revision += 1
        for step in steps:
            if "request_put" in step:
                self._put(step["request_put"])
                responses.append({"response_put": {}})
            else:
                responses.append({"response_range": self._range(step["request_range"])})
        return {**self._header(), "succeeded": is_done, "responses": responses}

    def _holds(self, compare: Answer) -> bool:
        entry = self._entries.get(compare["key"])
        if compare["target"] == "CREATE":
            return int(compare["create_revision"]) == (entry.created if entry else 0)
        return int(compare["mod_revision"]) == (entry.modified if entry else 0)

    def _put(self, put: Answer) -> None:
        key, lease = put["key"], int(put.get("lease", 0))
        if lease and lease not in self._lease_ms:
            return  # Late, after its lease has ended: etcd refuses it.
        known = self._entries.get(key)
        created = known.created if known else self._revision
        self._entries[key] = _Entry(put["value"], created, self._revision, lease)
        self.on_put(key, put["value"])
        self._tell(key)

    # Leases.

    def _grant(self, request: Answer) -> Answer:
        lease = self._rng.getrandbits(50)
        self._lease_ms[lease] = request["TTL"] * 1000
        self._until_ms[lease] = self._clock.boot_ms() + request["TTL"] * 1000
        return {**self._header(), "ID": str(lease), "TTL": str(request["TTL"])}

    def _keep_alive(self, request: Answer) -> Answer:
        lease = int(request["ID"])
        ms = self._lease_ms.get(lease)
        if ms is None:
            return {"result": {**self._header(), "ID": str(lease)}}
        self._until_ms[lease] = self._clock.boot_ms() + ms
        return {"result": {**self._header(), "ID": str(lease), "TTL": str(ms // 1000)}}

    def _revoke(self, request: Answer) -> Answer:
        self._end_lease(int(request["ID"]))
        return self._header()

    def _end_lease(self, lease: int) -> None:
        self._lease_ms.pop(lease, None)
        self._until_ms.pop(lease, None)
        for key in [key for key, entry in self._entries.items() if lease and entry.lease == lease]:
            self._revision += 1
            del self._entries[key]
            self._tell(key)

    def _tell(self, key: str) -> None:
        for connection, watched in tuple(self._watches.items()):
            if watched == key:
                connection.more({"result": {**self._header(), "events": [{"kv": {"key": key}}]}})


class _Connection(asyncio.Protocol):
    """One request of HTTP, and its answer or its stream."""

    def __init__(self, etcd: SimEtcd) -> None:
        self._etcd = etcd
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        line, *fields = head.decode().split("\r\n")
        sizes = [field for field in fields if field.lower().startswith("content-length:")]
        if len(body) >= int(sizes[0].partition(":")[2]):
            self._data = b""
            self._etcd.asked(self, line.split()[1], msgspec.json.decode(body))

    def connection_lost(self, error: Exception | None) -> None:
        self._etcd.closed(self)

    def answer(self, answer: Answer) -> None:
        body = msgspec.json.encode(answer)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def begin_stream(self, answer: Answer) -> None:
        self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.more(answer)

    def more(self, answer: Answer) -> None:
        line = msgspec.json.encode(answer) + b"\n"
        self._transport.write(b"%x\r\n%s\r\n" % (len(line), line))

    def close(self) -> None:
        self._transport.close()
