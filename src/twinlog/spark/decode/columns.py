"""The columns of a message table: names, Spark types, Arrow types, in their fixed order.

Spark checks a source's Arrow batches against its own schema type by type, so the Arrow types here
are those that Spark derives from the DDL: `binary` (never `large_binary`), `timestamp[us, UTC]`,
`map<string, string>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import pyarrow as pa

from twinlog.spark.errors import OptionError, nearest

_MAP = pa.map_(pa.string(), pa.string())
_TIME = pa.timestamp("us", "UTC")

COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "topic": ("STRING", pa.string()),
    "broker": ("STRING", pa.string()),
    "queue_id": ("INT", pa.int32()),
    "queue_offset": ("BIGINT", pa.int64()),
    "phys_offset": ("BIGINT", pa.int64()),
    "store_size": ("INT", pa.int32()),
    "born_ts": ("TIMESTAMP", _TIME),
    "store_ts": ("TIMESTAMP", _TIME),
    "born_host": ("STRING", pa.string()),
    "store_host": ("STRING", pa.string()),
    "msg_id": ("STRING", pa.string()),
    "keys": ("STRING", pa.string()),
    "tags": ("STRING", pa.string()),
    "flag": ("INT", pa.int32()),
    "sys_flag": ("INT", pa.int32()),
    "reconsume_times": ("INT", pa.int32()),
    "prepared_tx_offset": ("BIGINT", pa.int64()),
    "body_crc": ("INT", pa.int32()),
    "properties": ("MAP<STRING,STRING>", _MAP),
    "body": ("BINARY", pa.binary()),
}
ALL_COLUMNS: tuple[str, ...] = tuple(COLUMNS)
PROPERTY_COLUMNS = {"msg_id": "UNIQ_KEY", "keys": "KEYS", "tags": "TAGS"}


def ddl(names: Iterable[str] = ALL_COLUMNS) -> str:
    """Return the Spark DDL of these columns."""
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


def exact_ddl(names: Iterable[str] = ALL_COLUMNS) -> str:
    """Return the DDL that also says which columns every message has.

    Spark asks every value of a nullable column whether it is null, twice: a fifth of a whole read.
    """
    always = ((name, "" if name in PROPERTY_COLUMNS else " NOT NULL") for name in names)
    return ", ".join(f"{name} {COLUMNS[name][0]}{rule}" for name, rule in always)


def shaped(batch: pa.RecordBatch, shape: pa.Schema) -> pa.RecordBatch:
    """Return the same columns under Spark's schema, which differs in what may be null.

    Raises:
        OptionError: the user's schema says NOT NULL of a column that has nulls.
    """
    for field, column in zip(shape, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise OptionError(
                "BAD_COLUMN",
                f"the schema says that {field.name} is NOT NULL, but {column.null_count} of "
                f"{len(column)} messages have no value there; remove NOT NULL",
            )
    return pa.RecordBatch.from_arrays(batch.columns, schema=shape)


def arrow_schema(names: Iterable[str] = ALL_COLUMNS) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return _schema(tuple(names))


@lru_cache(maxsize=256)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, COLUMNS[name][1]) for name in names])


def check_columns(names: Sequence[str], extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Return `names` if every one is known (or in `extra`).

    Raises:
        OptionError: a name is not known; the message holds the nearest one.
    """
    known = [*ALL_COLUMNS, *extra]
    for name in names:
        if name not in known:
            raise OptionError(
                "BAD_COLUMN",
                f"there is no column {name!r}{nearest(name, known)} (columns: {', '.join(known)})",
            )
    return tuple(names)
