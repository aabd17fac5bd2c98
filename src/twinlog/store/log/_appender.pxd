# cython: language_level=3
"""The compiled appender, as other compiled parts see it. `appender.py` says what it is for."""

from libc.stdint cimport int64_t


cdef class LogEnd:
    cdef public int64_t tail
    cdef public int64_t segment_end
    cdef readonly list pieces


cdef struct NewRecord:
    # What the caller knows of it.
    int64_t queue_id
    int64_t flag
    int64_t sys_flag
    int64_t born_ms
    int64_t reconsume_times
    int64_t prepared_offset  # Where its half message is, of the end of a transaction.
    int64_t entry_code       # Hash of the tags, or the time when it is delivered.
    const char* properties
    Py_ssize_t properties_size
    # What became of it.
    int64_t queue_offset
    int64_t end_offset


cdef class Appender:
    cdef readonly bint is_open
    cdef readonly int64_t turn
    cdef readonly int64_t timestamp
    cdef readonly list queues
    cdef readonly LogEnd end    # The end of the log that it adds to.
    cdef object _index
    cdef object _begin
    cdef object _mark_dirty

    cpdef object open(self)
    cpdef int64_t append(self, message, queue, int64_t code) except -2
    cdef bint has_index(self) noexcept
    cdef int64_t put(
        self, NewRecord* new, object queue, object topic, bytes topic_bytes, bytes body,
        bytes born_host, bytes store_host, object keys,
    ) except -2
    cdef int64_t _add_encoded(self, message, queue, int64_t code) except -2
    cdef int _add_entry(self, object queue, int64_t offset, int64_t size, int64_t code) except -1
    cdef int _add_keys(self, object topic, object keys, int64_t offset) except -1
    cdef int _touch(self, object queue, int64_t offset) except -1
