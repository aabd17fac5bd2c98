"""What is fuzzed: every parser that reads what a peer sent. A target returns or fails an assertion.

Each takes any bytes and catches exactly the errors its parser promises; anything else is a finding.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from twinlog.message.batch import BatchError, decode_batch, encode_batch
from twinlog.message.properties import decode_properties, encode_properties, tags_and_keys
from twinlog.remoting import codec, fastjson
from twinlog.remoting.bodies.registration import decode_registration
from twinlog.remoting.bodies.route import ClusterInfo, TopicRouteData
from twinlog.remoting.errors import CommandError, HeaderError, RemoteProtocolError
from twinlog.remoting.framing import FrameSplitter
from twinlog.remoting.headers import admin, namesrv, pull, send

VECTORS = Path(__file__).parents[1] / "vectors"
_HEADERS = (
    send.SendMessageRequestHeaderV2,
    send.SendMessageRequestHeader,
    pull.PullMessageRequestHeader,
    namesrv.RegisterBrokerRequestHeader,
    admin.CreateTopicRequestHeader,
)


def frame(data: bytes) -> None:
    """Whole and byte by byte a stream gives the same frames; each decodes or is refused."""
    whole = FrameSplitter(frame_size_max=1 << 16, header_size_max=1 << 14)
    frames = whole.feed(data)
    bytewise = FrameSplitter(frame_size_max=1 << 16, header_size_max=1 << 14)
    again = [one for index in range(len(data)) for one in bytewise.feed(data[index : index + 1])]
    assert again == frames
    assert (whole.error is None) == (bytewise.error is None)
    for one in frames:
        headers(bytes((one[0],)) + one[1])


def headers(data: bytes) -> None:
    """A header decodes into a map and into structs, and encodes to what decodes to the same."""
    if not data:
        return
    try:
        command = codec.decode_header(data[0] & 1, data[1:])
        ext = dict(command.ext())
        again = codec.decode_command(codec.encode_command(command))
    except RemoteProtocolError:
        return
    except (ValueError, UnicodeEncodeError):
        return  # A code that the binary form has no room for, or a lone surrogate.
    if command.serialize_type == 0:
        assert again.ext() == ext
    assert (again.code, again.opaque, again.flag) == (command.code, command.opaque, command.flag)
    for struct_class in _HEADERS:
        try:
            codec.decode_header(data[0] & 1, data[1:]).header(struct_class)
        except (HeaderError, RemoteProtocolError):
            continue


def json(data: bytes) -> None:
    """A text is read or refused; what was read is written and read to the same."""
    try:
        value = fastjson.loads(data)
    except fastjson.FastjsonError:
        return
    try:
        text = fastjson.dumps(value)
    except (UnicodeEncodeError, RecursionError):
        return
    if b"$ref" not in text and b"." not in text and b"e" not in text.lower():
        assert fastjson.loads(text) == value
    for wanted in (TopicRouteData, ClusterInfo):
        try:
            fastjson.loads_as(data, wanted)
        except fastjson.FastjsonError:
            continue


def registration(data: bytes) -> None:
    for body, is_compressed in ((data, False), (zlib.compress(data, 1), True), (data, True)):
        try:
            decode_registration(body, compressed=is_compressed)
        except CommandError:
            continue


def properties(data: bytes) -> None:
    """What was decoded is encoded and decoded to the same."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return
    found = decode_properties(data)
    assert decode_properties(encode_properties(found)) == found
    tags_and_keys(data)


def batch(data: bytes) -> None:
    try:
        members = decode_batch(data)
    except BatchError:
        return
    assert decode_batch(encode_batch(members)) == members


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frame": frame,
    "headers": headers,
    "json": json,
    "registration": registration,
    "properties": properties,
    "batch": batch,
}


def seeds(name: str) -> Iterator[bytes]:
    """Inputs to start from: pieces of the captured frames."""
    for path in sorted((VECTORS / "frames").glob("*.bin")):
        data = path.read_bytes()
        if len(data) > 4096:
            continue
        command = codec.decode_command(data)
        (mark,) = struct.unpack_from(">I", data, 4)
        if name == "frame":
            yield data
        elif name == "headers":
            yield bytes((mark >> 24,)) + data[8 : 8 + (mark & 0xFFFFFF)]
        elif name == "properties" and "i" in command.ext():
            yield command.ext()["i"].encode()
        elif (name == "batch" and command.code == 320 and command.body) or (
            name in {"json", "registration"} and command.body[:1] == b"{"
        ):
            yield command.body
