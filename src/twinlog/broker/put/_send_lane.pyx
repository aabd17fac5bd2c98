# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""The send path, compiled: from the frames of one read to records, entries and waiting replies.

Does what SendMessageProcessor, MessageStore.put and PutReplies.add do, for the sends that nearly
all are: JSON header, code 310, one message, plain ASCII, a topic that was sent to before, IPv4;
also when it is delayed or half of a transaction. Everything else is left to them, message by message: this file refuses
nothing and answers nothing. They are the reference; a test compares the two byte by byte.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memcmp, memcpy

from twinlog.message._layout cimport (
    BLANK_SIZE_MIN,
    CRC_MASK,
    ENTRY_SIZE,
    HEAD_SIZE,
    HOSTS_V6_MASK,
    HOST_V4_SIZE,
    MAGIC_V1,
    PROPERTIES_LENGTH_SIZE,
    PROPERTIES_SIZE_MAX,
    TOPIC_LENGTH_MAX,
    TOPIC_LENGTH_SIZE,
    TRANSACTION_ROLLBACK_TYPE,
    UNQUEUED_FLAG,
)
from twinlog.message._pairs cimport extend_hash, get4, put4, put8, put_hexadecimal

from twinlog.broker.put import send_properties as _table
from twinlog.broker.delay.levels import destination as _destination
from twinlog.message.names import HALF_TOPIC as _HALF_TOPIC
from twinlog.message.names import SCHEDULE_TOPIC as _SCHEDULE_TOPIC
from twinlog.message.model import PutMessage as _PutMessage

cdef enum:
    SCRATCH_SIZE = 34000
    NAMES = 15               # Fields `a` to `o` of a V2 header.
    REQUIRED = 8             # The first of them.
    # Larger ones meet their limits where limits are looked after.
    FRAME_SIZE_MAX = 1 << 20
    HEADER_SIZE_MAX = 1 << 16
    LEVEL_DIGITS_MAX = 4
    SPECIALS_MAX = 32        # Names in the table of properties.

cdef bytes HALF_TOPIC_BYTES = _HALF_TOPIC.encode()
cdef bytes SCHEDULE_TOPIC_BYTES = _SCHEDULE_TOPIC.encode()
cdef tuple HALF_KEY = (_HALF_TOPIC, 0)
cdef bytes WAITS = b"\x02WAIT\x01true"
cdef bytes WAITS_NOT = b"\x02WAIT\x01false"

# Kinds of properties. Those of the table that are not here are for `scan_properties`.
cdef int WAIT = _table.WAIT, TAGS = _table.TAGS, UNIQUE = _table.UNIQUE, KEYS = _table.KEYS
cdef int CLUSTER = _table.CLUSTER, DELAY = _table.DELAY, HALF = _table.HALF, PARKED = _table.PARKED

cdef struct Span:
    const char* at
    Py_ssize_t size
    bint has_escape

cdef struct Header:
    int64_t code
    int64_t flag
    int64_t opaque
    Span fields[NAMES]


# JSON, as far as headers of clients go

cdef inline const char* _space(const char* at, const char* end) noexcept:
    while at < end and (at[0] == 32 or at[0] == 10 or at[0] == 13 or at[0] == 9):
        at += 1
    return at


cdef inline const char* _string(const char* at, const char* end, Span* span) noexcept:
    """The string that opens at `at`; what follows it, or NULL."""
    cdef uint8_t c
    if at >= end or at[0] != 34:
        return NULL
    at += 1
    span.at = at
    span.has_escape = False
    while at < end:
        c = <uint8_t> at[0]
        if c == 34:
            span.size = at - span.at
            return at + 1
        if c < 32 or c >= 128:
            return NULL
        if c == 92:
            span.has_escape = True
            at += 1
        at += 1
    return NULL


cdef inline bint _number(const char* at, Py_ssize_t size, int64_t* value) noexcept:
    """Digits as every writer of headers writes them: no sign but minus, no leading zero."""
    cdef bint is_negative = False
    cdef int64_t total = 0
    cdef Py_ssize_t i
    if size > 0 and at[0] == 45:
        is_negative = True
        at += 1
        size -= 1
    if size < 1 or size > 18 or (at[0] == 48 and (size > 1 or is_negative)):
        return False
    for i in range(size):
        if at[i] < 48 or at[i] > 57:
            return False
        total = total * 10 + (at[i] - 48)
    value[0] = -total if is_negative else total
    return True


