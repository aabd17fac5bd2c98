"""The digests of ranges while segments come, expire and are cut: generated, next to a dict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from twinlog.runtime.disk import PosixDisk
from twinlog.store.integrity.digests import RANGE_SIZE, RangeDigests, digest_of

SEGMENT = 4 * RANGE_SIZE


class World:
    """The digests and what they must be; the log is [first, last) in ranges."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self._path = str(path)
        self._disk = PosixDisk()
        self._rng = rng
        self.wanted: dict[int, bytes] = {}
        self.first, self.last = 0, 0
        self.digests = self._open()
        self._path_of_digests = path / "digests"

    def _open(self) -> RangeDigests:
        return RangeDigests(self._disk, self._path, SEGMENT)

    def add(self) -> None:
        """A range is full; not every one gets its digest soon."""
        self.last += RANGE_SIZE
        offset = self._any()
        self.wanted[offset] = self._rng.randbytes(16)
        self.digests.add(offset, self.wanted[offset])

    def forget(self) -> None:
        if self.first < self.last:
            offset = self._any()
            self.wanted.pop(offset, None)
            self.digests.forget(offset)

    def cut(self) -> None:
        self.last = self._rng.randrange(self.first, self.last + 1, RANGE_SIZE)
        self.wanted = {at: digest for at, digest in self.wanted.items() if at < self.last}
        self.digests.truncate(self.last)

    def expire(self) -> None:
        """Whole segments; somebody may still ask for what was in them."""
        if self.last - self.first > SEGMENT:
            self.first = self.first - self.first % SEGMENT + SEGMENT
            self.wanted = {at: digest for at, digest in self.wanted.items() if at >= self.first}
            self.digests.remove_before(self.first)
            if self._rng.random() < 0.5:
                self.digests.find(self.first - RANGE_SIZE)

    def save(self) -> None:
        """As a scrub does at the end of a pass."""
        self.digests.remove_before(self.first)
        self.digests.save()

    def restart(self) -> None:
        self.save()
        self.digests = self._open()

    def judge(self) -> None:
        for offset in range(self.first, self.last + SEGMENT, RANGE_SIZE):
            assert self.digests.find(offset) == self.wanted.get(offset)

    def judge_files(self) -> None:
        self.save()
        starts = [int(path.name) for path in self._path_of_digests.iterdir()]
        assert all(start + SEGMENT > self.first for start in starts), (starts, self.first)

    def _any(self) -> int:
        return self._rng.randrange(self.first, self.last, RANGE_SIZE)

    def close(self) -> None:
        self._disk.close()


@pytest.mark.parametrize("seed", range(30))
def test_what_is_known_is_known_whatever_expires_or_is_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(tmp_path, rng)
    actions = [world.add] * 6 + [world.forget, world.cut, world.expire, world.expire]
    actions += [world.save, world.restart]
    world.add()
    for _ in range(60):
        rng.choice(actions)()
        world.judge()
    world.add()
    world.judge_files()
    world.close()


def test_a_file_of_digests_that_decays_is_found_and_written_again(tmp_path: Path) -> None:
    disk = PosixDisk()
    digests = RangeDigests(disk, str(tmp_path), 1 << 20)
    digests.add(0, digest_of(b"a"))
    digests.save()
    path = tmp_path / "digests" / f"{0:020d}"
    written = path.read_bytes()
    for bit in range(8 * len(written)):
        damaged = bytearray(written)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert RangeDigests(disk, str(tmp_path), 1 << 20).broken_file(0) == str(path)
        digests.mend_files()
        digests.save()
        assert path.read_bytes() == written
    path.unlink()
    digests.mend_files()
    digests.save()
    assert path.read_bytes() == written
    assert digests.broken_file(0) == digests.broken_file(1 << 20) == ""
    disk.close()
