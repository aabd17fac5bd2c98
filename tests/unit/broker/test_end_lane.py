"""The compiled way of ends of transactions against the Python one: the same log, the same answers.

Two brokers in the same state get the same half messages and the same ends, right and wrong ones;
one has its compiled parts, the other has not.
"""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pytest
from tests.unit.broker.test_pull_lane import binary
from tests.unit.broker.test_send_lane import World, ext, frame, open_world

pytestmark = pytest.mark.compiled
HALVES = 24
ROOMY = {"mapped_file_size_commit_log": 1 << 20, "max_message_size": 1000}


def half(number: int) -> bytes:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01a"
    return frame(ext(i=properties, f="4", e=str(number % 4)), b"x" * (number % 7), opaque=number)


def end(offset: int, physical: int, **changes: Any) -> dict[str, Any]:
    fields = {
        "producerGroup": "pg", "tranStateTableOffset": str(offset),
        "commitLogOffset": str(physical), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": "m", "transactionId": f"{offset:032X}",
        **changes,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value is not None}


def places(answers: bytes) -> list[tuple[int, int]]:
    """Queue offset and physical offset of each half message that was answered."""
    found, at = [], 0
    while at < len(answers):
        size, header_size = struct.unpack_from(">ii", answers, at)
        fields = json.loads(answers[at + 8 : at + 8 + header_size])["extFields"]
        found.append((int(fields["queueOffset"]), int(fields["msgId"][-16:], 16)))
        at += size + 4
    return found


def ends(rng: random.Random, known: list[tuple[int, int]]) -> list[bytes]:
    """One or two for each half message, of all kinds."""
    frames = []
    for offset, physical in known:
        changes: dict[str, Any] = {}
        if rng.random() < 0.4:
            name, value = rng.choice(
                [
                    ("producerGroup", "other"), ("producerGroup", None), ("producerGroup", "é"),
                    ("tranStateTableOffset", str(offset + 1)), ("tranStateTableOffset", "x"),
                    ("commitLogOffset", str(physical + 1)), ("commitLogOffset", None),
                    ("commitOrRollback", "12"), ("commitOrRollback", "0"),
                    ("commitOrRollback", "5"), ("commitOrRollback", "08"),
                    ("fromTransactionCheck", "true"), ("msgId", None), ("more", "1"),
                    ("transactionId", "t"), ("transactionId", ""), ("transactionId", None),
                ]
            )  # fmt: skip
            changes = {name: value}
        write = rng.choice((frame, frame, binary))
        flag = rng.choice((2, 2, 2, 0))
        body = b"body" if rng.random() < 0.05 else b""
        fields = end(offset, physical, **changes)
        frames.append(write(fields, body, code=37, flag=flag, opaque=rng.randrange(1000)))
        if rng.random() < 0.2:
            frames.append(write(end(offset, physical), b"", code=37, flag=2))
    return frames


async def outcome(monkeypatch: Any, seed: int, *, is_compiled: bool) -> dict[str, Any]:
    rng = random.Random(seed)
    world = await open_world(
        monkeypatch, is_compiled=is_compiled, host="127.0.0.1", **(ROOMY if seed % 2 else {})
    )
    await world.read(half(0))  # The half topic exists from now on.
    world.wire.written = b""
    for number in range(1, HALVES, 6):
        await world.read(b"".join(map(half, range(number, number + 6))))
    known = places(world.wire.written)
    assert len(known) == HALVES
    frames = ends(rng, known)
    rng.shuffle(frames)
    while frames:
        count = rng.randrange(1, 8)
        more = [half(HALVES + len(frames))] if rng.random() < 0.3 else []
        parts = frames[:count] + more
        rng.shuffle(parts)
        del frames[:count]
        await world.read(b"".join(parts))
    transactions = world.broker.transactions
    return {
        **world.state(),
        "commits": transactions.commit_count,
        "rollbacks": transactions.rollback_count,
        "open": transactions.pending_count,
        "places": transactions.pending.places,
        "notes": list(transactions.pending.ops),
        "kept": transactions.recent.size,
        "refused": world.broker.failures.status(),
        "requests": world.connection.request_count,
    }


@pytest.mark.parametrize("seed", range(8))
async def test_any_ends_give_the_same(monkeypatch: Any, seed: int) -> None:
    fast = await outcome(monkeypatch, seed, is_compiled=True)
    slow = await outcome(monkeypatch, seed, is_compiled=False)
    different = [name for name in fast if fast[name] != slow[name]]
    assert not different, [(n, str(fast[n])[:800], str(slow[n])[:800]) for n in different]
    assert fast["commits"] > HALVES // 3
    assert fast["open"]


async def opened(monkeypatch: Any) -> tuple[World, list[tuple[int, int]]]:
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1", **ROOMY)
    await world.read(half(0))
    world.wire.written = b""
    await world.read(b"".join(map(half, range(1, 6))))
    return world, places(world.wire.written)


async def test_common_ends_are_taken(monkeypatch: Any) -> None:
    """Else the comparison would compare the Python path with itself."""
    world, known = await opened(monkeypatch)
    lane = world.connection._lanes[1]
    first, second, third, fourth, _ = known
    taken = frame(end(*first), b"", code=37, flag=2) + binary(end(*second), code=37, flag=2)
    assert lane.read(world.connection, taken + frame(ext())) == len(taken)
    assert lane.read(world.connection, taken) == 0  # They are ended.
    for fields, flag in ((end(*third), 0), (end(*third, transactionId="t"), 2)):
        assert lane.read(world.connection, frame(fields, b"", code=37, flag=flag)) == 0
    world.broker.store.hold_puts("a test")
    assert lane.read(world.connection, frame(end(*fourth), b"", code=37, flag=2)) == 0


async def test_a_commit_that_the_store_refuses_costs_itself(monkeypatch: Any) -> None:
    world, known = await opened(monkeypatch)
    monkeypatch.setattr(world.broker.config, "max_message_size", 0)
    await world.read(frame(end(*known[-1]), b"", code=37, flag=2))
    assert not world.connection.is_closed
    assert world.broker.transactions.commit_count == 0
    monkeypatch.setattr(world.broker.config, "max_message_size", 1000)
    await world.read(frame(end(*known[0]), b"", code=37, flag=2))
    assert world.broker.transactions.commit_count == 1
