"""What one node serves of a topic, and what its scrub says; one request after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from support.ha_load import Connection, ask
from support.processes import wait_until
from support.twinlog_servers import TwinlogBroker
from twinlog.message.model import Record
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

QUEUES = 4


def end_of(connection: Connection, topic: str, queue_id: int) -> int:
    header = {"topic": topic, "queueId": queue_id}
    return int(connection.call(RequestCode.GET_MAX_OFFSET, header).ext()["offset"])


def records_served(broker: TwinlogBroker, topic: str) -> Iterator[Record]:
    """Everything that a reader of all queues is given, going on behind errors."""
    connection = Connection(broker.address)
    try:
        for queue_id in range(QUEUES):
            yield from _served(connection, topic, queue_id)
    finally:
        connection.close()


def _served(connection: Connection, topic: str, queue_id: int) -> Iterator[Record]:
    offset, end = 0, end_of(connection, topic, queue_id)
    while offset < end:
        pull = {
            "consumerGroup": "g", "topic": topic, "queueId": queue_id, "queueOffset": offset,
            "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
            "subscription": "*", "subVersion": 0, "expressionType": "TAG",
        }  # fmt: skip
        answer = connection.call(RequestCode.PULL_MESSAGE, pull)
        data, at = bytes(answer.body), 0
        while at < len(data):
            record = decode_record(data, at, check_crc=False)
            yield record
            at += record.total_size
        offset = max(offset + 1, int(answer.ext().get("nextBeginOffset", 0)))


def scrub_status(broker: TwinlogBroker, *, begin: bool = False) -> dict[str, Any]:
    header = {"begin": "true"} if begin else {}
    answer = ask(broker.address, RequestCode.TWINLOG_SCRUB, header)
    assert answer.code == 0, answer.remark
    status: dict[str, Any] = fastjson.loads(bytes(answer.body))
    return status


def scrub(broker: TwinlogBroker, deadline_s: float = 300.0) -> dict[str, Any]:
    """A whole walk over its store, begun now; what it says at its end."""
    passes = scrub_status(broker, begin=True)["passes"]
    wait_until(
        lambda: scrub_status(broker)["passes"] > passes, "the scrub has seen all",
        deadline_s=deadline_s,
    )  # fmt: skip
    return scrub_status(broker)
