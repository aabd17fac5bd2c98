# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Runs of plain messages, compiled: the forms of `pack_run_in_python` and of `receipts`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from twinlog.message._layout cimport MEMBER_SIZE_MIN, PROPERTIES_LENGTH_SIZE
from twinlog.message._pairs cimport put4

from twinlog.client.message import Message, SendReceipt

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)
    void* PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    object PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    bint PyLong_CheckExact(object)
    void PyObject_GC_UnTrack(void*)

cdef object _Message = Message
cdef object _Receipt = SendReceipt
cdef object _new_tuple = tuple.__new__
cdef int64_t _INT_MAX = 0x7FFFFFFF
cdef const char* _DIGITS = "0123456789ABCDEF"


cdef inline bint _is_plain_tag(object tags):
    cdef const unsigned char* at
    cdef Py_ssize_t i
    cdef unsigned char one
    if tags is None:
        return True
    if not PyUnicode_CheckExact(tags) or not PyUnicode_IS_ASCII(tags):
        return False
    at = <const unsigned char*> PyUnicode_DATA(tags)
    for i in range(PyUnicode_GET_LENGTH(tags)):
        one = at[i] | 32
        if not (c'a' <= one <= c'z' or c'0' <= at[i] <= c'9'):
            return False
    return 0 < PyUnicode_GET_LENGTH(tags) <= 1024


cdef bint _is_plain(object message, int64_t body_size_max):
    cdef object value
    if type(message) is not _Message or not PyUnicode_CheckExact(message.topic):
        return False
    value = message.body
    if not PyBytes_CheckExact(value) or not 0 < PyBytes_GET_SIZE(value) <= body_size_max:
        return False
    if message.properties is not None or message.sharding_key is not None:
        return False
    value = message.keys
    if not PyTuple_CheckExact(value) or value:
        return False
    value = message.delay_level
    if not PyLong_CheckExact(value) or value:
        return False
    value = message.wait_store_ok
    if value is not True and value is not False:
        return False
    value = message.flag
    if not PyLong_CheckExact(value) or (value and not -_INT_MAX <= value <= _INT_MAX):
        return False
    return _is_plain_tag(message.tags)


cdef inline char* _put(char* at, const char* text, Py_ssize_t size) noexcept:
    memcpy(at, text, size)
    return at + size


cdef inline char* _put_member(
    char* at, object message, Py_ssize_t properties_size, object unique_id, bint wait
):
    cdef object body = message.body, tags = message.tags
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body)
    at = put4(at, MEMBER_SIZE_MIN + size + properties_size)
    at = put4(at, 0)
    at = put4(at, 0)
    at = put4(at, <int64_t> message.flag)
    at = put4(at, size)
    at = _put(at, PyBytes_AS_STRING(body), size)
    at[0] = <char> (properties_size >> 8)
    at[1] = <char> properties_size
    at = _put(at + PROPERTIES_LENGTH_SIZE, b"UNIQ_KEY\x01", 9)
    at = _put(at, <char*> PyUnicode_DATA(unique_id), PyUnicode_GET_LENGTH(unique_id))
    at = _put(at, b"\x02WAIT\x01true", 10) if wait else _put(at, b"\x02WAIT\x01false", 11)
    if tags is not None:
        at = _put(at, b"\x02TAGS\x01", 6)
        at = _put(at, <char*> PyUnicode_DATA(tags), PyUnicode_GET_LENGTH(tags))
    return at


cdef inline object _unique_id(object prefix, int64_t counter):
    cdef Py_ssize_t size = PyUnicode_GET_LENGTH(prefix)
    cdef object text = PyUnicode_New(size + 4, 127)
    cdef char* at = _put(<char*> PyUnicode_DATA(text), <char*> PyUnicode_DATA(prefix), size)
    at[0] = _DIGITS[counter >> 12 & 15]
    at[1] = _DIGITS[counter >> 8 & 15]
    at[2] = _DIGITS[counter >> 4 & 15]
    at[3] = _DIGITS[counter & 15]
    return text


def pack_run(
    list messages, Py_ssize_t start, object unique_ids, int64_t size_room, Py_ssize_t count_room,
    int64_t body_size_max,
):
    """Bytes and ids of a run, or None."""
    cdef Py_ssize_t end = start, stop = min(start + count_room, len(messages)), i
    cdef Py_ssize_t total = 0, size, fixed, properties_fixed
    cdef object message, topic, wait, tags
    cdef char* at
    cdef bytes data
    cdef list ids
    cdef int64_t counter
    if not _is_plain(messages[start], body_size_max):
        return None
    topic, wait = messages[start].topic, messages[start].wait_store_ok
    properties_fixed = 9 + (10 if wait else 11) + <Py_ssize_t> unique_ids.id_size
    fixed = MEMBER_SIZE_MIN + properties_fixed
    while end < stop:
        message = messages[end]
        if end > start:
            if not _is_plain(message, body_size_max) or message.wait_store_ok is not wait:
                break
            if message.topic is not topic and message.topic != topic:
                break
        size = fixed + PyBytes_GET_SIZE(message.body)
        tags = message.tags
        if tags is not None:
            size += 6 + PyUnicode_GET_LENGTH(tags)
        if total + size > size_room:
            break
        total += size
        end += 1
    if end == start:
        return None
    prefix, first = unique_ids.take(end - start)
    counter = first
    data = PyBytes_FromStringAndSize(NULL, total)
    at = PyBytes_AS_STRING(data)
    ids = []
    for i in range(start, end):
        message = messages[i]
        tags = message.tags
        unique_id = _unique_id(prefix, counter)
        counter = (counter + 1) & 0xFFFF
        ids.append(unique_id)
        size = properties_fixed if tags is None else properties_fixed + 6 + len(tags)
        at = _put_member(at, message, size, unique_id, wait is True)
    return data, ids


def receipts(object status, object queue, list ids, object places, list offset_ids):
    """One receipt for each id."""
    cdef list result = []
    cdef Py_ssize_t i = 0
    cdef object receipt
    for place in places:
        receipt = _new_tuple(_Receipt, (status, ids[i], queue, place, offset_ids[i], ""))
        # Nothing in it leads back to it, and callers keep them by the million: the search for
        # cycles would go through them again and again, for more than all the rest of a send.
        PyObject_GC_UnTrack(<void*> receipt)
        result.append(receipt)
        i += 1
    return result
