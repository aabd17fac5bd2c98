"""A start on files that decayed or were cut short: go on where that is safe, name what is not."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from support.damage import flip_bit
from support.stores import message, running_store, small_config
from twinlog.store.errors import StoreLayoutError
from twinlog.store.status import GetMessageStatus

COUNT = 300


async def fill(directory: Path) -> list[Any]:
    async with running_store(small_config(directory)) as store:
        results = [store.put(message(number, queue_id=0, size=200)) for number in range(COUNT)]
        store.write_pending()
        await store.housekeeping.save_round()
        return results


def segments(directory: Path) -> list[Path]:
    return sorted(next(directory.rglob("commitlog")).iterdir())


async def read_all(store: Any) -> tuple[list[int], list[int]]:
    """Numbers that were served, and those that were answered with an error."""
    served, named, offset = [], [], 0
    while offset < store.max_offset_in_queue("T", 0):
        result = store.get_message("T", 0, offset, 32)
        if result.status is GetMessageStatus.MESSAGE_DAMAGED:
            named.append(offset)
        else:
            served += range(offset, result.next_begin_offset)
        offset = result.next_begin_offset
    return served, named


@pytest.mark.parametrize("length", [5, 4097, 12_288])
async def test_a_last_file_that_is_too_short_is_extended(tmp_path: Path, length: int) -> None:
    results = await fill(tmp_path)
    last = segments(tmp_path)[-1]
    end = results[-1].end_offset - int(last.name)
    os.truncate(last, max(end, length))
    async with running_store(small_config(tmp_path)) as store:
        assert last.stat().st_size == store.commit_log.segment_size
        assert len((await read_all(store))[0]) == COUNT
        assert store.put(message(1, queue_id=0)).queue_offset == COUNT


async def test_a_file_that_is_alone_and_round_is_another_configuration(tmp_path: Path) -> None:
    async with running_store(small_config(tmp_path)) as store:
        store.put(message(1, queue_id=0))
        store.write_pending()
    os.truncate(segments(tmp_path)[0], 8192)
    with pytest.raises(StoreLayoutError, match="mappedFileSizeCommitLog"):
        async with running_store(small_config(tmp_path)):
            pass


@pytest.mark.parametrize("link", [os.symlink, os.link])
async def test_two_segments_that_are_one_file_are_refused(tmp_path: Path, link: Any) -> None:
    """Healed by a replica, the bytes of one of them would take those of the other away."""
    await fill(tmp_path)
    files = segments(tmp_path)
    files[0].unlink()
    link(files[1], files[0])
    before = files[1].read_bytes()
    with pytest.raises(StoreLayoutError, match=f"{files[1]} and {files[0]} are one file"):
        async with running_store(small_config(tmp_path)):
            pass
    assert files[1].read_bytes() == before


async def test_a_segment_that_was_moved_to_another_disk_is_followed(tmp_path: Path) -> None:
    await fill(tmp_path / "store")
    first = segments(tmp_path / "store")[0]
    (tmp_path / "large").mkdir()
    first.rename(tmp_path / "large" / first.name)
    first.symlink_to(tmp_path / "large" / first.name)
    async with running_store(small_config(tmp_path / "store")) as store:
        assert len((await read_all(store))[0]) == COUNT


async def test_queues_are_made_again_past_a_damaged_body(tmp_path: Path) -> None:
    results = await fill(tmp_path)
    rng = random.Random(3)
    victims = sorted(rng.sample(range(COUNT), 3))
    for victim in victims:
        offset = results[victim].physical_offset
        file = next(path for path in reversed(segments(tmp_path)) if int(path.name) <= offset)
        flip_bit(file, offset - int(file.name) + 88 + rng.randrange(100), rng)
    queues = next(tmp_path.rglob("consumequeue"))
    for path in sorted(queues.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    async with running_store(small_config(tmp_path)) as store:
        served, named = await read_all(store)
        assert named == victims
        assert served == [number for number in range(COUNT) if number not in victims]
        assert len(store.damage.places) >= len(victims)


async def test_a_last_entry_that_leads_behind_the_log_is_made_again(tmp_path: Path) -> None:
    await fill(tmp_path)
    queue = sorted(next(tmp_path.rglob("consumequeue")).rglob("0*"))[-1]
    entries = [queue.read_bytes()[at : at + 20] for at in range(0, queue.stat().st_size, 20)]
    used = max(number for number, entry in enumerate(entries) if any(entry))
    with queue.open("r+b") as file:
        file.seek(used * 20 + 2)
        file.write(b"\x01")
    async with running_store(small_config(tmp_path)) as store:
        assert store.max_offset_in_queue("T", 0) == COUNT
        assert len((await read_all(store))[0]) == COUNT
