"""Send requests as bytes and back: the headers of 310, 320 and 325, and the receipt in the answer.

Corresponds to SendMessageRequestHeaderV2, MessageBatch and MQClientAPIImpl.processSendResponse.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from twinlog.client.errors import (
    ClientError,
    SendOutcome,
    UnreadableAnswerError,
    broker_error,
    with_outcome,
)
from twinlog.client.message import SendReceipt, SendStatus
from twinlog.client.queues import MessageQueue
from twinlog.message.layout import MEMBER_HEAD, MEMBER_SIZE_MIN
from twinlog.message.names import AUTO_CREATE_TOPIC
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.compiled import load
from twinlog.runtime.numbers import number_of

_LENGTH = struct.Struct(">h")
_LENGTHS = tuple(_LENGTH.pack(size) for size in range(1024))  # Of almost all property strings.
_STATUSES = {status.value: status for status in SendStatus}
_TRUE_FALSE = ("false", "true")


def batch_element(body: bytes, properties: bytes, flag: int) -> bytes:
    """One member of a batch body."""
    size, count = len(body), len(properties)
    length = _LENGTHS[count] if count < 1024 else _LENGTH.pack(count)
    head = MEMBER_HEAD.pack(MEMBER_SIZE_MIN + size + count, 0, 0, flag, size)
    return b"".join((head, body, length, properties))


class SendRequest:
    """One request on its way: a message, or a batch of them. Kept until answered or given up."""

    __slots__ = (
        "attempt", "batch", "body", "born_ms", "code", "count", "deadline_ms", "error", "failures",
        "flag", "is_pinned", "once", "outcome", "properties", "queue", "receipts",
        "reconsume_times", "reconsume_times_max", "size", "sys_flag", "tickets", "topic", "tried",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        body: bytes,
        properties: str,
        *,
        tickets: list[Any],
        born_ms: int,
        deadline_ms: float,
        code: int = RequestCode.SEND_MESSAGE_V2,
        flag: int = 0,
        sys_flag: int = 0,
        queue: MessageQueue | None = None,
        batch: Any = None,
    ) -> None:
        self.topic = topic
        self.body = body
        self.properties = properties
        self.tickets = tickets
        # Messages; more than tickets where one ticket stands for all.
        self.count = len(tickets)
        self.born_ms = born_ms
        self.deadline_ms = deadline_ms
        self.code = code
        self.flag = flag
        self.sys_flag = sys_flag
        self.queue = queue
        self.is_pinned = queue is not None
        self.batch = batch
        self.size = len(body)
        self.attempt = 0
        self.tried: tuple[str, ...] = ()
        self.error: ClientError | None = None
        # Attempts that count against the limit of retries: those that may have been stored, and
        # those whose reason does not pass by itself.
        self.failures = 0
        self.outcome = SendOutcome.NOT_STORED  # Of all attempts so far, together.
        # Of an attempt whose status was not SEND_OK and that is made again anyway.
        self.receipts: list[SendReceipt] | None = None
        self.reconsume_times = 0
        self.reconsume_times_max: int | None = None
        self.once: Any = None  # The lane of an idempotent send.

    def pin(self, queue: MessageQueue) -> None:
        """Exactly there, also when it is sent again."""
        self.queue = queue
        self.is_pinned = True


def send_command(request: SendRequest, group: str) -> RemotingCommand:
    """The command for the queue that the request has now."""
    queue = request.queue
    assert queue is not None
    ext = {
        "a": group,
        "b": request.topic,
        "c": AUTO_CREATE_TOPIC,
        "d": "4",
        "e": str(queue.queue_id),
        "f": str(request.sys_flag),
        "g": str(request.born_ms),
        "h": str(request.flag),
        "i": request.properties,
        "j": str(request.reconsume_times),
        "k": "false",
        "m": _TRUE_FALSE[request.code == RequestCode.SEND_BATCH_MESSAGE],
        "n": queue.broker_name,
    }
    if request.reconsume_times_max is not None:
        ext["l"] = str(request.reconsume_times_max)
    return RemotingCommand(request.code, ext_fields=ext, body=request.body)


def ids_of(tickets: Sequence[tuple[Any, str | list[str], Any]]) -> list[str]:
    """The message ids of a request, of single messages and of runs."""
    ids: list[str] = []
    for _, one_or_more, _ in tickets:
        if type(one_or_more) is str:
            ids.append(one_or_more)
        else:
            ids.extend(one_or_more)
    return ids


def read_receipts(
    answer: Request, request: SendRequest, message_ids: list[str], address: str
) -> list[SendReceipt]:
    """One receipt for each message of the request, or the error that the answer is."""
    status = _STATUSES.get(answer.code)
    if status is None:
        raise broker_error(
            answer.code, answer.remark, address=address, action=f"send to topic {request.topic!r}"
        )
    queue = request.queue
    assert queue is not None
    ext = answer.ext()
    try:
        queue_id, queue_offset = number_of(ext["queueId"]), number_of(ext["queueOffset"])
        offset_ids = ext["msgId"].split(",")
    except (KeyError, ValueError) as error:
        # The code alone says that the master has it.
        unreadable = UnreadableAnswerError(f"{address}: the answer to a send lacks {error}")
        raise with_outcome(unreadable, SendOutcome.STORED) from error
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    transaction_id = ext.get("transactionId", "")
    if len(message_ids) == 1:
        return [
            SendReceipt(status, message_ids[0], queue, queue_offset, offset_ids[0], transaction_id)
        ]
    if len(offset_ids) != len(message_ids):
        offset_ids = [""] * len(message_ids)
    # A repeat of what was stored at different times says where each one is.
    places: Sequence[int] = [
        number_of(text) for text in ext.get("queueOffsets", "").split(",") if text
    ]
    if len(places) != len(message_ids):
        places = range(queue_offset, queue_offset + len(message_ids))
    return receipts(status, queue, message_ids, places, offset_ids)


def set_error(future: asyncio.Future[Any], error: ClientError) -> None:
    """Tell whoever waits, if nothing was told yet."""
    if future.done():
        return
    try:
        future.set_exception(error)
    except RuntimeError:
        if not future.done():
            raise  # Else its loop has ended, and nobody can be called there.


async def all_receipts(outcomes: list[Any]) -> list[SendReceipt]:
    """The receipts of messages and runs; raises the first error when all have their outcome."""
    receipts: list[SendReceipt] = []
    error: ClientError | None = None
    for future in outcomes:
        try:
            outcome = await future
        except ClientError as failure:
            error = error or failure
            continue
        if type(outcome) is list:
            receipts.extend(outcome)
        else:
            receipts.append(outcome)
    if error is not None:
        raise error
    return receipts


def receipts_in_python(
    status: SendStatus,
    queue: MessageQueue,
    message_ids: list[str],
    places: Sequence[int],
    offset_ids: list[str],
) -> list[SendReceipt]:
    """What the compiled part does as well."""
    return [
        SendReceipt(status, message_id, queue, place, offset_id)
        for message_id, place, offset_id in zip(message_ids, places, offset_ids, strict=True)
    ]


_compiled = load("twinlog.client.producer._run")
receipts = receipts_in_python if _compiled is None else _compiled.receipts
