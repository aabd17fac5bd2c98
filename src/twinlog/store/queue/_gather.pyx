# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The records of one pull, compiled: the walk over the entries of a queue, and the copy.

Does what `_QueueScan` and `read_records` of reader.py do when all records lie in one mapped
segment and a filter knows what it asks of an entry or of properties; everything else is left to
them.

A page that the disk cannot read, or that its file has lost, is answered with SIGBUS, which would
end the process. So each page is touched first, by code that SIGBUS leads back out of.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from twinlog.message._crc cimport whole_crc
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
    #include <setjmp.h>
    #include <signal.h>
    #include <stddef.h>

    static __thread sigjmp_buf twinlog_way_back;
    static __thread volatile sig_atomic_t twinlog_is_touching = 0;
    static struct sigaction twinlog_earlier_action;

    static void twinlog_on_bus_error(int number, siginfo_t *info, void *context) {
        (void) number; (void) info; (void) context;
        if (twinlog_is_touching) {
            twinlog_is_touching = 0;
            siglongjmp(twinlog_way_back, 1);
        }
        /* Not ours: what was there before meets it, when the access is tried again. */
        sigaction(SIGBUS, &twinlog_earlier_action, NULL);
    }

    /* Asked for each pull, since a debugging aid may have been installed meanwhile. */
    static int twinlog_is_guarded(void) {
        struct sigaction action;
        if (sigaction(SIGBUS, NULL, &action) != 0)
            return 0;
        if ((action.sa_flags & SA_SIGINFO) && action.sa_sigaction == twinlog_on_bus_error)
            return 1;
        twinlog_earlier_action = action;
        /* Not deferred: the way back does not restore a mask. */
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        action.sa_sigaction = twinlog_on_bus_error;
        return sigaction(SIGBUS, &action, NULL) == 0;
    }

    /* Whether the pages of so many bytes can be read. */
    static int twinlog_is_readable(const char *at, size_t size, size_t page_size) {
        const volatile char *byte = at;
        const volatile char *last = at + size - 1;
        if (sigsetjmp(twinlog_way_back, 0))
            return 0;
        twinlog_is_touching = 1;
        while (byte < last) {
            (void) *byte;
            byte = (const char *) (((size_t) byte | (page_size - 1)) + 1);
        }
        (void) *last;
        twinlog_is_touching = 0;
        return 1;
    }
    """
    bint twinlog_is_guarded() noexcept
    bint twinlog_is_readable(const char* at, size_t size, size_t page_size) noexcept

cdef extern from "unistd.h":
    int getpagesize() noexcept

cdef size_t _page_size = getpagesize()

cdef enum:
    PAIRS_SIZE = 4096

cdef enum:
    SOUND = 0
    DAMAGED = 1
    NOT_PLAIN = 2


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
    return (whole_crc(at + HEAD_SIZE, body_size, crc32) & CRC_MASK) == get4(at + BODY_CRC_AT)


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
        at = <const char*> memchr(at, 2, end - at)
        if at == NULL:
            at = end
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


cdef bint walk(
    bytes entries, const char* segment, Py_ssize_t segment_size, Bounds* bounds, wanted, checked,
    Found* found,
) except -1:
    """Look at entry after entry until there is enough; False: not of the common kind.

    `segment` are the bytes from the offset `bounds.base` on; `wanted` are tags codes, a
    PropertyPairs, or None for all. With `checked` (the CRC's function, topic or None, queue id,
    number of the first entry) the walk ends before a damaged record; where the first one is
    damaged it is not of the common kind.
    """
    cdef const char* at = PyBytes_AS_STRING(entries)
    cdef const char* end = at + PyBytes_GET_SIZE(entries)
    cdef const char* record
    cdef int64_t offset = bounds.log_max, size, tags_code, last = bounds.base + segment_size
    cdef Py_ssize_t count = 0, examined = 0
    cdef bint is_recent
    cdef bytes pairs
    cdef char text[PAIRS_SIZE]
    cdef int text_size
    cdef object codes = None, judge = None, verdict
    cdef tuple names = None
    cdef dict verdicts = None
    cdef object crc32 = None
    cdef bytes topic = None
    cdef int64_t queue_id = 0, first_number = 0
    cdef int state
    found.total = 0
    found.is_gone = False
    found.is_enough = True
    if bounds.recent_count > COUNT_MAX or bounds.old_count > COUNT_MAX:
        return False
    if not twinlog_is_guarded():
        return False
    if checked is not None:
        crc32, topic, queue_id, first_number = checked
    if isinstance(wanted, tuple):
        names, verdicts, judge = wanted
    else:
        codes = wanted
    while True:
        if at >= end:
            found.is_enough = False
            break
        offset = get8(at)
        size = <int32_t> get4(at + ENTRY_RECORD_SIZE_AT)
        if count:
            is_recent = offset >= bounds.recent_from
            if count >= (bounds.recent_count if is_recent else bounds.old_count):
                break
            if found.total + size > (bounds.recent_bytes if is_recent else bounds.old_bytes):
                break
        examined += 1
        if codes is not None:
            tags_code = get8(at + ENTRY_TAGS_CODE_AT)
            # Below it a tags code is no hash: the consumer looks at the tag itself.
            if tags_code >= -2147483648 and <int32_t> tags_code not in codes:
                at += ENTRY_SIZE
                continue
        at += ENTRY_SIZE
        if offset < bounds.log_min or offset + size > bounds.log_max or size == PRE_BLANK_SIZE:
            if crc32 is not None and size != PRE_BLANK_SIZE:
                if count == 0:
                    return False
                examined -= 1
                break
            found.is_gone = found.is_gone or count == 0
            continue
        if offset < bounds.base or offset + size > last or size <= HEAD_SIZE or count == COUNT_MAX:
            return False
        record = segment + (offset - bounds.base)
        if not twinlog_is_readable(record, size, _page_size):
            return False
        if crc32 is not None:
            state = _structure(
                record, size, offset, topic, queue_id, first_number + examined - 1
            )
            if state == NOT_PLAIN or state == DAMAGED and count == 0:
                return False
            if state == DAMAGED:
                examined -= 1
                break
        if names is not None:
            text_size = _pairs(record, size, names, text)
            if text_size < 0:
                return False
            pairs = PyBytes_FromStringAndSize(text, text_size)
            verdict = verdicts.get(pairs)
            if verdict is None:
                verdict = judge(pairs)
            if not verdict:
                continue
        if crc32 is not None and not _is_body_sound(record, crc32):
            if count == 0:
                return False
            examined -= 1
            break
        found.places[count] = offset - bounds.base
        found.sizes[count] = <int32_t> size
        count += 1
        found.total += size
    found.count = count
    found.examined = examined
    found.last_offset = offset
    return True


cdef char* copy_records(const char* segment, Found* found, char* out) noexcept:
    """Copy what was found one behind the other; what follows it."""
    cdef Py_ssize_t i
    for i in range(found.count):
        memcpy(out, segment + found.places[i], found.sizes[i])
        out += found.sizes[i]
    return out


def gather(
    bytes entries, segment, int64_t base, int64_t log_min, int64_t log_max, int64_t recent_from,
    recent, old, wanted, checked,
):
    """(records, their number, entries examined, offset of the last one, whether one is gone).

    `recent` and `old` are limits in bytes and messages. None: not of the common kind.
    """
    cdef Bounds bounds = Bounds(
        base, log_min, log_max, recent_from, recent[0], recent[1], old[0], old[1]
    )
    cdef Found found
    cdef Py_buffer view
    cdef bytes records
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    try:
        if not walk(
            entries, <const char*> view.buf, view.len, &bounds, wanted, checked, &found
        ):
            return None
        records = PyBytes_FromStringAndSize(NULL, found.total)
        copy_records(<const char*> view.buf, &found, PyBytes_AS_STRING(records))
    finally:
        PyBuffer_Release(&view)
    return records, found.count, found.examined, found.last_offset, found.is_gone
