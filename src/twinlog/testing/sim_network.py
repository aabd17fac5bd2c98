"""Byte streams between simulated hosts: in order, in random pieces, with delay and every fault.

Verbs: `partition` (bytes are held, as TCP does until it is healed), `mend`, `heal`, `reset_all`,
`reset_some` (both ends see an error); `loss_rate`, `delay_s`. Back-pressure is honoured: a
pipe holds at most WINDOW bytes in flight, the rest stays with the writer, whose protocol is paused
above its limits.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinlog.testing.sim_loop import SimLoop
    from twinlog.testing.sim_steps import SimHost

WINDOW = 256 * 1024


class SimNetwork:
    """All links between all hosts."""

    def __init__(self, loop: SimLoop) -> None:
        self.hosts: dict[str, SimHost] = {}
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.transports: list[SimTransport] = []
        self.delay_s = (0.0001, 0.001)
        self.tiny_pieces = 0.1
        self.bytes_per_second: float | None = None
        self.byte_count = 0
        self.loss_rate = 0.0
        """Of pieces that are lost and sent again by TCP, later and later: other connections
        overtake this one meanwhile."""
        self.flip_probability = 0.0
        """Of one flipped bit in a piece, whoever sends it."""
        self.flip_count = 0
        self.late_rate = 0.05
        """Of dials whose caller goes on later than the connection is there: by then the other end
        may have said something, as it happens on a busy machine."""
        self.dial_rule: Callable[[SimHost, str, int], tuple[float, str, int]] = _dial_as_asked
        """Seconds that a dial takes besides (negative: it is refused) and where it really ends."""
        self.on_write: Callable[[SimTransport, bytes], None] | None = None
        """Sees what every end says, before the network has its way with it."""
        self._loop = loop
        self._cuts: set[tuple[str, str]] = set()
        self._next_port = 40_000

    # Faults.

    def partition(self, a: SimHost, b: SimHost, *, one_way: bool = False) -> None:
        """Bytes from `a` to `b` are held, and the reverse unless `one_way`."""
        self._cuts.add((a.address, b.address))
        if not one_way:
            self._cuts.add((b.address, a.address))

    def heal(self) -> None:
        """All links carry again; what was held goes on."""
        self._cuts.clear()
        for transport in tuple(self.transports):
            transport.release()

    def mend(self, a: SimHost, b: SimHost, *, one_way: bool = False) -> None:
        """The reverse of `partition`; other cuts stay."""
        self._cuts.discard((a.address, b.address))
        if not one_way:
            self._cuts.discard((b.address, a.address))
        for transport in tuple(self.transports):
            transport.pump()

    @property
    def is_whole(self) -> bool:
        return not self._cuts and not self.loss_rate

    def is_cut(self, source: SimHost, target: SimHost) -> bool:
        return bool(self._cuts) and (source.address, target.address) in self._cuts

    def reset_all(self) -> None:
        """Every connection breaks, both ends are told."""
        for transport in tuple(self.transports):
            transport.reset("connection reset by the network")

    def reset_some(self, share: float) -> None:
        """Some connections break; what was on its way is lost."""
        for transport in tuple(self.transports):
            if transport.peer is not None and self._loop.rng.random() < share / 2:
                transport.reset("connection reset by the network")
                transport.peer.reset("connection reset by the network")

    def host_died(self, host: SimHost, *, tells_peers: bool) -> None:
        """Connections of a dead host: its peers get a reset, or silence after a power loss."""
        for key in [key for key in self.listeners if key[0] == host.address]:
            del self.listeners[key]
        for transport in tuple(self.transports):
            if transport.host is not host:
                continue
            transport.die(tells_peer=tells_peers)
            self.transports.remove(transport)

    # Sockets.

    def listen(self, factory: Callable[[], Any], host: SimHost | None, port: int) -> SimServer:
        assert host is not None, "a server needs a host"
        if port == 0:
            self._next_port += 1
            port = self._next_port
        key = (host.address, port)
        if key in self.listeners:
            raise OSError(98, "address already in use")
        server = SimServer(self, key, factory, host)
        self.listeners[key] = server
        return server

    async def connect(
        self, factory: Callable[[], Any], source: SimHost | None, address: str, port: int
    ) -> tuple[SimTransport, Any]:
        assert source is not None, "a client needs a host"
        await asyncio.sleep(self.draw_delay())
        target = self.hosts.get(address)
        while target is None or self.is_cut(source, target) or self.is_cut(target, source):  # noqa: ASYNC110
            await asyncio.sleep(0.5)  # SYN and SYN again; the caller has a timeout.
        wait_s, true_address, true_port = self.dial_rule(source, address, port)
        await asyncio.sleep(max(0.0, wait_s))
        target = self.hosts[true_address]
        server = self.listeners.get((true_address, true_port))
        if server is None or not target.is_alive or wait_s < 0:
            raise ConnectionRefusedError(111, f"{address}:{port} refused")
        self._next_port += 1
        near = SimTransport(self, source, (source.address, self._next_port), (address, port))
        far = SimTransport(self, target, (address, port), (source.address, self._next_port))
        near.peer, far.peer = far, near
        self.transports += [near, far]
        far.start(server.factory())
        protocol = factory()
        near.start(protocol)
        if self._loop.rng.random() < self.late_rate:
            await asyncio.sleep(8 * self.draw_delay())
        return near, protocol

    def tampered(self, piece: bytes) -> bytes:
        rng = self._loop.rng
        if not piece or not self.flip_probability or rng.random() >= self.flip_probability:
            return piece
        self.flip_count += 1
        damaged = bytearray(piece)
        damaged[rng.randrange(len(piece))] ^= 1 << rng.randrange(8)
        return bytes(damaged)

    def draw_delay(self) -> float:
        rng = self._loop.rng
        shortest_s, longest_s = self.delay_s
        delay_s = shortest_s + (longest_s - shortest_s) * rng.random()
        if self.loss_rate:
            again_s = 0.2
            while rng.random() < self.loss_rate and again_s < 4:
                delay_s += again_s
                again_s *= 2
        return delay_s

    @property
    def loop(self) -> SimLoop:
        return self._loop


def _dial_as_asked(source: SimHost, address: str, port: int) -> tuple[float, str, int]:
    return 0.0, address, port


class SimServer:
    """What create_server returns."""

    def __init__(
        self, network: SimNetwork, key: tuple[str, int], factory: Callable[[], Any], host: SimHost
    ) -> None:
        self.factory = factory
        self.sockets = [self]
        self._network = network
        self._key = key

    def getsockname(self) -> tuple[str, int]:
        return self._key

    def close(self) -> None:
        if self._network.listeners.get(self._key) is self:
            del self._network.listeners[self._key]

    async def wait_closed(self) -> None:
        return


class SimTransport(asyncio.Transport):
    """One end of a connection. Writes travel to `peer` in pieces."""

    def __init__(
        self,
        network: SimNetwork,
        host: SimHost,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__({"peername": remote, "sockname": local})
        self.host = host
        self.remote = remote
        self.peer: SimTransport | None = None
        self.is_dead = False
        self.is_held = False
        """What it has said stays under way, while other connections of these hosts carry."""
        self._network = network
        self._loop = network.loop
        self._context = self._loop.context_of(host)
        self._protocol: Any = None
        self._outgoing = bytearray()
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_moving = False
        self._high, self._low = 65536, 16384
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False
        self._eof_after_pending = False

    @property
    def rng(self) -> random.Random:
        return self._loop.rng

    def start(self, protocol: Any) -> None:
        self._protocol = protocol
        self._context.run(protocol.connection_made, self)

    # What production code calls.

    def write(self, data: Any) -> None:
        if self.is_dead or self._is_closing:
            return
        self._outgoing += data
        if self._network.on_write is not None:
            self._network.on_write(self, bytes(data))
        self.pump()
        self._check_paused()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._eof_after_pending = True
            self._soon(self._lost, None)
            self.pump()

    def abort(self) -> None:
        if self._is_lost or self._is_closing:
            return
        self._is_closing = True
        del self._outgoing[WINDOW:]  # The kernel has taken the rest, and sends it.
        self._eof_after_pending = True
        self._soon(self._lost, None)
        self.pump()

    def is_closing(self) -> bool:
        # Of a process that was killed, too: nobody is told that it did not close its streams.
        return self._is_closing or self.is_dead or self._loop.is_finished

    def get_write_buffer_size(self) -> int:
        return len(self._outgoing)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # The wire.

    def pump(self) -> None:
        """Set the next piece on its way, if the link carries and nothing is on it."""
        if self._is_moving or not (self._outgoing or self._eof_after_pending):
            return
        peer = self.peer
        if self.is_dead or peer is None:
            return
        if self.is_held or self._network.is_cut(self.host, peer.host):
            return
        self._is_moving = True
        delay_s = self._network.draw_delay()
        if rate := self._network.bytes_per_second:
            delay_s += min(len(self._outgoing), WINDOW) / rate
        self._loop.call_later(delay_s, self._arrive, context=self._loop.bare_context)

    def release(self) -> None:
        """What was held on this connection alone goes on."""
        self.is_held = False
        self.pump()

    def _arrive(self) -> None:
        self._is_moving = False
        peer = self.peer
        if self.is_dead or peer is None:
            return
        if self.is_held or self._network.is_cut(self.host, peer.host):
            return
        if peer.is_dead:
            # The other machine came back without this connection: it answers with a reset.
            if peer.host.is_alive:
                self.peer_vanished(lose_pending=True)
            if self._is_lost:  # Both ends closed at the same time.
                self.is_dead = True
                self._forget()
            return
        network, rng = self._network, self._loop.rng
        size = min(len(self._outgoing), WINDOW)
        if size and rng.random() < network.tiny_pieces:
            size = rng.randint(1, min(size, 40))
        piece = bytes(self._outgoing[:size])
        del self._outgoing[:size]
        network.byte_count += size
        peer.deliver(network.tampered(piece))
        if not self._outgoing and self._eof_after_pending:
            self._eof_after_pending = False
            self.is_dead = True
            self._forget()
            peer.peer_vanished(lose_pending=False)
            return
        self._check_resumed()
        self.pump()

    def die(self, *, tells_peer: bool) -> None:
        """The process is gone. Its kernel may still deliver what it had, then closes."""
        self.is_dead = True
        peer = self.peer
        if not tells_peer or peer is None or self._network.is_cut(self.host, peer.host):
            return
        delivers = self.rng.random() < 0.5
        if delivers and self._outgoing:
            peer.deliver(bytes(self._outgoing[: self.rng.randint(0, len(self._outgoing))]))
        peer.peer_vanished(lose_pending=not delivers)

    def deliver(self, piece: bytes) -> None:
        """Bytes for this end, in its host's time."""
        if piece:
            self._soon(self._receive, piece)

    def _receive(self, piece: bytes) -> None:
        if self._is_lost or self._is_closing:
            return
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            protocol.data_received(piece)
            return
        view = memoryview(piece)
        while view and not self._is_closing:
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(view))
            buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]

    def peer_vanished(self, *, lose_pending: bool) -> None:
        """The other end is gone: end of stream, or a reset that overtakes what was under way."""
        if self._is_lost or self.is_dead:
            return
        if lose_pending:
            self._soon(self._lost, ConnectionResetError(104, "connection reset by peer"))
        else:
            self._soon(self._end_of_stream)

    def reset(self, text: str) -> None:
        if not self.is_dead:
            self._soon(self._lost, ConnectionResetError(104, text))

    def _end_of_stream(self) -> None:
        if self._is_lost or self._is_closing:
            return
        self._protocol.eof_received()
        self._is_closing = True
        self._lost(None)

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if not self._eof_after_pending:
            self.is_dead = True
            self._forget()
        self._protocol.connection_lost(error)

    def _forget(self) -> None:
        if self in self._network.transports:
            self._network.transports.remove(self)

    def _soon(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run on this end's host, in order."""
        self._queue.append((function, arguments))
        self._loop.call_soon(self._run_queued, context=self._context)

    def _run_queued(self) -> None:
        # The loop shuffles callbacks; what happens to one end stays in order anyway.
        if self._queue:
            function, arguments = self._queue.popleft()
            function(*arguments)

    def _check_paused(self) -> None:
        if not self._is_paused and len(self._outgoing) > self._high:
            self._is_paused = True
            self._protocol.pause_writing()

    def _check_resumed(self) -> None:
        if self._is_paused and len(self._outgoing) <= self._low and not self._is_lost:
            self._is_paused = False
            self._soon(self._protocol.resume_writing)
