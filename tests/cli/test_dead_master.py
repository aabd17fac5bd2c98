"""When the master is dead: what is left answers, says so, and one command starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.command_line import TWINLOG, LocalTwins, process
from support.ha_load import ha_status
from support.processes import wait_until


@pytest.fixture(scope="module")
def filled(cluster: LocalTwins) -> LocalTwins:
    """A cluster with a topic, a group and its offsets, and a slave that has them."""
    cluster.twinlog("topic", "create", "orders", "-q", "2").ok()
    cluster.twinlog("topic", "produce", "orders", "one", "two", "three").ok()
    cluster.twinlog("topic", "consume", "orders", "-g", "billing", "-n", "2", "--commit")
    cluster.twinlog("group", "create", "billing")
    wait_until(lambda: cluster.twinlog("ha", "status").code == 0, "the slave has everything")
    wait_until(
        lambda: (
            cluster.twinlog("ha", "status", "-o", "json").json["metadata"][0]["behind_records"] == 0
        ),
        "the slave has the tables",
    )
    status = cluster.twinlog("ha", "status", "-o", "json").json
    cluster.end = status["replicas"][0]["offset"]  # type: ignore[attr-defined]
    return cluster


@pytest.fixture
def dead(filled: LocalTwins) -> LocalTwins:
    """Its master was killed."""
    if filled.is_alive("broker-a-0"):
        os.kill(filled.pid("broker-a-0"), signal.SIGKILL)
        wait_until(
            lambda: "no master is registered" in filled.twinlog("ha", "status").out,
            "the name server has dropped the master",
        )
    return filled


def test_ha_status_shows_what_is_left(dead: LocalTwins) -> None:
    found = dead.twinlog("ha", "status")
    assert found.code == 10
    first = found.out.splitlines()[0]
    assert "no master is registered, 1 slave(s) serve reads, last seen " in first
    assert "twinlog ha promote broker-a --dry-run" in found.out
    data = dead.twinlog("ha", "status", "-o", "json").json
    (replica,) = data["replicas"]
    assert replica["address"] == dead.address("broker-a-1")
    assert replica["offset"] >= dead.end  # type: ignore[attr-defined]
    assert replica["missing_bytes"] == 0
    assert replica["master_seen_ms"] > 1_600_000_000_000
    assert "left alone, 0 bytes known missing" in replica["state"]
    assert data["findings"][0]["code"] == "no_master"


def test_when_the_master_was_seen_stays_when_it_was(dead: LocalTwins) -> None:
    """The slave dials again and again; that is not the master."""

    def seen_ms() -> int:
        (replica,) = dead.twinlog("ha", "status", "-o", "json").json["replicas"]
        return int(replica["master_seen_ms"])

    def tried_ms() -> int:
        link = ha_status(dead.address("broker-a-1"))["haClientRuntimeInfo"]["twinlog"]
        return int(link["lastDisconnectMs"])

    first, tried = seen_ms(), tried_ms()
    wait_until(lambda: tried_ms() != tried, "the slave has dialled once more")
    assert seen_ms() == first


def test_the_slave_says_of_itself_that_it_is_alone(dead: LocalTwins) -> None:
    health = dead.own_health("broker-a-1")
    assert (health["ready"], health["healthy"]) == (True, False), "it serves reads"
    assert [finding["code"] for finding in health["findings"]] == ["slave_not_linked"]
    assert "has no connection to its master" in health["findings"][0]["text"]


@pytest.mark.parametrize(
    "words", [("group", "list"), ("topic", "stats", "orders"), ("cluster", "clients"),
              ("group", "progress", "billing")]
)  # fmt: skip
def test_the_slave_answers_and_says_so(dead: LocalTwins, words: tuple[str, ...]) -> None:
    found = dead.twinlog(*words)
    assert found.code == 0, found.err
    said = f"broker-a has no master: this is what its slave {dead.address('broker-a-1')} knows"
    assert said in found.out
    script = dead.twinlog(*words, "-o", "json")
    assert script.code == 0
    assert script.json is not None
    assert said in script.err


def test_topic_stats_of_the_slave_are_the_topic(dead: LocalTwins) -> None:
    assert dead.twinlog("topic", "stats", "orders", "-o", "json").json["messages"] == 3


def test_broker_list_is_not_complete(dead: LocalTwins) -> None:
    found = dead.twinlog("broker", "list")
    assert found.code == 10
    assert "broker-a has no master" in found.err
    assert dead.address("broker-a-1") in found.out
    assert dead.twinlog("cluster", "health").code == 10
    assert dead.twinlog("doctor").code == 10


def test_up_starts_what_is_dead_and_restart_restarts(dead: LocalTwins) -> None:
    found = dead.up()
    assert found.code == 0, found.err
    assert "started again: broker-a-0" in found.out
    assert dead.twinlog("ha", "status").code == 0
    assert "started again" not in dead.up().out
    before = dead.pid("broker-a-1")
    again = process("restart", "broker-a-1", "--dir", dead.directory)
    assert again.code == 0, again.err
    assert dead.pid("broker-a-1") != before
    os.kill(dead.pid("broker-a-1"), signal.SIGKILL)
    again = process("restart", "broker-a-1", "--dir", dead.directory)
    assert again.code == 0, again.err
    assert "runs again" in again.out
    assert process("restart", "nobody", "--dir", dead.directory).code == 3
    assert dead.twinlog("broker", "list").code == 0


def test_a_restart_that_is_interrupted_says_how_to_end_it(filled: LocalTwins) -> None:
    """A broker that cannot stop is the moment between its stop and its start."""
    filled.up().ok()
    stuck = filled.pid("broker-a-1")
    os.kill(stuck, signal.SIGSTOP)
    words = [str(TWINLOG), "restart", "broker-a-1", "--dir", str(filled.directory)]
    command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_asked_to_end(stuck), "the broker is asked to stop")
        command.send_signal(signal.SIGINT)
        said = command.communicate(timeout=60)[1]
    finally:
        os.kill(stuck, signal.SIGCONT)
    assert command.returncode == 130
    told, advice = said.strip().split("; start it again with: ")
    assert told == "twinlog: interrupted: broker-a-1 was told to stop"
    assert advice == f"twinlog restart broker-a-1 --dir {filled.directory}"
    wait_until(lambda: not filled.is_alive("broker-a-1"), "the broker has stopped")
    process(*advice.split()[1:]).ok()
    assert filled.twinlog("ha", "status").code == 0


def is_asked_to_end(pid: int) -> bool:
    """SIGTERM waits for it."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = int(next(line for line in status.splitlines() if "ShdPnd" in line).split()[1], 16)
    return bool(pending & 1 << signal.SIGTERM - 1)
