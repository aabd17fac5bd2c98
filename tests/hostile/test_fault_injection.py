"""Every background task, timer and job is made to raise once; each ends as its kind promises.

Vital: the process ends with the reason and exit code 1. Contained: it runs again, status shows it,
and the server serves. Which there are is seen when the servers run, not listed here.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support import fault_injector
from support.fault_injector import InjectedFault, Injector, events
from support.processes import Process, ProcessGroup, free_port, process_group, wait_until
from support.properties import write_properties
from support.raw_peer import RawPeer
from support.twinlog_servers import (
    ANY_HTTP_PORT,
    TwinlogBroker,
    TwinlogNamesrv,
    broker_values,
    namesrv_values,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog import client as client_package
from twinlog.client import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from twinlog.client.errors import ClientError
from twinlog.remoting import fastjson

RULES = """accounts:
- {accessKey: rocketmq2, secretKey: '12345678', admin: true}
globalWhiteRemoteAddresses: ['127.0.0.*']
"""
CODES = {"broker": 28, "namesrv": 10001, "controller": 10001}  # Show what was contained.
SMALL: dict[str, object] = {"mappedFileSizeCommitLog": 1 << 20, "maxHashSlotNum": 1000}


class Injected(Process):
    """A server whose background work raises."""

    def __init__(
        self, directory: Path, command: str, kind: str, names: str, **keys: object
    ) -> None:
        self.events_path = directory / f"events-{kind}"
        home = directory / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "plain_acl.yml").write_text(RULES)
        keys = {"rocketmqHome": home, "aclEnable": "true", **keys}
        if command == "broker":
            keys = broker_values(directory, str(keys.pop("namesrv", "")), {**SMALL, **keys})
        elif command == "controller":
            keys = {"listenPort": free_port(), "controllerStorePath": directory / "records",
                    **ANY_HTTP_PORT, **keys}  # fmt: skip
        else:
            keys = namesrv_values(directory, keys)
        self.port = int(str(keys["listenPort"]))
        self.address = f"127.0.0.1:{self.port}"
        self.ha_port = self.port + 1
        file = write_properties(directory / f"{command}.conf", keys)
        self._run(directory, kind, names, command, "-c", str(file))

    def _run(self, directory: Path, kind: str, names: str, *command: str) -> None:
        launcher = str(Path(fault_injector.__file__))
        argv = [sys.executable, launcher, str(self.events_path), kind, names, "--", *command]
        super().__init__(f"injected {command[0]}", argv, log=directory / "log", cwd=directory,
                         env={"PYTHONPATH": str(Path(__file__).parent.parent)})  # fmt: skip
        self.ready_text = f"twinlog {command[0]} ready"

    def spawned(self, kind: str) -> set[str]:
        return {name for event, of, name in events(self.events_path)
                if (event, of) == ("spawned", kind)}  # fmt: skip

    def missing(self) -> set[str]:
        """Contained ones that have not run again since they raised."""
        again = {name for event, _, name in events(self.events_path) if event == "again"}
        return self.spawned("contained") - again

    def failures(self) -> dict[str, str]:
        with RawPeer(self.port) as peer:
            code = CODES[self.name.rpartition(" ")[2]]
            answer = peer.ask(code)
        assert answer.code == 0
        table: dict[str, str] = fastjson.loads(answer.body)
        return table.get("table", table)  # type: ignore[return-value]

    def check_contained(self) -> None:
        wait_until(lambda: not self.is_alive or not self.missing(), "all run again")
        assert self.is_alive, self.tail()
        assert self.spawned("contained")
        shown = self.failures()
        for name in self.spawned("contained"):
            keys = {f"containedFailure task {name}", f"containedFailure timer {name}"}
            assert keys & set(shown), f"{name} is not in {sorted(shown)}"
        assert int(shown["containedFailures"]) >= len(self.spawned("contained"))
        assert "Traceback" not in self.output(), self.output()[-3000:]


class InjectedConsole(Injected):
    """The console: a command without a configuration file."""

    def __init__(self, directory: Path, kind: str, names: str, namesrv: str) -> None:
        directory.mkdir()
        self.events_path = directory / "events"
        self._run(
            directory, kind, names, "console", "--port", "0", "-n", namesrv, "--no-auth",
            "--audit", str(directory / "audit.log"),
        )  # fmt: skip


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    with process_group() as members:
        yield members


def test_name_server_contains_what_it_spawns(tmp_path: Path, group: ProcessGroup) -> None:
    server = Injected(tmp_path, "namesrv", "contained", "*")
    group.add(server)
    server.wait_for_text(server.ready_text)
    server.check_contained()
    assert {"scan", "acl-reload"} <= server.spawned("contained")
    assert not server.spawned("vital")
    assert server.stop() == 0


def test_controller_contains_what_it_spawns(tmp_path: Path, group: ProcessGroup) -> None:
    server = Injected(tmp_path, "controller", "contained", "*")
    group.add(server)
    server.wait_for_text(server.ready_text)
    wait_until(lambda: not server.is_alive or not server.missing(), "all run again")
    assert {"acl-reload", "http", "events"} <= server.spawned("contained")
    assert "contained failure of timer acl-reload" in server.output()
    with RawPeer(server.port) as peer:
        assert peer.ask(1005).code == 0
    assert "Traceback" not in server.output(), server.output()[-3000:]
    assert server.stop() == 0


async def exchange(namesrv: str, topic: str, count: int = 5) -> None:
    """A producer and a consumer as usual."""
    got: list[bytes] = []

    async def handle(message: object) -> None:
        got.append(message.body)  # type: ignore[attr-defined]

    async with asyncio.timeout(60), Producer("p", name_server=namesrv) as producer:
        sent = 0
        while sent < count:
            try:
                await producer.send(Message(topic, b"%d" % sent))
            except ClientError:
                await asyncio.sleep(0.1)  # A job of the broker that was made to fail: once each.
                continue
            sent += 1
        async with PushConsumer(
            "c", name_server=namesrv, consume_from=ConsumeFrom.FIRST_OFFSET
        ) as consumer:
            await consumer.subscribe(topic, "*", handle)
            while len(set(got)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def test_master_and_slave_contain_what_they_spawn(tmp_path: Path, group: ProcessGroup) -> None:
    namesrv = start_twinlog_namesrv(tmp_path / "n")
    group.add(namesrv)
    master = Injected(tmp_path / "m", "broker", "contained", "*", namesrv=namesrv.address)
    group.add(master)
    master.wait_for_text(master.ready_text)
    slave = Injected(
        tmp_path / "s", "broker", "contained", "*", namesrv=namesrv.address,
        brokerId=1, brokerRole="SLAVE",
    )  # fmt: skip
    group.add(slave)
    slave.wait_for_text(slave.ready_text)
    namesrv.wait_registered(master.address)
    asyncio.run(exchange(namesrv.address, "exchanged"))
    master.check_contained()
    slave.check_contained()
    names = master.spawned("contained")
    assert {"register", "cleaner", "save-offsets", "check-transactions", "acl-reload"} <= names
    assert {"ha-client", "slave-sync", "find-master"} <= slave.spawned("contained")
    jobs = {
        name for event, of, name in events(master.events_path) if (event, of) == ("raised", "job")
    }
    assert "dial" in jobs

    def is_replicated() -> bool:
        with RawPeer(slave.port) as peer, RawPeer(master.port) as other:
            ends = [p.ask(28).body for p in (peer, other)]
        table = [fastjson.loads(body)["table"]["commitLogMaxOffset"] for body in ends]
        return bool(table[0] == table[1])

    wait_until(is_replicated, "the slave has what the master has")
    assert slave.stop() == 0
    assert master.stop() == 0


@pytest.mark.parametrize(
    ("command", "known"),
    [("broker", {"flush", "housekeeping"}), ("controller", {"lead", "write-records", "tick"})],
)
def test_each_vital_task_ends_the_process_with_its_reason(
    tmp_path: Path, command: str, known: set[str]
) -> None:
    with process_group() as members:
        first = Injected(tmp_path / "names", command, "none", "*")
        members.add(first)
        first.wait_for_text(first.ready_text)
        names = first.spawned("vital")
    assert known <= names
    for name in sorted(names):
        server = Injected(tmp_path / name, command, "vital", name)
        try:
            code = server.popen.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            raise
        assert code == 1, server.tail()
        assert f"twinlog: stopped: {command}/{name}: InjectedFault" in server.output()


def test_the_console_contains_its_watcher_and_ends_with_its_port(
    tmp_path: Path, group: ProcessGroup
) -> None:
    namesrv = start_twinlog_namesrv(tmp_path / "n")
    group.add(namesrv)
    contained = InjectedConsole(tmp_path / "contained", "contained", "*", namesrv.address)
    group.add(contained)
    contained.wait_for_text(contained.ready_text)
    wait_until(lambda: not contained.missing(), "all run again")
    assert "replication" in contained.spawned("contained")
    assert "Traceback" not in contained.output()
    assert contained.stop() == 0
    vital = InjectedConsole(tmp_path / "vital", "vital", "http", namesrv.address)
    group.add(vital)
    assert vital.wait(deadline_s=60) == 1, "a console without its port serves nobody"
    assert "twinlog: stopped: console/http: InjectedFault" in vital.output()


# The client


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def __call__(self, event: str, kind: str, name: str) -> None:
        self.events.append((event, kind, name))

    def names(self, event: str, kind: str) -> set[str]:
        return {name for e, k, name in self.events if (e, k) == (event, kind)}


def start_servers(directory: Path, group: ProcessGroup) -> tuple[TwinlogNamesrv, TwinlogBroker]:
    namesrv = start_twinlog_namesrv(directory / "n")
    group.add(namesrv)
    broker = start_twinlog_broker(directory / "b", namesrv=namesrv.address, **SMALL)
    group.add(broker)
    namesrv.wait_registered(broker.address)
    return namesrv, broker


@pytest.fixture
def cluster(tmp_path: Path, group: ProcessGroup) -> str:
    return start_servers(tmp_path, group)[0].address


async def test_a_client_contains_what_it_spawns(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    Injector(told, "contained", "*").install(monkeypatch.setattr)
    await exchange(cluster, "clients")
    raised = told.names("raised", "contained")
    assert {"rebalance", "pull", "routes", "heartbeats"} <= raised, told.events
    assert raised == told.names("spawned", "contained")
    assert {"rebalance", "pull", "routes", "heartbeats"} <= told.names("again", "contained")


def names_in_the_source(kind: str) -> set[str]:
    """Of all that a client may spawn, so that none is left out."""
    files = Path(client_package.__file__).parent.rglob("*.py")
    spawn = re.compile(rf"tasks\.{kind}\(\s*\"([^\"]+)\"")
    return {name for file in files for name in spawn.findall(file.read_text())}


@asynccontextmanager
async def told_by_http(address: str) -> AsyncIterator[str]:
    """An HTTP address that names the name server, as Java's clients ask for it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + address.encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


