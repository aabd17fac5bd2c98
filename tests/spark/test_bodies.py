"""Bodies as typed columns: JSON, Avro and Protobuf, packed or not, and what becomes of bad ones."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from order_pb import Order
from storefiles import StoreFiles

from twinlog.message.compression import compress
from twinlog.message.sysflag import CompressionType, with_compression_type
from twinlog.spark.decode import avro, json_rows
from twinlog.spark.decode.body import body_columns, parser
from twinlog.spark.errors import OptionError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
AVRO = json.dumps(
    {
        "type": "record", "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "lines", "type": {"type": "array", "items": "int"}},
        ],
    }
)  # fmt: skip
COUNT = 30


def avro_body(number: int) -> bytes:
    out = io.BytesIO()
    note = None if number % 2 else f"n{number}"
    value = {"id": number, "note": note, "lines": [number, 1]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), value)
    return out.getvalue()


def protobuf_body(number: int) -> bytes:
    data: bytes = Order(id=number, note=f"n{number}").SerializeToString()
    return data


def json_body(number: int) -> bytes:
    return json.dumps({"id": number, "note": f"n{number}"}).encode()


BODIES = {"avro": avro_body, "protobuf": protobuf_body, "json": json_body}
SCHEMAS = {"avro": AVRO, "protobuf": "order_pb:Order", "json": "id BIGINT, note STRING"}
BAD = b"\xff\xff\xff"


def store_with(root: Path, kind: str) -> StoreFiles:
    """Bodies of one kind: plain, and packed by every codec; the last one is no such body."""
    files = StoreFiles(root)
    codecs: list[CompressionType | None] = [None, *CompressionType]
    for number in range(COUNT):
        codec, body = codecs[number % len(codecs)], BODIES[kind](number)
        if codec is None:
            files.put(body=body, properties={"KEYS": f"k{number}"})
        else:
            flag = with_compression_type(0, codec)
            files.put(body=compress(body, codec), properties={"KEYS": f"k{number}"}, sys_flag=flag)
    files.put(body=BAD, properties={"KEYS": "bad"})
    return files


def load(spark: Any, root: Path, kind: str, **options: str) -> Any:
    given = {"path": str(root), "subscribe": "orders", "decodeBody": kind, **options}
    return spark.read.format("twinlog").options(**{"bodySchema": SCHEMAS[kind], **given}).load()


def ids(rows: list[Any]) -> list[int]:
    good = [row.body for row in rows if row.body is not None]
    return sorted(body.id for body in good)


@pytest.mark.parametrize("kind", BODIES)
def test_bodies_are_decoded_and_bad_ones_fail_are_null_or_go_to_the_dead_letters(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    files = store_with(tmp_path / "store", kind)
    bad = files.rows[-1]
    with pytest.raises(Exception, match=f"BODY_UNDECODABLE.*physical offset {bad['phys_offset']}"):
        load(spark, files.root, kind).collect()
    rows = load(spark, files.root, kind, decodeMode="null").collect()
    assert ids(rows) == list(range(COUNT))
    (failed,) = [row for row in rows if row.body_error is not None]
    assert (failed["keys"], failed.body) == ("bad", None)
    dead = tmp_path / "dead"
    for _ in range(2):  # read twice: a dead letter is written once
        lenient = load(spark, files.root, kind, decodeMode="deadletter", deadLetterPath=str(dead))
        assert ids(lenient.collect()) == list(range(COUNT))
    (letter,) = spark.read.parquet(str(dead)).collect()
    assert (letter["keys"], bytes(letter.body)) == ("bad", BAD)
    assert letter.phys_offset == bad["phys_offset"]
    assert letter.reason


def test_avro_values_have_the_types_of_the_schema(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    for number in range(4):
        files.put(body=avro_body(number))
    schema = tmp_path / "order.avsc"
    schema.write_text(AVRO)
    options = {"path": str(files.root), "subscribe": "orders", "decodeBody": "avro"}
    frame = spark.read.format("twinlog").options(**options, bodySchemaPath=str(schema)).load()
    assert frame.schema["body"].dataType.simpleString() == (
        "struct<id:bigint,note:string,lines:array<int>>"
    )
    rows = frame.orderBy("queue_offset").select("body.*").collect()
    assert [tuple(row) for row in rows][:2] == [(0, "n0", [0, 1]), (1, None, [1, 1])]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"decodeBody": "xml"}, "must be one of"),
        ({"decodeBody": "json"}, "needs the option bodySchema or bodySchemaPath"),
        ({"decodeBody": "json", "bodySchemaPath": "/no/such/file"}, "bodySchemaPath"),
        ({"decodeBody": "avro", "bodySchema": "{"}, "not an Avro schema"),
        ({"decodeBody": "avro", "bodySchema": '"decimal"'}, "not an Avro schema: UnknownType"),
        ({"decodeBody": "json", "bodySchema": "a INT", "decodeMode": "skip"}, "one of"),
        ({"decodeBody": "json", "bodySchema": "a INT", "decodeMode": "deadletter"}, "option dead"),
    ],
)
def test_options_about_bodies_that_cannot_be_meant(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        body_columns(options)


LOGICAL = json.dumps(
    {
        "type": "record", "name": "Pay",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                     "scale": 2}},
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "from", "type": {"type": "record", "name": "Place",
                                      "fields": [{"name": "city", "type": "string"}]}},
            {"name": "to", "type": ["null", "Place"], "default": None},
        ],
    }
)  # fmt: skip


def encoded(schema: str, value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), value)
    return out.getvalue()


def test_avro_logical_and_named_types() -> None:
    kind = avro.spark_type(json.loads(LOGICAL))
    assert kind == (
        "STRUCT<`at`: TIMESTAMP, `day`: DATE, `sum`: DECIMAL(9,2), `id`: STRING, "
        "`from`: STRUCT<`city`: STRING>, `to`: STRUCT<`city`: STRING>>"
    )
    value = {
        "at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), "day": date(2026, 1, 2),
        "sum": Decimal("12.34"), "id": str(UUID(int=7)), "from": {"city": "Bern"}, "to": None,
    }  # fmt: skip
    assert avro.parser(LOGICAL, {})(encoded(LOGICAL, value)) == value
    with pytest.raises(OptionError, match="time-millis"):
        avro.spark_type({"type": "int", "logicalType": "time-millis"})


def test_avro_types_of_one_name_in_two_namespaces_are_two_types() -> None:
    def place(space: str, field: str) -> dict[str, Any]:
        fields = [{"name": field, "type": "string"}]
        return {"type": "record", "name": "Place", "namespace": space, "fields": fields}

    kinds = [place("one", "city"), place("two", "street"), "one.Place", "two.Place"]
    fields = [{"name": name, "type": kind} for name, kind in zip("abcd", kinds, strict=True)]
    schema = {"type": "record", "name": "R", "namespace": "r", "fields": fields}
    city, street = "STRUCT<`city`: STRING>", "STRUCT<`street`: STRING>"
    assert avro.spark_type(avro.schema_of(json.dumps(schema))) == (
        f"STRUCT<`a`: {city}, `b`: {street}, `c`: {city}, `d`: {street}>"
    )


def test_a_logical_type_that_avro_does_not_have_is_ignored() -> None:
    for kind, logical in (("string", "custom"), ("string", "date"), ("long", "timestamp-nanos")):
        plain = avro.spark_type(kind)
        assert avro.spark_type({"type": kind, "logicalType": logical}) == plain


@pytest.mark.parametrize(
    "text",
    [
        "5", "null", "{}", '{"type": "record"}', '{"type": "record", "name": "R"}',
        '{"type": "array"}', '{"type": "bytes", "logicalType": "decimal"}', '"Missing"',
    ],
)  # fmt: skip
def test_what_is_no_avro_schema_is_said(text: str) -> None:
    with pytest.raises(OptionError, match="bodySchema is not an Avro schema"):
        avro.spark_type(avro.schema_of(text))


def test_avro_frames_writer_schemas_and_bytes_left_over(tmp_path: Path) -> None:
    old = {"type": "record", "name": "T", "fields": [{"name": "id", "type": "long"}]}
    new = {**old, "fields": [*old["fields"], {"name": "n", "type": "string", "default": "none"}]}
    body = encoded(json.dumps(old), {"id": 5})
    framed = b"\x00" + (42).to_bytes(4, "big") + body
    plain = avro.parser(json.dumps(old), {})
    assert plain(framed) == plain(body) == {"id": 5}
    with pytest.raises(ValueError, match="3 bytes are left over"):
        plain(body + b"abc")
    evolved = avro.parser(json.dumps(new), {"writerSchema": json.dumps(old)})
    assert evolved(body) == evolved(framed) == {"id": 5, "n": "none"}
    (tmp_path / "42.avsc").write_text(json.dumps(old))
    by_number = avro.parser(json.dumps(new), {"schemaRegistry": str(tmp_path)})
    assert by_number(framed) == {"id": 5, "n": "none"}
    with pytest.raises(ValueError, match="schema 7 cannot be read from"):
        by_number(b"\x00" + (7).to_bytes(4, "big") + body)


def test_a_body_that_can_be_read_with_and_without_a_frame_is_an_error() -> None:
    """Four numbers and a text: the schema's number in the frame gives the length of the text."""
    fields = [{"name": name, "type": "int"} for name in "abcd"] + [{"name": "s", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "T", "fields": fields})
    value = {"a": 1, "b": 2, "c": 3, "d": 4, "s": "x" * 16}
    framed = b"\x00" + (42).to_bytes(4, "big") + encoded(schema, value)
    with pytest.raises(ValueError, match="schema 42 of a registry: set schemaRegistry"):
        avro.parser(schema, {})(framed)
    plain = avro.parser(schema, {"schemaRegistry": "none"})
    assert plain(framed)["a"] == 0
    assert plain(encoded(schema, value)) == value


