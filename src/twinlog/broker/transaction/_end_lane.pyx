# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: embedsignature=True
"""Ends of transactions, compiled as far as their requests go: from the frames of one read to the
half messages that they commit.

Does what EndTransactionProcessor does, for what clients mostly send: a one-way commit of a half
message that was put lately. Everything else is left to Python, request by request.
"""

from functools import partial

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t

from twinlog.broker.put._named_header cimport FieldName, NamedFrame, parse_named
from twinlog.broker.put._send_header cimport Span, begins_with_other, read_number
from twinlog.message._layout cimport TRANSACTION_COMMIT_TYPE
from twinlog.remoting._traffic cimport is_ready

from twinlog.remoting.codes import FLAG_ONEWAY
from twinlog.remoting.command import Request

cdef enum:
    END_TRANSACTION = 37
    ONEWAY = 2
    TURN_COUNT_MAX = 128     # Of one connection in one turn of the loop: each puts two records.

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


cdef inline str _text(Span* span):
    return None if span.at == NULL else PyUnicode_DecodeASCII(span.at, span.size, NULL)


cdef struct End:
    int64_t half_offset
    int64_t log_offset


cdef class EndLane:
    """The ends of transactions at the beginning of what a connection read."""

    cdef object _store
    cdef object _role
    cdef object _relay
    cdef object _commit
    cdef readonly bint is_full  # The last read ended where it did because the turn has enough.

    def __init__(self, *, store, role, relay, commit):
        assert ONEWAY == FLAG_ONEWAY
        self._store = store
        self._role = role
        self._relay = relay
        self._commit = commit

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
        if begins_with_other(start, end, END_TRANSACTION, END_TRANSACTION):
            return 0
        while (
            parse_named(at, end, END_FIELDS, FIELD_COUNT, &frame) and _is_common(&frame, &ended)
            and self._may_take(connection) and self._end(connection, &frame, &ended)
        ):
            count += 1
            at += frame.size
            if at < end and count >= TURN_COUNT_MAX:
                self.is_full = True
                break
        if count:
            connection.count_oneway(count)
        return at - start

    cdef bint _may_take(self, connection) except -1:
        """Whether this broker ends transactions of this connection now."""
        if not self._role.is_master or not self._store.is_accepting or not is_ready(connection):
            return False
        return self._relay is None or not self._relay.is_holding

    cdef bint _end(self, connection, NamedFrame* frame, End* ended) except -1:
        cdef Span* fields = frame.fields
        try:
            return self._commit(
                _text(&fields[PRODUCER_GROUP]), ended.half_offset, ended.log_offset,
                _text(&fields[MSG_ID]), _text(&fields[TRANSACTION_ID]),
            )
        except Exception as error:
            connection.handle_again(partial(_fail, error), Request(END_TRANSACTION, flag=ONEWAY))
            return True


def _fail(error, connection, request):
    """A handler: what failed here is said to have failed as other requests are."""
    raise error


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
