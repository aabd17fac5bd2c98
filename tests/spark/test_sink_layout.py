"""Rows whose queue is known again, while brokers of their topic are away."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.processes import ProcessGroup, process_group, wait_until
from support.raw_log import raw_bodies
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.admin.client import Admin
from twinlog.admin.topics import create_topic
from twinlog.spark.errors import PipelineError, UnreachableError
from twinlog.spark.run.faults import VARIABLE
from twinlog.spark.write.sending import Task, send_rows
from twinlog.spark.write.sink import SinkOptions

pytestmark = pytest.mark.timeout(240)
COUNT = 40


@dataclass
class Cluster:
    group: ProcessGroup
    namesrv: TwinlogNamesrv
    brokers: dict[str, TwinlogBroker]

    def start(self, directory: Path, name: str, **config: Any) -> None:
        where = directory / f"{name}-{config.get('brokerId', 0)}"
        broker = start_twinlog_broker(
            where, namesrv=self.namesrv.address, brokerName=name, **config
        )
        self.group.add(broker)
        self.namesrv.wait_for_text(f"address={broker.address}")
        self.brokers.setdefault(name, broker)

    def make_topic(self, queues: int = 2) -> None:
        async def make() -> None:
            async with Admin(self.namesrv.address) as admin:
                made = await create_topic(admin, "T", read_queues=queues)
                assert made.is_complete

        asyncio.run(make())

    def masters(self) -> set[str]:
        async def ask() -> set[str]:
            async with Admin(self.namesrv.address) as admin:
                route = await admin.route("T")
                return {queue.broker_name for queue in route.write_queues("T")}

        return asyncio.run(ask())

    def lose(self, name: str) -> None:
        self.brokers[name].kill()
        wait_until(lambda: name not in self.masters(), f"{name} has no master in the route")

    def send(self, batch: int, *, queue_id: int | None = None, **more: str) -> int:
        rows = [{"body": b"%d" % n} for n in range(COUNT)]
        if queue_id is not None:
            rows = [{**row, "queue_id": queue_id} for row in rows]
        given = {"nameServer": self.namesrv.address, "topic": "T", "sendRetries": "0", **more}
        columns = {name: pa.array([row[name] for row in rows]) for name in rows[0]}
        if queue_id is not None:
            columns["queue_id"] = columns["queue_id"].cast(pa.int32())
        return send_rows(
            SinkOptions.parse(given),
            iter([pa.RecordBatch.from_pydict(columns)]),
            Task(0, "query", batch),
        )

    def bodies(self, name: str) -> Counter[bytes]:
        return Counter(raw_bodies(self.brokers[name].store, "T"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "n")
        group.add(namesrv)
        yield Cluster(group, namesrv, {})


def test_rows_whose_master_is_lost_are_not_taken_for_illegal(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start(tmp_path, "broker-a")
    cluster.start(tmp_path, "broker-a", brokerId=1, brokerRole="SLAVE")
    cluster.make_topic()
    cluster.lose("broker-a")
    dead = tmp_path / "dead"
    with pytest.raises(PipelineError, match=r"NOT_ACKNOWLEDGED|BROKER_UNREACHABLE"):
        cluster.send(0, queue_id=1, deadLetterPath=str(dead), sendTimeoutMs="2000")
    assert not dead.exists()


def test_rows_keep_their_broker_while_it_has_no_master(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start(tmp_path, "broker-a")
    cluster.start(tmp_path, "broker-a", brokerId=1, brokerRole="SLAVE")
    cluster.start(tmp_path, "broker-b")
    cluster.make_topic()
    assert cluster.send(0, queue_id=1) == COUNT
    assert cluster.bodies("broker-a").total() == COUNT
    cluster.lose("broker-a")
    with pytest.raises(PipelineError, match=r"NOT_ACKNOWLEDGED|BROKER_UNREACHABLE"):
        cluster.send(1, queue_id=1, sendTimeoutMs="2000")
    assert not cluster.bodies("broker-b")


@pytest.mark.parametrize("queue_id", [None, 1])
def test_a_task_that_is_run_again_waits_for_every_broker(
    cluster: Cluster, tmp_path: Path, queue_id: int | None
) -> None:
    """Else its rows would go to the queues of the others, which do not know their numbers."""
    for name in ("broker-a", "broker-b"):
        cluster.start(tmp_path, name)
    cluster.make_topic()
    more = {"exactlyOnce": "true"}
    assert cluster.send(7, queue_id=queue_id, **more) == COUNT
    cluster.lose("broker-a")
    with pytest.raises(UnreachableError, match=r"BROKER_UNREACHABLE.*broker-a is away"):
        cluster.send(7, queue_id=queue_id, sendTimeoutMs="2000", **more)
    back = threading.Timer(2, lambda: cluster.group.add(cluster.brokers["broker-a"].restart()))
    back.start()
    assert cluster.send(7, queue_id=queue_id, **more) == COUNT
    back.join()
    found = cluster.bodies("broker-a") + cluster.bodies("broker-b")
    assert found == Counter(b"%d" % number for number in range(COUNT))


@pytest.mark.parametrize("queue_id", [None, 1])
def test_a_topic_that_several_brokers_would_create_must_be_there_before(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue_id: int | None
) -> None:
    """The first row creates it on one broker; the next try would spread rows over its queues."""
    for name in ("broker-a", "broker-b"):
        cluster.start(tmp_path, name)
    control = tmp_path / "control"
    monkeypatch.setenv(VARIABLE, str(control))
    control.write_text("rows-sending raise")
    with pytest.raises(PipelineError, match=r"TOPIC_NOT_FOUND.*twinlog topic create T"):
        cluster.send(0, queue_id=queue_id, exactlyOnce="true")
    cluster.make_topic()
    with pytest.raises(RuntimeError, match="injected"):
        cluster.send(0, queue_id=queue_id, exactlyOnce="true")
    assert cluster.send(0, queue_id=queue_id, exactlyOnce="true") == COUNT
    stored = cluster.bodies("broker-a") + cluster.bodies("broker-b")
    assert stored == Counter(b"%d" % n for n in range(COUNT))


def test_a_topic_that_one_broker_creates_has_the_same_queues_for_the_next_try(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.start(tmp_path, "broker-a")
    control = tmp_path / "control"
    monkeypatch.setenv(VARIABLE, str(control))
    control.write_text("rows-sending raise")
    with pytest.raises(RuntimeError, match="injected"):
        cluster.send(0, exactlyOnce="true")
    assert cluster.send(0, exactlyOnce="true") == COUNT
    assert cluster.bodies("broker-a") == Counter(b"%d" % n for n in range(COUNT))
