"""What the store asserts about itself: a number that does not fit the others stops it at once."""

from __future__ import annotations

import pytest
from tests.support.stores import ManualClock, message, running_store, small_config

from twinlog.testing.simdisk import SimDisk


def store():
    return running_store(small_config("/store"), SimDisk(), ManualClock())


async def test_a_place_without_an_entry_is_not_written():
    async with store() as opened:
        opened.put(message(1))
        opened.write_pending()
        (queue,) = opened.queue_table
        queue.check()
        queue.next_offset += 1
        with pytest.raises(AssertionError):
            opened.queue_table.write(queue)
        queue.next_offset -= 1


async def test_consumers_see_no_place_that_is_not_given():
    async with store() as opened:
        opened.put(message(1))
        opened.write_pending()
        (queue,) = opened.queue_table
        queue.max_offset += 1
        with pytest.raises(AssertionError):
            queue.check()
        queue.max_offset -= 1


@pytest.mark.parametrize("change", ["flushed", "tail", "segment_end"])
async def test_a_log_whose_numbers_contradict_each_other_is_found_in_the_next_turn(change):
    async with store() as opened:
        opened.put(message(1))
        opened.write_pending()
        log = opened.commit_log
        log.check()
        before = (log.flushed.value, log.end.tail, log.end.segment_end)
        if change == "flushed":
            log.flushed.reset(log.appended.value + 1, "broken by hand")
        elif change == "tail":
            log.end.tail -= 1
        else:
            log.end.segment_end += 8
        with pytest.raises(AssertionError):
            log.check()
        log.flushed.reset(before[0], "mended")
        log.end.tail, log.end.segment_end = before[1:]
