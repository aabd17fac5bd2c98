"""A record that has decayed, and the one of a copy: told from another message in its place."""

from __future__ import annotations

import msgspec
import pytest

from support.stores import HOST, message
from twinlog.message.model import PutMessage
from twinlog.message.record import encode_record
from twinlog.message.sysflag import HOSTS_V6_MASK
from twinlog.store.integrity.record_check import body_fault, is_same_record, structure_fault

HOST_V6 = bytes(range(16)) + HOST[-4:]


def record_of(number: int, *, is_v6: bool, stored_ms: int = 1_700_000_000_001) -> bytes:
    put: PutMessage = message(number)
    if is_v6:
        put = msgspec.structs.replace(
            put, born_host=HOST_V6, store_host=HOST_V6, sys_flag=put.sys_flag | HOSTS_V6_MASK
        )
    return bytes(encode_record(put, queue_offset=3, physical_offset=700, store_timestamp=stored_ms))


@pytest.mark.parametrize("is_v6", [False, True])
def test_a_flipped_bit_makes_no_other_record_and_another_message_is_one(is_v6: bool) -> None:
    right, other = record_of(1, is_v6=is_v6), record_of(2, is_v6=is_v6)
    later = record_of(1, is_v6=is_v6, stored_ms=1_700_000_000_001 + 0x030303)
    assert not structure_fault(right, 0, len(right), 700)
    assert not body_fault(right, 0, len(right))
    assert len(right) == len(other)
    for bit in range(8 * len(right)):
        mine = bytearray(right)
        mine[bit // 8] ^= 1 << bit % 8
        assert is_same_record(bytes(mine), right), bit
        assert not is_same_record(bytes(mine), other), bit
        assert not is_same_record(bytes(mine), later), bit
    assert not is_same_record(right[:-1], right)


def test_a_body_of_which_nothing_is_left_is_known_by_its_crc() -> None:
    right = record_of(1, is_v6=False)
    at = right.index(b"." * 50)
    mine = right[:at] + bytes(50) + right[at + 50 :]
    assert is_same_record(mine, right)
    assert not is_same_record(bytes(len(right)), right)
