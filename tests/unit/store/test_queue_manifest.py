"""The list of queues: what it says of those that are not whole."""

from __future__ import annotations

from zlib import crc32

import msgspec
from tests.support.stores import ManualClock, message, running_store, small_config

from twinlog.runtime.disk import write_atomically
from twinlog.store.queue.queue_manifest import QueueManifest
from twinlog.testing.simdisk import SimDisk

PER_FILE = 50
KEY = ("T", 0)


async def filled(disk: SimDisk, count: int) -> None:
    config = small_config("/store", mapped_file_size_consume_queue=PER_FILE * 20)
    async with running_store(config, disk, ManualClock()) as store:
        for number in range(count):
            store.put(message(number))
        store.write_pending()
        await store.flush_service.flush()
        await store.housekeeping.save_round()


async def test_a_queue_that_begins_later_than_it_did_is_lost() -> None:
    disk = SimDisk()
    await filled(disk, 3 * PER_FILE)
    manifest = QueueManifest(disk, "/store/twinlog")
    manifest.load()
    disk.unlink(f"/store/consumequeue/T/0/{0:020d}")
    config = small_config("/store", mapped_file_size_consume_queue=PER_FILE * 20)
    async with running_store(config, disk, ManualClock()) as store:
        assert store.min_offset_in_queue(*KEY) == 0
        assert manifest.lost(store.queue_table, 0) == {}
        queue = store.queue_table.by_key[KEY]
        queue.first_start = PER_FILE * 20
        assert manifest.lost(store.queue_table, 0) == {KEY: 3 * PER_FILE}
        assert manifest.lost(store.queue_table, 1000) == {}, "the log has lost records since"
        queue.first_start = 0


async def test_a_list_of_an_older_release_is_read() -> None:
    """It does not say where queues begin."""
    disk = SimDisk()
    await filled(disk, 2 * PER_FILE)
    data = b'[1000,[["T",0,100]]]'
    text = b"twinlog queues 1 %08x\n%b" % (crc32(data), data)
    write_atomically(disk, "/store/twinlog/queues", text)
    manifest = QueueManifest(disk, "/store/twinlog")
    manifest.load()
    assert manifest.ends == {KEY: 100}
    config = small_config("/store", mapped_file_size_consume_queue=PER_FILE * 20)
    async with running_store(config, disk, ManualClock()) as store:
        store.queue_table.by_key[KEY].first_start = PER_FILE * 20
        assert manifest.lost(store.queue_table, 0) == {}
        store.queue_table.by_key[KEY].first_start = 0


async def test_an_older_release_can_read_the_list() -> None:
    class Older(msgspec.Struct, array_like=True):
        file_size: int
        queues: list[tuple[str, int, int]]

    disk = SimDisk()
    await filled(disk, 10)
    _, _, data = disk.read_bytes("/store/twinlog/queues").partition(b"\n")
    assert msgspec.json.decode(data, type=Older).queues == [("T", 0, 10)]
