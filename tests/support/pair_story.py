"""A pair, its producers and its consumers: who was promised what, and what became of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.client_support import eventually
from support.ha_files import LogFiles
from support.ha_load import ask, ha_status
from support.processes import ProcessGroup, process_group, wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin import Admin, topics
from twinlog.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

DEADLINE_S = 60.0
CONFIG: dict[str, object] = {
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "messageDelayLevel": " ".join(["1s", "2s", "3s"] * 6),
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,  # A check counts also while no producer is there to be asked.
    "registerNameServerPeriod": 10_000,
    "slaveReadEnable": "true",
}


class Pair:
    """A name server, a master and its slave, as processes."""

    def __init__(self, directory: Path, group: ProcessGroup, **config: object) -> None:
        self.group = group
        self.namesrv = start_twinlog_namesrv(directory / "namesrv")
        group.add(self.namesrv)
        config = {**CONFIG, **config}
        self.master = self._start(directory / "a", brokerRole="SYNC_MASTER", **config)
        self.slave = self._start(directory / "b", brokerRole="SLAVE", brokerId=1, **config)
        self.wait_in_sync()

    @property
    def name_server(self) -> str:
        return self.namesrv.address

    def _start(self, directory: Path, **config: object) -> TwinlogBroker:
        broker = start_twinlog_broker(directory, namesrv=self.name_server, **config)
        self.group.add(broker)
        self.namesrv.wait_for_text(f"address={broker.address}")
        return broker

    def restart(self, broker: TwinlogBroker, **changes: object) -> TwinlogBroker:
        again = broker.restart(**changes)
        self.group.add(again)
        return again

    def wait_in_sync(self) -> None:
        """In the twin dialect, and the slave has everything."""

        def is_in_sync() -> bool:
            replicas = ha_status(self.master.address)["haConnectionInfo"]
            return any(
                replica["twinlog"]["state"] == "TRANSFER"
                and replica["diff"] == 0
                and "/" in replica["addr"]
                for replica in replicas
            )

        wait_until(is_in_sync, "the slave is in sync")


@contextmanager
def running_pair(directory: Path, **config: object) -> Iterator[Pair]:
    with process_group() as group:
        yield Pair(directory, group, **config)


def table_of(broker: TwinlogBroker, code: int, member: str) -> dict[str, Any]:
    answer = ask(broker.address, code)
    assert answer.code == 0, answer.remark
    table: dict[str, Any] = fastjson.loads(answer.body)[member]
    return table


def topics_of(broker: TwinlogBroker) -> dict[str, Any]:
    return table_of(broker, RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable")


def groups_of(broker: TwinlogBroker) -> dict[str, Any]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    return table_of(broker, code, "subscriptionGroupTable")


def offsets_of(broker: TwinlogBroker) -> dict[str, Any]:
    return table_of(broker, RequestCode.GET_ALL_CONSUMER_OFFSET, "offsetTable")


class Ledger:
    """What was sent, what was promised, what each group was given. Bodies are unique."""

    def __init__(self) -> None:
        self.sent: defaultdict[str, set[bytes]] = defaultdict(set)
        self.acknowledged: defaultdict[str, set[bytes]] = defaultdict(set)
        self.committed: set[bytes] = set()
        self.rolled_back: set[bytes] = set()

    def answered(self, topic: str, body: bytes, receipt: SendReceipt) -> None:
        if receipt.status is SendStatus.SEND_OK:
            self.acknowledged[topic].add(body)


class Group:
    """One consumer of a group, and everything it was handed."""

    def __init__(self, name: str, topics: list[str], rng: random.Random, **options: Any) -> None:
        self.name = name
        self.topics = topics
        self.seen: list[ReceivedMessage] = []
        self._options = options
        self._rng = rng
        self.may_run = asyncio.Event()
        self.may_run.set()

    async def handle(self, message: ReceivedMessage) -> None:
        await self.may_run.wait()
        if self._rng.random() < 0.02:
            await asyncio.sleep(self._rng.random() * 0.02)
        self.seen.append(message)

    async def start(self, name_server: str) -> PushConsumer:
        consumer = PushConsumer(
            self.name,
            name_server=name_server,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            queue_count_max=20,  # So that a backlog is on the brokers and not in the client.
            **{"commit_ms": 500, **self._options},
        )
        await consumer.start()
        for topic in self.topics:
            await consumer.subscribe(topic, "*", self.handle)
        return consumer

    def bodies(self, topic: str | None = None) -> Counter[bytes]:
        return Counter(m.body for m in self.seen if topic is None or m.topic == topic)

    def places(self) -> Counter[tuple[Any, int]]:
        return Counter((message.queue, message.queue_offset) for message in self.seen)

    def repeats(self) -> list[tuple[Any, int]]:
        return [place for place, count in self.places().items() if count > 1]

    def assert_order(self) -> None:
        """Per queue what is new comes in the order of the log."""
        highest: dict[Any, int] = {}
        for message in self.seen:
            last = highest.get(message.queue, -1)
            assert message.queue_offset <= last + 1, f"{message.queue}: {last} and then later"
            highest[message.queue] = max(last, message.queue_offset)


async def seconds_to_first_read(name_server: str, topic: str, killed_s: float) -> float:
    """How long after the kill a consumer that pulls reads its first message again."""
    async with PullConsumer("probe", name_server=name_server) as consumer:
        while True:
            assert time.monotonic() < killed_s + DEADLINE_S, "no message from the slave"
            try:
                queue = (await consumer.queues(topic))[0]
                if (await consumer.pull(queue, 0)).messages:
                    return time.monotonic() - killed_s
            except ClientError:
                await asyncio.sleep(0.02)


class Traffic:
    """Producers of all kinds against one pair."""

    def __init__(self, pair: Pair, rng: random.Random, ledger: Ledger) -> None:
        self.pair = pair
        self.rng = rng
        self.ledger = ledger
        self._number = 0
        self.decisions: dict[bytes, TransactionState] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Traffic:
        name_server = self.pair.name_server
        self.producer = await self._stack.enter_async_context(
            Producer("story", name_server=name_server, retry_count=0, send_timeout_ms=10_000)
        )
        self.transactions = await self._stack.enter_async_context(
            TransactionProducer(
                "story-tx",
                check=self._check,
                name_server=name_server,
                send_timeout_ms=10_000,
                heartbeat_ms=1000,
                route_poll_ms=1000,
            )
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _body(self, topic: str) -> bytes:
        self._number += 1
        body = b"%s %06d " % (topic.encode(), self._number)
        body += b"." * self.rng.randrange(200)
        self.ledger.sent[topic].add(body)
        return body

    def launch(self, topic: str, **options: Any) -> asyncio.Future[SendReceipt]:
        """One send on its way; the ledger hears of its answer."""
        body = self._body(topic)
        future = self.producer.send_nowait(Message(topic, body, **options))

        def done(answer: asyncio.Future[SendReceipt]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                self.ledger.answered(topic, body, answer.result())

        future.add_done_callback(done)
        return future

    async def send(self, topic: str, count: int, **options: Any) -> None:
        futures = [self.launch(topic, **options) for _ in range(count)]
        await asyncio.gather(*futures, return_exceptions=True)

    async def transact(self, topic: str, state: TransactionState, *, is_told: bool) -> None:
        """A transaction whose outcome the broker is told, or has to ask for."""
        body = self._body(topic)
        self.decisions[body] = state
        told = state if is_told else TransactionState.UNKNOWN

        async def execute(message: Message, transaction_id: str) -> TransactionState:
            return told

        try:
            outcome = await self.transactions.send_in_transaction(Message(topic, body), execute)
        except ClientError:
            return
        if outcome.receipt.status is SendStatus.SEND_OK:
            known = state is TransactionState.COMMIT
            (self.ledger.committed if known else self.ledger.rolled_back).add(body)

    async def _check(self, message: ReceivedMessage) -> TransactionState:
        return self.decisions[message.body]


async def create_topics(name_server: str, names: list[str]) -> None:
    async with Admin(name_server) as admin:
        for name in names:
            (await topics.create_topic(admin, name, read_queues=4)).all_or_raise()


def stored_bodies(store: Path, topic: str | None = None) -> Counter[bytes]:
    log = LogFiles(store)
    return Counter(
        log.bodies[offset] for place, offset in log.places.items() if topic in (None, place[0])
    )


async def in_thread(function: Any, *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def until(condition: Any, what: str) -> None:
    await eventually(condition, what, DEADLINE_S)
