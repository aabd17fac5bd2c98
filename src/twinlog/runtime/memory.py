"""The C library's allocator, told to give memory back.

Left alone, glibc raises its threshold once a large buffer was freed and keeps the next ones in the
heap: a broker that has seen a few frames of 16 MB stays 32 MB larger for good. And what is free in
the middle of the heap stays there until someone asks.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# Above what the hot paths allocate (1 MB reads and frames), so that those stay in the heap.
_MMAP_THRESHOLD = 4 * 1024 * 1024
_TRIM_THRESHOLD = 8 * 1024 * 1024


def return_large_buffers() -> bool:
    """Ask for it, once, when a server is ready. False: this C library cannot be asked."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    asked = mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD), mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)
    return asked == (1, 1)


def give_back() -> bool:
    """Return free pages to the system: a millisecond or two, for after a burst."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0) == 1)
