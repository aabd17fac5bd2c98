"""A scrub that heals is killed, or loses power, after every single step of its repairs: the next
one heals the rest, and nothing that was sound is damaged or named as damaged.

Generated: what is damaged x which digests were known x how it ends x after which change.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from support.stores import ManualClock, make_store, message, small_config
from twinlog.message.layout import HEAD_SIZE, PHYSICAL_OFFSET_AT
from twinlog.message.record import decode_record, encoded_size
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.integrity.digests import digest_of
from twinlog.store.integrity.scrub import Scrubber
from twinlog.store.message_store import MessageStore
from twinlog.testing.simdisk import SimCrash, SimDisk

SEED = int(os.environ.get("SEED", "0"))
ROOT = "/store"
SEGMENT = 16384
COUNT = 150
SIZE = 250  # Of a body.
RECORD = encoded_size(message(0, size=SIZE))
PROVED = (*range(8), *range(PHYSICAL_OFFSET_AT, PHYSICAL_OFFSET_AT + 8))
QUEUE = f"{ROOT}/consumequeue/T/0/{0:020d}"
# When the digests of the full segments were made.
DIGESTS = ("none", "before", "of the damage")


class NoTasks(TaskOwner):
    """The test takes the steps itself."""

    def contained(self, name: str, factory: Any) -> None:
        """Nothing is started."""


class Copy:
    """A replica in memory."""

    name = "copy"

    def __init__(self, segments: dict[int, bytes]) -> None:
        self._segments = segments

    async def digests(self, offset: int, count: int) -> list[bytes] | None:
        return None

    async def read(self, offset: int, size: int) -> bytes | None:
        start = offset - offset % SEGMENT
        return self._segments[start][offset - start :][:size]


async def opened(disk: SimDisk) -> MessageStore:
    store = make_store(small_config(ROOT, mapped_file_size_commit_log=SEGMENT), disk)
    await store.load()
    store.open_for_puts()
    return store


def scrubber_of(store: MessageStore, disk: SimDisk, right: dict[int, bytes]) -> Scrubber:
    scrubber = Scrubber(store, disk, ManualClock(), f"{ROOT}/twinlog")
    scrubber.at_end = []  # The index, which rests in between.
    scrubber.healer.replicas = lambda: [Copy(right)]
    scrubber.start(NoTasks(asyncio.get_running_loop(), lambda *_: None), has_point=True)
    return scrubber


async def a_pass(scrubber: Scrubber) -> None:
    passes = scrubber.state.passes
    scrubber.hurry()
    while scrubber.state.passes == passes:
        await scrubber.step()
        await scrubber._heal_urgent()


def log_of(disk: SimDisk) -> dict[int, bytes]:
    names = disk.names(f"{ROOT}/commitlog")
    return {int(name): disk.peek(f"{ROOT}/commitlog/{name}", 0, SEGMENT) for name in names}


async def filled() -> tuple[SimDisk, dict[int, bytes], bytes]:
    """Its segments and its queue."""
    disk = SimDisk()
    store = await opened(disk)
    for number in range(COUNT):
        store.put(message(number, size=SIZE))
        store.write_pending()
    await store.housekeeping.save_round()
    assert store.commit_log.max_offset > 3 * SEGMENT
    await store.stop()
    return disk, log_of(disk), disk.peek(QUEUE, 0, 20 * COUNT)


def damage(disk: SimDisk, rng: random.Random) -> None:
    """Bits that records prove by themselves, in full segments; a sector that is lost; bits of the
    queue."""
    for start in (0, SEGMENT):
        path = f"{ROOT}/commitlog/{start:020d}"
        for number in rng.sample(range(SEGMENT // RECORD - 1), 3):
            in_record = rng.choice([*PROVED, *range(HEAD_SIZE, HEAD_SIZE + SIZE)])
            disk.flip_bit(path, number * RECORD + in_record, rng.randrange(8))
    path = f"{ROOT}/commitlog/{SEGMENT:020d}"
    for at in range(4096, 4608):
        for bit in range(8):
            if disk.peek(path, at, 1)[0] >> bit & 1:
                disk.flip_bit(path, at, bit)
    for _ in range(2):
        disk.flip_bit(QUEUE, rng.randrange(20 * COUNT // 2), rng.randrange(8))


def digest_all(scrubber: Scrubber, segments: dict[int, bytes]) -> None:
    for start in sorted(segments)[:2]:
        scrubber.digests.add(start, digest_of(segments[start]))
    scrubber.digests.save()


def bodies_of(store: MessageStore) -> set[bytes]:
    """What a reader is given, going on behind what is damaged."""
    found, offset = set(), 0
    while offset < COUNT:
        result = store.get_message("T", 0, offset, 32)
        for buffer in result.buffers:
            at = 0
            while at < len(buffer):
                record = decode_record(buffer, at, check_crc=False)
                found.add(record.body)
                at += record.total_size
        offset = max(offset + 1, result.next_begin_offset)
    return found


async def repaired(disk: SimDisk, digests: str, right: dict[int, bytes]) -> None:
    store = await opened(disk)
    scrubber = scrubber_of(store, disk, right)
    if digests != "none":
        digest_all(scrubber, right if digests == "before" else log_of(disk))
    await a_pass(scrubber)
    await store.stop()


@pytest.mark.parametrize("is_power_cut", [True, False], ids=["power", "kill"])
@pytest.mark.parametrize("digests", DIGESTS)
async def test_a_repair_that_ends_after_every_change_is_finished_by_the_next_scrub(
    digests: str, is_power_cut: bool
) -> None:
    """SEED= chooses other places."""
    bodies = {message(number, size=SIZE).body for number in range(COUNT)}
    moments = 0
    for moment in range(1, 400):
        disk, right, queue = await filled()
        damage(disk, random.Random(SEED))
        disk.crash_after = disk.change_count + moment
        try:
            await repaired(disk, digests, right)
        except SimCrash:
            moments += 1
        else:
            break
        left = disk.crash(random.Random(moment)) if is_power_cut else disk.kill()
        store = await opened(left)
        assert bodies_of(store) <= bodies, f"change {moment}: a damaged body was served"
        scrubber = scrubber_of(store, left, right)
        await a_pass(scrubber)
        await a_pass(scrubber)
        places = [place.text for place in store.damage.places.values()]
        assert not places, f"change {moment}"
        assert bodies_of(store) == bodies, f"change {moment}"
        assert log_of(left) == right, f"change {moment}"
        await store.housekeeping.save_round()
        assert left.peek(QUEUE, 0, len(queue)) == queue, f"change {moment}"
        await store.stop()
    assert moments > 20
