"""A store is backed up while its broker serves, both are lost, and a new one goes on from it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Result, twinlog
from support.damage import flip_bit
from support.local_brokers import Brokers, until
from twinlog.broker.server import Broker
from twinlog.message.record import decode_record
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.disk import PosixDisk
from twinlog.store.errors import StoreLayoutError
from twinlog.store.integrity.backup import Backups, digest_text
from twinlog.store.integrity.digests import RangeDigests, digest_of
from twinlog.store.integrity.manifest import BackupError

pytestmark = pytest.mark.timeout(240)
CONFIG: dict[str, Any] = {"broker_role": "ASYNC_MASTER", "mapped_file_size_commit_log": 64 * 1024}


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


async def command(*words: object) -> Result:
    return await asyncio.to_thread(twinlog, *(str(word) for word in words))


class Load:
    """One message behind the other, with the time of each answer."""

    def __init__(self, brokers: Brokers, broker: Broker) -> None:
        self.acknowledged: list[tuple[float, bytes]] = []
        self._is_over = False
        self._task = asyncio.create_task(self._run(brokers, broker))

    async def _run(self, brokers: Brokers, broker: Broker) -> None:
        number = 0
        while not self._is_over:
            body = b"%08d" % number + bytes(random.Random(number).randbytes(300))
            answer = await brokers.send(broker, body, topic="t", queue_id=number % 4)
            assert answer.code == 0
            self.acknowledged.append((time.monotonic(), body))
            number += 1

    async def end(self) -> None:
        self._is_over = True
        await self._task

    def before(self, moment: float) -> set[bytes]:
        return {body for at, body in self.acknowledged if at < moment}


def bodies_of(broker: Broker) -> set[bytes]:
    found = set()
    for topic, queue_id in broker.store.queues:
        offset = broker.store.min_offset_in_queue(topic, queue_id)
        while topic == "t" and offset < broker.store.max_offset_in_queue(topic, queue_id):
            result = broker.store.get_message(topic, queue_id, offset, 64)
            for buffer in result.buffers:
                at = 0
                while at < len(buffer):
                    record = decode_record(buffer, at)
                    found.add(record.body)
                    at += record.total_size
            offset = result.next_begin_offset
    return found


async def commit(brokers: Brokers, broker: Broker, offset: int) -> None:
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": offset}
    answer = await brokers.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == 0
    await broker.saves.save_all()


async def committed(brokers: Brokers, broker: Broker) -> str:
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    answer = await brokers.call(broker, RequestCode.QUERY_CONSUMER_OFFSET, header)
    return answer.ext().get("offset", "")


async def test_what_was_acknowledged_before_the_backup_is_in_a_store_restored_from_it(
    brokers: Brokers, tmp_path: Path
) -> None:
    first = await brokers.start("first", **CONFIG)
    load = Load(brokers, first)
    await until(lambda: len(load.acknowledged) > 300)
    await commit(brokers, first, 20)
    place, store = tmp_path / "backups", tmp_path / "first"
    moment = time.monotonic()
    made = await command("backup", "create", place, "--store", store, "-o", "json")
    assert made.ok().json["backups"][0]["segments"] >= 1
    segments = set((place / "segments").iterdir())
    await until(lambda: len(load.acknowledged) > 700)
    later = time.monotonic()
    again = await command("backup", "create", place, "--store", store, "-o", "json")
    assert segments < set((place / "segments").iterdir()), "only what is new is added"
    assert again.ok().json["backups"][0]["mark"] > made.json["backups"][0]["mark"]
    await load.end()
    store_id = first.identity.store_id
    await brokers.end(first)
    shutil.rmtree(store)

    listed = (await command("backup", "list", place, "-o", "json")).ok().json
    assert len(listed) == 2
    assert (await command("backup", "verify", place)).ok()
    (await command("backup", "restore", place, tmp_path / "second")).ok()
    second = await brokers.start("second", **CONFIG)
    assert load.before(later) <= bodies_of(second)
    assert second.identity.store_id != store_id
    assert await committed(brokers, second) == "20"
    sent = await brokers.send(second, b"new", topic="t", queue_id=1)
    assert sent.code == 0
    (await command("backup", "restore", place, tmp_path / "third", "--id", listed[0]["id"],
                   "--keep-identity")).ok()  # fmt: skip
    third = await brokers.start("third", **CONFIG)
    assert load.before(moment) <= bodies_of(third)
    assert third.identity.store_id == store_id


async def test_a_restore_ends_where_it_is_told_and_never_writes_over_anything(
    brokers: Brokers, tmp_path: Path
) -> None:
    first = await brokers.start("first", **CONFIG)
    for number in range(60):
        assert (await brokers.send(first, b"%d" % number, topic="t")).code == 0
    await asyncio.sleep(0.05)  # The clock of store times: milliseconds.
    border = time.time_ns() // 1_000_000
    await asyncio.sleep(0.05)
    for number in range(60, 90):
        assert (await brokers.send(first, b"%d" % number, topic="t")).code == 0
    file = tmp_path / "one.tar.zst"
    (await command("backup", "create", file, "--store", tmp_path / "first")).ok()
    assert (await command("backup", "restore", file, tmp_path / "first")).code == 1
    (await command("backup", "restore", file, tmp_path / "back", "--to", border)).ok()
    back = await brokers.start("back", **CONFIG)
    assert bodies_of(back) == {b"%d" % number for number in range(60)}
    assert (await command("backup", "create", file, "--store", tmp_path / "first")).code == 2
    assert (await command("backup", "list", tmp_path / "none")).code == 3


class FullDisk(PosixDisk):
    """Takes so many segments and then has no room, or the process ends."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def mode(self, path: str) -> int:
        """Asked for each table: the segments have been copied then."""
        raise self._error