async def test_no_task_of_a_client_is_left_out(
    tmp_path: Path, group: ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that only an ordered consumer has, or a broker that is away brings about."""
    namesrv, broker = start_servers(tmp_path, group)
    told, got = Told(), set[bytes]()
    Injector(told, "contained", "*").install(monkeypatch.setattr)

    async def handle(message: ReceivedMessage) -> None:
        got.add(message.body)

    async with (
        asyncio.timeout(120),
        told_by_http(namesrv.address) as url,
        Producer("p", name_server=url, send_timeout_ms=60_000, retry_count=1000) as producer,
        PushConsumer(
            "c", name_server=url, consume_from=ConsumeFrom.FIRST_OFFSET, ordered=True
        ) as consumer,
    ):
        async with Producer("i", name_server=url, idempotent=True) as once:
            await once.send(Message("t", b"once"))
        await producer.send(Message("t", b"before", sharding_key="k"))
        await consumer.subscribe("t", "*", handle)
        broker.kill()
        sending = asyncio.ensure_future(producer.send(Message("t", b"meanwhile")))
        while not {"probe", "send recovery"} <= told.names("again", "contained"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        group.add(await asyncio.to_thread(broker.restart))
        await sending
        while got != {b"once", b"before", b"meanwhile"}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert told.names("raised", "contained") == names_in_the_source("contained")
    assert told.names("again", "contained") == names_in_the_source("contained")


async def test_a_client_ends_by_its_vital_tasks(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    Injector(told, "vital", "worker 0").install(monkeypatch.setattr)

    async def handle(message: object) -> None:
        pass

    async with asyncio.timeout(60), PushConsumer("v", name_server=cluster) as consumer:
        while "worker 0" not in told.names("raised", "vital"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(ClientError, match="InjectedFault"):
            await consumer.subscribe("vital", "*", handle)


def test_the_injector_breaks_a_coroutine_at_its_first_wait() -> None:
    async def work() -> str:
        try:
            await asyncio.sleep(0)
        except InjectedFault:
            await asyncio.sleep(0)
            return "caught"
        return "not reached"

    async def run() -> str:
        return str(await fault_injector.broken(work()))

    assert asyncio.run(run()) == "caught"
