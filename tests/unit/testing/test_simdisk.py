"""The simulated disk keeps what POSIX promises, may lose the rest, and equals the real one."""

import asyncio
import errno
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.runtime.disk import DiskLockedError, DiskSyncError, PosixDisk, write_atomically
from twinlog.testing.simdisk import SimCrash, SimDisk

SEEDS = range(40)


def _disk(**options):
    disk = SimDisk(**options)
    disk.make_directories("/s")
    disk.fsync_directory("/")
    return disk


def _file(disk, path="/s/a"):
    file = disk.open(path, create=True)
    disk.fsync_directory("/s")
    return file


def test_synced_data_survives_and_the_rest_is_lost():
    disk = _disk()
    file = _file(disk)
    file.pwritev([b"safe"], 0)
    file.fdatasync()
    file.pwritev([b"gone"], 4)
    assert disk.read_bytes("/s/a") == b"safegone"
    assert disk.crash(None).read_bytes("/s/a") == b"safe"


def test_unsynced_data_may_survive_in_any_part():
    found = set()
    for seed in SEEDS:
        disk = _disk()
        file = _file(disk)
        file.allocate(1024)
        file.fdatasync()
        file.pwritev([b"x" * 1024], 0)
        data = disk.crash(random.Random(seed)).read_bytes("/s/a")
        found.add((data[:512] == b"x" * 512, data[512:] == b"x" * 512))
        assert data[:512] in (b"x" * 512, bytes(512))
        assert data[512:] in (b"x" * 512, bytes(512))
    assert len(found) == 4  # Torn at 512 bytes, in either order.


def test_a_sector_has_the_content_of_some_moment():
    for seed in SEEDS:
        disk = _disk()
        file = _file(disk)
        file.pwritev([b"0000"], 0)
        file.fdatasync()
        file.pwritev([b"11"], 0)
        file.pwritev([b"22"], 1)
        assert disk.crash(random.Random(seed)).read_bytes("/s/a") in (b"0000", b"1100", b"1220")


def test_writes_to_two_files_are_reordered():
    found = set()
    for seed in SEEDS:
        disk = _disk()
        first, second = _file(disk, "/s/a"), _file(disk, "/s/b")
        first.pwritev([b"1"], 0)
        second.pwritev([b"2"], 0)
        after = disk.crash(random.Random(seed))
        found.add((after.file_size("/s/a"), after.file_size("/s/b")))
    assert found == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_name_needs_the_directory_and_data_needs_the_file():
    disk = _disk()
    file = disk.open("/s/new", create=True)
    file.pwritev([b"data"], 0)
    file.fdatasync()
    assert not disk.crash(None).exists("/s/new")
    disk = _disk()
    disk.open("/s/new", create=True).pwritev([b"data"], 0)
    disk.fsync_directory("/s")
    assert disk.crash(None).read_bytes("/s/new") == b""


def test_rename_is_atomic_and_needs_the_directory():
    found = set()
    for seed in SEEDS:
        disk = _disk()
        for name, data in (("/s/old", b"old"), ("/s/new", b"new")):
            file = _file(disk, name)
            file.pwritev([data], 0)
            file.fdatasync()
        disk.rename("/s/new", "/s/old")
        after = disk.crash(random.Random(seed))
        found.add((after.read_bytes("/s/old"), after.exists("/s/new")))
        disk.is_off = False
        disk.fsync_directory("/s")
        assert disk.crash(random.Random(seed)).snapshot() == {"/s/old": b"new"}
    assert found == {(b"old", True), (b"new", False)}


def test_removal_needs_the_directory():
    disk = _disk()
    _file(disk).fdatasync()
    disk.unlink("/s/a")
    assert not disk.exists("/s/a")
    assert disk.crash(None).exists("/s/a")
    disk.is_off = False
    disk.fsync_directory("/s")
    assert not disk.crash(None).exists("/s/a")


def test_directory_that_is_lost_takes_its_files_with_it():
    disk = _disk()
    disk.make_directories("/s/d/e")
    file = disk.open("/s/d/e/f", create=True)
    file.fdatasync()
    disk.fsync_directory("/s/d/e")
    disk.fsync_directory("/s/d")
    assert disk.crash(None).list("/s") == []
    disk.is_off = False
    disk.fsync_directory("/s")
    assert disk.crash(None).exists("/s/d/e/f")


def test_directory_moved_with_what_is_in_it():
    disk = _disk()
    disk.make_directories("/s/d")
    disk.fsync_directory("/s")
    disk.open("/s/d/f", create=True)
    disk.rename("/s/d", "/s/e")
    assert disk.list("/s/e") == ["f"]
    disk.fsync_directory("/s/e")
    disk.fsync_directory("/s")
    assert sorted(disk.crash(None).snapshot()) == ["/s/e/f"]


