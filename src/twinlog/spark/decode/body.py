"""Bodies as typed columns: JSON, Avro, Protobuf, with dead letters for what cannot be decoded.

With `decodeBody` the column `body` has the type of `bodySchema` and a column `body_error` says why
a body could not be decoded (null where it could). `decodeMode`: `fail` ends the query with the
row's offsets, `null` gives a null body, `deadletter` gives a null body and writes the whole row to
Parquet under `deadLetterPath`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinlog.spark.dead_letters import bury
from twinlog.spark.decode import avro, json_rows, protobuf
from twinlog.spark.decode.columns import ALL_COLUMNS, arrow_schema
from twinlog.spark.errors import OptionError, RecordCorruptError
from twinlog.spark.places import is_local

KINDS = ("none", "json", "avro", "protobuf")
MODES = ("fail", "null", "deadletter")
Parse = Callable[[bytes], Any]


_DESCRIPTORS = "bodyDescriptors"
"""The descriptor set of `bodySchemaPath` in base64: workers get it among the options."""


def with_schema(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options with what `bodySchemaPath` holds: workers may not have the file."""
    options = dict(raw)
    path = options.pop("bodySchemaPath", None)
    if path is None:
        return options
    try:
        data = Path(path).read_bytes()
        if _kind(raw) == "protobuf":
            options[_DESCRIPTORS] = base64.b64encode(data).decode()
        else:
            options.setdefault("bodySchema", data.decode())
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError("BAD_OPTION", f"option bodySchemaPath: {error}") from error
    return options


def _schema_text(raw: Mapping[str, str]) -> str:
    if "bodySchema" in raw:
        return raw["bodySchema"]
    if _DESCRIPTORS in raw:
        raise OptionError(
            "BAD_OPTION",
            "decodeBody=protobuf needs the name of the message in the option bodySchema",
        )
    raise OptionError("BAD_OPTION", "decodeBody needs the option bodySchema or bodySchemaPath")


def _kind(raw: Mapping[str, str]) -> str:
    kind = raw.get("decodeBody", "none").lower()
    if kind not in KINDS:
        raise OptionError(
            "BAD_OPTION", f"option decodeBody={kind!r}: it must be one of {', '.join(KINDS)}"
        )
    return kind


def body_columns(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that decoding adds or changes, with their Spark types."""
    kind = _kind(raw)
    if kind == "none":
        return {}
    mode = raw.get("decodeMode", "fail").lower()
    if mode not in MODES:
        raise OptionError(
            "BAD_OPTION", f"option decodeMode={mode!r}: it must be one of {', '.join(MODES)}"
        )
    if mode == "deadletter" and "deadLetterPath" not in raw:
        raise OptionError("BAD_OPTION", "decodeMode=deadletter needs the option deadLetterPath")
    is_local(raw.get("deadLetterPath", ""))
    return {"body": _spark_type(kind, raw), "body_error": "STRING"}


def _spark_type(kind: str, raw: Mapping[str, str]) -> str:
    text = _schema_text(raw).strip()
    if kind == "json":
        return text if text.upper().startswith("STRUCT<") else f"STRUCT<{text}>"
    if kind == "avro":
        return avro.spark_type(avro.schema_of(text))
    message = protobuf.message_class(text, raw.get(_DESCRIPTORS, ""))
    return protobuf.spark_type(message.DESCRIPTOR)


def parser(kind: str, raw: Mapping[str, str]) -> Parse:
    """Return the function that turns one body into Python values."""
    if kind == "json":
        return json.loads
    text = _schema_text(raw)
    if kind == "avro":
        return avro.parser(text, raw)
    return protobuf.parser(text, raw.get(_DESCRIPTORS, ""))


def first_error(errors: Sequence[str | None]) -> int | None:
    """Return the place of the first error."""
    return next((row for row, error in enumerate(errors) if error is not None), None)


class BodyDecoder:
    """Decodes the bodies of batches."""

    def __init__(
        self, raw: Mapping[str, str], columns: tuple[str, ...], arrow_type: pa.DataType | None
    ) -> None:
        self.columns = columns
        self.kind = _kind(raw)
        self.mode = raw.get("decodeMode", "fail").lower()
        self.dead_letters = raw.get("deadLetterPath", "")
        self.arrow_type = arrow_type  # None when the column is not wanted
        self.parse = parser(self.kind, raw)
        plain = tuple(name for name in columns if name not in ("body", "body_error"))
        if self.mode == "deadletter":
            plain = tuple(name for name in ALL_COLUMNS if name != "body")
        self.needed = (*plain, "body")
        if not {"topic", "phys_offset"} <= set(self.needed):
            self.needed = tuple(dict.fromkeys(("topic", "phys_offset", *self.needed)))

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replace the bodies of one batch."""
        bodies = batch.column("body").to_pylist()
        if self.kind == "json" and self.arrow_type is not None:
            values, errors = json_rows.decode(bodies, self.arrow_type)
            if self.mode == "fail" and (bad := first_error(errors)) is not None:
                raise self._failure(batch, bad, str(errors[bad]))
        else:
            pairs = [self._one(batch, row, body) for row, body in enumerate(bodies)]
            values, errors = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        if self.mode == "deadletter" and any(errors):
            self._bury(batch, errors)
        arrays = {"body_error": pa.array(errors, pa.string())}
        if self.arrow_type is not None:
            is_ready = isinstance(values, pa.Array)
            arrays["body"] = values if is_ready else pa.array(values, self.arrow_type)
        chosen = [arrays[n] if n in arrays else batch.column(n) for n in self.columns]
        return pa.RecordBatch.from_arrays(chosen, list(self.columns))

    def _one(self, batch: pa.RecordBatch, row: int, body: bytes) -> tuple[Any, str | None]:
        try:
            value = self.parse(body)
            if self.arrow_type is not None:
                pa.array([value], self.arrow_type)
        except Exception as error:  # whatever a codec of another package raises is a bad body
            reason = f"{type(error).__name__}: {error}"
            if self.mode == "fail":
                raise self._failure(batch, row, reason) from error
            return None, reason
        return value, None

    def _failure(self, batch: pa.RecordBatch, row: int, reason: str) -> RecordCorruptError:
        topic = batch.column("topic")[row].as_py()
        at = batch.column("phys_offset")[row].as_py()
        return RecordCorruptError(
            "BODY_UNDECODABLE",
            f"{topic}, record at physical offset {at}: the body does not fit bodySchema "
            f"({self.kind}): {reason}; set decodeMode=null or deadletter to continue",
        )

    def _bury(self, batch: pa.RecordBatch, errors: list[str | None]) -> None:
        """Write dead letters; the name follows from the rows, so a task done again overwrites."""
        keep = [row for row, error in enumerate(errors) if error is not None]
        names = [name for name in ALL_COLUMNS if name in batch.schema.names]
        rows = pa.Table.from_batches([batch.select(names).take(pa.array(keep))])
        place = (
            f"{batch.column('topic')[keep[0]]}-{batch.column('phys_offset')[keep[0]]}-{len(keep)}"
        )
        reasons = [str(errors[row]) for row in keep]
        bury(self.dead_letters, rows.cast(arrow_schema(names)), reasons, place)
