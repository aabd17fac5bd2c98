"""Two real brokers, and a master that comes back without the end of its log.

Power loss is made by SIGKILL, zeros where the disk had not been written, and another boot of the
machine in the store's own note. Nothing is flushed in these runs, so all of it may be gone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.ha_files import LogFiles, assert_identical, assert_queues_dense
from support.ha_load import SEND_OK, ask, ha_status, send_once
from support.ha_pair import Pair
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker
from twinlog.ha.twin.mark import SLOTS
from twinlog.remoting.codes import RequestCode

SERVICE_NOT_AVAILABLE = 14
NEVER_FLUSHED = {"flushIntervalCommitLog": 600_000, "flushCommitLogThoroughInterval": 600_000}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, twinlogHADialect="twin", **NEVER_FLUSHED)
    yield pair
    for broker in (pair.slave, pair.master):
        broker.resume()
    pair.kill()


def send_many(
    pair: Pair, count: int, text: str, *, code: int = SEND_OK, size: int = 0
) -> list[int]:
    """Physical offsets of `count` messages, all answered with `code`."""
    answers = [
        send_once(pair.master.address, b"%s %04d " % (text.encode(), n) + b"." * size)
        for n in range(count)
    ]
    assert {answer.code for answer in answers} == {code}, answers[-1].remark
    return [int(answer.ext()["msgId"][16:], 16) for answer in answers]


def lose_power(
    broker: TwinlogBroker, offset: int, *, knows_boot: bool = True, knows_mark: bool = True
) -> None:
    """SIGKILL; what the log had from `offset` on never reached the disk."""
    broker.kill()
    for file in sorted((broker.store / "commitlog").iterdir()):
        start = max(0, offset - int(file.name))
        with file.open("r+b") as log:
            size = file.stat().st_size
            if start < size:
                log.seek(start)
                log.write(bytes(size - start))
        if int(file.name) >= offset and file.name != "0" * 20:
            file.unlink()
    # Written when the log was synced: here it never was.
    (broker.store / "twinlog" / "recovery").unlink(missing_ok=True)
    note = broker.store / "twinlog" / "replicas.json"
    if knows_boot:
        note.write_text(json.dumps({**json.loads(note.read_text()), "boot_id": "the one before"}))
    else:
        note.unlink()
    if not knows_mark:
        (broker.store / "twinlog" / "confirmed.mark").unlink(missing_ok=True)


def twinlog_status(address: str) -> dict[str, Any]:
    status: dict[str, Any] = ha_status(address)["twinlog"]
    return status


def marked(path: Path) -> int:
    data = path.read_bytes()
    return max(int.from_bytes(data[slot : slot + 8], "big") for slot in SLOTS)


def wait_marked(pair: Pair) -> None:
    """Both have written down what is confirmed."""

    def is_marked() -> bool:
        end = ha_status(pair.master.address)["masterCommitLogMaxOffset"]
        paths = [b.store / "twinlog" / "confirmed.mark" for b in (pair.master, pair.slave)]
        return all(path.exists() and marked(path) == end for path in paths)

    wait_until(is_marked, "both marks are at the end of the log")


def texts_in(store: Path) -> set[str]:
    """The bodies of the messages of these tests, without what fills them up."""
    log = LogFiles(store)
    data = log.read(log.start, log.end)
    words = ("kept", "lost", "fresh", "later")
    found = set()
    for word in words:
        at = -1
        while (at := data.find(word.encode() + b" ", at + 1)) >= 0:
            found.add(data[at : at + len(word) + 5].decode())
    return found


def named(text: str, count: int) -> set[str]:
    return {f"{text} {n:04d}" for n in range(count)}


def cuts(broker: TwinlogBroker) -> list[Path]:
    return sorted((broker.store / "twinlog").glob("cut-*"))


def assert_nothing_lost(pair: Pair, *expected: tuple[str, int]) -> None:
    pair.wait_in_sync()
    wait_until(
        lambda: not twinlog_status(pair.master.address)["incomplete"], "the master takes sends"
    )
    send_many(pair, 3, "later")
    pair.wait_caught_up()
    assert cuts(pair.slave) == []
    master, slave = pair.stop_and_read()
    assert_identical(master, slave)
    assert_queues_dense(master)
    wanted = set().union(*(named(text, count) for text, count in expected))
    assert texts_in(pair.master.store) == wanted | named("later", 3)


@pytest.mark.parametrize("knows_mark", [True, False])
def test_what_only_the_slave_has_left_comes_back_before_the_first_send(
    pair: Pair, knows_mark: bool
) -> None:
    pair.start()
    send_many(pair, 10, "kept")
    lost = send_many(pair, 30, "lost")
    wait_marked(pair)
    pair.slave.suspend()
    lose_power(pair.master, lost[0], knows_mark=knows_mark)
    pair.master = pair.master.restart()
    answer = send_once(pair.master.address, b"too early")
    assert answer.code == SERVICE_NOT_AVAILABLE
    assert "waiting for" in str(answer.remark)
    assert "waiting for" in twinlog_status(pair.master.address)["incomplete"]
    pair.slave.resume()
    assert_nothing_lost(pair, ("kept", 10), ("lost", 30))


def test_a_master_that_lost_its_whole_log_gets_it_back(pair: Pair) -> None:
    pair.start()
    first = send_many(pair, 20, "lost")[0]
    wait_marked(pair)
    lose_power(pair.master, first)
    pair.master = pair.master.restart()
    assert_nothing_lost(pair, ("lost", 20))


def test_a_kill_in_the_middle_of_the_copy_is_made_up_for(pair: Pair) -> None:
    pair.start()
    send_many(pair, 3, "kept")
    lost = send_many(pair, 120, "lost", size=60_000)
    wait_marked(pair)
    lose_power(pair.master, lost[0])
    pair.master = pair.master.restart()
    pair.master.wait_for_text("fetching slave=")
    pair.master.kill()
    for _ in range(2):  # The copy may have come to its end before the kill.
        pair.master = pair.master.restart()
        pair.master.wait_ready(
            lambda: re.search("fetching slave=|sends are accepted again", pair.master.output()),
            "it fetches, or it has everything",
        )
        pair.master.kill()
    pair.master = pair.master.restart()
    assert_nothing_lost(pair, ("kept", 3), ("lost", 120))


def test_a_slave_that_dies_in_the_middle_goes_on_when_it_is_back(pair: Pair) -> None:
    pair.start()
    send_many(pair, 3, "kept")
    lost = send_many(pair, 120, "lost", size=60_000)
    wait_marked(pair)
    lose_power(pair.master, lost[0])
    pair.master = pair.master.restart()
    pair.master.wait_for_text("fetching slave=")
    pair.slave.kill()
    pair.slave = pair.slave.restart()
    assert_nothing_lost(pair, ("kept", 3), ("lost", 120))


def test_what_a_returned_master_took_alone_gives_way_to_what_was_confirmed(pair: Pair) -> None:
    """It knew nothing of what it lost: both of its notes were gone with the power."""
    pair.start()
    send_many(pair, 10, "kept")
    lost = send_many(pair, 30, "lost")
    wait_marked(pair)
    pair.slave.suspend()
    lose_power(pair.master, lost[0], knows_boot=False, knows_mark=False)
    pair.master = pair.master.restart()
    send_many(pair, 5, "fresh", code=11)
    pair.slave.resume()
    assert_nothing_lost(pair, ("kept", 10), ("lost", 30))
    assert cuts(pair.master), "what it took alone is kept aside"


def test_two_answered_tails_are_left_to_a_person_and_both_are_kept(pair: Pair) -> None:
    """An ASYNC_MASTER said SEND_OK to what it took alone, too."""
    pair.start_master(brokerRole="ASYNC_MASTER")
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}")
    pair.wait_in_sync()
    send_many(pair, 10, "kept")
    lost = send_many(pair, 30, "lost")
    wait_marked(pair)
    pair.slave.suspend()
    lose_power(pair.master, lost[0], knows_boot=False, knows_mark=False)
    pair.master = pair.master.restart()
    send_many(pair, 5, "fresh")
    pair.slave.resume()
    assert_left_to_a_person(pair)
    send_many(pair, 5, "fresh")


def assert_left_to_a_person(pair: Pair) -> None:
    """Neither of two tails is cut, and the slave says why."""

    def reason() -> str:
        return str(ha_status(pair.slave.address)["haClientRuntimeInfo"]["twinlog"]["damage"])

    wait_until(lambda: "nothing is cut" in reason(), "the slave says why")
    assert "PAIR.md" in reason()
    assert pair.slave.stop() == 0
    assert cuts(pair.slave) == cuts(pair.master) == []
    assert texts_in(pair.slave.store) == named("kept", 10) | named("lost", 30)
    assert texts_in(pair.master.store) == named("kept", 10) | named("fresh", 5)


@pytest.mark.parametrize(
    "alone",
    [{"brokerRole": "ASYNC_MASTER"}, {"inSyncReplicas": 1}],
    ids=["async", "no slave needed"],
)
def test_what_was_answered_alone_stays_when_the_master_waits_for_slaves_again(
    pair: Pair, alone: dict[str, object]
) -> None:
    """Nobody waited for a slave while there was none; then everything is as it was before."""
    pair.start()
    send_many(pair, 10, "kept")
    lost = send_many(pair, 30, "lost")
    wait_marked(pair)
    pair.slave.suspend()
    before = pair.master.config
    lose_power(pair.master, lost[0], knows_boot=False, knows_mark=False)
    pair.master = pair.master.restart(**alone)
    send_many(pair, 5, "fresh")
    pair.master.kill()
    pair.master = pair.master.restart(**{key: before.get(key, 2) for key in alone})
    pair.slave.resume()
    assert_left_to_a_person(pair)


def test_a_slave_that_lost_its_own_power_claims_no_more_than_it_has(pair: Pair) -> None:
    pair.start()
    send_many(pair, 10, "kept")
    lost = send_many(pair, 30, "lost")
    wait_marked(pair)
    lose_power(pair.slave, lost[0])
    pair.slave = pair.slave.restart()
    assert_nothing_lost(pair, ("kept", 10), ("lost", 30))
    assert "this replica had confirmed bytes" in pair.slave.output()


def test_a_slave_that_lost_power_and_becomes_the_master_waits_for_the_rest(pair: Pair) -> None:
    """It knows from its own mark that something is missing; the old master has it."""
    pair.start()
    send_many(pair, 10, "kept")
    lost = send_many(pair, 30, "lost")
    wait_marked(pair)
    lose_power(pair.slave, lost[0])
    pair.master.kill()
    old, pair.master = pair.master, pair.slave.restart(brokerRole="SYNC_MASTER", brokerId=0)
    assert "confirmed up to" in twinlog_status(pair.master.address)["incomplete"]
    pair.slave = old.restart(
        brokerRole="SLAVE", brokerId=1, haMasterAddress=f"127.0.0.1:{pair.master.ha_port}"
    )
    assert_nothing_lost(pair, ("kept", 10), ("lost", 30))


def test_a_kill_without_a_power_loss_delays_nothing(pair: Pair) -> None:
    """Without its slave a master that was only killed has everything, and takes sends at once."""
    pair.start()
    send_many(pair, 10, "kept")
    pair.slave.suspend()
    pair.master.kill()
    pair.master = pair.master.restart()
    send_many(pair, 5, "fresh", code=11)


@pytest.mark.parametrize("policy", ["tail", "all"])
def test_a_wiped_master_with_a_message_is_still_taken_for_an_empty_one(
    pair: Pair, policy: str
) -> None:
    pair.start(twinlogReseed=policy)
    send_many(pair, 20, "kept")
    wait_marked(pair)
    pair.slave.suspend()
    pair.master.kill()
    shutil.rmtree(pair.master.store)
    pair.master = pair.master.restart()
    send_many(pair, 1, "fresh", code=11)
    pair.slave.resume()

    def reason() -> str:
        return str(ha_status(pair.slave.address)["haClientRuntimeInfo"]["twinlog"]["damage"])

    wait_until(lambda: "another log" in reason(), "the slave says why")
    assert pair.slave.stop() == 0
    assert list((pair.slave.store / "twinlog").glob("*-*")) == [], "nothing was cut or moved"
    assert texts_in(pair.slave.store) == named("kept", 20)


def test_consumers_of_a_master_that_lost_its_tail_pass_nothing_over(pair: Pair) -> None:
    """Alone, so that the tail is gone: what comes instead of it is read."""
    pair.start_master(brokerRole="ASYNC_MASTER", flushConsumerOffsetInterval=100)
    pair.slave = pair.master
    send_many(pair, 10, "kept")
    lost = send_many(pair, 10, "lost")
    queue = {"topic": "load", "queueId": "0"}
    group = {"consumerGroup": "g", **queue}
    commit = {**group, "commitOffset": "20"}
    assert ask(pair.master.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    saved = pair.master.store / "config" / "consumerOffset.json"
    wait_until(lambda: saved.exists() and "20" in saved.read_text(), "the offset is saved")
    lose_power(pair.master, lost[0], knows_boot=False)
    pair.master = pair.slave = pair.master.restart(twinlogHADialect="twin")
    answer = ask(pair.master.address, RequestCode.QUERY_CONSUMER_OFFSET, group)
    assert answer.ext()["offset"] == "10"
    send_many(pair, 15, "fresh")
    pull = {
        **group, "queueOffset": "20", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    answer = ask(pair.master.address, RequestCode.PULL_MESSAGE, pull)
    assert answer.ext()["nextBeginOffset"] == "10", "it goes on where the new messages begin"
