"""Bits flipped at random in the files of a store, and what they were before."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Flip:
    path: Path
    position: int
    before: int

    def __str__(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}:{self.position}"

    @property
    def is_healed(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(self.position)
            return file.read(1) == bytes([self.before])


def flip_bit(path: Path, position: int, rng: random.Random) -> Flip:
    """Through the page cache, as a running broker sees it."""
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return Flip(path, position, byte)


def log_place(
    store: Path, start: int, end: int, segment_size: int, rng: random.Random
) -> tuple[Path, int]:
    """A byte of [start, end) of the log."""
    offset = rng.randrange(start, end)
    segment = offset - offset % segment_size
    return store / "commitlog" / f"{segment:020d}", offset - segment


def queue_place(
    store: Path, ends: dict[tuple[str, int], int], file_size: int, rng: random.Random
) -> tuple[Path, int]:
    """A byte of an entry that is in use; `ends` are numbers of messages by queue."""
    (topic, queue_id), count = rng.choice([item for item in sorted(ends.items()) if item[1]])
    at = rng.randrange(count * 20)
    start = at - at % file_size
    return store / "consumequeue" / topic / str(queue_id) / f"{start:020d}", at - start
