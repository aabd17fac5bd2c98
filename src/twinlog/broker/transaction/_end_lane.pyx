# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""Ends of transactions, compiled: from the frames of one read to what they put into the log.

Does what EndTransactionProcessor does, for what clients mostly send: a one-way commit of a half
message that was put lately. Everything else is left to Python, request by request: this file
refuses nothing. Python is the reference; a test compares the two byte by byte.

A commit puts two records: the message where it was meant to go, and the note that its half is done.
"""

from functools import partial

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memchr, memcmp

from twinlog.broker.put._named_header cimport FieldName, NamedFrame, parse_named
from twinlog.broker.put._send_header cimport Span, begins_with_other, read_number
from twinlog.message._layout cimport (
    HOST_V4_SIZE,
    TOPIC_LENGTH_MAX,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_ROLLBACK_TYPE,
)
from twinlog.message._pairs cimport put_decimal
from twinlog.remoting._traffic cimport is_ready
from twinlog.store.log._appender cimport Appender, NewRecord

from twinlog.broker.transaction.half import OP_PROPERTIES, OP_TAGS_CODE
from twinlog.broker.transaction.recent import OVERHEAD
from twinlog.message.names import OP_HALF_TOPIC
from twinlog.message.properties import (
    PROPERTY_PRODUCER_GROUP,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from twinlog.remoting.codes import FLAG_ONEWAY
from twinlog.remoting.command import Request

cdef enum:
    END_TRANSACTION = 37
    ONEWAY = 2
    TURN_COUNT_MAX = 128     # Of one connection in one turn of the loop: each puts two records.
    NOTE_SIZE_MAX = 20       # Digits of an offset.

cdef enum:                   # Fields of the header.
    PRODUCER_GROUP = 0
    TRAN_STATE_TABLE_OFFSET = 1
    COMMIT_LOG_OFFSET = 2
    COMMIT_OR_ROLLBACK = 3   # All up to here are required.
    MSG_ID = 4
    TRANSACTION_ID = 5
    FIELD_COUNT = 6

cdef extern from *:
    """
    static const twinlog_field_name twinlog_end_fields[] = {
        {"producerGroup", 13}, {"tranStateTableOffset", 20}, {"commitLogOffset", 15},
        {"commitOrRollback", 16}, {"msgId", 5}, {"transactionId", 13},
    };
    """
    const FieldName* END_FIELDS "twinlog_end_fields"


cdef int64_t HALF_OVERHEAD = OVERHEAD
cdef bytes NOTE_PROPERTIES = OP_PROPERTIES
cdef int64_t NOTE_TAGS_CODE = OP_TAGS_CODE
cdef bytes NOTE_TOPIC_BYTES = OP_HALF_TOPIC.encode()
cdef tuple NOTE_KEY = (OP_HALF_TOPIC, 0)
cdef bytes GROUP_MARK = PROPERTY_PRODUCER_GROUP.encode() + b"\x01"
cdef bytes UNIQUE_MARK = PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX.encode() + b"\x01"


cdef struct End:
    int64_t half_offset
    int64_t log_offset


cdef class EndLane:
    """The ends of transactions at the beginning of what a connection read."""

    cdef object _store
    cdef object _config
    cdef object _role
    cdef object _relay
    cdef object _transactions
    cdef object _clock
    cdef dict _queues
    cdef object _make        # A queue that is not there yet.
    cdef Appender _appender
    cdef bytes _host
    cdef readonly bint is_full  # The last read ended where it did because the turn has enough.
    # Of the read that is being done
    cdef object _recent
    cdef object _pending
    cdef object _notes       # The queue of notes.
    cdef dict _halves
    cdef dict _places
    cdef int64_t _now_ms
    cdef int64_t _body_max
    # Commits to one topic that are not counted yet
    cdef object _run_topic
    cdef int64_t _run_count
    cdef int64_t _run_bytes

    def __init__(self, *, store, config, role, relay, transactions, clock):
        assert ONEWAY == FLAG_ONEWAY
        self._store = store
        self._config = config
        self._role = role
        self._relay = relay
        self._transactions = transactions
        self._clock = clock
        self._queues = store.queue_table.by_key
        self._make = store.queue_table.make
        self._appender = store.appender
        self._host = transactions.host
        self._run_count = self._run_bytes = 0

    def read(self, connection, bytes data, Py_ssize_t begin=0) -> int:
        """Commit what the first frames of `data` from `begin` on end, as far as they are common.

        Returns how many bytes they are. With `is_full` what follows is for the next turn.
        """
        cdef const char* end = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data)
        cdef const char* start = PyBytes_AS_STRING(data) + begin
        cdef const char* at = start
        cdef NamedFrame frame
        cdef End ended
        cdef Py_ssize_t count = 0
        self.is_full = False
        if begins_with_other(start, end, END_TRANSACTION, END_TRANSACTION) or not self._begin():
            return 0
        try:
            while (
                parse_named(at, end, END_FIELDS, FIELD_COUNT, &frame)
                and _is_common(&frame, &ended)
                and is_ready(connection) and self._end(connection, &frame, &ended)
            ):
                count += 1
                at += frame.size
                if at < end and count >= TURN_COUNT_MAX:
                    self.is_full = True
                    break
        finally:
            self._finish()
        if count:
            connection.count_oneway(count)
        return at - start

    cdef bint _begin(self) except -1:
        """Whether this broker ends transactions now, by the usual rules."""
        if not self._role.is_master or not self._store.is_accepting:
            return False
        if self._relay is not None and self._relay.is_holding:
            return False
        self._body_max = self._config.max_message_size
        if self._body_max < NOTE_SIZE_MAX or PyBytes_GET_SIZE(self._host) != HOST_V4_SIZE:
            return False
        self._notes = self._queues.get(NOTE_KEY)
        self._recent = self._transactions.recent
        self._pending = self._transactions.pending
        self._halves = self._recent.by_offset
        self._places = self._pending.places
        self._now_ms = self._clock.now_ms()
        return True

    cdef int _finish(self) except -1:
        """Count what was committed, and let go of it."""
        self._count_run()
        self._recent = self._pending = self._notes = self._run_topic = None
        self._halves = self._places = None
        return 0

    cdef bint _end(self, connection, NamedFrame* frame, End* ended) except -1:
        cdef object half
        cdef int64_t offset
        try:
            half = self._find(frame.fields, ended)
            if half is None:
                return False
            offset = self._put(half, ended.log_offset)
        except Exception:
            return False  # Python meets the same, and says what there is to say of it.
        if offset < 0:
            return False
        self._count(half.topic, self._appender.end.tail - offset)
        try:
            self._forget(half.message, ended.log_offset)
            self._note(ended.half_offset)
        except Exception as error:
            connection.handle_again(partial(_fail, error), Request(END_TRANSACTION, flag=ONEWAY))
        return True

    cdef object _find(self, Span* fields, End* ended):
        """The half message that ends, if it is at hand and the end is right in every respect."""
        cdef object half = self._halves.get(ended.log_offset)
        cdef object place = self._places.get(ended.half_offset)
        cdef bytes properties
        cdef Span found
        if half is None or place is None or half.half_offset != ended.half_offset:
            return None
        if <int64_t> (<tuple> place)[0] != ended.log_offset:
            return None  # Its append failed, or a check has moved it.
        properties = half.message.properties
        _find_value(properties, GROUP_MARK, &found)
        if found.size == 0 or not _is_same(&found, &fields[PRODUCER_GROUP]):
            return None
        _find_value(properties, UNIQUE_MARK, &found)
        if found.size and (_is_said(&fields[MSG_ID]) or _is_said(&fields[TRANSACTION_ID])):
            if (
                not _is_same(&found, &fields[MSG_ID])
                and not _is_same(&found, &fields[TRANSACTION_ID])
            ):
                return None
        return half

    cdef int64_t _put(self, half, int64_t log_offset) except -2:
        """The message where it was meant to go; -1, and nothing is put: Python does it."""
        cdef object message = half.message
        cdef object topic = half.topic
        cdef object queue = self._queues.get((topic, half.queue_id))
        if len(message.body) > self._body_max or len(topic) > TOPIC_LENGTH_MAX:
            return -1
        if not self._appender.is_open:
            self._appender.open()
        if queue is None:
            queue = self._make(topic, half.queue_id)
        if queue.is_schedule:
            return -1
        message.topic = topic
        message.queue_id = half.queue_id
        message.sys_flag = (
            <int64_t> message.sys_flag & ~TRANSACTION_ROLLBACK_TYPE
        ) | TRANSACTION_COMMIT_TYPE
        message.prepared_transaction_offset = log_offset
        return self._appender.append(message, queue, message.tags_code)

    cdef int _forget(self, message, int64_t log_offset) except -1:
        del self._halves[log_offset]
        self._recent.size -= len(message.body) + len(message.properties) + HALF_OVERHEAD
        return 0

    cdef int _note(self, int64_t half_offset) except -1:
        """The half message is decided."""
        cdef NewRecord new
        cdef char digits[NOTE_SIZE_MAX]
        cdef bytes body = PyBytes_FromStringAndSize(
            digits, put_decimal(digits, half_offset) - digits
        )
        if self._notes is None:
            self._notes = self._make(OP_HALF_TOPIC, 0)
        new.queue_id = new.flag = new.sys_flag = new.reconsume_times = new.prepared_offset = 0
        new.born_ms = self._now_ms
        new.entry_code = NOTE_TAGS_CODE
        new.properties = PyBytes_AS_STRING(NOTE_PROPERTIES)
        new.properties_size = PyBytes_GET_SIZE(NOTE_PROPERTIES)
        if self._appender.put(
            &new, self._notes, OP_HALF_TOPIC, NOTE_TOPIC_BYTES, body, self._host, self._host, None
        ) < 0:
            self._transactions.note_done(half_offset)  # In the next segment.
            return 0
        self._pending.ops.append((new.queue_offset, half_offset))
        del self._places[half_offset]
        return 0

    cdef int _count(self, topic, int64_t size) except -1:
        if topic is not self._run_topic:
            self._count_run()
            self._run_topic = topic
        self._run_count += 1
        self._run_bytes += size
        return 0

    cdef int _count_run(self) except -1:
        cdef int64_t count = self._run_count, size = self._run_bytes
        self._run_count = self._run_bytes = 0
        if count:
            self._transactions.committed(self._run_topic, count, size)
        return 0


def _fail(error, connection, request):
    """A handler: what failed here is said to have failed as other requests are."""
    raise error


cdef inline bint _is_said(Span* span) noexcept:
    return span.at != NULL and span.size > 0


cdef inline bint _is_same(Span* one, Span* other) noexcept:
    return (
        other.at != NULL and one.size == other.size and memcmp(one.at, other.at, one.size) == 0
    )


cdef void _find_value(bytes properties, bytes mark, Span* found) noexcept:
    """The value behind the last `mark` at the start of a property; of size 0: there is none."""
    cdef const char* at = PyBytes_AS_STRING(properties)
    cdef const char* end = at + PyBytes_GET_SIZE(properties)
    cdef const char* stop
    cdef Py_ssize_t mark_size = PyBytes_GET_SIZE(mark)
    found.at, found.size = NULL, 0
    while at < end:
        stop = <const char*> memchr(at, 2, end - at)
        if stop == NULL:
            stop = end
        if stop - at > mark_size and memcmp(at, PyBytes_AS_STRING(mark), mark_size) == 0:
            found.at, found.size = at + mark_size, stop - at - mark_size
        at = stop + 1


cdef inline bint _is_common(NamedFrame* frame, End* ended) noexcept:
    """A one-way commit, written as clients do."""
    cdef Span* fields = frame.fields
    cdef int64_t kind
    cdef int number
    if frame.numbers.code != END_TRANSACTION or frame.numbers.flag != ONEWAY or frame.body_size != 0:
        return False
    for number in range(COMMIT_OR_ROLLBACK + 1):
        if fields[number].at == NULL:
            return False
    if frame.numbers.opaque != <int32_t> frame.numbers.opaque:
        return False
    return (
        read_number(
            fields[COMMIT_OR_ROLLBACK].at, fields[COMMIT_OR_ROLLBACK].size, &kind
        )
        and kind == TRANSACTION_COMMIT_TYPE
        and read_number(
            fields[TRAN_STATE_TABLE_OFFSET].at, fields[TRAN_STATE_TABLE_OFFSET].size,
            &ended.half_offset,
        )
        and read_number(
            fields[COMMIT_LOG_OFFSET].at, fields[COMMIT_LOG_OFFSET].size, &ended.log_offset
        )
    )
