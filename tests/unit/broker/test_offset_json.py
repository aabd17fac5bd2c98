"""The fast text of offset tables is the general one, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from twinlog.broker.tables import offset_json
from twinlog.remoting import fastjson

TABLES: list[dict[str, dict[int, int]]] = [
    {},
    {"t@g": {}},
    {"t@g": {0: 5}},
    {"t@g": {0: 5, 17: -1, -2: 9_223_372_036_854_775_807}, "%RETRY%g@g": {3: 0}},
    {"t@g": {0: 1}, "e@g": {}, "u@g": {1: 2}},
    {'odd",0:"1":{}@g': {0: 1}, "12": {3: 4}, "\u00fc@g\\": {5: 6}},
    {f"topic-{n}@group-{n % 7}": {q: n * q for q in range(n % 5 + 1)} for n in range(3500)},
]


@pytest.mark.parametrize("table", TABLES)
def test_written_as_by_the_general_writer(table: dict[str, dict[int, int]]) -> None:
    data: dict[str, Any] = {"offsetTable": table}
    assert b"".join(offset_json.pretty_parts(table)) == fastjson.dumps_pretty(data)
    if "12" not in table:
        assert offset_json.dumps(table) == fastjson.dumps(data)


@pytest.mark.parametrize("table", TABLES)
def test_read_back(table: dict[str, dict[int, int]]) -> None:
    for text in (offset_json.dumps(table), b"".join(offset_json.pretty_parts(table))):
        read = offset_json.loads(text)["offsetTable"]
        again = {key: {int(n): v for n, v in queues.items()} for key, queues in read.items()}
        assert again == table


@pytest.mark.parametrize("text", [b"{}", b'{"offsetTable":{"t@g":{0:5}},"dataVersion":{}}', b"[1]"])
def test_any_other_text_is_read_the_general_way(text: bytes) -> None:
    assert offset_json.loads(text) == fastjson.loads(text)


@pytest.mark.parametrize("text", [b"", b"{", b'{"offsetTable":{"t@g":{0:', b"\xff"])
def test_damage_is_said(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        offset_json.loads(text)


def test_a_table_that_changes_between_the_parts() -> None:
    count = 2 * offset_json.SLICE_SIZE // 10
    table = {f"t{n}@g": {0: n} for n in range(count)}
    parts = offset_json.pretty_parts(table)
    text = next(parts)
    del table[f"t{count - 1}@g"]
    table["new@g"] = {0: 1}
    text += b"".join(parts)
    assert len(fastjson.loads(text)["offsetTable"]) == count - 1
