"""A controlled group of real processes under load: name server, controller, replicas, one producer.

The producer refreshes its route on an error, as ours does. What was acknowledged is kept with the
time of its answer, so that a test knows what must be in the log and how long nothing was answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from support.processes import wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogController,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.client import Message, Producer, PullConsumer
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.headers.controller import ElectMasterRequestHeader
from twinlog.runtime.clock import SystemClock

TOPIC = "Failover"


class Group:
    """Processes by replica, in the order of their start."""

    def __init__(self, directory: Path, replicas: int, **config: object) -> None:
        self._directory = directory
        self._config: dict[str, object] = {
            "enableControllerMode": "true",
            "brokerId": -1,
            "brokerRole": "SYNC_MASTER",
            "mappedFileSizeCommitLog": 1 << 24,
            "defaultTopicQueueNums": 4,
            **config,
        }
        for name in ("ns", "controller", *(f"b{n}" for n in range(replicas))):
            (directory / name).mkdir()
        self.namesrv: TwinlogNamesrv = start_twinlog_namesrv(directory / "ns")
        self.controller: TwinlogController = start_twinlog_controller(directory / "controller")
        self.brokers: list[TwinlogBroker] = []
        for number in range(replicas):
            self.brokers.append(self._start(number, wait=True))

    def _start(self, number: int, *, wait: bool) -> TwinlogBroker:
        return start_twinlog_broker(
            self._directory / f"b{number}",
            namesrv=self.namesrv.address,
            wait=wait,
            controllerAddr=self.controller.address,
            **self._config,
        )

    def restart(self, broker: TwinlogBroker) -> None:
        number = self.brokers.index(broker)
        self.brokers[number] = TwinlogBroker.start_as_it_is(broker, wait=False)

    def restart_controller(self) -> None:
        self.controller = self.controller.restart()

    def end(self) -> None:
        for process in (*self.brokers, self.controller, self.namesrv):
            process.kill()

    # What is decided, as the controller wrote it down

    def events(self) -> list[dict[str, Any]]:
        path = self._directory / "controller" / "controller" / "events"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line) for line in lines]

    @property
    def epoch(self) -> int:
        return max((e["epoch"] for e in self.events() if "epoch" in e), default=0)

    @property
    def members(self) -> set[int]:
        """The sync-state set, from what happened to it."""
        members: set[int] = set()
        for event in self.events():
            if "members" in event:
                members = set(event["members"])
            elif event["event"] == "admitted":
                members.add(event["replica"])
            elif event["event"] in ("removed", "drained", "forgotten"):
                members.discard(event["replica"])
        return members

    @property
    def master(self) -> TwinlogBroker:
        """The process that was elected last."""
        number = next(e["master"] for e in reversed(self.events()) if "master" in e)
        return next(b for b in self.brokers if self.id_of(b) == number)

    def id_of(self, broker: TwinlogBroker) -> int:
        text = (broker.directory / "store" / "brokerIdentity").read_text()
        return int(text.rpartition("#")[2])

    def wait_in_sync(self, count: int | None = None, *, deadline_s: float = 30) -> None:
        wanted = len(self.brokers) if count is None else count
        wait_until(
            lambda: len(self.members) == wanted, f"{wanted} replicas in sync", deadline_s=deadline_s
        )


@contextmanager
def running_group(directory: Path, replicas: int, **config: object) -> Iterator[Group]:
    group = Group(directory, replicas, **config)
    try:
        yield group
    finally:
        group.end()


async def switch(group: Group) -> None:
    """What `twinlog ha switch` asks the controller for."""
    present = group.id_of(group.master)
    target = min(n for n in group.members if n != present)
    header = ElectMasterRequestHeader(
        cluster_name="DefaultCluster", broker_name="broker-a", broker_id=target,
        designate_elect=True,
    )  # fmt: skip
    client = RemotingClient(clock=SystemClock())
    try:
        command = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        answer = await client.invoke(group.controller.address, command, 5_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    finally:
        await client.close()


class Load:
    """Sends at a steady rate; `acknowledged` are bodies that must never be lost."""

    def __init__(self, producer: Producer, per_second: int, padding: bytes = b"") -> None:
        self._producer = producer
        self._padding = padding
        self._pause_s = 1 / per_second
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self._is_stopping = False
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self.answered_s = time.monotonic()
        self.longest_gap_s = 0.0

    async def run(self) -> None:
        started, sent = time.monotonic(), 0
        while not self._is_stopping:
            due = int((time.monotonic() - started) / self._pause_s)
            for _ in range(due - sent):
                task = asyncio.create_task(self._one())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            sent = due
            await asyncio.sleep(self._pause_s)
        await asyncio.gather(*self._tasks)

    def stop(self) -> None:
        self._is_stopping = True

    def new_gap(self) -> None:
        """Measure from now on."""
        self.longest_gap_s = 0.0

    async def _one(self) -> None:
        self._number += 1
        body = b"%d" % self._number + self._padding
        try:
            receipt = await self._producer.send(Message(TOPIC, body))
        except Exception as error:
            self.failed.append(repr(error)[:300])
            return
        if not receipt.is_acknowledged:
            self.failed.append(str(receipt.status))
            return
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self.answered_s)
        self.answered_s = now
        self.acknowledged.append(body)

    async def goes_on(self, count: int = 50, *, within_s: float = 30) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + within_s
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, f"no sends any more: {self.failed[-1:]}"
            await asyncio.sleep(0.01)


async def first_send(producer: Producer, *, within_s: float = 30) -> None:
    """Until the group takes a message."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            await producer.send(Message(TOPIC, b"first"))
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def read_all(name_server: str, wanted: set[bytes], *, within_s: float = 60) -> list[bytes]:
    """Everything that a new consumer group sees, until it has `wanted` or time is over."""
    found: list[bytes] = []
    missing = set(wanted)
    async with PullConsumer("reader", name_server=name_server) as consumer:
        await consumer.subscribe(TOPIC)
        try:
            async with asyncio.timeout(within_s):
                async for message in consumer:
                    found.append(bytes(message.body))
                    missing.discard(found[-1])
                    if not missing:
                        break
        except TimeoutError:
            pass
    return found
