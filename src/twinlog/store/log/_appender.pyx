# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""The appender, compiled: the classes of `appender.py`, which is the reference.

Records of the common kind (a topic of at most 127 bytes, IPv4 addresses, a body that is bytes) are
encoded here too; others by `encode_record`.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from twinlog.message._crc cimport whole_crc
from twinlog.message._layout cimport (
    BLANK_SIZE_MIN,
    CRC_MASK,
    ENTRY_SIZE,
    HEAD_SIZE,
    HOSTS_V6_MASK,
    HOST_V4_SIZE,
    MAGIC_V1,
    PROPERTIES_LENGTH_SIZE,
    SECTOR_SIZE,
    TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_SIZE,
)
from twinlog.message._pairs cimport put4, put8

from twinlog.message.crc import crc32
from twinlog.message.record import encode_record

cdef object checksum = crc32


cdef class LogEnd:
    """Where the next record goes, and the bytes before it that wait to be written."""

    def __init__(self):
        self.tail = 0
        self.segment_end = 0
        self.pieces = []

    def fits(self, size: int) -> bool:
        """Whether the segment has room for a record, and for the blank one that closes it."""
        return self.tail + <int64_t> size + BLANK_SIZE_MIN <= self.segment_end

    def add(self, bytes piece) -> int:
        """Append bytes; the offset of the first."""
        cdef int64_t offset = self.tail
        self.pieces.append(piece)
        self.tail = offset + PyBytes_GET_SIZE(piece)
        return offset


cdef class Appender:
    """Records of one turn, each with its entry and its keys."""

    def __init__(self, LogEnd end not None, index, *, begin, mark_dirty):
        self.end = end
        self._index = index
        self._begin = begin
        self._mark_dirty = mark_dirty
        self.is_open = False
        self.turn = self.timestamp = 0
        self.queues = []

    cpdef object open(self):
        """The first put of a turn."""
        assert not self.is_open
        self.is_open = True
        self.turn += 1
        self.timestamp = self._begin()

    def close(self) -> list:
        """The turn is over; the queues that it put to."""
        cdef list queues = self.queues
        self.is_open = False
        self.queues = []
        return queues

    cpdef int64_t append(self, message, queue, int64_t code) except -2:
        """A message: its record, its entry with `code` (tags code or deliver time), its keys.

        The offset of the record; -1, and nothing is added, when the segment has no room for it.
        Raises RecordError.
        """
        cdef NewRecord new
        cdef object topic = message.topic, body = message.body, properties = message.properties
        cdef object born_host = message.born_host, store_host = message.store_host
        cdef bytes topic_bytes = (<str> topic).encode()
        if (
            type(body) is not bytes
            or not 0 < PyBytes_GET_SIZE(topic_bytes) <= TOPIC_LENGTH_MAX
            or len(properties) > SECTOR_SIZE
            or len(born_host) != HOST_V4_SIZE
            or len(store_host) != HOST_V4_SIZE
            or not _read_numbers(message, &new)
        ):
            return self._add_encoded(message, queue, code)
        new.entry_code = code
        new.properties = PyBytes_AS_STRING(properties)
        new.properties_size = PyBytes_GET_SIZE(properties)
        return self.put(
            &new, queue, topic, topic_bytes, body, born_host, store_host, message.keys
        )

    cdef int64_t _add_encoded(self, message, queue, int64_t code) except -2:
        cdef LogEnd end = self.end
        cdef int64_t offset = end.tail
        cdef bytes record = encode_record(message, queue.next_offset, offset, self.timestamp)
        if offset + PyBytes_GET_SIZE(record) + BLANK_SIZE_MIN > end.segment_end:
            return -1
        end.pieces.append(record)
        end.tail = offset + PyBytes_GET_SIZE(record)
        self._add_entry(queue, offset, PyBytes_GET_SIZE(record), code)
        self._add_keys(message.topic, message.keys, offset)
        return offset

    def add_batch(self, bytes data, queue, bytes entries) -> int:
        """Records that follow each other, with all their entries; the offset of the first."""
        assert PyBytes_GET_SIZE(entries) % ENTRY_SIZE == 0
        cdef int64_t offset = self.end.add(data)
        if queue.turn != self.turn:
            self._touch(queue, offset)
        queue.add_many(entries, offset + PyBytes_GET_SIZE(data))
        return offset

    def add_unqueued(self, bytes record, topic: str, keys) -> int:
        """A record without an entry; `keys` None: it is not for the index at all."""
        cdef int64_t offset = self.end.add(record)
        if keys is not None:
            self._add_keys(topic, keys, offset)
        return offset

    # For the send lane

    cdef bint has_index(self) noexcept:
        return self._index is not None

    cdef int64_t put(
        self, NewRecord* new, object queue, object topic, bytes topic_bytes, bytes body,
        bytes born_host, bytes store_host, object keys,
    ) except -2:
        """Encode a record and add it; its offset. -1, and nothing added: it does not fit."""
        cdef LogEnd end = self.end
        cdef int64_t offset = end.tail
        cdef Py_ssize_t body_size = PyBytes_GET_SIZE(body)
        cdef Py_ssize_t size = (
            HEAD_SIZE + body_size + TOPIC_LENGTH_SIZE + PyBytes_GET_SIZE(topic_bytes)
            + PROPERTIES_LENGTH_SIZE + new.properties_size
        )
        cdef bytes record
        if offset + size + BLANK_SIZE_MIN > end.segment_end:
            return -1
        new.queue_offset = queue.next_offset
        new.end_offset = offset + size
        record = PyBytes_FromStringAndSize(NULL, size)
        _encode(
            PyBytes_AS_STRING(record), size, new, offset, self.timestamp, topic_bytes, body,
            <int64_t> (whole_crc(PyBytes_AS_STRING(body), body_size, checksum) & CRC_MASK)
            if body_size else 0,
            born_host, store_host,
        )
        end.pieces.append(record)
        end.tail = new.end_offset
        self._add_entry(queue, offset, size, new.entry_code)
        self._add_keys(topic, keys, offset)
        return offset

    # What a record leaves in its queue and in the index

    cdef int _add_entry(self, object queue, int64_t offset, int64_t size, int64_t code) except -1:
        cdef bytearray tail
        cdef Py_ssize_t used
        cdef int64_t turn = queue.turn, queue_offset = queue.next_offset
        if turn != self.turn:
            self._touch(queue, offset)
        tail = queue.tail
        used = PyByteArray_GET_SIZE(tail)
        PyByteArray_Resize(tail, used + ENTRY_SIZE)
        put8(put4(put8(PyByteArray_AS_STRING(tail) + used, offset), size), code)
        queue.next_offset = queue_offset + 1
        queue.last_physical_end = offset + size
        return 0

    cdef int _add_keys(self, object topic, object keys, int64_t offset) except -1:
        if self._index is None:
            return 0
        if keys:
            self._index.pending.append((topic, keys, offset, self.timestamp))
        else:
            self._index.bare_offset = offset
        return 0

    cdef int _touch(self, object queue, int64_t offset) except -1:
        """The first record of this turn for the queue."""
        queue.turn = self.turn
        queue.turn_offset = queue.next_offset
        self.queues.append(queue)
        if queue.dirty_since_ms < 0:
            self._mark_dirty(queue, offset)
        return 0


