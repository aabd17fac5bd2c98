# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""The send path, compiled: from the frames of one read to what the store and the replies get.

Does what SendMessageProcessor does, for the sends that nearly all are: JSON header, code 310, one
message, plain ASCII, a topic that was sent to before, IPv4; also when it is delayed or half of a
transaction. Everything else is left to Python, message by message: this file refuses nothing and
answers nothing. Python is the reference; a test compares the two byte by byte.

Each frame goes through three steps: it is parsed (`_send_header.pxd`), classified, which changes
nothing (`_send_properties.pyx` reads its properties), and appended, by the store's own appender.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp, memcpy

from twinlog.broker.put._send_header cimport (
    Frame,
    Header,
    Span,
    begins_with_other,
    has_required,
    parse_frame,
    read_number,
    unescape,
)
from twinlog.broker.put._send_properties cimport PropertyScanner, Scanned, index_keys
from twinlog.message._layout cimport (
    HOSTS_V6_MASK,
    HOST_V4_SIZE,
    PROPERTIES_SIZE_MAX,
    TOPIC_LENGTH_MAX,
    TRANSACTION_ROLLBACK_TYPE,
    UNQUEUED_FLAG,
)
from twinlog.remoting._traffic cimport count_requests, is_ready
from twinlog.store.log._appender cimport Appender, LogEnd, NewRecord

from twinlog.broker.delay.levels import destination
from twinlog.broker.put.send_properties import WAITS, WAITS_NOT
from twinlog.message.model import PutMessage
from twinlog.message.names import HALF_TOPIC, SCHEDULE_TOPIC

cdef enum:
    SEND_MESSAGE_V2 = 310
    SCRATCH_SIZE = 34000     # Properties at most, the cluster's name and where a message was for.
    # What one turn of the loop takes, so that those who pull, and the slaves, have theirs within
    # two or three milliseconds: so many records or bytes, but always some of each connection.
    TURN_COUNT_MAX = 256
    TURN_BYTES_MAX = 1 << 20
    READ_COUNT_MIN = 8

cdef enum:                   # Fields of a V2 header, by their letters.
    GROUP = 0
    TOPIC = 1
    DEFAULT_TOPIC = 2
    DEFAULT_QUEUES = 3
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN = 6
    FLAG = 7
    PROPERTIES = 8
    RECONSUME_TIMES = 9
    UNIT_MODE = 10
    MAX_RECONSUME_TIMES = 11
    BATCH = 12

cdef bytes HALF_TOPIC_BYTES = HALF_TOPIC.encode()
cdef bytes SCHEDULE_TOPIC_BYTES = SCHEDULE_TOPIC.encode()
cdef tuple HALF_KEY = (HALF_TOPIC, 0)


cdef struct Send:
    int64_t queue_id         # Of the request: what the answer says.
    int64_t level            # Of its delay; 0: none.
    NewRecord record
    Scanned found


