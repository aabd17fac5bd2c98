"""A cluster restarted node by node under load, then lost and made again from a backup."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.command_line import TWINLOG, LocalTwins, Result, process
from support.ha_load import Connection, send_command
from support.processes import wait_until
from twinlog.message.record import decode_record
from twinlog.remoting.codes import RequestCode

pytestmark = pytest.mark.timeout(300)
QUEUES = 4


@pytest.fixture
def twins(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalTwins]:
    twins = LocalTwins(tmp_path / "twins")
    twins.up(getattr(request, "param", "--sync")).ok()
    yield twins
    twins.down()


class Load(threading.Thread):
    """Sends all the time, over every restart; what was acknowledged with SEND_OK."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._must_stop = threading.Event()
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        number = 0
        while not self._must_stop.is_set():
            try:
                connection = Connection(self._address, timeout_s=5)
            except OSError:
                self._must_stop.wait(0.05)
                continue
            try:
                while not self._must_stop.is_set():
                    number += 1
                    body = b"load %08d" % number
                    connection.send(send_command(body, queue_id=number % QUEUES))
                    if connection.receive().code == 0:
                        self.acknowledged.append(body)
            except (OSError, ConnectionError):
                pass  # The broker restarts: what was on its way is not counted.
            finally:
                connection.close()

    def stop(self) -> set[bytes]:
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > before + 20, "sends are acknowledged")
        self._must_stop.set()
        self.join()
        return set(self.acknowledged)


def bodies(address: str) -> set[bytes]:
    found = set()
    connection = Connection(address)
    for queue_id in range(QUEUES):
        offset = 0
        while True:
            answer = connection.call(
                RequestCode.PULL_MESSAGE,
                {"consumerGroup": "g", "topic": "load", "queueId": queue_id, "queueOffset": offset,
                 "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
                 "subscription": "*", "subVersion": 0, "expressionType": "TAG"},
            )  # fmt: skip
            if answer.code != 0:
                break
            data, at = bytes(answer.body), 0
            while at < len(data):
                record = decode_record(data, at)
                found.add(record.body)
                at += record.total_size
            offset = int(answer.ext()["nextBeginOffset"])
    connection.close()
    return found


def healthy(twins: LocalTwins) -> None:
    words = ("cluster", "health", "--wait", "60s", "--brokers", "2")
    process(*words, "-n", twins.namesrv).ok()


def rolling_restart(twins: LocalTwins, command: str, *more: str) -> Result:
    words = ("cluster", "rolling-restart", "--command", command, "-n", twins.namesrv, *more)
    return process(*words)


def test_every_node_is_restarted_and_nothing_acknowledged_is_lost(twins: LocalTwins) -> None:
    healthy(twins)
    before = {name: twins.pid(name) for name in ("broker-a-0", "broker-a-1")}
    load = Load(twins.master)
    load.start()
    wait_until(lambda: len(load.acknowledged) > 50, "sends are acknowledged")
    words = f"{TWINLOG} restart {{name}}-{{id}} --dir {twins.directory}"
    done = rolling_restart(twins, words).ok()
    acknowledged = load.stop()
    steps = [line for line in done.out.splitlines() if "in sync after" in line]
    assert [line.split()[0] for line in steps] == ["broker-a:1", "broker-a:0"]
    assert all(twins.pid(name) != pid for name, pid in before.items())
    assert acknowledged <= bodies(twins.master)
    planned = rolling_restart(twins, "restart {name}", "--dry-run", "-o", "json").ok()
    assert [step["command"] for step in planned.json] == ["restart broker-a"] * 2
    assert "restart broker-a" in planned.err
    # The first command that fails ends it: the others are not touched.
    pids = {name: twins.pid(name) for name in before}
    assert rolling_restart(twins, "exit 4").code == 1
    # So does one that restarts nothing, or has not yet.
    idle = rolling_restart(twins, "true", "--wait", "2s")
    assert (idle.code, idle.out.count("true")) == (10, 1)
    assert "broker-a:1 is not back after 2 s: the command has not restarted it" in idle.err
    assert pids == {name: twins.pid(name) for name in before}
    # One that never comes back leaves the others as they are, and nothing begins without it.
    gone = rolling_restart(twins, f"kill -9 {pids['broker-a-1']}", "--wait", "3s")
    assert (gone.code, gone.out.count("kill")) == (10, 1)
    assert "broker-a:1 is not back after 3 s" in gone.err
    assert twins.pid("broker-a-0") == pids["broker-a-0"]
    again = rolling_restart(twins, "exit 4")
    assert (again.code, "not begun" in again.err) == (10, True)


