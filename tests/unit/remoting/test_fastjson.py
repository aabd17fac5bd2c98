"""fastjson's dialect: what Java writes is read, and written again to the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.remoting import codec, fastjson
from twinlog.remoting.bodies.common import DataVersion, MessageQueue
from twinlog.remoting.bodies.route import BrokerData
from twinlog.remoting.fastjson import FastjsonError

VECTORS = Path(__file__).parents[2] / "vectors"
CONFIGS = sorted((VECTORS / "config").glob("*.json"))
BODIES = [
    path
    for path in sorted((VECTORS / "frames").glob("*.bin"))
    if codec.decode_command(path.read_bytes()).body[:1] == b"{"
]


def test_there_is_something_to_read() -> None:
    assert len(CONFIGS) == 5
    assert len(BODIES) > 60


@pytest.mark.parametrize("path", BODIES, ids=lambda path: path.stem)
def test_captured_body_is_read(path: Path) -> None:
    value = fastjson.loads(codec.decode_command(path.read_bytes()).body)
    assert isinstance(value, dict)
    json.dumps(value)


def with_int_keys(value: Any) -> Any:
    """What reading made into strings, as Java had it: integer keys, arrays of numbers inline."""
    if isinstance(value, dict):
        members = {key: with_int_keys(item) for key, item in value.items()}
        if members and all(key.isdigit() for key in members):
            return {int(key): item for key, item in members.items()}
        return members
    return tuple(value) if isinstance(value, list) else value


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configuration_file_is_written_as_java_writes_it(path: Path) -> None:
    text = path.read_bytes()
    assert fastjson.dumps_pretty(with_int_keys(fastjson.loads(text))) == text


def test_integer_keys_and_object_keys() -> None:
    text = (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,{"a":[1]}:6},"x":{0:1,-1:2}}'
    )
    value = fastjson.loads(text)
    assert value["x"] == {"0": 1, "-1": 2}
    keys = [fastjson.loads(key) for key in value["offsetTable"]]
    assert keys == [{"brokerName": "b", "queueId": 0, "topic": "T"}, {"a": [1]}]
    table = {MessageQueue("T", "b", 0): 5}
    assert fastjson.dumps({"offsetTable": table}) == text.split(b",{")[0] + b"}}"


_PIECES = st.sampled_from(
    ["{", "}", "{", "}", ":", ":", ",", ",", '"', '"a"', '"b"', '"x,{"', '"{}:"', '"é"', "0", "-0",
     "7", "-3", "007", "1.5", "9" * 19, "null", " ", '{"a":1,"b":"c"}:', '{{"q":0}:5}', "[", "]",
     "\\", "'", '{"a":"\\""}:']
)  # fmt: skip


@given(st.lists(_PIECES, max_size=14).map("".join))
@settings(max_examples=1500)
def test_objects_as_keys_are_read_as_the_slow_parser_reads_them(text: str) -> None:
    raw = text.encode()

    def outcome(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except FastjsonError:
            return FastjsonError

    try:
        wanted = msgspec.json.decode(raw)  # The standard, whatever ours would make of it.
    except msgspec.DecodeError:
        wanted = outcome(fastjson._Parser(raw, is_forgiving=False).parse)
    assert outcome(lambda: fastjson._loads_fast(raw, False, None)) == wanted


def test_a_table_of_queues_does_not_need_the_slow_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for new offsets reads one for each topic, with every queue in it."""
    table = {
        MessageQueue("t", "broker-a", number): {"maxOffset": number, "minOffset": 0}
        for number in range(200)
    }
    raw = fastjson.dumps({"offsetTable": table})
    wanted = fastjson._Parser(raw, is_forgiving=False).parse()
    monkeypatch.setattr(fastjson, "_Parser", None)
    assert fastjson.loads(raw) == wanted
    assert len(wanted["offsetTable"]) == 200


def test_text_that_looks_like_a_key_inside_a_string_is_left_alone() -> None:
    assert fastjson.loads(b'{"a":"{0:1,2:3}\\",4:",5:6}') == {"a": '{0:1,2:3}",4:', "5": 6}


def test_other_quotes_names_and_numbers() -> None:
    text = "{'a':'it''s',b_1:1.5,c:-2L,d:[true,false,null,],'e\\u4e2d\\n':'\\x41',}"
    text = text.replace("it''s", "its")
    assert fastjson.loads(text) == {
        "a": "its", "b_1": 1.5, "c": -2, "d": [True, False, None], "e\u4e2d\n": "A",
    }  # fmt: skip


