# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The records of one pull, compiled: the walk over the entries of a queue and the copy in one.

Does what `_QueueScan` and `read_records` of reader.py do when all records lie in one mapped
segment and a filter knows what it asks of an entry or of properties; everything else is left to
them.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from twinlog.message._layout cimport (
    BODY_CRC_AT,
    BODY_SIZE_AT,
    CRC_MASK,
    ENTRY_RECORD_SIZE_AT,
    ENTRY_SIZE,
    ENTRY_TAGS_CODE_AT,
    HEAD_SIZE,
    HOSTS_V6_MASK,
    MAGIC_AT,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    PRE_BLANK_SIZE,
    PROPERTIES_LENGTH_SIZE,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_SIZE,
)
from twinlog.message._pairs cimport get2, get4, get8

cdef extern from *:
    """
    #include <errno.h>
    #include <stddef.h>
    #include <sys/mman.h>
    /* Whether a read of mapped pages would be answered with SIGBUS, which ends the process: the
       disk cannot read them, or the file is shorter now. 22 is MADV_POPULATE_READ, of Linux 5.14;
       an older kernel does not know it and is not asked. */
    static int twinlog_is_unreadable(const char *from, size_t size) {
    #ifdef __linux__
        return madvise((void *) from, size, 22) != 0
            && (errno == EFAULT || errno == EIO || errno == EHWPOISON);
    #else
        return 0;
    #endif
    }
    """
    bint twinlog_is_unreadable(const char* start, size_t size) noexcept

cdef extern from "unistd.h":
    int getpagesize() noexcept

cdef size_t _page_mask = ~(<size_t> getpagesize() - 1)

cdef enum:
    WINDOW_SIZE = 65536      # Asked for at once: records of a busy queue are neighbours.
    COUNT_MAX = 1024
    PAIRS_SIZE = 4096
    COPIED_MAX = 4096        # Up to here a copy costs less than a view.

cdef enum:
    SOUND = 0
    DAMAGED = 1
    NOT_PLAIN = 2


cdef struct Window:
    size_t start              # Of the pages that are known to be readable in this pull.
    size_t end


cdef bint _is_readable(Window* known, const char* at, int64_t size, const char* limit) noexcept:
    """Whether the `size` bytes from `at` on can be read; `limit` is the end of the map."""
    cdef size_t start = <size_t> at & _page_mask
    cdef size_t end = <size_t> at + <size_t> size
    cdef size_t far = min(start + WINDOW_SIZE, <size_t> limit)
    if start >= known.start and end <= known.end:
        return True
    if far > end and not twinlog_is_unreadable(<const char*> start, far - start):
        end = far
    elif twinlog_is_unreadable(<const char*> start, end - start):
        return False
    known.start, known.end = start, end
    return True


cdef int _structure(
    const char* at, int64_t size, int64_t offset, bytes topic, int64_t queue_id, int64_t number
) noexcept:
    """`structure_fault` of record_check.py, for plain records."""
    cdef int64_t body_size, length
    cdef const char* topic_at
    cdef const char* end
    if get4(at) != <uint32_t> size:
        return DAMAGED
    if get4(at + MAGIC_AT) != MAGIC_V1 or get4(at + SYS_FLAG_AT) & HOSTS_V6_MASK:
        return NOT_PLAIN
    body_size = <int32_t> get4(at + BODY_SIZE_AT)
    if body_size < 0 or HEAD_SIZE + body_size + 3 > size:
        return DAMAGED
    topic_at = at + HEAD_SIZE + body_size
    length = <uint8_t> topic_at[0]
    end = topic_at + TOPIC_LENGTH_SIZE + length + PROPERTIES_LENGTH_SIZE
    if length == 0 or length > TOPIC_LENGTH_MAX or end > at + size:
        return DAMAGED
    if end + get2(end - PROPERTIES_LENGTH_SIZE) != at + size:
        return DAMAGED
    if get8(at + PHYSICAL_OFFSET_AT) != offset:
        return DAMAGED
    if topic is not None and (
        length != PyBytes_GET_SIZE(topic)
        or memcmp(topic_at + TOPIC_LENGTH_SIZE, PyBytes_AS_STRING(topic), length) != 0
        or <int32_t> get4(at + QUEUE_ID_AT) != queue_id
        or get8(at + QUEUE_OFFSET_AT) != number
    ):
        return DAMAGED
    return SOUND


cdef bint _is_body_sound(const char* at, object crc32) except -1:
    """Whether the body of a plain record is what its CRC says."""
    cdef int64_t body_size = <int32_t> get4(at + BODY_SIZE_AT)
    if body_size == 0:
        return True
    if body_size <= COPIED_MAX:
        found = crc32(PyBytes_FromStringAndSize(at + HEAD_SIZE, body_size))
    else:
        found = crc32(PyMemoryView_FromMemory(<char*> at + HEAD_SIZE, body_size, PyBUF_READ))
    return (<uint32_t> found & CRC_MASK) == get4(at + BODY_CRC_AT)


