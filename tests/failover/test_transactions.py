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
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.runtime.clock import SystemClock

PRODUCERS = "tellers"
TOPIC, QUEUE = "load", 0


async def prepare(group: LocalGroup, broker: Broker) -> tuple[int, asyncio.Task[Any]]:
    """Where the half message is in the log, and the send, which waits for the other replica."""
    header = {
        "a": PRODUCERS, "b": TOPIC, "c": "TBW102", "d": "4", "e": str(QUEUE),
        "f": str(sysflag.TRANSACTION_PREPARED_TYPE), "g": str(broker.clock.now_ms()),
        "h": "0", "j": "0", "k": "false",
        "i": f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02UNIQ_KEY\x01U\x02",
    }  # fmt: skip
    send = group.brokers.call(broker, RequestCode.SEND_MESSAGE_V2, header, b"half")
    sending = asyncio.create_task(send)
    halves = broker.transactions._recent._halves
    await until(lambda: halves and broker.store.commit_log.max_offset > next(iter(halves)))
    return next(iter(halves)), sending


async def announce(group: LocalGroup, broker: Broker) -> None:
    """A producer of the group is there to be asked."""
    body = {"clientID": "teller", "producerDataSet": [{"groupName": PRODUCERS}]}
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


class LaterClock(SystemClock):
    """Stands at a later time."""

    def __init__(self, monotonic_ms: int) -> None:
        super().__init__()
        self._at_ms = monotonic_ms

    def monotonic_ms(self) -> int:
        return self._at_ms
