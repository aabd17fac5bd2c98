# cython: language_level=3, embedsignature=True
"""The thread of `sync_thread.py`, compiled: what it does needs no lock of the interpreter."""

from libc.errno cimport EINTR, errno

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int fd)
    ssize_t read(int fd, void* buffer, size_t size)
    ssize_t write(int fd, const void* buffer, size_t size)

cdef enum:
    STOP = -2


cdef ssize_t _read(int fd) noexcept nogil:
    cdef char byte
    cdef ssize_t size = read(fd, &byte, 1)
    while size < 0 and errno == EINTR:
        size = read(fd, &byte, 1)
    return size


cdef void _write(int fd) noexcept nogil:
    cdef char byte = 0
    while write(fd, &byte, 1) < 0 and errno == EINTR:
        pass


cdef int _sync(int fd) noexcept nogil:
    """The number of the error, or 0."""
    while fdatasync(fd) != 0:
        if errno != EINTR:
            return errno
    return 0


cdef class Worker:
    """`PythonWorker`."""

    cdef int _woken, _answer, _wake, _answered
    cdef int _fd, _error  # Of one side at a time: the bytes in the pipes say whose turn it is.

    def __init__(self, int woken, int answer, int wake, int answered):
        self._woken, self._answer, self._wake, self._answered = woken, answer, wake, answered
        self._fd = STOP
        self._error = 0

    def begin(self, int fd):
        self._fd = fd
        _write(self._wake)

    def take(self) -> int:
        with nogil:
            _read(self._answered)
        return self._error

    def run(self):
        with nogil:
            while _read(self._woken) > 0 and self._fd != STOP:
                self._error = _sync(self._fd)
                _write(self._answer)
