"""JSON in the dialect of fastjson 1.2, which RocketMQ speaks in bodies and configuration files.

Differences from the standard that occur on the wire and on disk: integer map keys without quotes
(`{0:"127.0.0.1:10911"}`), whole objects as map keys (`{{"queueId":0,"topic":"T"}:5}`), repeated
objects as `{"$ref":"$.path"}`, single quotes, names without quotes.

Reading: keys always come back as strings; an object key as its compact text (`loads` it again).
Writing: a msgspec struct is a Java bean (members in alphabetical order of their wire names, None
left out), a dict is a Java map (order kept, int keys without quotes, structs as keys allowed), and
what has a method `wire` is what that returns.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

import msgspec

from twinlog.runtime.numbers import number_or_none

_T = TypeVar("_T")

DEPTH_MAX = 64  # RocketMQ's deepest body has 6 levels.
SLOW_SIZE_MAX = 1024 * 1024  # Of a request that is read through plain lists and maps.
LENIENT_SIZE_MAX = 8 * 1024  # Of a request: 20 ms at worst.

# A string without end is a match to the end of the text: else the search would begin again at each
# of its quotes, and a text of 16 KiB would take seconds.
_INT_KEY = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|([{,]\s*+)(-?[0-9]++)(\s*+:)', re.DOTALL)
_SHORT = 8  # A list that is written item by item.
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class FastjsonError(ValueError):
    """The text is not JSON, not even fastjson's."""


# Reading


def loads(
    data: bytes | bytearray | str,
    *,
    is_forgiving: bool = False,
    lenient_max: int | None = None,
) -> Any:
    """Parse a text; the standard forms by the fast parser, the rest by our own.

    Text that is not UTF-8, or that escapes half of a surrogate pair, could never be written again:
    it is refused. `is_forgiving` takes it with replacement characters, for our own files.
    `lenient_max`: so many bytes may be off the standard; None is no limit.

    Raises:
        FastjsonError: not JSON, or nested deeper than `DEPTH_MAX` where the fast parser gave up.
    """
    raw = data.encode("utf-8") if isinstance(data, str) else bytes(data)
    if not raw.strip():
        raise FastjsonError("empty text")
    try:
        value = _loads_fast(raw, is_forgiving, lenient_max)
        return _resolved(value, len(raw)) if b'"$ref"' in raw else value
    except RecursionError:
        raise FastjsonError("nested too deeply") from None


def loads_request(data: bytes) -> Any:
    """Parse the body of a peer's request: off the JSON standard only short ones.

    The parser of our own takes some 3 us for a byte, and it runs on the loop that serves everyone.
    What Java and C++ send is standard JSON.

    Raises:
        FastjsonError: as `loads`.
    """
    return loads(data, lenient_max=LENIENT_SIZE_MAX)


