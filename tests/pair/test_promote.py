"""A slave becomes the master: with `twinlog ha promote`, and by hand as with RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.ha_load import ask, send_once
from support.pair_story import Pair, running_pair
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker
from twinlog.remoting.codes import RequestCode

pytestmark = pytest.mark.timeout(240)


def committed(broker: TwinlogBroker, group: str = "g", topic: str = "load") -> str | None:
    """The offset of queue 0, None when there is none."""
    header = {"consumerGroup": group, "topic": topic, "queueId": 0}
    return ask(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header).ext().get("offset")


def commit(broker: TwinlogBroker, offset: int, group: str = "g", topic: str = "load") -> None:
    header = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    assert ask(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0


def send_many(broker: TwinlogBroker, count: int, prefix: bytes = b"m") -> list[bytes]:
    bodies = [b"%s%04d" % (prefix, number) for number in range(count)]
    assert [send_once(broker.address, body).code for body in bodies] == [0] * count
    return bodies


def kill_with_offsets_only_in_the_log(pair: Pair) -> None:
    send_many(pair.master, 50)
    commit(pair.master, 40)
    wait_until(lambda: committed(pair.slave) == "40", "the slave knows the offset")
    pair.slave.kill()
    pair.master.kill()
    saved = pair.slave.store / "config" / "consumerOffset.json"
    assert not saved.exists() or b"load@g" not in saved.read_bytes()


def test_a_killed_slave_that_is_made_master_by_hand_has_the_metadata_of_its_log(
    tmp_path: Path,
) -> None:
    with running_pair(tmp_path, flushConsumerOffsetInterval=3_600_000) as pair:
        kill_with_offsets_only_in_the_log(pair)
        promoted = pair.restart(pair.slave, brokerRole="SYNC_MASTER", brokerId=0)
        assert committed(promoted) == "40"
        # Also when it dies again before its tables are saved for the first time.
        promoted.kill()
        assert committed(pair.restart(promoted)) == "40"
