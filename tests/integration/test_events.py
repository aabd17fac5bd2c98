"""The journal of events: real faults of a pair, told by `twinlog events`, also after restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.command_line import TWINLOG, process
from support.ha_load import send_once
from support.processes import process_group, wait_until
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv


class Journal:
    """`twinlog events` of a cluster."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv

    def read(self, *words: str) -> list[dict[str, Any]]:
        found = process("events", "-o", "json", "-n", self.namesrv, *words, "--limit", "1000")
        assert found.code == 0, found.err
        events: list[dict[str, Any]] = found.json
        return events

    def wait(self, kind: str, **details: Any) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            for event in reversed(self.read()):
                if event["event"] == kind and details.items() <= event.items():
                    return event
            return None

        found = wait_until(seen, f"the event {kind} {details}")
        assert found is not None
        return found


def test_what_happens_to_a_pair(tmp_path: Path) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        common = {"namesrv": namesrv.address}
        master = start_twinlog_broker(tmp_path / "m", brokerRole="SYNC_MASTER", **common)  # type: ignore[arg-type]
        slave = start_twinlog_broker(
            tmp_path / "s", brokerRole="SLAVE", brokerId=1,
            haMasterAddress=f"127.0.0.1:{master.ha_port}", **common,
        )  # type: ignore[arg-type] # fmt: skip
        for broker in (namesrv, master, slave):
            group.add(broker)
        journal = Journal(namesrv.address)
        started = journal.wait("broker-started", broker=master.address)
        assert (started["role"], started["wasClean"]) == ("SYNC_MASTER", True)
        joined = journal.wait("replica-joined", replica="127.0.0.1/1")
        assert joined["group"] == "broker-a"

        # It stops acknowledging; its connection stays.
        wait_until(lambda: send_once(master.address, b"one").code == 0, "a send is confirmed")
        os.kill(slave.pid, signal.SIGSTOP)
        assert send_once(master.address, b"two").code == 12
        late = journal.wait("replica-not-in-sync", replica="127.0.0.1/1")
        assert "acknowledged nothing" in late["reason"]
        os.kill(slave.pid, signal.SIGCONT)
        journal.wait("replica-in-sync", replica="127.0.0.1/1")

        # A change of a setting.
        changed = process("broker", "config", "set", "broker-a", "slaveTimeout=2500", "--yes",
                          "-n", namesrv.address)  # fmt: skip
        assert changed.code == 0, changed.err
        setting = journal.wait("configuration-changed", broker=master.address)
        assert setting["changed"] == {"slaveTimeout": "2500"}

        # The slave dies and comes back: it left, and what it found is told.
        slave.kill()
        journal.wait("replica-left", replica="127.0.0.1/1")
        slave = slave.restart()
        group.add(slave)
        back = journal.wait("broker-started", broker=slave.address, wasClean=False)
        journal.wait("recovered", broker=slave.address)
        assert back["time"] >= late["time"]

        # Before the kill there is its own start: the journal has survived.
        own = [event for event in journal.read() if event.get("broker") == slave.address]
        assert [event["event"] for event in own].count("broker-started") == 2
        file = slave.store / "twinlog" / "events"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["event"] for line in lines if line["event"] == "broker-started"]

        # The master dies: the slave tells, if it had found it again.
        wait_until(lambda: send_once(master.address, b"three").code == 0, "the slave is back")
        # Both have looked at it since: a link between two looks is not seen.
        for kind in ("replica-joined", "master-found"):
            wait_until(
                lambda: sum(event["event"] == kind for event in journal.read()) > 1,  # noqa: B023
                f"a second {kind}",
            )
        wait_until(lambda: send_once(master.address, b"four").code == 0, "a send is confirmed")
        master.kill()
        lost = journal.wait("master-lost", broker=slave.address)
        assert lost["reason"]
        # The name server tells who came into the route, and who left it.
        gone = journal.wait("broker-left", broker=master.address)
        assert gone["reason"].startswith("connection")
        came = journal.wait("broker-registered", broker=slave.address)
        assert (came["nameServer"], came["brokerId"]) == (namesrv.address, 1)
        times = [event["time"] for event in journal.read()]
        assert times == sorted(times)
        assert journal.read("--since", "1ms") == []
        unknown = process("events", "-n", namesrv.address, "no-such-group")
        assert (unknown.code, unknown.out) == (3, ""), unknown.err


