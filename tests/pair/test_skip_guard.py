"""A copy becomes the master while consumers stand in a tail that it never had: none is skipped."""

from __future__ import annotations

import pytest

from support.local_brokers import SUBSCRIPTION, Brokers, pull, until
from twinlog.broker.server import Broker
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting import fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.clock import SystemClock

COMMIT = 1
SHARED, CONSUMED, TAIL_END = 5, 3, 10


def goes_on_at(answer: Request) -> int:
    return int(answer.ext()["nextBeginOffset"])


async def commit(brokers: Brokers, broker: Broker, offset: int, group: str = "g") -> None:
    header = {"consumerGroup": group, "topic": "t", "queueId": 0, "commitOffset": offset}
    assert (await brokers.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def promote(brokers: Brokers, *, sent_after: int, committed: int = CONSUMED) -> Broker:
    """A slave with five messages becomes the master; its old master had five more.

    `committed` is where the group "g" stood on the copy, `sent_after` are new messages on it.
    """
    master = await brokers.master()
    slave = await brokers.slave(master)
    for _ in range(SHARED):
        assert (await brokers.send(master, topic="t")).code == 0
    await until(lambda: slave.store.max_offset_in_queue("t", 0) == SHARED)
    slave.topics.replace(dict(master.topics.table), master.topics.data_version.to_json())
    slave.offsets.commit("g", "t", 0, committed)
    await brokers.end(slave)
    await brokers.end(master)
    promoted = await brokers.start("slave", broker_role="ASYNC_MASTER")
    for _ in range(sent_after):
        assert (await brokers.send(promoted, topic="t")).code == 0
    return promoted


@pytest.mark.parametrize("sent_after", [0, 2, 5, 20])
async def test_a_position_in_the_lost_tail_goes_back_to_what_is_committed(
    brokers: Brokers, sent_after: int
) -> None:
    promoted = await promote(brokers, sent_after=sent_after)
    for _ in range(2):  # Asked again as well: the first answer may have been lost.
        answer = await pull(brokers, promoted, TAIL_END)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert goes_on_at(answer) == CONSUMED
    assert (await pull(brokers, promoted, CONSUMED)).code == ResponseCode.SUCCESS
    if sent_after == 20:
        # Now it has been in the part that both logs share: where it goes from there is its own.
        assert (await pull(brokers, promoted, TAIL_END)).code == ResponseCode.SUCCESS
        await commit(brokers, promoted, 20)
        assert promoted.offsets.query("g", "t", 0) == 20


async def test_a_commit_from_the_lost_tail_counts_as_the_end_of_the_shared_part(
    brokers: Brokers,
) -> None:
    promoted = await promote(brokers, sent_after=20)
    await commit(brokers, promoted, TAIL_END)
    assert promoted.offsets.query("g", "t", 0) == SHARED
    assert goes_on_at(await pull(brokers, promoted, TAIL_END)) == SHARED


async def test_a_commit_within_the_pull_says_what_is_consumed(brokers: Brokers) -> None:
    """A Java consumer's pull carries it: what it consumed is not consumed twice."""
    promoted = await promote(brokers, sent_after=20)
    flags = SUBSCRIPTION | COMMIT
    answer = await pull(brokers, promoted, TAIL_END, sysFlag=flags, commitOffset=4)
    assert goes_on_at(answer) == 4
    answer = await pull(brokers, promoted, TAIL_END, sysFlag=flags, commitOffset=TAIL_END)
    assert goes_on_at(answer) == SHARED


async def test_offsets_beyond_the_copy_go_back_with_it(brokers: Brokers) -> None:
    """A classic master's table runs ahead of its log."""
    promoted = await promote(brokers, sent_after=0, committed=TAIL_END)
    assert promoted.offsets.query("g", "t", 0) == SHARED


async def test_a_group_without_offsets_may_start_anywhere_in_the_queue(brokers: Brokers) -> None:
    """It has asked for its offset first; tools never do."""
    promoted = await promote(brokers, sent_after=20)
    asked = {"consumerGroup": "new", "topic": "t", "queueId": 0}
    await brokers.call(promoted, RequestCode.QUERY_CONSUMER_OFFSET, asked)
    for group in ("new", TOOLS_GROUP):
        answer = await pull(brokers, promoted, TAIL_END, consumerGroup=group)
        assert answer.code == ResponseCode.SUCCESS
    answer = await pull(brokers, promoted, 99, consumerGroup="lost")
    assert (answer.code, goes_on_at(answer)) == (ResponseCode.PULL_OFFSET_MOVED, SHARED)


async def test_a_running_group_whose_commits_were_lost_is_sent_back_too(brokers: Brokers) -> None:
    promoted = await promote(brokers, sent_after=20)
    other = RemotingClient(clock=SystemClock())
    asked = {"consumerGroup": "lost", "topic": "t", "queueId": 0}
    command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, asked)
    try:  # Another client: what it was told, this one does not know.
        await other.invoke(promoted.address, command, 30_000)
    finally:
        await other.close()
    answer = await pull(brokers, promoted, TAIL_END, consumerGroup="lost")
    assert (answer.code, goes_on_at(answer)) == (ResponseCode.PULL_OFFSET_MOVED, SHARED)


async def test_a_broadcasting_member_is_sent_to_the_end_of_the_shared_part(
    brokers: Brokers,
) -> None:
    promoted = await promote(brokers, sent_after=20)
    consumer = {
        "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "BROADCASTING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [{"topic": "t", "subString": "*", "subVersion": 0}],
    }  # fmt: skip
    body = fastjson.dumps({"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]})
    assert (await brokers.call(promoted, RequestCode.HEART_BEAT, {}, body)).code == 0
    answer = await pull(brokers, promoted, TAIL_END)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert goes_on_at(answer) == SHARED
    assert (await pull(brokers, promoted, TAIL_END)).code == ResponseCode.SUCCESS


async def test_a_promoted_master_that_starts_again_remembers(brokers: Brokers) -> None:
    promoted = await promote(brokers, sent_after=20)
    await brokers.end(promoted)
    again = await brokers.start("slave", broker_role="ASYNC_MASTER")
    assert goes_on_at(await pull(brokers, again, TAIL_END)) == CONSUMED


async def test_a_master_that_stays_master_answers_as_apache(brokers: Brokers) -> None:
    master = await brokers.master(broker_role="ASYNC_MASTER")
    assert not master.skip_guard.is_armed
    for _ in range(SHARED):
        await brokers.send(master, topic="t")
    await commit(brokers, master, CONSUMED)
    await brokers.end(master)
    master = await brokers.master(broker_role="ASYNC_MASTER")
    answer = await pull(brokers, master, TAIL_END)
    assert (answer.code, goes_on_at(answer)) == (ResponseCode.PULL_OFFSET_MOVED, SHARED)
    await commit(brokers, master, TAIL_END)
    assert master.offsets.query("g", "t", 0) == TAIL_END
