"""Protobuf messages as typed columns: every kind of field, by a descriptor set or a class."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from storefiles import StoreFiles

from twinlog.spark.decode import protobuf
from twinlog.spark.errors import OptionError
from twinlog.spark.source import TwinlogDataSource

KINDS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7,
    "bool": 8, "string": 9, "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16,
    "sint32": 17, "sint64": 18,
}  # fmt: skip
RANGES = {
    "int64": (-(2**63), 2**63 - 1), "sint64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1),
    "sfixed64": (-(2**63), 2**63 - 1), "fixed64": (0, 2**64 - 1), "int32": (-(2**31), 2**31 - 1),
    "sint32": (-(2**31), 2**31 - 1), "sfixed32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1),
    "fixed32": (0, 2**32 - 1),
}  # fmt: skip
ENUM, MESSAGE, ONE, MANY = 14, 11, 1, 3


def described() -> descriptor_pb2.FileDescriptorSet:
    """What `protoc --include_imports --descriptor_set_out` writes for a message of all kinds."""
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", package="t", syntax="proto3")
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, duration_pb2, struct_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
        file.dependency.append(module.DESCRIPTOR.name)
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(("RED", "GREEN")):
        color.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=ONE)
    message = file.message_type.add(name="All")

    def add(name: str, kind: int, label: int = ONE, of: str = "") -> Any:
        field = message.field.add(name=name, number=len(message.field) + 1, type=kind, label=label)
        if of:
            field.type_name = of
        return field

    for name, kind in KINDS.items():
        add(f"{name}_one", kind)
        add(f"{name}_many", kind, MANY)
    add("color", ENUM, of=".t.Color")
    add("line", MESSAGE, of=".t.Line")
    add("lines", MESSAGE, MANY, ".t.Line")
    for name in ("Timestamp", "Duration", "Struct", "Int64Value"):
        add(name.lower(), MESSAGE, of=f".google.protobuf.{name}")
    for name, value_kind, of in (("counts", 3, ""), ("by_name", MESSAGE, ".t.Line")):
        entry = message.nested_type.add(name="".join(w.title() for w in name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=9, label=ONE)
        entry.field.add(name="value", number=2, type=value_kind, label=ONE, type_name=of or None)
        add(name, MESSAGE, MANY, f".t.All.{entry.name}")
    message.oneof_decl.add(name="paid")
    for name, kind in (("card", 9), ("cash", 3)):
        add(name, kind).oneof_index = 0
    message.oneof_decl.add(name="_note")
    note = add("note", 9)
    note.proto3_optional, note.oneof_index = True, 1
    files.file.append(file)
    return files


def class_of(files: descriptor_pb2.FileDescriptorSet, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def scalar(rng: random.Random, kind: str) -> Any:
    if kind in RANGES:
        low, high = RANGES[kind]
        return rng.choice([low, high, 0, rng.randint(low, high)])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return rng.choice(["", "é\x00", "x" * 300])
    if kind == "bytes":
        return rng.randbytes(rng.randint(0, 9))
    return rng.choice([0.0, -1.5, 2.0**100])


def shown(kind: str, value: Any) -> Any:
    return Decimal(value) if kind in ("uint64", "fixed64") else value


def example(rng: random.Random, kind: Any) -> tuple[Any, dict[str, Any]]:
    """A message and the row that it has to be, worked out from what was put into it."""
    message, row = kind(), {}
    for name in KINDS:
        one, many = scalar(rng, name), [scalar(rng, name) for _ in range(rng.randint(0, 3))]
        setattr(message, f"{name}_one", one)
        getattr(message, f"{name}_many").extend(many)
        row[f"{name}_one"] = shown(name, one)
        row[f"{name}_many"] = [shown(name, each) for each in many]
    message.color = rng.choice([0, 1, 7])
    row["color"] = {0: "RED", 1: "GREEN"}.get(message.color, "7")
    row |= dict.fromkeys(("line", "timestamp", "duration", "struct", "int64value", "card", "cash"))
    row |= {"lines": [], "counts": {}, "by_name": {}, "note": None}
    if rng.random() < 0.7:
        message.line.sku = "a"
        message.lines.add(sku="b")
        message.lines.add()
        row |= {"line": {"sku": "a"}, "lines": [{"sku": "b"}, {"sku": ""}]}
        message.timestamp.FromMicroseconds(1_700_000_000_123_456)
        row["timestamp"] = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
        message.duration.FromMicroseconds(-90_000_001)
        row["duration"] = timedelta(microseconds=-90_000_001)
        message.struct.update({"a": [1, None]})
        row["struct"] = '{"a": [1.0, null]}'
        message.int64value.value = 0
        row["int64value"] = 0
        message.counts["n"] = 5
        message.by_name["x"].sku = "y"
        row |= {"counts": {"n": 5}, "by_name": {"x": {"sku": "y"}}}
        message.cash = 0
        message.note = ""
        row |= {"cash": 0, "note": ""}
    return message, row


def plain(value: Any) -> Any:
    """A row of Spark as dictionaries and lists."""
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def test_every_kind_of_field_has_its_column(spark: Any, tmp_path: Path) -> None:
    files, rng = described(), random.Random(11)
    (tmp_path / "all.desc").write_bytes(files.SerializeToString())
    kind = class_of(files, "t.All")
    examples = [example(rng, kind) for _ in range(60)]
    store = StoreFiles(tmp_path / "store")
    for message, _ in examples:
        store.put(body=message.SerializeToString())
    options = {"path": str(store.root), "subscribe": "orders", "decodeBody": "protobuf"}
    described_by = {"bodySchema": "t.All", "bodySchemaPath": str(tmp_path / "all.desc")}
    frame = spark.read.format("twinlog").options(**options, **described_by).load()
    rows = frame.orderBy("queue_offset").select("body").collect()
    assert [plain(row.body) for row in rows] == [row for _, row in examples]
    reader = TwinlogDataSource({**options, **described_by}).reader(frame.schema)
    parts = reader.partitions()
    (tmp_path / "all.desc").unlink()  # As for a worker on another host.
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == len(examples)


@pytest.mark.parametrize(
    ("schema", "descriptors", "text"),
    [
        ("t.All", b"not a set", "descriptor set"),
        ("t.None", described().SerializeToString(), "t.None"),
        ("nowhere:Order", b"", "module:Message"),
        ("order_pb", b"", "module:Message"),
    ],
)
def test_a_schema_that_is_none_is_said(schema: str, descriptors: bytes, text: str) -> None:
    import base64

    with pytest.raises(OptionError, match=text):
        protobuf.message_class(schema, base64.b64encode(descriptors).decode())


def test_a_message_that_contains_itself_has_no_type() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", package="t", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="left", number=1, type=MESSAGE, label=ONE, type_name=".t.Tree")
    file.message_type.add(name="Empty")
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    for name, text in (("t.Tree", "contains itself"), ("t.Empty", "has no fields")):
        with pytest.raises(OptionError, match=text):
            protobuf.spark_type(class_of(files, name).DESCRIPTOR)
