"""Positions of a filter in a Bloom bitmap: answers to BloomFilter and BloomFilterData. Pure.

RocketMQ writes them into `consumerFilter.json` and reads them back: a file with other parameters
is not taken over there, so they must be the same here. The hash is murmur3_128, x64, seed 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomParameters:
    """How many positions a filter has (k), in how many bits (m)."""

    position_count: int
    bit_count: int

    @classmethod
    def of(cls, error_percent: int, expected_count: int) -> BloomParameters:
        """From the error rate in percent and the number of groups that are expected to filter."""
        rate = error_percent / 100.0
        count = math.ceil(math.log(rate) / math.log(0.5))
        bits = math.ceil(expected_count * math.log2(1 / rate) * math.log2(math.e))
        return cls(count, -(-bits // 8) * 8)

    def positions(self, text: str) -> tuple[int, ...]:
        """The bits of `text`, which is `group#topic`."""
        digest = murmur3_low64(text.encode("utf-8"))
        low, high = digest & 0xFFFFFFFF, digest >> 32
        found = []
        for number in range(1, self.position_count + 1):
            value = (low + number * high) & 0xFFFFFFFF
            if value & 0x80000000:  # Negative in Java, where it is inverted then.
                value ^= 0xFFFFFFFF
            found.append(value % self.bit_count)
        return tuple(found)


def murmur3_low64(data: bytes) -> int:
    """The first eight bytes of murmur3_128 (x64, seed 0), read as a little-endian number."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for start in range(0, whole, 16):
        h1 ^= _mix1(int.from_bytes(data[start : start + 8], "little"))
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix2(int.from_bytes(data[start + 8 : start + 16], "little"))
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    h2 ^= _mix2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mix1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_finish(h1) + _finish(h2)) & _MASK


def _rotate(value: int, count: int) -> int:
    return ((value << count) | (value >> (64 - count))) & _MASK


def _mix1(value: int) -> int:
    return _rotate(value * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(value: int) -> int:
    return _rotate(value * _C2 & _MASK, 33) * _C1 & _MASK


def _finish(value: int) -> int:
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & _MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ (value >> 33)