def test_references_are_resolved() -> None:
    text = b'{"a":{"x":[1]},"b":{"$ref":"$.a"},"c":[{"$ref":"$.a.x[0]"},{"$ref":"$.no.such"}]}'
    assert fastjson.loads(text) == {"a": {"x": [1]}, "b": {"x": [1]}, "c": [1, None]}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"  ", b"{", b'{"a"}', b'{"a":}', b"[1", b"[1 2]", b'{"a":1 "b":2}', b"nothing",
        b"{1}", b'"open', b"{}x", b"\xff\xfe", b'{"a":"\xff"}', b"9" * 50 + b"x",
        b"{0:" + b"9" * 60 + b"L}",
        b"[" * 100_000, b"{0:" * 100_000, b'{"a":' * 100_000, b"{'a':" * 5000 + b"1" + b"}" * 5000,
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(FastjsonError):
        fastjson.loads(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        fastjson.loads(data)
    except FastjsonError:
        return


@given(st.text(alphabet="{}[]:,'\"\\0123abc $ref.u\n", max_size=80))
def test_any_json_like_text_is_read_or_refused(text: str) -> None:
    try:
        fastjson.loads(text)
    except FastjsonError:
        return


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key != "$ref"), VALUES, max_size=5))
def test_written_values_are_read_back(value: dict[str, Any]) -> None:
    assert _no_ref(fastjson.loads(fastjson.dumps(value))) == _no_ref(value)
    assert _no_ref(fastjson.loads(fastjson.dumps_pretty(value))) == _no_ref(value)


def _no_ref(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("$ref", "ref"))


@given(st.dictionaries(st.integers(-(2**31), 2**31), st.integers(), max_size=5))
def test_integer_keys_are_written_bare_or_quoted(value: dict[int, int]) -> None:
    expected = {str(key): item for key, item in value.items()}
    assert fastjson.loads(fastjson.dumps(value)) == expected
    assert json.loads(fastjson.dumps(value, quote_int_keys=True)) == expected


class Bean(msgspec.Struct, rename="camel"):
    zeta: int = 1
    alpha_beta: str | None = None
    inner: dict[int, str] = msgspec.field(default_factory=dict)


def test_beans_have_their_members_in_alphabetical_order_without_nulls() -> None:
    assert fastjson.dumps(Bean(inner={1: "x"})) == b'{"inner":{1:"x"},"zeta":1}'
    assert fastjson.dumps(Bean(alpha_beta="y")) == b'{"alphaBeta":"y","inner":{},"zeta":1}'


def test_typed_reading_takes_strings_for_numbers_and_nulls_for_absence() -> None:
    assert fastjson.loads_as(
        b'{"counter":"3","timestamp":4,"more":[]}', DataVersion
    ) == DataVersion(3, 4)
    assert fastjson.loads_as(b'{"zeta":null,"inner":null}', Bean) == Bean()
    data = fastjson.loads_as(
        b'{"cluster":"c","brokerName":"b","brokerAddrs":{0:"a:1"}}', BrokerData
    )
    assert data.master_address == "a:1"
    with pytest.raises(FastjsonError, match="cluster"):
        fastjson.loads_as(b"{}", BrokerData)
    with pytest.raises(FastjsonError):
        fastjson.loads_as(b"{", BrokerData)


ESCAPES = st.lists(
    st.sampled_from(
        [r"\ud83d", r"\ude00", r"\ud800", r"\udfff", r"\u0041", r"\x41", "x", "\u00e9"]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@given(ESCAPES, st.sampled_from(['{"a":"%s"}', "{'a':'%s'}", '{"%s":1}', "{'%s':1}", '{1:"%s"}']))
def test_what_is_read_can_be_written_whichever_parser_reads_it(escapes: str, form: str) -> None:
    try:
        value = fastjson.loads((form % escapes).encode())
    except fastjson.FastjsonError:
        return
    fastjson.dumps(value)


@pytest.mark.parametrize("form", ['{"a":"%s"}', "{'a':'%s'}", '{"%s":1}', "{'%s':1}"])
@pytest.mark.parametrize("half", [r"\ud800", r"\udc00", r"x\ud83d", r"\ud83dx", r"\ude00\ud83d"])
def test_half_of_a_surrogate_pair_is_refused_or_replaced(form: str, half: str) -> None:
    text = (form % half).encode()
    with pytest.raises(fastjson.FastjsonError):
        fastjson.loads(text)
    shown = fastjson.dumps(fastjson.loads(text, is_forgiving=True)).decode()
    assert "\ufffd" in shown


def test_a_pair_of_escapes_is_one_character_in_other_quotes_too() -> None:
    assert fastjson.loads(rb"{'a':'\ud83d\ude00'}") == {"a": "\U0001f600"}


def test_large_texts_made_in_parts_are_those_of_the_whole() -> None:
    table = {MessageQueue("t", "b", number): {"offset": number} for number in range(20)}
    names = [f'n\u00e9"{number}' for number in range(20)]
    parts, items = fastjson.MapText(), fastjson.ListText()
    for key, value in table.items():
        parts.add(key, value)
    for name in names:
        items.add(name)
    whole = fastjson.dumps({"table": table, "names": names, "end": 1})
    assert fastjson.dumps({"table": parts.text, "names": items.text, "end": 1}) == whole
    assert fastjson.dumps([[name] for name in names]).count(b",") == 19
    empty = {"table": fastjson.MapText().text, "names": fastjson.ListText().text}
    assert fastjson.dumps(empty) == b'{"table":{},"names":[]}'
