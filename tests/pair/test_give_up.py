"""Damaged records that no copy exists of are given up: the broker starts, slaves copy the rest."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import process, twinlog
from support.damage import flip_bit
from support.healing import CONFIG, bodies_served
from support.local_brokers import Brokers, until
from support.stores import message, running_store, small_config
from twinlog.message.layout import (
    BODY_SIZE_AT,
    HEAD_SIZE,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
)
from twinlog.message.record import decode_record

pytestmark = pytest.mark.timeout(120)
COUNT = 500


def records_of(path: Path) -> list[tuple[int, int]]:
    """Position and size of each, and of the filler at the end."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data) and (size := struct.unpack_from(">i", data, at)[0]) > 0:
        found.append((at, size))
        at += size
    return found


# Where the bit is, from the first byte of the record.
KINDS = {
    "size": 2,
    "magic": MAGIC_AT + 1,
    "number": QUEUE_OFFSET_AT + 6,
    "own offset": PHYSICAL_OFFSET_AT + 6,
    "body size": BODY_SIZE_AT + 3,
    "body": HEAD_SIZE + 5,
}


def damage(path: Path, kinds: dict[int, str], rng: random.Random) -> None:
    """Records by their number in the segment; -1 is its filler."""
    places = records_of(path)
    for number, kind in kinds.items():
        flip_bit(path, places[number][0] + KINDS[kind], rng)


async def fill(root: Path) -> None:
    async with running_store(small_config(root)) as store:
        for number in range(COUNT):
            store.put(message(number, queue_id=number % 2, size=100 + number % 300))
            store.write_pending()
        await store.flush_service.flush()


async def served(root: Path) -> dict[tuple[int, int], bytes]:
    found = {}
    async with running_store(small_config(root)) as store:
        for queue_id in range(2):
            offset = 0
            while offset < store.max_offset_in_queue("T", queue_id):
                result = store.get_message("T", queue_id, offset, 32)
                for buffer in result.buffers:
                    at = 0
                    while at < len(buffer):
                        record = decode_record(buffer, at)
                        found[queue_id, record.queue_offset] = record.body
                        at += record.total_size
                offset = result.next_begin_offset
        keys = [f"{number:032X}" for number in range(0, COUNT, 50)]
        counts = [len(store.query_message("T", key, 9, 0, 1 << 62).buffers) for key in keys]
        assert sum(counts) >= len(keys) - 3
        store.put(message(COUNT, queue_id=0))
        store.write_pending()
    return found


@pytest.mark.parametrize("kind", [*KINDS, "filler", "three in a row"])
@pytest.mark.parametrize("is_rebuilt", [False, True])
async def test_the_rest_of_a_store_is_whole_again(
    tmp_path: Path, kind: str, is_rebuilt: bool
) -> None:
    rng = random.Random(1)
    await fill(tmp_path)
    before = await served(tmp_path)
    first, second, *_ = sorted((tmp_path / "commitlog").iterdir())
    kinds = {20: kind}
    if kind == "filler":
        kinds = {-1: "magic"}
    elif kind == "three in a row":
        kinds = {20: "size", 21: "size", 22: "body"}
    damage(first, kinds, rng)
    damage(second, {20: "magic"}, rng)
    assert twinlog("store", "verify", tmp_path).code == 1
    listed = twinlog("store", "give-up", tmp_path, "-o", "json")
    assert (listed.code, len(listed.json["places"])) == (1, 2)
    twinlog("store", "give-up", tmp_path, "--yes").ok()
    assert len(list((tmp_path / "twinlog").glob("damaged-*"))) == 2
    assert "no record is damaged" in twinlog("store", "give-up", tmp_path).ok().out
    if is_rebuilt:
        shutil.rmtree(tmp_path / "consumequeue")
    after = await served(tmp_path)
    missing = set(before) - set(after)
    assert len(missing) == 1 + (0 if kind == "filler" else len(kinds))
    assert all(before[place] == after[place] for place in set(before) - missing)
    assert twinlog("store", "verify", tmp_path, "--deep").ok()


async def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    await fill(tmp_path)
    file = sorted((tmp_path / "commitlog").iterdir())[0]
    damage(file, {20: "magic"}, random.Random(2))
    data = file.read_bytes()
    async with running_store(small_config(tmp_path)):
        taken = process("store", "give-up", tmp_path, "--yes")
    assert (taken.code, "stop the broker first" in taken.err) == (1, True)
    assert file.read_bytes() == data
    assert twinlog("store", "give-up", tmp_path / "nothing", "--yes").code == 3


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


async def test_a_slave_copies_a_log_whose_damage_was_given_up(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(3)
    config: dict[str, Any] = {**CONFIG, "namesrv_addr": None, "twinlog_damage_wait_millis": 0}
    master = await brokers.master(**{**config, "broker_role": "ASYNC_MASTER"})
    bodies = [b"%06d " % number + rng.randbytes(900) for number in range(400)]
    for number, body in enumerate(bodies):
        sent = await brokers.send(master, body, topic="t", queue_id=number % 4, TAGS="a")
        assert sent.code == 0
    log = master.store.commit_log
    await until(lambda: min(master.store.flushed.value, master.store.dispatched.value)
                >= log.max_offset)  # fmt: skip
    path = Path(log.segments.segments[0].path)
    damage(path, {30: "size", 50: "body", 70: "own offset"}, rng)
    # Not `brokers.slave`, which waits for an attached slave: a quick one has already given up.
    address = f"127.0.0.1:{master.ha.listen_port}"
    slave = await brokers.start(
        "slave", broker_role="SLAVE", broker_id=1, ha_master_address=address, **config
    )
    await until(lambda: "`twinlog store give-up`; then restart this slave" in caplog.text)
    assert await bodies_served(brokers, slave) == set()
    await brokers.end(slave)
    await brokers.end(master)
    twinlog("store", "give-up", tmp_path / "master", "--yes").ok()
    master = await brokers.master(**{**config, "broker_role": "ASYNC_MASTER"})
    slave = await brokers.slave(master, **config)
    end = master.store.commit_log.max_offset
    await until(lambda: min(slave.store.flushed.value, slave.store.dispatched.value) >= end)
    for broker in (master, slave):
        found = await bodies_served(brokers, broker)
        assert found == set(bodies) - {bodies[30], bodies[50], bodies[70]}