cdef inline bint _is_small(int64_t value) noexcept:
    return value == <int32_t> value


cdef bint _read_numbers(message, NewRecord* new) except -1:
    """The numbers of a message; False: one does not fit its field, which `encode_record` says."""
    new.queue_id = message.queue_id
    new.flag = message.flag
    new.sys_flag = <int64_t> message.sys_flag & ~HOSTS_V6_MASK
    new.born_ms = message.born_timestamp
    new.reconsume_times = message.reconsume_times
    new.prepared_offset = message.prepared_transaction_offset
    if not _is_small(new.queue_id) or not _is_small(new.flag):
        return False
    return _is_small(new.sys_flag) and _is_small(new.reconsume_times)


cdef inline char* _bytes(char* at, bytes data) noexcept:
    memcpy(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return at + PyBytes_GET_SIZE(data)


cdef void _encode(
    char* at, int64_t size, NewRecord* new, int64_t offset, int64_t timestamp, bytes topic,
    bytes body, int64_t crc, bytes born_host, bytes store_host,
) noexcept:
    """The fields of a record in their order; `message/layout.py` has the table."""
    at = put4(put4(put4(at, size), MAGIC_V1), crc)
    at = put4(put4(at, new.queue_id), new.flag)
    at = put8(put8(at, new.queue_offset), offset)
    at = put8(put4(at, new.sys_flag), new.born_ms)
    at = put8(_bytes(at, born_host), timestamp)
    at = put4(_bytes(at, store_host), new.reconsume_times)
    at = put8(at, new.prepared_offset)
    at = _bytes(put4(at, PyBytes_GET_SIZE(body)), body)
    at[0] = <char> PyBytes_GET_SIZE(topic)
    at = _bytes(at + 1, topic)
    at[0] = <char> (new.properties_size >> 8)
    at[1] = <char> new.properties_size
    memcpy(at + 2, new.properties, new.properties_size)
