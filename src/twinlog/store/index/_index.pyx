# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Entries of the index in batches, compiled: the twins of the functions in `index_entries.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from twinlog.message._layout cimport (
    INDEX_ENTRY_SIZE,
    INDEX_OFFSET_AT,
    INDEX_PREVIOUS_AT,
    INDEX_SECONDS_AT,
    INDEX_SECONDS_MAX,
)
from twinlog.message._pairs cimport get4, get8, put4, put8

cdef enum:
    PAGE_SLOTS = 1024        # One for each is in `dirty_pages`.


def put_entries(
    int32_t[::1] slots, uint8_t[::1] dirty_pages, const int64_t[::1] hashes,
    const int64_t[::1] offsets, const int64_t[::1] timestamps,
    int64_t number, int64_t begin_timestamp,
):
    """The entries of all keys, the first of them being `number`.

    Returns their bytes, and how many of them are the first in their slot.
    """
    cdef Py_ssize_t count = hashes.shape[0], i, slot, slots_max = slots.shape[0]
    cdef int64_t previous, seconds, new_slots = 0
    cdef bytes data = PyBytes_FromStringAndSize(NULL, count * INDEX_ENTRY_SIZE)
    cdef char* at = PyBytes_AS_STRING(data)
    for i in range(count):
        slot = <Py_ssize_t> (hashes[i] % slots_max)
        previous = slots[slot]
        if previous <= 0 or previous > number:
            previous = 0
            new_slots += 1
        seconds = 0
        if begin_timestamp > 0 and timestamps[i] > begin_timestamp:
            seconds = min((timestamps[i] - begin_timestamp) // 1000, INDEX_SECONDS_MAX)
        slots[slot] = <int32_t> number
        dirty_pages[slot // PAGE_SLOTS] = 1
        at = put4(put4(put8(put4(at, hashes[i]), offsets[i]), seconds), previous)
        number += 1
    return data, new_slots


def count_entries(
    int32_t[::1] slots, bytes data, int64_t number, int64_t begin_offset, int64_t end_offset,
    int64_t offset_limit,
):
    """Put the entries in `data`, the first being `number`, into the slots, up to one that cannot be.

    Returns how many there were, how many of them are the first in their slot, and the last offset.
    """
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef const char* end = at + PyBytes_GET_SIZE(data) // INDEX_ENTRY_SIZE * INDEX_ENTRY_SIZE
    cdef int64_t first = number, new_slots = 0, offset
    cdef int32_t key_hash, seconds, previous
    while at < end:
        key_hash = <int32_t> get4(at)
        offset = get8(at + INDEX_OFFSET_AT)
        seconds = <int32_t> get4(at + INDEX_SECONDS_AT)
        previous = <int32_t> get4(at + INDEX_PREVIOUS_AT)
        if (
            key_hash < 0 or seconds < 0 or previous < 0 or previous >= number
            or (key_hash == 0 and offset == 0 and seconds == 0 and previous == 0)
            or offset < end_offset or (offset <= 0 and begin_offset != 0)
            or offset >= offset_limit
        ):
            break
        slots[key_hash % slots.shape[0]] = <int32_t> number
        new_slots += previous == 0
        end_offset = offset
        number += 1
        at += INDEX_ENTRY_SIZE
    return number - first, new_slots, end_offset
