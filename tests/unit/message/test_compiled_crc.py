"""CRC-32 as the compiled parts compute it is that of the library, whatever the size of a body."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.stores import HOST

from twinlog.message.crc import crc32
from twinlog.message.layout import HEAD_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record
from twinlog.runtime.compiled import load

pytestmark = pytest.mark.compiled
# Every number of lanes, blocks and single bytes that folding and its tables can leave.
SIZES = [*range(1, 1100), *(1 << n for n in range(11, 17)), 4095, 4097, 65_521]


def record_of(body: bytes) -> bytes:
    message = PutMessage(
        topic="T", queue_id=0, body=body, properties=b"a\x01b", born_host=HOST, store_host=HOST
    )
    return encode_record(message, 0, 0, 1)


@pytest.mark.parametrize("part", range(8))
def test_a_record_is_taken_with_its_checksum_and_with_no_other_one(part: int) -> None:
    scan_plain = load("twinlog.store.recovery._scan").scan_plain
    rng = random.Random(part)
    for size in SIZES[part::8]:
        record = bytearray(record_of(rng.randbytes(size)))
        shift = rng.randrange(64)  # Records begin anywhere in what was read.
        before = bytes(shift)
        assert scan_plain(before + record, shift, 0, crc32, b"").count == 1, size
        record[HEAD_SIZE + rng.randrange(size)] ^= 1 << rng.randrange(8)
        assert scan_plain(before + record, shift, 0, crc32, b"") is None, size


def test_no_record_asks_python_for_its_checksum() -> None:
    """A call, a copy of the body and a number for each record were half of a slave's scan."""
    if "pclmulqdq" not in Path("/proc/cpuinfo").read_text():
        return  # This processor has no other way.
    asked: list[int] = []

    def counted(data: bytes) -> int:
        asked.append(len(data))
        return crc32(data)

    scan_plain = load("twinlog.store.recovery._scan").scan_plain
    for size in (1, 64, 128, 1024, 70_000):
        assert scan_plain(record_of(bytes(size)), 0, 0, counted, b"").count == 1
    assert not asked
