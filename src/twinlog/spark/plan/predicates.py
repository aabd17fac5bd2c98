"""Filters of Spark's as tests of Arrow batches, exactly as Spark would decide them.

A filter that is tested here is not tested again by Spark and is named in `explain()`. Comparisons
with null are null, and a row whose filter is null does not pass: Arrow and SQL agree about both.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from twinlog.spark.decode.columns import COLUMNS

COMPARISONS = {
    "EqualTo": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
}
TEXT = {
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "match_substring",
}
SCALARS = frozenset(name for name in COLUMNS if name not in ("properties", "body"))


def is_exact(item: Any) -> bool:
    """Say whether `mask_of` can decide a filter."""
    kind = type(item).__name__
    if kind == "Not":
        return _is_exact_plain(item.child) and not _has_null(item.child)
    return _is_exact_plain(item)


def _is_exact_plain(item: Any) -> bool:
    kind = type(item).__name__
    column = item.attribute[0] if len(getattr(item, "attribute", ())) == 1 else None
    if column not in SCALARS:
        return False
    if kind in TEXT:
        return COLUMNS[column][0] == "STRING" and isinstance(item.value, str)
    if kind in ("IsNull", "IsNotNull"):
        return True
    values = item.value if kind == "In" else [item.value]
    is_known = kind in COMPARISONS or kind in ("In", "EqualNullSafe")
    return is_known and all(_fits(column, value) for value in values if value is not None)


def _has_null(item: Any) -> bool:
    """Say whether its value holds null: its negation passes nothing, which needs no speed."""
    value: Any = getattr(item, "value", 0)
    return value is None or (type(item).__name__ == "In" and None in value)


def _fits(column: str, value: Any) -> bool:
    kind = COLUMNS[column][0]
    if kind == "STRING":
        return isinstance(value, str)
    if kind == "TIMESTAMP":
        return isinstance(value, datetime)
    return type(value) is int


def mask_of(item: Any, batch: pa.RecordBatch) -> Any:
    """Return which rows pass a filter that is exact."""
    import pyarrow.compute as pc

    kind = type(item).__name__
    if kind == "Not":
        return pc.invert(mask_of(item.child, batch))
    values = batch.column(item.attribute[0])
    if kind in TEXT:
        return getattr(pc, TEXT[kind])(values, item.value)
    if kind in ("IsNull", "IsNotNull"):
        return pc.is_null(values) if kind == "IsNull" else pc.is_valid(values)
    if kind == "In":
        wanted = [_arrow(value) for value in item.value if value is not None]
        found = pc.is_in(values, pa.array(wanted, values.type))
        return pc.if_else(pc.is_valid(values), found, pa.scalar(None, pa.bool_()))
    if kind == "EqualNullSafe":
        if item.value is None:
            return pc.is_null(values)
        return pc.fill_null(pc.equal(values, pa.scalar(_arrow(item.value), values.type)), False)
    return getattr(pc, COMPARISONS[kind])(values, pa.scalar(_arrow(item.value), values.type))


def _arrow(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def filtered(batch: pa.RecordBatch, filters: Sequence[Any]) -> pa.RecordBatch:
    """Keep the rows that pass every filter."""
    for item in filters:
        batch = batch.filter(mask_of(item, batch))
    return batch
