"""How slow this machine is at the moment, for limits that are given in CPU time.

The CPU time of the same work differs by a factor of five between machines, and from one second to
the next on a virtual machine whose neighbours are busy. A limit therefore counts for a machine that
does a fixed piece of work in `NOMINAL_MS`, and what was measured is divided by `slowness()`.
"""

from __future__ import annotations

import time
from typing import Final

NOMINAL_MS: Final = 1.3  # Python 3.11 at 2.5 GHz, without neighbours.
_STEPS: Final = 20_000
_TRIES: Final = 5


def _work_ms() -> float:
    began, total = time.thread_time_ns(), 0
    for number in range(_STEPS):
        total += number * number
    return (time.thread_time_ns() - began) / 1e6


def slowness() -> float:
    """By what factor the best of some tries is slower than it should be; never below 1, so that a
    fast machine has the same limits."""
    return max(1.0, min(_work_ms() for _ in range(_TRIES)) / NOMINAL_MS)