cdef int _pairs(const char* at, int64_t size, tuple names, char* out) except -2:
    """The pairs of `names` in the record at `at`, into `out`; their size, -1: not by this code."""
    cdef const char* end = at + size
    cdef const char* piece
    cdef char* start = out
    cdef bytes name
    cdef Py_ssize_t name_size
    cdef int64_t body_size
    if get4(at + SYS_FLAG_AT) & HOSTS_V6_MASK or get4(at + MAGIC_AT) != MAGIC_V1:
        return -1
    body_size = <int32_t> get4(at + BODY_SIZE_AT)
    if body_size < 0 or at + HEAD_SIZE + body_size >= end:
        return -1  # Damage: the other walk says what it is.
    at += HEAD_SIZE + body_size
    at += TOPIC_LENGTH_SIZE + <uint8_t> at[0] + PROPERTIES_LENGTH_SIZE
    while at < end:
        piece = at
        while at < end and at[0] != 2:
            at += 1
        for name in names:
            name_size = PyBytes_GET_SIZE(name)
            if (
                at - piece > name_size + 1
                and piece[name_size] == 1
                and memcmp(piece, PyBytes_AS_STRING(name), name_size) == 0
            ):
                if (out - start) + 1 + (at - piece) > PAIRS_SIZE:
                    return -1
                out[0] = 2
                memcpy(out + 1, piece, at - piece)
                out += 1 + (at - piece)
                break
        at += 1
    return out - start


def gather(
    bytes entries, segment, int64_t base, int64_t log_min, int64_t log_max, int64_t recent_from,
    recent, old, wanted, checked,
):
    """(records, their number, entries examined, offset of the last one, whether one is gone).

    `segment` are the bytes from the offset `base` on; `recent` and `old` are limits in bytes and
    messages; `wanted` are tags codes, a PropertyPairs, or None for all. With `checked` (the CRC's
    function, topic or None, queue id, number of the first entry) the walk ends before a damaged
    record. None: not of the common kind, or the first one is damaged.
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
    cdef bytes records, pairs
    cdef char* out
    cdef char text[PAIRS_SIZE]
    cdef int text_size
    cdef object codes = None, judge = None, verdict
    cdef tuple names = None
    cdef dict verdicts = None
    cdef object crc32 = None
    cdef bytes topic = None
    cdef int64_t queue_id = 0, first_number = 0
    cdef int state
    cdef Window known = Window(0, 0)
    if checked is not None:
        crc32, topic, queue_id, first_number = checked
    if isinstance(wanted, tuple):
        names, verdicts, judge = wanted
    else:
        codes = wanted
    if recent_count > COUNT_MAX or old_count > COUNT_MAX:
        return None
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    try:
        last = base + view.len
        while at < end:
            offset = get8(at)
            size = <int32_t> get4(at + ENTRY_RECORD_SIZE_AT)
            if count:
                is_recent = offset >= recent_from
                if count >= (recent_count if is_recent else old_count):
                    break
                if total + size > (recent_bytes if is_recent else old_bytes):
                    break
            examined += 1
            if codes is not None:
                tags_code = get8(at + ENTRY_TAGS_CODE_AT)
                # Below it a tags code is no hash: the consumer looks at the tag itself.
                if tags_code >= -2147483648 and <int32_t> tags_code not in codes:
                    at += ENTRY_SIZE
                    continue
            at += ENTRY_SIZE
            if offset < log_min or offset + size > log_max or size == PRE_BLANK_SIZE:
                if crc32 is not None and size != PRE_BLANK_SIZE:
                    if count == 0:
                        return None
                    examined -= 1
                    break
                is_gone = is_gone or count == 0
                continue
            if offset < base or offset + size > last or size <= HEAD_SIZE or count == COUNT_MAX:
                return None
            if not _is_readable(
                &known, <const char*> view.buf + offset - base, size,
                <const char*> view.buf + view.len,
            ):
                return None
            if crc32 is not None:
                state = _structure(
                    <const char*> view.buf + offset - base, size, offset, topic, queue_id,
                    first_number + examined - 1,
                )
                if state == NOT_PLAIN or state == DAMAGED and count == 0:
                    return None
                if state == DAMAGED:
                    examined -= 1
                    break
            if names is not None:
                text_size = _pairs(<const char*> view.buf + offset - base, size, names, text)
                if text_size < 0:
                    return None
                pairs = PyBytes_FromStringAndSize(text, text_size)
                verdict = verdicts.get(pairs)
                if verdict is None:
                    verdict = judge(pairs)
                if not verdict:
                    continue
            if crc32 is not None and not _is_body_sound(
                <const char*> view.buf + offset - base, crc32
            ):
                if count == 0:
                    return None
                examined -= 1
                break
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
