"""A record decays on a slave before it is dispatched: nothing behind it is given up."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.command_line import twinlog
from support.damage import Flip, flip_bit
from support.healing import CONFIG, bodies_served, running_pair
from support.local_brokers import Brokers, until
from support.local_group import GROUP, LocalGroup, local_group
from twinlog.broker.server import Broker
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand

pytestmark = pytest.mark.timeout(240)
BODIES = {b"%03d " % number + bytes(300) for number in range(60)}


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[LocalGroup]:
    async with local_group(tmp_path) as group:
        yield group


async def decayed(brokers: Brokers, master: Broker, slave: Broker) -> Flip:
    """Everything was sent and acknowledged; the slave, which was slow to dispatch, goes on when a
    bit in the middle has flipped."""
    assert (await brokers.send(master, b"000 " + bytes(300), topic="t")).code == 0
    await until(lambda: slave.store.dispatched.value == master.store.commit_log.max_offset)
    slave.store.reput.is_active = False
    for body in sorted(BODIES)[1:]:
        assert (await brokers.send(master, body, topic="t")).code == 0
    end = master.store.commit_log.max_offset
    await until(lambda: slave.store.commit_log.max_offset == end)
    path = Path(slave.store.commit_log.segments.segments[0].path)
    flip = flip_bit(path, path.read_bytes().index(b"030 "), random.Random(1))
    slave.store.reput.is_active = True
    return flip


async def test_a_slave_fetches_the_record_and_cuts_nothing(brokers: Brokers) -> None:
    master, slave = await running_pair(brokers)
    flip = await decayed(brokers, master, slave)
    cut_count = slave.store.commit_log.cut_count
    slave.store.reput.wake()
    end = master.store.commit_log.max_offset
    await until(lambda: slave.store.dispatched.value >= end)
    assert flip.is_healed
    assert slave.store.commit_log.cut_count == cut_count
    assert await bodies_served(brokers, slave) == BODIES


async def test_a_replica_that_is_elected_keeps_what_lies_behind(group: LocalGroup) -> None:
    """Its election and the damage come together: it leads when the record is whole again."""
    first, second = await group.pair()
    flip = await decayed(group.brokers, first, second)
    end = first.store.commit_log.max_offset
    await until(second.scrubber.healer.replicas)
    header = {"clusterName": "DefaultCluster", "brokerName": GROUP, "brokerId": 2,
              "designateElect": "true"}  # fmt: skip
    command = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
    answer = await group.brokers.client.invoke(group.controller.address, command, 30_000)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await until(lambda: second.role.is_master)
    assert flip.is_healed
    assert second.store.dispatched.value >= end
    assert await bodies_served(group.brokers, second) == BODIES


async def left_alone(
    brokers: Brokers, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Broker, Broker, Flip]:
    """A master that is gone, and a slave that waits for a good copy of a record."""
    monkeypatch.setattr("twinlog.broker.pair.dispatch_damage._PAUSE_MS", 5)
    path = directory / "slave.conf"
    path.write_text("brokerRole=SLAVE\nbrokerId=1\n")
    master, slave = await running_pair(brokers, slave_config_path=str(path))
    flip = await decayed(brokers, master, slave)
    await brokers.end(master)
    await until(lambda: not slave.ha.is_linked)
    tried: list[int] = []
    heal = slave.scrubber.healer.heal_record

    async def counted(offset: int) -> bool:
        tried.append(offset)
        return await heal(offset)

    monkeypatch.setattr(slave.scrubber.healer, "heal_record", counted)
    slave.store.reput.wake()
    await until(lambda: len(tried) > 20)
    return master, slave, flip


async def test_a_slave_without_its_master_is_not_promoted_at_the_cost_of_what_lies_behind(
    brokers: Brokers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    master, slave, _ = await left_alone(brokers, tmp_path, monkeypatch)
    end = slave.store.commit_log.max_offset
    assert end == master.store.commit_log.max_offset
    header = {"brokerName": slave.config.broker_name, "brokerRole": "SYNC_MASTER", "logEnd": end,
              "promotion": 0, "comparedEnd": end}  # fmt: skip
    answer = await brokers.call(slave, RequestCode.TWINLOG_PROMOTE, header)
    assert answer.code == ResponseCode.NO_PERMISSION
    offset = slave.store.reput.damage_offset
    for text in (f"the record at {offset} of the log is damaged", "`twinlog store give-up`"):
        assert text in (answer.remark or "")
        said = [record for record in caplog.records if text in record.getMessage()]
        named = [record.name for record in said if record.levelno >= logging.WARNING]
        assert named == ["twinlog.broker"], "once, however often it was tried"
    await brokers.end(slave)
    root = slave.config.store_path_root_dir
    assert "1 place is given up" in twinlog("store", "give-up", root, "--yes").ok().out
    again = await brokers.start("slave", broker_role="SLAVE", broker_id=1, **CONFIG)
    assert await bodies_served(brokers, again) == BODIES - {b"030 " + bytes(300)}


async def test_a_master_that_comes_back_has_the_record_and_nothing_is_cut(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave, flip = await left_alone(brokers, tmp_path, monkeypatch)
    cut_count, port = slave.store.commit_log.cut_count, master.config.listen_port
    again = await brokers.start("master", broker_role="SYNC_MASTER", listen_port=port, **CONFIG)
    await until(lambda: flip.is_healed and slave.ha.is_linked)
    await until(lambda: slave.store.dispatched.value >= again.store.commit_log.max_offset)
    assert slave.store.commit_log.cut_count == cut_count
    assert await bodies_served(brokers, slave) == await bodies_served(brokers, again) == BODIES
