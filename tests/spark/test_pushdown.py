"""Filters that are pushed: the rows are those that an oracle keeps, row by row."""

from __future__ import annotations

import operator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource as ds
from storefiles import StoreFiles

from twinlog.spark.decode.columns import arrow_schema
from twinlog.spark.plan.predicates import is_exact
from twinlog.spark.source import PushdownReader

OPERATORS = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
}
NAMES = ["topic", "broker", "queue_id", "queue_offset", "tags", "keys", "msg_id", "store_ts"]


def decide(item: Any, row: dict[str, Any]) -> bool | None:
    """SQL's answer: true, false or null."""
    kind = type(item).__name__
    if kind == "Not":
        inner = decide(item.child, row)
        return None if inner is None else not inner
    found = row[item.attribute[0]]
    if kind in ("IsNull", "IsNotNull"):
        return (found is None) == (kind == "IsNull")
    if kind == "EqualNullSafe":
        return bool(found == item.value)
    if kind == "In":
        if found is None or (found not in item.value and None in item.value):
            return None
        return found in item.value
    if found is None or item.value is None:
        return None
    if kind in OPERATORS:
        return bool(OPERATORS[kind](found, item.value))
    tests = {"StringStartsWith": str.startswith, "StringEndsWith": str.endswith}
    return tests.get(kind, str.__contains__)(found, item.value)


def some_filter(random: Random, rows: list[dict[str, Any]]) -> Any:
    name = random.choice(NAMES)
    value = random.choice(rows)[name]
    kinds = [*OPERATORS, "EqualNullSafe", "In", "IsNull", "IsNotNull"]
    if isinstance(value, str):
        kinds += ["StringStartsWith", "StringEndsWith", "StringContains"] * 2
    kind = random.choice(kinds)
    if kind == "In":
        others = [random.choice(rows)[name] for _ in range(3)]
        made: Any = ds.In((name,), tuple(others))
    elif kind in ("IsNull", "IsNotNull"):
        made = getattr(ds, kind)((name,))
    elif kind.startswith("String"):
        cut = random.randrange(len(value) + 1)
        made = getattr(ds, kind)((name,), value[cut:] if kind.endswith("EndsWith") else value[:cut])
    else:
        made = getattr(ds, kind)((name,), value)
    return ds.Not(made) if random.random() < 0.2 else made


def read(options: dict[str, str], filters: list[Any]) -> tuple[list[dict[str, Any]], list[Any]]:
    """The rows that a pushing reader gives, and the filters that it leaves to Spark."""
    reader = PushdownReader(options, arrow_schema())
    left = list(reader.pushFilters(filters))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = pa.Table.from_batches(batches, arrow_schema()).to_pylist()
    kept = [row for row in rows if all(decide(item, row) for item in left)]
    return sorted(kept, key=lambda row: row["phys_offset"]), left


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    """Rows whose store times step back twice."""
    made = StoreFiles(tmp_path / "store", segment_size=1 << 14)
    for _ in range(3):
        made.fill(150)
        made.put("orders", 1, b"no key, no tag")
        made.now -= 120
    return made


def test_any_filters_keep_the_rows_that_an_oracle_keeps(files: StoreFiles) -> None:
    options = {"path": str(files.root), "subscribePattern": ".*", "filterPushdown": "true"}
    rows, _ = read(options, [])
    assert len(rows) == 453
    random = Random(7)
    kept_all = 0
    for _ in range(250):
        filters = [some_filter(random, rows) for _ in range(random.randint(1, 3))]
        wanted = [row for row in rows if all(decide(item, row) for item in filters)]
        found, left = read(options, filters)
        assert found == wanted, filters
        assert all(not is_exact(item) for item in left)
        kept_all += bool(wanted)
    assert kept_all > 60


def test_times_that_step_back_lose_no_rows(files: StoreFiles) -> None:
    options = {"path": str(files.root), "subscribe": "orders", "filterPushdown": "true"}
    rows, _ = read(options, [])
    times = [row["store_ts"] for row in rows]
    assert times != sorted(times)
    for moment in sorted(set(times))[::20]:
        for kind in ("GreaterThanOrEqual", "LessThan"):
            item = getattr(ds, kind)(("store_ts",), moment)
            assert read(options, [item])[0] == [row for row in rows if decide(item, row)]
    aware = times[0] + timedelta(days=1)
    assert read(options, [ds.GreaterThan(("store_ts",), aware)])[0] == []


def test_a_tag_is_taken_as_the_option_is(files: StoreFiles) -> None:
    options = {"path": str(files.root), "subscribe": "orders", "tags": "a || b"}
    both, _ = read(options, [ds.In(("tags",), ("b", "c"))])
    assert {row["tags"] for row in both} == {"b"}
    assert read(options, [ds.EqualTo(("tags",), "c")])[0] == []
    odd, _ = read({"path": str(files.root), "subscribe": "orders"}, [ds.EqualTo(("tags",), "*")])
    assert odd == []
