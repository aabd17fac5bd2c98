"""Entries that are blank because their records were lost: searches in a queue look past them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.stores import message, running_store, small_config
from twinlog.store.queue.consume_queue import PRE_BLANK

COUNT = 400


@pytest.mark.parametrize("seed", range(12))
async def test_searches_find_the_same_as_a_walk(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with running_store(small_config(tmp_path)) as store:
        places = [store.put(message(number, queue_id=0)) for number in range(COUNT)]
        store.write_pending()
        store.queue_table.write_all()
        queue, pool = store.queue_table.get("T", 0), store.queue_table.pool
        assert queue is not None
        blank = set(range(rng.choice((0, 0, 5, 150))))  # Before the first: any number of them.
        for _ in range(rng.randrange(1, 6)):
            begin = rng.randrange(COUNT)
            blank |= set(range(begin, min(COUNT, begin + rng.choice((1, 1, 2, 3, 15, 150)))))
        for number in blank:
            start = number * 20 - number * 20 % queue.file_size
            pool.get(queue.path_of(start)).pwritev((PRE_BLANK,), number * 20 - start)
        left = [number for number in range(COUNT) if number not in blank]
        first = left[0]  # What is before it may be shown or not: nothing is there.
        for offset in rng.sample([place.physical_offset for place in places], 60):
            wanted = next(
                (number for number in left if places[number].physical_offset >= offset), COUNT
            )
            queue.forget_minimum()
            assert queue.min_offset(pool, offset) == wanted, (seed, offset)
            before = [number for number in left if places[number].end_offset <= offset]
            found = queue.entries_up_to(pool, offset)
            assert (before[-1] if before else -1) < found <= wanted, (seed, offset)
        cut = places[rng.randrange(first + 1, COUNT)].physical_offset
        kept = [number for number in left if places[number].physical_offset < cut]
        queue.truncate(store._disk, pool, cut)
        later = [number for number in left if number not in kept]
        assert kept[-1] < queue.next_offset <= (later[0] if later else COUNT)