def test_a_slave_that_hangs_is_named_and_nothing_is_restarted(twins: LocalTwins) -> None:
    healthy(twins)
    slave = psutil.Process(twins.pid("broker-a-1"))
    slave.suspend()
    try:
        check = process("cluster", "upgrade-check", "-n", twins.namesrv, "-o", "json")
        assert (check.code, "does not answer" in check.out) == (10, True), check
        assert "several versions" not in check.out, "what does not answer has no version"
        again = rolling_restart(twins, "exit 4")
        assert (again.code, "not begun" in again.err) == (10, True), again
    finally:
        slave.resume()


def test_a_wrong_time_to_wait_is_refused_before_anything_is_asked_or_restarted() -> None:
    words = ("cluster", "rolling-restart", "--command", "exit 1", "--wait", "soon")
    refused = process(*words, "-n", "127.0.0.1:1")
    assert (refused.code, "soon" in refused.err) == (2, True), refused


def offset_call(address: str, code: int, **more: object) -> str | None:
    connection = Connection(address)
    answer = connection.call(code, {"consumerGroup": "g", "topic": "load", "queueId": 0, **more})
    connection.close()
    return answer.ext().get("offset")


def test_both_nodes_are_lost_and_come_back_from_a_backup(twins: LocalTwins, tmp_path: Path) -> None:
    healthy(twins)
    load = Load(twins.master)
    load.start()
    wait_until(lambda: len(load.acknowledged) > 300, "sends are acknowledged")
    offset_call(twins.master, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=33)
    slave = twins.directory / "broker-a-1" / "store"
    offsets = slave / "config" / "consumerOffset.json"
    wait_until(lambda: offsets.exists() and b"load@g" in offsets.read_bytes(), "offsets are saved")
    mark = list(load.acknowledged)
    place = tmp_path / "backups"
    # Everything that was acknowledged as SEND_OK is on the slave, too.
    process("backup", "create", place, "--store", slave).ok()
    load.stop()
    delete_group(twins)
    process("backup", "verify", place).ok()
    process("backup", "restore", place, twins.directory / "broker-a-0" / "store").ok()
    twins.up("--sync").ok()
    healthy(twins)
    assert set(mark) <= bodies(twins.master)
    assert offset_call(twins.master, RequestCode.QUERY_CONSUMER_OFFSET) == "33"
    again = Load(twins.master)
    again.start()
    assert again.stop() <= bodies(twins.master)


def delete_group(twins: LocalTwins) -> None:
    process("down", "--dir", twins.directory)
    for name in ("broker-a-0", "broker-a-1"):
        shutil.rmtree(twins.directory / name / "store")
    shutil.rmtree(twins.directory / "namesrv" / "controller", ignore_errors=True)


@pytest.mark.parametrize("twins", ["--failover"], indirect=True)
def test_a_group_with_a_controller_is_restarted_and_comes_back_from_a_backup(
    twins: LocalTwins, tmp_path: Path
) -> None:
    healthy(twins)
    load = Load(twins.master)
    load.start()
    wait_until(lambda: len(load.acknowledged) > 50, "sends are acknowledged")
    names = " ".join(f"{n['port']}) n={n['name']};;" for n in twins.nodes)
    words = f"case {{port}} in {names} esac; {TWINLOG} restart $n --dir {twins.directory}"
    done = rolling_restart(twins, words).ok()
    assert done.out.count("is the master of broker-a now") == 1  # Before the master is restarted.
    acknowledged = load.stop()
    assert acknowledged <= bodies(twins.master)

    place = tmp_path / "backups"
    slave = twins.directory / "broker-a-1" / "store"
    process("backup", "create", place, "--store", slave).ok()
    delete_group(twins)
    process("backup", "restore", place, twins.directory / "broker-a-0" / "store").ok()
    twins.up("--failover").ok()  # Nobody was the master before: one has messages, and leads.
    healthy(twins)
    assert acknowledged <= bodies(twins.master)
    process("ha", "switch", "broker-a", "-n", twins.namesrv).ok()  # In an epoch behind the log's.
    again = Load(twins.master)
    again.start()
    assert again.stop() <= bodies(twins.master)
