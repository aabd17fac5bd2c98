"""Messages that no broker would take are refused in the user's words."""

from __future__ import annotations

from typing import Any

import pytest

from twinlog.client.errors import BrokerError, InvalidMessageError, broker_error
from twinlog.client.message import (
    Message,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
    check_group,
    check_message,
    encode_user_properties,
)
from twinlog.client.queues import MessageQueue
from twinlog.message.model import Record
from twinlog.message.properties import decode_properties, encode_properties

ID = "7F0000014D9D4E0E2F2A4CA1A2410000"


def test_a_good_message_gives_its_body_as_bytes() -> None:
    assert check_message(Message("T", b"x"), 10) == b"x"
    assert check_message(Message("T", bytearray(b"x")), 10) == b"x"  # type: ignore[arg-type]
    assert check_message(Message("T", memoryview(b"x")), 10) == b"x"  # type: ignore[arg-type]


BAD: list[tuple[Any, str]] = [
    ("text", "a Message is expected, not str"),
    (Message("T", "text"), r"body must be bytes, not str: encode it"),  # type: ignore[arg-type]
    (Message("T", None), "body must be bytes, not NoneType"),  # type: ignore[arg-type]
    (Message("T", b""), "body is empty"),
    (Message("T", b"x" * 11), "body has 11 bytes; at most 10"),
    (Message("", b"x"), "topic is empty"),
    (Message("a b", b"x"), "only letters, digits"),
    (Message("x" * 128, b"x"), "128 characters; at most 127"),
    (Message(7, b"x"), "topic must be text, not int"),  # type: ignore[arg-type]
    (Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
]


@pytest.mark.parametrize(("message", "reason"), BAD)
def test_bad_messages(message: Any, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        check_message(message, 10)


def test_groups_have_rules_too() -> None:
    assert check_group("g-1") == "g-1"
    with pytest.raises(InvalidMessageError, match="group"):
        check_group("a:b")


def test_properties_of_a_plain_message() -> None:
    encoded = encode_user_properties(Message("T", b"x"), ID)
    assert encoded == f"UNIQ_KEY\x01{ID}\x02WAIT\x01true".encode()


def test_properties_of_a_rich_message() -> None:
    message = Message(
        "T", b"x", tags="a b", keys=["k1", "", "k2"], properties={"mine": "1"}, delay_level=3,
        wait_store_ok=False,
    )  # fmt: skip
    assert decode_properties(encode_user_properties(message, ID)) == {
        "mine": "1", "KEYS": "k1 k2", "UNIQ_KEY": ID, "WAIT": "false", "TAGS": "a b", "DELAY": "3",
    }  # fmt: skip


@pytest.mark.parametrize("tags", ["a", "tag-1", ""])
def test_the_short_way_and_the_long_way_agree(tags: str) -> None:
    short = decode_properties(encode_user_properties(Message("T", b"x", tags=tags), ID))
    long = decode_properties(encode_user_properties(Message("T", b"x", tags=tags, keys="k"), ID))
    assert long.pop("KEYS") == "k"
    assert short == long


BAD_PROPERTIES: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"a": 1}}, "name and value must be text"),
    ({"properties": {"a": ""}}, "must not be empty"),
    ({"properties": {"KEYS": "x"}}, "is reserved by RocketMQ"),
    ({"properties": {"a": "x\x02y"}}, "must not contain the characters"),
    ({"tags": "a\x01b"}, "tags must not contain the characters"),
    ({"tags": 7}, "tags must be text"),
    ({"keys": [1]}, "a key must be text"),
    ({"delay_level": -1}, "must be a number from 0 to 18, not -1"),
    ({"delay_level": "3"}, "must be a number from 0 to 18, not '3'"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD_PROPERTIES)
def test_bad_properties(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        encode_user_properties(Message("T", b"x", **arguments), ID)


def record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "total_size": 0, "magic": 0, "body_crc": 0, "queue_id": 2, "flag": 9, "queue_offset": 42,
        "physical_offset": 500, "sys_flag": 0, "born_timestamp": 1, "born_host": bytes(8),
        "store_timestamp": 2, "store_host": bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F]),
        "reconsume_times": 1, "prepared_transaction_offset": 0, "body": b"hello", "topic": "T",
        "properties": encode_properties({"TAGS": "a", "KEYS": "x y", "UNIQ_KEY": ID}),
    }  # fmt: skip
    return Record(**{**values, **changes})


def test_a_received_message_shows_what_was_stored() -> None:
    message = ReceivedMessage(record(), "broker-a")
    assert (message.topic, message.body, message.body_size) == ("T", b"hello", 5)
    assert message.queue == MessageQueue("T", "broker-a", 2)
    assert (message.queue_offset, message.physical_offset, message.flag) == (42, 500, 9)
    assert (message.message_id, message.tags, message.keys) == (ID, "a", ["x", "y"])
    assert message.offset_message_id == "7F00000100002A9F00000000000001F4"
    assert (message.born_timestamp, message.store_timestamp, message.sys_flag) == (1, 2, 0)
    assert (message.born_host, message.store_host) == ("0.0.0.0:0", "127.0.0.1:10911")
    assert (message.reconsume_times, message.transaction_id) == (1, None)
    assert "offset=42" in repr(message)


def test_a_message_without_unique_id_has_its_place_as_id() -> None:
    message = ReceivedMessage(record(properties=b""), "broker-a")
    assert message.message_id == message.offset_message_id
    assert message.keys == []


def test_a_transaction_message_has_its_unique_id_as_transaction_id() -> None:
    properties = encode_properties({"TRAN_MSG": "true", "UNIQ_KEY": ID})
    assert ReceivedMessage(record(properties=properties), "b").transaction_id == ID


def test_a_message_that_comes_again_shows_its_first_topic() -> None:
    message = ReceivedMessage(record(topic="%RETRY%g"), "broker-a")
    message.show_topic("orders")
    assert (message.topic, message.queue.topic) == ("orders", "%RETRY%g")


def test_a_compressed_body_is_inflated_once() -> None:
    import zlib

    message = ReceivedMessage(record(body=zlib.compress(b"x" * 100), sys_flag=0x301), "b")
    assert message.body == b"x" * 100
    assert message.body is message.body


def test_only_send_ok_is_an_acknowledgement() -> None:
    receipts = [SendReceipt(status, ID, MessageQueue("T", "b", 0), 0) for status in SendStatus]
    assert [receipt.is_acknowledged for receipt in receipts] == [True, False, False, False]


def test_messages_do_not_show_their_bodies() -> None:
    assert repr(Message("T", b"secret")) == "Message('T', 6 bytes, tags=None)"


def test_broker_errors_say_who_what_and_what_to_do() -> None:
    error = broker_error(2, "[TIMEOUT]", address="h:1", action="send")
    assert error.retriable
    assert error.text == (
        "send refused by h:1: code 2: [TIMEOUT] (the broker is overloaded: wait, then send again)"
    )
    unknown = broker_error(9999, None)
    assert type(unknown) is BrokerError
    assert (unknown.code, unknown.retriable) == (9999, False)
