# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The records of a batch in one pass over the body of its request, compiled.

Does what `decode_batch`, `encode_members` and the hashing of the index do. What is not plain (sizes
that do not add up, zeros in properties, tags or keys that are not UTF-8, too much of anything) is left
to them: they give reasons, and they are the reference.
"""

from cpython.bytearray cimport PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.string cimport memchr, memcpy

from twinlog.message._crc cimport whole_crc
from twinlog.message._layout cimport (
    CRC_MASK,
    ENTRY_SIZE,
    MEMBER_BODY_SIZE_AT,
    MEMBER_FLAG_AT,
    MEMBER_HEAD_SIZE,
    MEMBER_SIZE_MIN,
    PLACE_SIZE,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
)
from twinlog.message._pairs cimport (
    Dispatched,
    add_keys,
    find_dispatched,
    get2,
    get4,
    push8,
    put4,
    put8,
    put_hexadecimal,
    text_hash,
)

cdef enum:
    ID_SIZE = 16             # Hexadecimal digits of an offset.
    SEPARATOR = 2            # Of properties.


cdef Py_ssize_t _count(const char* at, Py_ssize_t size, Py_ssize_t* separators) noexcept:
    """How many members there are, and how many whose properties lack the separator at their end;
    -1: the sizes do not add up."""
    cdef const char* end = at + size
    cdef const char* properties
    cdef int64_t member_size, body_size
    cdef Py_ssize_t count = 0
    separators[0] = 0
    while at < end:
        if end - at < MEMBER_SIZE_MIN:
            return -1
        member_size = <int32_t> get4(at)
        body_size = <int32_t> get4(at + MEMBER_BODY_SIZE_AT)
        if body_size < 0 or member_size > end - at or body_size + MEMBER_SIZE_MIN > member_size:
            return -1
        properties = at + MEMBER_SIZE_MIN + body_size
        at += member_size
        if get2(properties - PROPERTIES_LENGTH_SIZE) != at - properties:
            return -1
        separators[0] += at > properties and (at - 1)[0] != SEPARATOR
        count += 1
    return count


def encode_body(
    bytes body, *, crc32, bytes mark, bytes tail, bytes topic, uint32_t prefix, uint32_t magic,
    bytes middle, bytes id_prefix, int64_t queue_id, int64_t queue_offset, int64_t physical_offset,
    Py_ssize_t count_max, Py_ssize_t keys_max,
):
    """(records, entries, count, hashes of keys, their offsets, last without keys, ids) or None.

    `tail` stands behind the properties of each member, and has nothing for queue or index; `middle`
    is the part of the head that all share. A first member with `mark` is not for this function.
    """
    cdef const char* at = PyBytes_AS_STRING(body)
    cdef const char* content
    cdef const char* properties
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), middle_size = PyBytes_GET_SIZE(middle)
    cdef Py_ssize_t tail_size = PyBytes_GET_SIZE(tail), id_size = PyBytes_GET_SIZE(id_prefix)
    cdef Py_ssize_t body_size, own_size, properties_size, number, key_count, _
    cdef Py_ssize_t separators
    cdef Py_ssize_t count = _count(at, PyBytes_GET_SIZE(body), &separators)
    cdef Py_ssize_t fixed_size = PLACE_SIZE + middle_size + 4 + topic_size + PROPERTIES_LENGTH_SIZE
    cdef int64_t size, crc, bare_offset = -1
    cdef uint32_t tags_code
    cdef Dispatched found
    cdef bytes data, entries, ids
    cdef char* out
    cdef char* entry
    cdef char* id_at
    cdef bytearray hashes = bytearray(), offsets = bytearray()
    cdef Py_ssize_t hashes_used = 0, offsets_used = 0
    if count < 1 or count > count_max:
        return None
    body_size = get4(at + MEMBER_BODY_SIZE_AT)
    if mark in body[MEMBER_SIZE_MIN + body_size : <Py_ssize_t> get4(at)]:
        return None
    data = PyBytes_FromStringAndSize(
        NULL,
        PyBytes_GET_SIZE(body) + count * (fixed_size + tail_size - MEMBER_SIZE_MIN) + separators,
    )
    entries = PyBytes_FromStringAndSize(NULL, count * ENTRY_SIZE)
    ids = PyBytes_FromStringAndSize(NULL, count * (id_size + ID_SIZE + 1))
    out = PyBytes_AS_STRING(data)
    entry = PyBytes_AS_STRING(entries)
    id_at = PyBytes_AS_STRING(ids)
    for number in range(count):
        body_size = get4(at + MEMBER_BODY_SIZE_AT)
        content = at + MEMBER_HEAD_SIZE
        properties = content + body_size + PROPERTIES_LENGTH_SIZE
        own_size = <Py_ssize_t> get4(at) - MEMBER_SIZE_MIN - body_size
        properties_size = own_size + tail_size
        if own_size:
            if memchr(properties, 0, own_size) != NULL:
                return None
            properties_size += properties[own_size - 1] != SEPARATOR
        if properties_size > PROPERTIES_SIZE_MAX:
            return None
        find_dispatched(properties, own_size, &found)
        tags_code = 0
        if not text_hash(found.tags.at, found.tags.size, &tags_code):
            return None
        key_count = add_keys(hashes, &hashes_used, prefix, &found)
        if key_count < 0 or hashes_used > 8 * keys_max:
            return None
        for _ in range(key_count):
            push8(offsets, &offsets_used, physical_offset)
        if key_count == 0:
            bare_offset = physical_offset
        size = fixed_size + body_size + properties_size
        crc = 0
        if body_size:
            crc = <int64_t> whole_crc(content, body_size, crc32) & CRC_MASK

        out = put4(put4(put4(put4(out, size), magic), crc), queue_id)
        memcpy(out, at + MEMBER_FLAG_AT, 4)  # The flag.
        out = put8(put8(out + 4, queue_offset + number), physical_offset)
        memcpy(out, PyBytes_AS_STRING(middle), middle_size)
        out = put4(out + middle_size, body_size)
        memcpy(out, content, body_size)
        out += body_size
        memcpy(out, PyBytes_AS_STRING(topic), topic_size)
        out += topic_size
        out[0] = <char> (properties_size >> 8)
        out[1] = <char> properties_size
        out += 2
        memcpy(out, properties, own_size)
        out += own_size
        if properties_size > own_size + tail_size:
            out[0] = SEPARATOR
            out += 1
        memcpy(out, PyBytes_AS_STRING(tail), tail_size)
        out += tail_size
        entry = put8(put4(put8(entry, physical_offset), size), <int32_t> tags_code)
        memcpy(id_at, PyBytes_AS_STRING(id_prefix), id_size)
        id_at = put_hexadecimal(id_at + id_size, physical_offset)
        id_at[0] = 44  # A comma, which the last does not need.
        id_at += 1
        at = properties + own_size
        physical_offset += size
    PyByteArray_Resize(hashes, hashes_used)
    PyByteArray_Resize(offsets, offsets_used)
    assert out == PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)
    text = PyUnicode_DecodeASCII(PyBytes_AS_STRING(ids), PyBytes_GET_SIZE(ids) - 1, NULL)
    return data, entries, count, hashes, offsets, bare_offset, text
