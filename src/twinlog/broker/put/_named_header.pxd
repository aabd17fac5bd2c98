# cython: language_level=3
"""Frames of requests whose fields have names, parsed: both forms of the header, as far as clients
write them.

Inline, for lanes. What is written in another way than clients write it is no error: it is left to
the Python path.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from twinlog.broker.put._send_header cimport (
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    OPENING_SIZE,
    Numbers,
    Span,
    read_header,
)
from twinlog.message._pairs cimport get2, get4

cdef enum:
    NAMED_FIELDS_MAX = 12    # That a lane looks at.
    EXT_COUNT_MAX = 64       # Of a binary header; Python says where there are too many.
    BINARY_SIZE_MIN = 21
    BINARY_OPAQUE_AT = 5
    BINARY_FLAG_AT = 9
    BINARY_REMARK_AT = 13


cdef extern from *:
    """
    #ifndef TWINLOG_FIELD_NAME
    #define TWINLOG_FIELD_NAME
    typedef struct { const char *name; int size; } twinlog_field_name;
    #endif
    """
    ctypedef struct FieldName "twinlog_field_name":
        const char* name
        int size


cdef struct NamedFrame:
    Numbers numbers
    bint is_binary
    Span fields[NAMED_FIELDS_MAX]
    Py_ssize_t body_size
    Py_ssize_t size          # Of all of it.
    const FieldName* names   # Whose fields are looked at,
    int count                # and how many they are.


cdef inline void keep_field(NamedFrame* frame, Span* name, Span* value) noexcept:
    """Of a field that comes twice the last counts; one that nobody reads is passed over."""
    cdef int number
    for number in range(frame.count):
        if (
            name.size == frame.names[number].size
            and memcmp(name.at, frame.names[number].name, name.size) == 0
        ):
            frame.fields[number] = value[0]
            return


cdef inline bint keep_plain(Span* name, Span* value, void* to) noexcept:
    """A field of a JSON header; with an escape in it, the frame is left to Python."""
    if not value.has_escape:
        keep_field(<NamedFrame*> to, name, value)
    return not value.has_escape


cdef inline bint is_ascii(const char* at, Py_ssize_t size) noexcept:
    cdef uint8_t seen = 0
    cdef Py_ssize_t i
    for i in range(size):
        seen |= <uint8_t> at[i]
    return seen < 128


cdef inline bint read_binary(const char* at, Py_ssize_t size, NamedFrame* frame) noexcept:
    """A binary header without a remark, its ext block up to its end."""
    cdef const char* end = at + size
    cdef Span name, value
    cdef int64_t length
    cdef int count = 0
    if size < BINARY_SIZE_MIN or get4(at + BINARY_REMARK_AT) != 0:
        return False
    frame.numbers.code = get2(at)
    frame.numbers.opaque = <int32_t> get4(at + BINARY_OPAQUE_AT)
    frame.numbers.flag = <int32_t> get4(at + BINARY_FLAG_AT)
    if get4(at + BINARY_REMARK_AT + 4) != <uint32_t> (size - BINARY_SIZE_MIN):
        return False
    at += BINARY_SIZE_MIN
    name.has_escape = value.has_escape = False
    while at < end:
        count += 1
        if count > EXT_COUNT_MAX or end - at < 6:
            return False
        name.size = get2(at)
        name.at = at + 2
        if name.size > 32767 or end - name.at < name.size + 4:
            return False
        length = <int32_t> get4(name.at + name.size)
        value.at = name.at + name.size + 4
        if length < 0 or end - value.at < length:
            return False
        value.size = length
        if not is_ascii(name.at, name.size) or not is_ascii(value.at, value.size):
            return False
        if name.size and value.size:  # What is empty is not there.
            keep_field(frame, &name, &value)
        at = value.at + value.size
    return True


cdef inline bint parse_named(
    const char* at, const char* end, const FieldName* names, int count, NamedFrame* frame
) noexcept:
    """Whether a whole frame is at `at`, with a header that this file can read."""
    cdef uint32_t length, header_size
    cdef int number
    frame.names, frame.count = names, count
    if end - at < OPENING_SIZE:
        return False
    length = get4(at)
    header_size = get4(at + 4) & 0xFFFFFF
    if length > FRAME_SIZE_MAX or header_size > HEADER_SIZE_MAX or header_size + 4 > length:
        return False
    frame.size = <Py_ssize_t> length + 4
    frame.body_size = frame.size - OPENING_SIZE - header_size
    if end - at < frame.size:
        return False
    for number in range(frame.count):
        frame.fields[number].at = NULL
    frame.is_binary = at[4] == 1
    if frame.is_binary:
        return read_binary(at + OPENING_SIZE, header_size, frame)
    return at[4] == 0 and read_header(
        at + OPENING_SIZE, header_size, &frame.numbers, keep_plain, <void*> frame
    )
