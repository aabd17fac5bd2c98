"""The records of a controller that has its own file."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from twinlog.broker.group.stored import StoredGroup
from twinlog.controller.file_store import FileRecordStore
from twinlog.controller.record import GroupRecord, changed
from twinlog.controller.store import RecordStoreError, StoreOutcome
from twinlog.ha.epoch_file import EpochFile
from twinlog.ha.epochs import EpochEntry
from twinlog.runtime.disk import PosixDisk, write_atomically
from twinlog.runtime.event_journal import EventJournal
from twinlog.runtime.sealed import sealed
from twinlog.testing.simdisk import SimDisk

MEMBERS = frozenset({1, 3})


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


def flips(data: bytes) -> Iterator[bytes]:
    """The same file with one bit of it turned over."""
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            yield bytes(flipped)


async def test_no_flipped_bit_makes_up_a_record() -> None:
    """JSON alone would read another master, set or epoch from it, and one would be elected."""
    disk = SimDisk()
    store = FileRecordStore(disk, "/c")
    await store.lead()
    record = GroupRecord(group="a", cluster="c", version=1, master_epoch=6, sync_state_set=MEMBERS)
    assert await store.commit(record) is StoreOutcome.DONE
    data = disk.read_bytes("/c/groups.json")
    for damaged in flips(data):
        write_atomically(disk, "/c/groups.json", damaged)
        with suppress(RecordStoreError):
            assert await store.lead() == [record], damaged
    with pytest.raises(RecordStoreError, match=r"restore it from its \.bak"):
        await store.lead()


@pytest.mark.parametrize(
    "fields",
    [
        {"masterEpoch": 3, "masterBrokerId": 9, "syncStateSet": [1]},
        {"syncStateSet": [1]},
        {"masterEpoch": 3},
        {"masterBrokerId": 1},
    ],
)
async def test_a_record_that_cannot_be_is_refused_with_what_to_do(
    fields: dict[str, object],
) -> None:
    """Somebody edited the file. The first decision by it would end the controller."""
    disk = SimDisk()
    await FileRecordStore(disk, "/c").lead()
    group = {"cluster": "c", "group": "g", **fields}
    data = msgspec.json.encode({"format": 1, "groups": [group]})
    write_atomically(disk, "/c/groups.json", sealed(data))
    with pytest.raises(RecordStoreError, match=r"record of g contradicts itself.*restore it"):
        await FileRecordStore(disk.crash(None), "/c").lead()


async def test_a_file_without_a_checksum_is_read() -> None:
    disk = SimDisk()
    disk.make_directories("/c")
    record = GroupRecord(group="a", cluster="c", version=1)
    text = b'{"format":1,"groups":[' + msgspec.json.encode(record) + b"]}"
    write_atomically(disk, "/c/groups.json", text)
    assert await FileRecordStore(disk, "/c").lead() == [record]


@pytest.mark.parametrize("text", [b"{}", b'{"group":"broker-a"}', b'{"format":1}'])
async def test_a_file_that_holds_something_else_is_not_taken_for_no_groups(text: bytes) -> None:
    disk = SimDisk()
    disk.make_directories("/c")
    write_atomically(disk, "/c/groups.json", text)
    with pytest.raises(RecordStoreError, match=r"cannot be read.*restore it"):
        await FileRecordStore(disk, "/c").lead()


async def test_a_directory_in_the_place_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "groups.json").mkdir()
    with pytest.raises(
        RecordStoreError, match=r"groups\.json cannot be read \(it is a directory\)"
    ):
        await FileRecordStore(PosixDisk(), str(tmp_path)).lead()


async def test_a_damaged_record_of_a_broker_counts_as_none_and_the_epoch_is_kept() -> None:
    disk = SimDisk()
    disk.make_directories("/store")
    record = GroupRecord(group="a", cluster="c", version=1, master_epoch=6, sync_state_set=MEMBERS)
    EpochFile(disk, "/store").replace([EpochEntry(6, 0, 0)])
    stored = StoredGroup(disk, "/store", "c", "a")
    await stored.save(record, 6)
    data = disk.read_bytes("/store/twinlog/group.json")
    for damaged in flips(data):
        write_atomically(disk, "/store/twinlog/group.json", damaged)
        again = StoredGroup(disk, "/store", "c", "a")
        again.load()
        assert again.record in (record, None), damaged
        assert again.known_epoch == 6, damaged
