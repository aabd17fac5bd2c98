"""One JSON value as a value of an Arrow type: exactly, or an error that says what does not fit.

Arrow's own conversion of Python values cuts 3.5 to 3, takes a list for an object and any number for
a moment, and knows no text for dates. Here nothing is rounded and nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

Convert = Callable[[Any], Any]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def converter(kind: pa.DataType) -> Convert:
    """Return what makes values that `pa.array` takes of what `json.loads` returns."""
    inner = _by_kind(kind)
    return lambda value: None if value is None else inner(value)


def _by_kind(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_struct(kind):
        return _struct(kind)
    if types.is_list(kind):
        one = converter(kind.value_type)
        return lambda value: [one(item) for item in _of(value, list, "an array")]
    if types.is_map(kind):
        one = converter(kind.item_type)
        return lambda value: [
            (key, one(item)) for key, item in _of(value, dict, "an object").items()
        ]
    return _scalar(kind)


def _struct(kind: pa.DataType) -> Convert:
    fields = [(field.name, converter(field.type)) for field in kind]

    def convert(value: Any) -> dict[str, Any]:
        found = _of(value, dict, "an object")
        return {name: one(found.get(name)) for name, one in fields}

    return convert


def _scalar(kind: pa.DataType) -> Convert:
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: _of(value, bool, "true or false")
    if types.is_integer(kind):
        return _whole
    if types.is_floating(kind):
        return lambda value: float(_number(value))
    if types.is_decimal(kind):
        return _decimal
    if types.is_date(kind):
        return lambda value: _moment(value).date()
    if types.is_timestamp(kind):
        return _moment if kind.tz else lambda value: _moment(value).replace(tzinfo=None)
    if types.is_string(kind) or types.is_binary(kind):
        return lambda value: _of(value, str, "a text")
    return lambda value: value


def _refusal(value: Any, wanted: str) -> ValueError:
    shown = str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)
    return ValueError(f"{shown[:100]}{'...' if len(shown) > 100 else ''} is not {wanted}")


def _of(value: Any, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise _refusal(value, wanted)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _refusal(value, "a number")
    return value


def _whole(value: Any) -> int:
    number = _number(value)
    try:
        if (whole := int(number)) == number:
            return whole
    except (ValueError, OverflowError):  # NaN, Infinity
        pass
    raise _refusal(value, "a whole number")


def _decimal(value: Any) -> Decimal:
    """Decimals may be text, because many readers of JSON take every number for a double."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    return Decimal(_number(value))


def _moment(value: Any) -> datetime:
    """Read ISO 8601; what names no zone is UTC, and what is below a microsecond is cut off."""
    try:
        found = datetime.fromisoformat(_of(value, str, "a text"))
    except ValueError:
        raise _refusal(value, "a date or time of ISO 8601, such as 2026-01-02T03:04:05Z") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