_TYPED_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def loads_as(
    data: bytes | bytearray | str,
    wanted: type[_T],
    *,
    is_forgiving: bool = False,
    lenient_max: int | None = None,
) -> _T:
    """Parse a text into a struct (or any type msgspec knows); members it has not are ignored.

    As for fastjson, numbers may come as strings and a null is an absent member. `is_forgiving` and
    `lenient_max` as for `loads`.

    Raises:
        FastjsonError: not JSON, or a member is not of its type; names the member.
    """
    decoder = _TYPED_DECODERS.get(wanted)
    if decoder is None:
        decoder = _TYPED_DECODERS[wanted] = msgspec.json.Decoder(wanted, strict=False)
    raw = data.encode("utf-8") if isinstance(data, str) else bytes(data)
    if lenient_max is not None and len(raw) > SLOW_SIZE_MAX and b'"$ref"' in raw:
        raise FastjsonError(f"beyond {SLOW_SIZE_MAX} bytes references are not read")
    if b'"$ref"' not in raw:
        try:
            typed: _T = decoder.decode(raw)
            return typed
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if lenient_max is not None and len(raw) > SLOW_SIZE_MAX:
                raise FastjsonError(str(error)) from None
            # Off the standard, or with nulls: the slow way, which also says what is wrong.
    try:
        plain = loads(raw, is_forgiving=is_forgiving, lenient_max=lenient_max)
        value = _without_nulls(plain)
        return msgspec.convert(value, wanted, strict=False, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FastjsonError(str(error)) from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _loads_fast(raw: bytes, is_forgiving: bool, lenient_max: int | None) -> Any:
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if lenient_max is not None and len(raw) > lenient_max:
            raise FastjsonError(
                f"{error}; beyond {lenient_max} bytes only standard JSON is read"
            ) from None
        # Off the standard: quote the keys that are objects or integers, and if that is not it,
        # parse slowly.
    for keys, quote in ((_OBJECT_KEY, _quote_object), (_INT_KEY, _quote_key)):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _decode(keys.sub(quote, raw))
    return _Parser(raw, is_forgiving=is_forgiving).parse()


# A table of queues has a key such as {"brokerName":"a","queueId":0,"topic":"t"} for each. What
# looks like one within a string is quoted, too: that ends the string before a brace, which is no
# JSON.
_MEMBER = rb'"[^"\\]*+":(?:"[^"\\]*+"|0|-?[1-9][0-9]{0,17}+)'
_OBJECT_KEY = re.compile(rb"([{,])(\{" + _MEMBER + rb"(?:," + _MEMBER + rb")*+\})(?=:)")


def _quote_object(match: re.Match[bytes]) -> bytes:
    before, key = match.groups()
    return before + _encode(_encode(_decode(key)).decode("utf-8"))


def _quote_key(match: re.Match[bytes]) -> bytes:
    if match.group(2) is None:
        return match.group(0)
    return b'%b"%b"%b' % match.group(1, 2, 3)


_SPACE = re.compile(r"[ \t\r\n\f\b]*")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|\'((?:[^\'\\]|\\.)*)\'', re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?[LBSFD]?")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.\-]*")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "NaN": None}
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NUMBER_LENGTH_MAX = 800  # The longest double in full has 767 digits.
_INTEGER_LENGTH_MAX = 40  # More than any field takes: the field says what is wrong.
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


