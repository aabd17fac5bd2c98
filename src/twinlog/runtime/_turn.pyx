# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""One turn of the event loop, compiled: `turn.TurnInPython`, which is the reference."""

import asyncio

cdef enum:
    PHASE_COUNT = 5
    BETWEEN = 5


cdef class Turn:
    """What is to be done at the end of this turn of the loop."""

    cdef list _work
    cdef int _phase          # The one that is being done.
    cdef bint _is_scheduled
    cdef object _call_soon

    def __init__(self):
        self._work = [[] for _ in range(PHASE_COUNT)]
        self._phase = BETWEEN

    def bind(self):
        self._call_soon = asyncio.get_running_loop().call_soon

    def add(self, int phase, work):
        if not 0 <= phase < PHASE_COUNT:
            raise IndexError("no such phase")
        (<list> self._work[phase]).append(work)
        if phase <= self._phase and not self._is_scheduled:
            self._is_scheduled = True
            self.next(self.run)

    def next(self, work):
        if self._call_soon is None:
            self.bind()
        self._call_soon(work)

    def run(self):
        cdef int phase
        cdef list work
        if self._phase != BETWEEN:
            return
        self._is_scheduled = False  # The loop may call once more, and find nothing to do.
        failed = None
        try:
            for phase in range(PHASE_COUNT):
                self._phase = phase
                work = <list> self._work[phase]
                if work:
                    self._work[phase] = []
                    for one in work:
                        try:
                            one()
                        except Exception as error:
                            failed = failed or error
        finally:
            self._phase = BETWEEN
        if failed is not None:
            raise failed
