"""No input makes a parser do more than linear work. Work is counted, never timed.

Python code is counted in calls. What runs inside C (regular expressions, the fast JSON parser) is
given texts so long that quadratic work would take hours, and a budget of CPU seconds that linear
work does not come near.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from twinlog.broker.filter.sql92 import FilterSyntaxError, compile_filter
from twinlog.message.batch import BatchError, decode_batch
from twinlog.message.hashing import index_key_hash, jhash
from twinlog.remoting import codec, fastjson
from twinlog.remoting.bodies.registration import RegisterBrokerBody, decode_registration
from twinlog.remoting.errors import RemotingError

EXPECTED = (ValueError, RemotingError, FilterSyntaxError, BatchError)


def calls_of(work: Callable[[Any], Any], text: bytes | str) -> int:
    """Calls of Python and C functions."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        with suppress(*EXPECTED):
            work(text)
    finally:
        sys.setprofile(None)
    return count


def keys_in_keys(n: int) -> bytes:
    text = b"1:1"
    for _ in range(min(n // 8, 60)):
        text = b"{" + text + b"}:1"
    return b"{" + text + b"}"


def references(n: int) -> bytes:
    """Each level refers twice to the one before: 2**levels objects, if all are made."""
    levels = max(4, min(n // 64, 24))
    table: dict[str, Any] = {"x0": [1]}
    for level in range(1, levels):
        table[f"x{level}"] = [{"$ref": f"$.x{level - 1}"}] * 2
    return json.dumps(table).encode()


def one_for_all(n: int) -> bytes:
    """One large object, referred to by many: the square of the text, if all are made."""
    half = n // 2
    large = ",".join("1" for _ in range(half // 2))
    small = ",".join('{"$ref":"$.a"}' for _ in range(half // 14))
    return b'{"a":[%b],"b":[%b]}' % (large.encode(), small.encode())


JSON: dict[str, Callable[[int], bytes]] = {
    "numbers": lambda n: b"{'a':[" + b"1," * (n // 2) + b"1]}",
    "objects": lambda n: b"{'a':[" + b"{}," * (n // 3) + b"1]}",
    "commas": lambda n: b"[" + b"," * n,
    "deep lists": lambda n: b"[" * n,
    "deep objects": lambda n: b"{'a':" * (n // 5),
    "deep keys": lambda n: b"{" * n,
    "keys in keys": keys_in_keys,
    "references": references,
    "one for all": one_for_all,
    "reference to the root": lambda n: b'{"a":[' + b'{"$ref":"$"},' * (n // 13) + b"1]}",
    "long path": lambda n: b'{"a":{"$ref":"$' + b".a" * (n // 2) + b'"}}',
    "words": lambda n: b"{" + b"a:null," * (n // 7) + b"}",
    "long word": lambda n: b"{" + b"a" * n + b"}",
    "open string": lambda n: b'{"' + b'\\"' * (n // 2),
    "open single": lambda n: b"{'" + b"\\'" * (n // 2),
    "strings": lambda n: b"['" + b"','" * (n // 3) + b"']",
    "escapes": lambda n: b"['" + b"\\u0041" * (n // 6) + b"']",
    "digits": lambda n: b"{'a':" + b"1" * n + b"}",
    "fraction": lambda n: b"{'a':0." + b"1" * n + b"}",
    "integer keys": lambda n: b"{" + b"1:1," * (n // 4) + b"x}",
    "key that is none": lambda n: b"{" + b"1" * n,
    "spaces": lambda n: b"{'a':" + b" " * n + b"1}",
    "key spaces": lambda n: b"{" + b" " * n,
    "bad tail": lambda n: b'{"a":[' + b"1," * (n // 2) + b"x",
}
SIZES = (1000, 2000, 4000)


@pytest.mark.parametrize("shape", JSON)
def test_json_of_twice_the_size_is_twice_the_work(shape: str) -> None:
    work = [calls_of(fastjson.loads, JSON[shape](n)) for n in SIZES]
    assert_linear(work)


@pytest.mark.parametrize("shape", JSON)
def test_typed_json_of_twice_the_size_is_twice_the_work(shape: str) -> None:
    work = [calls_of(partial(fastjson.loads_as, wanted=dict), JSON[shape](n)) for n in SIZES]
    assert_linear(work)


SQL: dict[str, Callable[[int], str]] = {
    "or": lambda n: "a=1 or " * (n // 7) + "a=1",
    "in": lambda n: "a in (" + "'x'," * (n // 4) + "'y')",
    "brackets": lambda n: "(" * n + "a=1" + ")" * n,
    "not": lambda n: "not " * (n // 4) + "a=1",
    "minus": lambda n: "a=" + "- " * (n // 2) + "1",
    "quotes": lambda n: "'" * n,
    "comments": lambda n: "/*" + "*" * n,
    "between": lambda n: "a between 1 and 2 and " * (n // 22) + "a=1",
    "digits": lambda n: "a=" + "1" * n,
    "equals": lambda n: "a" + "=a" * (n // 2),
}


@pytest.mark.parametrize("shape", SQL)
def test_sql_of_twice_the_size_is_twice_the_work(shape: str) -> None:
    compile_filter("SQL92", "a=1")  # Loads and makes the parser.
    work = [calls_of(partial(compile_filter, "SQL92"), SQL[shape](n)) for n in SIZES]
    assert_linear(work)


def test_sql_has_a_limit_of_words() -> None:
    with pytest.raises(FilterSyntaxError, match="1000 words"):
        compile_filter("SQL92", "a=1 or " * 400 + "a=1")


BINARY: dict[str, tuple[Callable[[int], bytes], Callable[[bytes], Any]]] = {
    "batch members": (lambda n: (b"\0\0\0\x16" + bytes(18)) * (n // 22), decode_batch),
    "batch that stands still": (lambda n: bytes(n), decode_batch),
    "ext entries": (
        lambda n: bytes(17) + (n // 8 * 8).to_bytes(4, "big") + b"\0\x01a\0\0\0\x01b" * (n // 8),
        codec.decode_binary_header,
    ),
    "zeros inflated": (
        lambda n: zlib.compress(bytes(n * 100), 9),
        lambda data: decode_registration(data, compressed=True),
    ),
    "topics inflated": (
        lambda n: zlib.compress(
            b"\0\0\0\2{}" + (n).to_bytes(4, "big") + b"\0\0\0\x0bT 1 1 6 x_x" * n + b"\0\0\0\2[]", 9
        ),
        lambda data: decode_registration(data, compressed=True),
    ),
}


@pytest.mark.parametrize("shape", BINARY)
def test_binary_forms_of_twice_the_size_are_twice_the_work(shape: str) -> None:
    make, read = BINARY[shape]
    assert_linear([calls_of(read, make(n)) for n in SIZES])


def assert_linear(work: list[int]) -> None:
    """Growth from n to 4n at most fourfold, with room for what is there at every size."""
    one, two, four = work
    assert two <= 2.2 * one + 200, work
    assert four <= 4.4 * one + 400, work


LONG = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
sys.path[:0] = {path!r}
from test_linear_work import EXPECTED, JSON
from twinlog.remoting import fastjson
for shape in {shapes!r}:
    try:
        fastjson.loads(JSON[shape](4_000_000), lenient_max={limit!r})
    except EXPECTED:
        pass
print("done")
"""


@pytest.mark.parametrize(
    ("shapes", "limit"),
    [
        # These reach the regular expressions, whatever their length.
        (["open string", "open single", "long word", "digits", "key that is none"], None),
        (["spaces", "key spaces", "deep lists", "deep objects", "deep keys"], None),
        # These end at the limit of what a request may have off the standard.
        (list(JSON), fastjson.LENIENT_SIZE_MAX),
    ],
)
def test_texts_of_megabytes_need_seconds_not_hours(shapes: list[str], limit: int | None) -> None:
    """4 MB: the square would be ten thousand CPU seconds; the process is ended at 90."""
    here = __file__.rpartition("/")[0]
    script = LONG.format(path=[here], shapes=shapes, limit=limit)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "done\n", (done.returncode, done.stderr[-500:])


@pytest.mark.parametrize("character", ["x", "é"])
def test_a_hash_of_a_long_text_is_cut_at_each_step(character: str) -> None:
    """As a number that grows with its text a million characters took a CPU minute."""
    text = character * 1_000_000
    began = time.process_time()
    hashes = jhash(text), index_key_hash("t", text)
    assert time.process_time() - began < 10
    expected = 0
    for _ in range(len(text)):
        expected = (expected * 31 + ord(character)) % 2**32
    assert hashes[0] % 2**32 == expected


def longest_call_ms(work: Callable[[], Any]) -> float:
    """CPU time of the longest call of C code: as long no other thread can run."""
    longest, began = 0.0, 0.0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal longest, began
        if event == "c_call":
            began = time.thread_time()
        elif event == "c_return":
            longest = max(longest, time.thread_time() - began)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return longest * 1000


def test_a_large_registration_is_read_by_topic() -> None:
    """The loop needs the interpreter between two calls; a whole table in one call kept it."""
    from support.machine_speed import slowness  # Scripts above import this file alone.

    topic = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    table = {f"t{n}": {"topicName": f"t{n}", **topic} for n in range(60_000)}
    wrapper = {"dataVersion": {"counter": 3, "timestamp": 4}, "topicConfigTable": table}
    data = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": ["f"]}).encode()
    read = partial(decode_registration, data, compressed=False)
    assert read() == fastjson.loads_as(data, RegisterBrokerBody)
    by_topic = min(longest_call_ms(read) / slowness() for _ in range(3))
    assert by_topic < 50
