"""Chance, as something that is passed in: a run with the same seed makes the same choices."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """What the broker asks of a random.Random."""

    def randrange(self, stop: int, /) -> int: ...
