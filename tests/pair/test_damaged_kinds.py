"""Bits flipped in what the broker itself reads later: delayed messages, half messages, notes of
their end, in the log and in the entries that lead there. Each is delivered once, as it was sent."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.damage import Flip, flip_bit
from support.healing import CONFIG, bodies_served, running_pair
from support.local_brokers import Brokers, until
from twinlog.broker.server import Broker
from twinlog.message.ids import parse_offset_message_id
from twinlog.message.layout import ENTRY, ENTRY_SIZE
from twinlog.message.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from twinlog.message.record import decode_record
from twinlog.remoting.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.timeout(180)
SEED = int(os.environ.get("SEED", "0"))
COUNT = 24
LEVELS = {"message_delay_level": "1s"}


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


async def written(*running: Broker) -> None:
    for broker in running:
        end = broker.store.commit_log.max_offset
        await until(
            lambda b=broker, e=end: min(b.store.flushed.value, b.store.dispatched.value) >= e
        )
        broker.store.queue_table.write_all()


def queue_file(broker: Broker, topic: str) -> Path:
    return Path(broker.store.root) / "consumequeue" / topic / "0" / f"{0:020d}"


def flip_entries(broker: Broker, topic: str, rng: random.Random, count: int) -> list[Flip]:
    """Their offsets and sizes: what leads to the record."""
    numbers = rng.sample(range(COUNT), count)
    path = queue_file(broker, topic)
    return [flip_bit(path, n * ENTRY_SIZE + rng.randrange(12), rng) for n in numbers]


def flip_bodies(broker: Broker, topic: str, rng: random.Random, count: int) -> list[Flip]:
    entries = list(ENTRY.iter_unpack(queue_file(broker, topic).read_bytes()[: COUNT * ENTRY_SIZE]))
    log = Path(broker.store.commit_log.segments.segments[0].path)
    flips = []
    for offset, size, _ in rng.sample(entries, count):
        body = decode_record(log.read_bytes(), offset).body
        at = log.read_bytes().index(body, offset, offset + size)
        flips.append(flip_bit(log, at + rng.randrange(len(body)), rng))
    return flips


FLIPS = {"entries": flip_entries, "bodies": flip_bodies}


async def delivered(brokers: Brokers, broker: Broker) -> Counter[bytes]:
    count = broker.store.max_offset_in_queue("t", 0)
    bodies = await bodies_served(brokers, broker)
    assert len(bodies) == count, "one was delivered twice, or is damaged"
    return Counter(bodies)


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
@pytest.mark.parametrize("where", ["entries", "bodies", "entries, alone"])
async def test_delayed_messages_come_as_they_were_sent(
    brokers: Brokers, where: str, seed: int
) -> None:
    rng = random.Random(seed)
    if "alone" in where:
        config = {**CONFIG, "namesrv_addr": None, "broker_role": "ASYNC_MASTER", **LEVELS}
        running = [await brokers.master(**config)]
    else:
        running = list(await running_pair(brokers, **LEVELS))
    master = running[0]
    bodies = Counter(b"%04d " % number + rng.randbytes(300) for number in range(COUNT))
    master.schedule.stop()
    for answer in await asyncio.gather(
        *(brokers.send(master, body, topic="t", DELAY="1") for body in bodies)
    ):
        assert answer.code == ResponseCode.SUCCESS
    await written(*running)
    FLIPS[where.split(",")[0]](master, SCHEDULE_TOPIC, rng, 5)
    master.schedule.start(after_crash=False)
    await until(lambda: master.store.max_offset_in_queue("t", 0) >= COUNT, 30)
    await written(*running)
    assert await delivered(brokers, master) == bodies


async def half(brokers: Brokers, master: Broker, number: int, body: bytes) -> dict[str, object]:
    """Store one half message; the header of its end."""
    key = f"{number:032X}"
    answer = await brokers.send(master, body, topic="t", TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=key)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    fields = answer.ext()
    place = parse_offset_message_id(fields["msgId"]).physical_offset
    return {
        "producerGroup": "pg", "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": place, "commitOrRollback": 8, "fromTransactionCheck": "false",
        "msgId": key, "transactionId": key,
    }  # fmt: skip


async def end(brokers: Brokers, master: Broker, header: dict[str, object]) -> int:
    return (await brokers.call(master, RequestCode.END_TRANSACTION, header)).code


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
@pytest.mark.parametrize("where", ["entries", "bodies"])
@pytest.mark.parametrize("topic", [HALF_TOPIC, OP_HALF_TOPIC])
async def test_a_transaction_ends_once_whatever_has_decayed_when_the_undecided_are_looked_for(
    brokers: Brokers, topic: str, where: str, seed: int
) -> None:
    """As a master does at its start, and a slave that is promoted."""
    rng = random.Random(seed)
    master, slave = await running_pair(brokers)
    bodies = [b"%04d " % number + rng.randbytes(300) for number in range(2 * COUNT)]
    headers = [await half(brokers, master, number, body) for number, body in enumerate(bodies)]
    # The first stays undecided, so that all notes are read again.
    decided = rng.sample(range(1, 2 * COUNT), COUNT)
    for number in decided:
        assert await end(brokers, master, headers[number]) == ResponseCode.SUCCESS
    await written(master, slave)
    await until(lambda: master.store.max_offset_in_queue("t", 0) == COUNT)
    master.transactions.stop()
    FLIPS[where](master, topic, rng, 5)
    master.transactions.start(after_crash=True)
    open_numbers = sorted(set(range(2 * COUNT)) - set(decided))

    async def ended(number: int) -> bool:
        return await end(brokers, master, headers[number]) == ResponseCode.SUCCESS

    async with asyncio.timeout(30):
        while not await ended(0):  # Refused while a record is being healed.
            await until(lambda: master.transactions.pending_count)
    for number in open_numbers[1:]:
        assert await ended(number), number
    for number in decided:
        assert not await ended(number), "it was ended before"
    await written(master, slave)
    await until(lambda: master.store.max_offset_in_queue("t", 0) == 2 * COUNT)
    assert await delivered(brokers, master) == Counter(bodies)
