"""Sending: SEND_MESSAGE (10), SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), replies (324, 325),
CONSUMER_SEND_MSG_BACK (36), END_TRANSACTION (37)."""

from __future__ import annotations

import msgspec

from twinlog.remoting.headers.base import Header, Int, Long


class SendMessageRequestHeader(Header):
    """10 and 324, names in full."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False
    broker_name: str | None = msgspec.field(default=None, name="bname")


_V2_NAMES = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
}


class SendMessageRequestHeaderV2(msgspec.Struct, gc=False, rename=_V2_NAMES):
    """310, 320 and 325: the same attributes under one-letter names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False
    broker_name: str | None = None


class ConsumerSendMsgBackRequestHeader(Header):
    """36."""

    offset: Long
    group: str
    delay_level: Int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class EndTransactionRequestHeader(Header):
    """37."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


class ReplyMessageRequestHeader(Header):
    """326: a reply on its way to the client that asked."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    born_host: str | None = None
    store_host: str | None = None
    store_timestamp: Long | None = None
