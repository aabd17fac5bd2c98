"""Plain mutation of seeds: for the short run in every test, and where atheris is not installed."""

from __future__ import annotations

import random
from collections.abc import Sequence

_TOKENS = (
    b"{", b"}", b"[", b"]", b":", b",", b'"', b"'", b"\\", b"\\u0001", b"null", b"true", b"-1",
    b"0", b"99999999999999999999", b"\x00", b"\xff",
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x01",
    b"\x02", b'"$ref"', b'"$.a"', b"extFields", b"\xed\xa0\x80",
)  # fmt: skip


def mutated(numbers: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A seed after one to eight small changes."""
    data = bytearray(numbers.choice(corpus))
    for _ in range(numbers.randint(1, 8)):
        place = numbers.randrange(len(data) + 1)
        match numbers.randrange(6):
            case 0:
                data[place:place] = numbers.choice(_TOKENS)
            case 1:
                del data[place : place + numbers.randint(1, 16)]
            case 2 if data:
                data[place % len(data)] = numbers.randrange(256)
            case 3:
                other = numbers.choice(corpus)
                start = numbers.randrange(len(other) + 1)
                data[place:place] = other[start : start + numbers.randint(1, 64)]
            case 4:
                data[place : place + 4] = numbers.choice((0, 1, 2**31 - 1, 2**32 - 1)).to_bytes(4)
            case _:
                data[place:place] = data[place : place + numbers.randint(1, 200)]
    return bytes(data)
