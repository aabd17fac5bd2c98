"""A record decays on a slave before it is dispatched: nothing behind it is given up."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.damage import Flip, flip_bit
from support.healing import bodies_served, running_pair
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
