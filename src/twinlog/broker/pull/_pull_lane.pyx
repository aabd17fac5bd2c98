# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""The pull path, compiled: from the frames of one read to the answers that leave.

Does what PullMessageProcessor does, for the pulls that nearly all are where there is something to
read: PULL_MESSAGE or LITE_PULL_MESSAGE in either form of the header, plain ASCII, a group and a
topic that are known, a subscription by tags or by an expression, records in one mapped segment.
Everything else is left to Python, request by request: a pull that has to wait, that is out of
range or refused, and one that meets damage. Python is the reference; a test compares the two byte
by byte.

Each frame goes through three steps: it is parsed (`_pull_header.pxd`); classified and read, which
changes nothing (the store's `_gather.pyx` walks over the entries); and answered.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from twinlog.broker.pull._pull_header cimport (
    CONSUMER_GROUP,
    EXPRESSION_TYPE,
    SUBSCRIPTION,
    TOPIC,
    PullNumbers,
    parse_pull,
    read_pull_numbers,
)
from twinlog.broker.put._named_header cimport NamedFrame
from twinlog.broker.put._send_header cimport OPENING_SIZE, Span, begins_with_other
from twinlog.message._layout cimport ENTRY_SIZE
from twinlog.message._pairs cimport put4, put_decimal
from twinlog.remoting._traffic cimport is_ready
from twinlog.store.queue._gather cimport Bounds, Found, copy_records, walk

from twinlog.broker.processors.pull import PULL_COUNT_MAX
from twinlog.message import perm
from twinlog.message.crc import crc32
from twinlog.message.names import LMQ_PREFIX, RETRY_PREFIX, TOOLS_GROUP
from twinlog.remoting.codec import pull_pieces, response_header
from twinlog.remoting.codes import ResponseCode, SerializeType
from twinlog.remoting.headers import pull as flags
from twinlog.store.reader import SCAN_ENTRIES
from twinlog.store.status import GetMessageStatus

cdef enum:
    PULL_MESSAGE = 11
    LITE_PULL_MESSAGE = 361
    HEADER_ROOM = 640        # The text of an answer's header and its numbers.
    # What one turn of the loop takes of one connection, so that others have theirs: so many bytes
    # of answers, or entries that were looked at.
    TURN_BYTES_MAX = 256 * 1024
    TURN_ENTRIES_MAX = 4096
    # With a filter so many entries for each message wanted are read at first.
    ENTRIES_A_MESSAGE = 4

cdef int64_t COMMITS = flags.PULL_COMMIT_OFFSET
cdef int64_t BRINGS_SUBSCRIPTION = flags.PULL_SUBSCRIPTION
cdef int64_t READABLE = perm.PERM_READ
cdef int64_t COUNT_MOST = PULL_COUNT_MAX
cdef int64_t SPAN_MOST = SCAN_ENTRIES
cdef int BINARY = SerializeType.ROCKETMQ
cdef str FOUND_NAME = GetMessageStatus.FOUND.name
cdef str UNMATCHED_NAME = GetMessageStatus.NO_MATCHED_MESSAGE.name
cdef int FOUND_CODE = ResponseCode.SUCCESS
cdef int UNMATCHED_CODE = ResponseCode.PULL_RETRY_IMMEDIATELY
cdef tuple FOUND_PIECES = pull_pieces(FOUND_CODE, FOUND_NAME.encode())
cdef tuple UNMATCHED_PIECES = pull_pieces(UNMATCHED_CODE, UNMATCHED_NAME.encode())


cdef inline str _text(Span* span):
    return None if span.at == NULL else PyUnicode_DecodeASCII(span.at, span.size, NULL)


cdef inline char* _piece(char* at, bytes piece) noexcept:
    memcpy(at, PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))
    return at + PyBytes_GET_SIZE(piece)


