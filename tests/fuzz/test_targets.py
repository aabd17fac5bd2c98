"""Every fuzz target over its seeds and a few thousand mutations: the same ones every time."""

from __future__ import annotations

import random

import pytest

from fuzz.mutate import mutated
from fuzz.targets import TARGETS, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_target_over_seeds_and_mutations(name: str) -> None:
    numbers = random.Random(name)
    corpus = list(seeds(name))
    assert len(corpus) >= 3 or name == "batch", "there is something to start from"
    for data in corpus:
        TARGETS[name](data)
    for _ in range(1500):
        data = mutated(numbers, corpus or [b""])
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"{name} fails at {data!r}") from error
