"""Records: the specification's vectors, long topics, and everything that is not a record."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.message.ids import pack_host
from twinlog.message.layout import MAGIC_V1, MAGIC_V2
from twinlog.message.model import PutMessage
from twinlog.message.record import (
    SECTOR_SIZE,
    PropertiesSizeError,
    RecordError,
    ScanStop,
    TopicLengthError,
    blank_record,
    check_zeros,
    decode_record,
    encode_record,
    encoded_size,
    properties_at,
    scan,
    shared_head,
    topic_field,
)

BORN, STORED = 1700000000000, 1700000000123
V4_RECORD = bytes.fromhex(
    "00000072 daa320a7 77d18982 00000003 00000000 0000000000000007 0000000012345678"
    "00000000 0000018bcfe56800 c0a8010a0000d431 0000018bcfe5687b 0a00000100002a9f"
    "00000000 0000000000000000 00000005 48656c6c6f 09 546f70696354657374"
    "0009 544147530154616741"
)
V6_RECORD = bytes.fromhex(
    "00000093 daa320a7 00000000 00000000 00000000 0000000000000000 0000000000000000"
    "00000030 0000018bcfe56800 20010db80000000000000000000000010000d431"
    "0000018bcfe5687b 20010db800000000000000000000000200002a9f"
    "00000001 0000000000000000 00000000 09 546f70696354657374"
    "0017 4b455953016b31206b3202554e49515f4b455901414243"
)


def _message(**changes):
    values = {
        "topic": "TopicTest",
        "queue_id": 3,
        "body": b"Hello",
        "properties": b"TAGS\x01TagA",
        "born_timestamp": BORN,
        "born_host": pack_host("192.168.1.10", 54321),
        "store_host": pack_host("10.0.0.1", 10911),
    }
    return PutMessage(**(values | changes))


def _log(messages, start=0):
    parts, offset = [], start
    for index, message in enumerate(messages):
        parts.append(encode_record(message, index, offset, STORED))
        offset += len(parts[-1])
    return b"".join(parts)


def test_ipv4_record_of_the_specification():
    encoded = encode_record(_message(), 7, 0x12345678, STORED)
    assert encoded == V4_RECORD
    record = decode_record(encoded)
    assert record.message_id == "0A00000100002A9F0000000012345678"
    assert record.property_map == {"TAGS": "TagA"}
    assert record.end_offset == 0x12345678 + 114
    assert record.born_host_text == "192.168.1.10:54321"
    assert record.store_host_text == "10.0.0.1:10911"
    assert not record.is_compressed


def test_ipv6_record_of_the_specification():
    message = _message(
        queue_id=0,
        body=b"",
        properties=b"KEYS\x01k1 k2\x02UNIQ_KEY\x01ABC",
        born_host=pack_host("2001:db8::1", 54321),
        store_host=pack_host("2001:db8::2", 10911),
        reconsume_times=1,
    )
    encoded = encode_record(message, 0, 0, STORED)
    assert encoded == V6_RECORD
    record = decode_record(encoded)
    assert record.sys_flag == 0x30
    assert record.message_id == "20010DB800000000000000000000000200002A9F0000000000000000"
    assert record.born_host_text == "[2001:db8::1]:54321"


def test_one_host_of_each_family():
    for born, store, flag in (("::1", "1.2.3.4", 0x10), ("1.2.3.4", "::1", 0x20)):
        message = _message(born_host=pack_host(born, 1), store_host=pack_host(store, 2))
        record = decode_record(encode_record(message, 0, 0, STORED))
        assert record.sys_flag == flag
        assert record.born_host == pack_host(born, 1)
        assert record.store_host == pack_host(store, 2)


def test_topic_over_127_bytes_takes_the_second_version():
    short = decode_record(encode_record(_message(topic="t" * 127), 0, 0, STORED))
    long = decode_record(encode_record(_message(topic="t" * 128), 0, 0, STORED))
    assert (short.magic, long.magic) == (MAGIC_V1, MAGIC_V2)
    assert long.topic == "t" * 128
    assert long.total_size == short.total_size + 2


def test_lengths_that_no_field_can_say_are_refused():
    with pytest.raises(TopicLengthError, match="empty"):
        encode_record(_message(topic=""), 0, 0, STORED)
    with pytest.raises(TopicLengthError, match="32768"):
        encode_record(_message(topic="t" * 32768), 0, 0, STORED)
    with pytest.raises(PropertiesSizeError, match="32768"):
        encode_record(_message(properties=b"p" * 32768), 0, 0, STORED)
    encode_record(_message(properties=b"p" * 32767), 0, 0, STORED)


def test_blank_record_of_the_specification():
    assert blank_record(100).hex() == "00000064cbd43194"
    with pytest.raises(RecordError, match="7 are left"):
        blank_record(7)


def test_put_message_made_from_a_record_gives_the_same_record():
    record = decode_record(V4_RECORD)
    assert encode_record(record.to_put(), 7, 0x12345678, STORED) == V4_RECORD
    assert record.property_map is record.property_map


def test_every_cut_is_refused():
    for size in range(len(V4_RECORD)):
        with pytest.raises(RecordError):
            decode_record(V4_RECORD[:size])


def _patched(position, data):
    return V4_RECORD[:position] + data + V4_RECORD[position + len(data) :]


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (_patched(4, b"\0"), "magic"),
        (_patched(0, struct.pack(">i", 113)), "not that of its parts|past the end"),
        (_patched(0, struct.pack(">i", 115)), "115"),
        (_patched(0, struct.pack(">i", -1)), "total size -1"),
        (_patched(8, b"\0"), "CRC"),
        (_patched(84, struct.pack(">i", -1)), "body size -1"),
        (_patched(84, struct.pack(">i", 1 << 30)), "body size"),
        (_patched(93, b"\xff"), "topic length 255"),
        (_patched(93, b"\0"), "topic length 0"),
        (_patched(93, b"\x7f"), "past the end"),
        (_patched(103, b"\xff"), "not that of its parts"),
        (_patched(90, b"x"), "CRC"),
        (_patched(0, struct.pack(">i", 91))[:39] + b"\x30" + V4_RECORD[40:], "the head of"),
    ],
)
def test_damage_is_named(damaged, reason):
    with pytest.raises(RecordError, match=reason):
        decode_record(damaged)
    result = scan(damaged + bytes(8), 0, 0x12345678)
    if damaged[:4] == struct.pack(">i", 115):
        return  # With zeros behind it the longer record has no end of its own: another test.
    assert result.entries == []
    assert result.position == 0
    assert result.stop is ScanStop.DAMAGED
    assert result.reason


def test_crc_is_not_checked_when_not_asked_for():
    damaged = _patched(90, b"x")
    assert decode_record(damaged, check_crc=False).body == b"Hexlo"
    assert len(scan(damaged, 0, 0x12345678, check_crc=False).entries) == 1


def test_scan_refuses_a_record_of_another_place():
    result = scan(V4_RECORD, 0, 0)
    assert result.stop is ScanStop.DAMAGED
    assert "it is at 0" in result.reason


def test_scan_stops_at_zeros_blank_and_half_a_record():
    log = _log([_message()] * 3, start=5000)
    for tail, stop in (
        (b"", ScanStop.END),
        (b"\0" * 7, ScanStop.END),
        (b"\0" * 200, ScanStop.EMPTY),
        (b"\0" * 8, ScanStop.EMPTY),
        (blank_record(300), ScanStop.BLANK),
        (blank_record(300) + b"\0" * 292, ScanStop.BLANK),
        (V4_RECORD[:113], ScanStop.INCOMPLETE),
        (V4_RECORD[:8], ScanStop.INCOMPLETE),
        (b"\xff" * 20, ScanStop.DAMAGED),
        (struct.pack(">iI", 20, MAGIC_V1), ScanStop.DAMAGED),
    ):
        result = scan(log + tail, 0, 5000)
        assert (len(result.entries), result.position, result.stop) == (3, len(log), stop)


def test_scan_is_bounded_and_goes_on():
    log = _log([_message()] * 5)
    first = scan(log, 0, 0, count_max=2)
    assert (len(first.entries), first.stop) == (2, ScanStop.COUNT)
    rest = scan(log, first.position, first.position)
    assert len(rest.entries) == 3
    assert rest.entries[0][3] == 2


def test_scan_reads_ipv6_and_long_topics():
    messages = [
        _message(),
        _message(born_host=pack_host("::1", 1)),
        _message(topic="t" * 200),
        _message(),
    ]
    log = _log(messages)
    result = scan(log, 0, 0)
    assert [entry[6] for entry in result.entries] == [message.topic for message in messages]
    assert result.stop is ScanStop.END
    damaged = bytearray(log)
    damaged[114 + 100] ^= 1  # The body of the IPv6 record.
    assert scan(bytes(damaged), 0, 0).stop is ScanStop.DAMAGED


_hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
_i32 = st.integers(-(2**31), 2**31 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_messages = st.builds(
    PutMessage,
    topic=st.text(min_size=1, max_size=60),
    queue_id=_i32,
    body=st.binary(max_size=300),
    properties=st.binary(max_size=2000),
    flag=_i32,
    sys_flag=st.integers(0, 0x7FF),
    born_timestamp=_i64,
    born_host=_hosts,
    store_host=_hosts,
    reconsume_times=_i32,
    prepared_transaction_offset=_i64,
)


@given(_messages, _i64, _i64, _i64)
def test_round_trip(message, queue_offset, physical_offset, stored):
    encoded = encode_record(message, queue_offset, physical_offset, stored)
    assert len(encoded) == encoded_size(message)
    record = decode_record(b"junk" + encoded + b"more", 4)
    assert record.topic == message.topic
    assert record.body == message.body
    assert record.properties == message.properties
    again = encode_record(
        record.to_put(), record.queue_offset, record.physical_offset, record.store_timestamp
    )
    assert again == encoded
    assert record.sys_flag & 0x7CF == message.sys_flag & 0x7CF


@given(st.lists(_messages, max_size=8), st.integers(0, 2**40))
def test_scan_equals_decoding_one_by_one(messages, start):
    log = _log(messages, start)
    result = scan(log, 0, start)
    assert result.stop is ScanStop.END
    position = 0
    for entry in result.entries:
        record = decode_record(log, position)
        assert entry == (
            record.physical_offset,
            record.total_size,
            record.queue_id,
            record.queue_offset,
            record.sys_flag,
            record.store_timestamp,
            record.topic,
            record.properties,
        )
        position += record.total_size
    assert position == len(log)


@given(st.lists(_messages, min_size=1, max_size=4), st.data())
def test_damage_never_raises_and_leaves_what_was_before_it(messages, data):
    log = bytearray(_log(messages))
    index = data.draw(st.integers(0, len(log) - 1))
    log[index] ^= data.draw(st.integers(1, 255))
    result = scan(bytes(log), 0, 0)
    whole = scan(_log(messages), 0, 0).entries
    before = [entry for entry in whole if entry[0] + entry[1] <= index]
    assert result.entries[: len(before)] == before


@given(st.binary(max_size=400), st.integers(0, 10))
def test_any_bytes_can_be_scanned(data, start):
    scan(data, min(start, len(data)), start)


@pytest.mark.parametrize("start", [0, 3, 200, 411, 500, 511])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_scan_sees_a_sector_behind_the_body_that_was_never_written(start, host):
    """No CRC covers topic and properties: after a power cut a part of them may be zero."""
    message = _message(properties=b"k\x01" + b"v" * 1100, born_host=pack_host(host, 1))
    log = _log([message], start)
    assert len(scan(log, 0, start, file_position=start).entries) == 1
    first = -(-(start + 130) // 512) * 512 - start
    for sector in range(first, len(log), 512):
        torn = log[:sector] + bytes(min(512, len(log) - sector)) + log[sector + 512 :]
        result = scan(torn, 0, start, file_position=start)
        if decode_record(torn).total_size == len(log):
            assert (result.entries, result.stop) == ([], ScanStop.DAMAGED)
        assert len(scan(torn, 0, start).entries) == 1  # Nothing else shows it.


def test_scan_takes_zeros_in_a_body_for_what_they_are():
    log = _log([_message(body=bytes(3000)), _message(body=bytes(3000))])
    assert len(scan(log, 0, 0, file_position=0).entries) == 2


@pytest.mark.parametrize("shift", range(-3, 3))
def test_no_properties_at_the_start_of_a_sector_are_not_a_missing_sector(shift: int) -> None:
    """Their length is zero by right: a record must not be cut because a sector begins there."""
    body = b"b" * (SECTOR_SIZE - 88 - 1 - len("topic") - 2 + shift)
    record = encode_record(PutMessage("topic", 0, body), 0, 0, 1)
    found = scan(record + bytes(600), 0, 0, file_position=0)
    assert [entry[1] for entry in found.entries] == [len(record)]


def test_a_sector_of_zeros_in_properties_is_refused():
    check_zeros(bytes(511))
    with pytest.raises(RecordError, match="512 zero bytes"):
        check_zeros(b"a" + bytes(512))


@pytest.mark.parametrize("host", [pack_host("10.0.0.1", 1), pack_host("::1", 1)])
@pytest.mark.parametrize("topic", ["T", "t" * 200])
def test_parts_of_a_record_are_found_without_decoding_it(host, topic):
    message = _message(topic=topic, born_host=host, properties=b"KEYS\x01a\x02")
    data = b"before" + encode_record(message, 3, 700, 9)
    assert properties_at(data, 6, len(data)) == message.properties
    _, _, fixed_size = shared_head(message, 9)
    size = fixed_size + len(message.body) + len(topic_field(topic)[1]) + len(message.properties)
    assert size == len(data) - 6


@pytest.mark.parametrize("properties", [b"", b"k\x01v\x02TAGS\x01a\x02"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_copy_does_not_take_a_record_for_whole_whose_end_never_came(properties, host):
    """Its master sends bytes, not records: a killed slave's log may end anywhere."""
    record = _log([_message(properties=properties, born_host=pack_host(host, 1))])
    zeros = bytes(600)
    for size in range(len(record)):
        torn = record[:size] + bytes(len(record) - size)
        found = scan(torn + zeros, 0, 0, file_position=0, is_copy=True).entries
        assert len(found) == (torn == record), size


def test_a_copy_keeps_a_record_that_ends_with_a_zero_when_another_follows():
    log = _log([_message(properties=b"k\x01v\0"), _message()])
    assert len(scan(log, 0, 0, file_position=0, is_copy=True).entries) == 2
    # A master wrote it whole, and may be the only one who has it.
    log = _log([_message(properties=b"k\x01v\0")]) + bytes(600)
    assert len(scan(log, 0, 0, file_position=0).entries) == 1
