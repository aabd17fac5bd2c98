# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""The properties of a send in one pass: `scan_properties`, compiled.

Which names are special, and of which kind, is said in `send_properties.py` alone. A message with a
kind that is not known here is left to the Python path, never taken for a plain one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, uint32_t
from libc.string cimport memcmp, memcpy

from twinlog.message._layout cimport PROPERTIES_SIZE_MAX
from twinlog.message._pairs cimport extend_hash

from twinlog.broker.put import send_properties as table

cdef enum:
    LEVEL_DIGITS_MAX = 4
    CLUSTER_SIZE_MAX = 1000

cdef int WAIT = table.WAIT, TAGS = table.TAGS, UNIQUE = table.UNIQUE, KEYS = table.KEYS
cdef int CLUSTER = table.CLUSTER, DELAY = table.DELAY, HALF = table.HALF, PARKED = table.PARKED


cdef inline bint _is_true(const char* at, Py_ssize_t size) noexcept:
    return (
        size == 4
        and (at[0] | 32) == 116 and (at[1] | 32) == 114
        and (at[2] | 32) == 117 and (at[3] | 32) == 101
    )


cdef inline int32_t _level(const char* at, Py_ssize_t size) noexcept:
    """A delay level in plain digits; -1: something else."""
    cdef int32_t value = 0
    cdef Py_ssize_t i
    if size > LEVEL_DIGITS_MAX:
        return -1
    for i in range(size):
        if not 48 <= at[i] <= 57:
            return -1
        value = value * 10 + at[i] - 48
    return value


cdef inline bint _says_wait(const char* at, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size - 4):
        if at[i] == 87 and memcmp(at + i, b"WAIT\x01", 5) == 0:
            return True
    return False


cdef inline bint _note(int kind, const char* value, Py_ssize_t size, Scanned* found) noexcept:
    """What a special property says; False: only the Python path knows its kind."""
    cdef uint32_t tags_code = 0
    if kind == TAGS:
        extend_hash(value, size, &tags_code)
        found.tags_code = <int32_t> tags_code
    elif kind == KEYS:
        found.keys.at = value
        found.keys.size = size
    elif kind == UNIQUE:
        found.unique.at = value
        found.unique.size = size
    elif kind == DELAY:
        found.level = _level(value, size)
        return found.level >= 0
    elif kind == HALF:
        found.is_half = _is_true(value, size)
    elif kind == PARKED:
        found.was_parked = True
    else:
        return False
    return True


cdef class PropertyScanner:
    """The table of special properties, and what is put behind those of every message."""

    def __init__(self, cluster_piece: str):
        cdef bytes text
        self._cluster = cluster_piece.encode()
        if PyBytes_GET_SIZE(self._cluster) > CLUSTER_SIZE_MAX or len(table.KINDS) > SPECIALS_MAX:
            raise ValueError("the compiled send path has no room for the cluster or the table")
        self._names = [name.encode() for name in table.KINDS]
        self._count = len(self._names)
        for number, kind in enumerate(table.KINDS.values()):
            text = self._names[number]
            self._specials[number].at = PyBytes_AS_STRING(text)
            self._specials[number].size = PyBytes_GET_SIZE(text)
            self._specials[number].kind = kind

    cdef bint scan(self, const char* at, Py_ssize_t size, char* out, Scanned* found) noexcept:
        """Write what is stored to `out`; False: the text is for `scan_properties`."""
        cdef const char* end = at + size
        cdef const char* piece
        cdef const char* equals
        cdef char* start = out
        cdef int kind
        found.tags_code = found.level = 0
        found.must_wait = True
        found.is_half = found.was_parked = False
        found.unique.size = found.keys.size = 0
        found.says_wait = _says_wait(at, size)
        while at < end:
            piece = at
            equals = NULL
            while at < end and at[0] != 2:
                if at[0] == 1 and equals == NULL:
                    equals = at
                elif at[0] == 0:
                    return False
                at += 1
            if equals != NULL and equals > piece and at - equals > 1:
                kind = self._kind(piece, equals - piece)
                if kind == WAIT:
                    found.must_wait = _is_true(equals + 1, at - equals - 1)
                elif kind != CLUSTER:
                    if kind != 0 and not _note(kind, equals + 1, at - equals - 1, found):
                        return False
                    memcpy(out, piece, at - piece)
                    out += at - piece
                    out[0] = 2
                    out += 1
            at += 1
        memcpy(out, PyBytes_AS_STRING(self._cluster), PyBytes_GET_SIZE(self._cluster))
        found.size = out + PyBytes_GET_SIZE(self._cluster) - start
        return found.size <= PROPERTIES_SIZE_MAX

    cdef int _kind(self, const char* name, Py_ssize_t size) noexcept:
        """What a name means; 0: nothing to the broker."""
        cdef int i
        for i in range(self._count):
            if self._specials[i].size == size and memcmp(self._specials[i].at, name, size) == 0:
                return self._specials[i].kind
        return 0


cdef object index_keys(Scanned* found):
    """The keys that the index gets, or None."""
    cdef object unique = None
    cdef object keys
    if found.unique.size:
        unique = PyUnicode_DecodeASCII(found.unique.at, found.unique.size, NULL)
    if not found.keys.size:
        return None if unique is None else (unique,)
    keys = PyUnicode_DecodeASCII(found.keys.at, found.keys.size, NULL)
    if " " in keys:
        words = tuple([word for word in keys.split(" ") if word])
        if unique is None:
            return words or None
        return (unique, *words)
    return (keys,) if unique is None else (unique, keys)
