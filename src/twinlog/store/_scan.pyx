# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Plain records of the log in one pass, compiled: entries of each queue, hashes for the index.

Does what `scan`, `tags_and_keys` and the hashing of the index do, and stops at the first record that
is not plain: another magic, IPv6, a transaction, properties that are empty, hold a zero byte (a
sector may be missing) or keys that are not ASCII, a number that does not follow, or damage. Those
who know everything and give reasons go on from there. They are the reference.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memset

from twinlog.message._pairs cimport (
    Dispatched,
    add_keys,
    extend_hash,
    find_dispatched,
    get2,
    get4,
    get8,
    push8,
    put4,
    put8,
)

from twinlog.message.hashing import topic_prefix_hash
from twinlog.message.record import MAGIC_V1 as _MAGIC_V1
from twinlog.message.record import topic_text

cdef extern from "<string.h>":
    void* memmem(const void*, size_t, const void*, size_t) noexcept

cdef enum:
    HEAD_SIZE = 88           # Of a record with IPv4 hosts, up to its body.
    RECORD_SIZE_MIN = 91
    NOT_PLAIN = 0x34         # Hosts of IPv6; PREPARED and ROLLBACK, which have no queue.
    TOPIC_MAX = 127
    ENTRY_SIZE = 20
    GROUPS_MAX = 512         # Queues in one pass; more are for the next.
    SLOTS = 2048
    COPIED_MAX = 4096        # Up to here a copy costs less than a view.

cdef uint32_t MAGIC_V1 = _MAGIC_V1


cdef class Group:
    """The records of one queue: the numbers are without a gap."""

    cdef readonly str topic
    cdef readonly int64_t queue_id
    cdef readonly int64_t first_number   # Its queue offset.
    cdef readonly int64_t first_offset
    cdef readonly int64_t end            # Physical offset behind the last.
    cdef readonly bytearray entries
    cdef int64_t next_number
    cdef uint32_t prefix
    cdef const char* topic_at
    cdef Py_ssize_t topic_size


cdef class Plain:
    """What was found, and the groups by topic and queue."""

    cdef readonly list groups
    cdef readonly int64_t end            # Physical offset behind the last record.
    cdef readonly int64_t count
    cdef readonly int64_t last_timestamp
    cdef readonly int64_t bare_offset    # Of the last record without keys, or -1.
    # 64-bit numbers of this machine, an element for each key.
    cdef readonly bytearray key_hashes, key_offsets, key_timestamps
    cdef readonly list observed          # As `scan` has them.
    cdef int16_t slots[SLOTS]

    def __cinit__(self):
        memset(self.slots, 0, sizeof(self.slots))
        self.groups = []
        self.observed = []
        self.key_hashes = bytearray()
        self.key_offsets = bytearray()
        self.key_timestamps = bytearray()
        self.bare_offset = -1

    cdef Group group(self, const char* topic, Py_ssize_t size, int64_t queue_id):
        """The group of a record; None: there are too many."""
        cdef uint32_t slot = <uint32_t> queue_id
        cdef Group group
        extend_hash(topic, size, &slot)
        slot = (slot ^ slot >> 15) % SLOTS
        while self.slots[slot]:
            group = <Group> self.groups[self.slots[slot] - 1]
            if (
                group.queue_id == queue_id and group.topic_size == size
                and memcmp(group.topic_at, topic, size) == 0
            ):
                return group
            slot = (slot + 1) % SLOTS
        if len(self.groups) == GROUPS_MAX:
            return None
        group = Group.__new__(Group)
        group.topic = topic_text(PyBytes_FromStringAndSize(topic, size))
        group.prefix = topic_prefix_hash(group.topic)
        group.topic_at = topic
        group.topic_size = size
        group.queue_id = queue_id
        group.entries = bytearray()
        self.groups.append(group)
        self.slots[slot] = <int16_t> len(self.groups)
        return group