@pytest.mark.parametrize("error", [OSError(28, "no space left"), KeyboardInterrupt()])
async def test_a_restore_that_is_not_finished_leaves_nothing_that_looks_like_a_store(
    brokers: Brokers, tmp_path: Path, error: BaseException
) -> None:
    first = await brokers.start("first", **CONFIG)
    for number in range(300):
        await brokers.send(first, b"%0200d" % number, topic="t")
    place, target = tmp_path / "backups", tmp_path / "back"
    (await command("backup", "create", place, "--store", tmp_path / "first")).ok()
    target.mkdir()
    disk = FullDisk(error)
    backups = Backups(disk, str(place))
    with pytest.raises((BackupError, KeyboardInterrupt)):
        backups.restore(backups.all()[-1], str(target))
    disk.close()
    left = [path.name for path in target.iterdir()]
    assert left == ([] if isinstance(error, OSError) else ["restoring"])
    again = await command("backup", "restore", place, target)
    if left:
        assert (again.code, "interrupted" in again.err) == (1, True)
        # An empty broker would look as if nothing had ever been sent to it.
        with pytest.raises(StoreLayoutError, match="a restore that was interrupted"):
            await brokers.start("back", **CONFIG)
        assert not (target / "commitlog").exists()
    else:
        again.ok()
        back = await brokers.start("back", **CONFIG)
        assert len(bodies_of(back)) == 300


async def test_two_backups_at_once_do_not_disturb_each_other(
    brokers: Brokers, tmp_path: Path
) -> None:
    first = await brokers.start("first", **CONFIG)
    for number in range(300):
        await brokers.send(first, b"%0200d" % number, topic="t")
    place, root = tmp_path / "backups", str(tmp_path / "first")
    disk = PosixDisk()
    made = await asyncio.gather(
        *(asyncio.to_thread(Backups(disk, str(place)).create, root, 7) for _ in range(4))
    )
    backups = Backups(disk, str(place))
    ids = [f"backup-{number}" for number in range(7, 11)]  # They began at the same moment.
    assert [manifest.id for manifest in backups.all()] == ids
    assert {manifest.id for manifest in made} == set(ids)
    assert [backups.verify(manifest) for manifest in made] == [[]] * 4
    assert not list((place / "segments").glob("*.tmp"))
    disk.close()


