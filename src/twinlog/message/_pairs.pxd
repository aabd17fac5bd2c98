# cython: language_level=3
"""What the compiled parts share: bytes in network order, Java's hash, the properties that matter."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp


cdef inline char* put4(char* at, int64_t value) noexcept:
    at[0] = <char> (value >> 24)
    at[1] = <char> (value >> 16)
    at[2] = <char> (value >> 8)
    at[3] = <char> value
    return at + 4


cdef inline char* put8(char* at, int64_t value) noexcept:
    return put4(put4(at, value >> 32), value)


cdef inline uint32_t get2(const char* at) noexcept:
    return <uint32_t> (<uint8_t> at[0]) << 8 | <uint8_t> at[1]


cdef inline uint32_t get4(const char* at) noexcept:
    cdef const uint8_t* byte = <const uint8_t*> at
    return (
        (<uint32_t> byte[0] << 24) | (<uint32_t> byte[1] << 16)
        | (<uint32_t> byte[2] << 8) | <uint32_t> byte[3]
    )


cdef inline int64_t get8(const char* at) noexcept:
    return <int64_t> (<uint64_t> get4(at) << 32 | <uint64_t> get4(at + 4))


cdef inline char* put_hexadecimal(char* at, uint64_t value) noexcept:
    """The 16 digits of an offset in a message id."""
    cdef int shift = 60
    while shift >= 0:
        at[0] = b"0123456789ABCDEF"[(value >> shift) & 15]
        at += 1
        shift -= 4
    return at


cdef inline char* put_decimal(char* at, int64_t value) noexcept:
    cdef char digits[20]
    cdef int size = 0
    cdef uint64_t rest
    if value < 0:
        at[0] = 45
        at += 1
        rest = <uint64_t> 0 - <uint64_t> value
    else:
        rest = <uint64_t> value
    while True:
        digits[size] = <char> (48 + rest % 10)
        size += 1
        rest //= 10
        if rest == 0:
            break
    while size:
        size -= 1
        at[0] = digits[size]
        at += 1
    return at


cdef inline bint extend_hash(const char* at, Py_ssize_t size, uint32_t* value) noexcept:
    """Go on with a Java hash; False: not ASCII, where bytes are not what Java hashes."""
    cdef const uint8_t* byte = <const uint8_t*> at
    cdef const uint8_t* end = byte + size
    cdef uint32_t total = value[0]
    cdef uint8_t seen = 0
    while end - byte >= 4:  # 31^4 at once: the multiplications of one byte wait for the last one's.
        seen |= byte[0] | byte[1] | byte[2] | byte[3]
        total = total * 923521 + (byte[0] * 29791u + byte[1] * 961u + byte[2] * 31u + byte[3])
        byte += 4
    while byte < end:
        seen |= byte[0]
        total = total * 31 + byte[0]
        byte += 1
    value[0] = total
    return seen < 128


cdef inline Py_ssize_t next_character(
    const uint8_t* at, Py_ssize_t size, uint32_t* character
) noexcept:
    """Read one character of UTF-8; how many bytes it has, 0: they are none."""
    cdef uint32_t first = at[0]
    cdef uint32_t smallest
    cdef Py_ssize_t length, i
    if first < 0x80:
        character[0] = first
        return 1
    if first >= 0xC2 and first < 0xE0:
        length, first, smallest = 2, first & 0x1F, 0x80
    elif first >= 0xE0 and first < 0xF0:
        length, first, smallest = 3, first & 0x0F, 0x800
    elif first >= 0xF0 and first < 0xF5:
        length, first, smallest = 4, first & 0x07, 0x10000
    else:
        return 0
    if length > size:
        return 0
    for i in range(1, length):
        if at[i] & 0xC0 != 0x80:
            return 0
        first = first << 6 | (at[i] & 0x3F)
    if first < smallest or first > 0x10FFFF or (first >= 0xD800 and first < 0xE000):
        return 0
    character[0] = first
    return length


cdef inline bint text_hash(const char* at, Py_ssize_t size, uint32_t* value) noexcept:
    """Go on with a Java hash, over UTF-16 as Java does; False: the text is not UTF-8."""
    cdef uint32_t total = value[0]
    cdef uint32_t character = 0
    cdef Py_ssize_t length
    if extend_hash(at, size, value):
        return True
    while size > 0:
        length = next_character(<const uint8_t*> at, size, &character)
        if length == 0:
            return False
        if character >= 0x10000:
            total = total * 31 + (0xD7C0 + (character >> 10))
            character = 0xDC00 | (character & 0x3FF)
        total = total * 31 + character
        at += length
        size -= length
    value[0] = total
    return True


cdef inline uint32_t never_negative(uint32_t value) noexcept:
    """Java's Math.abs of a hash, with 0 for the number that has no positive twin."""
    if value & <uint32_t> 0x80000000:
        value = 0 - value
        if value == <uint32_t> 0x80000000:
            return 0
    return value


