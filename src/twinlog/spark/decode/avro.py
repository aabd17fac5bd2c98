"""Avro bodies: types, names, writer and reader schemas, and the framing of a schema registry.

A body is the value itself, or (what registries' clients write) a zero byte, the number of the
writer's schema in four bytes, and the value. It must be used up to its last byte: what decodes and
leaves something over was written with another schema.
"""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from twinlog.spark.errors import DECODE_YOURSELF, OptionError

TYPES = {
    "null": "STRING", "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT",
    "double": "DOUBLE", "bytes": "BINARY", "string": "STRING", "enum": "STRING", "fixed": "BINARY",
}  # fmt: skip
# By the type below: elsewhere a logical type means nothing, and the type below counts.
LOGICAL = {
    "int-date": "DATE",
    "long-timestamp-millis": "TIMESTAMP", "long-timestamp-micros": "TIMESTAMP",
    "long-local-timestamp-millis": "TIMESTAMP_NTZ", "long-local-timestamp-micros": "TIMESTAMP_NTZ",
    "string-uuid": "STRING",
}  # fmt: skip
DECIMALS = ("bytes-decimal", "fixed-decimal")
NOT_IN_SPARK = ("int-time-millis", "long-time-micros")
FRAME_SIZE = 5
NO_REGISTRY = "none"
REGISTRY_SECONDS = 10


def schema_of(text: str, option: str = "bodySchema") -> Any:
    """Read a schema's text.

    Raises:
        OptionError: it is not JSON, or not a schema.
    """
    try:
        schema = json.loads(text)
        _fastavro().parse_schema(schema)
    except OptionError:
        raise
    except Exception as error:  # the package raises KeyError and TypeError too
        raise OptionError(
            "BAD_OPTION", f"{option} is not an Avro schema: {type(error).__name__}: {error}"
        ) from error
    return schema


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise OptionError(
            "BAD_OPTION",
            "decodeBody=avro needs the package fastavro: run pip install 'twinlog[avro]'",
        ) from error
    return fastavro


def spark_type(schema: Any, known: dict[str, str] | None = None, space: str = "") -> str:
    """Return the Spark type of a schema.

    Args:
        schema: the schema, or the name of a type.
        known: Spark types of the named types so far, by their full names.
        space: the namespace of names that have none.
    """
    names: dict[str, str] = {} if known is None else known
    if isinstance(schema, list):
        rest = [part for part in schema if part != "null"]
        if len(rest) != 1:
            raise OptionError(
                "BAD_OPTION", f"an Avro union of {rest} has no Spark type: {DECODE_YOURSELF}"
            )
        return spark_type(rest[0], names, space)
    kind = _part(schema, "type") if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return spark_type(kind, names, space)
    if isinstance(schema, dict):
        if kind == "array":
            return f"ARRAY<{spark_type(_part(schema, 'items'), names, space)}>"
        if kind == "map":
            return f"MAP<STRING, {spark_type(_part(schema, 'values'), names, space)}>"
        if kind in ("record", "enum", "fixed"):
            return _named(schema, kind, names, space)
        if found := _logical(schema, kind):
            return found
    known_type = TYPES.get(kind) or names.get(_full_name(kind, space)) or names.get(kind)
    if not known_type:
        raise OptionError(
            "BAD_OPTION", f"the Avro type {kind!r} has no Spark type: {DECODE_YOURSELF}"
        )
    return known_type


def _part(schema: Mapping[str, Any], name: str) -> Any:
    if name not in schema:
        what = f"{schema.get('type', 'type')} {schema.get('name', '')}".strip()
        raise OptionError("BAD_OPTION", f"bodySchema is not an Avro schema: {what} lacks {name!r}")
    return schema[name]


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _named(schema: Mapping[str, Any], kind: str, names: dict[str, str], space: str) -> str:
    full = _full_name(str(_part(schema, "name")), str(schema.get("namespace", space)))
    found = _logical(schema, kind) or TYPES.get(kind, "")
    if kind == "record":
        inner = full.rpartition(".")[0]
        fields = [
            f"`{_part(field, 'name')}`: {spark_type(_part(field, 'type'), names, inner)}"
            for field in _part(schema, "fields")
        ]
        found = f"STRUCT<{', '.join(fields)}>"
    names[full] = found
    return found