async def test_a_damaged_backup_is_found_and_not_restored(brokers: Brokers, tmp_path: Path) -> None:
    first = await brokers.start("first", **CONFIG)
    for number in range(300):
        await brokers.send(first, b"%0200d" % number, topic="t")
    place = tmp_path / "backups"
    (await command("backup", "create", place, "--store", tmp_path / "first")).ok()
    (segment,) = sorted((place / "segments").iterdir())[:1]
    flip = flip_bit(segment, 1000, random.Random(1))
    found = await command("backup", "verify", place, "-o", "json")
    assert (found.code, len(found.json["findings"])) == (1, 1)
    refused = await command("backup", "restore", place, tmp_path / "back")
    assert refused.code == 1
    assert "is damaged" in refused.err
    segment.write_bytes(segment.read_bytes()[: flip.position] + bytes([flip.before])
                        + segment.read_bytes()[flip.position + 1 :])  # fmt: skip
    manifest = next(place.glob("backup-*/manifest.json"))
    content = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**content, "mark": 1}))
    assert (await command("backup", "verify", place)).code == 1


@pytest.fixture
async def filled(brokers: Brokers, tmp_path: Path) -> Path:
    """The store of a running broker with several segments."""
    first = await brokers.start("first", **CONFIG)
    for number in range(600):
        assert (await brokers.send(first, b"%0200d" % number, topic="t")).code == 0
    await first.saves.save_all()
    return tmp_path / "first"


