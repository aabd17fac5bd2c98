# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""Answers to sends that are stored, compiled: `SendResponseTemplate` for a whole list of them."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from twinlog.message._pairs cimport put4, put_decimal, put_hexadecimal
from twinlog.remoting._traffic cimport write_run


cdef inline char* _piece(char* at, bytes piece) noexcept:
    memcpy(at, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
    return at + PyBytes_GET_SIZE(piece)


cdef class ReplyWriter:
    """The text of an answer, and room for its numbers."""

    cdef bytes _head, _id, _offset, _opaque, _end
    cdef Py_ssize_t _size_max

    def __init__(self, tuple pieces):
        """`pieces` stand around queue id, physical offset, queue offset and opaque."""
        self._head, self._id, self._offset, self._opaque, self._end = pieces
        self._size_max = sum(map(len, pieces)) + 8 + 3 * 20 + 16

    def write(self, list plain):
        """Hand each connection its answers: one piece of bytes for those that follow each other."""
        cdef Py_ssize_t first = 0, last, total = len(plain)
        cdef object connection
        cdef bytes room
        cdef char* start
        cdef char* at
        while first < total:
            connection = (<tuple> plain[first])[0]
            last = first + 1
            while last < total and (<tuple> plain[last])[0] is connection:
                last += 1
            room = PyBytes_FromStringAndSize(NULL, (last - first) * self._size_max)
            start = at = PyBytes_AS_STRING(room)
            for number in range(first, last):
                at = self._frame(at, <tuple> plain[number])
            write_run(connection, PyBytes_FromStringAndSize(start, at - start), last - first)
            first = last

    cdef char* _frame(self, char* frame, tuple waiting) except NULL:
        cdef char* at = _piece(frame + 8, self._head)
        at = put_decimal(at, waiting[3])
        at = _piece(at, self._id)
        at = put_hexadecimal(at, waiting[5])
        at = _piece(at, self._offset)
        at = put_decimal(at, waiting[4])
        at = _piece(at, self._opaque)
        at = put_decimal(at, waiting[1])
        at = _piece(at, self._end)
        put4(frame, at - frame - 4)
        put4(frame + 4, at - frame - 8)
        return at
