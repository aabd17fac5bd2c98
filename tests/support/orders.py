"""Orders of tests, by a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

T = TypeVar("T")


def shuffled(items: Iterable[T], seed: int, file_of: Callable[[T], Hashable]) -> list[T]:
    """Files in an order of the seed, and the items of each; the same for the same seed.

    Files stay whole: what a file's tests share would be made again at each change of file.
    """
    rng = random.Random(seed)
    files: dict[Hashable, list[T]] = {}
    for item in items:
        files.setdefault(file_of(item), []).append(item)
    order = sorted(files, key=str)
    rng.shuffle(order)
    for file in order:
        rng.shuffle(files[file])
    return [item for file in order for item in files[file]]


def spread(tests: Iterable[str], seed: int) -> list[str]:
    """Ids of tests in a random order in which every file comes once before any comes twice: set-ups
    differ by file, and most tests are cases of a few."""
    rng = random.Random(seed)
    chosen = list(tests)
    rng.shuffle(chosen)
    seen: dict[str, int] = {}
    rounds = []
    for test in chosen:
        file = test.partition("::")[0]
        rounds.append((seen.get(file, 0), test))
        seen[file] = seen.get(file, 0) + 1
    return [test for _, test in sorted(rounds, key=lambda each: each[0])]