def test_truncation_is_safe_after_sync():
    disk = _disk()
    file = _file(disk)
    file.pwritev([b"x" * 2000], 0)
    file.fdatasync()
    file.truncate(100)
    assert disk.crash(None).file_size("/s/a") == 2000
    disk.is_off = False
    file.fdatasync()
    assert disk.crash(None).read_bytes("/s/a") == b"x" * 100


@pytest.mark.parametrize("seed", SEEDS)
def test_atomic_replacement_holds_at_every_change(seed):
    limit = 1
    while True:
        disk = _disk()
        write_atomically(disk, "/s/c", b"old " * 300, keep_backup=True)
        disk.crash_after = disk.change_count + limit
        try:
            write_atomically(disk, "/s/c", b"new " * 400, keep_backup=True)
        except SimCrash:
            is_done = False
        else:
            is_done = True
        after = disk.crash(random.Random(seed))
        allowed = (b"new " * 400,) if is_done else (b"old " * 300, b"new " * 400)
        assert after.read_bytes("/s/c") in allowed
        if is_done:
            break
        limit += 1
    assert limit > 8


def test_power_stays_off():
    disk = _disk()
    file = _file(disk)
    disk.crash_after = disk.change_count + 1
    with pytest.raises(SimCrash):
        file.pwritev([b"x"], 0)
    for call in (lambda: file.pread(1, 0), file.fdatasync, lambda: disk.list("/s")):
        with pytest.raises(SimCrash):
            call()
    with pytest.raises(SimCrash):
        disk.open("/s/b", create=True)


def test_kill_loses_nothing_and_frees_the_lock():
    disk = _disk()
    disk.lock("/s/lock")
    with pytest.raises(DiskLockedError):
        disk.lock("/s/lock")
    _file(disk).pwritev([b"cached"], 0)
    after = disk.kill()
    assert after.read_bytes("/s/a") == b"cached"
    lock = after.lock("/s/lock")
    lock.release()
    after.lock("/s/lock")
    # What the killed process did not sync is still not safe.
    assert after.crash(None).read_bytes("/s/a") == b""


def test_full_disk_is_an_error_and_space_comes_back():
    disk = _disk(quota=4 * 4096)
    file = _file(disk)
    with pytest.raises(OSError, match="No space left") as caught:
        file.pwritev([b"x" * (5 * 4096)], 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 4 * 4096  # A part was written, as a kernel does.
    assert disk.space("/s").usable == 0
    file.pwritev([b"y"], 0)  # No new block is needed.
    other = _file(disk, "/s/b")
    with pytest.raises(OSError, match="No space left"):
        other.allocate(4096)
    disk.unlink("/s/a")
    other.allocate(4096)
    assert disk.space("/s").used == 4096


def test_reserved_blocks_cannot_meet_a_full_disk():
    disk = _disk(quota=2 * 4096)
    file = _file(disk)
    file.allocate(8192)
    file.pwritev([b"x" * 8192], 0)
    with pytest.raises(OSError, match="No space left"):
        file.pwritev([b"x"], 8192)


def test_sparse_file_costs_only_what_is_written():
    disk = _disk()
    file = _file(disk)
    file.truncate(1_000_000)
    assert disk.space("/s").used == 0
    assert file.next_data(0) is None
    file.pwritev([b"x"], 500_000)
    assert disk.space("/s").used == 4096
    assert file.next_data(0) == 499_712
    assert file.next_data(499_713) == 499_713
    assert file.next_data(600_000) is None


def test_nth_call_fails():
    disk = _disk()
    file = _file(disk)
    disk.fail("pwritev", nth=2, path="/s/a")
    file.pwritev([b"1"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        file.pwritev([b"2"], 0)
    file.pwritev([b"3"], 0)
    assert disk.read_bytes("/s/a") == b"3"


def test_after_a_failed_sync_nothing_is_promised():
    disk = _disk()
    file = _file(disk)
    file.pwritev([b"data"], 0)
    disk.fail("fdatasync")
    with pytest.raises(DiskSyncError):
        file.fdatasync()
    file.fdatasync()  # Succeeds, and means nothing for what was written before.
    assert disk.read_bytes("/s/a") == b"data"
    assert disk.crash(None).read_bytes("/s/a") == b""
    disk.fail("fsync_directory")
    disk.is_off = False
    with pytest.raises(DiskSyncError):
        disk.fsync_directory("/s")


async def test_stalled_sync_covers_only_what_was_written_before():
    disk = _disk()
    file = _file(disk)
    file.pwritev([b"before"], 0)
    disk.stall()
    task = asyncio.ensure_future(file.fdatasync_async())
    await asyncio.sleep(0)
    file.pwritev([b"behind"], 6)
    await asyncio.sleep(0)
    assert not task.done()
    disk.resume()
    await task
    assert disk.crash(None).read_bytes("/s/a") == b"before"


def test_bit_flip_is_on_the_platter_too():
    disk = _disk()
    file = _file(disk)
    file.pwritev([b"\0\0"], 0)
    file.fdatasync()
    disk.flip_bit("/s/a", 1, 7)
    assert file.pread(2, 0) == b"\0\x80"
    assert disk.crash(None).read_bytes("/s/a") == b"\0\x80"


def test_errors_of_a_file_system(tmp_path):
    """The same errors as the real one."""
    real = PosixDisk()
    sim = _disk()
    for disk, root in ((real, str(tmp_path)), (sim, "/s")):
        for call, number in (
            (lambda d, r: d.open(f"{r}/none"), errno.ENOENT),
            (lambda d, r: d.open(f"{r}/no/such", create=True), errno.ENOENT),
            (lambda d, r: d.unlink(f"{r}/none"), errno.ENOENT),
            (lambda d, r: d.rename(f"{r}/none", f"{r}/b"), errno.ENOENT),
            (lambda d, r: d.file_size(f"{r}/none"), errno.ENOENT),
            (lambda d, r: d.read_bytes(f"{r}/none"), errno.ENOENT),
            (lambda d, r: d.remove_directory(f"{r}/none"), errno.ENOENT),
        ):
            with pytest.raises(OSError, match="No such file") as caught:
                call(disk, root)
            assert caught.value.errno == number
        disk.make_directories(f"{root}/d/e")
        with pytest.raises(OSError, match="not empty"):
            disk.remove_directory(f"{root}/d")
        assert disk.list(f"{root}/none") == []
        reader = disk.open(f"{root}/r", create=True)
        reader.close()
        read_only = disk.open(f"{root}/r", read_only=True)
        with pytest.raises(OSError, match="Bad file descriptor"):
            read_only.pwritev([b"x"], 0)
        read_only.close()
    real.close()


_names = st.sampled_from(["a", "b", "c"])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), _names, st.integers(0, 3000), st.binary(max_size=1500)),
        st.tuples(st.just("truncate"), _names, st.integers(0, 3000)),
        st.tuples(st.just("rename"), _names, _names),
        st.tuples(st.just("unlink"), _names),
        st.tuples(st.just("sync"), _names),
        st.tuples(st.just("fsync")),
    ),
    max_size=25,
)


