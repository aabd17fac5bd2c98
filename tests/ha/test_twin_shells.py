"""Shells of the twin dialect: who is counted, who is let in, what a stuck peer costs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from support.ha_fake_store import FakeLog
from support.ha_world import Node, RawPeer, World, eventually
from support.twin_cores import master_facts
from twinlog.ha.connection import HAConnection
from twinlog.ha.sender import SlaveJoined
from twinlog.ha.shell import LINGER_MS
from twinlog.ha.status import runtime_info
from twinlog.ha.twin import wire
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.ha.twin.sender import TwinSender
from twinlog.ha.twin.wire import FrameParser, FrameType, Hello
from twinlog.remoting import fastjson
from twinlog.runtime.address_set import AddressSet
from twinlog.runtime.limits import HA_UNPROVED_PER_HOST_MAX
from twinlog.testing.sim_clock import SimClock

SIZE = 2500


def data(size: int) -> bytes:
    return bytes(i % 251 for i in range(size))


def identity(**values: Any) -> TwinIdentity:
    defaults = {
        "cluster": "c", "group": "g", "replica_id": 0, "store_id": "s", "replica_uid": "u0",
        "new_nonce": lambda: "nonce", "adopt_store_id": lambda _: None,
        "classic_peers": AddressSet("10.0.0.0/27"),
    }  # fmt: skip
    return TwinIdentity(**{**defaults, **values})  # type: ignore[arg-type]


def hello(**values: Any) -> bytes:
    defaults = {
        "version": 1, "version_min": 1, "cluster": "c", "group": "g", "replica_id": 1,
        "replica_uid": "u1", "store_id": "", "segment_size": 1000, "log_min": 0, "log_end": 0,
    }  # fmt: skip
    message = Hello(**{**defaults, **values})
    return wire.MAGIC + wire.encode_json(FrameType.HELLO, message)


def frames(peer: RawPeer) -> list[int]:
    return [frame.frame_type for frame in FrameParser(wire.PAYLOAD_SIZE_MAX).feed(peer.data)]


def errors(peer: RawPeer) -> list[str]:
    found = FrameParser(wire.PAYLOAD_SIZE_MAX).feed(peer.data)
    return [
        msgspec.json.decode(frame.payload, type=wire.Error).reason
        for frame in found
        if frame.frame_type == FrameType.ERROR
    ]


def states(node: Node) -> list[str]:
    return [replica.state for replica in node.ha.status().replicas]


def test_who_has_proved_nothing_takes_no_replica_id() -> None:
    """Without the secret one can neither hold an id nor throw its owner out."""
    world = World()
    master = world.master(FakeLog(data=data(SIZE)), twin=identity(secret="right"))

    async def main() -> None:
        await asyncio.sleep(0.1)
        impostor = await world.dial(master, "impostor")
        impostor.transport.write(hello(has_secret=True, replica_uid="another"))
        await eventually(lambda: FrameType.CHALLENGE in frames(impostor))
        twin = identity(secret="right", replica_id=1, replica_uid="u1", store_id="")
        slave = world.slave(FakeLog(), master, twin=twin)
        await eventually(lambda: slave.log.max_offset == SIZE)
        second = await world.dial(master, "second impostor")
        second.transport.write(hello(has_secret=True, replica_uid="u1"))
        await asyncio.sleep(1)
        assert "TRANSFER" in states(master)
        second.transport.write(wire.encode_json(FrameType.PROOF, wire.Proof(proof="00")))
        await eventually(lambda: errors(second))
        assert "secret" in errors(second)[0]
        assert "TRANSFER" in states(master)

    world.run(main())


def test_who_drips_bytes_before_a_proof_is_not_held_for_ever() -> None:
    world = World()
    master = world.master(FakeLog(), housekeeping_interval_ms=4000, twin=identity(secret="right"))

    async def main() -> None:
        await asyncio.sleep(0.1)
        peer = await world.dial(master)
        peer.transport.write(wire.MAGIC)
        for byte in hello(has_secret=True)[8:28]:
            if not peer.is_open:
                break
            peer.transport.write(bytes((byte,)))
            await asyncio.sleep(1)
        assert not peer.is_open
        assert "no proof within" in errors(peer)[0]

    world.run(main())


def test_an_empty_master_stops_its_slaves_and_says_so() -> None:
    """Whatever the policy: nothing is moved, nothing is cut, and no put is confirmed."""
    for reseed in ("tail", "all", "manual"):
        world = World()
        master = world.master(FakeLog(), twin=identity(store_id="drawn again"))
        asked: list[str] = []
        twin = identity(replica_id=1, replica_uid="u1", reseed=reseed)
        slave = world.slave(FakeLog(data=data(SIZE)), master, twin=twin)
        slave.ha.client._reseed_all = asked.append  # type: ignore[union-attr]

        async def main(master: Node = master, slave: Node = slave) -> None:
            assert slave.ha.client is not None
            await eventually(lambda: slave.ha.client.status().damage)  # type: ignore[union-attr]
            client = slave.ha.client.status()
            assert "the master's log is empty" in client.damage
            assert client.state == "SUSPEND"
            assert slave.log.max_offset == SIZE
            assert "the master's log is empty" in master.ha.status().departed[-1].reason
            _, remark = master.ha.check_sync(1)
            assert "no slave connected since" in remark
            assert f"the slave has [0, {SIZE})" in remark
            dials = slave.ha.client.connect_count
            await asyncio.sleep(60)
            assert slave.ha.client.connect_count == dials, "it stays"

        world.run(main())
        assert asked == []


def test_a_slave_that_was_refused_asks_again_when_its_master_says_that_it_is_back() -> None:
    """A master that had been started with an empty disk was put right under the same address, and
    its slave stayed away until it was restarted itself."""
    world = World()
    master = world.master(FakeLog(), twin=identity(store_id="drawn again"))
    twin = identity(replica_id=1, replica_uid="u1")
    slave = world.slave(FakeLog(data=data(SIZE)), master, twin=twin)

    async def main() -> None:
        client = slave.ha.client
        assert client is not None
        await eventually(lambda: client.status().damage)
        for dials in (2, 3):
            slave.ha.master_is_back(client.master_address or "")
            assert client.status().damage == ""
            await eventually(lambda: client.status().damage)
            assert client.connect_count == dials, "refused again, it stays again"
            assert client.status().state == "SUSPEND"

    world.run(main())


def test_one_address_cannot_take_all_places_before_it_has_said_who_it_is() -> None:
    world = World()
    master = world.master(FakeLog(data=data(SIZE)), twin=identity(secret="right"))

    async def main() -> None:
        await asyncio.sleep(0.1)
        peers = [await world.dial(master, "crowd") for _ in range(HA_UNPROVED_PER_HOST_MAX + 5)]
        peers[0].transport.write(hello(has_secret=True, replica_uid="another"))
        await eventually(lambda: sum(peer.is_open for peer in peers) == HA_UNPROVED_PER_HOST_MAX)
        reasons = {departed.reason for departed in master.ha.status().departed}
        assert len(reasons) == 1
        assert "have not said who they are" in reasons.pop()
        twin = identity(secret="right", replica_id=1, replica_uid="u1", store_id="")
        slave = world.slave(FakeLog(), master, twin=twin)
        await eventually(lambda: slave.log.max_offset == SIZE)

    world.run(main())


def test_a_crowd_at_its_address_does_not_keep_a_slave_out() -> None:
    """Each that is turned away comes back at once; every other one begins a hello."""
    world = World()
    master = world.master(FakeLog(), twin=identity(secret="right"))

    async def stay(words: bytes) -> None:
        while True:
            peer = await world.dial(master, "slave")
            peer.transport.write(words)
            while peer.is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def main() -> None:
        await asyncio.sleep(0.1)
        twin = identity(secret="right", replica_id=1, replica_uid="u1", store_id="")
        slave = world.slave(FakeLog(), master, twin=twin)
        await eventually(lambda: any(each.core.is_proved for each in master.ha.connections))
        crowd = [asyncio.ensure_future(stay(wire.MAGIC[: n % 2])) for n in range(40)]
        await asyncio.sleep(1)
        (link,) = (each for each in master.ha.connections if each.core.is_proved)
        link.close("the network failed")
        master.log.put(data(SIZE))
        await eventually(lambda: slave.log.max_offset == SIZE)
        for one in crowd:
            one.cancel()

    world.run(main())


def test_a_slave_elsewhere_needs_credentials() -> None:
    """Neither secret nor TLS: served where a classic slave would be, refused elsewhere."""
    for peers, is_served in ((AddressSet(), False), (AddressSet("10.0.0.2"), True)):
        world = World()
        master = world.master(FakeLog(data=data(SIZE)), twin=identity(classic_peers=peers))
        twin = identity(replica_id=1, replica_uid="u1", store_id="")
        slave = world.slave(FakeLog(), master, twin=twin)

        async def main(
            master: Node = master, slave: Node = slave, is_served: bool = is_served
        ) -> None:
            assert slave.ha.client is not None
            if is_served:
                await eventually(lambda: slave.log.max_offset == SIZE)
                return
            await eventually(lambda: master.ha.status().departed)
            await asyncio.sleep(1)
            assert slave.log.max_offset == 0
            for reason in (
                master.ha.status().departed[-1].reason,
                slave.ha.client.status().last_disconnect_reason,
            ):
                assert "no credentials: set twinlogHASecret on both ends" in reason

        world.run(main())


def test_status_tells_received_from_durable() -> None:
    world = World()
    master = world.master(FakeLog(data=data(SIZE)), twin=identity())

    async def main() -> None:
        await asyncio.sleep(0.1)
        peer = await world.dial(master)
        peer.transport.write(hello(is_durable=True))
        await eventually(lambda: FrameType.DATA in frames(peer))
        peer.transport.write(wire.encode_ack(1000, 600))
        await eventually(lambda: replica(master)["twinlog"]["receivedOffset"] == 1000)
        info = replica(master)
        assert info["twinlog"]["durableOffset"] == info["slaveAckOffset"] == 600
        assert info["twinlog"]["countsDurable"] is True
        assert info["diff"] == SIZE - 600

    world.run(main())


def replica(node: Node) -> dict[str, Any]:
    """The one slave, as request 907 shows it."""
    (info,) = runtime_info(node.ha.status()).ha_connection_info
    return dict(fastjson.loads(fastjson.dumps(info)))


def test_a_slave_that_changed_its_dialect_is_not_counted_twice() -> None:
    """Its old connection is still half open, of either kind."""
    for first, second in (("classic", "twin"), ("twin", "classic")):
        world = World()
        master = world.master(FakeLog(data=data(1000)), in_sync_replicas=3, twin=identity())

        async def main(master: Node = master, world: World = world, order=(first, second)) -> None:
            await asyncio.sleep(0.1)
            for dialect in order:
                peer = await world.dial(master, "the slave")
                if dialect == "classic":
                    peer.report(1000)
                else:
                    peer.transport.write(hello(wants_last_file_only=True))
                    await eventually(lambda peer=peer: FrameType.START in frames(peer))
            await asyncio.sleep(1)
            assert len(master.ha.acks) == 2
            assert master.ha.confirmed.value == 0

        world.run(main())


def test_a_slave_that_connects_again_is_counted_once_and_an_id_used_twice_is_refused() -> None:
    world = World()
    master = world.master(FakeLog(data=data(1000)), in_sync_replicas=3, twin=identity())

    async def main() -> None:
        await asyncio.sleep(0.1)
        peers = []
        for uid in ("u1", "u1", "another"):
            peer = await world.dial(master, f"host {len(peers)}")
            peer.transport.write(hello(replica_uid=uid))
            await eventually(lambda peer=peer: {FrameType.START, FrameType.ERROR} & {*frames(peer)})
            peers.append(peer)
        await asyncio.sleep(0.5)
        assert len(master.ha.acks) == 1
        assert "connected again" in errors(peers[0])[0]
        assert errors(peers[1]) == []
        assert "brokerId 1 is used by another slave" in errors(peers[2])[0]

    world.run(main())


def test_what_retention_deleted_between_two_ticks_ends_the_connection_only() -> None:
    world = World()
    master = world.master(FakeLog(data=data(SIZE)), twin=identity())

    async def main() -> None:
        await asyncio.sleep(0.1)
        peer = await world.dial(master)
        peer.transport.write(hello())
        await eventually(lambda: FrameType.DATA in frames(peer))
        log = master.log
        log.put(b"y" * 3000)
        del log.data[:4000]
        log.start = 4000
        peer.transport.write(wire.encode_resend(0))
        await eventually(lambda: errors(peer))
        assert "the oldest kept is 4000" in errors(peer)[0]
        assert master.tasks.failed is None

    world.run(main())


class StuckTransport(asyncio.Transport):
    """The peer reads nothing: a close waits forever, only an abort ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False
        self.closing = False

    def write(self, data: object) -> None:
        """Kept."""

    def writelines(self, list_of_data: object) -> None:
        """Kept."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No limit here."""

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.is_aborted = True


