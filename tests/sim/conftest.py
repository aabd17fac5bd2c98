"""Simulations leave much garbage behind, each in few objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick_collections() -> Iterator[None]:
    """What is in this process by now is not looked at when the garbage of a seed is collected."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
