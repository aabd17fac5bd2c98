"""What brokers and administrators ask of a consumer.

Corresponds to ClientRemotingProcessor: 220 reset offsets, 221 status, 307 running information,
309 handle one message now. A pull consumer answers only what asks for information: as with Java's,
where it reads is its caller's business.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from twinlog.client.consumer.consumer_core import ConsumerCore
from twinlog.client.message import ReceivedMessage
from twinlog.client.net.answers import parse_offset_table
from twinlog.client.net.calls import decode_messages
from twinlog.client.queues import MessageQueue
from twinlog.message.properties import PROPERTY_RETRY_TOPIC
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProcessQueueInfo,
)
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request

_LOG = logging.getLogger("twinlog.client")

# Returns what the handler raised, None when it is done.
HandleNow = Callable[[ReceivedMessage], Awaitable[BaseException | None]]


class ConsumerRequests:
    """Serves one consumer; without `handle_now` one that pulls."""

    def __init__(
        self, core: ConsumerCore, handle_now: HandleNow | None = None, concurrency: int = 1
    ) -> None:
        self._core = core
        self._handle_now = handle_now
        self._concurrency = concurrency
        self._started_ms = core.instance.clock.now_ms()
        instance = core.instance
        instance.on_request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status)
        instance.on_request(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        if handle_now is not None:
            instance.on_request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset)
            instance.on_request(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume_directly)

    def _reset(self, connection: Any, request: Request) -> None:
        ext = request.ext()
        if ext.get("group") != self._core.group:
            return
        try:
            offsets = parse_offset_table(request.body)
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("reset of offsets is unreadable reason=%r", error)
            return
        self._core.instance.tasks.job("reset offsets", self._core.reset(offsets))

    def _status(self, connection: Any, request: Request) -> None:
        topic = request.ext().get("topic")
        table: dict[MessageQueue | str, int] = {
            _queue_key(queue): self._core.offsets.position(queue) or 0
            for queue in self._core.readers
            if topic in (None, queue.topic)
        }
        body = GetConsumerStatusBody(message_queue_table=table)
        connection.reply(request, 0, body=fastjson.dumps(body))

    def _running_info(self, connection: Any, request: Request) -> None:
        if request.ext().get("consumerGroup") != self._core.group:
            remark = f"The Consumer Group <{request.ext().get('consumerGroup')}> not exist"
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        connection.reply(request, 0, body=fastjson.dumps(self._running_info_body()))

    def _running_info_body(self) -> ConsumerRunningInfo:
        core = self._core
        settings = core.settings
        return ConsumerRunningInfo(
            mq_table={_queue_key(q): self._queue_info(q) for q in core.readers},
            properties={
                "PROP_CONSUMEORDERLY": "true" if settings.is_ordered else "false",
                "PROP_THREADPOOL_CORE_SIZE": str(self._concurrency),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_NAMESERVER_ADDR": ";".join(core.instance.name_servers.addresses) + ";",
                "PROP_CONSUME_TYPE": f"CONSUME_{'PASSIVELY' if settings.is_push else 'ACTIVELY'}",
                "PROP_CLIENT_VERSION": "V4_9_8",
            },
            subscription_set=[s.to_json() for s in core.subscriptions.values()],
        )

    def _queue_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        reader = self._core.readers[queue]
        process = reader.process
        return ProcessQueueInfo(
            commit_offset=self._core.offsets.position(queue) or 0,
            cached_msg_min_offset=process.commit_offset if process.count else 0,
            cached_msg_max_offset=process.end_offset - 1 if process.count else 0,
            cached_msg_count=process.count,
            cached_msg_size_in_mib=process.size >> 20,
            locked=self._core.settings.is_ordered and self._core.is_locked(reader),
            droped=process.is_dropped,
            last_pull_timestamp=reader.last_pull_ms,
            last_consume_timestamp=reader.last_consume_ms,
        )

    def _consume_directly(self, connection: Any, request: Request) -> None:
        self._core.instance.tasks.job(
            "consume directly", self._consume_and_answer(connection, request),
            failed=connection.refuse(request),
        )  # fmt: skip

    async def _consume_and_answer(self, connection: Any, request: Request) -> None:
        ext = request.ext()
        try:
            (message,) = decode_messages(request.body, ext.get("brokerName", ""))
        except ValueError as error:
            connection.reply(
                request, ResponseCode.SYSTEM_ERROR, remark=f"the body is not a message: {error}"
            )
            return
        message.show_topic(message.properties.get(PROPERTY_RETRY_TOPIC))
        clock = self._core.instance.clock
        started_ms = clock.monotonic_ms()
        assert self._handle_now is not None
        error_raised = await self._handle_now(message)
        is_done = error_raised is None
        result = ConsumeMessageDirectlyResult(
            order=self._core.settings.is_ordered,
            consume_result="CR_SUCCESS" if is_done else "CR_THROW_EXCEPTION",
            remark=None if is_done else repr(error_raised),
            spent_time_mills=clock.monotonic_ms() - started_ms,
        )
        connection.reply(request, 0, body=fastjson.dumps(result))


def _queue_key(queue: MessageQueue) -> str:
    """A queue as a key that both Java (object in a string) and standard JSON read."""
    return fastjson.dumps(queue.wire()).decode()
