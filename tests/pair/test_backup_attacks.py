"""Backups under generated faults: archives that decay, lost bases, clocks, full disks."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.command_line import Result, twinlog
from support.stores import ManualClock, message, running_store, small_config
from twinlog.runtime.disk import PosixDisk
from twinlog.store.integrity.backup import Backups
from twinlog.store.integrity.digests import RangeDigests, digest_of
from twinlog.store.message_store import MessageStore

SEGMENT = 65536
TOPICS = ("idle", "late", "full", "busy")


def command(*words: object) -> Result:
    return twinlog(*(str(word) for word in words))


async def put(store: MessageStore, count: int, clock: ManualClock, step_ms: int = 1000) -> None:
    for number in range(count):
        clock.advance(step_ms)
        store.put(message(number, size=random.Random(number).randrange(50, 900)))
        store.write_pending()
    await store.flush_service.flush()


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[MessageStore, ManualClock]]:
    clock = ManualClock()
    async with running_store(small_config(tmp_path / "store"), clock=clock) as store:
        await put(store, 500, clock)
        yield store, clock


@pytest.fixture
async def place(opened: tuple[MessageStore, ManualClock], tmp_path: Path) -> Path:
    """A directory with one backup of several segments."""
    command("backup", "create", tmp_path / "backups", "--store", tmp_path / "store").ok()
    return tmp_path / "backups"


def digest_full_segments(store: MessageStore, path: Path) -> None:
    disk = PosixDisk()
    digests = RangeDigests(disk, str(path / "twinlog"), SEGMENT)
    for segment in store.commit_log.segments.segments:
        if segment.end <= store.flushed.value:
            digests.add(segment.start, digest_of(Path(segment.path).read_bytes()))
    digests.save()
    disk.close()


def log_of(store: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").iterdir()))


def damaged(data: bytes, rng: random.Random) -> bytes:
    kind, at = rng.choice(("flip", "cut", "zeros", "insert", "twice")), rng.randrange(len(data))
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "zeros":
        end = min(len(data), at + rng.randrange(1, 5000))
        return data[:at] + bytes(end - at) + data[end:]
    if kind == "insert":
        return data[:at] + rng.randbytes(rng.randrange(1, 50)) + data[at:]
    return data + data


def test_a_damaged_archive_is_refused_or_restored_as_it_was(place: Path, tmp_path: Path) -> None:
    rng = random.Random(int(os.environ.get("SEED", "1")))
    file, whole = tmp_path / "broken.tar.zst", tmp_path / "whole.tar.zst"
    command("backup", "create", whole, "--store", tmp_path / "store").ok()
    command("backup", "restore", whole, tmp_path / "right").ok()
    right, refused = log_of(tmp_path / "right"), 0
    for number in range(30):
        file.write_bytes(damaged(whole.read_bytes(), rng))
        target = tmp_path / f"restored-{number}"
        result = command("backup", "restore", file, target)
        assert result.code in (0, 1, 3), (number, result)
        assert "Traceback" not in result.err
        if result.code == 0:
            assert log_of(target) == right
            command("backup", "verify", file).ok()
        else:
            refused += 1
            assert not target.exists() or not list(target.iterdir())
            assert command("backup", "verify", file).code != 0
        assert not list(tmp_path.glob(".backup-*"))
    assert refused > 15


@pytest.mark.parametrize("fault", ["missing", "cut", "empty", "flipped"])
async def test_a_base_that_is_lost_is_named_and_comes_back_with_the_next_backup(
    place: Path, tmp_path: Path, opened: tuple[MessageStore, ManualClock], fault: str
) -> None:
    store, clock = opened
    await put(store, 200, clock)
    digest_full_segments(store, tmp_path / "store")  # With these it knows what it has already.
    command("backup", "create", place, "--store", tmp_path / "store").ok()
    base = sorted((place / "segments").iterdir())[0]
    data = base.read_bytes()
    if fault == "missing":
        base.unlink()
    else:
        base.write_bytes({"cut": data[:5000], "empty": b""}.get(fault, data[:-1] + b"?"))
    found = command("backup", "verify", place, "-o", "json")
    assert (found.code, len(found.json["findings"])) == (1, 2)  # Both backups need it.
    assert command("backup", "restore", place, tmp_path / "back").code == 1
    assert not list((tmp_path / "back").iterdir())
    if fault == "flipped":
        assert "if it is deleted" in found.json["findings"][0]["finding"]
        base.unlink()
    command("backup", "create", place, "--store", tmp_path / "store").ok()
    command("backup", "verify", place).ok()
    command("backup", "restore", place, tmp_path / "back").ok()


async def test_the_newest_backup_is_the_last_one_that_was_made(
    place: Path, tmp_path: Path, opened: tuple[MessageStore, ManualClock]
) -> None:
    """A clock that is set back must not make `restore` choose an older one."""
    store, clock = opened
    await put(store, 50, clock)
    disk = PosixDisk()
    made = Backups(disk, str(place)).create(str(tmp_path / "store"), now_ms=5)
    newest = Backups(disk, str(place)).newest()
    assert (newest and newest.mark, made.created_ms) == (made.mark, 5)
    disk.close()


async def test_a_restore_to_a_time_is_not_led_astray_by_a_clock_that_was_ahead(
    place: Path, tmp_path: Path, opened: tuple[MessageStore, ManualClock]
) -> None:
    store, clock = opened
    border, end = clock.now_ms(), store.commit_log.max_offset
    await put(store, 10, clock)
    clock.wall_ms -= 3_600_000  # What follows has an earlier time than the border.
    await put(store, 10, clock)
    command("backup", "create", place, "--store", tmp_path / "store").ok()
    command("backup", "restore", place, tmp_path / "back", "--to", border).ok()
    assert log_of(tmp_path / "back").rstrip(b"\0") == log_of(tmp_path / "store")[:end].rstrip(b"\0")


@pytest.mark.parametrize("kind", ["whole", "until a time", "without a list of queues"])
async def test_a_queue_goes_on_with_its_numbers_after_its_messages_have_expired(
    tmp_path: Path, kind: str
) -> None:
    """From 0 again, its new messages would have numbers that others had read as other ones."""
    clock, config = ManualClock(), small_config(tmp_path / "store")
    border, wanted = 0, {}
    async with running_store(config, clock=clock) as store:
        # 300 fill a file of a queue.
        await put_to(store, clock, {"idle": 50, "late": 20, "full": 300})
        await put_to(store, clock, {"busy": 600})
        while store.commit_log.min_offset < 3 * SEGMENT:
            store.commit_log.remove_first()
        border = clock.now_ms()
        wanted = {topic: store.max_offset_in_queue(topic, 0) for topic in TOPICS}
        if kind == "until a time":
            await put_to(store, clock, {"late": 5, "busy": 7})
    if kind == "without a list of queues":
        (tmp_path / "store" / "twinlog" / "queues").unlink()  # As Apache's, and older ones.
    command("backup", "create", tmp_path / "backups", "--store", tmp_path / "store").ok()
    until = ("--to", border) if kind == "until a time" else ()
    command("backup", "restore", tmp_path / "backups", tmp_path / "back", *until).ok()
    command("store", "verify", "--deep", tmp_path / "back").ok()
    for _ in range(3):
        async with running_store(small_config(tmp_path / "back"), clock=clock) as store:
            assert {topic: store.max_offset_in_queue(topic, 0) for topic in wanted} == wanted
        command("store", "verify", "--deep", tmp_path / "back").ok()
    async with running_store(small_config(tmp_path / "back"), clock=clock) as store:
        for topic, number in wanted.items():
            assert store.put(message(0, topic=topic)).queue_offset == number
    command("store", "verify", "--deep", tmp_path / "back").ok()


async def test_a_restore_ends_at_any_place_and_any_time(
    place: Path, tmp_path: Path, opened: tuple[MessageStore, ManualClock]
) -> None:
    """What is there is what was put before the first record that is left out, byte by byte."""
    store, clock = opened
    clock.wall_ms -= 200_000  # A clock that is set back: times are not in order.
    await put(store, 30, clock, step_ms=1)
    command("backup", "create", place, "--store", tmp_path / "store").ok()
    log = log_of(tmp_path / "store")
    records = list(records_in(log))
    rng = random.Random(int(os.environ.get("SEED", "1")))
    times, ends = [row[2] for row in records], [row[1] for row in records]
    cases = [("--to-offset", at) for at in (0, 1, ends[0] - 1, ends[0], ends[-1], ends[-1] + 9)]
    cases += [("--to-offset", rng.randrange(ends[-1])) for _ in range(8)]
    cases += [("--to", at) for at in (times[0] - 1, times[0], max(times), max(times) + 1)]
    cases += [("--to", rng.choice(times) + rng.randint(-1, 1)) for _ in range(8)]
    for option, bound in cases:
        target = tmp_path / f"back{option}-{bound}"
        command("backup", "restore", place, target, option, bound).ok()
        column = 1 if option == "--to-offset" else 2
        left_out = next((row[0] for row in records if row[column] > bound), len(log))
        kept = [row for row in records if row[0] < left_out]
        found = log_of(target)
        assert list(records_in(found)) == kept, (option, bound)
        end = kept[-1][1] if kept else 0
        assert found[:end] == log[:end]
        assert not any(found[end:]) or found[end:].rstrip(b"\0") == log[end:left_out].rstrip(b"\0")
        async with running_store(small_config(target), clock=clock) as again:
            assert again.max_offset_in_queue("T", 0) == len(kept)
        shutil.rmtree(target)


def records_in(log: bytes) -> Iterator[tuple[int, int, int]]:
    """Begin, end and store time of each, by a reader of its own."""
    at = 0
    while at + 8 < len(log):
        size, magic = struct.unpack_from(">iI", log, at)
        if magic == 0xDAA320A7:
            yield at, at + size, struct.unpack_from(">q", log, at + 56)[0]
        elif magic != 0xCBD43194:
            return  # Zeros: the end.
        at += size


async def put_to(store: MessageStore, clock: ManualClock, counts: dict[str, int]) -> None:
    for topic, count in counts.items():
        for number in range(count):
            clock.advance(1000)
            store.put(message(number, topic=topic, size=300))
            store.write_pending()
    await store.flush_service.flush()


async def test_backups_are_removed_with_what_only_they_need(
    place: Path, tmp_path: Path, opened: tuple[MessageStore, ManualClock]
) -> None:
    store, clock = opened
    for _ in range(3):
        await put(store, 150, clock)
        store.commit_log.remove_first()
        command("backup", "create", place, "--store", tmp_path / "store").ok()
    assert len(command("backup", "list", place, "-o", "json").json) == 4
    before = len(list((place / "segments").iterdir()))
    assert command("backup", "remove", place).code == 2
    assert command("backup", "remove", tmp_path / "none", "--keep", 1).code == 3
    with Holding(place):
        refused = command("backup", "remove", place, "--keep", 1)
        assert (refused.code, "another command is running" in refused.err) == (1, True)
    removed = command("backup", "remove", place, "--keep", 2, "-o", "json").ok()
    assert len(removed.json["backups"]) == 2
    assert len(list((place / "segments").iterdir())) == before - 2
    command("backup", "verify", place).ok()
    command("backup", "restore", place, tmp_path / "back").ok()
    manifest = next(place.glob("backup-*/manifest.json"))
    manifest.write_bytes(b"{}")
    assert command("backup", "remove", place, "--keep", 1).code == 1
    assert len(list(place.glob("backup-*"))) == 2


class Holding:
    """Somebody makes a backup there."""

    def __init__(self, directory: Path) -> None:
        self._lock = os.open(directory, os.O_RDONLY)

    def __enter__(self) -> None:
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)


def test_a_new_file_system_is_restored_to(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mount" / "lost+found").mkdir(parents=True)
    command("backup", "restore", place, tmp_path / "mount").ok()
    assert log_of(tmp_path / "mount")
    (tmp_path / "other" / "lost+found").mkdir(parents=True)
    (tmp_path / "other" / "file").touch()
    assert command("backup", "restore", place, tmp_path / "other").code == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_leaves_what_was_there_and_nothing_else(
    place: Path, tmp_path: Path, small_disk: Path
) -> None:
    """At every size of what is left: a backup, an archive, a restore of both."""
    store, archive = tmp_path / "store", tmp_path / "one.tar.zst"
    command("backup", "create", archive, "--store", store).ok()
    done = 0
    for left_kb in range(4, 1000, 60):
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(((1 << 20) - left_kb * 1024) // 4096 * 4096))
        for words in (
            ["create", small_disk / "made", "--store", store],
            ["create", small_disk / "made.tar.zst", "--store", store],
            ["restore", place, small_disk / "back"],
            ["restore", archive, small_disk / "back"],
        ):
            result = command("backup", *words)
            assert result.code in (0, 1), result
            assert "Traceback" not in result.err
            made = small_disk / "made"
            if result.code == 0:
                done += 1
                if words[0] == "restore":
                    command("store", "verify", words[2]).ok()
                else:
                    command("backup", "verify", words[1]).ok()
            else:
                assert "space" in result.err, result
                if made.exists():  # Whole segments may stay for the next one.
                    assert command("backup", "list", made, "-o", "json").json == []
                left = list((small_disk / "back").glob("*"))
                assert not left
                assert not (small_disk / "made.tar.zst").exists()
                assert not list(small_disk.glob(".backup-*"))
            for path in small_disk.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path != ballast:
                    path.unlink()
        ballast.unlink()
    assert 0 < done < 60


async def other_store(root: Path, store_id: str = "") -> None:
    clock = ManualClock()
    async with running_store(small_config(root), clock=clock) as store:
        await put(store, 400, clock, step_ms=7)
    if store_id:
        (root / "twinlog" / "identity.json").write_text(f'{{"store_id": "{store_id}"}}')


async def test_two_brokers_that_share_a_directory_are_not_mixed_up(
    place: Path, tmp_path: Path
) -> None:
    """The newest backup may be the other one's, and what is removed by number, too."""
    other = tmp_path / "other"
    await other_store(other)
    for _ in range(2):
        command("backup", "create", place, "--store", other).ok()
    refused = command("backup", "restore", place, tmp_path / "back")
    assert (refused.code, "of 2 stores" in refused.err, "--id" in refused.err) == (1, True, True)
    rows = command("backup", "list", place, "-o", "json").ok().json
    assert len({row["store"] for row in rows}) == 2
    command("backup", "remove", place, "--keep", 1).ok()
    rows = command("backup", "list", place, "-o", "json").ok().json
    assert [row["source"] for row in rows] == [str(tmp_path / "store"), str(other)]
    command("backup", "verify", place).ok()
    for row in rows:
        target = tmp_path / row["id"]
        command("backup", "restore", place, target, "--id", row["id"]).ok()
        assert log_of(target).rstrip(b"\0") == log_of(Path(row["source"])).rstrip(b"\0")


