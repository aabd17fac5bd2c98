"""Peers that break the protocol: each costs its own connection and one line of log."""

from __future__ import annotations

import random
import struct

import pytest

from support.hostile_target import Target
from support.processes import wait_until
from support.raw_peer import RawPeer, frame, request
from twinlog.remoting.framing import HEADER_SIZE_MAX

BINARY = struct.pack(">hbhii", 9999, 0, 407, 1, 0)
BROKEN = {
    "negative length": struct.pack(">iI", -1, 2) + b"{}",
    "most negative length": struct.pack(">iI", -(2**31), 2) + b"{}",
    "giant length": struct.pack(">iI", 2**31 - 1, 2) + b"{}",
    "one byte above the limit": struct.pack(">iI", 16 * 1024 * 1024 - 3, 2) + b"{}",
    "no room for the type": struct.pack(">iI", 3, 0) + b"{}",
    "header beyond the frame": struct.pack(">iI", 10, 100) + b"{}",
    "header above the limit": struct.pack(">iI", 15_000_000, HEADER_SIZE_MAX + 1),
    "unknown serialisation": frame(b"{}", kind=2),
    "text of another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS where there is none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "empty header": frame(b""),
    "not JSON": frame(b"{code:"),
    "not an object": frame(b"[1,2,3]"),
    "not UTF-8": frame(b'{"code":9999,"remark":"\xff\xfe"}'),
    "a code that is no number": frame(b'{"code":"many"}'),
    "a code beyond 32 bits": frame(b'{"code":99999999999}'),
    "deep JSON": frame(b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "deep JSON without end": frame(b'{"x":' * 100_000),
    "short binary header": frame(b"\0" * 10, kind=1),
    "binary remark beyond the header": frame(BINARY + struct.pack(">ii", 1000, 0), kind=1),
    "binary ext of negative size": frame(BINARY + struct.pack(">ii", 0, -1), kind=1),
    "binary ext not UTF-8": frame(
        BINARY + struct.pack(">iih1si2s", 0, 9, 1, b"k", 2, b"\xff\xff"), kind=1
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_frame_costs_its_connection_and_one_line(target: Target, name: str) -> None:
    with RawPeer(target.port) as peer, RawPeer(target.port) as neighbour:
        assert neighbour.ask().code == 3
        peer.send(request() + BROKEN[name])
        before = peer.wait_closed()
        wait_until(lambda: target.lines_about(peer.name), f"a line about {name}")
        assert neighbour.ask().code == 3, "the neighbour's connection lives"
    lines = target.lines_about(peer.name)
    assert len(lines) == 1, lines
    assert "reason=" in lines[0]
    assert before[8:].startswith(b'{"code":3,'), "what came before the broken frame is answered"
    target.check_growth()


def test_tls_hello_as_the_first_byte_is_refused_with_one_line(target: Target) -> None:
    with RawPeer(target.port) as peer:
        peer.send(b"\x16\x03\x01\x02\x00")
        peer.wait_closed()
        wait_until(lambda: target.lines_about(peer.name), "a line about it")
    (line,) = target.lines_about(peer.name)
    assert "TLS is not offered" in line


@pytest.mark.parametrize(
    "ext", [b"[1]", b'"x"', b'{"topic":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"t":"\xff"}']
)
def test_broken_ext_fields_cost_the_connection_when_they_are_read(
    target: Target, ext: bytes
) -> None:
    code = 105 if target.process.name.endswith("namesrv") else 14
    with RawPeer(target.port) as peer:
        peer.send(frame(b'{"code":%d,"extFields":%b}' % (code, ext)))
        assert peer.wait_closed() == b""
        wait_until(lambda: target.lines_about(peer.name), "a line about it")
    assert len(target.lines_about(peer.name)) == 1
    target.check_growth()


def test_request_one_byte_at_a_time(target: Target) -> None:
    with RawPeer(target.port) as peer:
        for byte in request(opaque=5):
            peer.send(bytes((byte,)))
        assert peer.read_answer().opaque == 5


@pytest.mark.parametrize("seed", range(3))
def test_requests_in_random_cuts(target: Target, seed: int) -> None:
    numbers = random.Random(seed)
    stream = b"".join(
        request(body=bytes(numbers.randrange(3000)), opaque=opaque) for opaque in range(300)
    )
    with RawPeer(target.port) as peer:
        position = 0
        while position < len(stream):
            size = numbers.choice((1, 2, 5, 8, 100, 1000, 20_000, 100_000))
            peer.send(stream[position : position + size])
            position += size
        assert [peer.read_answer().opaque for _ in range(300)] == list(range(300))


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes(target: Target, seed: int) -> None:
    numbers = random.Random(seed)
    for _ in range(50):
        with RawPeer(target.port) as peer:
            head = struct.pack(">iI", numbers.randrange(4, 60), numbers.randrange(0, 40))
            peer.send(head + numbers.randbytes(100))
    target.check_growth()


def test_frames_that_never_become_complete_take_no_more_than_their_room(target: Target) -> None:
    """64 peers announce 15 MiB each and send what is taken: together some 16 MiB are, not 960."""
    opening = struct.pack(">iI", 15 * 1024 * 1024, 2) + b"{}"
    chunk = bytes(256 * 1024)
    peers = [RawPeer(target.port) for _ in range(64)]
    for peer in peers:
        peer.send(opening)
        peer.socket.setblocking(False)
    for _ in range(60):
        for peer in peers:
            try:
                peer.socket.send(chunk)
            except BlockingIOError:
                continue
    target.check_others_are_served()
    target.check_growth()
    for peer in peers:
        peer.close()
    target.check_memory_comes_back()


def test_largest_frame_is_served(target: Target) -> None:
    with RawPeer(target.port) as peer:
        peer.send(request(body=bytes(15 * 1024 * 1024), opaque=3))
        assert peer.read_answer().opaque == 3
    target.check_memory_comes_back()
