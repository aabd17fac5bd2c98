"""Hashes, checksums, ids, flags, compression and batches."""

import runpy
import sys
import zlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.message import crc, names, perm, sysflag
from twinlog.message.batch import (
    BatchError,
    BatchMember,
    batch_size,
    decode_batch,
    encode_batch,
)
from twinlog.message.compression import CompressionError, compress, decompress, inflate_body
from twinlog.message.crc import body_crc
from twinlog.message.hashing import index_key_hash, jhash, topic_prefix_hash, utf16_length
from twinlog.message.ids import (
    ID_COUNTERS,
    UniqueIdGenerator,
    host_text,
    month_start_ms,
    offset_message_id,
    pack_host,
    parse_offset_message_id,
    parse_unique_id,
    unpack_host,
)
from twinlog.message.once import ONCE_NAME, Mark, is_producer_id, read_mark
from twinlog.message.sysflag import CompressionType

LOWEST_KEY = "ddylq6\u363c\xb5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("*", 42),
        ("polygenelubricants", -2147483648),
        ("\u4e2d\u6587", 646394),
        ("TopicTest#KEY1", -1656969516),
        ("T#\U0001f600", 4308978),
        ("", 0),
    ],
)
def test_hash_of_the_specification(text, value):
    assert jhash(text) == value


