"""`twinlog store verify`: a sound store is sound, and each flipped bit that it can see is found."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import twinlog
from support.damage import flip_bit
from support.stores import SEGMENT_SIZE, message, running_store, small_config
from twinlog.runtime.disk import PosixDisk
from twinlog.store.integrity import files
from twinlog.store.integrity.digests import RangeDigests, digest_of
from twinlog.store.integrity.verify import Verifier


async def make_store(directory: Path, count: int = 200) -> list[int]:
    async with running_store(small_config(directory)) as store:
        for number in range(count):
            store.put(message(number, queue_id=number % 3, size=80))
        store.write_pending()
        store.queue_table.write_all()
        await store.flush()
        return [store.put(message(0, queue_id=0)).physical_offset]


def root_of(directory: Path) -> Path:
    return next(path.parent for path in directory.rglob("commitlog"))


async def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    await make_store(tmp_path)
    result = twinlog("store", "verify", "--deep", str(root_of(tmp_path)), "-o", "json").ok()
    assert (result.json["records"], result.json["queues"], result.json["damage"]) == (201, 3, 0)
    assert result.json["entries"] == 201


async def test_progress_counts_all_that_is_read(tmp_path: Path) -> None:
    await make_store(tmp_path)
    root, disk = root_of(tmp_path), PosixDisk()
    digests = RangeDigests(disk, str(root / "twinlog"), SEGMENT_SIZE)
    first = root / "commitlog" / f"{0:020d}"
    digests.add(0, digest_of(first.read_bytes()))
    digests.save()
    told: list[tuple[int, int]] = []
    tell = lambda *work: told.append(work)  # noqa: E731
    result = Verifier(disk, str(root), is_deep=False, progress=tell).run()
    disk.close()
    assert (result.digest_count, result.findings) == (1, [])
    total = SEGMENT_SIZE * (1 + len(list(first.parent.iterdir())))
    assert told[0] == (SEGMENT_SIZE, total)
    assert told == sorted(told)
    assert {whole for _, whole in told} == {total}
    assert told[-1][0] <= total


async def test_a_segment_that_is_prepared_for_the_next_records_is_no_damage(tmp_path: Path) -> None:
    await make_store(tmp_path)
    segments = sorted((root_of(tmp_path) / "commitlog").iterdir())
    size = segments[-1].stat().st_size
    spare = segments[-1].with_name(f"{int(segments[-1].name) + size:020d}")
    spare.write_bytes(bytes(size))
    assert twinlog("store", "verify", "--deep", str(root_of(tmp_path))).ok()


async def test_records_that_a_broker_writes_meanwhile_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the log was read before they came, and what follows after."""
    (last,) = await make_store(tmp_path)
    root = root_of(tmp_path)
    path = sorted((root / "commitlog").iterdir())[-1]
    whole, end, before = path.read_bytes(), last - int(path.name), 0
    while (size := int.from_bytes(whole[before : before + 4], "big")) + before < end:
        before += size
    path.write_bytes(whole[:before].ljust(len(whole), b"\0"))  # Without the last two.
    real = files.find_record

    def find_record(*arguments: Any) -> int | None:
        path.write_bytes(whole)
        return real(*arguments)

    monkeypatch.setattr(files, "find_record", find_record)
    disk = PosixDisk()
    result = Verifier(disk, str(root), is_deep=False, progress=lambda *work: None).run()
    disk.close()
    assert (result.findings, result.record_count) == ([], 201)


async def test_segments_that_expire_meanwhile_are_no_damage(tmp_path: Path) -> None:
    await make_store(tmp_path, 1200)
    root, disk = root_of(tmp_path), PosixDisk()
    segments = sorted((root / "commitlog").iterdir())
    assert len(segments) >= 4

    def expire(*_: int) -> None:
        for path in segments[:2]:
            path.unlink(missing_ok=True)

    result = Verifier(disk, str(root), is_deep=True, progress=expire).run()
    disk.close()
    assert (result.findings, result.log_start) == ([], int(segments[2].name))
    segments[3].unlink()  # What is missing in the middle did not expire.
    assert twinlog("store", "verify", str(root)).code != 0


