# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The records of one pull, compiled: the walk over the entries of a queue and the copy in one.

Does what `_QueueScan` and `read_records` of reader.py do when all records lie in one mapped
segment and no property is asked for; everything else is left to them.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

cdef enum:
    COUNT_MAX = 1024
    ENTRY_SIZE = 20
    PRE_BLANK_SIZE = 0x7FFFFFFF


cdef inline int64_t _get(const char* at, int size) noexcept:
    cdef int64_t value = <signed char> at[0]
    cdef int i
    for i in range(1, size):
        value = (value << 8) | <uint8_t> at[i]
    return value


def gather(
    bytes entries, segment, int64_t base, int64_t log_min, int64_t log_max, int64_t recent_from,
    recent, old, codes,
):
    """(records, their number, entries examined, offset of the last one, whether one is gone).

    `segment` are the bytes from the offset `base` on; `recent` and `old` are limits in bytes and
    messages; `codes` the tags codes that are wanted, or None. None: not of the common kind.
    """
    cdef int64_t places[COUNT_MAX]
    cdef int32_t sizes[COUNT_MAX]
    cdef const char* at = PyBytes_AS_STRING(entries)
    cdef const char* end = at + PyBytes_GET_SIZE(entries)
    cdef int64_t recent_bytes = recent[0], recent_count = recent[1]
    cdef int64_t old_bytes = old[0], old_count = old[1]
    cdef int64_t offset = log_max, size, tags_code, total = 0, last
    cdef Py_ssize_t count = 0, examined = 0, i
    cdef bint is_recent, is_gone = False
    cdef Py_buffer view
    cdef bytes records
    cdef char* out
    if recent_count > COUNT_MAX or old_count > COUNT_MAX:
        return None
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    try:
        last = base + view.len
        while at < end:
            offset = _get(at, 8)
            size = _get(at + 8, 4)
            if count:
                is_recent = offset >= recent_from
                if count >= (recent_count if is_recent else old_count):
                    break
                if total + size > (recent_bytes if is_recent else old_bytes):
                    break
            examined += 1
            if codes is not None:
                tags_code = _get(at + 12, 8)
                # Below it a tags code is no hash: the consumer looks at the tag itself.
                if tags_code >= -2147483648 and <int32_t> tags_code not in codes:
                    at += ENTRY_SIZE
                    continue
            at += ENTRY_SIZE
            if offset < log_min or offset + size > log_max or size == PRE_BLANK_SIZE:
                is_gone = is_gone or count == 0
                continue
            if offset < base or offset + size > last or size < 0 or count == COUNT_MAX:
                return None
            places[count] = offset - base
            sizes[count] = <int32_t> size
            count += 1
            total += size
        records = PyBytes_FromStringAndSize(NULL, total)
        out = PyBytes_AS_STRING(records)
        for i in range(count):
            memcpy(out, <const char*> view.buf + places[i], sizes[i])
            out += sizes[i]
    finally:
        PyBuffer_Release(&view)
    return records, count, examined, offset, is_gone
