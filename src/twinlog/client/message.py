"""What is sent and what is received.

Corresponds to Message, MessageExt, SendResult and Validators.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from twinlog.client.errors import InvalidMessageError, SendOutcome, UnreadableBodyError
from twinlog.client.queues import MessageQueue
from twinlog.message import properties as names
from twinlog.message.compression import inflate_body
from twinlog.message.model import Record
from twinlog.message.names import (
    GROUP_LENGTH_MAX,
    RETRY_PREFIX,
    SEND_FORBIDDEN_TOPICS,
    has_legal_characters,
)
from twinlog.message.once import ONCE_PROPERTY
from twinlog.message.properties import encode_properties
from twinlog.runtime.limits import TOPIC_LENGTH_MAX

if TYPE_CHECKING:
    from twinlog.client.serializers import Serializer

_SEPARATORS = ("\x01", "\x02")
# Set through arguments of Message or by client and broker; as user properties they would be lost
# or do harm.
RESERVED_PROPERTIES = frozenset(
    (
        names.PROPERTY_KEYS, names.PROPERTY_TAGS, names.PROPERTY_WAIT_STORE_MSG_OK,
        names.PROPERTY_DELAY_TIME_LEVEL, names.PROPERTY_RETRY_TOPIC, names.PROPERTY_REAL_TOPIC,
        names.PROPERTY_REAL_QUEUE_ID, names.PROPERTY_TRANSACTION_PREPARED,
        names.PROPERTY_PRODUCER_GROUP, names.PROPERTY_MIN_OFFSET, names.PROPERTY_MAX_OFFSET,
        names.PROPERTY_BUYER_ID, names.PROPERTY_ORIGIN_MESSAGE_ID, names.PROPERTY_TRANSFER_FLAG,
        names.PROPERTY_CORRECTION_FLAG, names.PROPERTY_MQ2_FLAG, names.PROPERTY_RECONSUME_TIME,
        names.PROPERTY_MSG_REGION, names.PROPERTY_TRACE_SWITCH,
        names.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, names.PROPERTY_MAX_RECONSUME_TIMES,
        names.PROPERTY_CONSUME_START_TIMESTAMP, names.PROPERTY_INSTANCE_ID,
        names.PROPERTY_CORRELATION_ID, names.PROPERTY_MESSAGE_REPLY_TO_CLIENT,
        names.PROPERTY_MESSAGE_TTL, names.PROPERTY_REPLY_MESSAGE_ARRIVE_TIME,
        names.PROPERTY_PUSH_REPLY_TIME, names.PROPERTY_CLUSTER, names.PROPERTY_MESSAGE_TYPE,
        ONCE_PROPERTY,
    )
)  # fmt: skip


class SendStatus(enum.Enum):
    """What the broker promises. Only SEND_OK is an acknowledgement in the broker's mode.

    The others mean: stored on the master, the rest is unknown.
    """

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12

    def __str__(self) -> str:
        return self.name


class SendReceipt(NamedTuple):
    """The broker's answer to a send."""

    status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str = ""
    transaction_id: str = ""

    @property
    def is_acknowledged(self) -> bool:
        """Whether it is as safe as the broker's mode promises."""
        return self.status is SendStatus.SEND_OK

    @property
    def outcome(self) -> SendOutcome:
        """STORED with every status: a master answers only what it has in its log."""
        return SendOutcome.STORED


class Message:
    """A message to send.

    Args:
        topic: Where to. Letters, digits, `%`, `|`, `_`, `-`, at most 127.
        body: Bytes; encode text yourself.
        tags: One tag, for filtering by consumers.
        keys: Keys under which the message can be found again.
        properties: Your own names and values.
        delay_level: Deliver later: 1 to 18 stand for 1s 5s 10s 30s 1m 2m ... 2h; 0 is at once.
        sharding_key: Messages with the same key go to the same queue, in order.
        flag: A number of your own.
        wait_store_ok: False: do not wait for flush and replication.
    """

    __slots__ = (
        "body", "delay_level", "flag", "keys", "properties", "sharding_key", "tags", "topic",
        "wait_store_ok",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        sharding_key: str | None = None,
        flag: int = 0,
        wait_store_ok: bool = True,
    ) -> None:
        self.topic = topic
        self.body = body
        self.tags = tags
        self.keys = keys
        self.properties = properties
        self.delay_level = delay_level
        self.sharding_key = sharding_key
        self.flag = flag
        self.wait_store_ok = wait_store_ok

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, tags={self.tags!r})"


