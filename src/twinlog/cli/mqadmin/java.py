"""Text as Java writes it: times, maps, the toString of the classes that mqadmin prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from twinlog.message.hashing import jhash

if TYPE_CHECKING:
    from twinlog.client.message import ReceivedMessage, SendReceipt
    from twinlog.client.queues import MessageQueue
    from twinlog.remoting.bodies.clients import ConsumeMessageDirectlyResult
    from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
    from twinlog.remoting.bodies.topic import TopicConfig


def front(text: str | None, size: int) -> str:
    return "null" if text is None else text[:size]


def human_time(milliseconds: int) -> str:
    """2026-11-15 12:00:00,123 in the time zone of the machine."""
    seconds = second_time(milliseconds)
    return seconds if seconds == str(milliseconds) else f"{seconds},{milliseconds % 1000:03d}"


def second_time(milliseconds: int) -> str:
    """A number that is no time, which a client may have sent, is shown as it is."""
    return time_text(milliseconds, "%Y-%m-%d %H:%M:%S")


def time_text(milliseconds: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000).strftime(form)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)


def boolean(value: bool) -> str:
    return "true" if value else "false"


def hash_order(keys: Iterable[str]) -> list[str]:
    """The order in which a java.util.HashMap or HashSet hands out its keys.

    By bucket of a table that doubles when it is three quarters full; within a bucket as they came.
    """
    chosen = list(dict.fromkeys(keys))
    size = 16
    while len(chosen) > size * 3 // 4:
        size *= 2

    def bucket(key: str) -> int:
        value = jhash(key) & 0xFFFFFFFF
        return (value ^ (value >> 16)) & (size - 1)

    return sorted(chosen, key=bucket)


def hash_map(values: Mapping[str, str]) -> str:
    """{a=1, b=2}"""
    return "{" + ", ".join(f"{key}={values[key]}" for key in hash_order(values)) + "}"


def perm_text(perm: int) -> str:
    """RW-, with X for a permission that new topics inherit."""
    letters = ((4, "R"), (2, "W"), (1, "X"))
    return "".join(letter if perm & bit else "-" for bit, letter in letters)


def topic_config(config: TopicConfig) -> str:
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm_text(config.perm)}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={boolean(config.order)}]"
    )


def group_config(config: SubscriptionGroupConfig) -> str:
    return (
        f"SubscriptionGroupConfig [groupName={config.group_name}, "
        f"consumeEnable={boolean(config.consume_enable)}, "
        f"consumeFromMinEnable={boolean(config.consume_from_min_enable)}, "
        f"consumeBroadcastEnable={boolean(config.consume_broadcast_enable)}, "
        f"retryQueueNums={config.retry_queue_nums}, retryMaxTimes={config.retry_max_times}, "
        f"brokerId={config.broker_id}, "
        f"whichBrokerWhenConsumeSlowly={config.which_broker_when_consume_slowly}, "
        f"notifyConsumerIdsChangedEnable={boolean(config.notify_consumer_ids_changed_enable)}]"
    )


def queue_text(queue: MessageQueue) -> str:
    return queue.java_text()


def message_text(message: ReceivedMessage, more: Mapping[str, str]) -> str:
    """MessageExt [...] with the Message inside; `more` properties are those of the pull."""
    record = message.record
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in message.body)
    transaction = message.transaction_id
    inner = (
        f"Message{{topic='{record.topic}', flag={message.flag}, "
        f"properties={hash_map({**message.properties, **more})}, body=[{body}], "
        f"transactionId='{transaction if transaction is not None else 'null'}'}}"
    )
    return (
        f"MessageExt [brokerName={message.queue.broker_name}, queueId={record.queue_id}, "
        f"storeSize={record.total_size}, queueOffset={message.queue_offset}, "
        f"sysFlag={message.sys_flag}, bornTimestamp={message.born_timestamp}, "
        f"bornHost=/{message.born_host}, storeTimestamp={message.store_timestamp}, "
        f"storeHost=/{message.store_host}, msgId={message.offset_message_id}, "
        f"commitLogOffset={message.physical_offset}, bodyCRC={record.body_crc}, "
        f"reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={record.prepared_transaction_offset}, toString()={inner}]"
    )


def send_result(receipt: SendReceipt) -> str:
    return (
        f"SendResult [sendStatus={receipt.status.name}, msgId={receipt.message_id}, "
        f"offsetMsgId={receipt.offset_message_id}, "
        f"messageQueue={queue_text(receipt.queue)}, queueOffset={receipt.queue_offset}]"
    )


def direct_result(result: ConsumeMessageDirectlyResult) -> str:
    remark = "null" if result.remark is None else result.remark
    return (
        f"ConsumeMessageDirectlyResult [order={boolean(result.order)},"
        f" autoCommit={boolean(result.auto_commit)}, consumeResult={result.consume_result},"
        f" remark={remark}, spentTimeMills={result.spent_time_mills}]"
    )


def pretty_json(value: Any, depth: int = 0) -> str:
    """fastjson's PrettyFormat: tabs, no space behind colons, numbers as keys without quotes."""
    import json

    tabs, end = "\t" * (depth + 1), "\t" * depth
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        rows = [
            f"{tabs}{_json_key(key)}:{pretty_json(item, depth + 1)}" for key, item in value.items()
        ]
        if all(isinstance(key, int) for key in value):
            # fastjson starts new lines for names only.
            inside = ",".join(row.lstrip("\t") for row in rows)
            return f"{{{inside}\n{end}}}"
        inside = ",\n".join(rows)
        return f"{{\n{inside}\n{end}}}"
    if isinstance(value, list | tuple):
        if not value:
            return "[]"
        inside = ",\n".join(f"{tabs}{pretty_json(item, depth + 1)}" for item in value)
        return f"[\n{inside}\n{end}]"
    return json.dumps(value, ensure_ascii=False)


def _json_key(key: Any) -> str:
    import json

    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
