"""Transactions of a controlled group: a half message is in the log before it is confirmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import until
from support.local_group import LocalGroup, local_group
from twinlog.broker.server import Broker
from twinlog.message import sysflag
from twinlog.message.names import HALF_TOPIC
from twinlog.remoting import fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.runtime.clock import SystemClock

PRODUCERS = "tellers"
TOPIC, QUEUE = "load", 0


async def prepare(
    group: LocalGroup, broker: Broker, born_ms: int | None = None
) -> tuple[int, asyncio.Task[Any]]:
    """Where the half message is in the log, and the send, which waits for the other replica."""
    end = broker.store.commit_log.max_offset
    header = {
        "a": PRODUCERS, "b": TOPIC, "c": "TBW102", "d": "4", "e": str(QUEUE),
        "f": str(sysflag.TRANSACTION_PREPARED_TYPE), "g": str(born_ms or broker.clock.now_ms()),
        "h": "0", "j": "0", "k": "false",
        "i": f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02UNIQ_KEY\x01U\x02",
    }  # fmt: skip
    send = group.brokers.call(broker, RequestCode.SEND_MESSAGE_V2, header, b"half")
    sending = asyncio.create_task(send)
    halves = broker.transactions.recent.by_offset
    await until(lambda: [at for at in halves if end <= at < broker.store.commit_log.max_offset])
    return max(halves), sending


async def announce(group: LocalGroup, broker: Broker, name: str = PRODUCERS) -> None:
    """A producer of the group is there to be asked."""
    body = {"clientID": "teller", "producerDataSet": [{"groupName": name}]}
    answer = await group.brokers.call(broker, RequestCode.HEART_BEAT, None, fastjson.dumps(body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def end(group: LocalGroup, broker: Broker, place: int, number: int, how: int) -> Any:
    header = {
        "producerGroup": PRODUCERS, "tranStateTableOffset": number, "commitLogOffset": place,
        "commitOrRollback": how, "fromTransactionCheck": "false", "msgId": "U",
        "transactionId": "U",
    }  # fmt: skip
    return await group.brokers.call(broker, RequestCode.END_TRANSACTION, header)


@pytest.mark.parametrize(
    ("how", "shown", "is_checked"),
    [
        (sysflag.TRANSACTION_COMMIT_TYPE, 1, False),
        (sysflag.TRANSACTION_COMMIT_TYPE, 1, True),
        (sysflag.TRANSACTION_ROLLBACK_TYPE, 0, False),
    ],
    ids=["commit", "commit-after-a-check", "rollback"],
)
async def test_the_end_of_a_transaction_counts_before_its_half_message_is_confirmed(
    tmp_path: Path, how: int, shown: int, is_checked: bool
) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(transaction_time_out=0)
        await group.brokers.send(first)
        await group.cut_link(second)
        place, sending = await prepare(group, first)
        if is_checked:
            await announce(group, first)
            second.ha.follow(first.ha_address)
            await until(lambda: first.transactions.pending_count == 1)
            await group.part(second)
            place = first.store.commit_log.max_offset
            await first.transactions.check()
            await until(lambda: first.store.commit_log.max_offset > place)
        answer = await end(group, first, place, int(is_checked), how)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        second.ha.follow(first.ha_address)
        last = first.store.commit_log.max_offset
        await until(lambda: first.ha.confirmed.value >= last)
        await until(lambda: first.store.max_offset_in_queue(TOPIC, QUEUE) == 1 + shown)
        assert first.transactions.pending_count == 0
        await sending


async def test_a_check_that_asks_nobody_counts_once_producers_had_time_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a switch, clients with an old route are known to the master of before only."""
    async with local_group(tmp_path) as group:
        first, _ = await group.pair(transaction_time_out=0, transaction_check_max=2)
        await group.brokers.send(first)
        _, sending = await prepare(group, first)
        await sending
        await until(lambda: first.transactions.pending_count == 1)
        for _ in range(5):
            before = first.store.commit_log.max_offset
            await first.transactions.check()
            first.turn.run()
            assert first.store.commit_log.max_offset == before, "it was not asked, nor counted"
        later_ms = first.clock.monotonic_ms() + 70_000
        monkeypatch.setattr(first.transactions, "_clock", LaterClock(later_ms))
        for count in (1, 2):
            await first.transactions.check()
            await until(lambda count=count: first.transactions.pending_count == 1)
            await until(
                lambda count=count: first.store.max_offset_in_queue(HALF_TOPIC, 0) == 1 + count
            )
        await first.transactions.check()
        assert first.transactions.pending_count == 0, "given up after two checks"


async def test_a_producer_that_comes_too_late_for_a_check_is_asked_at_once(tmp_path: Path) -> None:
    """The next check may be a minute away, and clients come half a minute after a switch."""
    async with local_group(tmp_path) as group:
        first, _ = await group.pair(transaction_time_out=1)
        await group.brokers.send(first)
        _, sending = await prepare(group, first)
        await sending
        await until(lambda: first.transactions.pending_count == 1)
        asked: list[Request] = []
        client = RemotingClient(
            clock=SystemClock(), request_handler=lambda _, request: asked.append(request)
        )
        group.brokers.client, before = client, group.brokers.client
        await before.close()
        await announce(group, first, "others")
        await asyncio.sleep(0.01)
        await first.transactions.check()
        assert not asked, "nobody of its group is here"
        await announce(group, first)
        await until(lambda: len(asked) == 1, within_s=5)
        assert asked[0].code == RequestCode.CHECK_TRANSACTION_STATE
        await announce(group, first)
        first.turn.run()
        assert first.store.max_offset_in_queue(HALF_TOPIC, 0) <= 2, "and once only"


@pytest.mark.parametrize(
    ("is_repeat", "is_ended", "asked"),
    [(True, True, 0), (True, False, 1), (False, True, 1), (False, False, 2)],
)
async def test_a_half_message_that_a_client_repeated_is_one_transaction(
    tmp_path: Path, is_repeat: bool, is_ended: bool, asked: int
) -> None:
    """The answer to the first one was lost with its master. The same message that is sent once
    more by its application is another transaction, and was born later."""
    async with local_group(tmp_path) as group:
        first, _ = await group.pair(transaction_time_out=1)
        await group.brokers.send(first)
        await announce(group, first)
        born_ms = first.clock.now_ms()
        _, sending = await prepare(group, first, born_ms)
        await sending
        place, sending = await prepare(group, first, born_ms if is_repeat else born_ms + 1)
        await sending
        await until(lambda: first.transactions.pending_count == 2)
        if is_ended:
            await end(group, first, place, 1, sysflag.TRANSACTION_COMMIT_TYPE)
            await until(lambda: first.store.max_offset_in_queue(TOPIC, QUEUE) == 2)
        await asyncio.sleep(0.01)
        await first.transactions.check()
        first.turn.run()
        last = first.store.commit_log.max_offset
        await until(lambda: first.ha.confirmed.value >= last)
        await until(lambda: first.store.max_offset_in_queue(HALF_TOPIC, 0) >= 2 + asked)
        assert first.store.max_offset_in_queue(HALF_TOPIC, 0) == 2 + asked
        assert first.transactions.pending_count == asked


class LaterClock(SystemClock):
    """Stands at a later time."""

    def __init__(self, monotonic_ms: int) -> None:
        super().__init__()
        self._at_ms = monotonic_ms

    def monotonic_ms(self) -> int:
        return self._at_ms
