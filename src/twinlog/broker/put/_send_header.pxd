# cython: language_level=3
"""Frames of sends, parsed: JSON as far as headers of clients go, and nothing beyond it.

Inline, for `_send_lane.pyx`; the walk over a header serves the other lanes too. What is written in another way than clients write it is no error: it
is left to the Python path.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from twinlog.message._pairs cimport get4

cdef enum:
    FIELD_COUNT = 15         # Fields `a` to `o` of a V2 header.
    REQUIRED_COUNT = 8       # The first of them.
    # Larger ones meet their limits where limits are looked after.
    FRAME_SIZE_MAX = 1 << 20
    HEADER_SIZE_MAX = 1 << 16
    OPENING_SIZE = 8         # The lengths of frame and header.


cdef struct Span:
    const char* at           # NULL: it is not there.
    Py_ssize_t size
    bint has_escape


cdef struct Numbers:         # Of every header, beside its ext fields.
    int64_t code
    int64_t flag
    int64_t opaque


cdef struct Header:
    Numbers numbers
    Span fields[FIELD_COUNT]


cdef struct Frame:
    Header header
    const char* body
    Py_ssize_t body_size
    Py_ssize_t size          # Of all of it.


cdef inline const char* skip_space(const char* at, const char* end) noexcept:
    while at < end and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef inline const char* read_string(const char* at, const char* end, Span* span) noexcept:
    """The string that opens at `at`; what follows it, or NULL."""
    cdef uint8_t c
    if at >= end or at[0] != 34:
        return NULL
    at += 1
    span.at = at
    span.has_escape = False
    while at < end:
        c = <uint8_t> at[0]
        if c == 34:
            span.size = at - span.at
            return at + 1
        if c < 32 or c >= 128:
            return NULL
        if c == 92:
            span.has_escape = True
            at += 1
        at += 1
    return NULL


cdef inline bint read_number(const char* at, Py_ssize_t size, int64_t* value) noexcept:
    """Digits as every writer of headers writes them: no sign but minus, no leading zero."""
    cdef bint is_negative = False
    cdef int64_t total = 0
    cdef Py_ssize_t i
    if size > 0 and at[0] == 45:
        is_negative = True
        at += 1
        size -= 1
    if size < 1 or size > 18 or (at[0] == 48 and (size > 1 or is_negative)):
        return False
    for i in range(size):
        if at[i] < 48 or at[i] > 57:
            return False
        total = total * 10 + (at[i] - 48)
    value[0] = -total if is_negative else total
    return True


cdef inline const char* read_top_number(const char* at, const char* end, int64_t* value) noexcept:
    cdef const char* start = at
    while at < end and (at[0] == 45 or (at[0] >= 48 and at[0] <= 57)):
        at += 1
    return at if read_number(start, at - start, value) else NULL


cdef inline const char* skip_other(Span* name, const char* at, const char* end) noexcept:
    """The value of a field that does not matter here, in the one form that clients write."""
    cdef Span value
    cdef int64_t number
    if name.size == 7 and memcmp(name.at, b"version", 7) == 0:
        at = read_top_number(at, end, &number)
        return at if at != NULL and number == <int32_t> number else NULL
    if name.size == 8 and memcmp(name.at, b"language", 8) == 0:
        at = read_string(at, end, &value)
        return at if at != NULL and not value.has_escape else NULL
    if name.size == 23 and memcmp(name.at, b"serializeTypeCurrentRPC", 23) == 0:
        at = read_string(at, end, &value)
        return at if at != NULL and value.size == 4 and memcmp(value.at, b"JSON", 4) == 0 else NULL
    return NULL


# Takes one ext field into what a lane keeps of it; False: the frame is not for the lane.
ctypedef bint (*TakeField)(Span* name, Span* value, void* to) noexcept


cdef inline const char* read_fields(
    const char* at, const char* end, TakeField take, void* to
) noexcept:
    """The ext fields, each a string; what follows them, or NULL."""
    cdef Span name, value
    if at >= end or at[0] != 123:
        return NULL
    at = skip_space(at + 1, end)
    while True:
        at = read_string(at, end, &name)
        if at == NULL or name.has_escape:
            return NULL
        at = skip_space(at, end)
        if at >= end or at[0] != 58:
            return NULL
        at = read_string(skip_space(at + 1, end), end, &value)
        if at == NULL or not take(&name, &value, to):
            return NULL
        at = skip_space(at, end)
        if at >= end:
            return NULL
        if at[0] == 125:
            return at + 1
        if at[0] != 44:
            return NULL
        at = skip_space(at + 1, end)


cdef inline bint read_header(
    const char* at, Py_ssize_t size, Numbers* numbers, TakeField take, void* to
) noexcept:
    """Read a JSON header; False: not one of those that lanes take."""
    cdef const char* end = at + size
    cdef Span name
    cdef bint has_ext = False
    numbers.code = numbers.flag = numbers.opaque = 0
    at = skip_space(at, end)
    if at >= end or at[0] != 123:
        return False
    at = skip_space(at + 1, end)
    while True:
        at = read_string(at, end, &name)
        if at == NULL or name.has_escape:
            return False
        at = skip_space(at, end)
        if at >= end or at[0] != 58:
            return False
        at = skip_space(at + 1, end)
        if name.size == 4 and memcmp(name.at, b"code", 4) == 0:
            at = read_top_number(at, end, &numbers.code)
        elif name.size == 4 and memcmp(name.at, b"flag", 4) == 0:
            at = read_top_number(at, end, &numbers.flag)
        elif name.size == 6 and memcmp(name.at, b"opaque", 6) == 0:
            at = read_top_number(at, end, &numbers.opaque)
        elif name.size == 9 and memcmp(name.at, b"extFields", 9) == 0:
            if has_ext:
                return False
            has_ext = True
            at = read_fields(at, end, take, to)
        else:
            at = skip_other(&name, at, end)
        if at == NULL:
            return False
        at = skip_space(at, end)
        if at >= end:
            return False
        if at[0] == 125:
            return has_ext and skip_space(at + 1, end) == end
        if at[0] != 44:
            return False
        at = skip_space(at + 1, end)


cdef inline bint keep_letter(Span* name, Span* value, void* to) noexcept:
    """A field of a V2 header; those with longer names are passed over."""
    cdef int number
    if name.size == 1:
        number = name.at[0] - 97
        if 0 <= number < FIELD_COUNT:
            (<Header*> to).fields[number] = value[0]
    return True


cdef inline bint has_required(Header* header) noexcept:
    cdef int number
    for number in range(REQUIRED_COUNT):
        if header.fields[number].at == NULL:
            return False
    return True


cdef inline int hexadecimal(char c) noexcept:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= c <= 102:
        return c - 87
    if 65 <= c <= 70:
        return c - 55
    return -1


cdef inline Py_ssize_t unescape(Span* span, char* out) noexcept:
    """The text of a JSON string into `out`; -1: a character that is not ASCII."""
    cdef const char* at = span.at
    cdef const char* end = at + span.size
    cdef char* start = out
    cdef char c
    cdef int high, low
    while at < end:
        c = at[0]
        if c != 92:
            out[0] = c
            out += 1
            at += 1
            continue
        if end - at < 2:
            return -1
        c = at[1]
        at += 2
        if c == 117:  # u
            if end - at < 4 or at[0] != 48 or at[1] != 48:
                return -1
            high = hexadecimal(at[2])
            low = hexadecimal(at[3])
            if high < 0 or low < 0 or high > 7:
                return -1
            out[0] = <char> (high * 16 + low)
            at += 4
        elif c == 34 or c == 92 or c == 47:
            out[0] = c
        elif c == 110:
            out[0] = 10
        elif c == 116:
            out[0] = 9
        elif c == 114:
            out[0] = 13
        elif c == 98:
            out[0] = 8
        elif c == 102:
            out[0] = 12
        else:
            return -1
        out += 1
    return out - start


cdef inline bint begins_with_other(
    const char* at, const char* end, int64_t code, int64_t other_code
) noexcept:
    """Whether the first header says at once that it is of neither code: most do, to one lane."""
    cdef int64_t found
    at += OPENING_SIZE
    if end - at < 8 or memcmp(at, b'{"code":', 8) != 0:
        return False
    return read_top_number(at + 8, end, &found) != NULL and found != code and found != other_code


cdef inline bint parse_frame(const char* at, const char* end, Frame* frame) noexcept:
    """Whether a whole frame is at `at`, with a JSON header that this file can read."""
    cdef Header* header = &frame.header
    cdef uint32_t length, header_size
    cdef int number
    if end - at < OPENING_SIZE:
        return False
    length = get4(at)
    header_size = get4(at + 4)
    if length > FRAME_SIZE_MAX or header_size > HEADER_SIZE_MAX or header_size + 4 > length:
        return False
    frame.size = <Py_ssize_t> length + 4
    frame.body = at + OPENING_SIZE + header_size
    frame.body_size = frame.size - OPENING_SIZE - header_size
    if end - at < frame.size:
        return False
    for number in range(FIELD_COUNT):
        header.fields[number].at = NULL
    return read_header(
        at + OPENING_SIZE, header_size, &header.numbers, keep_letter, <void*> header
    )
