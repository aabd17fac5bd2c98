# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The steps of the simulated loop, compiled: `sim_steps.StepsInPython`, which is the reference."""

from heapq import heappop, heappush

from cpython.contextvars cimport (
    PyContext_CopyCurrent,
    PyContext_Enter,
    PyContext_Exit,
    get_value,
)

from twinlog.testing.sim_steps import IDENTITY, SimDeadlock, SimStepsExceeded

cdef object _IDENTITY = IDENTITY
cdef object _push = heappush
cdef object _pop = heappop


cdef class Handle:
    """What is called, where, and when."""

    cdef public object _callback
    cdef public object _context
    cdef public tuple _args
    cdef public bint _cancelled
    cdef public double _when

    def cancel(self):
        self._cancelled = True
        self._callback = None
        self._args = ()

    def cancelled(self):
        return self._cancelled

    def when(self):
        return self._when


cdef Handle _handle(callback, tuple args, context, double when):
    cdef Handle handle = Handle.__new__(Handle)
    handle._callback = callback
    handle._args = args
    handle._context = PyContext_CopyCurrent() if context is None else context
    handle._when = when
    return handle


def wake(future):
    if not future.cancelled():
        future.set_result(None)


cdef class Steps:
    """What is ready and what is due."""

    cdef public list ready
    cdef public list timers
    cdef public long step_count
    cdef public bint is_finished
    cdef object _loop
    cdef object _getrandbits
    cdef long _step_max
    cdef bint _shuffles
    cdef long _timer_count
    cdef double _now_s

    def __init__(self, loop, *, long step_max, bint shuffles):
        self.ready = []
        self.timers = []
        self._loop = loop
        self._getrandbits = loop.rng.getrandbits
        self._step_max = step_max
        self._shuffles = shuffles
        self._now_s = loop.now_s

    def call_soon(self, callback, *args, context=None):
        cdef Handle handle = _handle(callback, args, context, 0.0)
        if not self.is_finished:
            self.ready.append(handle)
        return handle

    def call_later(self, double delay, callback, *args, context=None):
        return self._at(self._now_s + delay, callback, args, context)

    def call_at(self, double when, callback, *args, context=None):
        return self._at(when, callback, args, context)

    cdef Handle _at(self, double when, callback, tuple args, context):
        cdef Handle handle = _handle(callback, args, context, when)
        if not self.is_finished:
            self._timer_count += 1
            _push(self.timers, (when, self._timer_count, handle))
        return handle

    def run(self):
        cdef list handles
        cdef Handle handle
        loop = self._loop
        while not loop._stopping:
            self.step_count += 1
            if self.step_count > self._step_max:
                text = f"{self._step_max} steps at {loop.now_s:.3f} s of virtual time"
                raise SimStepsExceeded(text)
            self._take_due()
            handles = self.ready[:]
            self.ready.clear()
            if len(handles) > 1 and self._shuffles:
                self._shuffle(handles)
            if loop.paused:
                handles = [one for one in handles if loop.may_run(one)]
            for handle in handles:
                if not handle._cancelled:
                    self._run(handle)

    cdef _run(self, Handle handle):
        cdef tuple identity
        cdef bint is_running = True
        failed = None
        context = handle._context
        PyContext_Enter(context)
        try:
            identity = get_value(_IDENTITY)
            if identity is not None:
                host = identity[0]
                is_running = identity[1] == host.incarnation and not host.is_paused
            if is_running:
                if handle._args:
                    handle._callback(*handle._args)
                else:
                    handle._callback()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            failed = error
        finally:
            PyContext_Exit(context)
        if failed is not None:
            self._loop.callback_failed(handle, failed)
        elif not is_running:
            self._loop.may_run(handle)  # Buries or parks it.

    cdef _take_due(self):
        cdef list timers = self.timers
        cdef tuple first
        while timers and (<Handle> (<tuple> timers[0])[2])._cancelled:
            _pop(timers)
        if not self.ready:
            if not timers:
                raise SimDeadlock("nothing ready, nothing scheduled")
            first = <tuple> timers[0]
            if <double> first[0] > self._now_s:
                self._now_s = <double> first[0]
                self._loop.now_s = first[0]
        while timers and <double> (<tuple> timers[0])[0] <= self._now_s:
            self.ready.append((<tuple> _pop(timers))[2])

    cdef _shuffle(self, list handles):
        """`random.shuffle`, with the same draws."""
        cdef Py_ssize_t i, j
        cdef int bits
        for i in range(len(handles) - 1, 0, -1):
            bits = 0
            while (i + 1) >> bits:
                bits += 1
            j = self._getrandbits(bits)
            while j > i:
                j = self._getrandbits(bits)
            handles[i], handles[j] = handles[j], handles[i]
