"""Conditions of queries, generated: Spark keeps the rows that plain Python keeps.

Each with and without push-down. What Spark makes of a condition before a source sees it (constants,
casts, patterns, negations, OR) is part of the test.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from storefiles import StoreFiles
from test_source import OneQuerySource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
Row = dict[str, Any]
Judge = Callable[[Row], bool | None]
Condition = tuple[str, Judge]
COUNTS = {True: 24, False: 4}  # without push-down it is Spark that is tested
NAMES = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "tags",
    "keys",
    "msg_id",
    "store_ts",
    "flag",
)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def literal(name: str, value: Any) -> str:
    """A constant of the column's type; times are ms here."""
    if value is None:
        return "NULL"
    if name == "store_ts":
        return f"timestamp_millis({value})"
    return "'" + value.replace("'", "\\'") + "'" if isinstance(value, str) else str(value)


def some(random: Random, rows: list[Row], name: str) -> Any:
    """A value of the column, or one beside it."""
    value = random.choice(rows)[name]
    if isinstance(value, int) and random.random() < 0.3:
        return value + random.choice((-1, 1))
    if isinstance(value, str) and random.random() < 0.1:
        return random.choice(("", "*", "it's", value + " "))
    return value


def compared(random: Random, rows: list[Row], name: str) -> Condition:
    sign, value = random.choice(list(COMPARISONS)), some(random, rows, name)
    text = f"{name} {sign} {literal(name, value)}"
    if random.random() < 0.2:
        text = f"{literal(name, value)} {MIRRORED.get(sign, sign)} {name}"

    def judge(row: Row) -> bool | None:
        missing = row[name] is None or value is None
        return None if missing else COMPARISONS[sign](row[name], value)

    return text, judge


def equal_or_both_null(random: Random, rows: list[Row], name: str) -> Condition:
    value = random.choice((None, some(random, rows, name)))
    return f"{name} <=> {literal(name, value)}", lambda row: bool(row[name] == value)


def is_null(random: Random, rows: list[Row], name: str) -> Condition:
    wanted = random.random() < 0.5
    text = f"{name} IS {'' if wanted else 'NOT '}NULL"
    return text, lambda row: (row[name] is None) == wanted


def one_of(random: Random, rows: list[Row], name: str) -> Condition:
    # More than ten become a set in Spark.
    values = [some(random, rows, name) for _ in range(random.choice((1, 2, 4, 14)))]

    def judge(row: Row) -> bool | None:
        if row[name] is None or (row[name] not in values and None in values):
            return None
        return row[name] in values

    return f"{name} IN ({', '.join(literal(name, value) for value in values)})", judge


def between(random: Random, rows: list[Row], name: str) -> Condition:
    low, high = some(random, rows, name), some(random, rows, name)

    def judge(row: Row) -> bool | None:
        def at_most(left: Any, right: Any) -> bool | None:
            return None if left is None or right is None else left <= right

        return joined(at_most(low, row[name]), at_most(row[name], high), False)

    return f"{name} BETWEEN {literal(name, low)} AND {literal(name, high)}", judge


def like(random: Random, rows: list[Row], name: str) -> Condition:
    value = str(some(random, rows, name) or "a").replace("'", "")
    begin, end = sorted(random.choices(range(len(value) + 1), k=2))
    part = value[begin:end]
    shapes = [f"{part}%", f"%{part}", f"%{part}%", part, f"{part[:1]}_%{part[2:]}"]
    pattern = random.choice(shapes)
    wild = {"%": ".*", "_": "."}
    expression = "".join(wild.get(letter) or re.escape(letter) for letter in pattern)

    def judge(row: Row) -> bool | None:
        found = row[name]
        return None if found is None else bool(re.fullmatch(expression, found, re.DOTALL))

    return f"{name} LIKE '{pattern}'", judge


def joined(left: bool | None, right: bool | None, decisive: bool) -> bool | None:
    """AND is decided by false, OR by true."""
    if decisive in (left, right):
        return decisive
    return None if None in (left, right) else not decisive


def leaf(random: Random, rows: list[Row]) -> Condition:
    name = random.choice(NAMES)
    kinds = [compared, compared, equal_or_both_null, is_null, one_of, between]
    if any(isinstance(row[name], str) for row in rows):
        kinds += [like, like]
    return random.choice(kinds)(random, rows, name)


def condition(random: Random, rows: list[Row], depth: int) -> Condition:
    if depth == 0 or random.random() < 0.2:
        text, judge = leaf(random, rows)
    else:
        left, first = condition(random, rows, depth - 1)
        right, second = condition(random, rows, depth - 1)
        is_or = random.random() < 0.4
        text = f"({left} {'OR' if is_or else 'AND'} {right})"

        def judge(row: Row) -> bool | None:
            return joined(first(row), second(row), is_or)

    if random.random() < 0.15:
        inner = judge
        return f"NOT ({text})", lambda row: None if (found := inner(row)) is None else not found
    return text, judge


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Rows with and without key and tag, whose store times step back."""
    files = StoreFiles(tmp_path / "store", segment_size=1 << 14)
    for _ in range(2):
        files.fill(90)
        files.put("orders", 1, b"no key, no tag")
        files.put("events", 0, b"odd ones", {"KEYS": "it's", "TAGS": "50%_"})
        files.now -= 120
    return files.root


@pytest.mark.parametrize("is_pushed", [False, True])
def test_any_condition_keeps_the_rows_that_python_keeps(
    spark: Any, store: Path, is_pushed: bool
) -> None:
    spark.dataSource.register(OneQuerySource)
    chosen = {"path": str(store), "subscribePattern": ".*"}
    random = Random(13)
    try:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(is_pushed).lower())

        def frame() -> Any:
            """A frame of its own for each query: Spark keeps what is pushed with the frame."""
            name = "twinlog_one_query" if is_pushed else "twinlog"
            return spark.read.format(name).options(**chosen).load()

        columns = [*NAMES, "phys_offset", "unix_millis(store_ts) AS store_ts"]
        columns.remove("store_ts")
        plain = spark.read.format("twinlog").options(**chosen).load().selectExpr(*columns)
        rows = [row.asDict() for row in plain.collect()]
        kept = 0
        for _ in range(COUNTS[is_pushed]):
            text, judge = condition(random, rows, 2)
            wanted = sorted(row["phys_offset"] for row in rows if judge(row))
            found = frame().where(text).select("phys_offset").collect()
            assert sorted(row.phys_offset for row in found) == wanted, text
            kept += 0 < len(wanted) < len(rows)
        assert kept > COUNTS[is_pushed] // 4
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
