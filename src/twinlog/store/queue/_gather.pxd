# cython: language_level=3
"""What `_gather.pyx` offers to compiled readers."""

from libc.stdint cimport int32_t, int64_t

cdef enum:
    COUNT_MAX = 1024


cdef struct Bounds:
    int64_t base              # Offset of the first byte of the segment.
    int64_t log_min
    int64_t log_max
    int64_t recent_from       # Records from here on count as in memory.
    int64_t recent_bytes      # What one answer may have while they do,
    int64_t recent_count
    int64_t old_bytes         # and from the first one on that does not.
    int64_t old_count


cdef struct Found:
    Py_ssize_t count
    Py_ssize_t examined       # Entries, wanted or not.
    int64_t total             # Bytes of the records.
    int64_t last_offset       # Of the last entry that was looked at.
    bint is_gone              # Before the first one there is one that the log does not have.
    bint is_enough            # The walk ended before the entries did.
    int64_t places[COUNT_MAX]
    int32_t sizes[COUNT_MAX]


cdef bint walk(
    bytes entries, const char* segment, Py_ssize_t segment_size, Bounds* bounds, object wanted,
    object checked, Found* found,
) except -1
cdef char* copy_records(const char* segment, Found* found, char* out) noexcept
