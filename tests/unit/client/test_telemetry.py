"""Spans of a send and of its handling belong to one trace, joined by the message's properties."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from twinlog.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
from twinlog.client.queues import MessageQueue
from twinlog.client.telemetry import OpenTelemetryHooks
from twinlog.message.model import Record
from twinlog.message.properties import encode_properties


class FakeSpan(NonRecordingSpan):
    def __init__(self, name: str, parent: SpanContext, attributes: dict[str, Any]) -> None:
        trace_id = parent.trace_id if parent.is_valid else 0xABC
        super().__init__(SpanContext(trace_id, 0x123, False, TraceFlags(1)))
        self.name, self.parent, self.attributes = name, parent, attributes
        self.is_ended, self.errors = False, []

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def record_exception(self, exception: BaseException, *rest: Any, **more: Any) -> None:
        self.errors.append(exception)

    def end(self, end_time: int | None = None) -> None:
        self.is_ended = True


class FakeTracer(trace.NoOpTracer):
    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []

    def start_span(self, name: str, context: Any = None, **facts: Any) -> Any:
        parent = trace.get_current_span(context).get_span_context()
        span = FakeSpan(name, parent, dict(facts["attributes"]))
        self.spans.append(span)
        return span


class FakeProvider(trace.NoOpTracerProvider):
    def __init__(self) -> None:
        self.tracer = FakeTracer()

    def get_tracer(self, *names: Any, **facts: Any) -> Any:
        return self.tracer


def received(message: Message) -> ReceivedMessage:
    properties = encode_properties({**(message.properties or {}), "UNIQ_KEY": "U"})
    record = Record(
        0, 0, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 1, 0, message.body, message.topic,
        properties,
    )  # fmt: skip
    return ReceivedMessage(record, "b")


def test_a_trace_goes_through_the_broker() -> None:
    provider = FakeProvider()
    hooks = OpenTelemetryHooks(provider)
    message = Message("T", b"x", properties={"mine": "1"})
    context = hooks.before_send(message)
    hooks.after_send(
        context, SendReceipt(SendStatus.SEND_OK, "U", MessageQueue("T", "b", 0), 0), None
    )
    assert message.properties is not None
    assert set(message.properties) == {"mine", "traceparent"}
    hooks.after_consume(hooks.before_consume(received(message), "g"), ValueError("no"))
    sent, handled = provider.tracer.spans
    assert (sent.name, handled.name) == ("T publish", "T process")
    assert handled.parent.trace_id == sent.get_span_context().trace_id
    assert sent.attributes["messaging.rocketmq.send_status"] == "SEND_OK"
    assert handled.attributes["messaging.rocketmq.attempt"] == 2
    assert (sent.is_ended, handled.is_ended) == (True, True)
    assert [str(error) for error in handled.errors] == ["no"]


def test_a_hook_that_failed_before_leaves_nothing_to_end() -> None:
    hooks = OpenTelemetryHooks(FakeProvider())
    hooks.after_send(None, None, ValueError("x"))
    hooks.after_consume(None, None)
