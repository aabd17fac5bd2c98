"""Send requests and receipts, against captured frames of Apache's client and broker."""

from __future__ import annotations

import pytest

from twinlog.client.errors import ClientError, MessageIllegalError
from twinlog.client.message import SendStatus
from twinlog.client.producer.outgoing import SendRequest, batch_element, read_receipts, send_command
from twinlog.client.queues import MessageQueue
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request

QUEUE = MessageQueue("TopicVec", "vec-broker", 0)


def request(**changes: object) -> SendRequest:
    values: dict[str, object] = {"tickets": [], "born_ms": 1794776861250, "deadline_ms": 0}
    return SendRequest("TopicVec", b"x", "UNIQ_KEY\x01U", queue=QUEUE, **{**values, **changes})  # type: ignore[arg-type]


def test_a_batch_element_is_the_documented_one() -> None:
    element = batch_element(b"hi", b"KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA", 0)
    assert element.hex().upper() == (
        "00000033000000000000000000000000000000026869001B4B455953016B3102574149540174727565"
        "02544147530154616741"
    )


def test_the_header_has_the_names_and_values_of_the_java_client() -> None:
    command = send_command(request(), "PID_vec")
    assert command.code == 310
    assert command.ext() == {
        "a": "PID_vec", "b": "TopicVec", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1794776861250", "h": "0", "i": "UNIQ_KEY\x01U", "j": "0", "k": "false", "m": "false",
        "n": "vec-broker",
    }  # fmt: skip


def test_batches_and_returned_messages_say_so() -> None:
    batch = send_command(request(code=RequestCode.SEND_BATCH_MESSAGE), "g")
    assert batch.ext()["m"] == "true"
    returned = request()
    returned.reconsume_times, returned.reconsume_times_max = 3, 16
    ext = send_command(returned, "g").ext()
    assert (ext["j"], ext["l"]) == ("3", "16")


def answer(code: int = 0, **ext: str) -> Request:
    values = {"queueId": "0", "queueOffset": "11", "msgId": "A,B", **ext}
    return Request(code, ext_fields=values)


def test_receipts_of_a_batch_count_up() -> None:
    receipts = read_receipts(answer(), request(), ["u1", "u2"], "h:1")
    assert [(r.message_id, r.offset_message_id, r.queue_offset) for r in receipts] == [
        ("u1", "A", 11),
        ("u2", "B", 12),
    ]


def test_a_receipt_has_the_queue_that_the_broker_chose() -> None:
    (receipt,) = read_receipts(answer(11, queueId="3", msgId="A"), request(), ["u"], "h:1")
    assert receipt.status is SendStatus.SLAVE_NOT_AVAILABLE
    assert receipt.queue == QUEUE._replace(queue_id=3)


def test_a_broker_that_names_too_few_ids_is_forgiven() -> None:
    receipts = read_receipts(answer(msgId="A"), request(), ["u1", "u2"], "h:1")
    assert [receipt.offset_message_id for receipt in receipts] == ["", ""]


def test_refusals_are_errors() -> None:
    with pytest.raises(MessageIllegalError, match="TopicVec"):
        read_receipts(Request(13, remark="too large"), request(), ["u"], "h:1")
    with pytest.raises(ClientError, match="lacks 'queueOffset'"):
        read_receipts(Request(0, ext_fields={"queueId": "1"}), request(), ["u"], "h:1")
