"""Members of a batch become ordinary records. Answers to RocketMQ's MessageExtBatch encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from twinlog.message.batch import BatchMember, merged_properties
from twinlog.message.model import PutMessage
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import encode_record


class EncodedMember(NamedTuple):
    """A record, and what queue and index need of it."""

    record: bytes
    tags_code: int
    keys: tuple[str, ...]


def encode_members(
    message: PutMessage,
    members: Sequence[BatchMember],
    queue_offset: int,
    physical_offset: int,
    store_timestamp: int,
) -> list[EncodedMember]:
    """Records with consecutive numbers from `queue_offset`, contiguous from `physical_offset`.

    Raises RecordError when the merged properties of a member are too long: Apache stores such a
    record and loses what is behind it at the next recovery.
    """
    encoded: list[EncodedMember] = []
    for number, member in enumerate(members):
        properties = merged_properties(member.properties, message.properties)
        single = msgspec.structs.replace(
            message, body=member.body, flag=member.flag, properties=properties
        )
        record = encode_record(single, queue_offset + number, physical_offset, store_timestamp)
        tags_code, keys = tags_and_keys(properties)
        encoded.append(EncodedMember(record, tags_code, keys))
        physical_offset += len(record)
    return encoded
