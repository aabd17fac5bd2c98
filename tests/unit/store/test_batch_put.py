"""Records of a batch are byte for byte those that single puts would have made."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.message.batch import BatchError, BatchMember, decode_batch, encode_batch
from twinlog.message.hashing import index_key_hash
from twinlog.message.ids import offset_message_id
from twinlog.message.layout import ENTRY
from twinlog.message.model import PutMessage
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import RecordError, encode_record
from twinlog.store.log.batch_put import EncodedBody, body_encoder, encode_members

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


# The compiled form

_PIECES = st.sampled_from(
    [
        ID % 1, b"UNIQ_KEY\x01", b"TAGS\x01a", b"TAGS\x01order-created", b"TAGS\x01\xc3\xa9",
        b"TAGS\x01", b"KEYS\x01k", b"KEYS\x01 a  b ", b"KEYS\x01 ", b"KEYS\x01\xff", b"MYKEYS\x01m",
        b"\x01", b"a\x01b\x01c",
        b"", b"z\x01" + bytes(511), b"z\x01" + bytes(512), b"n\x01" + b"v" * 16_000,
        b"TWINLOG_ONCE\x01p,1,1,3,orders",
    ]
)  # fmt: skip
_MEMBERS = st.builds(
    BatchMember,
    st.binary(max_size=20),
    st.lists(_PIECES, max_size=4).map(lambda pieces: b"\x02".join(pieces)[:32767]),
    st.integers(-(2**31), 2**31 - 1),
)


@st.composite
def _bodies(draw: Any) -> bytes:
    body = encode_batch(draw(st.lists(_MEMBERS, max_size=4)))
    match draw(st.integers(0, 7)):
        case 0:
            return body[: -draw(st.integers(1, 30))]
        case 1:
            at = draw(st.integers(0, len(body)))
            return body[:at] + draw(st.binary(max_size=4)) + body[at + draw(st.integers(0, 4)) :]
    return body


def _taken(
    body: bytes, hosts: tuple[bytes, bytes], topic: str, shared: bytes
) -> EncodedBody | None:
    """What the compiled form makes of `body`, after it was found equal to what Python makes."""
    encode = body_encoder()
    assert encode is not None
    message = PutMessage(topic, 3, body, shared, 9, 1 << 8, 123, *hosts, 2)
    found = encode(message, 40, 1000, 456)
    if found is None:
        return None
    expected = encode_members(message, decode_batch(body), 40, 1000, 456)
    assert (found.data, found.entries) == (expected.data, expected.entries)
    assert found.message_count == expected.message_count
    hashes = [index_key_hash(topic, key) for keys in expected.keys for key in keys]
    pairs = zip(expected.keys, expected.offsets, strict=True)
    assert list(array("q", bytes(found.key_hashes))) == hashes
    assert list(array("q", bytes(found.key_offsets))) == [o for keys, o in pairs for _ in keys]
    bare = [o for keys, o in zip(expected.keys, expected.offsets, strict=True) if not keys]
    assert found.bare_offset == max(bare, default=-1)
    assert found.ids == ",".join(offset_message_id(hosts[1], o) for o in expected.offsets)
    return found


@pytest.mark.compiled
@given(
    _bodies(),
    st.tuples(st.sampled_from([V4, V6]), st.sampled_from([V4, V6])),
    st.sampled_from(["orders", "t" * 127, "\u00e9" * 100]),
    st.sampled_from([b"", b"CLUSTER\x01c", b"CLUSTER\x01c\x02TAGS\x01t", b"a\x01" + b"v" * 800]),
)
@settings(max_examples=1000, deadline=None)
def test_a_body_as_it_came_gives_the_same(
    body: bytes, hosts: tuple[bytes, bytes], topic: str, shared: bytes
) -> None:
    try:
        _taken(body, hosts, topic, shared)
    except (BatchError, RecordError) as error:
        raise AssertionError("taken, although Python refuses it") from error


@pytest.mark.compiled
def test_what_the_compiled_twin_takes() -> None:
    plain = encode_batch(MEMBERS)
    assert _taken(plain, (V4, V6), "orders", b"CLUSTER\x01c") is not None
    once = BatchMember(b"x", b"TWINLOG_ONCE\x01p,1,1,3,orders")
    for odd in (b"", plain[:-1], plain + b"x", encode_batch([once])):
        assert _taken(odd, (V4, V4), "orders", b"CLUSTER\x01c") is None
    assert _taken(plain, (V4, V4), "orders", b"KEYS\x01k") is None


@pytest.mark.compiled
@pytest.mark.parametrize(
    "text", ["\u00e9", "\u4e2d\u6587", "\U0001f600 x\U0010ffff", "\ud7ff\ue000", "\x7f\x80"]
)
def test_text_of_all_languages_is_taken(text: str) -> None:
    properties = f"TAGS\x01{text}\x02KEYS\x01a {text} {text}b\x02UNIQ_KEY\x01{text}".encode()
    body = encode_batch([BatchMember(b"x", properties)])
    assert _taken(body, (V4, V4), "orders", b"CLUSTER\x01c") is not None


@pytest.mark.compiled
@pytest.mark.parametrize(
    "bad",
    [b"\x80", b"\xc3", b"\xc3(", b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\xaf", b"\xed\xa0\x80",
     b"\xe2\x82",
     b"\xf0\x80\x80\xaf", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xff", b"\xf0\x9f\x98"],
)  # fmt: skip
@pytest.mark.parametrize("name", [b"TAGS", b"KEYS", b"UNIQ_KEY"])
def test_what_is_not_utf8_is_left_to_python(name: bytes, bad: bytes) -> None:
    for value in (bad, bad + b"a", b"a" + bad):
        body = encode_batch([BatchMember(b"x", name + b"\x01" + value)])
        assert _taken(body, (V4, V4), "orders", b"CLUSTER\x01c") is None


@pytest.mark.compiled
def test_a_batch_of_too_many_messages_or_keys_is_not_taken() -> None:
    one = encode_batch([BatchMember(b"")])
    assert _taken(one * 65_536, (V4, V4), "orders", b"") is not None
    assert _taken(one * 65_537, (V4, V4), "orders", b"") is None
    keys = BatchMember(b"", b"KEYS\x01" + b"k " * 8_192)
    assert _taken(encode_batch([keys] * 16), (V4, V4), "orders", b"") is not None
    assert _taken(encode_batch([keys] * 17), (V4, V4), "orders", b"") is None


def test_too_many_keys_are_refused_with_a_reason() -> None:
    keys = BatchMember(b"", b"KEYS\x01" + b"k " * 8_192)
    message = PutMessage("orders", 3, b"", b"", 9, 1 << 8, 123, V4, V4, 2)
    assert encode_members(message, [keys] * 16, 0, 0, 0).message_count == 16
    with pytest.raises(RecordError, match="more than 131072 keys"):
        encode_members(message, [keys] * 17, 0, 0, 0)
