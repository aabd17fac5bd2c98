# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Plain records of the log in one pass, compiled: entries of each queue, hashes for the index.

Does what `scan`, `tags_and_keys` and the hashing of the index do, and stops at the first record that
is not plain: another magic, IPv6, a transaction, properties that are empty, hold a zero byte (a
sector may be missing) or keys that are not ASCII, a number that does not follow, or damage. Those
who know everything and give reasons go on from there. They are the reference.
"""

from cpython.bytearray cimport PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memset

from twinlog.message._crc cimport whole_crc
from twinlog.message._layout cimport (
    BODY_CRC_AT,
    BODY_SIZE_AT,
    CRC_MASK,
    ENTRY_SIZE,
    HEAD_SIZE,
    HOSTS_V6_MASK,
    MAGIC_AT,
    MAGIC_V1,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_SIZE,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_SIZE_MIN,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_SIZE,
    UNQUEUED_FLAG,
)
from twinlog.message._pairs cimport (
    Dispatched,
    add_keys,
    extend_hash,
    find_dispatched,
    get2,
    get4,
    get8,
    more,
    push8,
    put4,
    text_hash,
    put8,
)

from twinlog.message.hashing import topic_prefix_hash
from twinlog.message.record import topic_text

cdef enum:
    NOT_PLAIN = HOSTS_V6_MASK | UNQUEUED_FLAG
    GROUPS_MAX = 512         # Queues in one pass; more are for the next.
    SLOTS = 2048


cdef class Group:
    """The records of one queue: the numbers are without a gap."""

    cdef readonly str topic
    cdef readonly int64_t queue_id
    cdef readonly int64_t first_number   # Its queue offset.
    cdef readonly int64_t first_offset
    cdef readonly int64_t end            # Physical offset behind the last.
    cdef readonly bytearray entries
    cdef Py_ssize_t entries_used         # Of `entries`, until the pass is over.
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


cdef inline bint _contains(const char* at, Py_ssize_t size, bytes wanted) noexcept:
    """Whether `wanted`, which is something, is in there. Looked for by its last byte: that is rare
    among properties when it ends their names."""
    cdef Py_ssize_t before = PyBytes_GET_SIZE(wanted) - 1
    cdef const char* text = PyBytes_AS_STRING(wanted)
    cdef const char* end = at + size
    at += before
    while at < end:
        at = <const char*> memchr(at, <uint8_t> text[before], end - at)
        if at == NULL:
            return False
        if memcmp(at - before, text, before) == 0:
            return True
        at += 1
    return False


cdef inline bint _is_body(crc32, const char* at, Py_ssize_t size, uint32_t wanted) except -1:
    if size == 0:
        return True
    return (whole_crc(at, size, crc32) & CRC_MASK) == wanted


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
    cdef Py_ssize_t topic_size, properties_size, key_count, _
    cdef Py_ssize_t hashes_used = 0, offsets_used = 0, timestamps_used = 0
    cdef uint32_t tags_code
    cdef Dispatched found
    cdef Plain plain = Plain.__new__(Plain)
    cdef Group group = None
    while end - at >= RECORD_SIZE_MIN:
        size = <int32_t> get4(at)
        if size < RECORD_SIZE_MIN or size > end - at or get4(at + MAGIC_AT) != MAGIC_V1:
            break
        body_size = <int32_t> get4(at + BODY_SIZE_AT)
        offset = physical_offset + (at - start)
        if (
            get4(at + SYS_FLAG_AT) & NOT_PLAIN
            or body_size < 0 or RECORD_SIZE_MIN + body_size > size
            or get8(at + PHYSICAL_OFFSET_AT) != offset
        ):
            break
        topic = at + HEAD_SIZE + body_size + TOPIC_LENGTH_SIZE
        topic_size = <uint8_t> (topic - 1)[0]
        properties = topic + topic_size + PROPERTIES_LENGTH_SIZE
        properties_size = at + size - properties
        if (
            topic_size == 0 or topic_size > TOPIC_LENGTH_MAX
            or properties_size <= 0 or get2(properties - 2) != <uint32_t> properties_size
            or memchr(properties, 0, properties_size) != NULL
        ):
            break
        if crc32 is not None and not _is_body(crc32, at + HEAD_SIZE, body_size, get4(at + BODY_CRC_AT)):
            break
        find_dispatched(properties, properties_size, &found)
        tags_code = 0
        if not text_hash(found.tags.at, found.tags.size, &tags_code):
            break
        queue_id = <int32_t> get4(at + QUEUE_ID_AT)
        number = get8(at + QUEUE_OFFSET_AT)
        timestamp = get8(at + STORE_TIMESTAMP_AT)
        if (
            group is None or group.queue_id != queue_id or group.topic_size != topic_size
            or memcmp(group.topic_at, topic, topic_size) != 0
        ):
            group = plain.group(topic, topic_size, queue_id)
            if group is None:
                break
        if group.entries_used and number != group.next_number:
            break
        key_count = add_keys(plain.key_hashes, &hashes_used, group.prefix, &found)
        if key_count < 0:
            break

        # From here on it is taken.
        if group.entries_used == 0:
            group.first_number = number
            group.first_offset = offset
        for _ in range(key_count):
            push8(plain.key_offsets, &offsets_used, offset)
            push8(plain.key_timestamps, &timestamps_used, timestamp)
        if key_count == 0:
            plain.bare_offset = offset
        put8(
            put4(put8(more(group.entries, &group.entries_used, ENTRY_SIZE), offset), size),
            <int32_t> tags_code,
        )
        group.next_number = number + 1
        group.end = offset + size
        if PyBytes_GET_SIZE(observed) and _contains(properties, properties_size, observed):
            text = PyBytes_FromStringAndSize(properties, properties_size)
            flag = <int32_t> get4(at + SYS_FLAG_AT)
            plain.observed.append(
                (offset, size, queue_id, number, flag, timestamp, group.topic, text)
            )
        plain.count += 1
        plain.last_timestamp = timestamp
        at += size
    if plain.count == 0:
        return None
    plain.end = physical_offset + (at - start)
    plain.groups = [group for group in plain.groups if (<Group> group).entries_used]
    for group in plain.groups:
        PyByteArray_Resize(group.entries, group.entries_used)
    PyByteArray_Resize(plain.key_hashes, hashes_used)
    PyByteArray_Resize(plain.key_offsets, offsets_used)
    PyByteArray_Resize(plain.key_timestamps, timestamps_used)
    return plain
