"""Headers from peers: the odd ones that are accepted, the broken ones that are not."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.remoting import codec
from twinlog.remoting.codes import (
    LanguageCode,
    RequestCode,
    SerializeType,
    language_of,
    version_description,
)
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.errors import FrameError, HeaderDecodeError, RemoteProtocolError
from twinlog.remoting.headers.pull import PullMessageResponseHeader

ROUTE_BINARY = bytes.fromhex(
    "0000002D010000290069000199000000010000000000000000000000140005746F70696300000009546F70696354657374"
)
RESPONSE_BINARY = bytes.fromhex(
    "000000440100004000000001990000000700000001000000000000002B0007717565756549640000000132"
    "000A4D53475F524547494F4E0000000D44656661756C74526567696F6E"
)


def test_vectors_of_the_specification() -> None:
    request = RemotingCommand.request(105, {"topic": "TopicTest"})
    request.raw_language, request.version, request.opaque = "JAVA", 409, 1
    assert codec.encode_command(request)[:8].hex() == "0000008700000083"
    request.serialize_type = SerializeType.ROCKETMQ
    assert codec.encode_command(request) == ROUTE_BINARY
    answer = codec.decode_command(RESPONSE_BINARY)
    assert answer.ext() == {"queueId": "2", "MSG_REGION": "DefaultRegion"}
    assert (answer.opaque, answer.is_response, answer.version) == (7, True, 409)
    assert codec.encode_command(answer) == RESPONSE_BINARY


def test_header_of_the_cpp_client_is_read() -> None:
    header = (
        b'{"code":"310","extFields":{"e":3,"k":false,"g":"17","x":null,"y":1.5,"z":{"q":1}},'
        b'"flag":0,"language":"cpp","opaque":"9","remark":"","version":333,"more":[1]}\n'
    )
    command = codec.decode_header(0, header)
    assert (command.code, command.opaque, command.version) == (310, 9, 333)
    assert command.language is LanguageCode.CPP
    assert command.remark == ""
    assert command.ext() == {"e": "3", "k": "false", "g": "17", "y": "1.5", "z": '{"q":1}'}


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"{'code':34}", 34),
        (b"{code:34,'extFields':{a:1}}", 34),
        (b'{"code":34,"remark":5,"flag":null}', 34),
        (b'{"code":34,"extFields":null,"language":null}', 34),
        (b'{"opaque":5}', 0),
        (b'{"code":34,"language":7}', 34),
        (b'{"code":34,"language":"KLINGON"}', 34),
    ],
)
def test_what_java_would_accept_is_accepted(header: bytes, code: int) -> None:
    command = codec.decode_header(0, header)
    assert command.code == code
    command.ext()
    codec.decode_command(codec.encode_command(command))


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"[]", b"null", b"7", b'{"code":"x"}', b"\xff\xfe{}",
        b'{"code":2147483648}', b'{"opaque":-2147483649}', b'{"code":[]}', b'{"extFields":[]}',
        b'{"extFields":"x"}', b'{"code":1' + b" " * 20_000, b'{"code":1}}', b'{"code":1}{"code":2}',
        b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"x":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
        b'{"code":1e999}', b'{"code":"' + b"9" * 5000 + b'"}', b'{"code":1,"remark":"\xff"}',
    ],
)  # fmt: skip
def test_broken_json_header_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderDecodeError):
        codec.decode_header(0, header).ext()


def test_deep_ext_fields_are_refused_when_they_are_asked_for() -> None:
    deep = b'{"code":1,"extFields":{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}}"
    with pytest.raises(HeaderDecodeError):
        codec.decode_header(0, deep).ext()


def binary(remark_size: int = 0, ext: bytes = b"", ext_size: int | None = None) -> bytes:
    fixed = struct.pack(">hbhii", 105, 0, 407, 1, 0)
    size = len(ext) if ext_size is None else ext_size
    return fixed + struct.pack(">i", remark_size) + struct.pack(">i", size) + ext


@pytest.mark.parametrize(
    "header",
    [
        b"", bytes(20),
        binary(remark_size=-1), binary(remark_size=2**31 - 1), binary(remark_size=5),
        binary(ext_size=-1), binary(ext_size=1), binary(ext_size=2**31 - 1), binary(ext=b"\0"),
        binary(ext=struct.pack(">h", 100) + b"k" * 10),
        binary(ext=struct.pack(">h", -1) + bytes(8)),
        binary(ext=struct.pack(">h1si", 1, b"k", 100)),
        binary(ext=struct.pack(">h1si", 1, b"k", -1)),
        binary(ext=struct.pack(">h1si2s", 1, b"k", 2, b"\xff\xff")),
        binary(ext=struct.pack(">h1si", 1, b"k", 0) + b"\0\0\0"),
    ],
)  # fmt: skip
def test_broken_binary_header_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderDecodeError):
        codec.decode_header(1, header)


def test_empty_strings_of_the_binary_form_are_absent_and_the_last_of_two_counts() -> None:
    entry = struct.Struct(">h1si1s")
    ext = entry.pack(1, b"k", 1, b"1") + entry.pack(1, b"k", 1, b"2")
    ext += struct.pack(">h1si", 1, b"e", 0) + struct.pack(">hi1s", 0, 1, b"v")
    command = codec.decode_header(1, binary(ext=ext))
    assert command.ext() == {"k": "2"}
    assert command.remark is None


def test_code_that_does_not_fit_the_binary_form_is_an_error() -> None:
    command = RemotingCommand.request(200050, serialize_type=SerializeType.ROCKETMQ)
    with pytest.raises(ValueError, match="16 bits"):
        codec.encode_command(command)


@pytest.mark.parametrize("frame", [b"", b"\0\0\0\4\0\0\0", ROUTE_BINARY + b"x", ROUTE_BINARY * 2])
def test_decode_command_wants_exactly_one_frame(frame: bytes) -> None:
    with pytest.raises(HeaderDecodeError, match="exactly one frame"):
        codec.decode_command(frame)
    with pytest.raises(FrameError):
        codec.decode_command(b"\xff" * 8)


TEXTS = st.text(min_size=1, max_size=20)


@given(
    code=st.integers(-32768, 32767),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | TEXTS,
    ext=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=5),
    body=st.binary(max_size=50),
    form=st.sampled_from(SerializeType),
)
def test_any_command_survives_both_forms(
    code: int,
    opaque: int,
    remark: str | None,
    ext: dict[str, str] | None,
    body: bytes,
    form: SerializeType,
) -> None:
    command = RemotingCommand(
        code, opaque, remark=remark, ext_fields=ext, body=body, serialize_type=form
    )
    again = codec.decode_command(codec.encode_command(command))
    assert (again.code, again.opaque, again.remark, again.body) == (code, opaque, remark, body)
    assert again.ext() == (ext or {})
    assert again.language is LanguageCode.PYTHON


@given(kind=st.integers(0, 1), header=st.binary(max_size=120))
def test_any_header_bytes_decode_or_are_a_protocol_error(kind: int, header: bytes) -> None:
    try:
        codec.decode_header(kind, header).ext()
    except RemoteProtocolError:
        return


@given(st.text(alphabet='{}[]:,"0123456789.eE-+ \\uaflcodextFisnrmk', max_size=60))
def test_any_json_like_header_decodes_or_is_a_protocol_error(text: str) -> None:
    try:
        codec.decode_header(0, ('{"code":' + text).encode()).ext()
    except RemoteProtocolError:
        return


def test_send_answer_by_template_equals_the_general_one() -> None:
    host = bytes.fromhex("0A00000100002A9F")
    template = codec.SendResponseTemplate(store_host=host, region="100% \u4e2d", trace_on=False)
    for opaque, queue_id, queue_offset, offset in ((7, 2, 42, 500), (-(2**31), 0, 2**62, 2**62)):
        ext = {
            "queueId": queue_id, "TRACE_ON": "false", "MSG_REGION": "100% \u4e2d",
            "msgId": f"0A00000100002A9F{offset:016X}", "queueOffset": queue_offset,
        }  # fmt: skip
        expected = b"".join(codec.encode_response(0, opaque, header=ext))
        assert template.encode(opaque, queue_id, queue_offset, offset) == expected


def test_pull_answer_by_template_equals_the_general_one() -> None:
    opening = codec.encode_pull_opening(
        0, 9, remark=b"FOUND", next_begin_offset=5, min_offset=1, max_offset=6, body_size=4
    )
    header = PullMessageResponseHeader(0, 5, 1, 6)
    pieces = codec.encode_response(0, 9, remark="FOUND", header=header, body=[b"ab", b"cd"])
    assert opening + b"abcd" == b"".join(pieces)


def test_versions_have_their_names() -> None:
    assert [version_description(number) for number in (407, 409, 413, 473, 406, 213, 30)] == [
        "V4_9_7", "V4_9_8", "V5_0_0", "V5_3_0", "V4_9_7_SNAPSHOT", "V4_0_0", "V30",
    ]  # fmt: skip
    assert language_of(99) is None
    assert RequestCode(105).name == "GET_ROUTEINFO_BY_TOPIC"
