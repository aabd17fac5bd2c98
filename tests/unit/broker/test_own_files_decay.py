"""Every bit of every small file of `store/twinlog`: a flipped one is never taken for what was
written, and never stops a start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_tables import Side
from support.stores import ManualClock
from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.pair.skip_guard import SkipGuard
from twinlog.broker.pair.succession import GroupMemory, read_memory
from twinlog.broker.tables.table_check import Left, TableCheck
from twinlog.ha.twin.mark import ConfirmedMark
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.event_journal import EventJournal, RecentEvents
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved
from twinlog.store.integrity.format import check_format, write_format
from twinlog.testing.simdisk import SimDisk

ROOT = "/store"
OWN = f"{ROOT}/twinlog"


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories(OWN)
    return disk


def flips(data: bytes) -> Iterator[bytes]:
    """The bytes with one other bit, for each bit."""
    for bit in range(8 * len(data)):
        at = bit // 8
        yield data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]


def put(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwritev([data], 0)
    file.close()


def decayed(disk: SimDisk, path: str) -> Iterator[None]:
    """The file at `path` with each bit flipped in turn."""
    for data in flips(disk.read_bytes(path)):
        put(disk, path, data)
        yield


def identity(disk: SimDisk) -> StoreIdentity:
    tokens = iter(("0123456789abcdef" * 2, "fedcba9876543210" * 2))
    store = StoreIdentity(BrokerConfig(store_path_root_dir=ROOT), disk, lambda: next(tokens))
    store.twin()
    store.load()
    return store


@pytest.mark.parametrize("name", ["identity.json", "identity.json.bak"])
def test_who_a_store_is_is_known_from_the_other_copy(name: str) -> None:
    disk = new_disk()
    store = identity(disk)
    store.settle(1000)
    store.heard(1_790_000_000_000)
    path, written = f"{OWN}/{name}", disk.read_bytes(f"{OWN}/{name}")
    for _ in decayed(disk, path):
        found = identity(disk)
        assert found.store_id == store.store_id
        assert found.replica_uid == store.replica_uid
        assert found.promotion == store.promotion
        assert found.was_master
        found.settle(2000)
        assert disk.read_bytes(path) == written, "the damaged copy is written again"


def test_a_store_is_not_taken_for_one_of_a_newer_release() -> None:
    disk = new_disk()
    write_format(disk, ROOT)
    path, written = f"{OWN}/format.json", disk.read_bytes(f"{OWN}/format.json")
    for _ in decayed(disk, path):
        check_format(disk, ROOT)
        write_format(disk, ROOT)
        assert disk.read_bytes(path) == written


def test_what_a_master_counted_is_known_or_in_doubt() -> None:
    disk = new_disk()
    mark = ConfirmedMark(disk, ROOT)
    mark.load(was_clean=True, is_durable=False)
    mark.joined(1)
    mark.leads(0, is_alone=True)
    mark.leads(1 << 20, is_alone=False)
    path = f"{OWN}/replicas.json"
    for _ in decayed(disk, path):
        found = ConfirmedMark(disk, ROOT)
        found.load(was_clean=False, is_durable=False)
        is_known = (found.replicas, found.alone_end) == ({1}, 1 << 20)
        assert is_known or found.is_in_doubt


def test_what_a_promoted_master_guards_is_known_or_nothing() -> None:
    disk, clock = new_disk(), ManualClock()
    guard = SkipGuard(disk, ROOT, clock)
    guard.promoted({"tópico": {0: 5, 1: 700}})
    for _ in decayed(disk, f"{OWN}/promotion.json"):
        found = SkipGuard(disk, ROOT, clock)
        found.load()
        assert not found.is_armed or found.armed == guard.armed


def test_what_a_slave_knows_of_its_group_is_known_or_nothing() -> None:
    memory = GroupMemory("127.0.0.1:10911", "SYNC_MASTER", 2, [1, 2], 1_790_000_000_000)
    for data in flips(encode_saved(memory)):
        assert read_memory(data) in (memory, GroupMemory())


async def test_a_slave_that_lost_its_place_in_the_metadata_reads_all_again(tmp_path: Path) -> None:
    side = Side(tmp_path, role="ASYNC_MASTER")
    await side.start()
    writer = side.writer()
    writer.enable()
    for number in range(12):
        side.topics.update(TopicConfig(f"t{number}"))
        writer.tick()
    side.store.write_pending()
    reader = side.reader()
    reader.load()
    await reader.save(2)
    path = side.root / "metadata.json"
    for data in flips(path.read_bytes()):
        path.write_bytes(data)
        found = side.reader()
        found.load()
        assert found.applied_count >= reader.applied_count - 2
    await side.stop()


def test_digests_of_tables_that_cannot_be_read_say_nothing() -> None:
    disk = new_disk()
    disk.make_directories(f"{OWN}/digests")
    data = encode_saved({"topics.json": Left("ab" * 16, 5)})
    for flipped in flips(data):
        put(disk, f"{OWN}/digests/tables.json", flipped)
        assert not TableCheck(disk, ROOT).is_decayed(f"{ROOT}/config/other.json", b"")


def test_an_event_that_cannot_be_read_is_left_out() -> None:
    disk = new_disk()
    RecentEvents(EventJournal(disk, OWN)).write(5, "kind", text="what happened")
    (path,) = (f"{OWN}/{name}" for name in disk.list(OWN))
    for _ in decayed(disk, path):
        found = RecentEvents(EventJournal(disk, OWN))
        found.load()
        assert len(found.select()) <= 2


def test_a_file_of_an_older_release_has_no_seal() -> None:
    memory = GroupMemory("a:1", "SLAVE", 1, [1], 5)
    assert decode_saved(b'{"master_address":"a:1","master_role":"SLAVE","in_sync_replicas":1,'
                        b'"replica_ids":[1],"heard_ms":5}', GroupMemory) == memory  # fmt: skip
    for data in (b"", b"[]", b"{", b'{"master_address":"\xe9"}', b'{"master_address":5}'):
        with pytest.raises(BrokenSealError):
            decode_saved(data, GroupMemory)