cdef inline const char* _top_number(const char* at, const char* end, int64_t* value) noexcept:
    cdef const char* start = at
    while at < end and (at[0] == 45 or (at[0] >= 48 and at[0] <= 57)):
        at += 1
    return at if _number(start, at - start, value) else NULL


cdef inline const char* _rest(Span* name, const char* at, const char* end) noexcept:
    """The value of a field that does not matter here, in the one form that clients write."""
    cdef Span value
    cdef int64_t number
    if name.size == 7 and memcmp(name.at, b"version", 7) == 0:
        at = _top_number(at, end, &number)
        return at if at != NULL and number == <int32_t> number else NULL
    if name.size == 8 and memcmp(name.at, b"language", 8) == 0:
        at = _string(at, end, &value)
        return at if at != NULL and not value.has_escape else NULL
    if name.size == 23 and memcmp(name.at, b"serializeTypeCurrentRPC", 23) == 0:
        at = _string(at, end, &value)
        return at if at != NULL and value.size == 4 and memcmp(value.at, b"JSON", 4) == 0 else NULL
    return NULL


cdef const char* _ext_fields(const char* at, const char* end, Header* header) noexcept:
    cdef Span name, value
    cdef int number
    if at >= end or at[0] != 123:
        return NULL
    at = _space(at + 1, end)
    while True:
        at = _string(at, end, &name)
        if at == NULL or name.has_escape:
            return NULL
        at = _space(at, end)
        if at >= end or at[0] != 58:
            return NULL
        at = _string(_space(at + 1, end), end, &value)
        if at == NULL:
            return NULL
        if name.size == 1:
            number = name.at[0] - 97
            if 0 <= number < NAMES:
                header.fields[number] = value
        at = _space(at, end)
        if at >= end:
            return NULL
        if at[0] == 125:
            return at + 1
        if at[0] != 44:
            return NULL
        at = _space(at + 1, end)


cdef bint _parse(const char* at, Py_ssize_t size, Header* header) noexcept:
    """Read a header; False: not one of those that this file takes."""
    cdef const char* end = at + size
    cdef Span name
    cdef bint has_ext = False
    cdef int number
    header.code = header.flag = header.opaque = 0
    for number in range(NAMES):
        header.fields[number].at = NULL
    at = _space(at, end)
    if at >= end or at[0] != 123:
        return False
    at = _space(at + 1, end)
    while True:
        at = _string(at, end, &name)
        if at == NULL or name.has_escape:
            return False
        at = _space(at, end)
        if at >= end or at[0] != 58:
            return False
        at = _space(at + 1, end)
        if name.size == 4 and memcmp(name.at, b"code", 4) == 0:
            at = _top_number(at, end, &header.code)
        elif name.size == 4 and memcmp(name.at, b"flag", 4) == 0:
            at = _top_number(at, end, &header.flag)
        elif name.size == 6 and memcmp(name.at, b"opaque", 6) == 0:
            at = _top_number(at, end, &header.opaque)
        elif name.size == 9 and memcmp(name.at, b"extFields", 9) == 0:
            if has_ext:
                return False
            has_ext = True
            at = _ext_fields(at, end, header)
        else:
            at = _rest(&name, at, end)
        if at == NULL:
            return False
        at = _space(at, end)
        if at >= end:
            return False
        if at[0] == 125:
            return has_ext and _space(at + 1, end) == end
        if at[0] != 44:
            return False
        at = _space(at + 1, end)


cdef inline bint _has_required(Header* header) noexcept:
    cdef int number
    for number in range(REQUIRED):
        if header.fields[number].at == NULL:
            return False
    return True


cdef inline int _hex(char c) noexcept:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= c <= 102:
        return c - 87
    if 65 <= c <= 70:
        return c - 55
    return -1