def forged(place: Path, **changes: object) -> None:
    """A manifest that its own digest confirms, as anybody can make one."""
    file = next(place.glob("backup-*/manifest.json"))
    data = json.dumps({**json.loads(file.read_bytes()), **changes}).encode()
    file.write_bytes(data)
    file.with_name("manifest.b2").write_text(digest_text(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"files": [{"path": "config/../../../out", "size": 0, "digest": digest_text(b"")}]},
        {"files": [{"path": "/out", "size": 0, "digest": digest_text(b"")}]},
        {"files": [{"path": "config/..", "size": 0, "digest": digest_text(b"")}]},
        {"files": [{"path": "config/a\0b", "size": 0, "digest": digest_text(b"")}]},
        {"id": "../other"},
        {"segments": []},
        {"segmentSize": 0},
        {"segmentSize": 1, "mark": 1 << 61},
        {"mark": 1 << 80},
        {"tail": None},
        {"files": 7},
        {"version": 99},
    ],
    ids=str,
)
async def test_a_manifest_from_elsewhere_is_not_believed(
    filled: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    place = tmp_path / "backups"
    Backups(PosixDisk(), str(place)).create(str(filled), 1)
    forged(place, **changes)
    there = set(tmp_path.iterdir())
    refused = await command("backup", "restore", place, tmp_path / "back")
    assert refused.code == 1
    assert "manifest of backup-1" in refused.err or "newer twinlog" in refused.err
    assert set(tmp_path.iterdir()) == there


@pytest.mark.parametrize("kind", ["link", "pipe", "cut"])
async def test_an_archive_from_elsewhere_holds_plain_files_only(
    filled: Path, tmp_path: Path, kind: str
) -> None:
    place, file = tmp_path / "backups", tmp_path / "one.tar.zst"
    Backups(PosixDisk(), str(place)).create(str(filled), 1)
    table = place / "backup-1" / "files" / "config" / "topics.json"
    if kind == "link":
        table.rename(tmp_path / "secret")
        table.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        table.unlink()
        os.mkfifo(table)
    words = ["tar", "--zstd", "-cf", file, "-C", place, "."]
    await asyncio.to_thread(subprocess.run, words, check=True)
    if kind == "cut":
        file.write_bytes(file.read_bytes()[:-300])
    refused = await command("backup", "restore", file, tmp_path / "back")
    assert refused.code == 1
    assert ("tar failed" if kind == "cut" else "not a plain file") in refused.err
    assert not (tmp_path / "back").exists()
    assert not list(tmp_path.glob(".backup-*"))


class Expiring(PosixDisk):
    """Retention removes the first segment, or a slave is cut back, when the log has been found."""

    def __init__(self, change: Callable[[], None], times: int) -> None:
        super().__init__()
        self._change, self._times = change, times

    def file_size(self, path: str) -> int:
        size = super().file_size(path)
        if "commitlog" in path and self._times:
            self._times -= 1
            self._change()
        return size


async def test_a_backup_goes_on_behind_segments_that_expire(filled: Path, tmp_path: Path) -> None:
    log = filled / "commitlog"
    first = sorted(log.iterdir())[0]
    backups = Backups(Expiring(first.unlink, 1), str(tmp_path / "backups"))
    manifest = backups.create(str(filled), 1)
    assert manifest.segments[0].start == manifest.log_start == CONFIG["mapped_file_size_commit_log"]
    assert backups.verify(manifest) == []
    end = backups.restore(manifest, str(tmp_path / "back"))
    assert end == manifest.mark


class Vanishing(PosixDisk):
    """Retention takes a file between the look into its directory and the look at it."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def _take(self, path: str) -> None:
        if self._folder in path:
            self._folder = "/never"
            Path(path).unlink()

    def file_size(self, path: str) -> int:
        self._take(path)
        return super().file_size(path)


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue"])
async def test_a_backup_begins_again_when_what_it_looks_at_expires(
    filled: Path, tmp_path: Path, folder: str
) -> None:
    backups = Backups(Vanishing(folder), str(tmp_path / "backups"))
    manifest = backups.create(str(filled), 1)
    assert backups.verify(manifest) == []


async def test_a_log_that_is_cut_meanwhile_is_copied_again(filled: Path, tmp_path: Path) -> None:
    numbers = itertools.count()
    cut = lambda: (filled / "twinlog" / f"cut-{next(numbers)}").mkdir()  # noqa: E731
    place = tmp_path / "backups"
    assert Backups(Expiring(cut, 1), str(place)).create(str(filled), 1).mark > 0
    with pytest.raises(BackupError, match="changes faster"):
        Backups(Expiring(cut, 1000), str(place)).create(str(filled), 2)
    assert [path.name for path in sorted(place.iterdir())] == ["backup-1", "segments"]


async def test_a_log_with_a_hole_is_not_backed_up(filled: Path, tmp_path: Path) -> None:
    second = sorted((filled / "commitlog").iterdir())[1]
    second.rename(tmp_path / "elsewhere")
    refused = await command("backup", "create", tmp_path / "backups", "--store", filled)
    assert (refused.code, f"{second} is missing" in refused.err) == (1, True), refused.err


async def test_what_a_killed_backup_left_is_removed_by_the_next(
    filled: Path, tmp_path: Path
) -> None:
    place = tmp_path / "backups"
    (place / "segments").mkdir(parents=True)
    (place / "segments" / "00000000000000000000-aa.tmp").write_bytes(b"half")
    (place / "backup-1" / "files").mkdir(parents=True)
    (await command("backup", "create", place, "--store", filled)).ok()
    assert not (place / "backup-1").exists()
    assert not list((place / "segments").glob("*.tmp"))
    assert (await command("backup", "verify", place)).ok()


async def test_a_manifest_that_is_broken_hides_no_other_backup(
    filled: Path, tmp_path: Path
) -> None:
    place, disk = tmp_path / "backups", PosixDisk()
    backups = Backups(disk, str(place))
    for number in (8, 9, 10):
        backups.create(str(filled), number)
    disk.close()
    flip_bit(place / "backup-9" / "manifest.json", 40, random.Random(1))
    listed = await command("backup", "list", place, "-o", "json")
    assert (listed.code, [row["id"] for row in listed.json]) == (1, ["backup-8", "backup-10"])
    assert "backup-9/manifest.json is damaged" in listed.err
    found = await command("backup", "verify", place, "-o", "json")
    assert (found.code, [row["id"] for row in found.json["findings"]]) == (1, ["backup-9"])
    (await command("backup", "restore", place, tmp_path / "newest")).ok()
    (place / "backup-10" / "manifest.b2").unlink()
    refused = await command("backup", "restore", place, tmp_path / "back")
    assert (refused.code, "backup-10" in refused.err, "--id" in refused.err) == (1, True, True)
    (await command("backup", "restore", place, tmp_path / "back", "--id", "backup-8")).ok()


class ForbiddenDisk(PosixDisk):
    """As another user sees a directory that is not for him."""

    def list(self, path: str) -> list[str]:
        self._check(path)
        return super().list(path)

    def read_bytes(self, path: str) -> bytes:
        self._check(path)
        return super().read_bytes(path)

    def exists(self, path: str) -> bool:
        return "backup-8" not in path and super().exists(path)

    def _check(self, path: str) -> None:
        if "backup-8" in path:
            raise PermissionError(errno.EACCES, "Permission denied", path)


async def test_a_backup_of_another_user_is_not_called_no_backup(
    filled: Path, tmp_path: Path
) -> None:
    place, disk = tmp_path / "backups", ForbiddenDisk()
    backups = Backups(PosixDisk(), str(place))
    for number in (8, 9):
        backups.create(str(filled), number)
    seen = Backups(disk, str(place))
    found, broken = seen.find()
    assert [manifest.id for manifest in found] == ["backup-9"]
    assert "Permission denied" in broken["backup-8"]
    assert "no backup" not in broken["backup-8"]
    disk.close()


async def test_a_segment_that_is_damaged_before_its_backup_is_named(
    filled: Path, tmp_path: Path
) -> None:
    place, disk = tmp_path / "backups", PosixDisk()
    filled = shutil.copytree(filled, tmp_path / "still")  # Without the scrub of its broker.
    size, first = CONFIG["mapped_file_size_commit_log"], filled / "commitlog" / f"{0:020d}"
    digests = RangeDigests(disk, str(filled / "twinlog"), size)
    digests.add(0, digest_of(first.read_bytes()))
    digests.save()
    whole = await command("backup", "create", tmp_path / "earlier", "--store", filled)
    assert whole.ok().err == ""
    flip_bit(first, 1000, random.Random(1))
    made = await command("backup", "create", place, "--store", filled)
    assert f"{first} was copied as it is" in made.ok().err
    # One that was copied while it was sound is used again.
    again = await command("backup", "create", tmp_path / "earlier", "--store", filled)
    assert again.ok().err == ""
    disk.close()


class EndsAt(PosixDisk):
    """The process is killed after the first bytes of a file were written."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def open(self, path: str, **options: Any) -> Any:
        if self._name in path and options.get("create"):
            Path(path).write_bytes(b"{")
            raise KilledError
        return super().open(path, **options)

    def remove_directory(self, path: str) -> None:
        raise KilledError

    unlink = remove_directory


class KilledError(BaseException):
    """Nothing is tidied up."""


@pytest.mark.parametrize("name", ["manifest.b2", "manifest.json", "tail"])
async def test_a_backup_that_is_killed_at_its_end_is_none(
    filled: Path, tmp_path: Path, name: str
) -> None:
    place, disk = tmp_path / "backups", EndsAt(name)
    with pytest.raises(KilledError):
        Backups(disk, str(place)).create(str(filled), 1)
    disk.close()
    assert next(place.glob(f"backup-1/{name}*")).read_bytes() == b"{"
    assert (await command("backup", "list", place, "-o", "json")).ok().json == []
    (await command("backup", "create", place, "--store", filled)).ok()
    assert not (place / "backup-1").exists()


async def test_one_flipped_bit_is_found_in_every_file_of_a_backup(
    filled: Path, tmp_path: Path
) -> None:
    place, disk, rng = tmp_path / "backups", PosixDisk(), random.Random(5)
    Backups(disk, str(place)).create(str(filled), 1)
    disk.close()
    files = [path for path in place.rglob("*") if path.is_file() and path.stat().st_size]
    assert {"manifest.json", "manifest.b2", "tail", "topics.json"} < {path.name for path in files}
    for path in files:
        kept = path.read_bytes()
        flip_bit(path, rng.randrange(len(kept)), rng)
        found = await command("backup", "verify", place, "-o", "json")
        assert (found.code, len(found.json["findings"])) == (1, 1), path
        assert path.name in found.out or path.parent.name in found.out
        path.write_bytes(kept)
    (await command("backup", "verify", place)).ok()
