"""Records of a batch are byte for byte those that single puts would have made."""

from __future__ import annotations

import msgspec
import pytest

from twinlog.message.batch import BatchMember
from twinlog.message.model import PutMessage
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import RecordError, encode_record
from twinlog.store.batch_put import encode_members
from twinlog.store.consume_queue import ENTRY

V4, V6 = bytes(range(8)), bytes(range(20))
ID = b"UNIQ_KEY\x017F0000010001000000020000000%d"
# Own properties of a member: none, an id, with and without the last separator, tags, keys, twice.
MEMBERS = [
    BatchMember(b"", b""),
    BatchMember(b"body", ID % 1, 7),
    BatchMember(b"body", ID % 2 + b"\x02"),
    BatchMember(b"one", ID % 3 + b"\x02TAGS\x01a"),
    BatchMember(b"two", ID % 4 + b"\x02TAGS\x01a"),
    BatchMember(b"two", ID % 5 + b"\x02TAGS\x01b\x02WAIT\x01true"),
    BatchMember(b"x", ID % 6 + b"\x02KEYS\x01k1 k2"),
    BatchMember(b"x", ID % 7 + b"\x02UNIQ_KEY\x01second"),
    BatchMember(b"x", ID % 8 + b"\x02KEYS\x01k\x02TAGS\x01a\x02KEYS\x01last"),
    BatchMember(b"x", ID % 9 + b"\x02KEYS\x01k\x02KEYS\x01"),
    BatchMember(b"x", ID % 0 + b"\x02ORIGIN_UNIQ_KEY\x01u\x02MYKEYS\x01m\x02TAGS\x01"),
    BatchMember(b"x", b"UNIQ_KEY\x01\x02KEYS\x01k"),
    BatchMember(memoryview(b"view"), b"mine\x01UNIQ_KEY\x02TAGS\x01c\x02KEYS\x01k"),
    BatchMember(b"x" * 3000, b"name\x01" + b"v" * 2000),
]


@pytest.mark.parametrize("hosts", [(V4, V4), (V6, V4), (V4, V6), (V6, V6)])
@pytest.mark.parametrize("topic", ["orders", "t" * 127])
@pytest.mark.parametrize(
    "shared", [b"CLUSTER\x01c\x02WAIT\x01true", b"CLUSTER\x01c\x02TAGS\x01all\x02KEYS\x01k9"]
)
def test_a_batch_is_stored_as_single_messages(
    hosts: tuple[bytes, bytes], topic: str, shared: bytes
) -> None:
    message = PutMessage(topic, 3, b"", shared, 9, 1 << 8, 123, *hosts, 2)
    encoded = encode_members(message, MEMBERS, 40, 1000, 456)
    offset = 1000
    for number, member in enumerate(MEMBERS):
        joint = b"\x02" if member.properties and not member.properties.endswith(b"\x02") else b""
        merged = member.properties + joint + shared
        single = msgspec.structs.replace(
            message, body=member.body, flag=member.flag, properties=merged
        )
        record = encode_record(single, 40 + number, offset, 456)
        assert encoded.offsets[number] == offset
        assert encoded.data[offset - 1000 : offset - 1000 + len(record)] == record
        tags_code, keys = tags_and_keys(merged)
        entry = encoded.entries[number * ENTRY.size : (number + 1) * ENTRY.size]
        assert ENTRY.unpack(entry) == (offset, len(record), tags_code)
        assert encoded.keys[number] == keys
        offset += len(record)
    assert len(encoded.data) == offset - 1000
    assert len(encoded.entries) == len(MEMBERS) * ENTRY.size


def test_a_sector_of_zeros_in_the_properties_of_a_member_is_refused() -> None:
    """After a power cut it could not be told from one that was never written."""
    message = PutMessage("T", 0, b"", b"CLUSTER\x01c", born_host=V4, store_host=V4)
    fine = BatchMember(b"x", b"a\x01" + bytes(511) + b"b")
    assert encode_members(message, [fine], 0, 0, 1).data
    with pytest.raises(RecordError, match="512 zero bytes"):
        encode_members(message, [fine, BatchMember(b"x", b"a\x01" + bytes(512))], 0, 0, 1)
