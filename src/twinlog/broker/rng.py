"""Chance, as something that is passed in: a simulation repeats its choices with its seed."""

from __future__ import annotations

from typing import Protocol


class Rng(Protocol):
    """What the broker asks of a random.Random."""

    def randrange(self, stop: int, /) -> int: ...