def _logical(schema: Mapping[str, Any], kind: str) -> str | None:
    """Return the Spark type of a logical type; None: as the standard wants, it is to be ignored."""
    logical = f"{kind}-{schema.get('logicalType')}"
    if logical in DECIMALS:
        return f"DECIMAL({_part(schema, 'precision')},{schema.get('scale', 0)})"
    if logical in NOT_IN_SPARK:
        raise OptionError(
            "BAD_OPTION",
            f"the logical Avro type {schema['logicalType']!r} of {kind} has no Spark type: "
            f"{DECODE_YOURSELF}",
        )
    return LOGICAL.get(logical)


def parser(reader_text: str, raw: Mapping[str, str]) -> Callable[[bytes], Any]:
    """Return the function that turns one body into Python values."""
    fastavro = _fastavro()
    reader = fastavro.parse_schema(schema_of(reader_text))
    own = (
        fastavro.parse_schema(schema_of(raw["writerSchema"], "writerSchema"))
        if ("writerSchema" in raw)
        else reader
    )
    writers = Writers(raw.get("schemaRegistry"))

    def read(body: bytes, at: int, writer: Any) -> Any:
        stream = io.BytesIO(body)
        stream.seek(at)
        value = fastavro.schemaless_reader(stream, writer, reader)
        left = len(body) - stream.tell()
        if left:
            raise ValueError(
                f"{left} bytes are left over: the body was written with another schema"
            )
        return _plain(value)

    def parse(body: bytes) -> Any:
        if not is_framed(body) or writers.place == NO_REGISTRY:
            return read(body, 0, own)
        if writers.place is not None:
            return read(body, FRAME_SIZE, writers.get(int.from_bytes(body[1:FRAME_SIZE], "big")))
        try:
            inner = read(body, FRAME_SIZE, own)
        except Exception:
            return read(body, 0, own)
        return _unless_plain(inner, body, lambda: read(body, 0, own))

    return parse


def is_framed(body: bytes) -> bool:
    """Say whether a body may begin with a registry's frame."""
    return len(body) >= FRAME_SIZE and body[0] == 0


def _unless_plain(inner: Any, body: bytes, read: Callable[[], Any]) -> Any:
    """Return what is in the frame, unless the whole can be read too: then nobody can tell.

    Raises:
        ValueError: it can be read in both ways.
    """
    try:
        read()
    except Exception:
        return inner
    number = int.from_bytes(body[1:FRAME_SIZE], "big")
    raise ValueError(
        f"the body can be read both with bodySchema and as schema {number} of a registry: set "
        f"schemaRegistry to the registry, or to {NO_REGISTRY!r} if there is none"
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, UUID) else value


class Writers:
    """Schemas by their numbers: `ID.avsc` in a directory, or a registry's address."""

    def __init__(self, place: str | None) -> None:
        self.place = place
        self.known: dict[int, Any] = {}

    def get(self, number: int) -> Any:
        """Return a writer's schema.

        Raises:
            ValueError: the registry does not have it.
        """
        import fastavro

        if number not in self.known:
            self.known[number] = fastavro.parse_schema(schema_of(self._text(number), "a schema"))
        return self.known[number]

    def _text(self, number: int) -> str:
        assert self.place is not None
        try:
            if self.place.startswith(("http://", "https://")):
                address = f"{self.place.rstrip('/')}/schemas/ids/{number}"
                with urllib.request.urlopen(address, timeout=REGISTRY_SECONDS) as answer:
                    return str(json.loads(answer.read())["schema"])
            return (Path(self.place) / f"{number}.avsc").read_text("utf-8")
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(
                f"schema {number} cannot be read from {self.place}: {error}"
            ) from error