cdef class PullLane:
    """The pulls at the beginning of what a connection read."""

    cdef object _store
    cdef object _config
    cdef object _role
    cdef object _gate
    cdef object _skip_guard
    cdef dict _queues
    cdef object _pool
    cdef object _reader
    cdef object _groups
    cdef object _topics
    cdef object _consumers
    cdef object _filters
    cdef object _posted
    cdef object _answered
    cdef object _commit
    cdef readonly bint is_full  # The last read ended where it did because the turn has enough.
    # Of the pull that is being answered
    cdef PullNumbers _numbers
    cdef Found _found
    cdef str _group_name
    cdef str _topic
    cdef object _group
    cdef object _wanted
    cdef object _queue
    cdef int64_t _min_offset
    cdef int64_t _suggested

    def __init__(
        self, *, store, config, role, gate, skip_guard, groups, topics, consumers, filters, posted,
        answered, commit,
    ):
        self._store = store
        self._config = config
        self._role = role
        self._gate = gate
        self._skip_guard = skip_guard
        self._queues = store.queue_table.by_key
        self._pool = store.queue_table.pool
        self._reader = store.reader
        self._groups = groups
        self._topics = topics
        self._consumers = consumers
        self._filters = filters
        self._posted = posted
        self._answered = answered
        self._commit = commit

    def read(self, connection, bytes data, Py_ssize_t begin=0) -> int:
        """Answer the first frames of `data` from `begin` on, as far as they are pulls that find something.

        Returns how many bytes they are. With `is_full` what follows is for the next turn.
        """
        cdef const char* end = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)
        cdef const char* start = PyBytes_AS_STRING(data) + begin
        cdef const char* at = start
        cdef NamedFrame frame
        cdef int64_t answered_bytes = 0, examined = 0
        cdef bytes answer
        self.is_full = False
        if begins_with_other(start, end, PULL_MESSAGE, LITE_PULL_MESSAGE):
            return 0
        while parse_pull(at, end, &frame) and _is_common(&frame):
            if not self._may_take(connection):
                break
            answer = self._find(&frame)
            if answer is None:
                break
            self._reply(connection, answer)
            at += frame.size
            answered_bytes += PyBytes_GET_SIZE(answer)
            examined += self._found.examined
            if at < end and (
                answered_bytes >= TURN_BYTES_MAX or examined >= TURN_ENTRIES_MAX
            ):
                self.is_full = True
                break
        return at - start

    cdef bint _may_take(self, connection) except -1:
        """Whether pulls of this connection are answered now, and by the usual rules."""
        return is_ready(connection) and self._gate.is_open

    # Classify and read: nothing is changed.

    cdef bytes _find(self, NamedFrame* frame):
        """The answer to a pull of the common kind; None: Python answers it."""
        cdef int64_t count, full
        try:
            if not self._classify(frame):
                return None
            count = min(max(1, self._numbers.max_msg_nums), COUNT_MOST)
            if self._wanted is None:
                return self._look(frame, count, count + 1, count + 1)
            full = max(SPAN_MOST, count)
            return self._look(frame, count, min(full, count * ENTRIES_A_MESSAGE), full)
        except Exception:
            return None  # Python meets the same, and says what there is to say of it.

    cdef bint _classify(self, NamedFrame* frame) except -1:
        """Whether group, topic and queue are known and may be read."""
        cdef int64_t queue_id
        if not read_pull_numbers(frame, &self._numbers):
            return False
        if not <int64_t> self._config.broker_permission & READABLE:
            return False
        self._group_name = _text(&frame.fields[CONSUMER_GROUP])
        self._group = self._groups.table.get(self._group_name)
        if self._group is None or not self._group.consume_enable:
            return False
        self._topic = _text(&frame.fields[TOPIC])
        topic = self._topics.table.get(self._topic)
        if topic is None or not <int64_t> topic.perm & READABLE:
            return False
        queue_id = self._numbers.queue_id
        if not 0 <= queue_id < <int64_t> topic.read_queue_nums:
            return False
        if self._config.filter_support_retry and self._topic.startswith(RETRY_PREFIX):
            return False
        self._queue = self._queues.get((self._topic, queue_id))
        if self._queue is None:
            return False
        if self._skip_guard.is_armed and not self._has_passed(queue_id):
            return False
        if self._numbers.sys_flag & BRINGS_SUBSCRIPTION:
            return self._take_posted(frame)
        return self._take_known()

    cdef bint _has_passed(self, int64_t queue_id) except -1:
        """Whether the guard has nothing more to say to this group about this queue."""
        info = self._consumers.groups.get(self._group_name)
        if info is not None and info.message_model == "BROADCASTING":
            return False  # Each member by itself.
        return self._skip_guard.has_passed(self._group_name, self._topic, queue_id)

    cdef bint _take_posted(self, NamedFrame* frame) except -1:
        """What a pull with its own subscription asks for."""
        kept = self._posted(
            self._topic, _text(&frame.fields[SUBSCRIPTION]), _text(&frame.fields[EXPRESSION_TYPE])
        )
        if kept is None:
            return False
        is_tag_type, self._wanted = kept
        return is_tag_type or self._config.enable_property_filter

    cdef bint _take_known(self) except -1:
        """What the group's heartbeat said that it asks for."""
        info = self._consumers.groups.get(self._group_name)
        if info is None:
            return False
        if not self._group.consume_broadcast_enable and info.message_model == "BROADCASTING":
            return False
        data = info.subscriptions.get(self._topic)
        if data is None or <int64_t> data.sub_version < self._numbers.sub_version:
            return False
        if data.is_tag_type:
            self._wanted = None if data.is_all or data.class_filter_mode else data.code_set
            return True
        known = self._filters.find(self._topic, self._group_name)
        if known is None or <int64_t> known.client_version < self._numbers.sub_version:
            return False
        self._wanted = known.compiled.pairs
        return self._wanted is not None and self._config.enable_property_filter

    cdef bytes _look(self, NamedFrame* frame, int64_t count, int64_t span, int64_t full):
        """The answer with what `span` entries lead to; `full` ones where those are not enough."""
        cdef int64_t offset = self._numbers.queue_offset, threshold
        cdef Bounds bounds
        cdef Py_buffer view
        cdef bytes entries
        opened = self._reader.begin_walk(self._queue, offset, span)
        if opened is None:
            return None
        entries, segment, bounds.base, bounds.log_min, bounds.log_max, threshold = opened
        self._min_offset = self._queue.min_offset(self._pool, bounds.log_min)
        if offset < self._min_offset:
            return None
        bounds.recent_from = bounds.log_max - threshold
        self._limit(&bounds, count)
        PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
        try:
            if not walk(
                entries, <const char*> view.buf, view.len, &bounds, self._wanted, self._checked(),
                &self._found,
            ):
                return None
            if (
                self._found.is_enough or span == full
                or PyBytes_GET_SIZE(entries) < span * ENTRY_SIZE
            ):
                if self._found.count == 0 and (self._wanted is None or self._found.is_gone):
                    return None
                self._suggest(bounds.log_max - self._found.last_offset > threshold)
                return self._encode(frame, <const char*> view.buf)
        finally:
            PyBuffer_Release(&view)
        return self._look(frame, count, full, full)

    cdef int _limit(self, Bounds* bounds, int64_t count) except -1:
        """Who reads whole topics is bounded by bytes alone."""
        cdef object config = self._config
        bounds.recent_bytes = config.max_transfer_bytes_on_message_in_memory
        if self._group_name == TOOLS_GROUP:
            bounds.old_bytes = bounds.recent_bytes
            bounds.recent_count = bounds.old_count = count
            return 0
        bounds.old_bytes = config.max_transfer_bytes_on_message_in_disk
        bounds.recent_count = min(count, <int64_t> config.max_transfer_count_on_message_in_memory)
        bounds.old_count = min(count, <int64_t> config.max_transfer_count_on_message_in_disk)
        return 0

    cdef tuple _checked(self):
        """What records are compared with before they are handed out; None: with nothing."""
        if not self._config.twinlog_check_reads:
            return None
        topic = None if self._topic.startswith(LMQ_PREFIX) else self._topic.encode()
        return crc32, topic, self._numbers.queue_id, self._numbers.queue_offset

    cdef int _suggest(self, bint is_far_behind) except -1:
        """The broker to ask next."""
        self._suggested = 0
        if self._config.slave_read_enable:
            self._suggested = (
                self._group.which_broker_when_consume_slowly if is_far_behind
                else self._group.broker_id
            )
        return 0

    # Answer

    cdef bytes _encode(self, NamedFrame* frame, const char* segment):
        """The whole frame of the answer: one piece, so that its reader is woken once."""
        cdef char header[HEADER_ROOM]
        cdef Py_ssize_t size
        cdef bytes binary = None, answer
        cdef char* at
        if frame.is_binary:
            binary = self._binary_header(frame.numbers.opaque)
            size = PyBytes_GET_SIZE(binary)
        else:
            size = self._json_header(frame.numbers.opaque, header) - header
        answer = PyBytes_FromStringAndSize(NULL, OPENING_SIZE + size + self._found.total)
        at = PyBytes_AS_STRING(answer)
        at = put4(at, OPENING_SIZE - 4 + size + self._found.total)
        at = put4(at, size | (BINARY << 24 if frame.is_binary else 0))
        memcpy(at, <char*> header if binary is None else PyBytes_AS_STRING(binary), size)
        copy_records(segment, &self._found, at + size)
        return answer

    cdef char* _json_header(self, int64_t opaque, char* at) except NULL:
        cdef tuple pieces = FOUND_PIECES if self._found.count else UNMATCHED_PIECES
        at = put_decimal(_piece(at, pieces[0]), self._suggested)
        at = put_decimal(_piece(at, pieces[1]), self._next_offset())
        at = put_decimal(_piece(at, pieces[2]), self._min_offset)
        at = put_decimal(_piece(at, pieces[3]), self._queue.max_offset)
        at = put_decimal(_piece(at, pieces[4]), opaque)
        return _piece(at, pieces[5])

    cdef bytes _binary_header(self, int64_t opaque):
        fields = {
            "suggestWhichBrokerId": self._suggested, "nextBeginOffset": self._next_offset(),
            "minOffset": self._min_offset, "maxOffset": self._queue.max_offset,
        }
        return response_header(
            FOUND_CODE if self._found.count else UNMATCHED_CODE, opaque,
            remark=FOUND_NAME if self._found.count else UNMATCHED_NAME, header=fields,
            serialize_type=BINARY,
        )

    cdef int64_t _next_offset(self) noexcept:
        return self._numbers.queue_offset + self._found.examined

    cdef int _reply(self, connection, bytes answer) except -1:
        """Count it, write it, and note how far its group is, if it says so."""
        cdef int64_t queue_id = self._numbers.queue_id
        self._answered(
            self._group_name, self._topic, queue_id, self._next_offset(), self._found.count,
            self._found.total,
        )
        connection.write_answer(answer)
        if self._numbers.sys_flag & COMMITS and self._role.is_master:
            self._commit(self._group_name, self._topic, queue_id, self._numbers.commit_offset)
        return 0


cdef inline bint _is_common(NamedFrame* frame) noexcept:
    return (
        (frame.numbers.code == PULL_MESSAGE or frame.numbers.code == LITE_PULL_MESSAGE)
        and frame.numbers.flag == 0 and frame.body_size == 0
    )