cdef Py_ssize_t _unescape(Span* span, char* out) noexcept:
    """The text of a JSON string into `out`; -1: a character that is not ASCII."""
    cdef const char* at = span.at
    cdef const char* end = at + span.size
    cdef char* start = out
    cdef char c
    cdef int high, low
    while at < end:
        c = at[0]
        if c != 92:
            out[0] = c
            out += 1
            at += 1
            continue
        if end - at < 2:
            return -1
        c = at[1]
        at += 2
        if c == 117:  # u
            if end - at < 4 or at[0] != 48 or at[1] != 48:
                return -1
            high = _hex(at[2])
            low = _hex(at[3])
            if high < 0 or low < 0 or high > 7:
                return -1
            out[0] = <char> (high * 16 + low)
            at += 4
        elif c == 34 or c == 92 or c == 47:
            out[0] = c
        elif c == 110:
            out[0] = 10
        elif c == 116:
            out[0] = 9
        elif c == 114:
            out[0] = 13
        elif c == 98:
            out[0] = 8
        elif c == 102:
            out[0] = 12
        else:
            return -1
        out += 1
    return out - start


# Frames

cdef inline bint _open(
    const char* at, const char* end, Py_ssize_t* frame_size, Py_ssize_t* header_size
) noexcept:
    """Whether a whole frame with a JSON header of the common size is at `at`."""
    cdef uint32_t length, mark
    if end - at < 8:
        return False
    length = get4(at)
    mark = get4(at + 4)
    if length > FRAME_SIZE_MAX or mark > HEADER_SIZE_MAX or mark + 4 > length:
        return False
    frame_size[0] = <Py_ssize_t> length + 4
    header_size[0] = <Py_ssize_t> mark
    return end - at >= frame_size[0]


# Properties

cdef struct Special:
    const char* at           # Its name.
    Py_ssize_t size
    int kind


cdef struct Scanned:
    Py_ssize_t size          # Of what is stored, in the buffer that was given.
    int32_t tags_code
    bint must_wait
    bint is_half
    bint was_parked          # It names a destination: it was delayed or half before.
    int32_t level            # Of its delay; 0: none.
    Span unique
    Span keys


cdef inline bint _is_true(const char* at, Py_ssize_t size) noexcept:
    return (
        size == 4
        and (at[0] | 32) == 116 and (at[1] | 32) == 114
        and (at[2] | 32) == 117 and (at[3] | 32) == 101
    )


cdef inline int32_t _level(const char* at, Py_ssize_t size) noexcept:
    """A delay level in plain digits; -1: something else."""
    cdef int32_t value = 0
    cdef Py_ssize_t i
    if size > LEVEL_DIGITS_MAX:
        return -1
    for i in range(size):
        if not 48 <= at[i] <= 57:
            return -1
        value = value * 10 + at[i] - 48
    return value


