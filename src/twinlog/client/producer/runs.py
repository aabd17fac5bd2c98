"""Runs: plain messages that follow one another, prepared as one piece of a batch. Pure.

`send_many` has them by the thousand: a run has one future and one list of ids for all its members.
What is not plain (keys, properties of its own, a sharding key, a delay, a body to compress, a
mistake) ends a run and goes the way of single sends, which knows all of it.
"""

from __future__ import annotations

from typing import Any

from twinlog.client.message import Message, encode_user_properties
from twinlog.client.producer.outgoing import batch_element
from twinlog.message.ids import ID_COUNTERS, UniqueIdGenerator
from twinlog.runtime.compiled import load

_INT_MAX = 0x7FFFFFFF
# Lengths and codes of a member, and its properties but for the values.
_FIXED_SIZE = 22 + len("UNIQ_KEY\x01\x02WAIT\x01true")
_TAGS_SIZE = len("\x02TAGS\x01")
_TAGS_LENGTH_MAX = 1024

_compiled = load("twinlog.client.producer._run")


class Run:
    """Members of a batch, encoded, with their ids."""

    __slots__ = ("data", "ids")

    def __init__(self, data: bytes, ids: list[str]) -> None:
        self.data = data
        self.ids = ids


def pack_run(
    messages: list[Message],
    start: int,
    unique_ids: UniqueIdGenerator,
    *,
    size_room: int,
    count_room: int,
    body_size_max: int,
) -> Run | None:
    """The plain messages from `start` on that share topic and WAIT, as many as there is room for.

    None: not even the first. The topic is not looked at.
    """
    count_room = min(count_room, ID_COUNTERS)
    if _compiled is not None:
        packed = _compiled.pack_run(
            messages, start, unique_ids, size_room, count_room, body_size_max
        )
        return None if packed is None else Run(*packed)
    return pack_run_in_python(messages, start, unique_ids, size_room, count_room, body_size_max)


def pack_run_in_python(
    messages: list[Message],
    start: int,
    unique_ids: UniqueIdGenerator,
    size_room: int,
    count_room: int,
    body_size_max: int,
) -> Run | None:
    """What the compiled part does as well."""
    if not _is_plain(messages[start], body_size_max):
        return None
    topic, wait = messages[start].topic, messages[start].wait_store_ok
    fixed = _FIXED_SIZE + unique_ids.id_size + (not wait)
    end = start
    for message in messages[start : start + count_room]:
        if not _is_plain(message, body_size_max):
            break
        if message.topic != topic or message.wait_store_ok is not wait:
            break
        size_room -= fixed + len(message.body)
        if message.tags is not None:
            size_room -= _TAGS_SIZE + len(message.tags)
        if size_room < 0:
            break
        end += 1
    if end == start:
        return None
    prefix, counter = unique_ids.take(end - start)
    ids = [f"{prefix}{(counter + n) % ID_COUNTERS:04X}" for n in range(end - start)]
    members = [
        batch_element(message.body, encode_user_properties(message, unique_id), message.flag)
        for message, unique_id in zip(messages[start:end], ids, strict=True)
    ]
    return Run(b"".join(members), ids)


def _is_plain(message: Any, body_size_max: int) -> bool:
    return (
        type(message) is Message
        and type(message.topic) is str
        and type(message.body) is bytes
        and 0 < len(message.body) <= body_size_max
        and message.properties is None
        and type(message.keys) is tuple
        and not message.keys
        and message.sharding_key is None
        and type(message.delay_level) is int
        and not message.delay_level
        and (message.wait_store_ok is True or message.wait_store_ok is False)
        and type(message.flag) is int
        and -_INT_MAX <= message.flag <= _INT_MAX
        and _is_plain_tag(message.tags)
    )


def _is_plain_tag(tags: Any) -> bool:
    return tags is None or (
        type(tags) is str and len(tags) <= _TAGS_LENGTH_MAX and tags.isascii() and tags.isalnum()
    )
