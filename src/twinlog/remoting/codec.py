"""Commands to bytes and back, in both header forms. Pure.

Corresponds to RocketMQ's RemotingSerializable and RocketMQSerializable. JSON headers are written as
fastjson writes them: members in alphabetical order, absent ones left out, ext values as strings
in the order they were put. The binary header:

    size   field
    2      code
    1      language
    2      version
    4      opaque
    4      flag
    4 + n  remark (length 0: none)
    4 + m  ext: entries of 2 + key, 4 + value, until m bytes are used
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from twinlog.remoting import fastjson
from twinlog.remoting.codes import FLAG_RESPONSE, OWN_LANGUAGE, OWN_VERSION, SerializeType
from twinlog.remoting.command import (
    EXT_FIELDS_MAX,
    Header,
    RemotingCommand,
    Request,
    check_field_count,
    ext_text,
    header_to_ext,
)
from twinlog.remoting.errors import DECODE_ERRORS, HeaderDecodeError
from twinlog.remoting.framing import FrameSplitter
from twinlog.runtime.numbers import INT32_MAX, number_of

Body = bytes | bytearray | memoryview

_FIXED = struct.Struct(">hbhii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_OPENING = struct.Struct(">ii")
_LENIENT_SIZE_MAX = 4 * 1024  # A header off the JSON standard is parsed slowly: only short ones.
_UNKNOWN_LANGUAGE = 7  # OTHER

_encode_json = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(Request, strict=False).decode
_OWN_TAIL = b'"language":"%b",' % OWN_LANGUAGE.encode()
_OWN_LANGUAGE_NUMBER = 3


# Decoding


def decode_header(kind: int, header: bytes, body: bytes = b"") -> Request:
    """Command of one frame.

    Raises:
        HeaderDecodeError: the header's bytes do not decode.
    """
    if kind == 0:
        try:
            request = _decode_request(header)
        except DECODE_ERRORS as error:
            request = _decode_leniently(header, error)
    else:
        request = decode_binary_header(header)
    request.body = body
    return request


def decode_command(frame: bytes) -> Request:
    """Command of one whole frame, length field included."""
    splitter = FrameSplitter()
    frames = splitter.feed(frame)
    if splitter.error is not None:
        raise splitter.error
    if len(frames) != 1 or splitter.buffered:
        raise HeaderDecodeError(f"{len(frame)} bytes are not exactly one frame")
    return decode_header(*frames[0])


def _decode_leniently(header: bytes, cause: Exception) -> Request:
    """What Java's parser takes and the JSON standard does not, such as other quotes."""
    if len(header) > _LENIENT_SIZE_MAX or isinstance(cause, RecursionError):
        raise HeaderDecodeError(f"JSON header: {cause}") from None
    try:
        values = fastjson.loads(header)
        if not isinstance(values, dict):
            raise ValueError("not an object")
        return _request_of(values)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise HeaderDecodeError(f"JSON header: {error}") from None


def _request_of(values: dict[str, Any]) -> Request:
    ext = values.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise ValueError("extFields is not an object")
    check_field_count(ext or {})
    remark = values.get("remark")
    language = values.get("language", "JAVA")
    return Request(
        _number(values, "code"),
        _number(values, "opaque"),
        _number(values, "flag"),
        _number(values, "version"),
        raw_language=language if isinstance(language, str | int) else None,
        remark=None if remark is None else ext_text(remark),
        ext_fields=None if ext is None else header_to_ext(ext),
    )


