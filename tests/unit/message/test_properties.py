"""Property strings and what the dispatcher takes from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.message.hashing import jhash
from twinlog.message.properties import (
    decode_properties,
    delay_level,
    encode_properties,
    index_keys_of,
    property_value,
    tags_and_keys,
)

_text = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
_names = st.one_of(_text, st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY"]))
_raw = st.lists(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "\x01", "\x02", "a", " ", "é", "\x02TAGS\x01"]),
    max_size=14,
).map(lambda parts: "".join(parts).encode())


def test_specification_example():
    data = b"A\x01\x02B\x011\x02\x01x\x02C\x01v\x01w\x02"
    assert decode_properties(data) == {"B": "1", "C": "v\x01w"}


def test_separator_at_the_end_makes_no_difference():
    assert decode_properties(b"a\x01b\x02") == decode_properties(b"a\x01b") == {"a": "b"}
    assert encode_properties({"a": "b", "c": "d"}) == b"a\x01b\x02c\x01d"
    assert encode_properties({}) == b""
    assert decode_properties(b"") == {}


def test_bytes_that_are_not_text_do_not_stop_the_reader():
    assert decode_properties(b"a\x01\xff\x02b\x01c")["b"] == "c"


def test_tags_and_keys():
    data = encode_properties({"KEYS": "k1  k2 ", "UNIQ_KEY": "U", "TAGS": "TagA"})
    assert tags_and_keys(data) == (2598919, ("U", "k1", "k2"))
    assert tags_and_keys(b"") == (0, ())
    assert tags_and_keys(b"MYTAGS\x01a\x02KEYSX\x01b") == (0, ())
    # The last of two wins, but an empty one does not count.
    assert tags_and_keys(b"TAGS\x01TagB\x02TAGS\x01TagA\x02TAGS\x01")[0] == 2598919


def test_property_value_and_delay_level():
    data = encode_properties({"DELAY": "3", "x": "y"})
    assert property_value(data, b"x") == b"y"
    assert property_value(data, b"z") is None
    assert property_value(b"x\x01a\x02x\x01\x02", b"x") == b"a"
    assert delay_level(data) == 3
    assert delay_level(b"") is None
    with pytest.raises(ValueError, match="not a number"):
        delay_level(b"DELAY\x01soon")


@given(st.dictionaries(_text, _text, max_size=6))
def test_round_trip(properties):
    assert decode_properties(encode_properties(properties)) == properties


@given(st.one_of(st.dictionaries(_names, _text, max_size=6).map(encode_properties), _raw))
def test_fast_lookup_equals_the_full_decoder(data):
    properties = decode_properties(data)
    code, keys = tags_and_keys(data)
    assert code == (jhash(properties["TAGS"]) if "TAGS" in properties else 0)
    assert keys == index_keys_of(properties)
