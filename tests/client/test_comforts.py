"""What users of other clients expect: listeners, batches, values, positions, drain, run, health."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import twinlog.client
from support.client_support import eventually
from twinlog.admin import Admin, topics
from twinlog.client import (
    JSON,
    ConsumeFrom,
    ConsumerHealth,
    InvalidMessageError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    RebalanceListener,
    ReceivedMessage,
    SendOutcome,
    SendStatus,
    TlsSettings,
    TransactionProducer,
    TransactionState,
    UnreadableBodyError,
    UsageError,
    blocking,
    errors,
    options,
    run,
)
from twinlog.client.settings import ClientSettings

Unique = Callable[[str], str]
FIRST = ConsumeFrom.FIRST_OFFSET


async def filled_topic(cluster: Any, topic: str, count: int, queues: int = 4) -> None:
    async with Admin(cluster.name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=queues)).all_or_raise()
    async with Producer("pg", name_server=cluster.name_server) as producer:
        await producer.send_many(Message(topic, b"%d" % n) for n in range(count))


def push(cluster: Any, group: str, **settings: Any) -> PushConsumer:
    return PushConsumer(group, name_server=cluster.name_server, consume_from=FIRST, **settings)


class Log(RebalanceListener):
    """Remembers what it was told, and lets a test act in between."""

    def __init__(self) -> None:
        self.held: set[MessageQueue] = set()
        self.calls: list[tuple[str, int]] = []
        self.on_loss: Callable[[], Any] | None = None

    async def on_assigned(self, queues: Sequence[MessageQueue]) -> None:
        assert not self.held & set(queues)
        self.held |= set(queues)
        self.calls.append(("assigned", len(queues)))

    async def on_revoked(self, queues: Sequence[MessageQueue]) -> None:
        assert set(queues) <= self.held
        if self.on_loss is not None:
            await self.on_loss()
        self.held -= set(queues)
        self.calls.append(("revoked", len(queues)))


async def test_listeners_follow_the_assignment(cluster: Any, unique: Unique) -> None:
    topic, group = unique("T"), unique("g")
    await filled_topic(cluster, topic, 0)
    first, second = Log(), Log()

    async def ignore(message: ReceivedMessage) -> None: ...

    def of_topic(log: Log) -> set[MessageQueue]:
        return {queue for queue in log.held if queue.topic == topic}

    async with push(cluster, group, listener=first) as one:
        await one.subscribe(topic, "*", ignore)
        assert len(of_topic(first)) == 4
        async with push(cluster, group, listener=second) as two:
            await two.subscribe(topic, "*", ignore)
            await eventually(lambda: len(of_topic(first)) == 2, "two queues were given away")
            await eventually(lambda: len(of_topic(second)) == 2, "and taken")
            assert not of_topic(first) & of_topic(second)
        assert second.held == set()
        await eventually(lambda: len(of_topic(first)) == 4, "and came back")
    assert first.held == set()


async def test_what_is_committed_in_on_revoked_is_not_read_again(
    cluster: Any, unique: Unique
) -> None:
    """A consumer that commits by hand gets its last chance there."""
    topic, group = unique("T"), unique("g")
    await filled_topic(cluster, topic, 20, queues=1)
    log = Log()
    options_ = {"consume_from": FIRST, "auto_commit": False, "name_server": cluster.name_server}
    async with PullConsumer(group, listener=log, **options_) as consumer:
        await consumer.subscribe(topic)
        log.on_loss = consumer.commit
        taken = []
        while len(taken) < 12:
            taken += await consumer.poll(max_count=12 - len(taken))
    async with PullConsumer(group, **options_) as consumer:
        await consumer.subscribe(topic)
        message = await anext(consumer)
        assert int(message.body) == 12


async def test_an_error_of_a_listener_keeps_no_queue(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), []
    await filled_topic(cluster, topic, 5)

    class Broken(RebalanceListener):
        async def on_assigned(self, queues: Sequence[MessageQueue]) -> None:
            raise RuntimeError("broken on purpose")

        async def on_revoked(self, queues: Sequence[MessageQueue]) -> None:
            await asyncio.sleep(60)

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with push(cluster, unique("g"), listener=Broken(), revoke_timeout_ms=50) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: len(seen) == 5, "all messages")


@pytest.mark.parametrize("ordered", [False, True])
async def test_batches_hold_every_message_once(cluster: Any, unique: Unique, ordered: bool) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 200)
    batches: list[list[ReceivedMessage]] = []

    async def handler(messages: list[ReceivedMessage]) -> None:
        batches.append(messages)

    async with push(cluster, unique("g"), ordered=ordered, concurrency=2) as consumer:
        await consumer.subscribe_batch(topic, "*", handler, max_count=16)
        await eventually(lambda: sum(map(len, batches)) >= 200, "all messages")
        await consumer.commit()
        assert sum((await consumer.lag()).values()) == 0
    assert sorted(int(m.body) for batch in batches for m in batch) == list(range(200))
    assert max(map(len, batches)) > 1
    assert max(map(len, batches)) <= 16
    if ordered:
        for batch in batches:
            assert len({message.queue for message in batch}) == 1
            offsets = [message.queue_offset for message in batch]
            assert offsets == list(range(offsets[0], offsets[0] + len(batch)))


async def test_a_failed_batch_comes_again_whole(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 8, queues=1)
    attempts: dict[bytes, int] = {}

    async def handler(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            attempts[message.body] = attempts.get(message.body, 0) + 1
        if messages[0].reconsume_times == 0:
            raise RuntimeError("not this time")

    async with push(cluster, unique("g")) as consumer:
        await consumer.subscribe_batch(topic, "*", handler)
        await eventually(
            lambda: len(attempts) == 8 and all(n == 2 for n in attempts.values()), "each twice"
        )


async def test_values_cross_as_json_and_bad_ones_do_not_leave(cluster: Any, unique: Unique) -> None:
    topic, group = unique("T"), unique("g")
    values = [{"id": n, "text": "é\U0001f600", "list": [1, None, 2.5]} for n in range(3)]
    address = cluster.name_server
    async with Producer("pg", name_server=address, serializer=JSON) as producer:
        for value in values:
            await producer.send_value(topic, value, keys=[str(value["id"])])
        with pytest.raises(InvalidMessageError, match="JSON") as caught:
            await producer.send_value(topic, object())
        assert caught.value.outcome is SendOutcome.NOT_STORED
    async with PullConsumer(
        group, name_server=address, consume_from=FIRST, serializer=JSON
    ) as consumer:
        await consumer.subscribe(topic)
        got = [(await anext(consumer)).value for _ in values]
    assert sorted(got, key=lambda value: value["id"]) == values
    async with PullConsumer(unique("h"), name_server=address, consume_from=FIRST) as consumer:
        await consumer.subscribe(topic)
        message = await anext(consumer)
        assert message.value == message.body
    async with Producer("pg", name_server=address) as producer:
        receipt = await producer.send(Message(bad := unique("T"), b"no json"))
    async with PullConsumer(
        unique("i"), name_server=address, consume_from=FIRST, serializer=JSON
    ) as consumer:
        await consumer.subscribe(bad)
        message = await anext(consumer)
        with pytest.raises(UnreadableBodyError, match=receipt.message_id) as unread:
            _ = message.value
        assert isinstance(unread.value, ValueError)
        assert isinstance(unread.value.__cause__, ValueError)
        assert message.body == b"no json"


async def test_a_producer_without_serializer_says_so(cluster: Any, unique: Unique) -> None:
    async with Producer("pg", name_server=cluster.name_server) as producer:
        with pytest.raises(UsageError, match="serializer=JSON"):
            await producer.send_value(unique("T"), 1)


def readers(consumer: PushConsumer) -> list[Any]:
    return list(consumer._core.readers.values())


async def test_one_queue_is_paused_and_the_others_go_on(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), []
    await filled_topic(cluster, topic, 0, queues=2)

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message)

    async with (
        push(cluster, unique("g")) as consumer,
        Producer("pg", name_server=cluster.name_server) as producer,
    ):
        await consumer.subscribe(topic, "*", handler)
        still, moving = [q for q in consumer.assignment if q.topic == topic]
        # Both queues have a pull that the broker holds: it must not bring what comes after.
        await eventually(lambda: all(r.last_pull_ms for r in readers(consumer)), "pulls are held")
        consumer.pause(still)
        for _ in range(3):
            await producer.send(Message(topic, b"kept"), queue=still)
            await producer.send(Message(topic, b"flows"), queue=moving)
        await eventually(lambda: [m.body for m in seen].count(b"flows") == 3, "the other queue")
        assert b"kept" not in [m.body for m in seen]
        consumer.resume(still)
        await eventually(lambda: len(seen) == 6, "and the paused one after resume")
        with pytest.raises(UsageError, match="not assigned"):
            consumer.pause(MessageQueue(topic, "nowhere", 0))


async def test_a_push_consumer_goes_back_in_time(cluster: Any, unique: Unique) -> None:
    topic, seen = unique("T"), []
    await filled_topic(cluster, topic, 10)
    async with PullConsumer(unique("x"), name_server=cluster.name_server) as reader:
        queue = (await reader.queues(topic))[0]
        middle = (await reader.pull(queue, 1)).messages[0].store_timestamp

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with push(cluster, unique("g")) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: len(seen) == 10, "all of it")
        await consumer.seek_to_begin()
        await eventually(lambda: len(seen) == 20, "all of it again")
        queues = [q for q in consumer.assignment if q.topic == topic]
        await consumer.seek_to_time(middle, *queues)
        expected = sum([await consumer.offset_for_time(q, middle) for q in queues])
        await eventually(lambda: len(seen) == 20 + 10 - expected, "from the time on")


async def test_drain_leaves_nothing_undone(cluster: Any, unique: Unique) -> None:
    topic, done = unique("T"), []
    await filled_topic(cluster, topic, 50)
    started = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        started.set()
        await asyncio.sleep(0.005)
        done.append(message.queue_offset)

    group = unique("g")
    async with push(cluster, group, concurrency=3, pull_count=5) as consumer:
        await consumer.subscribe(topic, "*", handler)
        await started.wait()
        await consumer.drain()
        handled = len(done)
        health = consumer.health()
        assert (health.held_messages, health.running_handlers) == (0, 0)
        committed = [await consumer.committed(q) for q in consumer.assignment if q.topic == topic]
        assert sum(offset or 0 for offset in committed) == handled
        consumer.resume()
        await eventually(lambda: len(done) == 50, "the rest after resume")


async def test_a_drained_consumer_pulls_no_queue_that_it_gets_later(
    cluster: Any, unique: Unique
) -> None:
    """The other member leaves: its queues come here, and wait until `resume`."""
    topic, group = unique("T"), unique("g")
    await filled_topic(cluster, topic, 0)
    seen: list[ReceivedMessage] = []

    async def handler(message: ReceivedMessage) -> None:
        seen.append(message)

    async with push(cluster, group) as consumer, push(cluster, group) as other:
        await consumer.subscribe(topic, "*", handler)
        await other.subscribe(topic, "*", handler)
        await eventually(lambda: len(of_topic(consumer, topic)) == 2, "two queues each")
        await consumer.drain()
        await other.close()
        await eventually(lambda: len(of_topic(consumer, topic)) == 4, "it has all four")
        async with Producer("pg", name_server=cluster.name_server) as producer:
            await producer.send_many(Message(topic, b"late") for _ in range(8))
        async with push(cluster, unique("g")) as witness:
            arrived: list[ReceivedMessage] = []

            async def note(message: ReceivedMessage) -> None:
                arrived.append(message)

            await witness.subscribe(topic, "*", note)
            await eventually(lambda: len(arrived) == 8, "others get them")
        assert seen == []
        assert sum((await consumer.lag()).values()) == 8
        consumer.resume()
        await eventually(lambda: len(seen) == 8, "and it goes on")


def of_topic(consumer: PushConsumer, topic: str) -> list[MessageQueue]:
    return [queue for queue in consumer.assignment if queue.topic == topic]


async def test_a_batch_that_fails_is_handed_out_again(cluster: Any, unique: Unique) -> None:
    topic, group = unique("T"), unique("g")
    await filled_topic(cluster, topic, 6, queues=1)
    async with PullConsumer(
        group, name_server=cluster.name_server, consume_from=FIRST, auto_commit=False
    ) as consumer:
        await consumer.subscribe(topic)
        first: list[bytes] = []

        async def fails() -> None:
            async with consumer.batch(max_count=4) as messages:
                first.extend(message.body for message in messages)
                raise RuntimeError("database is away")

        with pytest.raises(RuntimeError, match="database"):
            await fails()
        queue = consumer.assignment[0]
        assert not await consumer.committed(queue)
        async with consumer.batch(max_count=len(first)) as messages:
            assert [message.body for message in messages] == first
        assert await consumer.committed(queue) == len(first)


async def test_lag_and_health_say_how_it_is(cluster: Any, unique: Unique) -> None:
    topic = unique("T")
    await filled_topic(cluster, topic, 12)
    release = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await release.wait()

    consumer = push(cluster, unique("g"))
    assert not consumer.health().is_ok
    assert "not started" in consumer.health().reason
    async with consumer:
        assert consumer.health().reason == "nothing is subscribed to"
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: consumer.health().held_messages == 12, "all pulled")
        assert sum((await consumer.lag()).values()) == 12
        health = consumer.health()
        assert (health.is_ok, health.reason) == (True, "")
        assert health.running_handlers == 12
        release.set()
        await eventually(lambda: consumer.health().held_messages == 0, "all done")
    assert "closed" in consumer.health().reason


RUNNER = """
import asyncio, sys
from twinlog.client import ConsumeFrom, PushConsumer, run

