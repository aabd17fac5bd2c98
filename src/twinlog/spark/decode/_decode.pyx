# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Records to columns, compiled: what records.py and vector.py do with arrays, in one pass each.

Each function says False when something is not as it expects and leaves it to its twin there, which
knows everything and gives reasons. Positions that `gather`, `check_bodies` and `split_alike` take
have been checked by `find_parts` or by its twin.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from twinlog.message._layout cimport (
    BODY_CRC_AT,
    BORNHOST_V6_FLAG,
    CRC_MASK,
    HEAD_SIZE,
    HOST_V6_EXTRA,
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
    RECORD_SIZE_MIN,
    STOREHOSTADDRESS_V6_FLAG,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TOPIC_LENGTH_SIZE,
)
from twinlog.message._pairs cimport get2, get4

cdef enum:
    BEHIND_STORE_TIME = HEAD_SIZE - STORE_TIMESTAMP_AT
    COPIED_MAX = 4096        # Up to here a copy costs less than a view.
    WIDTH_MAX = 64           # Names of one row.


def find_parts(
    const uint8_t[::1] data, const int64_t[::1] starts, uint8_t[:, ::1] heads, int64_t[:, ::1] parts
):
    """Copy the head of every record, find its parts and check it (`lay_out`).

    The rows of `parts` are the arrays of `Layout` from `sizes` on.
    """
    cdef int64_t end = data.shape[0]
    cdef int64_t start, size, flags, store_time, body, body_size, topic, topic_size, properties
    cdef int64_t properties_size
    cdef uint32_t magic
    cdef bint is_v2
    cdef const char* base = <const char*> &data[0] if end else NULL
    cdef Py_ssize_t row
    for row in range(starts.shape[0]):
        start = starts[row]
        if start < 0 or start + RECORD_SIZE_MIN > end:
            return False
        size = <int32_t> get4(base + start)
        magic = get4(base + start + MAGIC_AT)
        is_v2 = magic == MAGIC_V2
        if not is_v2 and magic != MAGIC_V1:
            return False
        if size < RECORD_SIZE_MIN or start + size > end:
            return False
        flags = <int32_t> get4(base + start + SYS_FLAG_AT)
        store_time = start + STORE_TIMESTAMP_AT
        if flags & BORNHOST_V6_FLAG:
            store_time += HOST_V6_EXTRA
        body = store_time + BEHIND_STORE_TIME
        if flags & STOREHOSTADDRESS_V6_FLAG:
            body += HOST_V6_EXTRA
        if body + 3 > start + size:
            return False
        body_size = <int32_t> get4(base + body - 4)
        topic = body + body_size + TOPIC_LENGTH_SIZE + is_v2
        if body_size < 0 or topic + 2 > start + size:
            return False
        topic_size = get2(base + topic - 2) if is_v2 else <uint8_t> base[topic - 1]
        properties = topic + topic_size + PROPERTIES_LENGTH_SIZE
        if properties > start + size:
            return False
        properties_size = get2(base + properties - PROPERTIES_LENGTH_SIZE)
        if properties_size > PROPERTIES_SIZE_MAX or properties + properties_size != start + size:
            return False
        memcpy(&heads[row, 0], base + start, HEAD_SIZE)
        parts[0, row] = size
        parts[1, row] = flags
        parts[2, row] = store_time
        parts[3, row] = body
        parts[4, row] = body_size
        parts[5, row] = topic
        parts[6, row] = topic_size
        parts[7, row] = properties
        parts[8, row] = properties_size
    return True


def walk(const uint8_t[::1] data, int64_t position, int64_t limit, int64_t[::1] starts):
    """Note where records begin, from `position` on; return how many do (`chain`)."""
    cdef const char* base = <const char*> &data[0] if data.shape[0] else NULL
    cdef int64_t size
    cdef uint32_t magic
    cdef Py_ssize_t count = 0
    while position + RECORD_SIZE_MIN <= limit:
        size = <int32_t> get4(base + position)
        magic = get4(base + position + MAGIC_AT)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            break
        if size < RECORD_SIZE_MIN or position + size > limit:
            break
        starts[count] = position
        count += 1
        position += size
    return count


def check_bodies(
    const uint8_t[::1] data,
    const int64_t[::1] starts,
    const int64_t[::1] body_at,
    const int64_t[::1] body_sizes,
    crc32,
    uint8_t[::1] wrong,
):
    """Mark the rows whose body does not have the stored checksum (`bad_crcs`)."""
    cdef const char* base = <const char*> &data[0] if data.shape[0] else NULL
    cdef const char* at
    cdef Py_ssize_t row
    cdef int64_t size
    cdef uint32_t found
    for row in range(starts.shape[0]):
        at, size = base + body_at[row], body_sizes[row]
        if size <= COPIED_MAX:
            found = crc32(PyBytes_FromStringAndSize(at, size))
        else:
            found = crc32(data[body_at[row] : body_at[row] + size])
        wrong[row] = (found & CRC_MASK) != get4(base + starts[row] + BODY_CRC_AT)


def gather(
    const uint8_t[::1] data,
    const int64_t[::1] starts,
    const int64_t[::1] lengths,
    int32_t[::1] offsets,
    uint8_t[::1] out,
):
    """Copy [start, start + length) of every row, one behind another (`gather_bytes`)."""
    cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
    cdef uint8_t* to = &out[0] if out.shape[0] else NULL
    cdef int64_t used = 0
    cdef Py_ssize_t row
    for row in range(starts.shape[0]):
        offsets[row] = <int32_t> used
        memcpy(to + used, base + starts[row], lengths[row])
        used += lengths[row]
    offsets[starts.shape[0]] = <int32_t> used


def split_alike(
    const uint8_t[::1] data,
    const int64_t[::1] starts,
    const int64_t[::1] lengths,
    tuple names,
    bytes is_kept,
    int32_t[::1] offsets,
    uint8_t[::1] out,
):
    """Copy the values of rows that all have these names in this order (`_same_names`).

    Only those of the names that `is_kept` has a one for.
    """
    cdef const char* kept = PyBytes_AS_STRING(is_kept)
    cdef const char* base = <const char*> &data[0] if data.shape[0] else NULL
    cdef const char* at
    cdef const char* end
    cdef const char* stop
    cdef const char* heads[WIDTH_MAX]
    cdef Py_ssize_t sizes[WIDTH_MAX]
    cdef Py_ssize_t width = len(names)
    cdef Py_ssize_t row, column
    cdef int64_t used = 0, number = 0
    cdef bytes name
    if width > WIDTH_MAX or PyBytes_GET_SIZE(is_kept) != width:
        return False
    for column in range(width):
        name = names[column]  # With the separator behind it.
        heads[column] = PyBytes_AS_STRING(name)
        sizes[column] = PyBytes_GET_SIZE(name)
    for row in range(starts.shape[0]):
        at = base + starts[row]
        end = at + lengths[row]
        for column in range(width):
            if end - at <= sizes[column] or memcmp(at, heads[column], sizes[column]) != 0:
                return False
            at += sizes[column]
            stop = <const char*> memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            if stop == at:
                return False
            if kept[column]:
                offsets[number] = <int32_t> used
                number += 1
                memcpy(&out[used], at, stop - at)
                used += stop - at
            at = stop + 1 if stop < end else end
        if at != end:
            return False
    offsets[number] = <int32_t> used
    return True
