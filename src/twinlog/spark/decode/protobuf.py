"""Protobuf bodies: a message's fields as typed columns.

`bodySchema` names the message: `module:Message` of a generated class that the workers can import,
or `package.Message` of the descriptor set in `bodySchemaPath` (`protoc --include_imports
--descriptor_set_out=FILE`), which travels with the job. A field that is not set is null where
Protobuf can tell (messages, `optional`, members of a `oneof`), and otherwise its default, as in
every other language.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from twinlog.spark.decode import avro
from twinlog.spark.errors import DECODE_YOURSELF, OptionError

if TYPE_CHECKING:  # An extra: whoever reads other bodies need not have it.
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

    Convert = Callable[[Any], Any]

# By `FieldDescriptor.type`, whose numbers are fixed by the language.
SCALARS = {
    1: "DOUBLE", 2: "FLOAT", 3: "BIGINT", 4: "DECIMAL(20,0)", 5: "INT", 6: "DECIMAL(20,0)",
    7: "BIGINT", 8: "BOOLEAN", 9: "STRING", 12: "BINARY", 13: "BIGINT", 14: "STRING",
    15: "INT", 16: "BIGINT", 17: "INT", 18: "BIGINT",
}  # fmt: skip
_UINT64 = (4, 6)
_ENUM = 14
_MESSAGES = (10, 11)
_VARINT_MOST = 10  # bytes of a number of 64 bits
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_FREE = frozenset(f"google.protobuf.{kind}" for kind in ("Any", "Struct", "Value", "ListValue"))
"""Messages whose fields no schema knows: they are given as JSON text."""
_WELL_KNOWN = {
    "google.protobuf.Timestamp": "TIMESTAMP",
    "google.protobuf.Duration": "INTERVAL DAY TO SECOND",
    **dict.fromkeys(_FREE, "STRING"),
}


def message_class(schema: str, descriptors: str = "") -> Any:
    """Return the class of the message that `schema` names.

    Args:
        schema: `module:Message`, or the message's full name in `descriptors`.
        descriptors: a `FileDescriptorSet` in base64, or nothing.
    """
    try:
        from google.protobuf import descriptor_pb2 as _  # noqa: F401 - asked for by its absence
    except ImportError as error:
        raise OptionError(
            "BAD_OPTION",
            "decodeBody=protobuf needs the package protobuf: run pip install 'twinlog[protobuf]'",
        ) from error
    name = schema.strip()
    return _described(name, descriptors) if descriptors else _imported(name)


def _imported(name: str) -> Any:
    module, _, message = name.partition(":")
    try:
        return getattr(importlib.import_module(module), message)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            "BAD_OPTION",
            f"bodySchema={name!r} must be module:Message of a generated class, or the name of a "
            f"message with its descriptor set in bodySchemaPath: {error}",
        ) from error


def _described(name: str, descriptors: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(descriptors))
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except Exception as error:  # the package's own errors have no common base
        raise OptionError(
            "BAD_OPTION",
            f"bodySchemaPath is not a descriptor set that has the message {name!r}, as `protoc "
            f"--include_imports --descriptor_set_out=FILE` writes it: {error}",
        ) from error


def spark_type(message: Descriptor, outer: tuple[str, ...] = ()) -> str:
    """Return the Spark type of a message."""
    name = message.full_name
    if name in _WELL_KNOWN:
        return _WELL_KNOWN[name]
    if name in _WRAPPERS:
        return SCALARS[message.fields_by_name["value"].type]
    if name in outer:
        raise OptionError(
            "BAD_OPTION",
            f"the Protobuf message {name} contains itself and has no Spark type: {DECODE_YOURSELF}",
        )
    inner = (*outer, name)
    fields = [f"`{field.name}`: {_field_type(field, inner)}" for field in message.fields]
    if not fields:
        raise OptionError(
            "BAD_OPTION",
            f"the Protobuf message {name} has no fields and no Spark type: {DECODE_YOURSELF}",
        )
    return f"STRUCT<{', '.join(fields)}>"


def _field_type(field: FieldDescriptor, outer: tuple[str, ...]) -> str:
    if _is_map(field):
        keys, values = (field.message_type.fields_by_name[n] for n in ("key", "value"))
        return f"MAP<{_single_type(keys, outer)}, {_single_type(values, outer)}>"
    single = _single_type(field, outer)
    return f"ARRAY<{single}>" if _is_repeated(field) else single


def _single_type(field: FieldDescriptor, outer: tuple[str, ...]) -> str:
    if field.type in _MESSAGES:
        return spark_type(field.message_type, outer)
    return SCALARS[field.type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.type in _MESSAGES and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: FieldDescriptor) -> bool:
    # Releases before 6.30 have only the number, which later ones warn of.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == 3)


def parser(schema: str, descriptors: str = "") -> Callable[[bytes], Any]:
    """Return the function that turns one body into Python values of `spark_type`."""
    kind = message_class(schema, descriptors)
    spark_type(kind.DESCRIPTOR)  # Refuses what the next line would not end with.
    convert = _message(kind.DESCRIPTOR)

    def parse(body: bytes) -> Any:
        return convert(kind.FromString(body[begin(body) :]))

    return parse


def _message(message: Descriptor) -> Convert:
    """Return what makes Python values of a message; made once, so that rows cost little."""
    name = message.full_name
    if name == "google.protobuf.Timestamp":
        return _timestamp
    if name == "google.protobuf.Duration":
        return lambda value: value.ToTimedelta()
    if name in _FREE:
        return _as_json
    if name in _WRAPPERS:
        inner = _single(message.fields_by_name["value"])
        return lambda value: inner(value.value)
    fields = [(field.name, field.has_presence, _value(field)) for field in message.fields]

    def convert(value: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not value.HasField(name) else one(getattr(value, name))
            for name, has_presence, one in fields
        }

    return convert


def _value(field: FieldDescriptor) -> Convert:
    if _is_map(field):
        keys, values = (_single(field.message_type.fields_by_name[n]) for n in ("key", "value"))
        return lambda pairs: [(keys(key), values(pairs[key])) for key in pairs]
    single = _single(field)
    return (lambda items: [single(item) for item in items]) if _is_repeated(field) else single


def _single(field: FieldDescriptor) -> Convert:
    if field.type in _MESSAGES:
        return _message(field.message_type)
    if field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        return lambda number: names.get(number, str(number))  # A later schema's value.
    return Decimal if field.type in _UINT64 else _same


def _same(value: Any) -> Any:
    return value


def _timestamp(value: Any) -> Any:
    from datetime import UTC

    return value.ToDatetime(tzinfo=UTC)


def _as_json(value: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(value, preserving_proto_field_name=True, indent=None))


def begin(body: bytes) -> int:
    """Return where the message begins: after the frame of a schema registry's clients.

    A zero byte begins no message. After the schema's number comes where in its file the message's
    type is: how many numbers, and those; a single zero stands for the first type.
    """
    if not avro.is_framed(body):
        return 0
    count, at = _varint(body, avro.FRAME_SIZE)
    for _ in range(count >> 1):  # zigzag, never negative
        _, at = _varint(body, at)
    return at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(body[at : at + _VARINT_MOST]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError(
        f"it begins like the frame of a schema registry, but no valid number begins at byte {at}"
    )
