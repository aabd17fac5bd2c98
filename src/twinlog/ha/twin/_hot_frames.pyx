# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""The frames of a transfer, compiled: the functions of `hot_frames.py`, which is the reference."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t

from twinlog.message._pairs cimport get2, get4, get8, put4, put8

from twinlog.ha.twin import wire
from twinlog.message.crc import crc32

cdef object checksum = crc32
cdef enum:
    HEADER_SIZE = 16
    CHECKED_SIZE = 12  # Of the header: all before its own checksum.
    PREFIX_SIZE = 20
    ACK_SIZE = 16
cdef uint32_t DATA = wire.FrameType.DATA
cdef uint32_t ACK = wire.FrameType.ACK
cdef uint32_t crc_table[256]

if (HEADER_SIZE, PREFIX_SIZE, ACK_SIZE) != (
    wire.HEADER_SIZE, wire.DATA_PREFIX.size, wire.ACK.size
):
    raise ImportError("the frames of the twin dialect have another form")


cdef void make_table() noexcept:
    cdef uint32_t value
    cdef int number, bit
    for number in range(256):
        value = number
        for bit in range(8):
            value = (value >> 1) ^ (0xEDB88320u if value & 1 else 0u)
        crc_table[number] = value


make_table()


cdef inline uint32_t small_crc(const char* at, Py_ssize_t size) noexcept:
    """CRC-32 of a few bytes: a call of the library costs more."""
    cdef uint32_t value = 0xFFFFFFFFu
    cdef Py_ssize_t i
    for i in range(size):
        value = crc_table[(value ^ <uint8_t> at[i]) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFFu


cdef inline char* put_header(
    char* at, uint32_t kind, uint32_t round_number, uint32_t size, uint32_t crc
) noexcept:
    put4(at, <int64_t> kind << 16 | (round_number & 0xFFFF))
    put4(at + 4, size)
    put4(at + 8, crc)
    put4(at + CHECKED_SIZE, small_crc(at, CHECKED_SIZE))
    return at + HEADER_SIZE


def data_head(int64_t offset, int64_t confirmed, uint32_t epoch, body, int64_t round_number):
    cdef bytes head = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + PREFIX_SIZE)
    cdef char* start = PyBytes_AS_STRING(head)
    cdef char* prefix = start + HEADER_SIZE
    put4(put8(put8(prefix, offset), confirmed), epoch)
    cdef uint32_t crc = checksum(body, small_crc(prefix, PREFIX_SIZE))
    put_header(start, DATA, <uint32_t> (round_number & 0xFFFF), PREFIX_SIZE + len(body), crc)
    return head


def ack_frame(int64_t received, int64_t durable):
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + ACK_SIZE)
    cdef char* start = PyBytes_AS_STRING(frame)
    put8(put8(start + HEADER_SIZE, received), durable)
    put_header(start, ACK, 0, ACK_SIZE, small_crc(start + HEADER_SIZE, ACK_SIZE))
    return frame


def only_data(bytearray buffer not None, Py_ssize_t start, Py_ssize_t end):
    cdef const char* at = PyByteArray_AS_STRING(buffer) + start
    cdef const char* prefix = at + HEADER_SIZE
    if not 0 <= start <= end <= PyByteArray_GET_SIZE(buffer):
        raise ValueError("not a part of the buffer")
    if end - start <= HEADER_SIZE + PREFIX_SIZE or get2(at) != DATA:
        return None
    if get4(at + 4) != end - start - HEADER_SIZE:
        return None
    if small_crc(at, CHECKED_SIZE) != get4(at + CHECKED_SIZE):
        return None
    body = memoryview(buffer)[start + HEADER_SIZE + PREFIX_SIZE : end]
    cdef uint32_t crc = checksum(body, small_crc(prefix, PREFIX_SIZE))
    if crc != get4(at + 8):
        return None
    return get2(at + 2), get8(prefix), get8(prefix + 8), get4(prefix + 16), body


def only_ack(bytes data not None):
    cdef const char* at = PyBytes_AS_STRING(data)
    cdef const char* payload = at + HEADER_SIZE
    if PyBytes_GET_SIZE(data) != HEADER_SIZE + ACK_SIZE or get2(at) != ACK:
        return None
    if get4(at + 4) != ACK_SIZE or small_crc(payload, ACK_SIZE) != get4(at + 8):
        return None
    if small_crc(at, CHECKED_SIZE) != get4(at + CHECKED_SIZE):
        return None
    return get8(payload), get8(payload + 8)
