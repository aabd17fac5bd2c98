"""What a replica knows as confirmed, over kills, power cuts and full disks."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from twinlog.ha.twin.mark import PROCESSES_MAX, SLOTS, ConfirmedMark
from twinlog.runtime.disk import PosixDisk
from twinlog.testing.simdisk import SimCrash, SimDisk

MARK = "/store/twinlog/confirmed.mark"


def new_disk() -> SimDisk:
    disk = SimDisk()
    disk.make_directories("/store")
    disk.fsync_directory("/")
    return disk


def load(disk: SimDisk, *, was_clean: bool = False, is_durable: bool = False) -> ConfirmedMark:
    mark = ConfirmedMark(disk, "/store")
    mark.load(was_clean=was_clean, is_durable=is_durable)
    return mark


def test_a_kill_keeps_the_mark_and_raises_no_doubt() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    mark.note(400)
    mark.joined(1)
    mark.note(600)
    mark.save()
    again = load(disk.kill())
    assert (again.value, again.replicas, again.is_in_doubt) == (600, {1}, False)


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_cut_the_mark_is_lower_at_most_and_the_replicas_are_known(seed: int) -> None:
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    mark.joined(2)
    mark.note(70_000)
    mark.save()
    crashed = disk.crash(random.Random(seed))
    again = load(crashed)
    assert again.value in (500, 70_000)
    assert (again.replicas, again.is_in_doubt) == ({2}, True)
    still = load(crashed.kill(), was_clean=True)
    assert still.is_in_doubt, "also over a second start, until it is complete"
    still.complete()
    assert not load(crashed.kill().kill()).is_in_doubt


def test_a_store_in_doubt_knows_its_processes_since_the_power_loss() -> None:
    disk = new_disk()
    load(disk).began("before")
    crashed = disk.crash(None)
    load(crashed).began("first")
    again = load(crashed.kill())
    assert again.processes == ("first",)
    again.began("second")
    assert load(crashed.kill().kill()).processes == ("first", "second")
    for number in range(PROCESSES_MAX):
        again.began(str(number))
    assert again.processes == tuple(map(str, range(PROCESSES_MAX))), "bounded"
    assert load(crashed.kill().crash(None)).processes == (), "none of them says anything any more"
    again.complete()
    assert again.processes == ()


@pytest.mark.parametrize(("was_clean", "is_durable"), [(True, False), (False, True), (True, True)])
def test_a_clean_stop_or_a_synchronous_flush_leaves_no_doubt(
    was_clean: bool, is_durable: bool
) -> None:
    disk = new_disk()
    load(disk).joined(1)
    assert not load(disk.crash(None), was_clean=was_clean, is_durable=is_durable).is_in_doubt


def test_a_mark_that_is_taken_back_is_taken_back_for_good() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    mark.save()
    mark.rebase(300)
    assert load(disk.crash(None)).value == 300


@pytest.mark.parametrize("seed", range(20))
async def test_a_power_cut_takes_no_more_than_what_was_not_synced(seed: int) -> None:
    """In the middle of any write: another slot has what was synced last."""
    rng = random.Random(seed)
    disk = new_disk()
    mark = load(disk)
    value = synced = 0
    for _ in range(rng.randrange(1, 30)):
        value += rng.choice((1, 1000, 1 << 33))
        mark.note(value)
        mark.save()
        if rng.random() < 0.4:
            await mark.sync()
            synced = value
        if rng.random() < 0.2:
            mark.joined(rng.randrange(9))
    again = load(disk.crash(rng))
    assert synced <= again.value <= value


async def test_while_a_sync_is_under_way_the_next_mark_has_a_place() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    mark.joined(1)
    disk.stall()
    mark.note(600)
    syncing = asyncio.ensure_future(mark.sync())
    await asyncio.sleep(0)
    mark.note(700)
    mark.save()
    assert load(disk.crash(None)).value == 500
    disk.resume()
    with suppress(SimCrash):
        await syncing


def test_a_damaged_mark_protects_the_whole_log() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    mark.save()
    disk.open(MARK).pwritev([b"\x7f"], 6)
    again = load(disk.kill())
    assert again.value == 0
    assert again.covers(0, 100)
    assert not again.covers(0, 0)


def test_a_slave_that_may_have_acknowledged_something_keeps_its_log() -> None:
    """It is told what is confirmed a moment later, or never: the master is gone."""
    disk = new_disk()
    mark = load(disk)
    assert not mark.covers(0, 100)
    mark.follow(0)
    assert load(disk.crash(None)).covers(0, 100)


def test_a_full_disk_is_tried_again() -> None:
    disk = new_disk()
    mark = load(disk)
    quota, disk.quota = disk.quota, 1
    mark.note(500)
    mark.joined(1)
    disk.quota = quota
    mark.save()
    again = load(disk.kill())
    assert (again.value, again.replicas) == (500, {1})


def test_replicas_are_forgotten_only_when_told_so() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.joined(1)
    mark.joined(2)
    mark.keep_replicas([2, 5])
    assert load(disk.crash(None)).replicas == {2}


def test_without_a_disk_it_is_kept_in_memory() -> None:
    mark = ConfirmedMark(None, "/store")
    mark.load(was_clean=True, is_durable=False)
    mark.note(500)
    mark.complete()
    mark.joined(3)
    mark.close()
    assert (mark.value, mark.replicas) == (500, {3})


@pytest.mark.parametrize("damage", [b"", bytes(12), b"x" * 40])
def test_files_that_cannot_be_read_say_the_least(damage: bytes) -> None:
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    mark.joined(2)
    mark.close()
    for path in (mark._mark_path, mark._replicas_path):
        file = disk.open(path, create=False)
        file.truncate(0)
        if damage:
            file.pwritev([damage], 0)
        file.close()
    again = load(disk.kill())
    assert (again.value, again.replicas) == (0, frozenset())
    assert again.is_in_doubt


def test_what_is_known_already_writes_nothing() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.joined(2)
    for call in ("pwritev", "fdatasync", "rename"):
        disk.fail(call)  # A write would fail, and say so.
    mark.joined(2)
    mark.keep_replicas([2, 3])
    mark.rebase(700)
    mark.complete()
    mark.save()
    assert not mark._is_failing


def test_a_disk_that_fails_is_tried_again_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = new_disk()
    mark = load(disk)
    for value in (500, 600):
        disk.fail("pwritev")
        mark.note(value)
        mark.save()
    assert [record.message for record in caplog.records if "not saved" in record.message] != []
    assert len(caplog.records) == 1
    mark.save()
    assert load(disk.kill()).value == 600


async def test_a_sync_that_fails_is_told_of_and_done_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = new_disk()
    mark = load(disk)
    await mark.sync()
    assert mark._file is None, "nothing is known: nothing is written"
    mark.note(500)
    disk.fail("fdatasync")
    await mark.sync()
    assert ["not synced" in record.message for record in caplog.records] == [True]
    await mark.sync()
    await mark.sync()
    assert load(disk.crash(None)).value == 500


@pytest.mark.parametrize("rounds", range(1, 5))
async def test_a_replica_that_joins_during_a_sync_has_the_mark_synced_for_it(rounds: int) -> None:
    """The slot of the sync under way is the next one then: it is not the one that must stay."""
    disk = new_disk()
    mark = load(disk)
    for value in (500, 600):
        mark.note(value)
        await mark.sync()
    for number in range(rounds):
        disk.stall()
        mark.note(700 + 10 * number)
        syncing = asyncio.ensure_future(mark.sync())
        await asyncio.sleep(0)
        mark.note(705 + 10 * number)
        mark.joined(number)
        disk.resume()
        await syncing
        mark.note(707 + 10 * number)
        mark.save()
    assert load(disk.crash(None)).value == 705 + 10 * number, "only what was synced"


def test_who_follows_again_writes_nothing() -> None:
    disk = new_disk()
    mark = load(disk)
    mark.follow(0)
    for call in ("pwritev", "fdatasync"):
        disk.fail(call)  # A write would fail, and say so.
    mark.follow(0)
    assert not mark._is_failing


def test_a_replica_joins_with_a_mark_that_is_on_disk_whatever_failed_before() -> None:
    """After a sync that failed the system has dropped what was written: it is written again."""
    disk = new_disk()
    mark = load(disk)
    mark.note(500)
    disk.fail("fdatasync")
    mark.joined(1)
    mark.save()
    again = load(disk.crash(None))
    assert (again.value, again.replicas) == (500, {1})


@pytest.mark.parametrize("seed", range(5))
def test_a_time_without_slaves_is_known_until_the_log_is_another_masters(seed: int) -> None:
    rng, disk = random.Random(seed), new_disk()
    load(disk).leads(700, is_alone=True)
    disk = disk.crash(rng)
    again = load(disk)
    assert again.alone_end == 0, "while it lasts, the whole log counts as answered"
    again.leads(900, is_alone=False)
    disk = disk.crash(rng)
    once_more = load(disk)
    once_more.leads(1200, is_alone=False)
    assert once_more.alone_end == 900
    once_more.follow(300)
    assert load(disk.crash(rng)).alone_end == 0


async def test_a_torn_write_takes_only_what_was_not_synced() -> None:
    """Not every disk writes even twelve bytes at once."""
    disk = new_disk()
    mark = load(disk)
    for value in (500, 600, 700):
        mark.note(value)
        await mark.sync()
        mark.note(value + 50)
        mark.save()
        disk = disk.kill()
        file = disk.open(MARK)
        newest = (value + 50).to_bytes(8, "big")
        file.pwritev([b"\xff" * 6], next(s for s in SLOTS if file.pread(8, s) == newest))
        mark = load(disk)
        assert mark.value == value


def test_what_the_files_of_a_stopped_broker_say() -> None:
    disk = new_disk()
    assert ConfirmedMark(disk, "/store").peek() == (0, False, ())
    mark = load(disk)
    mark.joined(2)
    mark.note(600)
    mark.save()
    assert ConfirmedMark(disk.kill(), "/store").peek() == (600, False, (2,))


async def test_a_broker_that_stops_during_a_sync_ends_it(tmp_path: Path) -> None:
    disk = PosixDisk()
    mark = ConfirmedMark(disk, str(tmp_path))
    mark.load(was_clean=True, is_durable=False)
    mark.note(500)
    is_closed = threading.Event()
    busy = [asyncio.ensure_future(disk.run(is_closed.wait)) for _ in range(2)]  # All its threads.
    syncing = asyncio.ensure_future(mark.sync())
    await asyncio.sleep(0)
    mark.close()
    is_closed.set()
    await asyncio.gather(syncing, *busy)
    disk.close()
    again = ConfirmedMark(disk, str(tmp_path))
    again.load(was_clean=True, is_durable=False)
    assert again.value == 500
