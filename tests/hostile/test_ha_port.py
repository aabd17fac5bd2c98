"""Strangers at the HA port of a pair with credentials: not a byte of log leaves, none is taken.

First bytes and whole handshakes are generated: random, cut, changed and repeated pieces of what
both dialects and TLS say. Masters are real processes on loopback, which is no credential either;
slaves run on a virtual clock, since they wait between attempts.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import Certificates, make_certificates
from support.ha_fake_store import FakeLog
from support.ha_load import SEND_OK, Connection, ha_status, send_command
from support.ha_pair import Pair
from support.ha_world import RawMaster, RawPeer, World, eventually
from support.processes import wait_until
from twinlog.ha.twin import wire
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.ha.twin.wire import FrameType
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record

BODY = b"NEVER-LEAVES-WITHOUT-A-PROOF"
SECRET = "known to two"
CASE_COUNT = 160  # For each kind of credentials.
AT_ONCE = 8
SLAVE_NOT_AVAILABLE = 11
HELLO = {
    "version": 1, "version_min": 1, "cluster": "DefaultCluster", "group": "broker-a",
    "replica_id": 1, "replica_uid": "u1", "store_id": "", "segment_size": 256 * 1024,
    "log_min": 0, "log_end": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def credentials(kind: str, certificates: Certificates) -> dict[str, object]:
    secret: dict[str, object] = {"twinlogHASecret": SECRET}
    tls: dict[str, object] = {"twinlogHATLS": "true"}
    for end in ("server", "client"):
        tls[f"tls.{end}.certPath"] = certificates.certificate
        tls[f"tls.{end}.keyPath"] = certificates.key
        tls[f"tls.{end}.trustCertPath"] = certificates.authority
    return {"secret": secret, "TLS": tls, "both": {**secret, **tls}}[kind]


@pytest.fixture(params=["secret", "TLS", "both"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, certificates: Certificates
) -> Iterator[Pair]:
    keys = credentials(request.param, certificates)
    pair = Pair(tmp_path, twinlogHADialect="twin", haHousekeepingInterval=3000, **keys)
    pair.start_master()
    yield pair
    pair.kill()


# What strangers say.


def client_hello() -> bytes:
    """The first bytes of a TLS client without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def frame(rng: random.Random) -> bytes:
    """A whole frame of the twin dialect that a slave might send, with any content."""
    kind = rng.choice(list(FrameType))
    if kind is FrameType.PROOF:
        return wire.encode_json(kind, wire.Proof(proof=rng.choice(("", "00", "f" * 64))))
    if kind is FrameType.ACK:
        return wire.encode_frame(
            kind, wire.ACK.pack(rng.randrange(1 << 20), rng.randrange(1 << 20))
        )
    return wire.encode_frame(kind, rng.choice((b"{}", b"", rng.randbytes(40))))


def hello(rng: random.Random) -> bytes:
    values = {**HELLO, "has_secret": rng.random() < 0.7, "nonce": rng.choice(("", "n", "0" * 32))}
    if rng.random() < 0.3:
        values[rng.choice(("log_end", "log_min", "replica_id"))] = rng.choice((-1, 0, 1, 2**62))
    return wire.MAGIC + wire.encode_json(FrameType.HELLO, wire.Hello(**values))  # type: ignore[arg-type]


def report(rng: random.Random) -> bytes:
    return struct.pack(">q", rng.choice((0, 0, 1, 100, 4096, -1, 2**40)))


def words(rng: random.Random) -> bytes:
    """One stranger's bytes: pieces that make sense, then damaged in one of many ways."""
    pieces = {
        "report": report, "hello": hello, "frame": frame, "tls": lambda _: client_hello(),
        "magic": lambda _: wire.MAGIC, "noise": lambda rng: rng.randbytes(rng.randrange(1, 64)),
    }  # fmt: skip
    first = pieces[rng.choice(list(pieces))](rng)
    data = first + b"".join(
        pieces[rng.choice(("report", "frame", "noise"))](rng) for _ in range(rng.randrange(4))
    )
    damage = rng.randrange(5)
    if damage == 0:
        data = data[: rng.randrange(1, len(data) + 1)]
    elif damage == 1:
        position = rng.randrange(len(data))
        data = data[:position] + bytes((rng.randrange(256),)) + data[position + 1 :]
    elif damage == 2:
        data += data
    return data


def test_generated_strangers_get_nothing_from_a_master_with_credentials(pair: Pair) -> None:
    rng = random.Random(pair.config.get("twinlogHASecret", "TLS"))
    service = Connection(pair.master.address)
    send = send_command(BODY)
    service.send(send)
    assert service.receive().code == SLAVE_NOT_AVAILABLE
    for _ in range(CASE_COUNT // AT_ONCE):
        said = [words(rng) for _ in range(AT_ONCE)]
        peers = [socket.create_connection(("127.0.0.1", pair.master.ha_port)) for _ in said]
        for peer, data in zip(peers, said, strict=True):
            peer.sendall(data)
        # Each send wakes whoever would be sent the log; the second answer comes behind all that.
        for _ in range(2):
            service.send(send_command(BODY))
            assert service.receive().code == SLAVE_NOT_AVAILABLE, "a stranger counts as a slave"
        for peer, data in zip(peers, said, strict=True):
            got = _received(peer)
            assert BODY not in got, f"the log was given to {data!r}"
            assert len(got) < 4096
            peer.close()
    service.close()
    wait_until(lambda: not ha_status(pair.master.address)["haConnectionInfo"], "all are gone")
    assert "Traceback" not in pair.master.output()
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}")
    pair.wait_in_sync()
    pair.wait_caught_up()


