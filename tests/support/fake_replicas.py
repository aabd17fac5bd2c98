"""Replicas of a group that consist of heartbeats only, each with a connection of its own.

with FakeGroup("127.0.0.1:9878") as group:
    group.start(1); group.start(2)
    group.until_in_sync(1, 2)
    group.kill(1)

They do what a broker says to a controller: apply, register, heartbeat, propose a set, drain when
they are to hand over. They store nothing; what a broker keeps, they keep in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from support.processes import wait_until
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.runtime.clock import SystemClock

T = TypeVar("T")
BEAT_S = 0.1


async def ask(
    client: RemotingClient, address: str, code: int, body: Any = None, **fields: object
) -> Request:
    """A request with fields as text, as any peer could send it."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    command = RemotingCommand.request(code, body=data)
    command.ext_fields = {key: str(value) for key, value in fields.items()}
    return await client.invoke(address, command, 5_000)


class FakeReplica:
    """One replica. `controllers` are tried in turn until one leads."""

    def __init__(self, group: FakeGroup, broker_id: int) -> None:
        self.group = group
        self.broker_id = broker_id
        self.incarnation = uuid.uuid4().hex[:8]
        self.end = 0
        self.epoch = 0
        self.fields: dict[str, object] = {}
        self.record: dict[str, Any] = {}
        self.leases = 0
        self.drained: int | None = None
        self._client = RemotingClient(clock=SystemClock())
        self._at = 0

    @property
    def address(self) -> str:
        return self.group.addresses.get(self.broker_id, f"127.0.0.1:{20000 + self.broker_id}")

    @property
    def is_master(self) -> bool:
        record = self.record
        return (record.get("masterBrokerId"), record.get("masterIncarnation")) == (
            self.broker_id,
            self.incarnation,
        )

    async def ask(self, code: int, body: Any = None, **fields: object) -> Request:
        controllers = self.group.controllers
        address = controllers[self._at % len(controllers)]
        try:
            answer = await ask(self._client, address, code, body, **fields)
        except RemotingError:
            self._at += 1
            raise
        if answer.code == 2007:
            self._at += 1
        return answer

    async def apply(self) -> Request:
        return await self.ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID, clusterName=self.group.cluster,
            brokerName=self.group.name, appliedBrokerId=self.broker_id,
            registerCheckCode=f"{self.address};1", twinlogUid=f"uid-{self.broker_id}",
        )  # fmt: skip

    async def register(self) -> Request:
        return await self.ask(
            RequestCode.CONTROLLER_REGISTER_BROKER, clusterName=self.group.cluster,
            brokerName=self.group.name, brokerId=self.broker_id, brokerAddress=self.address,
            twinlogUid=f"uid-{self.broker_id}", twinlogPolicy=json.dumps(self.group.policy),
        )  # fmt: skip

    async def beat(self) -> None:
        fields: dict[str, object] = {
            "clusterName": self.group.cluster, "brokerName": self.group.name,
            "brokerId": self.broker_id, "brokerAddr": self.address, "epoch": self.epoch,
            "maxOffset": self.end, "confirmOffset": self.end,
            "twinlogIncarnation": self.incarnation, "twinlogKnownEpoch": self.epoch,
            **self.fields,
        }  # fmt: skip
        if self.drained is not None:
            fields["twinlogDrained"] = self.drained
        stored = self.record if self.record.get("masterEpoch") else None
        answer = await self.ask(RequestCode.BROKER_HEARTBEAT, stored, **fields)
        if answer.code == 2010:  # The controller does not know us (any more).
            await self.apply()
            await self.register()
            return
        if answer.code:
            return
        self._take(answer)
        self.group.on_answer()
        if self.is_master:
            await self._propose()

    def _take(self, answer: Request) -> None:
        record = json.loads(answer.body)
        if record["masterEpoch"] < self.epoch:
            return  # A broker never goes back (R4, R12).
        self.record = record
        self.epoch = record["masterEpoch"]
        self.leases += int(answer.ext().get("twinlogLeaseMs", 0)) > 0
        if record["masterEpoch"] and self.end == 0:
            self.end = 1000
        self.drained = self.end if "twinlogHandOver" in answer.ext() else None

    async def _propose(self) -> None:
        """All that are alive and no learners: fakes are always caught up."""
        learners = {n for n, r in _by_number(self.record["replicas"]).items() if r.get("learner")}
        alive = {n: r.incarnation for n, r in self.group.replicas.items() if n not in learners}
        if set(alive) == set(self.record["syncStateSet"]):
            return
        await self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            {
                "syncStateSet": sorted(alive),
                "syncStateSetEpoch": self.record["syncStateSetEpoch"],
            },
            brokerName=self.group.name, masterBrokerId=self.broker_id,
            masterEpoch=self.record["masterEpoch"], twinlogIncarnation=self.incarnation,
            twinlogIncarnations=";".join(f"{n}={token}" for n, token in alive.items()),
        )  # fmt: skip

    async def live(self) -> None:
        while True:
            with contextlib.suppress(RemotingError, OSError, TimeoutError):
                await self.beat()
            await asyncio.sleep(BEAT_S)

    async def close(self) -> None:
        await self._client.close()


def _by_number(table: dict[str, Any]) -> dict[int, Any]:
    return {int(number): value for number, value in table.items()}


class FakeGroup:
    """Some replicas, living in a thread of their own."""

    def __init__(self, *controllers: str, name: str = "broker-a", **policy: object) -> None:
        self.controllers = list(controllers)
        self.name = name
        self.cluster = "DefaultCluster"
        self.policy = {"brokerRole": "SYNC_MASTER", **policy}
        self.replicas: dict[int, FakeReplica] = {}
        self.addresses: dict[int, str] = {}
        """Where they are to be found; nobody answers there."""
        self.on_answer: Callable[[], None] = lambda: None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FakeGroup:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self.replicas):
            self.kill(number)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start(self, number: int, **fields: object) -> FakeReplica:
        async def begin() -> FakeReplica:
            replica = FakeReplica(self, number)
            replica.fields.update(fields)
            self.replicas[number] = replica
            self._tasks[number] = asyncio.ensure_future(replica.live())
            return replica

        return self.run(begin())

    def start_pair(self) -> None:
        """Replicas 1 and 2 with 1 as the first master: it is there before 2 comes."""
        self.start(1)
        self.until_in_sync(1)
        self.start(2)
        self.until_in_sync(1, 2)

    def kill(self, number: int) -> FakeReplica:
        """Its connection closes, as that of a process that ends."""

        async def end() -> FakeReplica:
            replica = self.replicas.pop(number)
            task = self._tasks.pop(number)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await replica.close()
            return replica

        return self.run(end())

    def until(self, is_so: Callable[[FakeReplica], bool], what: str) -> None:
        """Every living replica sees it so."""
        wait_until(lambda: all(is_so(r) for r in list(self.replicas.values())), what, deadline_s=30)

    def until_master(self, number: int) -> None:
        self.until(lambda r: r.record.get("masterBrokerId") == number, f"{number} is the master")

    def until_in_sync(self, *numbers: int) -> None:
        wanted = sorted(numbers)
        self.until(lambda r: sorted(r.record.get("syncStateSet", ())) == wanted, f"set {wanted}")

    @property
    def master(self) -> FakeReplica | None:
        return next((r for r in self.replicas.values() if r.is_master), None)
