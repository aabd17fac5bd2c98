"""One bad item costs no other: requests, waiters, listeners, delay levels, transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.captured import Peer, world
from support.processes import free_broker_port
from twinlog.broker.delay.levels import delayed
from twinlog.broker.server import Broker, build_broker
from twinlog.message.model import PutMessage
from twinlog.message.names import HALF_TOPIC
from twinlog.message.properties import encode_properties
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.failures import Failures
from twinlog.runtime.watermark import Outcome, Watermark

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"


class Unforeseen(Exception):
    """What nobody thought of."""


def fail(*_: Any, **__: Any) -> Any:
    raise Unforeseen("oops")


def fail_oddly(*_: Any) -> None:
    raise Unforeseen("half a pair \ud800 and a line\n")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event.
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(path: Path, **keys: Any) -> AsyncIterator[tuple[Broker, list[str]]]:
    """A broker, and the reasons for which its process would have ended."""
    died: list[str] = []
    config = BrokerConfig(
        store_path_root_dir=str(path / "store"), mapped_file_size_commit_log=1 << 20,
        listen_port=free_broker_port(), **keys,
    )  # fmt: skip
    broker = build_broker(
        config, rng=random.Random(1), on_failure=lambda name, error: died.append(name)
    )
    await broker.start()
    try:
        yield broker, died
    finally:
        await broker.stop()


def message(topic: str, body: bytes = b"b", **properties: str) -> PutMessage:
    data = encode_properties(properties)
    return PutMessage(topic, 0, body, data, born_host=HOST, store_host=HOST)


# Requests


async def test_a_bug_in_any_handler_is_answered_and_the_packet_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with world() as broker:
        peer = Peer(broker.server)
        codes = sorted(broker.requests._handlers)
        assert len(codes) > 50
        good = RequestCode.GET_BROKER_CONFIG
        broken = [code for code in codes if code != good]
        for code in broken:
            broker.requests._handlers[code] = (fail_oddly, 1 << 20)
        frames = b""
        for code in broken:
            for asked in (code, good):
                frames += encode_command(RemotingCommand.request(asked, {"topic": "t"}))
        written: list[bytes] = []
        peer.transport.write = lambda data: written.append(bytes(data))
        for _ in range(20):
            peer.tell(frames)
        await until(lambda: b"".join(written).count(b'"code":') >= 20 * 2 * len(broken))
        data, answers = b"".join(written), []
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            answers.append(decode_command(data[:size]))
            data = data[size:]
        assert [a.code for a in answers] == [ResponseCode.SYSTEM_ERROR, 0] * (20 * len(broken))
        assert answers[0].remark is not None
        assert "Unforeseen" in answers[0].remark
        assert broker.failures.table[f"request {broken[0]}"].count == 20
        lines = [r for r in caplog.records if "contained failure of request" in r.getMessage()]
        assert len(lines) == 2 * len(broken), "the first and the tenth of each"
        assert "Traceback" not in caplog.text


# Waiters and listeners


def test_a_waiter_that_raises_costs_no_other() -> None:
    mark, reached = Watermark("flushed"), []

    def note(argument: Any, outcome: Outcome, reason: str) -> None:
        reached.append((argument, outcome))

    mark.failures = failures = Failures()
    mark.subscribe(fail, is_first=True)
    mark.subscribe(fail)
    mark.subscribe(reached.append)
    for offset in (1, 2, 3, 10, 20):
        mark.wait(offset, 1000, fail if offset in (2, 10, 20) else note, offset)
    mark.wait(20, 5, note, "late")
    mark.advance(5)
    assert reached == [(1, Outcome.REACHED), (3, Outcome.REACHED), 5]
    mark.expire(1000)
    mark.wait(30, 2000, fail, 30)
    mark.wait(30, 2000, note, 30)
    mark.fail_above(0, "cut")
    assert reached[3:] == [("late", Outcome.TIMEOUT), (30, Outcome.FAILED)]
    assert failures.table["waiter for flushed"].count == 6


async def test_a_listener_or_put_callback_that_raises_costs_no_other(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, died):
        moved: list[Any] = []
        broker.store._listeners._all.insert(0, fail)
        broker.store.add_dispatch_listener(lambda keys: moved.extend(keys))
        told: list[Any] = []
        for callback in (fail, lambda status, reason: told.append(status)):
            broker.replies.add(broker.store.put(message("t")), callback, False)
        await until(lambda: bool(told))
        assert ("t", 0) in moved
        assert not died
        assert broker.failures.table["dispatch listener"].count == 1
        assert broker.failures.table["put callback"].count == 1


async def test_a_broken_turn_of_the_store_is_vital(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as (broker, died):
        with monkeypatch.context() as patch:
            patch.setattr(broker.store.commit_log, "write_pending", fail)
            broker.store.put(message("t"))
            await until(lambda: bool(died))
        assert "broker/store turn" in died


# Levels and transactions


async def test_a_delayed_message_that_always_fails_holds_back_neither_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twinlog.broker.delay.schedule._RETRY_MS", 1)
    async with running(tmp_path, message_delay_level="1s 1s") as (broker, died):
        original = broker.schedule._real_message

        def real(data: bytes, level: Any) -> Any:
            return fail() if b"poison" in data else original(data, level)

        monkeypatch.setattr(broker.schedule, "_real_message", real)
        for level, body in ((1, b"poison"), (1, b"behind it"), (2, b"next to it")):
            broker.store.put(delayed(message("T", body), {}, level, {1: 1000, 2: 1000}))
        await until(lambda: broker.store.max_offset_in_queue("T", 0) == 2)
        assert not died
        assert broker.failures.table["delayed delivery"].count >= 3


async def test_a_half_message_whose_check_fails_keeps_no_other_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, transaction_check_interval=20, transaction_time_out=1) as found:
        broker, died = found
        now = str(broker.clock.now_ms())
        for number in range(3):
            half = message(
                HALF_TOPIC,
                b"poison" if number == 1 else b"good",
                REAL_TOPIC="t",
                REAL_QID="0",
                PGROUP="p",
                UNIQ_KEY=f"{now}{number}",
            )
            half.born_timestamp = broker.clock.now_ms()
            broker.store.put(half)
        original = broker.transactions._ask

        def ask(offset: int, record: Any, times: int) -> None:
            if record.body == b"poison":
                fail()
            original(offset, record, times)

        monkeypatch.setattr(broker.transactions, "_ask", ask)
        await until(lambda: broker.store.max_offset_in_queue(HALF_TOPIC, 0) >= 7)
        assert not died
        assert broker.failures.table["transaction check"].count >= 1
        assert broker.transactions.pending_count == 3
