"""A range of which two copies have decayed in different places: whole again from both. Pure."""

from __future__ import annotations

import hashlib
import itertools
from typing import Final

from twinlog.store.integrity.digests import DIGEST_SIZE, digest_of

_GAP_MAX: Final = 64  # Differing bytes so near to each other are one place.
PLACES_MAX: Final = 8  # Each more doubles the time; 8 take 0.3 s for a range of 1 MiB.
_STEP: Final = 4096


def whole_of(mine: bytes, other: bytes, wanted: bytes) -> bytes | None:
    """The bytes with the digest `wanted`: the other copy, or one made of both; None without."""
    if digest_of(other) == wanted:
        return other
    if len(mine) != len(other):
        return None
    places = differing_places(mine, other)
    if not 0 < len(places) <= PLACES_MAX:
        return None
    choices = itertools.product((mine, other), repeat=len(places))
    for choice in itertools.islice(choices, 1, None):  # The first is `mine` as it is.
        if _digest(mine, places, choice) == wanted:
            return b"".join(_pieces(mine, places, choice))
    return None


def differing_places(mine: bytes, other: bytes) -> list[tuple[int, int]]:
    """Begin and end of each place where two copies of one size differ, at most one too many."""
    places: list[tuple[int, int]] = []
    for start in range(0, len(mine), _STEP):
        if mine[start : start + _STEP] == other[start : start + _STEP]:
            continue
        for at in range(start, min(start + _STEP, len(mine))):
            if mine[at] == other[at]:
                continue
            if places and at - places[-1][1] <= _GAP_MAX:
                places[-1] = (places[-1][0], at + 1)
            elif len(places) > PLACES_MAX:
                return places
            else:
                places.append((at, at + 1))
    return places


def _digest(mine: bytes, places: list[tuple[int, int]], choice: tuple[bytes, ...]) -> bytes:
    found = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for piece in _pieces(mine, places, choice):
        found.update(piece)
    return found.digest()


def _pieces(
    mine: bytes, places: list[tuple[int, int]], choice: tuple[bytes, ...]
) -> list[memoryview]:
    """What both have, and between it each place from the copy that was chosen for it."""
    found, at = [], 0
    for (begin, end), source in zip(places, choice, strict=True):
        found += [memoryview(mine)[at:begin], memoryview(source)[begin:end]]
        at = end
    return [*found, memoryview(mine)[at:]]
