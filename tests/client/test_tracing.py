"""A trace crosses a real broker, seen by OpenTelemetry's own SDK.

The span of a send is the parent of the span of its handling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from support.client_support import eventually
from twinlog.admin import Admin, topics
from twinlog.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from twinlog.client.telemetry import OpenTelemetryHooks


class Traced:
    """Hooks with a provider of the SDK, and the spans that it has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.hooks = OpenTelemetryHooks(provider)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


async def make_topic(cluster: Any, topic: str) -> None:
    async with Admin(cluster.name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=2)).all_or_raise()


async def test_a_trace_crosses_the_broker(cluster: Any, unique: Callable[[str], str]) -> None:
    topic, group = unique("traced"), unique("group")
    await make_topic(cluster, topic)
    sent, handled = Traced(), Traced()
    seen: list[tuple[ReceivedMessage, SpanContext]] = []

    async def handler(message: ReceivedMessage) -> None:
        # What the handler does belongs to the trace, too: its span is the current one.
        seen.append((message, trace.get_current_span().get_span_context()))

    async with Producer("pg", name_server=cluster.name_server, hooks=sent.hooks) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number, properties={"mine": "kept"}))
    async with PushConsumer(
        group, name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET,
        hooks=handled.hooks,
    ) as consumer:  # fmt: skip
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: len(handled.spans) == 3, "all three are handled")

    producers = {span.get_span_context().trace_id: span for span in sent.spans}
    assert len(producers) == 3
    for span in handled.spans:
        origin = producers[span.get_span_context().trace_id]
        assert span.parent is not None
        assert span.parent.span_id == origin.get_span_context().span_id
        assert span.parent.is_remote
        assert (origin.kind, span.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert (origin.name, span.name) == (f"{topic} publish", f"{topic} process")
        assert origin.attributes is not None
        assert span.attributes is not None
        assert origin.attributes["messaging.rocketmq.send_status"] == "SEND_OK"
        assert origin.attributes["messaging.message.id"] == span.attributes["messaging.message.id"]
        assert span.attributes["messaging.consumer.group.name"] == group
        assert origin.end_time is not None
        assert span.status.status_code is StatusCode.UNSET
    for message, current in seen:
        assert message.properties["mine"] == "kept"
        form = f"00-{current.trace_id:032x}-"
        assert message.properties["traceparent"].startswith(form)


async def test_what_fails_is_an_error_of_its_span(
    cluster: Any, unique: Callable[[str], str]
) -> None:
    topic, group = unique("failing"), unique("group")
    await make_topic(cluster, topic)
    sent, handled = Traced(), Traced()

    async def handler(message: ReceivedMessage) -> None:
        raise ValueError("not today")

    async with Producer("pg", name_server=cluster.name_server, hooks=sent.hooks) as producer:
        await producer.send(Message(topic, b"x"))
        with pytest.raises(ClientError):
            await producer.send(Message(topic, b"x" * (8 << 20)))
    async with PushConsumer(
        group, name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET,
        hooks=handled.hooks,
    ) as consumer:  # fmt: skip
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: handled.spans, "the message is handled")
    span = handled.spans[0]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "not today")
    assert [event.name for event in span.events] == ["exception"]
    failed = [span for span in sent.spans if span.status.status_code is StatusCode.ERROR]
    assert len(sent.spans) - len(failed) == 1
