"""Many sends in one read: no task or future for each, one write of all answers; and overload."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.captured import Peer, world
from support.captured_states import stalled_slave
from twinlog.broker.put import replies
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.runtime.config import BrokerRole

COUNT = 250  # What a turn takes is bounded (`TURN_COUNT_MAX` of the send lane).


def send_frame(opaque: int) -> bytes:
    header: dict[str, Any] = {
        "a": "pg", "b": "TopicVec", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0,
    }  # fmt: skip
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, header, b"b")
    command.opaque = opaque
    return encode_command(command)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event.
            await asyncio.sleep(0)


class Futures:
    """Counts what is made on the loop meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        loop = asyncio.get_running_loop()
        for name in ("create_task", "create_future"):
            original = getattr(loop, name)

            def counting(*arguments: Any, original: Any = original, **named: Any) -> Any:
                self.made += 1
                return original(*arguments, **named)

            monkeypatch.setattr(loop, name, counting)


def answers_in(writes: list[bytes]) -> list[RemotingCommand]:
    data, answers = b"".join(writes), []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        answers.append(decode_command(data[:size]))
        data = data[size:]
    return answers


async def test_sends_of_one_read_make_no_tasks_and_are_answered_by_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as broker:
        peer = Peer(broker.server)
        assert (await peer.ask(send_frame(9999))).code == ResponseCode.SUCCESS
        writes: list[bytes] = []
        monkeypatch.setattr(peer.transport, "write", lambda data: writes.append(bytes(data)))
        futures = Futures(monkeypatch)
        peer.tell(b"".join(send_frame(opaque) for opaque in range(COUNT)))
        made = futures.made
        await until(lambda: bool(writes))
        assert made <= 2, f"{made} tasks and futures for {COUNT} sends"
        assert len(writes) == 1
        answers = answers_in(writes)
        assert [answer.opaque for answer in answers] == list(range(COUNT))
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


async def test_sends_beyond_the_share_of_a_turn_are_taken_in_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world() as broker:
        peer = Peer(broker.server)
        assert (await peer.ask(send_frame(9999))).code == ResponseCode.SUCCESS
        writes: list[bytes] = []
        monkeypatch.setattr(peer.transport, "write", lambda data: writes.append(bytes(data)))
        peer.tell(b"".join(send_frame(opaque) for opaque in range(4 * COUNT)))
        await until(lambda: len(answers_in(writes)) == 4 * COUNT)
        assert [answer.opaque for answer in answers_in(writes)] == list(range(4 * COUNT))


async def test_sends_beyond_what_may_wait_are_refused_until_some_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replies, "WAITING_PUTS_MAX", 10)
    async with world(broker_role=BrokerRole.SYNC_MASTER, slave_timeout=500) as broker:
        peer = Peer(broker.server)
        stalled_slave(broker, peer)
        end = broker.store.appended.value
        peer.tell(b"".join(send_frame(opaque) for opaque in range(10)))
        await until(lambda: broker.replies.is_overloaded)
        stored = broker.store.appended.value
        refused = await peer.ask(send_frame(10))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == (
            "[REJECTREQUEST]system busy, too many sends wait for disk or slave"
        )
        assert broker.store.appended.value == stored > end, "a refused send is not stored"
        for opaque in range(10):
            answer = await peer.next(lambda c, opaque=opaque: c.opaque == opaque)
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert (await peer.ask(send_frame(11))).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
