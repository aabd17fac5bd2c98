"""Columns become the members that the client would have made of each row, or are left to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from twinlog.client.message import encode_user_properties
from twinlog.message.batch import decode_batch
from twinlog.message.ids import UniqueIdGenerator, parse_unique_id
from twinlog.message.once import Mark, read_mark
from twinlog.message.properties import decode_properties
from twinlog.spark.write.encode import chunks, members, prepare
from twinlog.spark.write.sending import message_of
from twinlog.spark.write.sink import SinkOptions

NOW_MS = 1_700_000_000_000
BORN = datetime(2023, 11, 14, 22, 13, 20, 123_500, tzinfo=UTC)
TYPES = {
    "body": pa.binary(), "topic": pa.string(), "keys": pa.string(), "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()), "queue_id": pa.int32(), "flag": pa.int32(),
    "delay_level": pa.int32(), "sharding_key": pa.string(), "msg_id": pa.string(),
    "born_ts": pa.timestamp("us", "UTC"),
}  # fmt: skip
OPTIONS = SinkOptions.parse({"nameServer": "127.0.0.1:1"})


def ids() -> UniqueIdGenerator:
    return UniqueIdGenerator(b"\x7f\x00\x00\x01", 7, 9, lambda: NOW_MS)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = {name for row in rows for name in row}
    fields = [(name, kind) for name, kind in TYPES.items() if name in names]
    return pa.RecordBatch.from_pylist(rows, schema=pa.schema(fields))


ROWS: list[dict[str, Any]] = [
    {"body": b"plain", "topic": "a"},
    {"body": b"tag", "topic": "a", "tags": "t", "flag": -3},
    {"body": b"keys", "topic": "b", "keys": "k1 k2", "tags": ""},
    {"body": b"none", "topic": "a", "properties": [], "keys": ""},
    {"body": "wörter".encode(), "topic": "c", "keys": "schlüssel 鍵", "properties": [("名", "値")]},
    {"body": b"own", "topic": "a", "properties": [("x", "1"), ("KEYS", "lost"), ("y", "2")]},
    {"body": b"o" * 4095, "topic": "b", "born_ts": BORN, "msg_id": "M1"},
    {"body": b"reserved only", "topic": "a", "properties": [("UNIQ_KEY", "u")], "msg_id": "M2"},
]


@pytest.mark.parametrize("start", [0, 1, 3])
def test_members_are_those_of_single_messages(start: int) -> None:
    batch = batch_of(ROWS).slice(start)  # A slice shares buffers: offsets do not begin at 0.
    prepared = prepare(batch, None, ids())
    assert prepared is not None
    found: dict[int, Any] = {}
    for rows in prepared:
        for chunk in chunks(rows, members(rows), size_max=300, count_max=2):
            decoded = decode_batch(chunk.data)
            assert len(decoded) == chunk.count <= 2
            assert chunk.topic == rows.topic
            places = rows.rows[(rows.rows >= chunk.first) & (rows.rows <= chunk.last)]
            found.update(zip(places.tolist(), [(rows.topic, one) for one in decoded], strict=True))
    for place, row in enumerate(ROWS[start:]):
        topic, member = found[place]
        wanted = message_of(row, OPTIONS)
        assert (topic, member.body, member.flag) == (row["topic"], row["body"], wanted.flag)
        properties = decode_properties(member.properties)
        unique = properties["UNIQ_KEY"]
        assert properties == decode_properties(encode_user_properties(wanted, unique))
        assert parse_unique_id(unique, NOW_MS + 1).counter == place


def test_numbers_and_counters_go_on() -> None:
    maker = ids()
    maker.take(65_530)
    prepared = prepare(batch_of([{"body": b"%d" % n} for n in range(20)]), "orders", maker)
    assert prepared is not None
    joined = members(prepared[0], mark=("producer:3", 8, 95, 2))
    (chunk,) = chunks(prepared[0], joined, size_max=1 << 20, count_max=100)
    found = [member.properties.decode() for member in decode_batch(chunk.data)]
    marks = [read_mark(text) for text in found]
    assert marks == [Mark("producer:3", 8, 95 + n, 2, "orders") for n in range(20)]
    counters = [
        parse_unique_id(decode_properties(text.encode())["UNIQ_KEY"], NOW_MS + 1).counter
        for text in found
    ]
    assert counters == [(65_530 + n) % 65_536 for n in range(20)]
    assert parse_unique_id(maker.next_id(), NOW_MS + 1).counter == 14


@pytest.mark.parametrize(
    "row",
    [
        {"body": None},
        {"body": b""},
        {"body": b"x" * 4096},
        {"topic": None},
        {"topic": "no topic!"},
        {"topic": "%RETRY%group"},
        {"tags": "a\x01b"},
        {"keys": "a\x02b"},
        {"keys": " a"},
        {"keys": "a  b"},
        {"keys": "a\u3000b"},
        {"keys": "a\tb"},
        {"properties": [("a", "b\x02c")]},
        {"properties": [("a", "")]},
        {"properties": [("a", None)]},
        {"properties": [("a", "v" * 32_767)]},
        {"properties": [("ORIGIN_UNIQ_KEY", "first")]},
        {"msg_id": ""},
        {"queue_id": 1},
        {"delay_level": 3},
        {"sharding_key": "k"},
    ],
)
def test_a_batch_with_a_row_that_is_not_plain_is_left_to_the_client(row: dict[str, Any]) -> None:
    plain = {"body": b"x", "topic": "t"}
    second = {"msg_id": "m"} if "ORIGIN_UNIQ_KEY" in str(row) else {}
    assert prepare(batch_of([plain, plain | second]), None, ids()) is not None
    assert prepare(batch_of([plain, plain | row, plain | second]), None, ids()) is None


def test_keys_may_be_a_list_and_bodies_text() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"body": ["ä", "b"], "keys": pa.array([["k1", "k2"], None], pa.list_(pa.string()))}
    )
    prepared = prepare(batch, "t", ids())
    assert prepared is not None
    (chunk,) = chunks(prepared[0], members(prepared[0]), size_max=1 << 20, count_max=100)
    one, two = decode_batch(chunk.data)
    assert (one.body, two.body) == ("ä".encode(), b"b")
    assert decode_properties(one.properties)["KEYS"] == "k1 k2"
    assert "KEYS" not in decode_properties(two.properties)
