"""Two real brokers, twin dialect: identity, whole copies, divergence, reseeding, durable acks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.bit_flipper import BitFlipper
from support.ha_files import LogFiles, assert_identical, assert_queues_dense, numbers_in
from support.ha_load import SEND_OK, Load, ha_status, send_once
from support.ha_pair import Pair
from support.processes import wait_until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, twinlogHADialect="twin")
    yield pair
    pair.kill()


def send(address: str, count: int, *, first: int = 0) -> Load:
    """At least `count` answered messages, whatever their status."""
    load = Load(address)
    load.sent = first
    load.start()
    wait_until(lambda: len(load.acked) >= count, f"{count} answers")
    load.finish()
    return load


def assert_same_logs(pair: Pair) -> tuple[LogFiles, LogFiles]:
    pair.wait_caught_up()
    master, slave = pair.stop_and_read()
    assert_identical(master, slave)
    assert (master.end, master.start) == (slave.end, slave.start)
    assert_queues_dense(slave)
    return master, slave


def stay_reason(pair: Pair) -> str:
    """Why the slave does not go on."""

    def reason() -> str:
        client = ha_status(pair.slave.address)["haClientRuntimeInfo"]["twinlog"]
        return str(client["damage"])

    wait_until(reason, "the slave says why it stays")
    return reason()


def aside(pair: Pair) -> list[Path]:
    return sorted((pair.slave.store / "twinlog").glob("cut-*"))


def test_a_new_slave_copies_the_whole_log(pair: Pair) -> None:
    pair.start_master()
    send(pair.master.address, 3000)
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}")
    pair.wait_in_sync()
    load = send(pair.master.address, 500, first=10_000)
    assert load.count(SEND_OK) > 0
    _, slave = assert_same_logs(pair)
    assert slave.start == 0
    assert numbers_in(slave) >= {n for n, code in load.acked.items() if code == SEND_OK}


def test_a_slave_that_went_its_own_way_is_cut_to_the_last_common_record(pair: Pair) -> None:
    pair.start()
    send(pair.master.address, 800)
    pair.wait_caught_up()
    assert pair.slave.stop() == 0
    # The slave's copy becomes a master for a while: its log is longer and different.
    pair.slave = pair.slave.restart(brokerRole="ASYNC_MASTER", brokerId=0)
    send(pair.slave.address, 700, first=50_000)
    assert pair.slave.stop() == 0
    send(pair.master.address, 300, first=90_000)
    pair.slave = pair.slave.restart(brokerRole="SLAVE", brokerId=1)
    pair.wait_in_sync()
    assert aside(pair), "what was cut is kept"
    _, slave = assert_same_logs(pair)
    assert not numbers_in(slave) & set(range(50_000, 60_000))


def test_manual_policy_changes_nothing_and_says_why(pair: Pair) -> None:
    pair.start(twinlogReseed="manual")
    send(pair.master.address, 300)
    pair.wait_caught_up()
    assert pair.slave.stop() == 0
    pair.slave = pair.slave.restart(brokerRole="ASYNC_MASTER", brokerId=0)
    send(pair.slave.address, 100, first=50_000)
    assert pair.slave.stop() == 0
    before = LogFiles(pair.slave.store).end
    send(pair.master.address, 50, first=90_000)
    pair.slave = pair.slave.restart(brokerRole="SLAVE", brokerId=1)
    assert "manual" in stay_reason(pair)
    assert pair.slave.stop() == 0
    assert LogFiles(pair.slave.store).end == before
    assert aside(pair) == []


def test_the_copy_of_another_master_is_refused(pair: Pair, tmp_path: Path) -> None:
    pair.start()
    send(pair.master.address, 300)
    pair.wait_caught_up()
    assert pair.slave.stop() == 0
    stranger = Pair(tmp_path / "other", twinlogHADialect="twin")
    stranger.start_master()
    try:
        send(stranger.master.address, 300)
        pair.slave = pair.slave.restart(haMasterAddress=f"127.0.0.1:{stranger.master.ha_port}")
        assert "another log" in stay_reason(pair)
        assert aside(pair) == []
    finally:
        stranger.kill()


def test_reseed_all_moves_everything_aside_and_copies_anew(pair: Pair, tmp_path: Path) -> None:
    pair.start(twinlogReseed="all")
    send(pair.master.address, 300)
    pair.wait_caught_up()
    assert pair.slave.stop() == 0
    stranger = Pair(tmp_path / "other", twinlogHADialect="twin")
    stranger.start_master()
    try:
        send(stranger.master.address, 500, first=70_000)
        pair.slave = pair.slave.restart(haMasterAddress=f"127.0.0.1:{stranger.master.ha_port}")
        assert "was confirmed by its group" in stay_reason(pair)
        assert list((pair.slave.store / "twinlog").glob("*-*")) == [], "nothing was moved"
        assert pair.slave.stop() == 0
        # As OPERATIONS.md says: whoever removes the mark gives up what it stands for.
        (pair.slave.store / "twinlog" / "confirmed.mark").unlink()
        pair.slave = pair.slave.restart()
        stranger.slave = pair.slave
        stranger.wait_in_sync()
        old = list((pair.slave.store / "twinlog").glob("reseed-*/commitlog/*"))
        assert old, "the old log is kept"
        assert_same_logs(stranger)
    finally:
        stranger.kill()


@pytest.mark.parametrize("policy", ["tail", "all"])
def test_a_wiped_master_stops_its_slave_whose_copy_brings_all_back(pair: Pair, policy: str) -> None:
    """As docs/OPERATIONS.md says, "A master that came back empty"."""
    pair.start(twinlogReseed=policy)
    load = send(pair.master.address, 300)
    pair.wait_caught_up()
    end = ha_status(pair.slave.address)["haClientRuntimeInfo"]["maxOffset"]
    pair.master.kill()
    shutil.rmtree(pair.master.store)
    pair.master = pair.master.restart()
    assert "the master's log is empty" in stay_reason(pair)
    departed = ha_status(pair.master.address)["twinlog"]["departed"]
    assert any("the master's log is empty" in entry["reason"] for entry in departed)
    assert ha_status(pair.slave.address)["haClientRuntimeInfo"]["maxOffset"] == end
    assert list((pair.slave.store / "twinlog").glob("*-*")) == [], "nothing was cut or moved"
    answer = send_once(pair.master.address, b"to the empty one")
    assert answer.code == 11
    assert "the master's log is empty" in str(answer.remark)
    assert pair.master.stop() == 0
    shutil.rmtree(pair.master.store)
    assert pair.slave.stop() == 0
    pair.slave, pair.master = pair.master, pair.slave.restart(brokerRole="SYNC_MASTER", brokerId=0)
    address = f"127.0.0.1:{pair.master.ha_port}"
    pair.slave = pair.slave.restart(brokerRole="SLAVE", brokerId=1, haMasterAddress=address)
    pair.wait_in_sync()
    _, copy = assert_same_logs(pair)
    assert numbers_in(copy) >= {n for n, code in load.acked.items() if code == SEND_OK}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"brokerClusterName": "elsewhere"}, "cluster"),
        ({"brokerName": "another"}, "broker"),
        ({"twinlogHASecret": "wrong"}, "secret"),
    ],
)
def test_a_stranger_is_refused_with_the_reason_at_both_ends(
    pair: Pair, changes: dict[str, object], words: str
) -> None:
    pair.start_master(twinlogHASecret="right")
    values = {"twinlogHASecret": "right", **changes}
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}", **values)
    wait_until(lambda: words in pair.slave.output(), "the slave says why")
    wait_until(lambda: words in pair.master.output(), "the master says why")
    assert list((pair.slave.store / "commitlog").iterdir()) == []


def test_bits_flipped_on_the_link_are_found_and_never_stored(pair: Pair) -> None:
    pair.start_master()
    send(pair.master.address, 3000)
    flipper = BitFlipper(("127.0.0.1", pair.master.ha_port), seed=1, every_bytes=300_000)
    try:
        pair.start_slave(flipper.address)
        pair.wait_in_sync()
        load = send(pair.master.address, 4000, first=10_000)
        pair.wait_in_sync()
        assert flipper.flip_count > 2
        _, slave = assert_same_logs(pair)
        assert numbers_in(slave) >= {n for n, code in load.acked.items() if code == SEND_OK}
    finally:
        flipper.close()


def test_durable_acknowledgements_come_from_the_slaves_disk(pair: Pair) -> None:
    pair.config |= {"flushDiskType": "SYNC_FLUSH"}
    pair.start()
    load = send(pair.master.address, 300)
    assert load.count(SEND_OK) >= 280
    (replica,) = ha_status(pair.master.address)["haConnectionInfo"]
    assert replica["inSync"] is True
    assert_same_logs(pair)


def test_the_slave_survives_its_masters_kill_and_the_reverse(pair: Pair) -> None:
    pair.start()
    load = Load(pair.master.address)
    load.start()
    for victim in ("slave", "master", "slave"):
        goal = load.count() + 500
        wait_until(lambda goal=goal: load.count() > goal, "500 more acknowledged")
        broker = getattr(pair, victim)
        broker.kill()
        setattr(pair, victim, broker.restart())
        pair.wait_in_sync()
    load.finish()
    _, slave = assert_same_logs(pair)
    assert numbers_in(slave) >= {n for n, code in load.acked.items() if code == SEND_OK}
