"""The records of a controller that has its own file."""

from __future__ import annotations

import random

import pytest

from twinlog.controller.file_store import FileRecordStore
from twinlog.controller.record import GroupRecord, changed
from twinlog.controller.store import StoreOutcome
from twinlog.runtime.event_journal import EventJournal
from twinlog.testing.simdisk import SimDisk


@pytest.mark.parametrize("directory", ["/controller", "/a/b/controller", "controller"])
@pytest.mark.parametrize("seed", [None, *range(4)])
async def test_a_written_record_survives_a_power_cut(directory: str, seed: int | None) -> None:
    """The directory, too, also one that somebody else made a moment before."""
    disk = SimDisk()
    EventJournal(disk, directory).write(1, "controller-started")
    store = FileRecordStore(disk, directory)
    await store.lead()
    record = GroupRecord(group="a", cluster="c", version=1)
    assert await store.commit(record) is StoreOutcome.DONE
    following = changed(record, lineage="l")
    assert await store.commit(following) is StoreOutcome.DONE
    after = disk.crash(None if seed is None else random.Random(seed))
    assert await FileRecordStore(after, directory).lead() == [following]