def _java_hash(text):
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (value * 31 + int.from_bytes(data[index : index + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_keys = st.one_of(
    st.text(max_size=40),
    st.text("0123456789ABCDEF", min_size=32, max_size=32),
    st.text("0123456789ABCDEF", min_size=56, max_size=56),
    st.text(min_size=32, max_size=32),
)


@given(st.text(max_size=20), _keys)
def test_hash_put_together_from_parts_is_the_hash_of_the_whole(topic, key):
    whole = _java_hash(f"{topic}#{key}")
    expected = 0 if whole == -(1 << 31) else abs(whole)
    assert index_key_hash(topic, key) == expected
    assert jhash(key) == _java_hash(key)
    assert utf16_length(key) == len(key.encode("utf-16-be", "surrogatepass")) // 2


def test_index_hash_of_the_specification_and_of_the_lowest_number():
    assert index_key_hash("TopicTest", "KEY1") == 1656969516
    # Found by search: with the topic in front, these hash to -2**31, which has no positive twin.
    assert _java_hash("T#" + LOWEST_KEY) == -(1 << 31)
    assert index_key_hash("T", LOWEST_KEY) == 0


def test_crc_of_the_specification():
    assert body_crc(b"Hello") == 0x77D18982
    assert body_crc(b"") == 0
    assert body_crc(memoryview(b"xHello")[1:]) == 0x77D18982


@given(st.binary(max_size=5000))
def test_crc_is_that_of_zlib(data):
    assert body_crc(data) == zlib.crc32(data) & 0x7FFFFFFF


def test_hosts_and_offset_ids():
    for address in ("127.0.0.1", "2001:db8::2", "::1"):
        host = pack_host(address, 10911)
        assert unpack_host(host) == (address, 10911)
        text = offset_message_id(host, 0x12345678)
        assert parse_offset_message_id(text) == (host, 0x12345678)
    assert pack_host("fe80::1%eth0", 1) == pack_host("fe80::1", 1)
    assert host_text(pack_host("::1", 5)) == "[::1]:5"
    assert parse_offset_message_id("0A00000100002A9F0000000012345678").physical_offset == 0x12345678
    for bad in ("", "0A", "G" * 32, "0" * 33):
        with pytest.raises(ValueError, match=r"id has|non-hexadecimal"):
            parse_offset_message_id(bad)
    with pytest.raises(ValueError, match="8 or 20"):
        unpack_host(b"123")


def test_unique_id_as_the_java_client_makes_it():
    """The first id of the vectors, sent at 1794776861250 from 192.0.2.2."""
    parsed = parse_unique_id("C00002024D9D4E0E2F2A4CA1A2410000", 1794776866000, zone=UTC)
    assert parsed.address == "192.0.2.2"
    assert parsed.process_id == 0x4D9D
    assert parsed.counter == 0
    assert 0 <= 1794776861250 - parsed.time_ms < 1000
    generator = UniqueIdGenerator(
        bytes.fromhex("C0000202"), 0x4D9D, 0x4E0E2F2A, lambda: parsed.time_ms, zone=UTC
    )
    assert generator.next_id() == "C00002024D9D4E0E2F2A4CA1A2410000"
    assert generator.next_id() == "C00002024D9D4E0E2F2A4CA1A2410001"


def test_unique_ids_differ_and_wrap():
    now = [1794776861249]
    generator = UniqueIdGenerator(bytes(16), 70000, -1, lambda: now[0], zone=UTC)
    ids = [generator.next_id() for _ in range(65536)]
    assert len(set(ids)) == 65536
    assert len(ids[0]) == 56
    assert generator.next_id() == ids[0]
    now[0] += 1
    assert generator.next_id() not in set(ids)
    assert month_start_ms(now[0], UTC) <= now[0]


def test_unique_id_starts_again_with_the_month():
    zone = timezone(timedelta(hours=8))
    end = int(datetime(2026, 12, 1, tzinfo=zone).timestamp() * 1000)
    now = [end - 1]
    generator = UniqueIdGenerator(bytes(4), 1, 0, lambda: now[0], zone=zone)
    before = generator.next_id()
    assert int(before[20:28], 16) == 30 * 86400 * 1000 - 1
    now[0] = end
    assert int(generator.next_id()[20:28], 16) == 0
    now[0] = end - 500  # The clock was set back a little.
    assert int(generator.next_id()[20:28], 16) == 0
    assert parse_unique_id(before, end + 10, zone=zone).time_ms == end - 1


def test_system_flags():
    flag = sysflag.with_compression_type(0, CompressionType.ZLIB)
    assert flag == 0x301
    assert sysflag.compression_type(0x1) is CompressionType.ZLIB
    assert sysflag.compression_type(0x101) is CompressionType.LZ4
    assert sysflag.with_transaction_type(0xF, sysflag.TRANSACTION_COMMIT_TYPE) == 0xB
    assert sysflag.transaction_type(0xB) == sysflag.TRANSACTION_COMMIT_TYPE
    assert [flag for flag in range(16) if sysflag.is_rollback(flag)] == [12, 13, 14, 15]


@pytest.mark.parametrize("kind", list(CompressionType))
def test_compression_round_trip_and_limits(kind):
    body = b"twinlog " * 1000
    small = compress(body, kind)
    assert len(small) < len(body)
    assert decompress(small, kind) == body
    assert inflate_body(small, sysflag.with_compression_type(0, kind)) == body
    assert inflate_body(small, 0) == small
    assert decompress(compress(b"", kind), kind) == b""
    with pytest.raises(CompressionError, match="exceeds 7999"):
        decompress(small, kind, size_max=7999)
    with pytest.raises(CompressionError):
        decompress(b"not compressed at all", kind)
    with pytest.raises(CompressionError):
        decompress(small[:-5], kind)


def test_unknown_compression_type_is_named():
    with pytest.raises(CompressionError, match="0x701"):
        inflate_body(b"", 0x701)


_members = st.lists(
    st.builds(
        BatchMember,
        body=st.binary(max_size=50),
        properties=st.binary(max_size=50),
        flag=st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=6,
)


@given(_members)
def test_batch_round_trip(members):
    encoded = encode_batch(members)
    assert decode_batch(encoded) == members
    assert batch_size(members) == len(encoded)


@given(_members, st.data())
def test_cut_batch_is_refused_or_shorter(members, data):
    encoded = encode_batch(members)
    cut = data.draw(st.integers(0, len(encoded)))
    try:
        found = decode_batch(encoded[:cut])
    except BatchError:
        return
    assert found == members[: len(found)]


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_an_error(data):
    try:
        decode_batch(data)
    except BatchError:
        return


def test_batch_limits():
    with pytest.raises(BatchError, match="32768"):
        encode_batch([BatchMember(b"", b"p" * 32768)])
    three = encode_batch([BatchMember(b"")] * 3)
    assert len(decode_batch(three, 3)) == 3
    with pytest.raises(BatchError, match="more than 2 messages; 65536 where all properties are t"):
        decode_batch(three, 2)
    with pytest.raises(BatchError, match=r"more than 65536 messages$"):
        decode_batch(encode_batch([BatchMember(b"")] * 65_537))


def test_many_ids_at_once():
    ids = UniqueIdGenerator(bytes(4), 1, 2, lambda: 1_700_000_000_000, zone=UTC)
    prefix, first = ids.take(ID_COUNTERS)
    assert (first, len(prefix)) == (0, ids.id_size - 4)
    prefix, first = ids.take(3)
    assert ids.next_id() == f"{prefix}{first + 3:04X}"
    for count in (0, ID_COUNTERS + 1):
        with pytest.raises(ValueError, match="ids at once"):
            ids.take(count)
    with pytest.raises(ValueError, match="4 or 16 bytes"):
        UniqueIdGenerator(bytes(5), 1, 2, lambda: 0)


def test_a_clock_that_is_set_back_a_little_stands_still():
    times = iter([1_700_000_000_000, month_start_ms(1_700_000_000_000, UTC) - 1])
    ids = UniqueIdGenerator(bytes(4), 1, 2, lambda: next(times), zone=UTC)
    ids.next_id()
    assert ids.next_id()[-12:-4] == "00000000"


def test_batch_whose_properties_end_elsewhere_is_refused():
    data = bytearray(encode_batch([BatchMember(b"body", b"a\x01b\x02", 0)]))
    data[-5] += 1
    with pytest.raises(BatchError, match="do not end with the member"):
        decode_batch(bytes(data))


@pytest.mark.parametrize(
    ("module", "kind"), [("lz4.frame", CompressionType.LZ4), ("zstandard", CompressionType.ZSTD)]
)
def test_a_library_that_is_not_installed_is_named(monkeypatch, module, kind):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CompressionError, match=r"install twinlog\["):
        decompress(b"body", kind)


def test_crc_is_the_same_where_isal_has_no_wheel(monkeypatch):
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert runpy.run_path(crc.__file__)["body_crc"](b"body") == body_crc(b"body")


def test_names_of_topics_that_follow_from_others():
    assert names.has_legal_characters("a-1_%|")
    assert not names.has_legal_characters("a b")
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.reply_topic("c") == "c_REPLY_TOPIC"


def test_mark_of_an_idempotent_send():
    mark = Mark("producer-1", 2, 3, 4, "T")
    assert read_mark(f"a\x01b\x02{ONCE_NAME}{mark.text()}\x02") == mark
    for text in ("", f"x{ONCE_NAME}", f"{ONCE_NAME}not a mark\x02"):
        assert read_mark(text) is None
    assert is_producer_id(mark.producer)
    assert not is_producer_id("with blank")


def test_a_unique_id_has_one_of_two_lengths():
    with pytest.raises(ValueError, match="32 or 56"):
        parse_unique_id("00" * 20, 0)


def test_the_hash_before_the_keys_of_a_topic_is_that_of_topic_and_separator():
    assert topic_prefix_hash("T") == jhash("T#") & 0xFFFFFFFF


@pytest.mark.parametrize(("bits", "text"), [(0, "---"), (4, "R--"), (6, "RW-"), (7, "RWX")])
def test_permissions_in_letters(bits, text):
    assert perm.perm_text(bits) == text
