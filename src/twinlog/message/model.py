"""A message on its way into the store, and a record that was read out of it.

Corresponds to RocketMQ's MessageExtBrokerInner and MessageExt. Both are msgspec structs: made in C,
no per-instance dict. They hold no reference cycles, so the garbage collector need not see them.
"""

from __future__ import annotations

import msgspec

from twinlog.message import sysflag
from twinlog.message.ids import NO_HOST, host_text, offset_message_id
from twinlog.message.properties import decode_properties


class PutMessage(msgspec.Struct, gc=False):
    """What the store is asked to append. The store assigns offsets and the store time."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: bytes = b""  # Exactly as stored.
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = NO_HOST  # Packed: 4 or 16 address bytes, then the port in 4.
    store_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    tags_code: int = 0
    keys: tuple[str, ...] = ()  # Index keys: the unique id first, then the parts of KEYS.


class Record(msgspec.Struct, gc=False):
    """One decoded record of the commit log. `body` is as stored, compressed or not."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes
    _property_map: dict[str, str] | None = None

    @property
    def property_map(self) -> dict[str, str]:
        """The properties by name; decoded at the first use."""
        if self._property_map is None:
            self._property_map = decode_properties(self.properties)
        return self._property_map

    @property
    def message_id(self) -> str:
        """The offset message id: where the record is."""
        return offset_message_id(self.store_host, self.physical_offset)

    @property
    def end_offset(self) -> int:
        return self.physical_offset + self.total_size

    @property
    def born_host_text(self) -> str:
        return host_text(self.born_host)

    @property
    def store_host_text(self) -> str:
        return host_text(self.store_host)

    @property
    def is_compressed(self) -> bool:
        return bool(self.sys_flag & sysflag.COMPRESSED_FLAG)

    def to_put(self) -> PutMessage:
        """The same message, to be stored again: delayed, retried and transactional ones are."""
        return PutMessage(
            topic=self.topic,
            queue_id=self.queue_id,
            body=self.body,
            properties=self.properties,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_host=self.born_host,
            store_host=self.store_host,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )
