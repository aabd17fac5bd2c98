"""A whole pipeline of real processes, each of which can be killed: what `test_chaos` is about.

Producers send to two brokers, or to a group of two replicas that elect their master. One driver on
a standalone cluster runs two endless jobs: an archive to a Delta table in an object store, and a
mirror into another topic, exactly once. A supervisor starts the driver again when it ends, as a
machine's service manager does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable
from standalone import Standalone, descendants, kill_tree, runs, standalone

from support.failover_group import Group, switch
from support.object_store import ObjectStore, object_store, store_settings
from support.processes import Process, wait_until
from support.raw_log import raw_records
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.client import Message, SendStatus, blocking
from twinlog.client.errors import ClientError
from twinlog.message.properties import ORIGIN_PLACE
from twinlog.spark.run.faults import VARIABLE

TOPIC, COPY, TABLE = "orders", "copy", "s3://lake/messages"
CATCH_UP_S = 1800
POINT_S = 90
ELECTED_S = 180
DRIVER = """
import json, os, sys, threading, traceback
from twinlog.spark.jobs.archive import archive
from twinlog.spark.jobs.mirror import mirror
from twinlog.spark.run.session import local_session, use

given = json.loads(sys.argv[1])
use(conf=given["settings"])
spark = local_session("chaos", master=given["master"])
source, work = given["source"], given["work"]

def endless(job):
    try:
        job()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)

def archived():
    archive(given["table"], source, form="delta", checkpoint=work + "/archive", once=False,
            trigger="1 second", spark=spark)

def mirrored():
    mirror(source, source["nameServer"], work + "/mirror", to_topic=given["copy"],
           exactly_once=True, once=False, trigger="1 second", spark=spark)

for job in (archived, mirrored):
    threading.Thread(target=endless, args=(job,)).start()
"""

SMALL = "import small_engine; small_engine.main()"
Place = tuple[str, int, int]  # broker, queue, offset


class Driver(threading.Thread):
    """The supervisor: a driver that has ended is started again."""

    def __init__(
        self, directory: Path, program: str, argument: str, environment: dict[str, str]
    ) -> None:
        super().__init__(name="supervisor")
        self.directory, self.environment = directory, environment
        self.argv = [sys.executable, "-c", program, argument]
        self.is_ended = threading.Event()
        self.starts = 0
        self.process = self._launched()

    def _launched(self) -> Process:
        self.starts += 1
        log = self.directory / "driver.log"
        return Process("driver", self.argv, log=log, cwd=self.directory, env=self.environment)

    def run(self) -> None:
        while not self.is_ended.wait(0.2):
            if not self.process.is_alive:
                self.process = self._launched()

    def jvm(self) -> list[int]:
        return [pid for pid in descendants(self.process.pid) if runs(pid, "SparkSubmit")]

    def close(self) -> None:
        self.is_ended.set()
        self.join()
        kill_tree(self.process)


class Masters:
    """Two brokers, each with queues of its own."""

    def __init__(self, directory: Path) -> None:
        self.namesrv: TwinlogNamesrv = start_twinlog_namesrv(directory / "n")
        self.brokers: dict[str, TwinlogBroker] = {
            name: start_twinlog_broker(
                directory / name, namesrv=self.namesrv.address, brokerName=name,
                mappedFileSizeCommitLog=1 << 22,
            )
            for name in ("broker-a", "broker-b")
        }  # fmt: skip

    def make_topics(self) -> None:
        for broker in self.all():
            self.namesrv.wait_registered(broker.address)
        make_topics(self.namesrv.address)

    def all(self) -> list[TwinlogBroker]:
        return list(self.brokers.values())

    def kill_one(self, numbers: random.Random) -> None:
        numbers.choice(self.all()).kill()

    def start_again(self) -> None:
        """Start the brokers that were killed."""
        for name, broker in self.brokers.items():
            if not broker.is_alive:
                self.brokers[name] = broker.restart()

    def settle(self) -> None:
        """Nothing to wait for: a broker that runs is a master."""

    def stores(self) -> dict[str, Path]:
        return {name: broker.store for name, broker in self.brokers.items()}

    def end(self) -> None:
        for process in (*self.all(), self.namesrv):
            process.kill()


class Switching:
    """One group of two replicas; a controller decides who is the master."""

    def __init__(self, directory: Path) -> None:
        self.group = Group(directory, 2, mappedFileSizeCommitLog=1 << 22)

    @property
    def namesrv(self) -> TwinlogNamesrv:
        return self.group.namesrv

    @namesrv.setter
    def namesrv(self, namesrv: TwinlogNamesrv) -> None:
        self.group.namesrv = namesrv

    def make_topics(self) -> None:
        self.settle()
        make_topics(self.namesrv.address)

    def all(self) -> list[TwinlogBroker]:
        return self.group.brokers

    def kill_one(self, numbers: random.Random) -> None:
        master = self.group.master
        master.kill()
        wait_until(lambda: self.group.master is not master, "another master", deadline_s=ELECTED_S)

    def hand_over(self) -> None:
        self.settle()
        asyncio.run(switch(self.group))

    def start_again(self) -> None:
        for broker in list(self.group.brokers):
            if not broker.is_alive:
                self.group.restart(broker)

    def settle(self) -> None:
        """Wait until both replicas have everything: then either's log is the log."""
        wait_until(lambda: bool(self.group.events()), "a master", deadline_s=ELECTED_S)
        self.group.wait_in_sync(deadline_s=ELECTED_S)

    def stores(self) -> dict[str, Path]:
        return {"broker-a": self.group.master.store}

    def end(self) -> None:
        self.group.end()


def make_topics(name_server: str) -> None:
    with blocking.Producer("shop", name_server=name_server) as producer:
        producer.send(Message(TOPIC, b"first"))
        producer.send(Message(COPY, b"makes the topic"))


@dataclass
class World:
    """Everything, with the names of what can be killed."""

    directory: Path
    numbers: random.Random
    servers: Masters | Switching
    objects: ObjectStore
    driver: Driver
    cluster: Standalone | None  # None: the small engine
    sent: int = 0
    acknowledged: set[bytes] = field(default_factory=set)

    @property
    def control(self) -> Path:
        return self.directory / "control"

    @property
    def name_server(self) -> str:
        return self.servers.namesrv.address

    # Load

    def send(self, count: int) -> None:
        """Send rows; one that is not acknowledged is sent again, so it may be there twice."""
        with blocking.Producer("shop", name_server=self.name_server) as producer:
            for _ in range(count):
                self._send_one(producer, b"%d" % self.sent)
                self.sent += 1

    def _send_one(self, producer: blocking.Producer, body: bytes) -> None:
        def is_sent() -> bool:
            try:
                status = producer.send(Message(TOPIC, body, keys=[body.decode()])).status
            except ClientError:
                return False
            return status is SendStatus.SEND_OK

        wait_until(is_sent, f"row {body!r} is acknowledged", deadline_s=CATCH_UP_S)
        self.acknowledged.add(body)

    # Faults

    def stop_at(self, point: str) -> None:
        """Let the first process that comes to the point wait there."""
        for suffix in (".go", ".pid", ".taken"):
            Path(f"{self.control}{suffix}").unlink(missing_ok=True)
        self.control.write_text(f"{point} wait")

    def is_stopped(self) -> bool:
        """Whether a process came to the point in time; it may have nothing to do there."""
        with suppress(AssertionError):
            wait_until(Path(f"{self.control}.pid").exists, "the point", deadline_s=POINT_S)
            return True
        return False

    def go_on(self) -> None:
        self.control.unlink(missing_ok=True)
        Path(f"{self.control}.go").touch()

    def kill(self, victim: str) -> None:
        """SIGKILL of a part; its machine starts it again."""
        getattr(self, f"_kill_{victim}")()

    def _kill_driver(self) -> None:
        kill_tree(self.driver.process)

    def _kill_jvm(self) -> None:
        """The driver's own process alone: those that it started live on for a while."""
        kill_all(self.driver.jvm() if self.cluster else [self.driver.process.pid])

    def _kill_executor(self) -> None:
        if self.cluster is None:
            kill_all(descendants(self.driver.process.pid)[-1:])  # a task, if one runs
            return
        order = list(range(len(self.cluster.workers)))
        self.numbers.shuffle(order)
        kill_all(next((found for n in order if (found := self.cluster.executors(n))), []))

    def _kill_host(self) -> None:
        if self.cluster is None:
            kill_all(descendants(self.driver.process.pid))
            return
        number = self.numbers.randrange(len(self.cluster.workers))
        kill_tree(self.cluster.workers[number])
        self._pause()
        self.cluster.restart_worker(number)

    def _kill_brokers(self) -> None:
        for broker in self.servers.all():
            broker.kill()
        self._pause()
        self.servers.start_again()

    def _kill_master(self) -> None:
        """One broker; of a group the master, whose place the other takes."""
        self.servers.kill_one(self.numbers)
        self._pause()
        self.servers.start_again()

    def _kill_switch(self) -> None:
        """No kill: the group is told to change its master."""
        assert isinstance(self.servers, Switching)
        self.servers.hand_over()

    def _kill_namesrv(self) -> None:
        self.servers.namesrv.kill()
        self._pause()
        self.servers.namesrv = self.servers.namesrv.restart()

    def _kill_objects(self) -> None:
        self.objects.kill()
        self._pause()
        self.objects = self.objects.restart()

    def _pause(self) -> None:
        time.sleep(self.numbers.uniform(0, 8))  # how long an outage is, not a synchronisation

    # Counting

    def stored(self) -> Counter[Place]:
        return Counter(
            (name, record.queue_id, record.queue_offset)
            for name, store in self.servers.stores().items()
            for record in raw_records(store, TOPIC)
        )

    def archived(self) -> Counter[Place]:
        try:
            if not DeltaTable.is_deltatable(TABLE):
                return Counter()
            table = DeltaTable(TABLE).to_pyarrow_table(
                columns=["broker", "queue_id", "queue_offset"]
            )
        except OSError:
            return Counter()
        return Counter(tuple(row.values()) for row in table.to_pylist())  # type: ignore[misc]

    def copied(self) -> dict[str, list[Place]]:
        """Where the copies come from, in the order in which they lie."""
        return {
            name: [
                (origin[0], int(origin[1]), int(origin[2]))
                for record in raw_records(store, COPY)
                if ORIGIN_PLACE in record.property_map
                for origin in [record.property_map[ORIGIN_PLACE].split(",")]
            ]
            for name, store in self.servers.stores().items()
        }

    def check(self) -> int:
        """Wait until both jobs have everything, and count; the number of rows."""
        self.servers.settle()
        wanted = self.stored()
        assert set(wanted.values()) == {1}

        def behind() -> list[int]:
            copies = Counter(place for places in self.copied().values() for place in places)
            return [(wanted - found).total() for found in (self.archived(), copies)]

        try:
            wait_until(lambda: behind() == [0, 0], "all rows", deadline_s=CATCH_UP_S, interval_s=1)
        except AssertionError as error:
            log = (self.directory / "driver.log").read_text()[-6000:]
            raise AssertionError(f"{error}: archive and mirror lack {behind()}\n{log}") from None
        self._count(wanted)
        return wanted.total()

    def _count(self, wanted: Counter[Place]) -> None:
        assert self.archived() == wanted, "the table has rows twice, or others"
        copies = self.copied()
        found = Counter(place for places in copies.values() for place in places)
        assert found == wanted, "the copy has rows twice, or others"
        for places in copies.values():
            last: dict[tuple[str, int], int] = {}
            for broker, queue, offset in places:
                assert last.get((broker, queue), -1) < offset, "a queue is out of order"
                last[broker, queue] = offset
        stores = self.servers.stores().values()
        bodies = {record.body for store in stores for record in raw_records(store, TOPIC)}
        assert bodies >= self.acknowledged


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def running_world(directory: Path, seed: int, *, is_spark: bool, is_group: bool) -> Iterator[World]:
    """Start everything; the jobs begin at the first row."""
    spark = standalone(directory, workers=2) if is_spark else nullcontext()
    with object_store(directory, "lake") as objects, spark as cluster:
        servers = Switching(directory) if is_group else Masters(directory)
        address = servers.namesrv.address
        try:
            servers.make_topics()
            driver = _driver(directory, address, cluster, objects.port)
            world = World(directory, random.Random(seed), servers, objects, driver, cluster)
            driver.start()
            try:
                yield world
            finally:
                driver.close()
                world.objects.kill()
        finally:
            servers.end()


def _driver(directory: Path, namesrv: str, cluster: Standalone | None, port: int) -> Driver:
    faults = {VARIABLE: str(directory / "control"), "PYTHONPATH": str(Path(__file__).parent)}
    given: dict[str, object] = {
        "work": str(directory), "table": TABLE, "copy": COPY,
        "source": {
            "nameServer": namesrv, "subscribe": TOPIC, "maxOffsetsPerTrigger": "60",
            "maxRecordsPerPartition": "25", "pollTimeoutMs": "2000",
        },
    }  # fmt: skip
    if cluster is None:
        return Driver(directory, SMALL, json.dumps(given), faults)
    workers = {VARIABLE: faults[VARIABLE], **store_settings(port)}
    given["master"] = cluster.address
    given["settings"] = [
        *cluster.settings, "spark.executor.memory=512m", "spark.executor.cores=1",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        *(f"spark.executorEnv.{name}={value}" for name, value in workers.items()),
    ]  # fmt: skip
    return Driver(directory, DRIVER, json.dumps(given), faults)
