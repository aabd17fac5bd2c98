"""Our client against Apache's servers, 4.9.7 and 5.3, and side by side with Java's client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.cluster import BROKER_CONFIG, apache_of, unique
from support.apache import APACHE, APACHE_5, ApacheBroker, ApacheNamesrv
from support.client_support import Seen, eventually, eventually_async, read_all
from support.java_driver import Driver
from twinlog.admin import Admin, brokers, groups, ha_groups, messages, topics
from twinlog.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionProducer,
    TransactionState,
)

# A broker of 5.3 writes down after 3 s that a transaction ended: a check must not come before.
TRANSACTIONS = {"transactionTimeOut": 6000, "transactionCheckInterval": 3000}
JAVA_COMPRESSION = (None, "zlib", "lz4", "zstd")


@pytest.fixture(scope="module", params=[APACHE, APACHE_5])
def name_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """An Apache name server and broker of each make."""
    directory = tmp_path_factory.mktemp(request.param)
    with apache_of(request.param, directory, **TRANSACTIONS) as address:
        yield address


async def make_topic(name_server: str, topic: str, queues: int = 4) -> None:
    async with Admin(name_server) as admin:
        (await topics.create_topic(admin, topic, read_queues=queues)).all_or_raise()
        await eventually_async(lambda: _has_route(admin, topic), "the new topic's route")


async def _has_route(admin: Admin, topic: str) -> bool:
    try:
        return bool((await admin.route(topic)).queue_data)
    except ClientError:
        return False


@pytest.mark.parametrize("linger_ms", [None, 5])
async def test_receipts_are_true(name_server: str, linger_ms: float | None) -> None:
    topic = unique("receipts")
    async with Producer("pg", name_server=name_server, linger_ms=linger_ms) as producer:
        receipts = await producer.send_many(
            Message(topic, b"%d" % n, tags="a", keys=[f"k{n}"]) for n in range(300)
        )
    stored = {m.message_id: m for m in await read_all(name_server, topic, 300)}
    assert len(stored) == 300
    for number, receipt in enumerate(receipts):
        found = stored[receipt.message_id]
        assert (int(found.body), found.keys) == (number, [f"k{number}"])
        assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)
        assert found.offset_message_id == receipt.offset_message_id


async def test_push_retry_dead_letter_and_order(name_server: str) -> None:
    topic, group = unique("push"), unique("group")
    await make_topic(name_server, topic)
    attempts: list[tuple[bytes, int]] = []

    async def handler(message: ReceivedMessage) -> None:
        attempts.append((message.body, message.reconsume_times))
        if message.body == b"bad":
            raise RetryLater(1)

    async with (
        Producer("pg", name_server=name_server) as producer,
        PushConsumer(group, name_server=name_server, max_attempts=2) as consumer,
    ):
        await consumer.subscribe(topic, "a || b", handler)
        await producer.send(Message(topic, b"good", tags="a"))
        await producer.send(Message(topic, b"filtered", tags="c"))
        await producer.send(Message(topic, b"bad", tags="b"))
        await eventually(lambda: len(attempts) >= 4, "three attempts and one good one", 60)
        (letter,) = await read_all(name_server, f"%DLQ%{group}", 1)
    assert letter.body == b"bad"
    assert sorted(attempts) == [(b"bad", 0), (b"bad", 1), (b"bad", 2), (b"good", 0)]


async def test_ordered_consumption(name_server: str) -> None:
    topic, seen = unique("ordered"), Seen()
    await make_topic(name_server, topic)
    async with (
        Producer("pg", name_server=name_server) as producer,
        PushConsumer(unique("group"), name_server=name_server, ordered=True) as consumer,
    ):
        await consumer.subscribe(topic, "*", seen)
        await producer.send_many(
            Message(topic, b"%d" % n, sharding_key=f"k{n % 3}") for n in range(90)
        )
        await eventually(lambda: len(seen.messages) >= 90, "all")
    for key in range(3):
        mine = [int(body) for body in seen.bodies if int(body) % 3 == key]
        assert mine == sorted(mine)


async def test_transactions(name_server: str) -> None:
    topic, seen = unique("transactions"), Seen()
    await make_topic(name_server, topic)

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    async def undecided(message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.UNKNOWN

    async def undone(producer: TransactionProducer) -> None:
        async with producer.transaction(Message(topic, b"never")):
            raise ValueError("no")

    async with (
        TransactionProducer(unique("tg"), check=check, name_server=name_server) as producer,
        PushConsumer(unique("group"), name_server=name_server) as consumer,
    ):
        await consumer.subscribe(topic, "*", seen)
        async with producer.transaction(Message(topic, b"committed")):
            pass
        with pytest.raises(ValueError, match="no"):
            await undone(producer)
        await producer.send_in_transaction(Message(topic, b"checked"), undecided)
        await eventually(lambda: len(seen.messages) >= 2, "both committed ones", 60)
    assert sorted(seen.bodies) == [b"checked", b"committed"]


async def test_request_and_reply(name_server: str) -> None:
    topic = unique("requests")
    await make_topic(name_server, topic)
    async with (
        Producer("pg", name_server=name_server) as producer,
        PushConsumer(unique("group"), name_server=name_server) as consumer,
    ):

        async def answer(message: ReceivedMessage) -> None:
            await producer.reply(message, b"re: " + message.body)

        await consumer.subscribe(topic, "*", answer)
        reply = await producer.request(Message(topic, b"ping"), timeout_ms=20_000)
    assert reply.body == b"re: ping"


async def test_sql92(name_server: str) -> None:
    topic, seen = unique("sql"), Seen()
    await make_topic(name_server, topic)
    async with (
        Producer("pg", name_server=name_server) as producer,
        PushConsumer(unique("group"), name_server=name_server) as consumer,
    ):
        await consumer.subscribe(topic, "n BETWEEN 3 AND 5", seen, sql=True)
        for number in range(8):
            await producer.send(Message(topic, b"%d" % number, properties={"n": str(number)}))
        await eventually(lambda: len(seen.messages) >= 3, "three")
    assert sorted(seen.bodies) == [b"3", b"4", b"5"]


async def test_pulling_and_times(name_server: str) -> None:
    topic = unique("pull")
    await make_topic(name_server, topic, queues=1)
    async with Producer("pg", name_server=name_server) as producer:
        for number in range(6):
            await producer.send(Message(topic, b"%d" % number))
            await asyncio.sleep(0.01)
    stored = await read_all(name_server, topic, 6)
    times = [m.store_timestamp for m in stored]
    async with PullConsumer(unique("group"), name_server=name_server) as consumer:
        (queue,) = await consumer.queues(topic)
        for probe in (0, *times, times[2] + 1, times[-1] + 10_000):
            expected = next((i for i, t in enumerate(times) if t >= probe), 6)
            assert await consumer.offset_for_time(queue, probe) == expected
        await consumer.subscribe(topic)
        got = [m.body async for m in _first(consumer, 6)]
        assert got == [b"%d" % n for n in range(6)]


async def _first(consumer: PullConsumer, count: int) -> Any:
    async for message in consumer:
        yield message
        count -= 1
        if not count:
            return


async def test_delay_and_large_bodies(name_server: str) -> None:
    topic, seen = unique("delay"), Seen()
    await make_topic(name_server, topic)
    async with (
        Producer("pg", name_server=name_server) as producer,
        PushConsumer(unique("group"), name_server=name_server) as consumer,
    ):
        await consumer.subscribe(topic, "*", seen)
        await producer.send(Message(topic, b"later", delay_level=1))
        await producer.send(Message(topic, b"x" * 200_000))
        await eventually(lambda: len(seen.messages) >= 2, "both")
    assert sorted(len(body) for body in seen.bodies) == [5, 200_000]


async def test_administration(name_server: str) -> None:
    topic, group, seen = unique("admin"), unique("group"), Seen()
    await make_topic(name_server, topic)
    async with (
        Admin(name_server) as admin,
        Producer("pg", name_server=name_server) as producer,
        PushConsumer(group, name_server=name_server, commit_ms=100) as consumer,
    ):
        receipts = await producer.send_many(
            Message(topic, b"%d" % n, keys=[f"{topic}-{n}"]) for n in range(20)
        )
        await consumer.subscribe(topic, "*", seen)
        await eventually(lambda: len(seen.messages) >= 20, "all")

        async def is_committed() -> bool:
            progress = await groups.group_progress(admin, group, topic=topic)
            return len(progress.queues) == 4 and progress.lag == 0

        await eventually_async(is_committed, "committed offsets")
        assert topic in await topics.list_topics(admin)
        stats = (await topics.topic_stats(admin, topic)).all_or_raise()
        assert sum(s.count for entries in stats.values() for s in entries) == 20
        (member,) = (await groups.group_members(admin, group)).members
        assert member.client_id == consumer.client_id
        found = await messages.query_by_key(admin, topic, f"{topic}-7")
        assert [m.body for m in found] == [b"7"]
        by_id = await messages.query_by_unique_id(admin, topic, receipts[3].message_id)
        assert by_id.body == b"3"
        by_place = await messages.query_by_offset_id(admin, receipts[4].offset_message_id)
        assert by_place.body == b"4"
        assert messages.Track(group, "CONSUMED") in await messages.track(admin, by_id)

        async def tells_statistics() -> bool:
            return [row.error for row in await brokers.list_brokers(admin)] == [None]

        # Apache's fail with NoSuchElementException until they were taken for the first time.
        await eventually_async(tells_statistics, "the broker tells its statistics")
        (row,) = await brokers.list_brokers(admin)
        assert (await brokers.broker_config(admin, row.address))["brokerName"] == row.name
        assert [status.is_healthy for status in await ha_groups.ha_status(admin)] == [True]
        await groups.reset_offsets(admin, group, topic, timestamp_ms=0)
        await eventually(lambda: len(seen.messages) >= 40, "everything again", 60)


# Side by side with Java's client


@pytest.fixture
def apache(
    apache_namesrv: Callable[..., ApacheNamesrv], apache_broker: Callable[..., ApacheBroker]
) -> str:
    namesrv = apache_namesrv()
    apache_broker(namesrv=namesrv.address, **BROKER_CONFIG)
    return namesrv.address


async def test_java_and_python_consumers_share_the_queues_of_a_group(
    apache: str, java: Driver
) -> None:
    """Each computes the whole allocation for itself: together they must own each queue once."""
    topic, group, seen = unique("mixed"), unique("group"), Seen()
    await make_topic(apache, topic, queues=10)
    loop = asyncio.get_running_loop()

    def start() -> Any:
        return java.start("push", namesrv=apache, topic=topic, group=group)

    first = await loop.run_in_executor(None, start)
    async with (
        Producer("pg", name_server=apache) as producer,
        PushConsumer(group, name_server=apache) as consumer,
        PushConsumer(group, name_server=apache) as another,
    ):
        await consumer.subscribe(topic, "*", seen)
        await another.subscribe(topic, "*", seen)
        second = await loop.run_in_executor(None, start)

        def shares() -> list[int]:
            return [len([q for q in c.assignment if q.topic == topic]) for c in (consumer, another)]

        await eventually(lambda: set(shares()) <= {2, 3}, "a fourth for each of us", 90)
        await producer.send_many(Message(topic, b"m-%d:" % n) for n in range(200))

        def arrived() -> int:
            return len(seen.messages) + len(first.of("message")) + len(second.of("message"))

        await eventually(lambda: arrived() >= 200, "all messages, together", 90)
        ours = {int(b[2:-1]) for b in seen.bodies}
        theirs = {
            int(event["name"].rpartition("-")[2])
            for job in (first, second)
            for event in job.of("message")
        }
        assert ours | theirs == set(range(200))
        assert 60 <= len(ours) <= 140
        assert first.of("message")
        assert second.of("message")
        print(f"repeats {arrived() - 200}")
    for job in (first, second):
        await loop.run_in_executor(None, job.stop)


@pytest.mark.parametrize("compression", JAVA_COMPRESSION)
async def test_java_reads_what_python_sends(
    apache: str, java: Driver, compression: str | None
) -> None:
    topic = unique("topython")
    await make_topic(apache, topic)
    body = b"m-0:" + b"x" * 50_000
    async with Producer("pg", name_server=apache, compression=compression) as producer:
        receipt = await producer.send(Message(topic, body, tags="a", keys=["k"]))
        await producer.send_batch([Message(topic, b"m-1:"), Message(topic, b"m-2:")])
    loop = asyncio.get_running_loop()

    def consume() -> Any:
        job = java.start("push", namesrv=apache, topic=topic, group=unique("group"))
        events = job.wait_for("message", 3)
        job.stop()
        return events

    events = {event["name"]: event for event in await loop.run_in_executor(None, consume)}
    assert set(events) == {"m-0", "m-1", "m-2"}
    assert events["m-0"]["size"] == len(body)
    assert events["m-0"]["msgId"] == receipt.message_id
    assert events["m-0"]["tags"] == "a"


async def test_consumers_go_on_from_an_apache_slave(
    apache_namesrv: Callable[..., ApacheNamesrv],
    apache_broker: Callable[..., ApacheBroker],
    tmp_path: Path,
) -> None:
    namesrv = apache_namesrv()
    master = apache_broker(namesrv=namesrv.address, **BROKER_CONFIG)
    slave = apache_broker(namesrv=namesrv.address, brokerRole="SLAVE", brokerId=1, **BROKER_CONFIG)
    topic, seen = unique("slave"), Seen()
    gate = asyncio.Semaphore(20)

    async def handler(message: ReceivedMessage) -> None:
        await gate.acquire()
        await seen(message)

    await make_topic(namesrv.address, topic)
    async with (
        Producer("pg", name_server=namesrv.address) as producer,
        Admin(namesrv.address) as admin,
        PushConsumer(
            unique("group"), name_server=namesrv.address, queue_count_max=10,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ) as consumer,
    ):  # fmt: skip
        await producer.send_many(Message(topic, b"%d" % n) for n in range(200))

        async def slave_is_ready() -> bool:
            try:
                ends = [
                    (await brokers.broker_runtime(admin, a))["commitLogMaxOffset"]
                    for a in (master.address, slave.address)
                ]
                return ends[0] == ends[1] and topic in await topics.all_topic_configs(
                    admin, slave.address
                )
            except ClientError:
                return False

        await eventually_async(slave_is_ready, "a slave that has all", 60)
        await consumer.subscribe(topic, "*", handler)
        await eventually(lambda: len(seen.messages) >= 20, "the first messages")
        master.kill()
        for _ in range(400):
            gate.release()
        await eventually(lambda: len(set(seen.bodies)) >= 200, "the rest, from the slave", 30)


PLAIN_ACL = """
accounts:
  - accessKey: operator
    secretKey: operator-secret
    admin: true
  - accessKey: reader-only
    secretKey: reader-secret
    admin: false
    defaultTopicPerm: SUB
    defaultGroupPerm: SUB
