"""What an operator made is on disk when the answer comes, not a moment later."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from support.captured import Peer, world
from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand

TOPIC = {
    "topic": "Made", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6", "order": "false",
    "topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102",
}  # fmt: skip
GROUP = msgspec.json.encode({"groupName": "Made", "retryMaxTimes": 3})
CREATE_TOPIC = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
DELETE_TOPIC = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Made"})
CREATE_GROUP = RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, GROUP)
DELETE_GROUP = RemotingCommand.request(
    RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "Made", "removeOffset": "false"}
)


@pytest.mark.parametrize(
    ("table", "create", "delete"),
    [("topics", CREATE_TOPIC, DELETE_TOPIC), ("groups", CREATE_GROUP, DELETE_GROUP)],
)
async def test_the_answer_waits_for_the_disk(
    table: str, create: RemotingCommand, delete: RemotingCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(end=0, tables=False) as broker:
        peer = Peer(broker.server)
        saver = getattr(broker, table).saver
        write = saver._write
        may_write = asyncio.Event()

        async def slowly() -> None:
            await may_write.wait()
            await write()

        monkeypatch.setattr(saver, "_write", slowly)
        for command in (create, delete):
            may_write.clear()
            asking = asyncio.create_task(peer.ask(encode_command(command)))
            # It may be late for any reason, but it never comes before the disk has it.
            await asyncio.wait([asking], timeout=0.2)
            was_done = asking.done()
            may_write.set()
            assert not was_done
            answer = await asking
            assert answer.code == ResponseCode.SUCCESS, answer.remark
