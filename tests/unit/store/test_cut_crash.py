"""The tail of a slave that went its own way is cut: killed or powered off after every single step,
the next start has the old log or the cut one, and no record is destroyed."""

from __future__ import annotations

import random

import pytest

from support.stores import SEGMENT_SIZE, make_store, message, small_config
from twinlog.store.message_store import MessageStore
from twinlog.testing.simdisk import SimCrash, SimDisk

ROOT = "/store"
CUT_RECORD = 300
RECORD_COUNT = 1000


async def filled(disk: SimDisk) -> tuple[MessageStore, list[tuple[int, int]]]:
    """A store of several files, everything on disk; where its records are."""
    store = make_store(small_config(ROOT), disk)
    await store.load()
    store.open_for_puts()
    places = []
    for number in range(RECORD_COUNT):
        result = store.put(message(number))
        places.append((result.physical_offset, result.end_offset))
    store.write_pending()
    await store.housekeeping.save_round()
    assert places[-1][0] > 2 * SEGMENT_SIZE
    return store, places


def moved_aside(disk: SimDisk) -> dict[int, bytes]:
    """offset -> bytes of every file that was put aside."""
    found = {}
    for name in disk.list(f"{ROOT}/twinlog"):
        if name.startswith("cut-"):
            for file in disk.list(f"{ROOT}/twinlog/{name}"):
                path = f"{ROOT}/twinlog/{name}/{file}"
                found[int(file), path] = disk.read_bytes(path)
    return {offset: data for (offset, _), data in found.items()}


def is_aside(aside: dict[int, bytes], offset: int, record: bytes) -> bool:
    return any(
        start <= offset and data[offset - start : offset - start + len(record)] == record
        for start, data in aside.items()
    )


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("is_power_cut", [True, False])
async def test_cut_off_after_every_operation_no_record_is_destroyed(
    seed: int | None, is_power_cut: bool
) -> None:
    ends = set()
    for moment in range(1, 200):
        disk = SimDisk()
        store, places = await filled(disk)
        records = {start: store.commit_log.read(start, end - start) for start, end in places}
        cut, old_end = places[CUT_RECORD][0], places[-1][1]
        disk.crash_after = disk.change_count + moment
        try:
            store.commit_log.truncate_to(cut, reason="diverged")
        except SimCrash:
            pass
        else:
            break
        rng = None if seed is None else random.Random(seed * 1000 + moment)
        left = disk.crash(rng) if is_power_cut else disk.kill()
        again = make_store(small_config(ROOT), left)
        await again.load()
        end = again.commit_log.max_offset
        ends.add(end)
        assert cut <= end <= old_end, f"operation {moment}: ends at {end}"
        aside = moved_aside(left)
        for start, record in records.items():
            if start < end:
                assert again.commit_log.read(start, len(record)) == record
            else:
                assert is_aside(aside, start, record), f"operation {moment}: {start} is gone"
        await again.stop()
    assert moment > 5
    assert {cut, old_end} <= ends