cdef inline bint _says_wait(const char* at, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i
    for i in range(size - 4):
        if at[i] == 87 and memcmp(at + i, b"WAIT\x01", 5) == 0:
            return True
    return False


cdef inline int _kind(
    const char* name, Py_ssize_t size, const Special* specials, int count
) noexcept:
    """What a name means; 0: nothing to the broker."""
    cdef int i
    for i in range(count):
        if specials[i].size == size and memcmp(specials[i].at, name, size) == 0:
            return specials[i].kind
    return 0


cdef bint _scan(
    const char* at, Py_ssize_t size, bytes cluster, const Special* specials, int special_count,
    char* out, Scanned* scanned,
) noexcept:
    """What `scan_properties` does; False: something is in the text that is only known there."""
    cdef const char* end = at + size
    cdef const char* piece
    cdef const char* equals
    cdef char* start = out
    cdef Py_ssize_t value_size
    cdef uint32_t tags_code
    cdef const char* value
    cdef int kind
    scanned.tags_code = 0
    scanned.must_wait = True
    scanned.is_half = scanned.was_parked = False
    scanned.level = 0
    scanned.unique.size = scanned.keys.size = 0
    while at < end:
        piece = at
        equals = NULL
        while at < end and at[0] != 2:
            if at[0] == 1 and equals == NULL:
                equals = at
            elif at[0] == 0:
                return False
            at += 1
        if equals != NULL and equals > piece and at - equals > 1:
            value = equals + 1
            value_size = at - value
            kind = _kind(piece, equals - piece, specials, special_count)
            if kind == WAIT:
                scanned.must_wait = _is_true(value, value_size)
            elif kind != CLUSTER:
                if kind == 0:
                    pass
                elif kind == TAGS:
                    tags_code = 0
                    extend_hash(value, value_size, &tags_code)
                    scanned.tags_code = <int32_t> tags_code
                elif kind == KEYS:
                    scanned.keys.at = value
                    scanned.keys.size = value_size
                elif kind == UNIQUE:
                    scanned.unique.at = value
                    scanned.unique.size = value_size
                elif kind == DELAY:
                    scanned.level = _level(value, value_size)
                    if scanned.level < 0:
                        return False
                elif kind == HALF:
                    scanned.is_half = _is_true(value, value_size)
                elif kind == PARKED:
                    scanned.was_parked = True
                else:
                    return False
                memcpy(out, piece, at - piece)
                out += at - piece
                out[0] = 2
                out += 1
        at += 1
    memcpy(out, PyBytes_AS_STRING(cluster), PyBytes_GET_SIZE(cluster))
    scanned.size = out + PyBytes_GET_SIZE(cluster) - start
    return scanned.size <= PROPERTIES_SIZE_MAX


cdef object _keys(Scanned* scanned):
    """The keys that the index gets, or None."""
    cdef object unique = None
    cdef object keys
    if scanned.unique.size:
        unique = PyUnicode_DecodeASCII(scanned.unique.at, scanned.unique.size, NULL)
    if not scanned.keys.size:
        return None if unique is None else (unique,)
    keys = PyUnicode_DecodeASCII(scanned.keys.at, scanned.keys.size, NULL)
    if " " in keys:
        words = tuple([word for word in keys.split(" ") if word])
        if unique is None:
            return words or None
        return (unique, *words)
    return (keys,) if unique is None else (unique, keys)


cdef class SendLane:
    """The sends at the beginning of what a connection read."""

    cdef object _store
    cdef object _replies
    cdef object _routes
    cdef object _gate
    cdef object _config
    cdef object _crc32
    cdef bytes _cluster
    cdef bytes _store_host
    cdef list _special_names # Their bytes are what `_specials` points into.
    cdef Special _specials[SPECIALS_MAX]
    cdef object _remember_half
    cdef list _delays        # By level, from 0 on.
    cdef char _text[SCRATCH_SIZE]
    cdef char _properties[SCRATCH_SIZE]

    def __init__(
        self, *, store, replies, routes, gate, config, crc32, cluster_piece, store_host,
        delay_levels, remember_half,
    ):
        self._store = store
        self._replies = replies
        self._routes = routes
        self._gate = gate
        self._config = config
        self._crc32 = crc32
        self._cluster = cluster_piece.encode()
        self._store_host = store_host
        if len(_table.KINDS) > SPECIALS_MAX:
            raise ValueError("more special properties than the compiled send path has room for")
        self._special_names = []
        for number, (name, kind) in enumerate(_table.KINDS.items()):
            text = <bytes> name.encode()
            self._special_names.append(text)
            self._specials[number].at = PyBytes_AS_STRING(text)
            self._specials[number].size = PyBytes_GET_SIZE(text)
            self._specials[number].kind = kind
        self._delays = [0, *(delay_levels[level] for level in sorted(delay_levels))]
        self._remember_half = remember_half
        if len(self._cluster) > 1000 or len(store_host) != HOST_V4_SIZE:
            raise ValueError("cluster name or host that the compiled send path does not take")

    def read(self, connection, bytes data):
        """Put the first frames of `data`, as far as they are sends of the common kind.

        Returns how many bytes they are.
        """
        cdef Header header
        cdef Scanned scanned
        cdef Span* span
        cdef bytes body, born_host
        cdef const char* frame = PyBytes_AS_STRING(data)
        cdef const char* end = frame + PyBytes_GET_SIZE(data)
        cdef Py_ssize_t frame_size, header_size
        cdef bytes record
        cdef bytearray tail
        cdef char* at
        cdef const char* topic_at
        cdef Py_ssize_t size, body_size, topic_size, text_size, count = 0, taken_bytes = 0
        cdef Py_ssize_t tail_size
        cdef int64_t queue_id, sys_flag, born_ms, flag, times, number
        cdef int64_t offset, segment_end, timestamp, queue_offset, turn, body_max, route_limit = 0
        cdef int64_t run_count = 0, run_bytes = 0, crc
        cdef int64_t route_flag = 0, level, stored_queue_id, entry_code
        cdef bytes stored_topic_bytes, extra
        cdef object stored_topic, half
        cdef bint is_safe_mode
        cdef object store = self._store
        cdef object log, route, run_route = None, queue, topic = None, queues, index, keys
        cdef object waiting, plain, safe, replies = self._replies
        cdef object key
        cdef bytes topic_bytes = None

        if not _open(frame, end, &frame_size, &header_size) or not _parse(
            frame + 8, header_size, &header
        ):
            return 0
        if header.code != 310:
            return 0
        born_host = connection.remote_host
        if (
            store._refusal is not None
            or PyBytes_GET_SIZE(born_host) != HOST_V4_SIZE
            or replies.is_overloaded
            or self._config.start_accept_send_request_time_stamp
            or not self._gate.is_open
            or not connection.is_ready
        ):
            return 0
        log = store.commit_log
        queues = store._queues_by_key
        index = store.index
        body_max = store.config.max_message_size
        segment_end = log.segment_end
        is_safe_mode = replies.must_wait_more
        plain = replies._plain
        safe = replies._safe
        timestamp = turn = 0
        while True:
            # Whether it is of the common kind: nothing is changed before that is known.
            if header.code != 310 or header.flag != 0:
                break
            body_size = frame_size - 8 - header_size
            if body_size > body_max:
                break
            if not _has_required(&header):
                break
            span = &header.fields[12]  # m: batch
            if span.at != NULL and not (span.size == 5 and memcmp(span.at, b"false", 5) == 0):
                break
            span = &header.fields[10]  # k: unit mode
            if span.at != NULL and not (span.size == 5 and memcmp(span.at, b"false", 5) == 0):
                break
            span = &header.fields[11]  # l: max reconsume times, not used here
            if span.at != NULL and not (
                _number(span.at, span.size, &number) and number == <int32_t> number
            ):
                break
            times = 0
            span = &header.fields[9]
            if span.at != NULL and not _number(span.at, span.size, &times):
                break
            if not (
                _number(header.fields[3].at, header.fields[3].size, &number)
                and _number(header.fields[4].at, header.fields[4].size, &queue_id)
                and _number(header.fields[5].at, header.fields[5].size, &sys_flag)
                and _number(header.fields[6].at, header.fields[6].size, &born_ms)
                and _number(header.fields[7].at, header.fields[7].size, &flag)
            ):
                break
            if (
                number != <int32_t> number or flag != <int32_t> flag or times != <int32_t> times
                or sys_flag != <int32_t> sys_flag
                or header.opaque != <int32_t> header.opaque
                or header.fields[0].has_escape or header.fields[1].has_escape
                or header.fields[2].has_escape
            ):
                break
            topic_at = header.fields[1].at
            topic_size = header.fields[1].size
            if topic_size < 1 or topic_size > TOPIC_LENGTH_MAX:
                break
            if topic_bytes is None or PyBytes_GET_SIZE(topic_bytes) != topic_size or memcmp(
                PyBytes_AS_STRING(topic_bytes), topic_at, topic_size
            ) != 0:
                topic = PyUnicode_DecodeASCII(topic_at, topic_size, NULL)
                route = self._routes.get(topic)
                if route is None or route.is_retry:
                    break
                topic_bytes = PyBytes_FromStringAndSize(topic_at, topic_size)
                route_limit = route.queue_limit
                route_flag = route.sys_flag
            if queue_id < 0 or queue_id >= route_limit:
                break
            span = &header.fields[8]
            if span.at == NULL:
                text_size = 0
            elif span.size > PROPERTIES_SIZE_MAX:
                break
            else:
                text_size = _unescape(span, self._text)
                if text_size < 0:
                    break
            if not _scan(
                self._text, text_size, self._cluster, self._specials, len(self._special_names),
                self._properties, &scanned,
            ):
                break
            sys_flag = (sys_flag | route_flag) & ~HOSTS_V6_MASK
            level = scanned.level
            if scanned.is_half:
                if level > 0 and times > 0 or self._config.reject_transaction_message:
                    break
                level = 0
                sys_flag &= ~TRANSACTION_ROLLBACK_TYPE
                key, stored_topic, stored_topic_bytes = HALF_KEY, _HALF_TOPIC, HALF_TOPIC_BYTES
                stored_queue_id = 0
            elif level > 0:
                stored_queue_id = level - 1
                key = (_SCHEDULE_TOPIC, stored_queue_id)
                stored_topic, stored_topic_bytes = _SCHEDULE_TOPIC, SCHEDULE_TOPIC_BYTES
            else:
                key, stored_topic, stored_topic_bytes = (topic, queue_id), topic, topic_bytes
                stored_queue_id = queue_id
            if sys_flag & UNQUEUED_FLAG:
                break
            if scanned.is_half or level > 0:
                if scanned.was_parked or scanned.level >= len(self._delays):
                    break
                extra = _destination(topic, queue_id)
                if _says_wait(self._text, text_size):
                    extra = (WAITS if scanned.must_wait else WAITS_NOT) + extra
                if scanned.size + PyBytes_GET_SIZE(extra) > PROPERTIES_SIZE_MAX:
                    break
                memcpy(
                    self._properties + scanned.size, PyBytes_AS_STRING(extra),
                    PyBytes_GET_SIZE(extra),
                )
                scanned.size += PyBytes_GET_SIZE(extra)
            queue = queues.get(key)
            if queue is None or queue.is_schedule != (level > 0):
                break

            # From here on it is taken.
            if not store._is_write_scheduled:
                store._begin_turn()
                timestamp = 0
            if timestamp == 0:
                timestamp = store._turn_timestamp
                turn = store._turn
            topic_at = PyBytes_AS_STRING(stored_topic_bytes)
            topic_size = PyBytes_GET_SIZE(stored_topic_bytes)
            size = (
                HEAD_SIZE + body_size + TOPIC_LENGTH_SIZE + topic_size + PROPERTIES_LENGTH_SIZE
                + scanned.size
            )
            offset = log.tail
            if offset + size + BLANK_SIZE_MIN > segment_end:
                break
            queue_offset = queue.next_offset
            body = PyBytes_FromStringAndSize(frame + 8 + header_size, body_size)
            crc = <int64_t> (self._crc32(body) & CRC_MASK) if body_size else 0
            record = PyBytes_FromStringAndSize(NULL, size)
            at = PyBytes_AS_STRING(record)
            at = put4(at, size)
            at = put4(at, MAGIC_V1)
            at = put4(at, crc)
            at = put4(at, stored_queue_id)
            at = put4(at, flag)
            at = put8(at, queue_offset)
            at = put8(at, offset)
            at = put4(at, sys_flag)
            at = put8(at, born_ms)
            memcpy(at, PyBytes_AS_STRING(born_host), HOST_V4_SIZE)
            at = put8(at + HOST_V4_SIZE, timestamp)
            memcpy(at, PyBytes_AS_STRING(self._store_host), HOST_V4_SIZE)
            at = put4(at + HOST_V4_SIZE, times)
            at = put8(at, 0)
            at = put4(at, body_size)
            memcpy(at, PyBytes_AS_STRING(body), body_size)
            at += body_size
            at[0] = <char> topic_size
            memcpy(at + 1, topic_at, topic_size)
            at += 1 + topic_size
            at[0] = <char> (scanned.size >> 8)
            at[1] = <char> scanned.size
            memcpy(at + 2, self._properties, scanned.size)
            log.pieces.append(record)
            log.tail = offset + size
            if queue.turn != turn:
                store._touch(queue, offset)
            tail = queue.tail
            tail_size = PyByteArray_GET_SIZE(tail)
            PyByteArray_Resize(tail, tail_size + ENTRY_SIZE)
            at = PyByteArray_AS_STRING(tail) + tail_size
            entry_code = timestamp + <int64_t> self._delays[level] if level else scanned.tags_code
            put8(put4(put8(at, offset), size), entry_code)
            queue.next_offset = queue_offset + 1
            queue.last_physical_end = offset + size
            if index is not None:
                keys = _keys(&scanned)
                if keys is None:
                    index.bare_offset = offset
                else:
                    index.pending.append((stored_topic, keys, offset, timestamp))
            if scanned.is_half:
                half = _PutMessage(
                    _HALF_TOPIC, 0, body,
                    PyBytes_FromStringAndSize(self._properties, scanned.size), flag, sys_flag,
                    born_ms, born_host, self._store_host, times, 0, scanned.tags_code,
                    _keys(&scanned) or (),
                )
                self._remember_half(
                    half, offset, queue_offset, topic, queue_id, scanned.must_wait != 0
                )
            if route is not run_route:
                if run_count:
                    _count(run_route, run_count, run_bytes)
                run_route = route
                run_count = run_bytes = 0
            run_count += 1
            run_bytes += size
            if count == 0 and not plain and not safe:
                replies.begin(offset + size)
            waiting = (connection, header.opaque, 0, queue_id, queue_offset, offset)
            if scanned.must_wait and is_safe_mode:
                safe.append((offset + size, waiting))
            else:
                plain.append(waiting)
            taken_bytes += body_size
            count += 1
            frame += frame_size
            if not _open(frame, end, &frame_size, &header_size) or not _parse(
                frame + 8, header_size, &header
            ):
                break
        if count:
            _count(run_route, run_count, run_bytes)
            connection.count_requests(count, taken_bytes)
        return frame - PyBytes_AS_STRING(data)


cdef object _count(object route, int64_t count, int64_t size):
    """Statistics of a run of sends to one topic."""
    item = route.nums
    item.value += count
    item.times += count
    item = route.size
    item.value += size
    item.times += count


# Replies

cdef inline char* _decimal(char* at, int64_t value) noexcept:
    cdef char digits[20]
    cdef int size = 0
    cdef uint64_t rest
    if value < 0:
        at[0] = 45
        at += 1
        rest = <uint64_t> 0 - <uint64_t> value
    else:
        rest = <uint64_t> value
    while True:
        digits[size] = <char> (48 + rest % 10)
        size += 1
        rest //= 10
        if rest == 0:
            break
    while size:
        size -= 1
        at[0] = digits[size]
        at += 1
    return at


cdef inline char* _piece(char* at, bytes piece) noexcept:
    memcpy(at, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
    return at + PyBytes_GET_SIZE(piece)


cdef class ReplyWriter:
    """Answers to sends that are stored: SendResponseTemplate for a whole list of them."""

    cdef bytes _head, _id, _offset, _opaque, _end
    cdef Py_ssize_t _size_max

    def __init__(self, tuple pieces):
        """`pieces` stand around queue id, physical offset, queue offset and opaque."""
        self._head, self._id, self._offset, self._opaque, self._end = pieces
        self._size_max = sum(map(len, pieces)) + 8 + 3 * 20 + 16

    def write(self, list plain):
        """Hand each connection its answers: one piece of bytes for those that follow each other."""
        cdef Py_ssize_t first = 0, last, total = len(plain)
        cdef object connection
        cdef bytes room
        cdef char* start
        cdef char* at
        while first < total:
            connection = (<tuple> plain[first])[0]
            last = first + 1
            while last < total and (<tuple> plain[last])[0] is connection:
                last += 1
            room = PyBytes_FromStringAndSize(NULL, (last - first) * self._size_max)
            start = at = PyBytes_AS_STRING(room)
            for number in range(first, last):
                at = self._frame(at, <tuple> plain[number])
            connection.write_run(PyBytes_FromStringAndSize(start, at - start), last - first)
            first = last

    cdef char* _frame(self, char* frame, tuple waiting) except NULL:
        cdef char* at = _piece(frame + 8, self._head)
        at = _decimal(at, waiting[3])
        at = _piece(at, self._id)
        at = put_hexadecimal(at, waiting[5])
        at = _piece(at, self._offset)
        at = _decimal(at, waiting[4])
        at = _piece(at, self._opaque)
        at = _decimal(at, waiting[1])
        at = _piece(at, self._end)
        put4(frame, at - frame - 4)
        put4(frame + 4, at - frame - 8)
        return at
