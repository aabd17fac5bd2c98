"""Idempotent repeats at a real SYNC_MASTER are answered by what is true of their record."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ha_files import LogFiles
from support.ha_load import Connection, Load, ha_status, send_command
from support.ha_pair import Pair
from support.processes import wait_until
from twinlog.remoting.command import Request

TOPIC = "T"
SEND_OK, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT = 0, 11, 12


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, twinlogHADialect="twin")
    yield pair
    pair.kill()


@pytest.fixture
def peer(pair: Pair) -> Iterator[Connection]:
    pair.start_master(slaveTimeout=1000)
    connection = Connection(pair.master.address)
    yield connection
    connection.close()


def once(connection: Connection, number: int) -> int:
    body = b"number %d" % number
    return connection.send(send_command(body, topic=TOPIC, TWINLOG_ONCE=f"p,0,{number},0,{TOPIC}"))


def answer_of(connection: Connection, opaque: int) -> Request:
    while True:
        answer = connection.receive()
        if answer.opaque == opaque:
            return answer


def silent_slave(pair: Pair) -> socket.socket:
    """A slave that joins with an empty log and never acknowledges a byte."""
    slave = socket.create_connection(("127.0.0.1", pair.master.ha_port))
    slave.sendall(struct.pack(">q", 0))

    def has_joined() -> bool:
        replicas = ha_status(pair.master.address)["haConnectionInfo"]
        return any(replica["twinlog"]["state"] == "TRANSFER" for replica in replicas)

    wait_until(has_joined, "the silent slave has joined")
    return slave


def test_a_repeat_behind_newer_sends_that_wait_is_not_confirmed(
    pair: Pair, peer: Connection
) -> None:
    with silent_slave(pair):
        first = once(peer, 0)
        peer.send(send_command(b"ordinary", topic=TOPIC))
        again = once(peer, 0)
        answers = [peer.receive() for _ in range(3)]
    codes = {answer.opaque: answer.code for answer in answers}
    assert codes[first] == codes[again] == FLUSH_SLAVE_TIMEOUT


def test_a_repeat_whose_place_is_forgotten_is_not_confirmed_either(
    pair: Pair, peer: Connection
) -> None:
    with silent_slave(pair):
        for number in range(70):  # Each a run of its own, and 64 are kept.
            once(peer, number)
            peer.send(send_command(b"ordinary", topic=TOPIC))
        assert {peer.receive().code for _ in range(140)} == {FLUSH_SLAVE_TIMEOUT}
        answer = answer_of(peer, once(peer, 0))
        assert answer.code == FLUSH_SLAVE_TIMEOUT
        assert answer.ext()["queueOffset"] == "-1"


def test_repeats_at_a_healthy_pair_under_load_are_all_confirmed(pair: Pair) -> None:
    pair.start()
    load = Load(pair.master.address)
    connection = Connection(pair.master.address)
    try:
        assert answer_of(connection, once(connection, 0)).code == SEND_OK
        load.start()
        wait_until(lambda: len(load.acked) > 50, "the load has begun")
        for _ in range(200):
            once(connection, 0)
        answers = [connection.receive() for _ in range(200)]
    finally:
        load.finish()
        connection.close()
    assert {(answer.code, answer.remark) for answer in answers} == {(SEND_OK, None)}
    assert {answer.ext()["queueOffset"] for answer in answers} == {"0"}
    assert load.count(SEND_OK) == len(load.acked)


def test_what_was_confirmed_is_confirmed_also_when_the_slave_has_left(pair: Pair) -> None:
    pair.start()
    connection = Connection(pair.master.address)
    try:
        assert answer_of(connection, once(connection, 0)).code == SEND_OK
        pair.slave.kill()
        wait_until(
            lambda: not ha_status(pair.master.address)["haConnectionInfo"], "the slave has left"
        )
        assert answer_of(connection, once(connection, 1)).code == SLAVE_NOT_AVAILABLE
        assert answer_of(connection, once(connection, 0)).code == SEND_OK
        assert answer_of(connection, once(connection, 1)).code == SLAVE_NOT_AVAILABLE
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("slave", "code"),
    [
        ({"twinlogHADialect": "classic"}, FLUSH_SLAVE_TIMEOUT),
        ({"syncFromLastFile": "true"}, FLUSH_SLAVE_TIMEOUT),
        ({}, SEND_OK),
    ],
    ids=str,
)
def test_what_a_slave_began_behind_is_not_confirmed_by_it(
    pair: Pair, peer: Connection, slave: dict[str, object], code: int
) -> None:
    """An empty slave may get the last file of the log only: it has nothing of those before."""
    assert answer_of(peer, once(peer, 0)).code == SLAVE_NOT_AVAILABLE
    filler = b"." * 40_000
    for _ in range(8):
        answer_of(peer, peer.send(send_command(filler, topic=TOPIC)))
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}", **slave)
    pair.wait_caught_up()
    has_first = b"number 0" in LogFiles(pair.slave.store).bodies.values()
    assert has_first == (code == SEND_OK)
    assert answer_of(peer, once(peer, 1)).code == SEND_OK
    answer = answer_of(peer, once(peer, 0))
    assert answer.code == code, answer.remark
    assert answer.ext()["queueOffset"] == "0"
    if code:
        assert "began empty" in (answer.remark or "")
