"""A controlled group that is a fixed pair for a while, and controlled again: the record of its
controller tells nothing of that time, and must not decide over what was taken in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.local_brokers import until
from support.local_group import GROUP, LocalGroup, local_group
from twinlog.broker.server import Broker
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand

TOTAL = {"total_replicas": 2}
FIXED = {"enable_controller_mode": False, "controller_addr": "", "broker_role": "ASYNC_MASTER"}


async def take_alone(group: LocalGroup, name: str) -> int:
    """Where the log ends after a time as a fixed master."""
    broker = await group.start(name, **FIXED)
    answer = await group.brokers.send(broker, b"taken alone")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    end = broker.store.commit_log.max_offset
    await group.brokers.end(broker)
    return end


async def adopt(group: LocalGroup) -> Any:
    header = {"brokerName": GROUP, "twinlogGroup": GROUP}
    command = RemotingCommand.request(RequestCode.TWINLOG_ADOPT, header)
    return await group.brokers.client.invoke(group.controller.address, command, 30_000)


async def test_an_older_record_does_not_cut_what_a_fixed_master_took(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(**TOTAL)
        await group.brokers.end(second)
        await group.in_sync(1)
        await group.brokers.end(first)
        end = await take_alone(group, "second")
        first = await group.start("first", **TOTAL)
        await until(lambda: first.role.is_master)  # By the record it is the only one that may.
        second = await group.start("second", **TOTAL)
        await until(lambda: frozen(second))
        assert "is older than the group" in frozen(second)
        assert second.store.commit_log.max_offset >= end
        assert not list((tmp_path / "second" / "twinlog").glob("cut-*"))
        answer = await adopt(group)
        assert answer.code != ResponseCode.SUCCESS
        assert "2 replicas were the master before" in (answer.remark or "")


async def test_the_fixed_master_leads_when_the_group_is_adopted_again(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(**TOTAL)
        await group.brokers.end(second)
        await group.in_sync(1)
        await group.brokers.end(first)
        for _ in range(2):  # A second start as a fixed master changes nothing.
            end = await take_alone(group, "first")
        first = await group.start("first", **TOTAL)
        await until(lambda: frozen(first))
        second = await group.start("second", **TOTAL)
        answer = await adopt(group)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await until(lambda: first.role.is_master)
        await group.in_sync(2)
        await until(lambda: second.store.commit_log.max_offset > end)


def frozen(broker: Broker) -> str:
    return "" if broker.replicas is None else broker.replicas.frozen