class _Parser:
    """Recursive descent over the text; bounded by `DEPTH_MAX`."""

    def __init__(self, raw: bytes, *, is_forgiving: bool) -> None:
        self._is_forgiving = is_forgiving
        try:
            self._text = raw.decode("utf-8", "replace" if is_forgiving else "strict")
        except UnicodeDecodeError as error:
            raise FastjsonError(f"not UTF-8: {error.reason} at byte {error.start}") from None
        self._at = 0
        self._is_in_key = False

    def parse(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self._at != len(self._text):
            raise self._wrong("text after the value")
        return value

    def _wrong(self, what: str) -> FastjsonError:
        return FastjsonError(f"{what} at character {self._at}")

    def _skip_space(self) -> str:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._wrong("nested too deeply")
        following = self._skip_space()
        if following == "{":
            return self._object(depth)
        if following == "[":
            return self._array(depth)
        if following in {'"', "'"}:
            return self._string()
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            digits = number.group().rstrip("LBSFD")
            if len(digits) > _NUMBER_LENGTH_MAX:
                raise self._wrong(f"number of {len(digits)} characters")
            return float(digits) if number.group(1) or number.group(2) else _integer(digits)
        if (word := _WORD.match(self._text, self._at)) and word.group() in _WORDS:
            self._at = word.end()
            return _WORDS[word.group()]
        raise self._wrong("no value")

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._wrong("string without end")
        self._at = match.end()
        content = match.group(1) if match.group(1) is not None else match.group(2)
        if "\\" not in content:
            return content
        text = _ESCAPE.sub(_unescape, content)
        return text if _SURROGATE.search(text) is None else self._joined(text)

    def _joined(self, text: str) -> str:
        """Escapes come in pairs for characters beyond 16 bits; half of a pair is no text."""
        units = text.encode("utf-16-le", "surrogatepass")
        try:
            return units.decode("utf-16-le", "replace" if self._is_forgiving else "strict")
        except UnicodeDecodeError:
            raise self._wrong("half of a surrogate pair before the text") from None

    def _key(self, depth: int) -> str:
        following = self._skip_space()
        if following in {'"', "'"}:
            return self._string()
        if following in {"{", "["}:
            return self._object_key(depth)
        for pattern in (_NUMBER, _WORD):
            if match := pattern.match(self._text, self._at):
                self._at = match.end()
                return match.group()
        raise self._wrong("no member name")

    def _object_key(self, depth: int) -> str:
        """An object as a key. Not within another: each level would double the escapes of the text.

        RocketMQ has them one deep.
        """
        if self._is_in_key:
            raise self._wrong("an object as a key within such a key")
        self._is_in_key = True
        text = _encode(self._value(depth + 1)).decode("utf-8")
        self._is_in_key = False
        return text

    def _object(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self._at += 1
        while True:
            following = self._skip_space()
            if following == "}":
                self._at += 1
                return members
            if following == ",":
                self._at += 1
                continue
            key = self._key(depth)
            if self._skip_space() != ":":
                raise self._wrong("no colon")
            self._at += 1
            members[key] = self._value(depth + 1)
            if self._skip_space() not in {",", "}"}:
                raise self._wrong("neither comma nor brace")

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._at += 1
        while True:
            following = self._skip_space()
            if following == "]":
                self._at += 1
                return items
            if following == ",":
                self._at += 1
                continue
            items.append(self._value(depth + 1))
            if self._skip_space() not in {",", "]"}:
                raise self._wrong("neither comma nor bracket")


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_LENGTH_MAX:
        raise FastjsonError(f"number of {len(digits)} digits")
    return int(digits)


def _unescape(match: re.Match[str]) -> str:
    code = match.group(1)
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _SIMPLE_ESCAPES.get(code, code)


_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]|\[[\"']([^\]]+)[\"']\]")


class _References:
    """Puts a copy of the object in the place of each `{"$ref":"$.path"}`.

    What the copies add is bounded by the size of the text: references to lists of references double
    with each level, and one to its own parent never ends.
    """

    def __init__(self, root: Any, copied_max: int) -> None:
        self._root = root
        self._left = copied_max

    def resolved(self, value: Any, depth: int = 0, *, is_copy: bool = False) -> Any:
        if depth > DEPTH_MAX:
            raise FastjsonError("nested too deeply")
        if is_copy:
            self._left -= 1
            if self._left < 0:
                raise FastjsonError("references that expand the text beyond its own size")
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(value.get("$ref"), str):
                return self.resolved(_at_path(self._root, value["$ref"]), depth + 1, is_copy=True)
            return {k: self.resolved(v, depth + 1, is_copy=is_copy) for k, v in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, depth + 1, is_copy=is_copy) for item in value]
        return value


def _resolved(root: Any, copied_max: int) -> Any:
    """The value without references; a path to nowhere gives None."""
    return _References(root, copied_max).resolved(root)


def _at_path(root: Any, path: str) -> Any:
    value = root
    if not path.startswith("$"):
        return None
    for match in _STEP.finditer(path, 1):
        name, index, quoted = match.groups()
        place = None if index is None else number_or_none(index)
        if place is not None and isinstance(value, list) and place < len(value):
            value = value[place]
        elif isinstance(value, dict):
            value = value.get(name or quoted or index)
        else:
            return None
    return value


# Writing

_BEAN_FIELDS: dict[type, tuple[tuple[str, str], ...]] = {}


def bean_members(bean: msgspec.Struct) -> Iterable[tuple[str, Any]]:
    """Wire names and values in the order in which they are written."""
    fields = _BEAN_FIELDS.get(type(bean))
    if fields is None:
        pairs = [(f.encode_name, f.name) for f in msgspec.structs.fields(type(bean))]
        fields = tuple(sorted(pairs))
        _BEAN_FIELDS[type(bean)] = fields
    return (
        (wire_name, value)
        for wire_name, name in fields
        if (value := getattr(bean, name)) is not None
    )


def dumps(value: Any, *, quote_int_keys: bool = False) -> bytes:
    """Compact text as Java sends it; `quote_int_keys` keeps to the JSON standard."""
    out: list[bytes] = []
    _write(value, out.append, quote_int_keys)
    return b"".join(out)


class Text(bytes):
    """JSON that was made before: a part of another text, written as it is."""


class MapText:
    """The text of a large map, made member by member: between two of them others have turns."""

    def __init__(self) -> None:
        self._members: list[bytes] = []

    def add(self, key: Any, value: Any) -> None:
        self._members.append(dumps({key: value})[1:-1])

    @property
    def text(self) -> Text:
        return Text(b"{%b}" % b",".join(self._members))


class ListText:
    """The same of a large list."""

    def __init__(self) -> None:
        self._items: list[bytes] = []

    def add(self, item: Any) -> None:
        self._items.append(dumps(item))

    @property
    def text(self) -> Text:
        return Text(b"[%b]" % b",".join(self._items))


def _scalar(value: Any) -> bytes | None:
    if value is None or isinstance(value, bool | int | float | str):
        return _encode(value.name if isinstance(value, Enum) else value)
    if isinstance(value, Enum):
        return _encode(value.name)
    return None


def _write_key(key: Any, put: Callable[[bytes], None], quote_int_keys: bool) -> None:
    if isinstance(key, int) and not isinstance(key, Enum):
        put(b'"%d":' % key if quote_int_keys else b"%d:" % key)
        return
    _write(key, put, quote_int_keys)
    put(b":")


def _write(value: Any, put: Callable[[bytes], None], quote_int_keys: bool) -> None:
    scalar = _scalar(value)
    if scalar is not None:
        put(scalar)
    elif isinstance(value, msgspec.Struct):
        separator = b"{"
        for name, member in bean_members(value):
            put(separator)
            put(_encode(name))
            put(b":")
            _write(member, put, quote_int_keys)
            separator = b","
        put(b"{}" if separator == b"{" else b"}")
    elif isinstance(value, dict):
        separator = b"{"
        for key, member in value.items():
            put(separator)
            _write_key(key, put, quote_int_keys)
            _write(member, put, quote_int_keys)
            separator = b","
        put(b"{}" if separator == b"{" else b"}")
    elif isinstance(value, Text):
        put(value)
    elif hasattr(value, "wire"):
        _write(value.wire(), put, quote_int_keys)
    elif type(value) is list and len(value) > _SHORT and all(type(one) is str for one in value):
        put(_encode(value))  # Names of hundreds of thousands of topics.
    else:
        separator = b"["
        for item in value:
            put(separator)
            _write(item, put, quote_int_keys)
            separator = b","
        put(b"[]" if separator == b"[" else b"]")


def dumps_pretty(value: Any, level: int = 0) -> bytes:
    """Text of a configuration file: one TAB per level, maps with integer keys on one line.

    With `level` it is a part of such a text, that many levels deep.

    A list has its items on lines of their own, a set (or tuple) has them on one line: so does
    fastjson.
    """
    out: list[bytes] = []
    _write_pretty(value, out.append, level)
    return b"".join(out)


def _write_pretty(value: Any, put: Callable[[bytes], None], level: int) -> None:
    scalar = _scalar(value)
    if scalar is not None:
        put(scalar)
        return
    if isinstance(value, msgspec.Struct):
        members: list[tuple[Any, Any]] = list(bean_members(value))
    elif isinstance(value, dict):
        members = list(value.items())
    else:
        _write_pretty_items(value, put, level)
        return
    if not members:
        put(b"{}")
        return
    separator = b"{"
    for key, member in members:
        put(separator)
        if not isinstance(key, int):
            put(b"\n" + b"\t" * (level + 1))
        _write_key(key, put, quote_int_keys=False)
        _write_pretty(member, put, level + 1)
        separator = b","
    put(b"\n" + b"\t" * level + b"}")


def _write_pretty_items(value: Iterable[Any], put: Callable[[bytes], None], level: int) -> None:
    items = list(value)
    is_list = isinstance(value, list)
    if not items:
        put(b"[]")
        return
    put(b"[")
    for index, item in enumerate(items):
        if index:
            put(b",")
        if is_list:
            put(b"\n" + b"\t" * (level + 1))
        _write_pretty(item, put, level + 1)
    put(b"\n" + b"\t" * level + b"]" if is_list else b"]")
