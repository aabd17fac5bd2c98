# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Hashes of index keys, compiled: `index_key_hash` for a list of what waits for the index."""

from libc.stdint cimport int64_t, uint32_t

from twinlog.message._pairs cimport extend_hash, never_negative

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    const unsigned char* PyUnicode_1BYTE_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)

cdef inline uint32_t _extend(uint32_t value, object text):
    """Go on with a Java hash over the UTF-16 units of `text`."""
    cdef const unsigned char* at
    cdef Py_ssize_t i
    cdef bytes units
    if PyUnicode_IS_ASCII(text):
        extend_hash(<const char*> PyUnicode_1BYTE_DATA(text), PyUnicode_GET_LENGTH(text), &value)
        return value
    units = (<str> text).encode("utf-16-be", "surrogatepass")
    at = units
    for i in range(0, len(units), 2):
        value = value * 31 + (at[i] * 256 + at[i + 1])
    return value


def hash_pending(list pending, int64_t floor, list hashes, list offsets, list timestamps):
    """Add the hash, offset and time of each key of the items behind `floor` to the lists.

    An item is (topic, keys, offset, time).
    """
    cdef tuple item
    cdef object topic = None
    cdef object offset, time
    cdef uint32_t prefix = 0, value
    for item in pending:
        offset = item[2]
        if <int64_t> offset <= floor:
            continue
        if item[0] is not topic:
            topic = item[0]
            prefix = _extend(0, topic) * 31 + 35  # '#'
        time = item[3]
        for key in <tuple> item[1]:
            value = _extend(prefix, key)
            hashes.append(never_negative(value))
            offsets.append(offset)
            timestamps.append(time)
