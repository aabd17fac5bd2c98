"""JSON bodies: generated values come back as they were, and what does not fit is an error."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from twinlog.spark.decode import json_rows

MOMENT = pa.timestamp("us", "UTC")
PLAIN = pa.struct(
    [
        ("id", pa.int64()), ("small", pa.int16()), ("rate", pa.float64()), ("ok", pa.bool_()),
        ("name", pa.string()), ("at", MOMENT), ("day", pa.date32()), ("sum", pa.decimal128(12, 2)),
        ("lines", pa.list_(pa.struct([("day", pa.date32()), ("price", pa.decimal128(9, 3))]))),
    ]
)  # fmt: skip
WITH_MAP = pa.struct([*PLAIN, ("days", pa.map_(pa.string(), pa.date32()))])


def decoded(kind: pa.DataType, text: str) -> tuple[Any, str | None]:
    values, errors = json_rows.decode([text.encode()], kind)
    return values[0].as_py(), errors[0]


def some_day(random: Random) -> date:
    return date(1, 1, 1) + timedelta(days=random.randrange(3_652_059))


def some_moment(random: Random) -> tuple[datetime, str]:
    second = datetime(1950, 1, 1, tzinfo=UTC) + timedelta(seconds=random.randrange(1 << 33))
    moment = second + timedelta(microseconds=random.choice([0, 1, 999_999, 120_000]))
    zone = timezone(timedelta(minutes=random.randrange(-840, 841, 15)))
    texts = [
        moment.isoformat(), moment.astimezone(zone).isoformat(),
        moment.isoformat().replace("+00:00", "Z"), moment.isoformat().replace("+00:00", ""),
        moment.isoformat(" ").replace("+00:00", ""),
        moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "789Z",  # nanoseconds are cut off
    ]  # fmt: skip
    return moment, random.choice(texts)


def some_decimal(random: Random, scale: int) -> tuple[Decimal, Any]:
    value = Decimal(random.randrange(-(10**6), 10**6)).scaleb(-scale)
    return value, random.choice([str(value), float(value)])


def some_row(random: Random, *, with_map: bool) -> tuple[dict[str, Any], str]:
    """A row and a JSON text of it."""
    at, at_text = some_moment(random)
    total, total_json = some_decimal(random, 2)
    price, price_json = some_decimal(random, 3)
    day = some_day(random)
    row: dict[str, Any] = {
        "id": random.randrange(-(1 << 63), 1 << 63), "small": random.randrange(-(1 << 15), 1 << 15),
        "rate": random.choice([0.1, -1e300, 5.0, random.random()]), "ok": random.random() < 0.5,
        "name": random.choice(["", "a\"b'c", "\u00e9\U0001f600\n", "{}"]), "at": at, "day": day,
        "sum": total, "lines": [{"day": day, "price": price}, None],
    }  # fmt: skip
    line = {"day": str(day), "price": price_json}
    written = {**row, "at": at_text, "day": str(day), "sum": total_json, "lines": [line, None]}
    if with_map:
        row["days"] = [("a b", day), ("", None)]
        written["days"] = {"a b": str(day), "": None}
    for name in [name for name in row if random.random() < 0.2]:
        row[name] = written[name] = None
        if random.random() < 0.5:
            del written[name]
    written["other"] = {"x": [1]}
    return row, json.dumps(written, ensure_ascii=random.random() < 0.5)


@pytest.mark.parametrize("with_map", [False, True])
def test_generated_values_come_back_alone_and_in_batches(*, with_map: bool) -> None:
    kind = WITH_MAP if with_map else PLAIN
    for seed in range(12):
        random = Random(seed)
        rows = [some_row(random, with_map=with_map) for _ in range(random.randrange(1, 120))]
        values, errors = json_rows.decode([text.encode() for _, text in rows], kind)
        assert [error for error in errors if error] == []
        assert values.to_pylist() == [row for row, _ in rows], f"seed {seed}"
        for row, text in rows[:5]:
            assert decoded(kind, text) == (row, None), f"seed {seed}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"id": 3.5}', "3.5 is not a whole number"),
        ('{"id": true}', "true is not a number"),
        ('{"id": "3"}', '"3" is not a number'),
        ('{"id": 9223372036854775808}', "too large"),
        ('{"small": 32768}', "too large"),
        ('{"rate": "1.5"}', "is not a number"),
        ('{"ok": 1}', "1 is not true or false"),
        ('{"name": 5}', "5 is not a text"),
        ('{"day": 19000}', "is not a date or time"),
        ('{"day": "2026-02-30"}', "is not a date or time"),
        ('{"at": 1700000000}', "is not a date or time"),
        ('{"at": "yesterday"}', "is not a date or time"),
        ('{"sum": 12.345}', "data loss"),
        ('{"sum": "12.345"}', "data loss"),
        ('{"sum": "1_0"}', "is not a number"),
        ('{"sum": NaN}', "NaN"),
        ('{"lines": {}}', "{} is not an array"),
        ('{"lines": [[]]}', r"\[\] is not an object"),
        ("[]", r"\[\] is not an object"),
        ('[["id", 1]]', "is not an object"),
        ("5", "5 is not an object"),
    ],
)
@pytest.mark.parametrize("kind", [PLAIN, WITH_MAP], ids=["plain", "with_map"])
def test_a_value_that_does_not_fit_is_an_error_and_never_another_value(
    kind: pa.DataType, text: str, reason: str
) -> None:
    good = b'{"id": 1}'
    values, errors = json_rows.decode([good, text.encode(), good], kind)
    assert values[1].as_py() is None
    assert re.search(reason, str(errors[1]))
    assert errors[0] is errors[2] is None
    assert values[0].as_py()["id"] == values[2].as_py()["id"] == 1


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert decoded(PLAIN, '{"id": 1e3, "small": 2.0}')[0]["id"] == 1000
