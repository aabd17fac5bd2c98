"""Who a store is, and a store that starts over: killed after every operation of the disk."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from support.stores import ManualClock, make_store, message, small_config
from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.pair.reseed import ask_for_reseed, reseed_if_asked
from twinlog.broker.put.once_service import IdempotentSends
from twinlog.message.once import Mark
from twinlog.runtime.config import BrokerConfig, BrokerRole
from twinlog.store.errors import StoreError
from twinlog.testing.simdisk import SimCrash, SimDisk

ROOT = "/store"
TOKENS = itertools.count()


def identity(disk: SimDisk, role: str = "ASYNC_MASTER") -> StoreIdentity:
    config = BrokerConfig(
        store_path_root_dir=ROOT, broker_role=BrokerRole(role), broker_id=int(role == "SLAVE")
    )
    return StoreIdentity(config, disk, lambda: f"token-{next(TOKENS)}")


def settled_slave(disk: SimDisk) -> StoreIdentity:
    """A slave that serves."""
    slave = identity(disk, "SLAVE")
    slave.twin()
    slave.load()
    slave.settle(1000)
    return slave


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories(ROOT)
    disk.fsync_directory("/")
    return disk


def test_a_masters_ids_are_drawn_once() -> None:
    disk = new_disk()
    first = identity(disk)
    twin = first.twin()
    first.load()
    first.settle(1000)
    assert twin.store_id
    assert twin.replica_uid
    assert twin.store_id != twin.replica_uid
    again = identity(disk.crash(None))
    same = again.twin()
    again.load()
    again.settle(1000)
    assert (same.store_id, same.replica_uid) == (twin.store_id, twin.replica_uid)


def test_a_slave_takes_its_masters_store_id_and_keeps_it() -> None:
    disk = new_disk()
    slave = identity(disk, "SLAVE")
    twin = slave.twin()
    slave.load()
    slave.settle(1000)
    assert twin.store_id == ""
    slave.adopt("")
    assert twin.store_id == ""
    slave.adopt("lineage")
    again = identity(disk.crash(None), "SLAVE")
    same = again.twin()
    again.load()
    again.settle(1000)
    assert same.store_id == "lineage"
    assert same.replica_uid == twin.replica_uid


def test_each_promotion_has_a_number_above_all_that_the_group_had() -> None:
    disk = new_disk()
    master = identity(disk)
    master.twin()
    master.load()
    master.settle(1000)
    assert (master.is_promotion, master.promotion) == (False, 0), "a first master is none"
    disk = new_disk()
    slave = settled_slave(disk)
    slave.heard(5000)
    promoted = identity(disk.crash(None))
    promoted.twin()
    promoted.load()
    assert promoted.is_promotion
    assert not promoted.is_granted
    # A start that is refused leaves no trace.
    refused = identity(disk.crash(None))
    refused.twin()
    refused.load()
    assert refused.is_promotion
    refused.settle(4000)
    assert refused.promotion == 5001, "also when the clock is behind"


def test_a_slave_says_the_promotion_that_its_log_follows_and_forgets_no_higher_one() -> None:
    disk = new_disk()
    slave = settled_slave(disk)
    slave.heard(5000)
    slave.heard(4000)  # Its master was promoted later, under a clock that stood wrong.
    assert slave.promotion == 4000, "else no other slave of that master could replace it"
    disk = disk.crash(None)
    again = identity(disk, "SLAVE")
    again.twin()
    again.load()
    assert again.promotion == 4000
    promoted = identity(disk.crash(None))
    promoted.twin()
    promoted.load()
    promoted.settle(4500)
    assert promoted.promotion == 5001


def test_a_grant_holds_for_one_start() -> None:
    disk = new_disk()
    slave = settled_slave(disk)
    slave.grant(700, 9000)
    disk = disk.crash(None)
    promoted = identity(disk)
    promoted.twin()
    promoted.load()
    assert (promoted.is_granted, promoted.promotion, promoted.granted_end) == (True, 700, 9000)
    promoted.settle(2000)
    again = identity(disk.crash(None))
    again.twin()
    again.load()
    assert (again.is_granted, again.is_promotion, again.promotion) == (False, False, 2000)
    assert again.granted_end == 0


def test_a_copy_that_becomes_the_master_keeps_the_lineage_and_knows_that_it_was_a_slave() -> None:
    disk = new_disk()
    slave = settled_slave(disk)
    slave.adopt("lineage")
    promoted = identity(disk)
    twin = promoted.twin()
    promoted.load()
    promoted.settle(1000)
    assert twin.store_id == "lineage"
    assert not promoted.was_master
    restarted = identity(disk)
    restarted.twin()
    restarted.load()
    restarted.settle(1000)
    assert restarted.was_master


def test_a_promotion_that_cannot_be_written_is_none() -> None:
    """The next start would take its own slaves for those whom it must not replace."""
    disk = new_disk()
    slave = settled_slave(disk)
    slave.adopt("lineage")
    disk.quota = 1
    promoted = identity(disk)
    promoted.twin()
    promoted.load()
    with pytest.raises(StoreError, match="the promotion cannot be written"):
        promoted.settle(1000)
    disk.quota = 1 << 40
    again = identity(disk)
    again.twin()
    again.load()
    assert again.is_promotion


def test_a_copy_takes_over_until_its_tables_are_saved() -> None:
    disk = new_disk()
    settled_slave(disk)
    for killed in (False, True):
        promoted = identity(disk)
        promoted.twin()
        promoted.load()
        assert (promoted.is_promotion, promoted.is_taking_over) == (not killed, True)
        assert not promoted.has_led
        promoted.settle(1000)
        if killed:
            promoted.taken_over()
        disk = disk.crash(None)
    again = identity(disk)
    again.twin()
    again.load()
    assert again.has_led


@pytest.mark.parametrize("text", [b"{", b"", b"[]", b'{"store_id":5}', b"\xff"])
def test_a_damaged_file_is_replaced_by_its_copy_and_without_one_refused(text: bytes) -> None:
    """A master under a new id would be refused by all its slaves."""
    disk = new_disk()
    first = identity(disk)
    known = first.twin()
    first.load()
    first.settle(1000)
    put(disk, "identity.json", text)
    store = identity(disk)
    twin = store.twin()
    store.load()
    store.settle(1000)
    assert (twin.store_id, twin.replica_uid) == (known.store_id, known.replica_uid)
    put(disk, "identity.json", text)
    put(disk, "identity.json.bak", text)
    lost = identity(disk)
    lost.twin()
    with pytest.raises(StoreError, match=r"identity\.json.*copy store_id from a replica"):
        lost.load()
    assert disk.read_bytes(f"{ROOT}/twinlog/identity.json") == text, "nothing is written over it"


def put(disk: SimDisk, name: str, data: bytes) -> None:
    path = f"{ROOT}/twinlog/{name}"
    if disk.exists(path):
        disk.unlink(path)
    file = disk.open(path, create=True)
    file.pwritev([data], 0)
    file.close()


def test_a_missing_file_or_copy_is_written_again() -> None:
    disk = new_disk()
    first = identity(disk)
    known = first.twin()
    first.load()
    first.settle(1000)
    for name in ("identity.json", "identity.json.bak"):
        disk.unlink(f"{ROOT}/twinlog/{name}")
        again = identity(disk)
        twin = again.twin()
        again.load()
        again.settle(1000)
        assert twin.store_id == known.store_id
        assert disk.exists(f"{ROOT}/twinlog/{name}")


# Starting over

LOG = "/other-disk/commitlog"
FILES = {
    f"{ROOT}/commitlog/00000000000000000000": b"log",
    f"{ROOT}/consumequeue/t/0/00000000000000000000": b"queue",
    f"{ROOT}/index/20260101000000000": b"index",
    f"{ROOT}/checkpoint": b"point",
    f"{ROOT}/config/consumerOffset.json": b"offsets",
    f"{ROOT}/config/topics.json": b"topics",
    f"{ROOT}/twinlog/identity.json": b"ids",
    f"{ROOT}/twinlog/identity.json.bak": b"same ids",
    f"{ROOT}/twinlog/metadata.json": b"position",
    f"{ROOT}/twinlog/cut-1/00000000000000000000": b"an older cut",
    f"{LOG}/00000000000000000000": b"more log",
}


def filled_disk() -> SimDisk:
    disk = SimDisk()
    for path, data in FILES.items():
        directory = path.rpartition("/")[0]
        disk.make_directories(directory)
        file = disk.open(path, create=True)
        file.pwritev([data], 0)
        file.fdatasync()
        file.close()
        while directory:
            disk.fsync_directory(directory)
            directory = directory.rpartition("/")[0]
    disk.fsync_directory("/")
    return disk


def contents(disk: SimDisk, path: str = "/") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in disk.list(path):
        child = f"{path.rstrip('/')}/{name}"
        if disk.is_directory(child):
            found |= contents(disk, child)
        else:
            found[child] = disk.read_bytes(child)
    return found


def moved(path: str) -> str:
    aside = f"{ROOT}/twinlog/reseed-77"
    if path.startswith(LOG):
        return path.replace(LOG, f"{LOG}.reseed-77")
    if "cut-1" in path:
        return path
    return path.replace(f"{ROOT}/twinlog", aside) if "/twinlog/" in path else path.replace(
        ROOT, aside
    )  # fmt: skip


def test_without_a_note_nothing_is_touched() -> None:
    disk = filled_disk()
    assert reseed_if_asked(disk, ROOT, [LOG]) is None
    assert contents(disk) == FILES


def test_everything_is_moved_aside_and_nothing_destroyed() -> None:
    disk = filled_disk()
    ask_for_reseed(disk, ROOT, 77, "nothing in common")
    assert reseed_if_asked(disk, ROOT, [f"{ROOT}/commitlog", LOG]) == f"{ROOT}/twinlog/reseed-77"
    assert contents(disk) == {moved(path): data for path, data in FILES.items()}
    assert reseed_if_asked(disk, ROOT, [LOG]) is None


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("is_power_cut", [True, False])
def test_cut_off_after_every_operation_the_next_start_finishes_it(
    seed: int | None, is_power_cut: bool
) -> None:
    count = 0
    for moment in range(1, 200):
        disk = filled_disk()
        disk.crash_after = disk.change_count + moment
        is_asked = False
        try:
            ask_for_reseed(disk, ROOT, 77, "nothing in common")
            is_asked = True
            reseed_if_asked(disk, ROOT, [LOG])
        except SimCrash:
            count += 1
        else:
            break
        rng = None if seed is None else random.Random(seed * 1000 + moment)
        found = disk.crash(rng) if is_power_cut else disk.kill()
        was_noted = reseed_if_asked(found, ROOT, [LOG]) is not None
        assert was_noted or not is_asked or _is_moved(found)
        final = {path: data for path, data in contents(found).items() if ".tmp" not in path}
        whole = {moved(path): data for path, data in FILES.items()}
        assert final in (FILES, whole), f"half a store after operation {moment}"
    assert count > 10


def _is_moved(disk: SimDisk) -> bool:
    return not disk.exists(f"{ROOT}/commitlog")


def test_a_note_that_names_another_place_stays_below_the_store() -> None:
    disk = filled_disk()
    file = disk.open(f"{ROOT}/twinlog/reseed", create=True)
    file.pwritev([b"../../../elsewhere\nreason\n"], 0)
    file.close()
    assert reseed_if_asked(disk, ROOT) == f"{ROOT}/twinlog/elsewhere"


def test_nothing_that_a_store_saved_of_itself_outlives_its_log() -> None:
    """A recovery point or a list of queues of the old log would be taken for the new one's."""
    disk = SimDisk()
    asyncio.run(_save_a_store(disk))
    names = set(disk.list(f"{ROOT}/twinlog"))
    assert {"recovery", "queues", "producers"} <= names
    ask_for_reseed(disk, ROOT, 77, "nothing in common")
    reseed_if_asked(disk, ROOT)
    assert set(disk.list(f"{ROOT}/twinlog")) == {"reseed-77"}


async def _save_a_store(disk: SimDisk) -> None:
    store = make_store(small_config(ROOT), disk)
    once = IdempotentSends(store, disk, ManualClock(), ROOT)
    await store.load()
    store.open_for_puts()
    once.stored(Mark("p", 0, 0, 0, "T"), store.put(message(1)), is_elsewhere=False)
    assert await store.housekeeping.save_round()
    await store.stop()