consumer = PushConsumer(sys.argv[3], name_server=sys.argv[1], concurrency=1, pull_count=4,
                        consume_from=ConsumeFrom.FIRST_OFFSET)

@consumer.on(sys.argv[2])
async def handle(message):
    print("begin", message.queue_offset, flush=True)
    await asyncio.sleep(0.05)
    print("end", message.queue_offset, flush=True)

run(consumer)
print("ended cleanly", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_ends_cleanly_on_a_signal(
    cluster: Any, unique: Unique, tmp_path: Path, number: signal.Signals
) -> None:
    """No handler is cut short, and what was done is committed: the next member begins behind it."""
    topic, group = unique("T"), unique("g")
    await filled_topic(cluster, topic, 100, queues=1)
    program = tmp_path / "runner.py"
    program.write_text(RUNNER)
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-W", "error", str(program), cluster.name_server, topic, group],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # As of a program that a shell started in the background, SIGINT may be ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = [await asyncio.to_thread(process.stdout.readline) for _ in range(3)]
        process.send_signal(number)
        rest, complaints = await asyncio.to_thread(process.communicate, None, 60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, complaints) == (0, "")
    lines += rest.splitlines()
    assert lines[-1].strip() == "ended cleanly"
    begun = [line.split()[1] for line in lines if line.startswith("begin")]
    ended = [line.split()[1] for line in lines if line.startswith("end ")]
    assert begun == ended
    assert len(ended) < 100
    async with PullConsumer(group, name_server=cluster.name_server) as consumer:
        queue = (await consumer.queues(topic))[0]
        assert await consumer.committed(queue) == len(ended)


async def test_handlers_are_registered_before_the_start_only(cluster: Any, unique: Unique) -> None:
    topic, got = unique("T"), []
    await filled_topic(cluster, topic, 4)
    consumer = push(cluster, unique("g"))

    @consumer.on(topic, batch_max=8)
    async def handler(messages: list[ReceivedMessage]) -> None:
        got.extend(messages)

    with pytest.raises(UsageError, match="not async"):
        consumer.on(topic)(lambda message: None)  # type: ignore[arg-type, return-value]
    async with consumer:
        await eventually(lambda: len(got) == 4, "all")
        with pytest.raises(UsageError, match="before the consumer starts"):
            consumer.on(topic)


def test_run_says_what_it_cannot_run() -> None:
    with pytest.raises(UsageError, match="at least one"):
        run()
    with pytest.raises(UsageError, match="call handlers"):
        run(object())  # type: ignore[arg-type]


def test_the_blocking_consumers_can_do_the_same(cluster: Any, unique: Unique) -> None:
    topic, got, all_here = unique("T"), [], threading.Event()
    asyncio.run(filled_topic(cluster, topic, 10))
    address = cluster.name_server

    def handler(messages: list[ReceivedMessage]) -> None:
        got.extend(messages)
        if len(got) >= 10:
            all_here.set()

    with blocking.PushConsumer(unique("g"), name_server=address, consume_from=FIRST) as consumer:
        consumer.subscribe_batch(topic, "*", handler)
        assert all_here.wait(60)
        consumer.drain()
        assert sum(consumer.lag().values()) == 0
        assert isinstance(consumer.health(), ConsumerHealth)
    with blocking.PullConsumer(
        unique("h"), name_server=address, consume_from=FIRST, auto_commit=False
    ) as puller:
        puller.subscribe(topic)
        first: list[tuple[MessageQueue, int]] = []

        def fails() -> None:
            with puller.batch(max_count=3) as messages:
                first.extend((message.queue, message.queue_offset) for message in messages)
                raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            fails()
        assert not any(puller.committed(queue) for queue, _ in first)
        with puller.batch(max_count=10) as messages:
            again = [(message.queue, message.queue_offset) for message in messages]
        queue = again[0][0]
        assert puller.committed(queue) == 1 + max(o for q, o in again if q == queue)


# Types, names, texts


CONSTRUCTORS = [
    (Producer, options.ProducerOptions, set()),
    (TransactionProducer, options.TransactionOptions, {"check"}),
    (PushConsumer, options.PushOptions, {"concurrency"}),
    (PullConsumer, options.PullOptions, set()),
]


@pytest.mark.parametrize(("client", "declared", "own"), CONSTRUCTORS)
def test_the_blocking_options_are_those_of_the_client(
    client: type, declared: type, own: set[str]
) -> None:
    signature = inspect.signature(client.__init__)
    taken = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for name in {"name_server", *own}:
        taken.pop(name)
    shared = set(get_type_hints(ClientSettings))
    said = {k: v for k, v in inspect.get_annotations(declared).items() if k not in shared}
    assert {name: str(kind).replace("'", "") for name, kind in taken.items()} == {
        name: kind.__forward_arg__ if hasattr(kind, "__forward_arg__") else str(kind)
        for name, kind in said.items()
    }


def test_every_error_is_a_name_of_the_package_with_its_outcome() -> None:
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.ClientError):
            assert getattr(twinlog.client, name) is found
            assert name in twinlog.client.__all__
            assert isinstance(found.outcome, SendOutcome)


