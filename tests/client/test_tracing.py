"""A trace crosses a real broker: the span of a send is the parent of the span of its handling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from support.client_support import eventually
from twinlog.admin import Admin, topics
from twinlog.client import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from twinlog.client.telemetry import OpenTelemetryHooks

_numbers = itertools.count(1)


class Span(NonRecordingSpan):
    """Keeps what the interface of OpenTelemetry is told; the library's own forgets it."""

    def __init__(self, name: str, parent: SpanContext) -> None:
        trace_id = parent.trace_id if parent.is_valid else (1 << 100) + next(_numbers)
        super().__init__(SpanContext(trace_id, next(_numbers), False, TraceFlags(1)))
        self.name, self.parent = name, parent


class Tracer(trace.NoOpTracer):
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name: str, context: Any = None, **facts: Any) -> Any:
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(Span(name, parent))
        return self.spans[-1]


class Provider(trace.NoOpTracerProvider):
    def __init__(self) -> None:
        self.tracer = Tracer()

    def get_tracer(self, *names: Any, **facts: Any) -> Any:
        return self.tracer


async def test_a_trace_crosses_the_broker(cluster: Any, unique: Callable[[str], str]) -> None:
    topic, group = unique("traced"), unique("group")
    async with Admin(cluster.name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=2)).all_or_raise()
    sent, handled = Provider(), Provider()
    seen: list[tuple[ReceivedMessage, SpanContext]] = []

    async def handler(message: ReceivedMessage) -> None:
        # What the handler does belongs to the trace, too: its span is the current one.
        seen.append((message, trace.get_current_span().get_span_context()))

    async with Producer(
        "pg", name_server=cluster.name_server, hooks=OpenTelemetryHooks(sent)
    ) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number, properties={"mine": "kept"}))
    async with PushConsumer(
        group, name_server=cluster.name_server, consume_from=ConsumeFrom.FIRST_OFFSET,
        hooks=OpenTelemetryHooks(handled),
    ) as consumer:  # fmt: skip
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: len(seen) == 3, "all three are handled")

    producers = {span.get_span_context().trace_id: span for span in sent.tracer.spans}
    assert len(producers) == 3
    for span in handled.tracer.spans:
        origin = producers[span.get_span_context().trace_id].get_span_context()
        assert span.parent.span_id == origin.span_id
        assert span.parent.is_remote
    for message, current in seen:
        assert message.properties["mine"] == "kept"
        form = f"00-{current.trace_id:032x}-"
        assert message.properties["traceparent"].startswith(form)
