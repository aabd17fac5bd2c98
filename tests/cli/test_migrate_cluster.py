"""`twinlog migrate --target`: to a cluster of other brokers and name servers, while clients run."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import Result, twinlog
from support.pair_story import until
from support.processes import ProcessGroup, process_group
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin.messages import send_stored_to
from twinlog.cli.admin.migrate_cluster import alone
from twinlog.client import (
    ClientError,
    ConsumeFrom,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
)

pytestmark = pytest.mark.timeout(300)
ADMIN = {"accessKey": "administrator", "secretKey": "admin-secret", "admin": True}
APP = {
    "accessKey": "application", "secretKey": "app-secret", "admin": False,
    "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB", "topicPerms": ["orders=PUB|SUB"],
}  # fmt: skip
AS_APP: Any = {"access_key": "application", "secret_key": "app-secret", "route_poll_ms": 500}
AS_ADMIN: Any = {"access_key": "administrator", "secret_key": "admin-secret"}
QUEUES = 3


class Cluster:
    """A name server and brokers that enforce rules."""

    def __init__(self, group: ProcessGroup, directory: Path, name: str, rules: list[Any]) -> None:
        self.group, self.directory, self.name = group, directory, name
        self.home = directory / "home"
        (self.home / "conf").mkdir(parents=True)
        self.rules = self.home / "conf" / "plain_acl.yml"
        self.rules.write_text(yaml.safe_dump({"accounts": rules}))
        self.namesrv: TwinlogNamesrv = group.add(start_twinlog_namesrv(directory / "namesrv"))
        self.brokers: list[TwinlogBroker] = []

    def start(self, name: str, **config: object) -> TwinlogBroker:
        home = self.directory / name / "home"
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "plain_acl.yml").write_text(self.rules.read_text())
        broker = start_twinlog_broker(
            self.directory / name, namesrv=self.namesrv.address, brokerName=name,
            brokerClusterName=self.name, mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000,
            aclEnable="true", rocketmqHome=home, autoCreateTopicEnable="false", **config,
        )  # fmt: skip
        self.group.add(broker)
        self.namesrv.wait_registered(broker.address)
        self.brokers.append(broker)
        return broker


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINLOG_ACCESS_KEY", "administrator")
    monkeypatch.setenv("TWINLOG_SECRET_KEY", "admin-secret")


async def call(address: str, *words: object) -> Result:
    """In a thread: clients of a test go on meanwhile."""
    return await asyncio.to_thread(twinlog, "-n", address, *words)


class Clients:
    """A producer and a consumer that know only the old name server."""

    def __init__(self, name_server: str) -> None:
        self.name_server = name_server
        self.acknowledged: set[bytes] = set()
        self.seen: Counter[bytes] = Counter()
        self.brokers: set[str] = set()
        self.number = 0
        self.is_over = False

    async def handle(self, message: ReceivedMessage) -> None:
        self.seen[message.body] += 1

    async def produce(self, *, pause_s: float = 0.005) -> None:
        async with Producer(
            "app", name_server=self.name_server, send_timeout_ms=3000, **AS_APP
        ) as producer:
            while not self.is_over:
                self.number += 1
                body = b"%06d" % self.number
                try:
                    receipt = await producer.send(Message("orders", body, tags="a", keys=["k"]))
                except ClientError:
                    await asyncio.sleep(0.1)
                    continue
                if receipt.status is SendStatus.SEND_OK:
                    self.acknowledged.add(body)
                    self.brokers.add(receipt.queue.broker_name)
                await asyncio.sleep(pause_s)

    async def consumer(self) -> PushConsumer:
        consumer = PushConsumer(
            "billing", name_server=self.name_server, consume_from=ConsumeFrom.FIRST_OFFSET,
            commit_ms=300, **AS_APP,
        )  # fmt: skip
        await consumer.start()
        await consumer.subscribe("orders", "*", self.handle)
        return consumer


async def restart_when_stopped(group: ProcessGroup, broker: TwinlogBroker) -> None:
    """What runs brokers on a machine does: start it again, with its file as it is."""
    await asyncio.to_thread(broker.popen.wait)
    group.add(TwinlogBroker.start_as_it_is(broker, wait=False))


async def test_clients_move_to_another_cluster_and_nothing_is_lost(tmp_path: Path) -> None:
    with process_group() as group:
        old = Cluster(group, tmp_path / "old", "OldCluster", [ADMIN, APP])
        new = Cluster(group, tmp_path / "new", "NewCluster", [ADMIN])
        for name in ("old-a", "old-b"):
            old.start(name)
        new.start("new-a")
        address, target = old.namesrv.address, new.namesrv.address

        async def migrate(verb: str, *options: object) -> Result:
            return await call(address, "migrate", verb, "--target", target, *options)

        (await call(address, "topic", "create", "orders", "--queues", QUEUES)).ok()
        (await call(address, "group", "create", "billing")).ok()
        clients = Clients(address)
        producing = asyncio.create_task(clients.produce())
        consumer = await clients.consumer()
        await until(lambda: len(clients.acknowledged) > 200, "some traffic")

        planned = (await migrate("plan", "-o", "json")).ok().json
        assert {row["topic"]: row["queues"] for row in planned["topics"]}["orders"] == 2 * QUEUES
        refused = await migrate("run")
        assert (refused.code, "--rules" in refused.err) == (2, True)
        (await migrate("run", "--rules", old.rules)).ok()
        (await migrate("run", "--rules", old.rules)).ok()  # Goes on where it was.
        rehearsed = (await migrate("cutover", "--rehearse", "-o", "json")).ok().json
        assert "rehearsed" in rehearsed["sentence"]
        at = len(clients.acknowledged)
        await until(lambda: len(clients.acknowledged) > at + 50, "sends are accepted again")

        restarting = asyncio.create_task(restart_when_stopped(group, new.brokers[0]))
        edit = f"sed -i 's/^namesrvAddr=.*/namesrvAddr={target};{{namesrv}}/'"
        conf, pid = new.brokers[0].directory / "broker.conf", new.brokers[0].pid
        register = f"{edit} {conf} && kill {pid}"
        options = ("--register", register, "--settle", "1s", "--yes")
        failed = await migrate("cutover", "--stop", "exit 3", *options)
        assert (failed.code, "ended with 3" in failed.err) == (1, True)
        at = len(clients.acknowledged)
        await until(lambda: len(clients.acknowledged) > at + 50, "everything is open again")
        assert clients.brokers == {"old-a", "old-b"}

        pids = tmp_path / "pids"
        pids.write_text("".join(f"{b.directory.name} {b.pid}\n" for b in old.brokers))
        stop = f"kill $(sed -n 's/^{{name}} //p' {pids})"
        moved = await migrate("cutover", "--stop", stop, *options, "-o", "json")
        await restarting
        assert "moved to" in moved.ok().json["sentence"]
        await until(lambda: "new-a" in clients.brokers, "the producer has found the new broker")
        at = len(clients.acknowledged)
        await until(lambda: len(clients.acknowledged) > at + 50, "the producer goes on")
        clients.is_over = True
        await producing
        await until(lambda: clients.acknowledged <= set(clients.seen), "the consumer has it all")
        await consumer.close()
        # Read twice is only what was given out and not yet committed.
        assert sum(count - 1 for count in clients.seen.values()) <= 32 * 2 * QUEUES
        for broker in old.brokers:
            assert not broker.is_alive


async def send_twice(*arguments: Any, **more: Any) -> Any:
    """What two migrations at the same time do: each sends the next message."""
    await send_stored_to(*arguments, **more)
    return await send_stored_to(*arguments, **more)


async def test_copies_are_compared_and_a_foreign_message_among_them_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_group() as group:
        old = Cluster(group, tmp_path / "old", "OldCluster", [ADMIN])
        new = Cluster(group, tmp_path / "new", "NewCluster", [ADMIN])
        old.start("old-a")
        new.start("new-a")
        new.start("new-b")
        address, target = old.namesrv.address, new.namesrv.address

        async def migrate(verb: str, *options: object) -> Result:
            return await call(address, "migrate", verb, "--target", target, *options)

        (await call(address, "topic", "create", "t", "--queues", 2)).ok()
        async with Producer("p", name_server=address, **AS_ADMIN) as producer:
            bodies = [b"x" * 5000, *(b"%d" % n for n in range(60))]
            for body in bodies:
                message = Message("t", body, tags="a", keys=["k", "l"], properties={"own": "1"})
                await producer.send(message)
        before = await migrate("verify")
        assert (before.code, "is missing" in before.out) == (1, True)
        (await migrate("run", "--rules", old.rules)).ok()
        checked = (await migrate("verify", "--deep", "-o", "json")).ok().json["checks"][0]
        assert (checked["messages"], checked["findings"]) == (len(bodies), 0)
        async with Producer("p", name_server=address, **AS_ADMIN) as producer:
            for number in range(60):
                await producer.send(Message("t", b"more %d" % number, sharding_key="one"))
        with monkeypatch.context() as patch:
            patch.setattr("twinlog.admin.copying.send_stored_to", send_twice)
            second = await migrate("run", "--rules", old.rules)
        assert (second.code, "somebody else writes to queue" in second.err) == (1, True)
        with alone(target):
            second = await migrate("run", "--rules", old.rules)
        assert (second.code, "another `twinlog migrate` copies" in second.err) == (1, True)
        (await migrate("run", "--rules", old.rules)).ok()
        found = await migrate("verify", "--deep", "-o", "json")
        texts = [finding["finding"] for finding in found.json["findings"]]
        assert found.code == 1
        assert len(texts) == 1
        assert "has two copies" in texts[0]
        async with Producer("p", name_server=target, **AS_ADMIN) as producer:
            for _ in range(4):
                await producer.send(Message("t", b"foreign"))
        for verb in ("plan", "run", "cutover"):
            options = ("--rules", old.rules) if verb == "run" else ()
            more = ("--rehearse",) if verb == "cutover" else ()
            refused = await migrate(verb, *options, *more)
            assert (refused.code, "not a copy" in refused.err) == (1, True)
        renamed = new.start("old-a")
        clash = await migrate("plan")
        assert (clash.code, "in both clusters" in clash.out) == (10, True)
        assert renamed.is_alive
