# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: embedsignature=True
"""The state of a connection, compiled: `traffic.TrafficInPython`, which is the reference."""

from collections import deque

from libc.stdint cimport int64_t


cdef class Traffic:
    """Requests that were taken and wait for their answers, and answers on their way out."""

    def __init__(self, limits):
        self._limits = limits
        self._requests_max = limits.requests_in_flight_max
        self._bytes_max = limits.bytes_in_flight_max
        self._lanes = ()
        self._backlog = deque()
        self._out = []
        self.remote_host = b"\0" * 8
        self.was_active = True

    # Requests

    def data_received(self, data):
        cdef Py_ssize_t begin = 0, number = 0, taken
        try:
            while number < len(self._lanes):
                lane = self._lanes[number]
                taken = lane.read(self, data, begin)
                if not taken:
                    number += 1
                    continue
                begin += taken
                if begin == len(data):
                    return
                if lane.is_full:
                    self._read_later(data[begin:])
                    return
                number = 0  # What follows may be of any kind.
            self._read(data[begin:] if begin else data)
        except Exception as error:
            self.failed("reading", error)

    @property
    def is_ready(self):
        return self.take_is_ready()

    cdef bint take_is_ready(self) except -1:
        if self.is_closed or self.is_congested or self._is_elsewhere or self._backlog:
            return False
        return self._splitter.is_between_frames

    def count_requests(self, int64_t count, int64_t size):
        self.take_requests(count, size)

    cdef int take_requests(self, int64_t count, int64_t size) except -1:
        self.was_active = True
        self.request_count += count
        self._requests_in_flight += count
        self._bytes_in_flight += size
        if (
            self._requests_in_flight >= self._requests_max
            or self._bytes_in_flight >= self._bytes_max
        ):
            self._update_reading()
        return 0

    def count_oneway(self, int64_t count):
        self.was_active = True
        self.request_count += count

    # Answers

    def write_run(self, data, int64_t count):
        self.take_run(data, count)

    cdef int take_run(self, data, int64_t count) except -1:
        if self.is_closed or self._transport is None:
            return 0
        self._replies += count
        if self._must_queue():
            self._out.append(data)
            if not self._is_in_turn:
                self.flush()
            return 0
        self._account()
        self._send(data)
        self.was_active = True
        return 0

    def write_answer(self, frame):
        self.request_count += 1
        self.was_active = True
        if self.is_closed or self._transport is None:
            return
        if self._must_queue():
            self._queue((frame,))
            if not self._is_in_turn:
                self.flush()
            return
        self._send(frame)

    cdef bint _must_queue(self) noexcept:
        return (
            len(self._out) > 0 or self._is_in_turn or self._is_reading_paused or self.is_congested
        )

    def _count_replies(self):
        self._account()

    cdef void _account(self) noexcept:
        cdef int64_t replies = self._replies
        self._replies = 0
        if replies >= self._requests_in_flight:
            self._requests_in_flight = self._bytes_in_flight = 0
            return
        self._bytes_in_flight -= self._bytes_in_flight * replies // self._requests_in_flight
        self._requests_in_flight -= replies

    def _transport_write(self, data):
        self._send(data)

    cdef int _send(self, data) except -1:
        if self._channel is None:
            self._transport.write(data)
        else:
            self._write_secured(data)
        return 0