def _apply(disk, root, step):
    kind, *rest = step
    if kind == "fsync":
        disk.fsync_directory(root)
        return
    path = f"{root}/{rest[0]}"
    if kind in ("write", "truncate", "sync"):
        file = disk.open(path, create=True)
        if kind == "write" and rest[2]:
            file.pwritev([rest[2]], rest[1])
        elif kind == "truncate":
            file.truncate(rest[1])
        elif kind == "sync":
            file.fdatasync()
        file.close()
    elif not disk.exists(path):
        return
    elif kind == "rename":
        disk.rename(path, f"{root}/{rest[1]}")
    else:
        disk.unlink(path)


@settings(max_examples=40, deadline=None)
@given(steps=_steps)
def test_programs_see_what_they_would_see_on_a_real_disk(tmp_path_factory, steps):
    real, sim = PosixDisk(), _disk()
    root = str(tmp_path_factory.mktemp("real"))
    for step in steps:
        _apply(sim, "/s", step)
        if step[0] not in ("sync", "fsync"):
            _apply(real, root, step)
        elif step[0] == "sync":
            real.open(f"{root}/{step[1]}", create=True).close()
    assert {name[3:]: data for name, data in sim.snapshot().items()} == {
        name: real.read_bytes(f"{root}/{name}") for name in real.list(root)
    }
    real.close()


@settings(max_examples=60, deadline=None)
@given(steps=_steps, seed=st.integers(0, 1000))
def test_what_was_made_safe_is_there_after_any_crash(steps, seed):
    """Sync everything in the middle: after a crash each file is that or something later."""
    disk = _disk()
    middle = len(steps) // 2
    for step in steps[:middle]:
        _apply(disk, "/s", step)
    for name in disk.list("/s"):
        disk.open(f"/s/{name}").fdatasync()
    disk.fsync_directory("/s")
    assert disk.crash(None).snapshot() == disk.snapshot()
    disk.is_off = False
    safe = disk.snapshot()
    touched = {name for step in steps[middle:] for name in step[1:3] if isinstance(name, str)}
    for step in steps[middle:]:
        _apply(disk, "/s", step)
    after = disk.crash(random.Random(seed)).snapshot()
    for name, data in safe.items():
        if name[3:] not in touched:
            assert after[name] == data
