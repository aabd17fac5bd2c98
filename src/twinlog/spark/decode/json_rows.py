"""JSON bodies to Arrow by Arrow's own reader, many at a time.

Dates, timestamps (ISO 8601) and decimals are read as their types. A batch that is refused is halved
until few bodies are left; those get a second try one by one by Python's reader, which knows forms
that Arrow's does not (maps, decimals with an exponent), and whose error is the reason.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from twinlog.spark.decode.json_values import converter

FEW = 32  # Arrow's reader costs as much for one body as Python's does for so many.


def decode(bodies: Sequence[bytes], kind: pa.DataType) -> tuple[pa.Array, list[str | None]]:
    """Return the values, null where a body is wrong, and the reasons."""
    parts: list[pa.Array] = []
    errors: list[str | None] = []
    _decode(bodies, kind, _by_python(kind), parts, errors)
    return (pa.concat_arrays(parts) if parts else pa.array([], kind)), errors


One = Callable[[bytes], tuple[pa.Array, str | None]]


def _decode(
    bodies: Sequence[bytes],
    kind: pa.DataType,
    one: One,
    parts: list[pa.Array],
    errors: list[str | None],
) -> None:
    if not bodies:
        return
    found = _by_arrow(bodies, kind)
    if found is not None:
        parts.append(found)
        errors.extend([None] * len(bodies))
    elif len(bodies) <= FEW:
        for value, error in map(one, bodies):
            parts.append(value)
            errors.append(error)
    else:
        middle = len(bodies) // 2
        _decode(bodies[:middle], kind, one, parts, errors)
        _decode(bodies[middle:], kind, one, parts, errors)


def _read_as(kind: pa.DataType) -> pa.DataType:
    """Return the type by which Arrow reads a type: it takes a number for a date, but no text."""
    if pa.types.is_date(kind):
        return pa.timestamp("s")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_read_as(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_read_as(kind.value_type)))
    return kind


def _by_arrow(bodies: Sequence[bytes], kind: pa.DataType) -> pa.Array | None:
    from pyarrow import json as arrow_json

    if not all(body.startswith(b"{") and body.endswith(b"}") for body in bodies):
        return None
    options = arrow_json.ParseOptions(
        explicit_schema=pa.schema(list(_read_as(kind))),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    data = b"\n".join(bodies)
    block = arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    try:
        table = arrow_json.read_json(io.BytesIO(data), block, options)
        if table.num_rows != len(bodies):
            return None
        shape = pa.schema(list(kind))
        found = table.cast(shape).to_struct_array().combine_chunks().cast(kind)
        found.validate(full=True)  # it takes strings that are not UTF-8
        return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return None


def _by_python(kind: pa.DataType) -> One:
    convert = converter(kind)
    parse_float = Decimal if _has_decimal(kind) else None

    def one(body: bytes) -> tuple[pa.Array, str | None]:
        try:
            value: Any = convert(json.loads(body, parse_float=parse_float))
            return pa.array([value], kind), None
        except Exception as error:  # whatever is wrong with a body is its reason
            return pa.nulls(1, kind), f"{type(error).__name__}: {error}"

    return one


def _has_decimal(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(
        _has_decimal(kind.field(number).type) for number in range(kind.num_fields)
    )