def _received(peer: socket.socket) -> bytes:
    peer.setblocking(False)
    data = b""
    try:
        while piece := peer.recv(65536):
            data += piece
    except (BlockingIOError, ConnectionError):
        pass
    return data


def test_a_classic_slave_is_served_from_a_listed_address_only(pair: Pair) -> None:
    """Loopback is none, unless it is listed."""
    service = Connection(pair.master.address)
    service.send(send_command(BODY))
    assert service.receive().code == SLAVE_NOT_AVAILABLE
    service.close()
    with socket.create_connection(("127.0.0.1", pair.master.ha_port)) as peer:
        peer.sendall(bytes(8))
        peer.settimeout(30)
        assert peer.recv(100) == b""
    assert "not in twinlogHAClassicPeers" in pair.master.output()
    pair.master.stop()
    pair.master = pair.master.restart(twinlogHAClassicPeers="10.9.8.7, 127.0.0.0/8")
    with socket.create_connection(("127.0.0.1", pair.master.ha_port)) as peer:
        peer.sendall(bytes(8))
        peer.settimeout(30)
        assert BODY in peer.recv(4096)


@pytest.mark.parametrize("peers", ["", "127.0.0.1"])
def test_a_slave_with_a_secret_takes_the_log_of_a_listed_classic_master_only(
    peers: str, tmp_path: Path
) -> None:
    pair = Pair(tmp_path)  # Both speak classic; the master would serve anybody of this machine.
    try:
        pair.start_master()
        address = f"127.0.0.1:{pair.master.ha_port}"
        pair.start_slave(address, twinlogHASecret=SECRET, twinlogHAClassicPeers=peers)
        if peers:
            pair.wait_in_sync()
        else:
            wait_until(lambda: "cannot prove itself" in pair.slave.output(), "the slave says why")
        connection = Connection(pair.master.address)
        connection.send(send_command(BODY))
        assert connection.receive().code == (SEND_OK if peers else SLAVE_NOT_AVAILABLE)
        connection.close()
        end = ha_status(pair.slave.address)["haClientRuntimeInfo"]["maxOffset"]
        assert (end > 0) == bool(peers)
    finally:
        pair.kill()


# What a false master says to a slave that dials it.


def forged(rng: random.Random) -> bytes:
    """Pieces of both dialects with records that look right at offset 0."""
    record = encode_record(PutMessage("T", 0, b"forged"), 0, 0, 1)
    challenge = wire.Challenge(version=1, nonce="n", proof=rng.choice(("", "0" * 64)))
    choices = [
        struct.pack(">qi", 0, len(record)) + record,
        wire.encode_json(FrameType.CHALLENGE, challenge),
        wire.encode_json(FrameType.PROOF, wire.Proof(proof=rng.choice(("", "0" * 64)))),
        wire.encode_frame(FrameType.START, b'{"offset":0}'),
        wire.encode_frame(FrameType.TRUNCATE, b'{"offset":0}'),
        wire.encode_frame(FrameType.DATA, wire.DATA_PREFIX.pack(0, len(record), 0) + record),
        wire.encode_frame(rng.choice(list(FrameType)), rng.randbytes(rng.randrange(40))),
        rng.randbytes(rng.randrange(1, 100)),
    ]
    data = b"".join(rng.choice(choices) for _ in range(rng.randrange(1, 6)))
    if rng.random() < 0.3:
        data = data[: rng.randrange(1, len(data) + 1)]
    return data


@pytest.mark.parametrize("seed", range(4))
def test_generated_masters_give_nothing_to_a_slave_with_a_secret(seed: int) -> None:
    rng = random.Random(seed)
    world = World(seed + 1)
    own = encode_record(PutMessage("T", 0, b"own"), 0, 0, 1)

    def speak(peer: RawPeer) -> None:
        peer.transport.write(forged(rng))
        world.loop.call_later(rng.choice((0.01, 0.5)), peer.transport.close)

    master = RawMaster(world.loop, on_open=speak)
    logs = [FakeLog(), FakeLog(data=own)]
    for number, log in enumerate(logs, 1):
        twin = TwinIdentity(
            cluster="c", group="g", replica_id=number, store_id="s", replica_uid=f"u{number}",
            new_nonce=lambda: "nonce", adopt_store_id=lambda _: None, secret="right",
        )  # fmt: skip
        world.slave(log, master, name=f"slave{number}", twin=twin)

    async def main() -> None:
        await eventually(lambda: len(master.peers) >= 60, within_s=1000)
        assert [log.max_offset for log in logs] == [0, len(own)], "a false master changed the log"
        assert logs[1].read(0, len(own)) == own

    world.run(main())