"""


async def test_signed_requests_pass_apaches_access_control(
    apache_namesrv: Callable[..., ApacheNamesrv],
    apache_broker: Callable[..., ApacheBroker],
    tmp_path: Path,
) -> None:
    namesrv, home = apache_namesrv(), tmp_path / "guarded"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    apache_broker(directory=home, namesrv=namesrv.address, aclEnable=True, **BROKER_CONFIG)
    topic, seen = unique("guarded"), Seen()
    operator = {"access_key": "operator", "secret_key": "operator-secret"}
    reader = {"access_key": "reader-only", "secret_key": "reader-secret"}
    wrong = {"access_key": "operator", "secret_key": "not-the-secret"}
    async with Admin(namesrv.address, **operator) as admin:  # type: ignore[arg-type]
        (await topics.create_topic(admin, topic, read_queues=2)).all_or_raise()
    async with Producer("pg", name_server=namesrv.address, **operator) as producer:  # type: ignore[arg-type]
        await producer.send_many(Message(topic, b"%d" % n) for n in range(10))
    async with PushConsumer(unique("g"), name_server=namesrv.address, **reader) as consumer:  # type: ignore[arg-type]
        await consumer.subscribe(topic, "*", seen)
        await eventually(lambda: len(seen.messages) >= 10, "all, with a reader's account")
    for account in (reader, wrong, {}):
        async with Producer(
            "pg",
            name_server=namesrv.address,
            retry_count=0,
            **account,  # type: ignore[arg-type]
        ) as producer:
            with pytest.raises(ClientError, match=r"AclException|Permission|acl"):
                await producer.send(Message(topic, b"x"))


async def test_tls_with_apaches_own_certificate(apache: str) -> None:
    """Apache's servers are permissive by default, with a certificate of their own making."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    topic = unique("tls")
    async with Producer("pg", name_server=apache, tls=context) as producer:
        receipt = await producer.send(Message(topic, b"secret"))
        assert receipt.is_acknowledged
    async with Producer("pg", name_server=apache, tls=True, connect_timeout_ms=2000) as producer:
        with pytest.raises(ClientError, match="certificate verify failed"):
            await producer.send(Message(topic, b"x"))
