"""`twinlog migrate` with a real Apache broker at the other end, under Java clients that never stop.

The producer sends one message after the other and reports each acknowledgement, the consumer
reports each message: what was acknowledged must be consumed, whoever the master was.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interop.cluster import START_BROKER, START_NAMESRV, names, unique
from support.apache import start_apache_broker, start_apache_namesrv
from support.command_line import Result, process
from support.java_driver import Driver, Job
from support.processes import Process, free_broker_port, process_group, wait_until
from support.twinlog_servers import TWINLOG, start_twinlog_broker

SEGMENT = 1 << 20
CONFIG: dict[str, Any] = {
    "mappedFileSizeCommitLog": SEGMENT,
    "mappedFileSizeConsumeQueue": 20 * 5000,
    "registerNameServerPeriod": 10000,
    "flushConsumerOffsetInterval": 500,
    "waitTimeMillsInSendQueue": 5000,
    "osPageCacheBusyTimeOutMills": 10000,
}
HISTORY = 3000


@contextmanager
def traffic(java: Driver, namesrv: str, topic: str, group: str) -> Iterator[tuple[Job, Job]]:
    client = {"namesrv": namesrv, "topic": topic, "routeMs": 2000}
    consumer = java.start("push", **client, group=group)
    producer = java.start("probe-send", **client, prefix="live", retries=0)
    producer.wait_for("sent", 20)
    yield producer, consumer


def migrate(namesrv: str, verb: str, *options: object) -> Result:
    return process("migrate", verb, "-n", namesrv, *options)


def stop_and_judge(producer: Job, consumer: Job, first: int) -> dict[str, Any]:
    """Nothing acknowledged is lost; what came twice, and how long sends failed."""
    before = len(producer.of("sent"))
    producer.wait_for("sent", before + 20)
    events = producer.stop()
    acknowledged = {f"live-{event['n']}" for event in events["sent"]}
    assert {event["status"] for event in events["sent"]} == {"SEND_OK"}
    wanted = acknowledged | {f"old-{n}" for n in range(first)}
    consumer.wait(lambda job: wanted <= set(names(job.of("message"))), "everything", deadline_s=120)
    counts = Counter(names(consumer.stop()["message"]))
    states = [(event["is"], event["seen"]) for event in events["state"]]
    worked = [seen for state, seen in states if state == "SEND_OK"]
    # A send that was under way when the producer was stopped is no gap.
    failed = [seen for state, seen in states if state == "FAILED" and seen < worked[-1]]
    gap = max(next(w for w in worked if w > f) - f for f in failed) if failed else 0
    return {"acknowledged": len(acknowledged), "gap_ms": gap,
            "twice": sum(count > 1 for count in counts.values())}  # fmt: skip


@pytest.mark.timeout(600)
def test_from_apache_with_all_its_history(tmp_path: Path, java: Driver) -> None:
    topic, group = unique("migrated"), unique("group")
    with process_group() as processes:
        namesrv = processes.add(start_apache_namesrv(tmp_path / "namesrv"))
        server = namesrv.address
        old = processes.add(start_apache_broker(tmp_path / "old", namesrv=server, **CONFIG))
        send = {"namesrv": server, "topic": topic, "prefix": "old", "sizes": 1000}
        assert java.run("send", **send, count=HISTORY, mode="async")["failed"] == []

        plan = migrate(server, "plan", "-o", "json").ok()
        assert plan.json["moves"][0]["left_behind_bytes"] > SEGMENT
        home = tmp_path / "new"
        options = ("--dir", home, "--port", free_broker_port())
        migrate(server, "run", *options, "--seed", old.store).ok()
        conf = home / "broker-a" / "broker.conf"
        conf.write_text(conf.read_text() + "metricsPromExporterPort=0\n")
        new = Process("new", [str(TWINLOG), "broker", "-c", str(conf)], log=tmp_path / "new.log")
        processes.add(new)
        with traffic(java, server, topic, group) as (producer, consumer):
            migrate(server, "run", *options, "--wait", "120s").ok()
            verified = wait_until(lambda: verify(server), "everything is at the replica")
            assert verified is not None
            assert verified["checks"][0]["messages"] >= HISTORY
            rehearsed = migrate(server, "cutover", "--rehearse", "-o", "json").ok()
            assert "taken again" in rehearsed.json["sentence"]
            producer.wait_for("sent", len(producer.of("sent")) + 20)
            stop = f"kill {old.pid}"
            done = migrate(server, "cutover", "--stop", stop, "--yes", "-o", "json").ok().json
            seen = stop_and_judge(producer, consumer, HISTORY)
        print(json.dumps({**seen, "steps": done["steps"]}))
        assert "startAcceptSendRequestTimeStamp=4102444800000" in (
            (tmp_path / "old" / "broker.conf").read_text()
        )
        assert seen["twice"] <= seen["acknowledged"]
        first = java.run("pull", namesrv=server, topic=topic, group="other")["message"]
        assert {f"old-{n}" for n in range(HISTORY)} <= set(names(first))


def verify(server: str) -> dict[str, Any] | None:
    """Topics and groups come within ten seconds of the first message."""
    result = migrate(server, "verify", "--deep", "-o", "json")
    assert result.code in (0, 1), result.err
    if result.code != 0:  # Apache's statistics fail until its first second has passed.
        return None
    found: dict[str, Any] = result.json
    return found


@pytest.mark.timeout(600)
def test_back_to_apache(tmp_path: Path, java: Driver) -> None:
    topic, group = unique("back"), unique("group")
    with process_group() as processes:
        namesrv = processes.add(start_apache_namesrv(tmp_path / "namesrv"))
        server = namesrv.address
        old = processes.add(start_twinlog_broker(tmp_path / "old", namesrv=server, **CONFIG))
        send = {"namesrv": server, "topic": topic, "prefix": "old", "sizes": 200}
        assert java.run("send", **send, count=200, mode="async")["failed"] == []
        slave = {**CONFIG, "brokerRole": "SLAVE", "brokerId": 1}
        new = processes.add(start_apache_broker(tmp_path / "new", namesrv=server, **slave))
        with traffic(java, server, topic, group) as (producer, consumer):
            wait_until(lambda: verify(server), "everything is at the replica")
            asked, answered = tmp_path / "asked", tmp_path / "answered"

            def promote() -> None:
                wait_until(asked.exists, "the replica is to be the master", deadline_s=120)
                new.stop()
                processes.add(new.restart(brokerRole="ASYNC_MASTER", brokerId=0))
                answered.touch()

            helper = threading.Thread(target=promote)
            helper.start()
            words = f"touch {asked}; while [ ! -e {answered} ]; do sleep 0.1; done"
            options = ("--stop", f"kill {old.pid}", "--promote", words, "--yes", "--wait", "120s")
            migrate(server, "cutover", *options).ok()
            helper.join()
            print(json.dumps(stop_and_judge(producer, consumer, 200)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("makes", [("apache", "twinlog"), ("twinlog", "apache")], ids=" to ".join)
def test_to_another_cluster(tmp_path: Path, java: Driver, makes: tuple[str, str]) -> None:
    """The Java clients know the old name servers only."""
    topic, group = unique("other"), unique("group")
    with process_group() as processes:
        servers, brokers = [], []
        for make, name in zip(makes, ("old", "new"), strict=True):
            namesrv = processes.add(START_NAMESRV[make](tmp_path / name / "namesrv"))
            servers.append(namesrv.address)
            home = tmp_path / name / "broker"
            values = {**CONFIG, "brokerName": name, "brokerClusterName": f"Cluster-{name}"}
            brokers.append(processes.add(START_BROKER[make](home, namesrv=servers[-1], **values)))
        (server, target), (old, new) = servers, brokers
        send = {"namesrv": server, "topic": topic, "prefix": "old", "sizes": 200}
        assert java.run("send", **send, count=200, mode="sync")["failed"] == []
        to = ("--target", target)
        with traffic(java, server, topic, group) as (producer, consumer):
            consumer.wait_for("message", 220)
            migrate(server, "plan", *to).ok()
            migrate(server, "run", *to).ok()
            assert "rehearsed" in migrate(server, "cutover", *to, "--rehearse").ok().out
            producer.wait_for("sent", len(producer.of("sent")) + 20)
            asked, answered = tmp_path / "asked", tmp_path / "answered"

            def register() -> None:
                wait_until(asked.exists, "the new broker is to register", deadline_s=240)
                new.stop()
                processes.add(new.restart(namesrvAddr=f"{target};{server}"))
                answered.touch()

            helper = threading.Thread(target=register)
            helper.start()
            words = f"touch {asked}; while [ ! -e {answered} ]; do sleep 0.1; done"
            options = ("--stop", f"kill {old.pid}", "--register", words, "--yes", "-o", "json")
            done = migrate(server, "cutover", *to, *options).ok().json
            helper.join()
            seen = stop_and_judge(producer, consumer, 200)
        print(json.dumps({"makes": makes, **seen, "steps": done.get("steps")}))
        # Given out and not yet committed, at most.
        assert seen["twice"] <= 32 * 8
