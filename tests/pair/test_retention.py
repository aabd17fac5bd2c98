"""Retention of a master whose slave is behind, as processes: what the slave lacks stays, until the
disk is used to the limit that the configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ha_load import Connection, Load, ha_status
from support.ha_pair import SEGMENT_SIZE, Pair
from support.processes import wait_until
from twinlog.remoting.codes import RequestCode

pytestmark = pytest.mark.timeout(240)
LIMIT = 4 * SEGMENT_SIZE


@pytest.fixture(params=["classic", "twin"])
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The slave stays connected while it is suspended."""
    pair = Pair(
        tmp_path,
        twinlogHADialect=request.param,
        brokerRole="ASYNC_MASTER",
        twinlogRetentionBytes=LIMIT,
        cleanResourceInterval=200,
        deleteCommitLogFilesInterval=0,
        diskSpaceCleanForciblyRatio=100,
        haHousekeepingInterval=600_000,
    )
    pair.start_master()
    pair.start_slave(f"127.0.0.1:{pair.master.ha_port}", brokerRole="SLAVE")
    pair.wait_in_sync()
    yield pair
    pair.slave.resume()
    pair.kill()


def first_segment(pair: Pair) -> int:
    return min(int(path.name) for path in (pair.master.store / "commitlog").iterdir())


def end_of(pair: Pair) -> int:
    return int(ha_status(pair.master.address)["masterCommitLogMaxOffset"])


def acknowledged(pair: Pair) -> int:
    (replica,) = ha_status(pair.master.address)["haConnectionInfo"]
    return int(replica["slaveAckOffset"])


def set_limit_of_disk(pair: Pair, percent: int) -> None:
    """Every disk is used to more than nothing."""
    connection = Connection(pair.master.address)
    body = f"diskSpaceCleanForciblyRatio={percent}\n".encode()
    answer = connection.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    connection.close()
    assert answer.code == 0, answer.remark


def said_by(pair: Pair) -> str:
    """Of the master about a classic slave, which is held; of a twin itself."""
    links = ha_status(pair.master.address)["haConnectionInfo"]
    held = [link["twinlog"]["reason"] for link in links]
    client = ha_status(pair.slave.address)["haClientRuntimeInfo"]["twinlog"]
    return " ".join([*held, client["lastDisconnectReason"]])


def fill(pair: Pair, size: int) -> None:
    load = Load(pair.master.address, size=4000)
    wanted = end_of(pair) + size
    load.start()
    wait_until(lambda: end_of(pair) >= wanted, "the log grows")
    load.finish()


def test_what_a_slave_lacks_stays_until_the_disk_is_used_to_the_limit(pair: Pair) -> None:
    fill(pair, 2 * LIMIT)
    wait_until(lambda: end_of(pair) - first_segment(pair) < LIMIT + 2 * SEGMENT_SIZE, "retention")
    pair.slave.suspend()
    fill(pair, 12 * SEGMENT_SIZE)
    pair.master.wait_for_text("segment kept for a slave")
    wait_until(
        lambda: first_segment(pair) <= acknowledged(pair) < first_segment(pair) + SEGMENT_SIZE,
        "what the slave has is gone, and nothing else",
    )
    pair.slave.resume()
    pair.wait_caught_up()
    wait_until(lambda: end_of(pair) - first_segment(pair) < LIMIT + 2 * SEGMENT_SIZE, "retention")

    pair.slave.suspend()
    fill(pair, 12 * SEGMENT_SIZE)
    lacking = acknowledged(pair)
    assert first_segment(pair) <= lacking
    set_limit_of_disk(pair, 0)
    wait_until(lambda: end_of(pair) - first_segment(pair) < SEGMENT_SIZE, "only the last is left")
    assert first_segment(pair) > lacking
    pair.master.wait_for_text("reason=disk space, which a slave does not have yet")
    pair.slave.kill()
    pair.slave = pair.slave.restart()
    wait_until(lambda: "this master" in said_by(pair), "it is said that the slave cannot go on")
    assert str(first_segment(pair)) in said_by(pair), "and what the master still has"