class ReceivedMessage:
    """A message from a broker. `body` is as the producer gave it: inflated if it was compressed."""

    __slots__ = ("_body", "_topic", "body_size", "queue", "queue_offset", "record", "serializer")

    serializer: Serializer
    """What `value` is read with; set where the consumer has one."""

    def __init__(self, record: Record, broker_name: str, topic: str | None = None) -> None:
        self.record = record
        self.queue_offset = record.queue_offset
        self.body_size = len(record.body)
        self.queue = MessageQueue(record.topic, broker_name, record.queue_id)
        self._topic = topic
        self._body: bytes | None = None

    @property
    def topic(self) -> str:
        """The topic that was subscribed to, also for a message that is delivered again."""
        return self._topic or self.record.topic

    def show_topic(self, topic: str | None) -> None:
        """A message that is delivered again shows the topic that it was sent to."""
        self._topic = topic

    @property
    def body(self) -> bytes:
        """The body, inflated if it was compressed."""
        if self._body is None:
            self._body = inflate_body(self.record.body, self.record.sys_flag)
        return self._body

    @property
    def value(self) -> Any:
        """The body as the consumer's serializer reads it; the body itself where there is none.

        Raises:
            UnreadableBodyError: the serializer cannot read it; what it raised is the cause.
        """
        serializer = getattr(self, "serializer", None)
        if serializer is None:
            return self.body
        try:
            return serializer.loads(self.body)
        except Exception as error:
            raise UnreadableBodyError(
                f"the body of message {self.message_id} of topic {self.topic!r} cannot be read:"
                f" {error}"
            ) from error

    @property
    def properties(self) -> dict[str, str]:
        """Every property of the message, RocketMQ's own included."""
        return self.record.property_map

    @property
    def message_id(self) -> str:
        """The id that the producer's receipt has."""
        return self.properties.get(names.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX) or (
            self.record.message_id
        )

    @property
    def offset_message_id(self) -> str:
        """Where the record is: broker address and commit-log offset."""
        return self.record.message_id

    @property
    def tags(self) -> str | None:
        """The tag that it was sent with."""
        return self.properties.get(names.PROPERTY_TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys under which it can be found."""
        return self.properties.get(names.PROPERTY_KEYS, "").split()

    @property
    def flag(self) -> int:
        """The producer's own number."""
        return self.record.flag

    @property
    def sys_flag(self) -> int:
        """RocketMQ's bits: compression, transactions, addresses."""
        return self.record.sys_flag

    @property
    def physical_offset(self) -> int:
        """Where it begins in the broker's commit log."""
        return self.record.physical_offset

    @property
    def born_timestamp(self) -> int:
        """When the producer made it, in milliseconds since 1970, by its clock."""
        return self.record.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, in milliseconds since 1970, by its clock."""
        return self.record.store_timestamp

    @property
    def born_host(self) -> str:
        """The address of the producer."""
        return self.record.born_host_text

    @property
    def store_host(self) -> str:
        """The address of the broker that stored it."""
        return self.record.store_host_text

    @property
    def reconsume_times(self) -> int:
        """How often its handling failed before."""
        return self.record.reconsume_times

    @property
    def transaction_id(self) -> str | None:
        """Of a transactional message: the id that its transaction had."""
        return self.properties.get(names.PROPERTY_TRANSACTION_ID) or (
            self.properties.get(names.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
            if self.properties.get(names.PROPERTY_TRANSACTION_PREPARED) == "true"
            else None
        )

    def __repr__(self) -> str:
        return (
            f"ReceivedMessage({self.topic!r}, queue={self.queue.broker_name}/{self.queue.queue_id},"
            f" offset={self.queue_offset}, {self.body_size} bytes)"
        )


def check_name(kind: str, name: object, length_max: int) -> str:
    """A topic or group name, or an error that says what is wrong with it."""
    if not isinstance(name, str):
        raise InvalidMessageError(f"{kind} must be text, not {type(name).__name__}")
    if not name:
        raise InvalidMessageError(f"{kind} is empty")
    if len(name) > length_max:
        raise InvalidMessageError(
            f"{kind} has {len(name)} characters; at most {length_max} are allowed"
        )
    if not has_legal_characters(name):
        raise InvalidMessageError(
            f"{kind} {name!r}: only letters, digits and the characters % | _ - are allowed"
        )
    return name


def check_group(group: object) -> str:
    return check_name("group", group, GROUP_LENGTH_MAX)


def check_topic(topic: object) -> str:
    return check_name("topic", topic, TOPIC_LENGTH_MAX)


def check_body(body: object, size_max: int) -> bytes:
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            hint = ": encode it, text.encode()" if isinstance(body, str) else ""
            raise InvalidMessageError(f"body must be bytes, not {type(body).__name__}{hint}")
        body = bytes(body)
    if not body:
        raise InvalidMessageError("body is empty: a message needs at least one byte")
    if len(body) > size_max:
        raise InvalidMessageError(f"body has {len(body)} bytes; at most {size_max} are allowed")
    return body


_checked_topics: dict[str, bool] = {}
_CHECKED_TOPICS_MAX = 4096


def is_checked_topic(topic: object) -> bool:
    """Whether a message to this topic has passed the checks before."""
    return type(topic) is str and topic in _checked_topics


def check_message(message: Message, size_max: int) -> bytes:
    """The body of a message that may be sent, or an error that says what is wrong with it."""
    if not isinstance(message, Message):
        raise InvalidMessageError(f"a Message is expected, not {type(message).__name__}")
    topic = message.topic
    if topic not in _checked_topics:
        check_topic(topic)
        if topic in SEND_FORBIDDEN_TOPICS:
            raise InvalidMessageError(
                f"topic {topic!r} belongs to the broker: clients cannot send to it"
            )
        if len(_checked_topics) < _CHECKED_TOPICS_MAX:
            _checked_topics[topic] = True
    if message.flag:
        check_flag(message.flag)
    if message.sharding_key is not None:
        _plain("sharding_key", message.sharding_key)
    return check_body(message.body, size_max)


def check_flag(flag: object) -> None:
    if not isinstance(flag, int) or not -(2**31) <= flag < 2**31:
        raise InvalidMessageError(f"flag must be a whole number of 32 bits, not {flag!r}")


def check_queue(queue: object, topic: str) -> None:
    """Raise when a message of `topic` cannot be sent to just this queue."""
    if not isinstance(queue, MessageQueue):
        raise InvalidMessageError(
            f"queue must be a MessageQueue, not {queue!r}: await producer.queues({topic!r}) "
            "returns them"
        )
    if queue.topic != topic:
        raise InvalidMessageError(f"a message of topic {topic!r} cannot go to {queue}")


def check_batch(batch: Sequence[Message]) -> None:
    """Raise when these cannot be one batch request."""
    first = batch[0]
    for message in batch:
        if not isinstance(message, Message):
            raise InvalidMessageError(f"a Message is expected, not {type(message).__name__}")
        if message.topic != first.topic or message.wait_store_ok != first.wait_store_ok:
            raise InvalidMessageError(
                "all messages of a batch must have the same topic and wait_store_ok"
            )
        if message.delay_level:
            raise InvalidMessageError("a delayed message cannot be part of a batch")
        if check_topic(message.topic).startswith(RETRY_PREFIX):
            raise InvalidMessageError("messages to a retry topic cannot be sent as a batch")


def encode_user_properties(message: Message, unique_id: str) -> bytes:
    """The property bytes of a message. The common case, tags at most, takes one format."""
    tags = message.tags
    if not message.properties and not message.delay_level and not message.keys:
        wait = "true" if message.wait_store_ok else "false"
        if tags is None:
            return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}".encode()
        if type(tags) is str and tags.isalnum():
            return f"UNIQ_KEY\x01{unique_id}\x02WAIT\x01{wait}\x02TAGS\x01{tags}".encode()
    return encode_properties(message_properties(message, unique_id))


def message_properties(message: Message, unique_id: str) -> dict[str, str]:
    """Every property of a message, checked."""
    result: dict[str, str] = {}
    for name, value in (message.properties or {}).items():
        _check_property(name, value)
        result[name] = value
    keys = [message.keys] if isinstance(message.keys, str) else list(message.keys)
    for key in keys:
        if not isinstance(key, str):
            raise InvalidMessageError(f"a key must be text, not {type(key).__name__}")
    if any(keys):
        result[names.PROPERTY_KEYS] = _plain("keys", " ".join(key for key in keys if key))
    result[names.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = unique_id
    result[names.PROPERTY_WAIT_STORE_MSG_OK] = "true" if message.wait_store_ok else "false"
    if message.tags:
        result[names.PROPERTY_TAGS] = _plain("tags", message.tags)
    if message.delay_level:
        if not isinstance(message.delay_level, int) or message.delay_level < 0:
            raise InvalidMessageError(
                f"delay_level must be a number from 0 to 18, not {message.delay_level!r}"
            )
        result[names.PROPERTY_DELAY_TIME_LEVEL] = str(message.delay_level)
    return result


def _check_property(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise InvalidMessageError(f"property {name!r}: name and value must be text")
    if not name or not value:
        raise InvalidMessageError(f"property {name!r}: name and value must not be empty")
    if name in RESERVED_PROPERTIES:
        raise InvalidMessageError(f"property {name!r} is reserved by RocketMQ: use another name")
    _plain(f"property {name!r}", name + value)


def _plain(what: str, text: object) -> str:
    if not isinstance(text, str):
        raise InvalidMessageError(f"{what} must be text, not {type(text).__name__}")
    if any(separator in text for separator in _SEPARATORS):
        raise InvalidMessageError(f"{what} must not contain the characters \\x01 and \\x02")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"{what} {text!r} cannot be encoded in UTF-8") from error
    return text
