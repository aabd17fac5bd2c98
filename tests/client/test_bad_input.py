"""Wrong addresses, ports, handlers and closed clients: said in words, and nothing hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.processes import free_port
from twinlog.admin import Admin, topics
from twinlog.client import (
    ClientError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from twinlog.client.consumer.subscription import parse_subscription
from twinlog.client.errors import (
    ClientClosedError,
    InvalidAddressError,
    InvalidHandlerError,
    InvalidMessageError,
    NameServerUnreachableError,
    NoBrokerError,
    NotANameServerError,
    RequestReplyTimeoutError,
    TopicNotFoundError,
    UnreadableAnswerError,
    UsageError,
)
from twinlog.client.net import calls
from twinlog.remoting.bodies.route import BrokerData
from twinlog.remoting.codec import decode_header, encode_response
from twinlog.remoting.framing import FrameSplitter

Unique = Callable[[str], str]
QUICK: dict[str, Any] = {"request_timeout_ms": 500, "connect_timeout_ms": 500}


async def nothing(message: Any) -> None:
    pass


async def send_to(name_server: str, **options: Any) -> None:
    async with Producer("pg", name_server=name_server, **options) as producer:
        await producer.send(Message("T", b"x"))


async def test_nobody_listens() -> None:
    with pytest.raises(NameServerUnreachableError, match="cannot connect"):
        await send_to(f"127.0.0.1:{free_port()}")


async def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(NameServerUnreachableError, match="no-such-host"):
        await send_to("no-such-host.invalid:9876", **QUICK)


@pytest.mark.parametrize("name_server", ["", "localhost", "h:port", 9876, None])
def test_what_is_no_address_is_refused_before_anything_is_opened(name_server: Any) -> None:
    for client in (Producer, PullConsumer, PushConsumer):
        with pytest.raises(InvalidAddressError):
            client("g", name_server=name_server)


async def test_one_of_two_name_servers_is_enough(cluster: Any) -> None:
    await send_to(f"127.0.0.1:{free_port()};{cluster.name_server}")


@asynccontextmanager
async def server(handle: Any) -> AsyncIterator[str]:
    """A server of another kind. Every connection is closed before the test ends."""
    ended: list[asyncio.Future[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        done = asyncio.get_running_loop().create_future()
        ended.append(done)
        try:
            await handle(reader, writer)
            writer.close()
            await writer.wait_closed()
        except ConnectionError:
            writer.close()
        finally:
            done.set_result(None)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        await asyncio.gather(*ended)


async def test_an_http_server_is_recognised() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with server(http) as address:
        with pytest.raises(NameServerUnreachableError, match="answers in HTTP"):
            await send_to(address, **QUICK)


async def test_a_server_of_another_kind_is_recognised() -> None:
    async def smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        await reader.read(100)

    async with server(smtp) as address:
        with pytest.raises(NameServerUnreachableError, match="does not speak RocketMQ"):
            await send_to(address, **QUICK)


async def test_a_server_that_never_answers_runs_into_the_time_limit() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    started = time.monotonic()
    async with server(silent) as address:
        with pytest.raises(NameServerUnreachableError, match="no answer"):
            await send_to(address, **QUICK)
    assert time.monotonic() - started < 30


async def test_a_brokers_ports_are_not_a_name_server(bare_cluster: Any) -> None:
    broker = bare_cluster.broker()
    for port in (broker.port, broker.port - 2):
        with pytest.raises(NotANameServerError, match="not a name server"):
            await send_to(f"127.0.0.1:{port}", **QUICK)
    with pytest.raises(NameServerUnreachableError):
        await send_to(f"127.0.0.1:{broker.ha_port}", **QUICK)


async def test_a_name_server_without_brokers(bare_cluster: Any) -> None:
    with pytest.raises(NoBrokerError, match="knows no broker"):
        await send_to(bare_cluster.name_server)
    async with PushConsumer("g", name_server=bare_cluster.name_server) as consumer:
        with pytest.raises(NoBrokerError):
            await consumer.subscribe("T", "*", nothing)


async def test_a_missing_topic_where_topics_are_not_created(bare_cluster: Any) -> None:
    bare_cluster.broker(autoCreateTopicEnable="false")
    with pytest.raises(TopicNotFoundError, match="autoCreateTopicEnable=false"):
        await send_to(bare_cluster.name_server)


async def test_a_closed_client_says_so(cluster: Any) -> None:
    producer = Producer("pg", name_server=cluster.name_server)
    with pytest.raises(ClientClosedError, match="not started"):
        await producer.send(Message("T", b"x"))
    push = PushConsumer("g", name_server=cluster.name_server)
    pull = PullConsumer("g", name_server=cluster.name_server)
    with pytest.raises(ClientClosedError, match="not started"):
        await push.subscribe("T", "*", nothing)
    for client in (producer, push, pull):
        await client.start()
        await client.close()
        await client.close()
    with pytest.raises(ClientClosedError, match="closed"):
        await producer.send(Message("T", b"x"))
    with pytest.raises(ClientClosedError, match="closed"):
        await producer.send_oneway(Message("T", b"x"))
    with pytest.raises(ClientClosedError, match="closed"):
        await push.subscribe("T", "*", nothing)
    with pytest.raises(ClientClosedError, match="closed"):
        await pull.poll()
    assert [message async for message in pull] == []


async def test_a_client_that_was_never_started_can_be_closed(cluster: Any) -> None:
    for client in (Producer, PushConsumer, PullConsumer):
        await client("g", name_server=cluster.name_server).close()


def plain(message: Any) -> None:
    pass


@pytest.mark.parametrize("handler", [plain, None, "handler", 7, lambda m: None])
async def test_handlers_that_cannot_be_awaited(cluster: Any, handler: Any) -> None:
    async with PushConsumer("g", name_server=cluster.name_server) as consumer:
        with pytest.raises(InvalidHandlerError, match="async"):
            await consumer.subscribe("T", "*", handler)
    with pytest.raises(InvalidHandlerError, match="async"):
        TransactionProducer("g", check=handler, name_server=cluster.name_server)


@pytest.mark.parametrize("linger_ms", [None, 1])
@pytest.mark.parametrize("body", ["text", None, 7, b"", [b"x"]])
async def test_bodies_that_are_not_bytes(cluster: Any, body: Any, linger_ms: Any) -> None:
    async with Producer("pg", name_server=cluster.name_server, linger_ms=linger_ms) as producer:
        with pytest.raises(InvalidMessageError, match="body"):
            await producer.send(Message("T", body))
        with pytest.raises(InvalidMessageError, match="a Message is expected"):
            await producer.send(body)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"access_key": "a"}, "must be given together"),
        ({"request_timeout_ms": 0}, "above 0"),
        ({"compression": "gzip"}, "zlib, lz4, zstd"),
        ({"send_timeout_ms": 0}, "above 0"),
        ({"retry_count": -1}, "retry_count at least 0"),
        ({"batch_size_max": 1 << 30}, "the limit of a broker"),
        ({"colour": "red"}, "there is no setting 'colour'"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Producer("g", name_server="h:1", **options)
    with pytest.raises(InvalidMessageError, match="group"):
        Producer("a b", name_server="h:1")


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"strategy": "BEST"}])
def test_consumer_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        PushConsumer("g", name_server="h:1", **options)
    with pytest.raises(UsageError):
        PullConsumer("g", name_server="h:1", pull_count=0)


@pytest.mark.parametrize("linger_ms", [None, 1])
@pytest.mark.parametrize(
    ("message", "options", "words"),
    [
        (Message("T", b"x"), {"queue": 3}, "queue must be a MessageQueue, not 3"),
        (Message("T", b"x"), {"queue": MessageQueue("U", "b", 0)}, "topic 'T' cannot go to"),
        (Message("T", b"x", flag="x"), {}, "flag must be a whole number"),  # type: ignore[arg-type]
        (Message("T", b"x", flag=2**31), {}, "flag must be a whole number"),
        (Message("T", b"x", sharding_key=7), {}, "sharding_key must be text"),  # type: ignore[arg-type]
        (Message("T", b"x", tags="\ud800"), {}, "tags .* UTF-8"),
        (Message("T", b"x", sharding_key="\ud800"), {}, "sharding_key .* UTF-8"),
        (7, {"queue": MessageQueue("T", "b", 0)}, "a Message is expected, not int"),
    ],
)
async def test_a_send_that_makes_no_sense(
    cluster: Any, message: Any, options: dict[str, Any], words: str, linger_ms: Any
) -> None:
    async with Producer("pg", name_server=cluster.name_server, linger_ms=linger_ms) as producer:
        with pytest.raises(InvalidMessageError, match=words):
            await producer.send(message, **options)
        if isinstance(message, Message):
            with pytest.raises(InvalidMessageError, match=words):
                await producer.send_oneway(message, **options)
        with pytest.raises(InvalidMessageError):
            await producer.send_batch([message], **options)
        started = time.monotonic()
    assert time.monotonic() - started < 2, "close() waited for what was never sent"


async def test_reading_without_a_subscription_says_so(cluster: Any, unique: Unique) -> None:
    async with PullConsumer(unique("cg"), name_server=cluster.name_server) as consumer:
        with pytest.raises(UsageError, match="this consumer has no subscription"):
            await asyncio.wait_for(anext(consumer), 10)
        with pytest.raises(UsageError, match="this consumer has no subscription"):
            await consumer.poll()


async def test_a_batch_to_a_topic_that_is_no_text(cluster: Any) -> None:
    async with Producer("pg", name_server=cluster.name_server) as producer:
        with pytest.raises(InvalidMessageError, match="topic"):
            await producer.send_batch([Message(b"T", b"x")])  # type: ignore[arg-type]


async def test_a_request_that_nobody_answers(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    async with Producer("pg", name_server=cluster.name_server) as producer:
        with pytest.raises(RequestReplyTimeoutError, match="is a consumer running"):
            await producer.request(Message(topic, b"?"), timeout_ms=300)


async def test_a_message_larger_than_the_broker_takes(bare_cluster: Any) -> None:
    bare_cluster.broker(maxMessageSize=1000)
    async with Producer("pg", name_server=bare_cluster.name_server, compress_over=None) as producer:
        with pytest.raises(Exception, match="code 13") as caught:
            await producer.send(Message("T", b"x" * 2000))
        assert not caught.value.retriable  # type: ignore[attr-defined]


async def test_administration_in_words(cluster: Any) -> None:
    async with Admin(cluster.name_server) as admin:
        with pytest.raises(UsageError, match="at least one queue"):
            await topics.create_topic(admin, "T", read_queues=0)
        with pytest.raises(UsageError, match="perm 9"):
            await topics.create_topic(admin, "T", perm=9)
        with pytest.raises(UsageError, match="'Nowhere' is unknown; there is: DefaultCluster"):
            await topics.create_topic(admin, "T", cluster="Nowhere")
        with pytest.raises(TopicNotFoundError, match="no-such-topic"):
            await topics.topic_route(admin, "no-such-topic")


async def test_a_client_with_a_bug_says_so_instead_of_hanging(
    cluster: Any, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Any) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr("twinlog.client.consumer.consumer_core.ConsumerCore._rebalance", broken)
    async with PushConsumer(unique("g"), name_server=cluster.name_server) as push:
        with pytest.raises(ClientClosedError, match="a bug"):
            await asyncio.wait_for(push.run_forever(), 30)
    async with PullConsumer(unique("g"), name_server=cluster.name_server) as pull:
        pull._core.subscriptions["T"] = parse_subscription("T", "*")
        with pytest.raises(ClientClosedError, match="a bug"):
            await asyncio.wait_for(anext(pull), 30)
        with pytest.raises(ClientClosedError, match="a bug"):
            await pull.poll()


async def test_a_producer_of_another_event_loop(cluster: Any) -> None:
    async with Producer("pg", name_server=cluster.name_server) as producer:

        def elsewhere() -> str:
            async def send() -> None:
                await producer.send(Message("T", b"x"))

            try:
                asyncio.run(send())
            except UsageError as error:
                return str(error)
            return "sent"

        assert "another event loop" in await asyncio.to_thread(elsewhere)


class Garbage:
    """A server that answers every request with success and nonsense."""

    def __init__(self, body: bytes, ext: dict[str, str]) -> None:
        self.body, self.ext = body, ext

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = FrameSplitter()
        while data := await reader.read(65536):
            for frame in splitter.feed(data):
                request = decode_header(*frame)
                pieces = encode_response(0, request.opaque, header=self.ext, body=self.body)
                writer.write(b"".join(pieces))


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"brokerDatas":7}', b"{}"])
async def test_a_server_that_talks_nonsense(body: bytes) -> None:
    async with server(Garbage(body, {"offset": "x"})) as address:
        with pytest.raises(ClientError):
            await send_to(address, send_timeout_ms=300, retry_count=0)
        async with PullConsumer("g", name_server=address) as consumer:
            consumer._instance.brokers["b"] = BrokerData("C", "b", {0: address})
            for call in (calls.max_offset, calls.min_offset):
                with pytest.raises(UnreadableAnswerError, match="offset"):
                    await call(consumer._instance, MessageQueue("T", "b", 0))
            with pytest.raises(UnreadableAnswerError, match="pull"):
                await calls.pull(consumer._instance, MessageQueue("T", "b", 0), 0, group="g")
