"""A master and slaves over the simulated network, each with a log in memory."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any, cast

from support.ha_fake_store import FakeLog, FakeStore
from twinlog.ha.dialect import TWIN, Verdict
from twinlog.ha.service import HAService
from twinlog.ha.settings import HASettings
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.runtime.tasks import TaskOwner
from twinlog.testing.sim_clock import SimClock
from twinlog.testing.sim_loop import SimLoop
from twinlog.testing.sim_steps import SimHost

HA_PORT = 10912


class Node:
    """One broker's replication on one simulated host."""

    def __init__(
        self,
        loop: SimLoop,
        name: str,
        log: FakeLog,
        settings: HASettings,
        twin: TwinIdentity | None = None,
    ) -> None:
        self.loop = loop
        self.host: SimHost = loop.add_host(name)
        self.log = log
        self.settings = settings
        self.clock = SimClock(loop, self.host)
        self.tasks = TaskOwner(name)
        self.ha = HAService(
            settings, FakeStore(log), self.clock, self.tasks, twin=twin, ask_dialect=_twin
        )

    @property
    def address(self) -> str:
        return f"{self.host.address}:{HA_PORT}"

    def start(self) -> None:
        self.loop.spawn_on(self.host, self._start())

    async def _start(self) -> None:
        await self.ha.start()

    def restart(self) -> None:
        self.loop.revive(self.host)
        self.tasks = TaskOwner(self.host.name)
        self.ha = HAService(self.settings, FakeStore(self.log), self.clock, self.tasks)
        self.start()


async def _twin(_: str) -> Verdict:
    return TWIN


class RawPeer(asyncio.Protocol):
    """The far end of a connection, spoken by hand: what came, when, and whether it ended."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces: list[tuple[float, bytes]] = []
        self.is_open = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self.pieces.append((asyncio.get_running_loop().time(), data))
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False

    def report(self, *offsets: int) -> None:
        self.transport.write(b"".join(struct.pack(">q", offset) for offset in offsets))

    def frame(self, offset: int, body: bytes = b"") -> None:
        self.transport.write(struct.pack(">qi", offset, len(body)) + body)

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """Complete frames received so far."""
        found, position = [], 0
        while len(self.data) - position >= 12:
            offset, size = struct.unpack_from(">qi", self.data, position)
            if len(self.data) - position - 12 < size:
                break
            found.append((offset, self.data[position + 12 : position + 12 + size]))
            position += 12 + size
        return found

    @property
    def reports(self) -> list[int]:
        whole = len(self.data) - len(self.data) % 8
        return [value for (value,) in struct.iter_unpack(">q", self.data[:whole])]


class RawMaster:
    """A master spoken by hand: accepts, and keeps every connection as a RawPeer."""

    def __init__(self, loop: SimLoop, on_open: Callable[[RawPeer], None] | None = None) -> None:
        self.loop = loop
        self.host = loop.add_host("raw master")
        self.peers: list[RawPeer] = []
        self.opened_s: list[float] = []
        self._on_open = on_open
        loop.network.listen(self._accept, self.host, HA_PORT)

    @property
    def address(self) -> str:
        return f"{self.host.address}:{HA_PORT}"

    def _accept(self) -> RawPeer:
        peer = RawPeer()
        self.peers.append(peer)
        self.opened_s.append(self.loop.now_s)
        if self._on_open is not None:
            self.loop.call_soon(self._on_open, peer)
        return peer


class World:
    """A loop, a master and a slave; `run` drives it."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed)
        self.nodes: list[Node] = []

    def master(self, log: FakeLog, **settings: Any) -> Node:
        return self._add("master", log, "SYNC_MASTER", settings)

    def slave(
        self, log: FakeLog, master: Node | RawMaster | None, name: str = "slave", **more: Any
    ) -> Node:
        address = master.address if master else None
        return self._add(name, log, "SLAVE", {"master_address": address, **more})

    def _add(self, name: str, log: FakeLog, role: str, settings: dict[str, Any]) -> Node:
        twin = settings.pop("twin", None)
        values = {"role": role, "listen_port": HA_PORT, **settings}
        node = Node(self.loop, name, log, HASettings(**values), twin)
        self.nodes.append(node)
        node.start()
        return node

    async def dial(self, node: Node, name: str = "raw slave") -> RawPeer:
        """Connect to `node` by hand."""
        hosts = self.loop.network.hosts.values()
        known = [host for host in hosts if host.name == name]
        host = known[0] if known else self.loop.add_host(name)
        task = self.loop.spawn_on(
            host, self.loop.network.connect(RawPeer, host, node.host.address, HA_PORT)
        )
        _, peer = await task
        return cast(RawPeer, peer)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        asyncio.set_event_loop(self.loop)
        try:
            result = self.loop.run_until_complete(main)
            assert self.loop.failures == []
            assert [node.tasks.failed for node in self.nodes if node.tasks.failed] == []
            return result
        finally:
            asyncio.set_event_loop(None)
            self.loop.finish()


async def eventually(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Wait in virtual time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline, "did not happen"
        await asyncio.sleep(0.001)
