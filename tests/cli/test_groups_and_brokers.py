"""`twinlog group|cluster|broker|ha` against a real cluster, also with one broker down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from support.command_line import LocalTwins, Result, process
from support.processes import wait_until
from twinlog.runtime.compiled import code_tier


@pytest.fixture(scope="module")
def billing(cluster: LocalTwins) -> str:
    """A group that has consumed all of a topic with ten messages."""
    cluster.mend()  # Made before what each test begins with.
    cluster.twinlog("topic", "create", "bills", "-q", "2").ok()
    cluster.twinlog("topic", "produce", "bills", "-q", stdin=b"x\n" * 10).ok()
    cluster.twinlog("group", "create", "billing", "--retry-max", "3").ok()
    cluster.twinlog("topic", "consume", "bills", "--group", "billing", "-c", "10").ok()
    return "billing"


@pytest.fixture(scope="module")
def live(cluster: LocalTwins) -> str:
    """The topic of a `member`."""
    cluster.mend()
    cluster.twinlog("topic", "create", "live", "-q", "1").ok()
    return "live"


def test_group_list_and_show(cluster: LocalTwins, billing: str) -> None:
    listed = cluster.twinlog("group", "list").ok()
    assert listed.rows[0] == ["GROUP", "MEMBERS", "LAG", "TPS", "TOPICS"]
    row = next(row for row in listed.rows if row[0] == billing)
    assert (row[1], row[2], row[4]) == ("0", "0", "bills")
    assert billing in cluster.twinlog("group", "list", "-o", "name").ok().out.split()
    shown = cluster.twinlog("group", "show", billing, "-o", "json").ok().json
    assert (shown["retry_max"], shown["members"], shown["lag"]) == (3, 0, 0)


def test_progress_has_a_row_for_each_queue(cluster: LocalTwins, billing: str) -> None:
    shown = cluster.twinlog("group", "progress", billing).ok()
    heads = ["TOPIC", "BROKER", "QUEUE", "END", "COMMITTED", "LAG", "LAST CONSUMED"]
    assert heads in shown.rows
    data = cluster.twinlog("group", "progress", billing, "-o", "json").ok().json
    assert (data["group"], data["lag"]) == (billing, 0)
    assert sum(queue["broker_offset"] for queue in data["queues"]) == 10


def test_reset_is_a_dry_run_unless_told(cluster: LocalTwins, billing: str) -> None:
    dry = cluster.twinlog("group", "reset", billing, "--topic", "bills", "--to", "start").ok()
    assert dry.rows[0] == ["TOPIC", "BROKER", "QUEUE", "BEFORE", "AFTER", "CHANGE"]
    assert "Dry run: nothing was changed." in dry.out
    assert cluster.twinlog("group", "progress", billing, "-o", "json").json["lag"] == 0
    cluster.twinlog("group", "reset", billing, "--topic", "bills", "--to", "start", "--execute")
    assert cluster.twinlog("group", "progress", billing, "-o", "json").json["lag"] == 10
    cluster.twinlog("group", "clone", billing, "heir", "--topic", "bills", "--execute").ok()
    cluster.twinlog("group", "skip", billing, "--topic", "bills", "--execute").ok()
    assert cluster.twinlog("group", "progress", billing, "-o", "json").json["lag"] == 0
    at = ("--offset", "1", "--queue", "broker-a/0", "--execute")
    moved = cluster.twinlog("group", "reset", billing, "--topic", "bills", *at, "-o", "json")
    assert [row["after"] for row in moved.ok().json] == [1]
    assert cluster.twinlog("group", "reset", billing, "--topic", "bills").code == 2
    cluster.twinlog("group", "skip", billing, "--topic", "bills", "--execute").ok()


MEMBER = """
import asyncio, sys
from twinlog.client import PushConsumer, PullConsumer

async def handle(message):
    print(message.body.decode(), flush=True)

