"""Two real brokers: a master, a slave, load, and what can happen to them, in both dialects.

`make test` runs the classic dialect's share of it, `make chaos` the rest and all of the twin's.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support.fault_proxy import FaultProxy
from support.ha_files import LogFiles, assert_identical, assert_queues_dense, numbers_in
from support.ha_load import SEND_OK, Load, ha_status, send_once
from support.ha_pair import Pair
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker


@pytest.fixture(params=["classic", pytest.param("twin", marks=pytest.mark.chaos)])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(tmp_path: Path, dialect: str) -> Iterator[Pair]:
    pair = Pair(tmp_path, twinlogHADialect=dialect)
    yield pair
    pair.kill()


@pytest.fixture
def proxied(tmp_path: Path, dialect: str) -> Iterator[tuple[Pair, FaultProxy]]:
    """The slave dials through a proxy."""
    pair = Pair(
        tmp_path,
        twinlogHADialect=dialect,
        haSendHeartbeatInterval=500,
        haHousekeepingInterval=3000,
        slaveTimeout=1000,
    )
    pair.start_master()
    proxy = FaultProxy(pair.master.ha_port)
    pair.start_slave(f"127.0.0.1:{proxy.port}")
    pair.wait_in_sync()
    yield pair, proxy
    pair.kill()
    proxy.close()


def started_load(pair: Pair, count: int = 300) -> Load:
    load = Load(pair.master.address)
    load.start()
    wait_until(lambda: load.count() > count, f"{count} messages acknowledged")
    return load


def finish(pair: Pair, load: Load) -> tuple[LogFiles, LogFiles]:
    """End the load, let the slave catch up, stop both, and check what every test demands."""
    load.finish()
    pair.wait_caught_up()
    master, slave = pair.stop_and_read()
    confirmed = {number for number, code in load.acked.items() if code == SEND_OK}
    stored = {number for number, code in load.acked.items() if code in (0, 10, 11, 12)}
    assert numbers_in(slave) >= confirmed, "SEND_OK and not on the slave"
    assert numbers_in(master) >= stored, "answered as stored and not on the master"
    assert assert_identical(master, slave) > 0
    assert master.end == slave.end
    assert assert_queues_dense(slave) == len(slave.places)
    assert set(load.acked.values()) <= {0, 11, 12}, "nothing was refused"
    return master, slave


def test_slave_follows_and_ends_up_identical(pair: Pair) -> None:
    pair.start()
    load = started_load(pair, 2000)
    status = ha_status(pair.master.address)
    assert status["master"] is True
    (replica,) = status["haConnectionInfo"]
    assert replica["inSync"] is True
    assert ha_status(pair.slave.address)["haClientRuntimeInfo"]["activated"] is True
    _, slave = finish(pair, load)
    assert load.count() == len(load.acked)
    assert slave.start == 0


def test_a_master_that_is_stopped_under_load_has_left_everything_to_its_slave(pair: Pair) -> None:
    """What an ASYNC_MASTER answers while it stops must not be on its own disk alone. The slave is
    always a little behind: its link has a delay."""
    pair.start_master(brokerRole="ASYNC_MASTER")
    proxy = FaultProxy(pair.master.ha_port, delay_s=0.02)
    pair.start_slave(f"127.0.0.1:{proxy.port}")
    pair.wait_in_sync()
    load = started_load(pair)
    assert pair.master.stop() == 0, pair.master.tail()
    load.finish()
    assert pair.slave.stop() == 0, pair.slave.tail()
    proxy.close()
    master, slave = LogFiles(pair.master.store), LogFiles(pair.slave.store)
    stored = {number for number, code in load.acked.items() if code == SEND_OK}
    assert numbers_in(slave) >= stored, "SEND_OK of a clean stop and not on the slave"
    assert slave.end == master.end
    refused = {number for number, code in load.acked.items() if code == 14}
    assert not numbers_in(master) & refused, "refused and stored"


def test_slave_killed_under_load_and_back(pair: Pair) -> None:
    pair.start()
    load = started_load(pair)
    pair.slave.kill()
    wait_until(lambda: load.count(11), "SLAVE_NOT_AVAILABLE while it is away")
    load.pause()
    assert "no slave connected since" in load.remarks[11]
    assert ha_status(pair.master.address)["twinlog"]["departed"]
    pair.slave = pair.slave.restart()
    load.resume()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


def test_master_killed_under_load_and_back(pair: Pair) -> None:
    pair.start()
    load = started_load(pair)
    pair.master.kill()
    wait_until(
        lambda: not ha_status(pair.slave.address)["haClientRuntimeInfo"]["activated"],
        "the slave notices",
    )
    reason = ha_status(pair.slave.address)["haClientRuntimeInfo"]["twinlog"]
    assert f"127.0.0.1:{pair.master.ha_port}" in reason["lastDisconnectReason"]
    pair.master = pair.master.restart()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


def test_slave_stopped_for_longer_than_housekeeping(proxied: tuple[Pair, FaultProxy]) -> None:
    pair, _ = proxied
    load = started_load(pair)
    pair.slave.suspend()
    try:
        wait_until(lambda: load.count(12), "FLUSH_SLAVE_TIMEOUT while it hangs")
        assert "behind by" in load.remarks[12]
        assert "limit 1000 ms (slaveTimeout)" in load.remarks[12]
        wait_until(lambda: load.count(11), "SLAVE_NOT_AVAILABLE after housekeeping")
        assert "housekeeping" in load.remarks[11]
    finally:
        pair.slave.resume()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_master_stopped_for_longer_than_housekeeping(proxied: tuple[Pair, FaultProxy]) -> None:
    pair, _ = proxied
    load = started_load(pair)
    pair.master.suspend()
    try:
        wait_until(lambda: "nothing from the master" in last_reason(pair), "the slave drops it")
        client = ha_status(pair.slave.address)["haClientRuntimeInfo"]
        assert client["maxOffset"] > 0
    finally:
        pair.master.resume()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


def test_link_cut_and_healed(proxied: tuple[Pair, FaultProxy]) -> None:
    pair, proxy = proxied
    load = started_load(pair)
    proxy.cut()
    wait_until(lambda: load.count(11), "SLAVE_NOT_AVAILABLE while it is cut")
    load.pause()
    time_of_cut = time.monotonic()
    accepted = proxy.accepted
    wait_until(lambda: proxy.accepted > accepted + 1, "the slave dials again")
    assert proxy.accepted - accepted <= 2 + (time.monotonic() - time_of_cut), "without hurry"
    proxy.heal()
    load.resume()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


def test_half_open_link_is_noticed_by_both_ends(proxied: tuple[Pair, FaultProxy]) -> None:
    pair, proxy = proxied
    load = started_load(pair)
    proxy.hold()
    wait_until(
        lambda: "nothing from the master" in last_reason(pair), "the slave drops a silent master"
    )
    wait_until(
        lambda: any(
            "housekeeping" in departed["reason"]
            for departed in ha_status(pair.master.address)["twinlog"]["departed"]
        ),
        "the master drops a silent slave",
    )
    proxy.heal()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


def last_reason(pair: Pair) -> str:
    client = ha_status(pair.slave.address)["haClientRuntimeInfo"]
    return str(client["twinlog"]["lastDisconnectReason"])


def test_torn_tail_of_a_stopped_slave(pair: Pair) -> None:
    pair.start()
    load = started_load(pair)
    pair.slave.kill()
    log = LogFiles(pair.slave.store)
    last = max(log.bodies)
    segment = max(start for start in log.segments if start <= last)
    with log.segments[segment].open("r+b") as stream:
        stream.seek(last - segment + 40)
        stream.write(bytes(log.end - last - 40))
    pair.slave = pair.slave.restart()
    finish(pair, load)


def test_strangers_on_the_ha_port_change_nothing(pair: Pair) -> None:
    import socket

    pair.start()
    load = started_load(pair)
    sockets = []
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\x7f" * 16, b"\0", b"\0" * 7 + b"\x01"):
        stranger = socket.create_connection(("127.0.0.1", pair.master.ha_port), timeout=10)
        stranger.sendall(words)
        sockets.append(stranger)
    wait_until(
        lambda: (
            sum(
                replica["twinlog"]["state"] == "SUSPEND"
                for replica in ha_status(pair.master.address)["haConnectionInfo"]
            )
            == 3
        ),
        "three are held, with a reason",
    )
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK all the while")
    for stranger in sockets:
        stranger.close()
    finish(pair, load)
    assert load.count() == len(load.acked)
    assert "HA connection refused" in pair.master.output()


# All by `make chaos`.


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["slave", "master"])
def test_twenty_kills_at_seeded_moments(pair: Pair, victim: str) -> None:
    rng = random.Random(f"kills of the {victim}")
    pair.start()
    load = started_load(pair)
    for _ in range(20):
        time.sleep(rng.uniform(0.05, 1.0))
        broker = getattr(pair, victim)
        broker.kill()
        time.sleep(rng.choice((0.0, 0.5)))
        setattr(pair, victim, broker.restart())
        before = load.count()
        wait_until(lambda before=before: load.count() > before + 50, "SEND_OK again")
    finish(pair, load)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("delay_s", "bytes_per_second"), [(0.002, 0), (0.05, 0), (0.0, 1_000_000)])
def test_slow_links(pair: Pair, delay_s: float, bytes_per_second: int) -> None:
    pair.start_master()
    proxy = FaultProxy(pair.master.ha_port, delay_s=delay_s, bytes_per_second=bytes_per_second)
    try:
        pair.start_slave(f"127.0.0.1:{proxy.port}")
        pair.wait_in_sync()
        load = started_load(pair, 200)
        time.sleep(5)
        finish(pair, load)
        assert load.count() == len(load.acked)
    finally:
        pair.kill()
        proxy.close()


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_disk_of_the_slave_is_full_for_a_while(pair: Pair, tmp_path: Path) -> None:
    """Apache's slave was stuck or different after this."""
    mount = tmp_path / "small"
    mount.mkdir()
    if os.system(f"mount -t tmpfs -o size=6m none {mount}") != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        store = {
            "storePathRootDir": mount / "store",
            "storePathCommitLog": mount / "store/commitlog",
            # Or the oldest files make room, as they do at Apache's.
            "cleanFileForciblyEnable": "false",
        }
        pair.start(**store)
        load = started_load(pair)
        wait_until(lambda: "No space left" in last_reason(pair), "the disk is full", deadline_s=120)
        wait_until(lambda: load.count(11), "SLAVE_NOT_AVAILABLE while it is full")
        assert pair.slave.is_alive
        os.system(f"mount -o remount,size=900m {mount}")
        before = load.count()
        wait_until(lambda: load.count() > before + 300, "SEND_OK again")
        finish(pair, load)
    finally:
        pair.kill()
        os.system(f"umount {mount}")


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_bit_flipped_at_rest_in_a_stopped_slave(pair: Pair) -> None:
    """Found at the start or while dispatching; the slave ends up with its master's bytes."""
    pair.start()
    load = started_load(pair)
    pair.slave.kill()
    log = LogFiles(pair.slave.store)
    victim = sorted(log.bodies)[-3]
    segment = max(start for start in log.segments if start <= victim)
    with log.segments[segment].open("r+b") as stream:
        stream.seek(victim - segment + 100)
        byte = stream.read(1)[0]
        stream.seek(victim - segment + 100)
        stream.write(bytes([byte ^ 1]))
    pair.slave = pair.slave.restart()
    finish(pair, load)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_no_leak_over_many_reconnects(proxied: tuple[Pair, FaultProxy]) -> None:
    pair, proxy = proxied
    load = started_load(pair)
    # A log that grows opens files by right; what reconnects cost is seen while it does not.
    load.pause()
    pair.wait_caught_up()
    uses = []
    for _ in range(20):
        proxy.cut()
        wait_until(lambda: not live(pair), "gone")
        proxy.heal()
        wait_until(lambda: live(pair), "back")
        uses.append([use_of(broker) for broker in (pair.master, pair.slave)])
    for index in (0, 1):
        descriptors = [use[index][0] for use in uses]
        resident = [use[index][1] for use in uses]
        assert max(descriptors[5:]) <= max(descriptors[:5]) + 2, descriptors
        assert max(resident[5:]) <= max(resident[:5]) + 8 * 1024 * 1024, resident
        tasks = [use[index][2] for use in uses]
        assert max(tasks[5:]) <= max(tasks[:5]), tasks
    load.resume()
    before = load.count()
    wait_until(lambda: load.count() > before + 300, "SEND_OK again")
    finish(pair, load)


def use_of(broker: TwinlogBroker) -> tuple[int, int, int]:
    """(open descriptors, resident bytes, tasks)"""
    process = psutil.Process(broker.pid)
    tasks = ha_status(broker.address)["twinlog"]["taskCount"]
    return process.num_fds(), process.memory_info().rss, tasks


def live(pair: Pair) -> bool:
    return any(
        replica["twinlog"]["state"] == "TRANSFER"
        for replica in ha_status(pair.master.address)["haConnectionInfo"]
    )


def test_a_lone_master_answers_with_the_reason(pair: Pair) -> None:
    pair.start_master()
    answer = send_once(pair.master.address, b"alone")
    assert answer.code == 11
    assert answer.remark is not None
    assert answer.remark.startswith("no slave connected since 20")
    assert answer.ext()["queueOffset"] == "0"
    assert answer.ext()["msgId"]