cdef inline bint _is_body(crc32, const char* at, Py_ssize_t size, uint32_t wanted) except -1:
    if size == 0:
        return True
    if size <= COPIED_MAX:
        return (<uint32_t> crc32(PyBytes_FromStringAndSize(at, size)) & 0x7FFFFFFF) == wanted
    return (<uint32_t> crc32(<const uint8_t[:size]> <const uint8_t*> at) & 0x7FFFFFFF) == wanted


def scan_plain(bytes data, Py_ssize_t position, int64_t physical_offset, crc32, bytes observed):
    """The plain records from `position` on, which is `physical_offset` of the log, or None.

    Bodies are checked with `crc32`, or not when it is None. Records whose properties contain
    `observed`, if that is anything, are in the list of that name too.
    """
    cdef const char* start = PyBytes_AS_STRING(data) + position
    cdef const char* at = start
    cdef const char* end = start - position + PyBytes_GET_SIZE(data)
    cdef const char* topic
    cdef const char* properties
    cdef int64_t size, body_size, queue_id, number, offset, timestamp
    cdef Py_ssize_t topic_size, properties_size, key_count, used, _
    cdef uint32_t tags_code
    cdef Dispatched found
    cdef Plain plain = Plain.__new__(Plain)
    cdef Group group = None
    while end - at >= RECORD_SIZE_MIN:
        size = <int32_t> get4(at)
        if size < RECORD_SIZE_MIN or size > end - at or get4(at + 4) != MAGIC_V1:
            break
        body_size = <int32_t> get4(at + 84)
        offset = physical_offset + (at - start)
        if (
            get4(at + 36) & NOT_PLAIN
            or body_size < 0 or HEAD_SIZE + body_size + 3 > size
            or get8(at + 28) != offset
        ):
            break
        topic = at + HEAD_SIZE + body_size + 1
        topic_size = <uint8_t> (topic - 1)[0]
        properties = topic + topic_size + 2
        properties_size = at + size - properties
        if (
            topic_size == 0 or topic_size > TOPIC_MAX
            or properties_size <= 0 or get2(properties - 2) != <uint32_t> properties_size
            or memchr(properties, 0, properties_size) != NULL
        ):
            break
        if crc32 is not None and not _is_body(crc32, at + HEAD_SIZE, body_size, get4(at + 8)):
            break
        find_dispatched(properties, properties_size, &found)
        tags_code = 0
        if not extend_hash(found.tags.at, found.tags.size, &tags_code):
            break
        queue_id = <int32_t> get4(at + 12)
        number = get8(at + 20)
        timestamp = get8(at + 56)
        if (
            group is None or group.queue_id != queue_id or group.topic_size != topic_size
            or memcmp(group.topic_at, topic, topic_size) != 0
        ):
            group = plain.group(topic, topic_size, queue_id)
            if group is None:
                break
        used = PyByteArray_GET_SIZE(group.entries)
        if used and number != group.next_number:
            break
        key_count = add_keys(plain.key_hashes, group.prefix, &found)
        if key_count < 0:
            break

        # From here on it is taken.
        if used == 0:
            group.first_number = number
            group.first_offset = offset
        for _ in range(key_count):
            push8(plain.key_offsets, offset)
            push8(plain.key_timestamps, timestamp)
        if key_count == 0:
            plain.bare_offset = offset
        PyByteArray_Resize(group.entries, used + ENTRY_SIZE)
        put8(
            put4(put8(PyByteArray_AS_STRING(group.entries) + used, offset), size),
            <int32_t> tags_code,
        )
        group.next_number = number + 1
        group.end = offset + size
        if PyBytes_GET_SIZE(observed) and memmem(
            properties, properties_size, PyBytes_AS_STRING(observed), PyBytes_GET_SIZE(observed)
        ) != NULL:
            text = PyBytes_FromStringAndSize(properties, properties_size)
            flag = <int32_t> get4(at + 36)
            plain.observed.append(
                (offset, size, queue_id, number, flag, timestamp, group.topic, text)
            )
        plain.count += 1
        plain.last_timestamp = timestamp
        at += size
    if plain.count == 0:
        return None
    plain.end = physical_offset + (at - start)
    plain.groups = [group for group in plain.groups if group.entries]
    return plain
