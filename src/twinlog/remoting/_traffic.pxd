# cython: language_level=3
"""The state of a connection, for lanes that are compiled."""

from libc.stdint cimport int64_t


cdef class Traffic:
    cdef public object _limits
    cdef public tuple _lanes
    cdef public object _transport
    cdef public object _channel
    cdef public object _splitter
    cdef public object _backlog
    cdef public list _out
    cdef public bint _is_in_turn
    cdef public bint _is_reading_paused
    cdef public bint _is_elsewhere
    cdef public int64_t _requests_in_flight
    cdef public int64_t _bytes_in_flight
    cdef public int64_t _replies
    cdef public int64_t request_count
    cdef public bytes remote_host
    cdef public bint is_closed
    cdef public bint is_congested
    cdef public bint was_active
    cdef int64_t _requests_max
    cdef int64_t _bytes_max
    cdef bint take_is_ready(self) except -1
    cdef int take_requests(self, int64_t count, int64_t size) except -1
    cdef int take_run(self, data, int64_t count) except -1
    cdef bint _must_queue(self) noexcept
    cdef void _account(self) noexcept
    cdef int _send(self, data) except -1


# For whatever is given as a connection: one of ours, or what stands for one.

cdef inline bint is_ready(connection) except -1:
    if isinstance(connection, Traffic):
        return (<Traffic> connection).take_is_ready()
    return connection.is_ready


cdef inline int count_requests(connection, int64_t count, int64_t size) except -1:
    if isinstance(connection, Traffic):
        return (<Traffic> connection).take_requests(count, size)
    connection.count_requests(count, size)
    return 0


cdef inline int write_run(connection, data, int64_t count) except -1:
    if isinstance(connection, Traffic):
        return (<Traffic> connection).take_run(data, count)
    connection.write_run(data, count)
    return 0
