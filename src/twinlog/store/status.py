"""RocketMQ's statuses and the values that a put, a read and a query give back."""

from __future__ import annotations

import enum

import msgspec


class PutMessageStatus(enum.Enum):
    """How a put ended. Values are RocketMQ's ordinals."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPEDFILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGECACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 10


class GetMessageStatus(enum.Enum):
    """How a read ended. Values are RocketMQ's ordinals."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    MESSAGE_DAMAGED = 100  # Ours: the next one is not as it was written, `reason` names it.


class AppendResult(msgspec.Struct, gc=False, frozen=True):
    """Where a message was put, or why it was not (`reason` is a sentence for the remark)."""

    status: PutMessageStatus
    physical_offset: int = 0
    end_offset: int = 0
    queue_offset: int = 0
    store_timestamp: int = 0
    message_count: int = 1
    offsets: tuple[int, ...] = ()  # Physical offset of each member of a batch.
    reason: str = ""
    ids: str = ""  # Message ids of a batch, joined, instead of `offsets`.


class GetResult(msgspec.Struct, frozen=True):
    """Messages of one queue. `buffers` hold whole records exactly as stored, in order."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    buffers: list[bytes] = []
    message_count: int = 0
    size: int = 0
    suggest_pulling_from_slave: bool = False
    reason: str = ""
    is_retried: bool = False  # A damaged one may be healed soon: it is worth asking again.


class QueryResult(msgspec.Struct, frozen=True):
    """Records found through the index, and how far the index is."""

    buffers: list[bytes] = []
    physical_offsets: list[int] = []
    index_last_update_timestamp: int = 0
    index_last_update_offset: int = 0
