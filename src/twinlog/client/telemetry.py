"""Traces of OpenTelemetry: one span for each send and each handling, joined over the broker.

    Producer("group", name_server=..., hooks=OpenTelemetryHooks())

Needs the extra `twinlog[otel]`. The context travels in the message's properties (`traceparent`), so
it passes through any RocketMQ broker.
"""

from __future__ import annotations

from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from twinlog.client.hooks import ClientHooks
from twinlog.client.message import Message, ReceivedMessage, SendReceipt

SYSTEM = "rocketmq"


class OpenTelemetryHooks(ClientHooks):
    """Makes spans with the tracer of `provider`, or of the global one."""

    def __init__(self, provider: Any = None) -> None:
        self._tracer = trace.get_tracer("twinlog.client", tracer_provider=provider)

    def before_send(self, message: Message) -> Any:
        span = self._tracer.start_span(
            f"{message.topic} publish",
            kind=SpanKind.PRODUCER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.type": "send",
                "messaging.destination.name": message.topic,
                "messaging.message.body.size": len(message.body),
            },
        )
        properties = dict(message.properties or {})
        propagate.inject(properties, context=trace.set_span_in_context(span))
        message.properties = properties
        return span

    def after_send(
        self, context: Any, receipt: SendReceipt | None, error: BaseException | None
    ) -> None:
        if context is None:
            return
        if receipt is not None:
            context.set_attribute("messaging.message.id", receipt.message_id)
            context.set_attribute("messaging.rocketmq.send_status", receipt.status.name)
        _end(context, error)

    def before_consume(self, message: ReceivedMessage, group: str) -> Any:
        span = self._tracer.start_span(
            f"{message.topic} process",
            context=propagate.extract(message.properties),
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.type": "process",
                "messaging.destination.name": message.topic,
                "messaging.consumer.group.name": group,
                "messaging.message.id": message.message_id,
                "messaging.rocketmq.attempt": message.reconsume_times + 1,
            },
        )
        return span, otel_context.attach(trace.set_span_in_context(span))

    def after_consume(self, context: Any, error: BaseException | None) -> None:
        if context is None:
            return
        span, token = context
        otel_context.detach(token)
        _end(span, error)


def _end(span: Any, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()