def _number(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    return 0 if value is None else number_of(value, -INT32_MAX - 1, INT32_MAX)


def decode_binary_header(header: bytes) -> Request:
    """Binary header. Strings of no length are absent; of a key that comes twice the last counts."""
    size = len(header)
    if size < 21:
        raise HeaderDecodeError(f"binary header of {size} bytes, at least 21 are needed")
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    (remark_size,) = _INT32.unpack_from(header, 13)
    if not 0 <= remark_size <= size - 21:
        raise HeaderDecodeError(f"remark of {remark_size} bytes in a header of {size}")
    position = 17 + remark_size
    (ext_size,) = _INT32.unpack_from(header, position)
    position += 4
    if not 0 <= ext_size <= size - position:
        raise HeaderDecodeError(f"ext block of {ext_size} bytes in a header of {size}")
    try:
        remark = header[17 : 17 + remark_size].decode("utf-8") if remark_size else None
        ext = _decode_binary_ext(header, position, position + ext_size) if ext_size else None
    except UnicodeDecodeError:
        raise HeaderDecodeError("text of the binary header is not UTF-8") from None
    return Request(code, opaque, flag, version, language, remark, ext_fields=ext, serialize_type=1)


def _decode_binary_ext(header: bytes, position: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    while position < end:
        if end - position < 6:
            raise HeaderDecodeError(f"ext entry of {end - position} bytes")
        (key_size,) = _INT16.unpack_from(header, position)
        value_start = position + 6 + key_size
        if key_size < 0 or value_start > end:
            raise HeaderDecodeError(f"ext key of {key_size} bytes")
        (value_size,) = _INT32.unpack_from(header, value_start - 4)
        position += 2
        stop = value_start + value_size
        if value_size < 0 or stop > end:
            raise HeaderDecodeError(f"ext value of {value_size} bytes")
        if key_size and value_size:
            key = header[position : position + key_size].decode("utf-8")
            ext[key] = header[value_start:stop].decode("utf-8")
            if len(ext) > EXT_FIELDS_MAX:
                raise HeaderDecodeError(f"more than {EXT_FIELDS_MAX} ext fields")
        position = stop
    return ext


# Encoding


def encode_command(command: RemotingCommand) -> bytes:
    """Whole frame of a command, body included."""
    if command.serialize_type == SerializeType.ROCKETMQ:
        header = _binary_header(command)
    else:
        header = _json_header(command)
    kind_and_size = (command.serialize_type << 24) | len(header)
    opening = _OPENING.pack(4 + len(header) + len(command.body), kind_and_size)
    return b"".join((opening, header, command.body))


def _json_header(command: RemotingCommand) -> bytes:
    ext: bytes | None
    if command.ext_fields is not None:
        ext = _encode_json(command.ext_fields)
    else:
        ext = bytes(command.raw_ext) or None
    parts = [b'{"code":%d,' % command.code]
    if ext is not None and ext != b"null":
        parts.append(b'"extFields":%b,' % ext)
    parts.append(b'"flag":%d,' % command.flag)
    if command.raw_language is not None:
        parts.append(b'"language":%b,' % _encode_json(language_name(command)))
    parts.append(b'"opaque":%d,' % command.opaque)
    if command.remark is not None:
        parts.append(b'"remark":%b,' % _encode_json(command.remark))
    parts.append(b'"serializeTypeCurrentRPC":"JSON","version":%d}' % command.version)
    return b"".join(parts)


def language_name(command: RemotingCommand) -> str:
    """Language as text; what nobody knows stays as it came, or is OTHER."""
    known = command.language
    if known is not None:
        return known.name
    return command.raw_language if isinstance(command.raw_language, str) else "OTHER"


def _binary_header(command: RemotingCommand) -> bytes:
    language = command.language
    return binary_header(
        command.code,
        opaque=command.opaque,
        flag=command.flag,
        version=command.version,
        language=_UNKNOWN_LANGUAGE if language is None else int(language),
        remark=command.remark,
        ext=command.ext(),
    )


def binary_header(
    code: int,
    *,
    opaque: int,
    flag: int,
    remark: str | None,
    ext: Mapping[str, str],
    version: int = OWN_VERSION,
    language: int = _OWN_LANGUAGE_NUMBER,
) -> bytes:
    """Binary header. Raises ValueError when a number does not fit, as codes above 32767."""
    if not -32768 <= code <= 32767 or not -32768 <= version <= 32767:
        raise ValueError(f"code {code}, version {version}: the binary header has 16 bits for each")
    text = b"" if remark is None else remark.encode("utf-8")
    entries: list[bytes] = []
    for key, value in ext.items():
        key_bytes, value_bytes = key.encode("utf-8"), value.encode("utf-8")
        entries += (
            _INT16.pack(len(key_bytes)),
            key_bytes,
            _INT32.pack(len(value_bytes)),
            value_bytes,
        )
    block = b"".join(entries)
    fixed = _FIXED.pack(code, language, version, opaque, flag)
    return b"".join((fixed, _INT32.pack(len(text)), text, _INT32.pack(len(block)), block))


def response_header(
    code: int,
    opaque: int,
    *,
    remark: str | None = None,
    header: Header | None = None,
    serialize_type: int = 0,
) -> bytes:
    """Header of a response of ours, without frame."""
    ext = None if header is None else header_to_ext(header)
    if serialize_type == SerializeType.ROCKETMQ:
        return binary_header(code, opaque=opaque, flag=FLAG_RESPONSE, remark=remark, ext=ext or {})
    return b"".join(
        (
            b'{"code":%d,' % code,
            b"" if ext is None else b'"extFields":%b,' % _encode_json(ext),
            b'"flag":1,',
            _OWN_TAIL,
            b'"opaque":%d,' % opaque,
            b"" if remark is None else b'"remark":%b,' % _encode_json(remark),
            b'"serializeTypeCurrentRPC":"JSON","version":%d}' % OWN_VERSION,
        )
    )


def frame_opening(header: bytes, serialize_type: int, body_size: int) -> bytes:
    """The eight bytes before a header, and the header."""
    return _OPENING.pack(4 + len(header) + body_size, (serialize_type << 24) | len(header)) + header


def encode_response(
    code: int,
    opaque: int,
    *,
    remark: str | None = None,
    header: Header | None = None,
    body: Body | Sequence[Body] = b"",
    serialize_type: int = 0,
) -> list[Body]:
    """A response as the pieces to be written; bodies are passed through, never copied."""
    bodies: Sequence[Body] = body if isinstance(body, list | tuple) else (body,)
    size = sum(map(len, bodies))
    head = response_header(
        code, opaque, remark=remark, header=header, serialize_type=serialize_type
    )
    pieces: list[Body] = [frame_opening(head, serialize_type, size)]
    pieces.extend(piece for piece in bodies if piece)
    return pieces


class SendResponseTemplate:
    """The answer to a send by bytes formatting: everything that does not change is made once.

    JSON only; a request with a binary header is answered through `encode_response`. `store_host`
    is the packed host that message ids begin with.
    """

    def __init__(
        self, *, store_host: bytes, region: str = "DefaultRegion", trace_on: bool = True
    ) -> None:
        extra = _encode_json({"TRACE_ON": "true" if trace_on else "false", "MSG_REGION": region})
        # What stands around queue id, physical offset, queue offset and opaque.
        self.pieces = (
            b'{"code":0,"extFields":{"queueId":"',
            b'",' + extra[1:-1] + b',"msgId":"' + store_host.hex().upper().encode(),
            b'","queueOffset":"',
            b'"},"flag":1,' + _OWN_TAIL + b'"opaque":',
            b',"serializeTypeCurrentRPC":"JSON","version":' + str(OWN_VERSION).encode() + b"}",
        )
        head, before_id, before_offset, before_opaque, end = (
            piece.replace(b"%", b"%%") for piece in self.pieces
        )
        self._template = b"".join(
            (head, b"%d", before_id, b"%016X", before_offset, b"%d", before_opaque, b"%d", end)
        )
        # Five numbers of at most 20 digits: all the openings there can be.
        size_max = len(self._template) + 5 * 20
        self._openings = [_OPENING.pack(size + 4, size) for size in range(size_max)]

    def encode(self, opaque: int, queue_id: int, queue_offset: int, physical_offset: int) -> bytes:
        """Whole frame of a success."""
        header = self._template % (queue_id, physical_offset, queue_offset, opaque)
        return self._openings[len(header)] + header


_PULL_TEMPLATE = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d",'
    b'"maxOffset":"%d"},"flag":1,' + _OWN_TAIL + b'"opaque":%d,"remark":"%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(OWN_VERSION).encode() + b"}"
)


def pull_pieces(code: int, remark: bytes) -> tuple[bytes, ...]:
    """What stands around the broker suggested, the next, least and greatest offset, and opaque."""
    text = _PULL_TEMPLATE.replace(b"%d", b"%d" % code, 1).replace(b"%b", remark)
    return tuple(text.split(b"%d"))


def encode_pull_opening(
    code: int,
    opaque: int,
    *,
    remark: bytes,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    body_size: int,
    suggest_which_broker_id: int = 0,
) -> bytes:
    """Opening and JSON header of a pull answer; the body follows it. `remark` is a status name."""
    header = _PULL_TEMPLATE % (
        code, suggest_which_broker_id, next_begin_offset, min_offset, max_offset, opaque, remark,
    )  # fmt: skip
    size = len(header)
    return _OPENING.pack(size + 4 + body_size, size) + header