def test_follow_prints_what_comes(tmp_path: Path) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        broker = start_twinlog_broker(tmp_path / "b", namesrv=namesrv.address)
        group.add(namesrv)
        group.add(broker)
        Journal(namesrv.address).wait("broker-started")
        output = tmp_path / "out"
        with output.open("wb") as file:
            follower = subprocess.Popen(
                [str(TWINLOG), "events", "--follow", "-n", namesrv.address], stdout=file
            )
        try:
            wait_until(lambda: b"broker-started" in output.read_bytes(), "the past is printed")
            process("broker", "config", "set", "broker-a", "slaveTimeout=2600", "--yes",
                    "-n", namesrv.address)  # fmt: skip
            wait_until(lambda: b"slaveTimeout" in output.read_bytes(), "what comes is printed")
            process("broker", "config", "set", "broker-a", "slaveTimeout=2700", "--yes",
                    "-n", namesrv.address)  # fmt: skip
            wait_until(lambda: b"2700" in output.read_bytes(), "and what comes after it")
            assert output.read_bytes().count(b"slaveTimeout") == 2, "each once"
        finally:
            follower.send_signal(signal.SIGINT)
            follower.wait(30)


def test_follow_outlives_restarts_and_wrong_clocks(tmp_path: Path) -> None:
    """A name server and a broker that go and return; a journal with an event of tomorrow."""
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        broker = start_twinlog_broker(tmp_path / "b", namesrv=namesrv.address)
        group.add(namesrv)
        group.add(broker)
        broker.stop()
        tomorrow = time.time_ns() // 1_000_000 + 86_400_000
        with (broker.store / "twinlog" / "events").open("ab") as file:
            line = {"time": tomorrow, "event": "of-tomorrow", "group": "broker-a"}
            file.write(json.dumps(line).encode() + b"\n")
        broker = broker.restart()
        group.add(broker)
        Journal(namesrv.address).wait("of-tomorrow")
        output, complaints = tmp_path / "out", tmp_path / "err"
        with output.open("wb") as out, complaints.open("wb") as err:
            follower = subprocess.Popen(
                [str(TWINLOG), "events", "-f", "-o", "json", "-n", namesrv.address],
                stdout=out, stderr=err,
            )  # fmt: skip

        def lines() -> list[dict[str, Any]]:
            text = output.read_text()
            return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

        def count(kind: str) -> int:
            return sum(line["event"] == kind for line in lines())

        try:
            wait_until(lambda: count("of-tomorrow") == 1, "the past is printed, in lines")
            # A name server looks twice a second: it has seen the broker before that one is gone.
            registered = wait_until(lambda: count("broker-registered"), "it is in the route")
            left = count("broker-left")
            broker.kill()
            wait_until(lambda: count("broker-left") > left, "the name server tells")
            broker = broker.restart()
            group.add(broker)
            wait_until(lambda: count("recovered") == 1, "the broker that is back tells")
            again = "it is in the route again"
            wait_until(lambda: count("broker-registered") > registered, again)
            namesrv.kill()
            wait_until(lambda: b"asked again" in complaints.read_bytes(), "nobody answers")
            group.add(namesrv.restart())
            wait_until(lambda: count("broker-registered") > registered + 1, "it goes on")
            assert follower.poll() is None
            told = [json.dumps(line) for line in lines()]
            assert len(told) == len(set(told)), "each once"
        finally:
            follower.send_signal(signal.SIGINT)
            follower.wait(30)


@pytest.mark.parametrize("damage", [b"", b"{not json\n", b'{"time": "noon"}\n', b"\xff\xfe" * 50])
def test_a_damaged_journal_is_no_reason_not_to_start(tmp_path: Path, damage: bytes) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        group.add(namesrv)
        file = tmp_path / "b" / "store" / "twinlog" / "events"
        file.parent.mkdir(parents=True)
        file.write_bytes(damage)
        broker = start_twinlog_broker(tmp_path / "b", namesrv=namesrv.address)
        group.add(broker)
        Journal(namesrv.address).wait("broker-started")
        assert broker.stop() == 0
        last = file.read_bytes().splitlines()[-1]
        assert json.loads(last)["event"] == "broker-stopping"


def test_a_slow_stop_ends_with_its_own_event(tmp_path: Path) -> None:
    """The looks go on while it waits for its slave, and what they see then is no news."""
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        group.add(namesrv)
        common = {"namesrv": namesrv.address}
        master = start_twinlog_broker(tmp_path / "m", brokerRole="ASYNC_MASTER", **common)  # type: ignore[arg-type]
        group.add(master)
        slave = start_twinlog_broker(
            tmp_path / "s", brokerRole="SLAVE", brokerId=1,
            haMasterAddress=f"127.0.0.1:{master.ha_port}", **common,
        )  # type: ignore[arg-type] # fmt: skip
        group.add(slave)
        Journal(namesrv.address).wait("replica-joined")
        slave.suspend()
        assert send_once(master.address, b"waited for").code == 0
        assert master.stop() == 0
        slave.resume()
        last = (tmp_path / "m" / "store" / "twinlog" / "events").read_bytes().splitlines()[-1]
        assert json.loads(last)["event"] == "broker-stopping"