async def test_a_topic_that_is_deleted_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files go first; the list of queues, which is saved every few seconds, still has it."""
    await make_store(tmp_path)
    (tmp_path / "abort").touch()  # As while a broker runs.
    table = tmp_path / "config" / "topics.json"
    table.parent.mkdir(exist_ok=True)
    table.write_text('{"topicConfigTable":{"T":{}}}')
    check = Verifier._check_digests

    def checked(self: Verifier, log: files.LogFiles) -> None:
        check(self, log)
        shutil.rmtree(tmp_path / "consumequeue" / "T", ignore_errors=True)

    monkeypatch.setattr(Verifier, "_check_digests", checked)
    found = twinlog("store", "verify", "--deep", str(tmp_path))
    assert "queue T-0 ends at 0" in found.out, "nobody has deleted it"
    await make_store(tmp_path)
    (tmp_path / "abort").touch()
    table.write_text('{"topicConfigTable":{}}')
    assert twinlog("store", "verify", "--deep", str(tmp_path)).ok()


async def test_a_restored_store_is_sound_before_its_first_start(tmp_path: Path) -> None:
    await make_store(tmp_path / "store")
    twinlog("backup", "create", str(tmp_path / "b"), "--store", str(tmp_path / "store")).ok()
    twinlog("backup", "restore", str(tmp_path / "b"), str(tmp_path / "new")).ok()
    twinlog("store", "verify", "--deep", str(tmp_path / "new")).ok()


@pytest.mark.parametrize("seed", range(6))
async def test_flipped_bits_are_found(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    await make_store(tmp_path)
    root = root_of(tmp_path)
    log = rng.choice(sorted((root / "commitlog").iterdir())[:2])
    body = log.read_bytes().index(b".....", rng.randrange(2000))
    flip_bit(log, body + 2, rng)
    queue = root / "consumequeue" / "T" / str(rng.randrange(3)) / f"{0:020d}"
    flip_bit(queue, rng.randrange(20 * 60), rng)
    result = twinlog("store", "verify", "--deep", str(root), "-o", "json")
    assert result.code == 1
    texts = [row["finding"] for row in result.json["findings"]]
    assert any(str(log) in text and "body CRC" in text for text in texts), texts
    assert any(text.startswith("entry ") for text in texts), texts


def test_what_is_no_store_is_not_found(tmp_path: Path) -> None:
    assert twinlog("store", "verify", str(tmp_path)).code == 3
    assert twinlog("store", "verify", str(tmp_path / "none")).code == 3


# What an operator, a copy or a file system may leave of a store: a finding and an exit code.


def _files(root: Path, folder: str) -> list[Path]:
    return sorted((root / folder).iterdir())


def _cut(path: Path, size: int) -> None:
    os.truncate(path, size)


LEFTOVERS: dict[str, tuple[int, Callable[[Path], object]]] = {
    "an index file is empty": (1, lambda root: _cut(_files(root, "index")[0], 0)),
    "an index file has no header": (1, lambda root: _cut(_files(root, "index")[0], 10)),
    "an index file is short": (1, lambda root: _cut(_files(root, "index")[0], 3000)),
    "a directory in the index": (0, lambda root: (root / "index" / "20990101000000000").mkdir()),
    "a file among the topics": (0, lambda root: (root / "consumequeue" / "f").write_text("x")),
    "a directory among the tables": (0, lambda root: (root / "config/x.json").mkdir(parents=True)),
    "a queue's first file is empty": (1, lambda root: _cut(_files(root, QUEUE)[0], 0)),
    "a queue's first file is gone": (1, lambda root: _files(root, QUEUE)[0].unlink()),
    "a queue's second file is gone": (1, lambda root: _files(root, QUEUE)[1].unlink()),
    "a queue's last file is gone": (1, lambda root: _files(root, QUEUE)[-1].unlink()),
    "a queue's last file is empty": (1, lambda root: _cut(_files(root, QUEUE)[-1], 0)),
    "a queue's last file is short": (1, lambda root: _cut(_files(root, QUEUE)[-1], 1007)),
    "a queue has one empty file": (
        1,
        lambda root: (
            [path.unlink() for path in _files(root, QUEUE)[:-1]],
            _cut(_files(root, QUEUE)[-1], 0),
        ),
    ),
    "a queue is gone": (1, lambda root: shutil.rmtree(root / QUEUE)),
    "the log's last file is too long": (1, lambda root: _cut(_files(root, LOG)[-1], 200_000)),
    "the log's last file is short": (1, lambda root: _cut(_files(root, LOG)[-1], 5000)),
    "the log's second file is gone": (1, lambda root: _files(root, LOG)[1].unlink()),
    "the log's second file is empty": (1, lambda root: _cut(_files(root, LOG)[1], 0)),
    "a file of another log": (1, lambda root: (root / LOG / ("9" * 20)).write_text("x")),
    "all files of the log are empty": (
        1,
        lambda root: [_cut(path, 0) for path in _files(root, LOG)],
    ),
    "no file of the log": (3, lambda root: [path.unlink() for path in _files(root, LOG)]),
    "no log": (3, lambda root: shutil.rmtree(root / LOG)),
}
LOG, QUEUE = "commitlog", "consumequeue/T/0"


@pytest.mark.parametrize("name", LEFTOVERS)
async def test_what_is_left_of_a_store_is_named(tmp_path: Path, name: str) -> None:
    root, (code, change) = tmp_path / "store", LEFTOVERS[name]
    async with running_store(small_config(root)) as store:
        for number in range(900):
            store.put(message(number, size=300))
            store.write_pending()
    twinlog("store", "verify", "--deep", str(root)).ok()
    change(root)
    for words in (("store", "verify"), ("store", "verify", "--deep")):
        found = twinlog(*words, str(root))
        assert (found.code, "Traceback" in found.err) == (code, False), found
    made = twinlog("backup", "create", str(tmp_path / "backup"), "--store", str(root))
    assert "Traceback" not in made.err
    is_log = "log" in name
    assert (made.code == 0 and not made.err) or is_log, made