async def test_master_and_slave_may_share_a_directory(tmp_path: Path) -> None:
    """Copies of one log: the newest of either is the newest."""
    place = tmp_path / "backups"
    for name in ("master", "slave"):
        await other_store(tmp_path / name, store_id="one")
        command("backup", "create", place, "--store", tmp_path / name).ok()
    command("backup", "restore", place, tmp_path / "back").ok()
    removed = command("backup", "remove", place, "--keep", 1, "-o", "json").ok()
    assert [row["source"] for row in removed.json["backups"]] == [str(tmp_path / "master")]


class Reseeded(PosixDisk):
    """A slave starts over, and its new log comes, while the segments of the old one are copied."""

    def __init__(self, store: Path, log: Path, name: str) -> None:
        super().__init__()
        self._store, self._log, self._name = store, log, name

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if "/segments/" in target and self._log.exists():
            aside = self._store / "twinlog" / self._name
            aside.mkdir()
            (self._store / "commitlog").rename(aside / "commitlog")
            self._log.rename(self._store / "commitlog")


@pytest.mark.parametrize("name", ["reseed-5", "other"])
async def test_a_log_that_is_replaced_meanwhile_is_not_mixed_with_the_new_one(
    tmp_path: Path, name: str
) -> None:
    store, other = tmp_path / "store", tmp_path / "other"
    for number, root in enumerate((store, other)):
        clock = ManualClock()
        async with running_store(small_config(root), clock=clock) as opened:
            await put(opened, 500 + 9 * number, clock, step_ms=7 + number)
    wanted = log_of(other)
    disk = Reseeded(store, other / "commitlog", name)
    manifest = Backups(disk, str(tmp_path / "backups")).create(str(store), 1)
    Backups(disk, str(tmp_path / "backups")).restore(manifest, str(tmp_path / "back"))
    disk.close()
    assert log_of(tmp_path / "back").rstrip(b"\0") == wanted.rstrip(b"\0")
