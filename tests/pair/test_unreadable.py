"""Bytes that a disk cannot read, files that got shorter, replicas that lie: healed or named."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.damage import flip_bit
from support.decay import CONFIG as DECAY_CONFIG
from support.decay import fill as fill_processes
from support.decay import full_segments, served, wait_for_replicas
from support.healing import bodies_served, fill, running_pair, scrubbed
from support.local_brokers import Brokers
from support.pair_story import running_pair as running_processes
from support.served import scrub
from twinlog.runtime.disk import PosixFile
from twinlog.store.integrity.damage import place_of
from twinlog.store.integrity.heal import Healer

pytestmark = pytest.mark.timeout(240)
PAGE = 4096


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


class BadSectors:
    """Pages of a file that cannot be read until they are written, as a disk has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, first: int, end: int) -> None:
        self._path, self._pages = str(path), set(range(first // PAGE, -(-end // PAGE)))
        real_read, real_write, real_map = PosixFile.pread, PosixFile.pwritev, PosixFile.map

        def pread(file: PosixFile, size: int, offset: int) -> bytes:
            if self._is_here(file) and self._pages & _pages_of(size, offset):
                raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
            return real_read(file, size, offset)

        def pwritev(file: PosixFile, buffers: list[bytes], offset: int) -> int:
            if self._is_here(file):
                self._pages -= _pages_of(sum(map(len, buffers)), offset)
            return real_write(file, buffers, offset)

        monkeypatch.setattr(PosixFile, "pread", pread)
        monkeypatch.setattr(PosixFile, "pwritev", pwritev)
        monkeypatch.setattr(
            PosixFile, "map", lambda file: None if self._is_here(file) else real_map(file)
        )

    def _is_here(self, file: PosixFile) -> bool:
        return os.path.realpath(file.path) == os.path.realpath(self._path)

    @property
    def is_readable(self) -> bool:
        return not self._pages


def _pages_of(size: int, offset: int) -> set[int]:
    return set(range(offset // PAGE, -(-(offset + size) // PAGE)))


@pytest.mark.parametrize("kind", ["log", "queue"])
async def test_what_the_disk_cannot_read_is_healed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, random.Random(1))
    await scrubbed(master, slave)
    path = Path(master.store.commit_log.segments.segments[0].path)
    if kind == "queue":
        path = sorted((Path(master.store.root) / "consumequeue" / "t" / "0").iterdir())[0]
    bad = BadSectors(monkeypatch, path, 5 * PAGE if kind == "log" else 0, 7 * PAGE)
    assert await bodies_served(brokers, master) <= set(bodies)
    await scrubbed(master)
    await scrubbed(master)  # What readers met and waits for its next try.
    assert await bodies_served(brokers, master) == set(bodies)
    assert not master.store.damage.places
    assert kind == "queue" or bad.is_readable


async def test_without_room_for_the_damaged_bytes_a_place_is_named_and_healed_later(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(2)
    master, slave = await running_pair(brokers, twinlog_damage_wait_millis=0)
    bodies = await fill(brokers, master, slave, rng)
    await scrubbed(master)
    path = Path(master.store.commit_log.segments.segments[0].path)
    at = path.read_bytes().index(bodies[20])

    def full(healer: Healer, offset: int, bad: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(Healer, "_keep_aside", full)
        flip_bit(path, at, rng)
        await scrubbed(master)
        assert master.store.damage.lost_count
        assert "is there room on the disk" in caplog.text
        assert await bodies_served(brokers, master) == set(bodies) - {bodies[20]}
    await scrubbed(master)
    assert await bodies_served(brokers, master) == set(bodies)


class Liar:
    """Answers with what it likes."""

    name = "liar"

    def __init__(self, answer: Callable[[int, int], bytes]) -> None:
        self._answer = answer

    async def digests(self, offset: int, count: int) -> list[bytes]:
        return [b"liar" * 4] * count

    async def read(self, offset: int, size: int) -> bytes:
        return self._answer(offset, size)


async def test_a_replica_that_lies_spoils_nothing(brokers: Brokers) -> None:
    rng = random.Random(3)
    master, slave = await running_pair(brokers)
    bodies = await fill(brokers, master, slave, rng)
    await brokers.end(slave)
    log = master.store.commit_log
    path = Path(log.segments.segments[0].path)
    whole = path.read_bytes()
    at = whole.index(bodies[20])
    record = log.read(place := _record_before(whole, at), struct.unpack_from(">i", whole, place)[0])
    other = whole.replace(b"\0\0", b"\1\1")
    answers: list[Callable[[int, int], bytes]] = [
        lambda offset, size: other[offset : offset + size],
        lambda offset, size: b"",
        lambda offset, size: rng.randbytes(size),
        lambda offset, size: whole[offset : offset + size // 2],
        # The right record, and bytes that are not asked for behind it.
        lambda offset, size: record + bytes(9999) if size > 4 else record[:4],
        # A record that would go on behind the end of its segment.
        lambda offset, size: struct.pack(">i", len(whole) + 100)[:size].ljust(size, b"x"),
    ]
    damaged = bytearray(whole)
    damaged[at] ^= 1
    path.write_bytes(damaged)
    for answer in answers:
        master.scrubber.healer.replicas = lambda a=answer: [Liar(a)]  # type: ignore[misc]
        await master.scrubber.healer.heal_record(place)
        await scrubbed(master)
        assert path.read_bytes() in (bytes(damaged), whole)
        assert await bodies_served(brokers, master) <= set(bodies)
    assert path.stat().st_size == log.segment_size
    assert place_of(place, 1, "").key in master.store.damage.places


def _record_before(log: bytes, at: int) -> int:
    """Where the record begins whose body is at `at`."""
    position = 0
    while (size := struct.unpack_from(">i", log, position)[0]) and position + size <= at:
        position += size
    return position


def test_a_file_that_gets_shorter_under_a_broker_ends_nothing(tmp_path: Path) -> None:
    """A mapped page behind the end of its file, or that the disk cannot read, is a SIGBUS."""
    rng = random.Random(4)
    with running_processes(tmp_path, **DECAY_CONFIG) as pair:
        bodies = fill_processes(pair, rng, 1_500)
        wait_for_replicas(pair.master, pair.slave)
        first = sorted(full_segments(pair, rng))[0]
        queue = sorted((pair.slave.store / "consumequeue" / "load" / "1").iterdir())[0]
        os.truncate(pair.master.store / "commitlog" / f"{first:020d}", 10_000)
        os.truncate(queue, 100)
        for broker in (pair.master, pair.slave):
            assert set(served(broker)) <= bodies
            scrub(broker)
            scrub(broker)
            assert set(served(broker)) == bodies