@pytest.mark.parametrize(
    "member", [*SendStatus, *SendOutcome, *TransactionState, *ConsumeFrom], ids=repr
)
def test_enums_print_their_names(member: Any) -> None:
    assert str(member) == member.name
    assert f"{member}" == member.name


PUBLIC = [getattr(twinlog.client, name) for name in twinlog.client.__all__ if name != "blocking"]
BLOCKING = [getattr(blocking, name) for name in blocking.__all__]


@pytest.mark.parametrize(
    "found",
    [*PUBLIC, *BLOCKING],
    ids=lambda found: getattr(found, "__name__", type(found).__name__),
)
def test_every_public_member_has_a_docstring(found: Any) -> None:
    assert inspect.getdoc(found)
    if not inspect.isclass(found):
        return
    for name, member in inspect.getmembers(found):
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        module = member.fget.__module__ if isinstance(member, property) else member.__module__
        if module.startswith("twinlog"):
            assert inspect.getdoc(member), f"{found.__name__}.{name} has no docstring"


def test_tls_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    for wrong, text in [
        (TlsSettings(insecure=True, ca=missing), "insecure"),
        (TlsSettings(key=missing), "certificate"),
        (TlsSettings(ca=missing), "none.pem"),
        (TlsSettings(certificate=missing), "none.pem"),
    ]:
        with pytest.raises(UsageError, match=text):
            Producer("g", name_server="127.0.0.1:9876", tls=wrong)