def test_protobuf_frames_are_recognised() -> None:
    parse = parser("protobuf", {"bodySchema": SCHEMAS["protobuf"]})
    plain = protobuf_body(5)
    number = (42).to_bytes(4, "big")
    # The first type of the file, the same written out, and the second one in the first.
    for place in (b"\x00", b"\x02\x00", b"\x04\x00\x02"):
        assert parse(b"\x00" + number + place + plain) == parse(plain) == {"id": 5, "note": "n5"}
    endless = b"\x00" + number + b"\xff" * 11 + plain  # no number has more than ten bytes
    for cut in (b"\x00" + number, b"\x00" + number + b"\x04\x00", endless):
        with pytest.raises(ValueError, match="frame of a schema registry"):
            parse(cut)


def test_json_that_is_not_utf_8_is_a_bad_body() -> None:
    kind = pa.struct([("id", pa.string())])
    values, errors = json_rows.decode([b'{"id": "a"}', b'{"id": "\xff"}'], kind)
    assert values.to_pylist() == [{"id": "a"}, None]
    assert errors[0] is None
    assert "utf-8" in str(errors[1])


def test_json_values_are_those_of_a_reader_that_reads_one_by_one() -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
            ("sum", pa.decimal128(9, 2)), ("tags", pa.list_(pa.string())),
            ("in", pa.struct([("x", pa.float64())])),
        ]
    )  # fmt: skip
    good = [
        b'{"id": %d, "at": "2026-01-02T03:04:05.000678Z", "sum": "12.34", "other": [1]}' % n
        for n in range(40)
    ]
    values, errors = json_rows.decode(good, kind)
    assert errors == [None] * 40
    assert values.type == kind
    assert values[7].as_py()["id"] == 7
    assert values[7].as_py()["sum"] == Decimal("12.34")
    assert values[7].as_py()["at"] == datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    odd = [b'{"id": 1}\n{"id": 2}', b'{"id": "x"}', b"[1]", b"", b'{"sum": 1.25}', b'{\n"id":\n3}']
    mixed = good[:9] + odd + good[9:]
    values, errors = json_rows.decode(mixed, kind)
    assert [row for row, error in enumerate(errors) if error] == [9, 10, 11, 12]
    assert [values[row].as_py() for row in range(9, 13)] == [None] * 4
    assert values[13].as_py()["sum"] == Decimal("1.25")
    assert values[14].as_py()["id"] == 3
    assert [v["id"] for v in values.to_pylist()[15:]] == list(range(9, 40))
    assert json_rows.decode([], kind)[1] == []