cdef class SendLane:
    """The sends at the beginning of what a connection read."""

    cdef object _store
    cdef object _replies
    cdef object _routes
    cdef object _gate
    cdef object _config
    cdef object _remember_half
    cdef dict _queues
    cdef Appender _appender
    cdef object _appended
    cdef readonly bint is_full  # The last read ended where it did because the turn has enough.
    cdef PropertyScanner _scanner
    cdef bytes _store_host
    cdef list _delays        # By level, from 0 on.
    cdef char _text[SCRATCH_SIZE]
    cdef char _stored[SCRATCH_SIZE]
    # Of the read that is being done
    cdef object _connection
    cdef bytes _born_host
    cdef int64_t _body_max
    cdef bint _is_safe_mode
    cdef list _plain
    cdef list _safe
    cdef int64_t _first_end
    # Of the frame: the topic that it names, and where it is stored
    cdef object _topic
    cdef bytes _topic_bytes
    cdef object _route
    cdef object _stored_topic
    cdef bytes _stored_bytes
    cdef object _queue
    # Sends to one topic that are not counted in its statistics yet
    cdef object _run_route
    cdef int64_t _run_count
    cdef int64_t _run_bytes

    def __init__(
        self, *, store, replies, routes, gate, config, cluster_piece, store_host, delay_levels,
        remember_half,
    ):
        if len(store_host) != HOST_V4_SIZE:
            raise ValueError("the compiled send path is for IPv4")
        self._store = store
        self._appender = store.appender
        self._appended = store.appended
        self._queues = store.queue_table.by_key
        self._replies = replies
        self._routes = routes
        self._gate = gate
        self._config = config
        self._scanner = PropertyScanner(cluster_piece)
        self._store_host = store_host
        self._delays = [0, *(delay_levels[level] for level in sorted(delay_levels))]
        self._remember_half = remember_half

    def read(self, connection, bytes data, Py_ssize_t begin=0) -> int:
        """Put the first frames of `data` from `begin` on, as far as they are sends of the common kind.

        Returns how many bytes they are. With `is_full` what follows is for the next turn.
        """
        cdef const char* end = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)
        cdef const char* start = PyBytes_AS_STRING(data) + begin
        cdef const char* at = start
        cdef Frame frame
        cdef Send send
        cdef Py_ssize_t count = 0, body_bytes = 0
        self.is_full = False
        if begins_with_other(start, end, SEND_MESSAGE_V2, SEND_MESSAGE_V2):
            return 0
        if not parse_frame(at, end, &frame) or frame.header.numbers.code != SEND_MESSAGE_V2:
            return 0
        if not self._may_take(connection):
            return 0
        self._begin(connection)
        try:
            while self._classify(&frame, &send) and self._append(&frame, &send):
                count += 1
                body_bytes += frame.body_size
                at += frame.size
                if at < end and count >= READ_COUNT_MIN and self._has_turn_enough():
                    self.is_full = True
                    break
                if not parse_frame(at, end, &frame):
                    break
        finally:
            self._finish(count, body_bytes)
        return at - start

    cdef bint _may_take(self, connection) except -1:
        """Whether sends of this connection are put now at all."""
        if not self._store.is_accepting or self._replies.is_overloaded:
            return False
        if self._config.start_accept_send_request_time_stamp or not self._gate.is_open:
            return False
        if PyBytes_GET_SIZE(<bytes> connection.remote_host) != HOST_V4_SIZE:
            return False
        return is_ready(connection)

    cdef bint _has_turn_enough(self) except -1:
        cdef LogEnd log_end = self._appender.end
        if PyList_GET_SIZE(log_end.pieces) >= TURN_COUNT_MAX:
            return True
        return log_end.tail - <int64_t> self._appended.value >= TURN_BYTES_MAX

    cdef int _begin(self, connection) except -1:
        self._connection = connection
        self._born_host = connection.remote_host
        self._body_max = self._store.config.max_message_size
        self._is_safe_mode = self._replies.must_wait_more
        self._plain = []
        self._safe = []
        self._topic_bytes = None
        return 0

    cdef int _finish(self, Py_ssize_t count, Py_ssize_t body_bytes) except -1:
        """Hand over what was put, and let go of it."""
        if count:
            self._replies.add_run(self._first_end, self._plain, self._safe)
            self._count_run()
            count_requests(self._connection, count, body_bytes)
        self._connection = self._route = self._run_route = self._queue = None
        self._plain = self._safe = None
        return 0

    # Classify: whether it is of the common kind. Nothing is changed before that is known.

    cdef bint _classify(self, Frame* frame, Send* send) except -1:
        if frame.header.numbers.code != SEND_MESSAGE_V2 or frame.header.numbers.flag != 0:
            return False
        if frame.body_size > self._body_max or not _read_numbers(&frame.header, send):
            return False
        if not self._find_route(&frame.header.fields[TOPIC], send):
            return False
        if not self._scan(&frame.header.fields[PROPERTIES], send):
            return False
        return self._find_queue(send)

    cdef bint _find_route(self, Span* topic, Send* send) except -1:
        """The topic that was sent to last in this read, or another that is known."""
        if topic.size < 1 or topic.size > TOPIC_LENGTH_MAX:
            return False
        if (
            self._topic_bytes is None
            or PyBytes_GET_SIZE(self._topic_bytes) != topic.size
            or memcmp(PyBytes_AS_STRING(self._topic_bytes), topic.at, topic.size) != 0
        ):
            self._topic = PyUnicode_DecodeASCII(topic.at, topic.size, NULL)
            self._route = self._routes.get(self._topic)
            if self._route is None or self._route.is_retry:
                self._topic_bytes = None
                return False
            self._topic_bytes = PyBytes_FromStringAndSize(topic.at, topic.size)
        send.record.sys_flag = (
            send.record.sys_flag | <int64_t> self._route.sys_flag
        ) & ~HOSTS_V6_MASK
        return 0 <= send.queue_id < <int64_t> self._route.queue_limit

    cdef bint _scan(self, Span* properties, Send* send) except -1:
        """Its properties as they are stored, and what they say."""
        cdef Py_ssize_t size = 0
        if properties.at != NULL:
            if properties.size > PROPERTIES_SIZE_MAX:
                return False
            size = unescape(properties, self._text)
            if size < 0:
                return False
        if not self._scanner.scan(self._text, size, self._stored, &send.found):
            return False
        send.record.prepared_offset = 0
        send.record.properties = self._stored
        send.record.properties_size = send.found.size
        return True

    cdef bint _find_queue(self, Send* send) except -1:
        """Where it is stored: the queue that it names, or one where it waits."""
        cdef object key
        send.level = send.found.level
        if send.found.is_half:
            if send.level > 0 and send.record.reconsume_times > 0:
                return False
            if self._config.reject_transaction_message:
                return False
            send.level = send.record.queue_id = 0
            send.record.sys_flag &= ~TRANSACTION_ROLLBACK_TYPE
            key, self._stored_topic, self._stored_bytes = HALF_KEY, HALF_TOPIC, HALF_TOPIC_BYTES
        elif send.level > 0:
            send.record.queue_id = send.level - 1
            key = (SCHEDULE_TOPIC, send.record.queue_id)
            self._stored_topic, self._stored_bytes = SCHEDULE_TOPIC, SCHEDULE_TOPIC_BYTES
        else:
            send.record.queue_id = send.queue_id
            key = (self._topic, send.queue_id)
            self._stored_topic, self._stored_bytes = self._topic, self._topic_bytes
        if send.record.sys_flag & UNQUEUED_FLAG:
            return False
        if (send.found.is_half or send.level > 0) and not self._park(send):
            return False
        self._queue = self._queues.get(key)
        return self._queue is not None and self._queue.is_schedule == (send.level > 0)

    cdef bint _park(self, Send* send) except -1:
        """A message that waits elsewhere says where it is for, and whether its sender waits."""
        cdef bytes extra
        if send.found.was_parked or send.found.level >= len(self._delays):
            return False
        extra = destination(self._topic, send.queue_id)
        if send.found.says_wait:
            extra = (WAITS if send.found.must_wait else WAITS_NOT) + extra
        if send.record.properties_size + PyBytes_GET_SIZE(extra) > PROPERTIES_SIZE_MAX:
            return False
        memcpy(
            self._stored + send.record.properties_size, PyBytes_AS_STRING(extra),
            PyBytes_GET_SIZE(extra),
        )
        send.record.properties_size += PyBytes_GET_SIZE(extra)
        return True

    # Append: the store takes it, its answer waits, the statistics know it.

    cdef bint _append(self, Frame* frame, Send* send) except -1:
        """False, and nothing is put: the segment has no room."""
        cdef Appender appender = self._appender
        cdef bytes body = PyBytes_FromStringAndSize(frame.body, frame.body_size)
        cdef object keys = None
        cdef int64_t offset
        if not appender.is_open:
            appender.open()
        send.record.entry_code = send.found.tags_code
        if send.level:
            send.record.entry_code = appender.timestamp + <int64_t> self._delays[send.level]
        if appender.has_index() or send.found.is_half:
            keys = index_keys(&send.found)
        offset = appender.put(
            &send.record, self._queue, self._stored_topic, self._stored_bytes, body,
            self._born_host, self._store_host, keys,
        )
        if offset < 0:
            return False
        if send.found.is_half:
            self._remember(send, offset, body, keys)
        self._add_reply(frame.header.numbers.opaque, send, offset)
        if self._route is not self._run_route:
            self._count_run()
            self._run_route = self._route
        self._run_count += 1
        self._run_bytes += send.record.end_offset - offset
        return True

    cdef int _remember(self, Send* send, int64_t offset, bytes body, keys) except -1:
        """Half of a transaction: its end comes later, and finds it without reading the log."""
        cdef NewRecord* record = &send.record
        half = PutMessage(
            HALF_TOPIC, 0, body,
            PyBytes_FromStringAndSize(self._stored, record.properties_size), record.flag,
            record.sys_flag, record.born_ms, self._born_host, self._store_host,
            record.reconsume_times, 0, send.found.tags_code, keys or (),
        )
        self._remember_half(
            half, offset, record.queue_offset, self._topic, send.queue_id,
            send.found.must_wait != 0,
        )
        return 0

    cdef int _add_reply(self, int64_t opaque, Send* send, int64_t offset) except -1:
        cdef int64_t queue_offset = send.record.queue_offset
        waiting = (self._connection, opaque, 0, send.queue_id, queue_offset, offset)
        if not self._plain and not self._safe:
            self._first_end = send.record.end_offset
        if send.found.must_wait and self._is_safe_mode:
            self._safe.append((send.record.end_offset, waiting))
        else:
            self._plain.append(waiting)
        return 0

    cdef int _count_run(self) except -1:
        """Statistics of a run of sends to one topic."""
        if self._run_count:
            self._run_route.count(self._run_count, self._run_bytes)
        self._run_count = self._run_bytes = 0
        return 0