class Owner:
    confirmed_offset = 0

    def __init__(self) -> None:
        self.calls: list[str] = []

    def twin_hello(self, connection: object) -> None:
        self.calls.append("hello")

    def slave_joined(self, connection: object) -> None:
        self.calls.append(SlaveJoined.__name__)

    def slave_acked(self, connection: object) -> None:
        self.calls.append("acked")

    def connection_closed(self, connection: object) -> None:
        self.calls.append("closed")

    def connection_failed(self, connection: object, error: BaseException) -> None:
        raise error


def test_a_slave_that_reads_nothing_counts_no_more_and_is_dropped() -> None:
    world = World()
    host = world.loop.add_host("master")
    owner, transport = Owner(), StuckTransport()

    async def main() -> None:
        facts = master_facts("c", "g", "s", 1000)
        clock = SimClock(world.loop, host)
        core = TwinSender(facts, 0, SIZE, clock.monotonic_ms(), "n")
        connection = HAConnection(owner, FakeLog(data=data(SIZE)), clock, core)
        connection.connection_made(transport)
        connection.data_received(hello())
        connection.pause_writing()
        assert owner.calls == ["hello", "SlaveJoined"]
        await asyncio.sleep(25)
        connection.tick()
        assert owner.calls[-1] == "closed", "its acknowledgements count no more"
        assert not transport.is_aborted
        await asyncio.sleep(2 * LINGER_MS / 1000)
        assert transport.is_aborted

    world.run(main())
