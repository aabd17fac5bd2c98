# cython: language_level=3
"""The compiled pass over the properties of a send, as the send lane sees it."""

from libc.stdint cimport int32_t

from twinlog.broker.put._send_header cimport Span

cdef enum:
    SPECIALS_MAX = 32        # Names in the table of properties.


cdef struct Special:
    const char* at           # Its name.
    Py_ssize_t size
    int kind


cdef struct Scanned:
    Py_ssize_t size          # Of what is stored, in the buffer that was given.
    int32_t tags_code
    bint must_wait
    bint says_wait           # WAIT is somewhere in the text.
    bint is_half
    bint was_parked          # It names a destination: it was delayed or half before.
    int32_t level            # Of its delay; 0: none.
    Span unique
    Span keys


cdef class PropertyScanner:
    cdef bytes _cluster
    cdef list _names         # Their bytes are what `_specials` points into.
    cdef Special _specials[SPECIALS_MAX]
    cdef int _count

    cdef bint scan(self, const char* at, Py_ssize_t size, char* out, Scanned* found) noexcept
    cdef int _kind(self, const char* name, Py_ssize_t size) noexcept


cdef object index_keys(Scanned* found)