async def main(address, kind):
    if kind == "push":
        async with PushConsumer("alive", name_server=address, commit_ms=200) as consumer:
            await consumer.subscribe("live", "*", handle)
            await asyncio.sleep(600)
    async with PullConsumer("pullers", name_server=address) as consumer:
        await consumer.subscribe("live")
        print("ready", flush=True)
        async for message in consumer:
            await handle(message)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def member(cluster: LocalTwins, kind: str) -> Iterator[IO[str]]:
    """A consumer in a process of its own; what it prints."""
    command = [sys.executable, "-c", MEMBER, cluster.namesrv, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.stdout
        finally:
            running.kill()


def test_a_live_group_is_moved_only_when_told(cluster: LocalTwins, live: str) -> None:
    reset = ("group", "reset", "alive", "--topic", live, "--to", "start", "--execute")
    with member(cluster, "push") as printed:

        def is_listed() -> bool:
            return "PYTHON" in cluster.twinlog("group", "clients", "alive").out

        wait_until(is_listed, "the member is listed")
        cluster.twinlog("topic", "produce", live, "one").ok()
        assert printed.readline() == "one\n"
        heads = ["CLIENT ID", "ADDRESS", "LANGUAGE", "VERSION"]
        assert cluster.twinlog("group", "clients", "alive").rows[0] == heads
        refused = cluster.twinlog(*reset)
        assert refused.code == 1
        assert "is live: 1 members are connected" in refused.err
        assert "add --live" in refused.err
        assert len(refused.err.splitlines()) == 1

        def is_moved() -> bool:
            # Until the member has committed for the first time, there is nothing to move.
            moved = cluster.twinlog(*reset, "--live")
            assert moved.code == 0 or "commit within 5 s" in moved.err
            return moved.code == 0

        wait_until(is_moved, "the group is moved", interval_s=0.5)
        assert printed.readline() == "one\n"
        assert "subscribe to the same" in cluster.twinlog("group", "check", "alive").ok().out
        listed = cluster.twinlog("cluster", "clients", "-o", "json").ok().json
        assert ("consumer", "alive") in [(row["kind"], row["group"]) for row in listed]


@pytest.mark.usefixtures("billing", "live")
def test_members_that_pull_cannot_be_moved(cluster: LocalTwins) -> None:
    with member(cluster, "pull") as printed:
        assert printed.readline() == "ready\n"

        def said() -> str:
            return cluster.twinlog("group", "reset", "pullers", "--topic", "bills", "--to", "end",
                                   "--execute", "--live").err  # fmt: skip

        wait_until(lambda: "cannot be told to move" in said(), "pulling members are told apart")
        assert "subscribe to the same" in cluster.twinlog("group", "check", "pullers").ok().out


def test_group_update_and_delete(cluster: LocalTwins) -> None:
    cluster.twinlog("group", "create", "short").ok()
    cluster.twinlog("group", "update", "short", "--no-consume", "--retry-max", "1").ok()
    shown = cluster.twinlog("group", "show", "short", "-o", "json").ok().json
    assert (shown["enabled"], shown["retry_max"]) == (False, 1)
    assert cluster.twinlog("group", "create", "short").code == 1
    cluster.twinlog("group", "delete", "short", "--yes").ok()
    assert cluster.twinlog("group", "show", "short").code == 3


def test_brokers_and_their_settings(cluster: LocalTwins) -> None:
    listed = cluster.twinlog("broker", "list").ok()
    assert listed.rows[0] == ["BROKER", "ID", "ROLE", "ADDRESS", "VERSION", "IN/S", "OUT/S",
                              "LOG END", "DISK", "STATE"]  # fmt: skip
    assert [row[2] for row in listed.rows[1:]] == ["ASYNC_MASTER", "SLAVE"]
    assert cluster.twinlog("cluster", "list").ok().rows[1] == ["DefaultCluster", "2", "broker-a"]
    got = cluster.twinlog("broker", "config", "get", "broker-a:0", "fileReservedTime").ok()
    assert got.rows[1][1:] == ["fileReservedTime", "72"]
    change = ("broker", "config", "set", "broker-a:0", "fileReservedTime=48")
    assert cluster.twinlog(*change).code == 2
    cluster.twinlog(*change, "--yes").ok()
    again = cluster.twinlog("broker", "config", "get", "broker-a:0", "fileReservedTime")
    assert again.rows[1][2] == "48"
    wrong = cluster.twinlog("broker", "config", "set", "broker-a:0", "fileReservedTim=48", "--yes")
    assert wrong.code == 3
    assert "did you mean 'fileReservedTime'?" in wrong.err
    runtime = cluster.twinlog("broker", "show", "broker-a:0", "-o", "json").ok().json
    assert "commitLogMaxOffset" in [row["key"] for row in runtime]


def test_a_broker_says_whether_its_code_is_compiled(cluster: LocalTwins) -> None:
    runtime = cluster.twinlog("broker", "show", "broker-a:0", "-o", "json").ok().json
    assert {row["value"] for row in runtime if row["key"] == "twinlogCode"} == {code_tier()}
    log = process("logs", "broker-a-0", "--lines", 1_000_000, "--dir", cluster.directory).ok().out
    assert f" code={code_tier()}\n" in log


def test_drain_and_undrain(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "drained").ok()
    cluster.twinlog("broker", "drain", "broker-a", "--yes").ok()
    (route,) = cluster.twinlog("topic", "route", "drained", "-o", "json").ok().json
    assert route["perm"] == "r"
    cluster.twinlog("broker", "undrain", "broker-a").ok()
    (route,) = cluster.twinlog("topic", "route", "drained", "-o", "json").ok().json
    assert route["perm"] == "rw"
    assert cluster.twinlog("broker", "drain", "broker-b", "--yes").code == 3


def test_ha_status_is_a_sentence_then_replicas(cluster: LocalTwins) -> None:
    status = cluster.twinlog("ha", "status").ok()
    assert status.out.startswith("broker-a is healthy: 1 slave in sync with ")
    assert status.rows[3] == ["BROKER", "ID", "ROLE", "ADDRESS", "OFFSET", "RECEIVED", "DURABLE",
                              "LAG", "LAG TIME", "RATE", "SINCE", "STATE"]  # fmt: skip

    def status_in_sync() -> Any:
        """A broker writes records of its own, so that a slave lags for a moment at any time."""
        data = cluster.twinlog("ha", "status", "-o", "json").ok().json
        return data if data["replicas"][1]["lag_bytes"] == 0 else None

    data = wait_until(status_in_sync, "the slave to have everything")
    assert data["healthy"] is True
    assert [row["role"] for row in data["replicas"]] == ["ASYNC_MASTER", "SLAVE"]
    (metadata,) = data["metadata"]
    assert (metadata["behind_records"], metadata["problem"]) == (0, "")
    assert "METADATA BEHIND" in status.out
    assert cluster.twinlog("cluster", "health").ok().out.startswith("the cluster is healthy")
    assert cluster.twinlog("cluster", "health", "--brokers", "3").code == 10
    assert cluster.twinlog("doctor").ok().out.startswith("no problem")


def test_bench_prints_rates_and_percentiles(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "load", "-q", "2").ok()
    small = ("--msgs", "200", "--size", "100", "--json")
    sent = cluster.twinlog("bench", "pub", "load", *small).ok().json
    assert (sent["messages"], sent["size"], sent["failed"]) == (200, 100, 0)
    assert set(sent["latency_ms"]) == {"p50", "p95", "p99", "p99.9", "max"}
    consumed = cluster.twinlog("bench", "sub", "load", *small).ok().json
    steady = ("bench", "pub", "load", "--msgs", "100", "--size", "10", "--rate", "500")
    opened = cluster.twinlog(*steady, "--json").ok().json
    assert (opened["messages"], opened["failed"], opened["rate_wanted"]) == (100, 0, 500)
    assert sum(row["count"] for row in opened["histogram"]) == 100
    assert opened["seconds"] >= 99 / 500
    assert "100.00 % #" in cluster.twinlog(*steady, "--histogram").ok().out
    assert (consumed["messages"], consumed["size"]) == (200, 100)
    text = cluster.twinlog("bench", "latency", "load", "--msgs", "5", "--rate", "50").ok().out
    assert text.splitlines()[1].startswith("milliseconds: p50 ")


def test_a_stop_of_the_broker_is_seen_by_every_message_that_was_due(cluster: LocalTwins) -> None:
    """`bench latency` is an open loop: a closed one would show a second once."""
    cluster.twinlog("topic", "create", "due", "-q", "1").ok()
    master = cluster.pid("broker-a-0")
    found: list[Result] = []
    words = ("bench", "latency", "due", "--msgs", "400", "--rate", "100", "--size", "10", "--json")
    run = threading.Thread(
        target=lambda: found.append(process(*words, "-n", cluster.namesrv)), daemon=True
    )
    run.start()

    def arrived() -> int:
        shown = cluster.twinlog("topic", "show", "due", "-o", "json").ok().json
        return int(shown["messages"])

    wait_until(lambda: arrived() > 10, "it sends", deadline_s=60)
    os.kill(master, signal.SIGSTOP)
    time.sleep(1.0)  # What is measured, not waited for.
    os.kill(master, signal.SIGCONT)
    run.join(120)
    result = found[0].ok().json
    late = sum(row["count"] for row in result["histogram"] if row["to_ms"] > 400)
    assert result["messages"] == 400
    assert late >= 40, result


def test_one_broker_down_is_a_partial_answer(cluster: LocalTwins) -> None:
    """The slave is stopped first, so that it stays registered for a while."""
    slave = cluster.pid("broker-a-1")
    os.kill(slave, signal.SIGSTOP)
    try:
        start = time.monotonic()
        listed = cluster.twinlog("broker", "list", "--timeout", "1s")
        is_still_registered = "not answering" in listed.out
        if is_still_registered:  # A twinlog name server drops it after three seconds.
            assert listed.code == 10
            assert len(listed.err.splitlines()) == 1
            assert "incomplete: " in listed.err
        assert time.monotonic() - start < 60

        wait_until(
            lambda: (
                cluster.twinlog("cluster", "health", "--timeout", "1s", "--brokers", "2").code == 10
            ),
            "a cluster without its slave is not healthy",
        )
    finally:
        os.kill(slave, signal.SIGCONT)
    cluster.twinlog("cluster", "health", "--wait", "60s", "--brokers", "2").ok()
    cluster.kill("broker-a-1")

    def is_unhealthy() -> bool:
        found = cluster.twinlog("ha", "status")
        return found.code == 10 and found.out.startswith("broker-a is not healthy: no slave is")

    wait_until(is_unhealthy, "replication is reported as unhealthy")
    assert process("ps", "--dir", cluster.directory).code == 10
    cluster.start("broker-a-1")
    cluster.twinlog("cluster", "health", "--wait", "60s", "--brokers", "2").ok()
    os.kill(cluster.pid("broker-a-0"), signal.SIGKILL)

    def is_masterless() -> bool:
        return "no master is registered, 1 slave(s)" in cluster.twinlog("ha", "status").out

    wait_until(is_masterless, "the master is out of the routes", deadline_s=60)
    refused = cluster.twinlog("topic", "create", "late")
    assert refused.code == 10
    assert refused.err.startswith("twinlog: the name server knows no master")
    assert len(refused.err.splitlines()) == 1
