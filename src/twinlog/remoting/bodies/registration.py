"""What a broker tells a name server about its topics: answers to RegisterBrokerBody.

Compressed form, one zlib stream:

    4 + n   data version as JSON
    4       number of topics
    4 + n   per topic: `name readQueues writeQueues perm filterType` (5.x adds a sixth word)
    4 + n   filter servers as a JSON list
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import Body, DataVersion
from twinlog.remoting.bodies.topic import TopicConfig, table_text
from twinlog.remoting.errors import CommandError
from twinlog.runtime.numbers import INT32_MAX, number_of

_INT32 = struct.Struct(">i")
_LENIENT = fastjson.LENIENT_SIZE_MAX
INFLATED_SIZE_MAX = 32 * 1024 * 1024  # 200,000 topics of 127 characters.
_PIECE_SIZE = 1024 * 1024
_WHOLE_SIZE_MAX = 256 * 1024  # A longer one is read by topic: no call holds others up for long.


class TopicConfigSerializeWrapper(Body):
    """All topics of a broker and the version of the table."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = msgspec.field(default_factory=dict)


class RegisterBrokerBody(Body):
    """Body of REGISTER_BROKER."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper
    filter_server_list: list[str] = msgspec.field(default_factory=list)


def body_crc32(body: bytes) -> int:
    """Checksum of a body as it is sent; 0 of an empty one is no checksum."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_registration(body: RegisterBrokerBody, *, compressed: bool) -> bytes:
    wrapper = body.topic_config_serialize_wrapper
    if not compressed:
        table = table_text(wrapper.data_version, wrapper.topic_config_table.values())
        filters = fastjson.dumps(body.filter_server_list)
        return b'{"filterServerList":%b,"topicConfigSerializeWrapper":%b}' % (filters, table)
    texts = [_sized(fastjson.dumps(wrapper.data_version))]
    texts.append(_INT32.pack(len(wrapper.topic_config_table)))
    for topic in wrapper.topic_config_table.values():
        words = (
            f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
            f" {topic.topic_filter_type}"
        )
        texts.append(_sized(words.encode("utf-8")))
    texts.append(_sized(fastjson.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(texts), 9)


def _sized(text: bytes) -> bytes:
    return _INT32.pack(len(text)) + text


def decode_registration(data: bytes, *, compressed: bool) -> RegisterBrokerBody:
    """Body of a registration.

    Raises:
        CommandError: it cannot be read; answered with code 1.
    """
    try:
        if compressed:
            return _decode_compressed(_inflate(data))
        if len(data) > _WHOLE_SIZE_MAX and b'"$ref"' not in data:
            return _decode_by_topic(data)
        return fastjson.loads_as(data, RegisterBrokerBody, lenient_max=_LENIENT)
    except (ValueError, struct.error, zlib.error) as error:
        raise CommandError(f"Failed to decode RegisterBrokerBody: {error}") from error


class _LargeWrapper(Body):
    data_version: DataVersion = DataVersion()
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")


class _LargeBody(Body):
    topic_config_serialize_wrapper: _LargeWrapper
    filter_server_list: list[str] = msgspec.field(default_factory=list)


_BODY = msgspec.json.Decoder(_LargeBody, strict=False)
_TABLE = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _decode_by_topic(data: bytes) -> RegisterBrokerBody:
    """A large one in standard JSON: other threads have their turns between its topics."""
    try:
        body = _BODY.decode(data)
        wrapper = body.topic_config_serialize_wrapper
        texts = _TABLE.decode(wrapper.topic_config_table)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > fastjson.SLOW_SIZE_MAX:
            raise ValueError(str(error)) from None
        return fastjson.loads_as(data, RegisterBrokerBody, lenient_max=_LENIENT)
    topics = {name: fastjson.loads_as(bytes(text), TopicConfig) for name, text in texts.items()}
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(wrapper.data_version, topics), body.filter_server_list
    )


def decode_old_registration(data: bytes) -> RegisterBrokerBody:
    """Body of a broker before 3.0.11: only the topics."""
    try:
        return RegisterBrokerBody(
            fastjson.loads_as(data, TopicConfigSerializeWrapper, lenient_max=_LENIENT)
        )
    except ValueError as error:
        raise CommandError(f"Failed to decode TopicConfigSerializeWrapper: {error}") from error


def _inflate(data: bytes) -> bytes:
    """In pieces: each is a short time in which no other thread can run."""
    inflater = zlib.decompressobj()
    pieces, size, rest = [], 0, data
    while rest and not inflater.eof and size <= INFLATED_SIZE_MAX:
        pieces.append(inflater.decompress(rest, _PIECE_SIZE))
        size += len(pieces[-1])
        rest = inflater.unconsumed_tail
    if not inflater.eof or size > INFLATED_SIZE_MAX:
        raise ValueError(f"compressed body is cut off or above {INFLATED_SIZE_MAX} bytes")
    return b"".join(pieces)


def _decode_compressed(text: bytes) -> RegisterBrokerBody:
    version_text, position = _take(text, 0)
    (count,) = _INT32.unpack_from(text, position)
    position += 4
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        words, position = _take(text, position)
        topic = _topic_of(words.decode("utf-8"))
        topics[topic.topic_name] = topic
    filter_text, position = _take(text, position)
    version = fastjson.loads_as(version_text, DataVersion, lenient_max=_LENIENT)
    filters = fastjson.loads_as(filter_text, list[str], lenient_max=_LENIENT)
    return RegisterBrokerBody(TopicConfigSerializeWrapper(version, topics), filters)


def _take(text: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT32.unpack_from(text, position)
    end = position + 4 + size
    if size < 0 or end > len(text):
        raise ValueError(f"text of {size} bytes at {position} of {len(text)}")
    return text[position + 4 : end], end


def _topic_of(text: str) -> TopicConfig:
    words = text.split(" ")
    if len(words) < 5:
        raise ValueError(f"topic {text!r} has fewer than five words")
    low, high = -INT32_MAX - 1, INT32_MAX
    read_queues, write_queues, perm = (number_of(word, low, high) for word in words[1:4])
    return TopicConfig(words[0], read_queues, write_queues, perm, words[4])