cdef struct Text:
    const char* at
    Py_ssize_t size          # 0: there is none.


cdef struct Dispatched:
    Text tags
    Text unique
    Text keys


cdef inline void find_dispatched(
    const char* at, Py_ssize_t size, Dispatched* found
) noexcept:
    """The last values that are not empty of TAGS, UNIQ_KEY and KEYS."""
    cdef const char* end = at + size
    cdef const char* stop
    cdef Py_ssize_t length
    found.tags.at = found.unique.at = found.keys.at = at
    found.tags.size = found.unique.size = found.keys.size = 0
    while at < end:
        stop = <const char*> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        length = stop - at
        if length > 5 and memcmp(at, b"TAGS\x01", 5) == 0:
            found.tags.at = at + 5
            found.tags.size = length - 5
        elif length > 5 and memcmp(at, b"KEYS\x01", 5) == 0:
            found.keys.at = at + 5
            found.keys.size = length - 5
        elif length > 9 and memcmp(at, b"UNIQ_KEY\x01", 9) == 0:
            found.unique.at = at + 9
            found.unique.size = length - 9
        at = stop + 1


cdef enum:
    ROOM_MIN = 512           # Of what grows; doubled when it is full.


cdef inline char* more(bytearray data, Py_ssize_t* used, Py_ssize_t size) except NULL:
    """Where the next few bytes go. `used` of `data` count, and these; the rest is room."""
    cdef Py_ssize_t end = used[0] + size
    if end > PyByteArray_GET_SIZE(data):
        PyByteArray_Resize(data, max(ROOM_MIN, 2 * end))
    used[0] = end
    return PyByteArray_AS_STRING(data) + end - size


cdef inline int push8(bytearray data, Py_ssize_t* used, int64_t value) except -1:
    """Append a number of this machine."""
    (<int64_t*> more(data, used, 8))[0] = value
    return 0


cdef inline Py_ssize_t add_keys(
    bytearray hashes, Py_ssize_t* used, uint32_t prefix, Dispatched* found
) except -2:
    """Append the hashes of a record's index keys; how many. -1, and none: one is not UTF-8.

    `prefix` is the hash of what stands before every key of the topic.
    """
    cdef Py_ssize_t before = used[0]
    cdef const char* at = found.keys.at
    cdef const char* end = at + found.keys.size
    cdef const char* stop
    cdef uint32_t value = prefix
    cdef bint is_text = True
    if found.unique.size:
        is_text = text_hash(found.unique.at, found.unique.size, &value)
        push8(hashes, used, never_negative(value))
    while at < end and is_text:
        stop = <const char*> memchr(at, 32, end - at)
        if stop == NULL:
            stop = end
        if stop > at:
            value = prefix
            is_text = text_hash(at, stop - at, &value)
            push8(hashes, used, never_negative(value))
        at = stop + 1
    if not is_text:
        used[0] = before
        return -1
    return (used[0] - before) // 8