cdef inline bint _is_false(Span* span) noexcept:
    return span.at == NULL or (span.size == 5 and memcmp(span.at, b"false", 5) == 0)


cdef inline bint _is_number(Span* span, int64_t* value) noexcept:
    """A number of 32 bits; one that is not there is 0."""
    value[0] = 0
    if span.at == NULL:
        return True
    return read_number(span.at, span.size, value) and value[0] == <int32_t> value[0]


cdef inline bint _read_numbers(Header* header, Send* send) noexcept:
    """The numbers of a single message; False: it is none, or not written as clients do."""
    cdef Span* fields = header.fields
    cdef int64_t unused
    if not has_required(header) or header.numbers.opaque != <int32_t> header.numbers.opaque:
        return False
    if fields[GROUP].has_escape or fields[TOPIC].has_escape or fields[DEFAULT_TOPIC].has_escape:
        return False
    if not _is_false(&fields[BATCH]) or not _is_false(&fields[UNIT_MODE]):
        return False
    if not _is_number(&fields[MAX_RECONSUME_TIMES], &unused):
        return False
    if not _is_number(&fields[RECONSUME_TIMES], &send.record.reconsume_times):
        return False
    if not _is_number(&fields[DEFAULT_QUEUES], &unused):
        return False
    if not _is_number(&fields[SYS_FLAG], &send.record.sys_flag):
        return False
    if not _is_number(&fields[FLAG], &send.record.flag):
        return False
    if not read_number(fields[QUEUE_ID].at, fields[QUEUE_ID].size, &send.queue_id):
        return False
    return read_number(fields[BORN].at, fields[BORN].size, &send.record.born_ms)
