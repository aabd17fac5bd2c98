# cython: language_level=3
"""Frames of pulls, parsed: which fields they have, and what their numbers are.

Inline, for `_pull_lane.pyx`. What is written in another way than clients write it is no error: it
is left to the Python path.
"""

from libc.stdint cimport int32_t, int64_t

from twinlog.broker.put._named_header cimport FieldName, NamedFrame, parse_named
from twinlog.broker.put._send_header cimport Span, read_number

cdef enum:                   # Fields of the header; all before SUBSCRIPTION are required.
    CONSUMER_GROUP = 0
    TOPIC = 1
    QUEUE_ID = 2
    QUEUE_OFFSET = 3
    MAX_MSG_NUMS = 4
    SYS_FLAG = 5
    COMMIT_OFFSET = 6
    SUSPEND_TIMEOUT_MILLIS = 7
    SUB_VERSION = 8
    SUBSCRIPTION = 9
    EXPRESSION_TYPE = 10
    MAX_MSG_BYTES = 11
    FIELD_COUNT = 12

cdef extern from *:
    """
    /* Each with its size, in the order of the fields. */
    static const twinlog_field_name twinlog_pull_fields[] = {
        {"consumerGroup", 13}, {"topic", 5}, {"queueId", 7}, {"queueOffset", 11},
        {"maxMsgNums", 10}, {"sysFlag", 7}, {"commitOffset", 12}, {"suspendTimeoutMillis", 20},
        {"subVersion", 10}, {"subscription", 12}, {"expressionType", 14}, {"maxMsgBytes", 11},
    };
    """
    const FieldName* PULL_FIELDS "twinlog_pull_fields"


cdef inline bint parse_pull(const char* at, const char* end, NamedFrame* frame) noexcept:
    return parse_named(at, end, PULL_FIELDS, FIELD_COUNT, frame)


cdef struct PullNumbers:
    int64_t queue_id
    int64_t queue_offset
    int64_t max_msg_nums
    int64_t sys_flag
    int64_t commit_offset
    int64_t sub_version


cdef inline bint read_int32(Span* span, int64_t* value) noexcept:
    return read_number(span.at, span.size, value) and value[0] == <int32_t> value[0]


cdef inline bint read_pull_numbers(NamedFrame* frame, PullNumbers* numbers) noexcept:
    """The numbers of a pull; False: one is missing, or not written as clients do."""
    cdef Span* fields = frame.fields
    cdef int64_t unused
    cdef int number
    for number in range(SUBSCRIPTION):
        if fields[number].at == NULL:
            return False
    if frame.numbers.opaque != <int32_t> frame.numbers.opaque:
        return False
    if fields[MAX_MSG_BYTES].at != NULL and not read_int32(&fields[MAX_MSG_BYTES], &unused):
        return False
    return (
        read_int32(&fields[QUEUE_ID], &numbers.queue_id)
        and read_int32(&fields[MAX_MSG_NUMS], &numbers.max_msg_nums)
        and read_int32(&fields[SYS_FLAG], &numbers.sys_flag)
        and read_number(
            fields[QUEUE_OFFSET].at, fields[QUEUE_OFFSET].size, &numbers.queue_offset
        )
        and read_number(
            fields[COMMIT_OFFSET].at, fields[COMMIT_OFFSET].size, &numbers.commit_offset
        )
        and read_number(
            fields[SUSPEND_TIMEOUT_MILLIS].at, fields[SUSPEND_TIMEOUT_MILLIS].size, &unused
        )
        and read_number(fields[SUB_VERSION].at, fields[SUB_VERSION].size, &numbers.sub_version)
    )
