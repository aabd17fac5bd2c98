"""Rows about the pair as one: what Java clients meet at a failover, what large tables cost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import clusters
import psutil
from clusters import MAKES, QUEUES, Pair
from harness import Context, Metric, Row, Subject

from interop import java_story
from support.ha_load import Connection, ask
from support.java_driver import Driver
from support.processes import process_group, wait_until

_TOPICS, _GROUPS, _OFFSET_KEYS = 10_000, 5_000, 50_000  # Four queues each: 200,000 offsets.
_IDLE_S, _LOAD_S = 12.0, 20.0  # Each longer than the ten seconds of a cycle.
_CYCLE_S = 10.0
_RATE = 1000
_GET_TOPICS, _COMMIT = 21, 15


def _failover(make: str) -> Subject:
    """SIGKILL of the master under Java clients with their defaults, and its return."""

    def run(context: Context) -> Mapping[str, float]:
        context.state["round"] = number = context.state.get("round", 0) + 1
        directory = context.directory / str(number)
        driver = Driver(directory / "java")
        try:
            with process_group() as group:
                pair = java_story.Pair(group, directory, master_of=make, slave_of=make)
                story = java_story.Story(pair, driver, number, **java_story.JAVA_DEFAULTS)
                java_story.tell(story)
        finally:
            driver.close()
        return vars(story.measured)

    return run


def _stress(make: str) -> Subject:
    """A pair with large tables and one with none: CPU of a cycle, and p99 of sends."""

    def run(context: Context) -> Mapping[str, float]:
        context.state["round"] = number = context.state.get("round", 0) + 1
        figures: dict[str, float] = {}
        for name, is_large in (("without", False), ("with", True)):
            directory = context.directory / f"{number}-{name}"
            if is_large:
                _make_store(make, directory / "master")
            pair = Pair(make, "ASYNC_MASTER", directory)
            try:
                figures |= {f"{key}_{name}": value for key, value in _measure(pair, is_large)}
            finally:
                pair.stop()
        return figures

    return run


def _measure(pair: Pair, is_large: bool) -> Iterator[tuple[str, float]]:
    if is_large:
        wait_until(
            lambda: b"topic-09999" in ask(pair.slave.address, _GET_TOPICS).body,
            "the slave has all topics", deadline_s=60,
        )  # fmt: skip
    pair.warm_up(3.0)
    with _commits(pair):
        before = [_cpu_s(broker.pid) for broker in (pair.master, pair.slave)]
        time.sleep(_IDLE_S)
        after = [_cpu_s(broker.pid) for broker in (pair.master, pair.slave)]
        report = clusters.run_load(
            "send", addr=pair.master.address, topic="paced", size=1024, queues=QUEUES, conns=4,
            depth=64, rate=_RATE, seconds=_LOAD_S,
        )  # fmt: skip
    for name, start, end in zip(("master", "slave"), before, after, strict=True):
        yield name, (end - start) / _IDLE_S * _CYCLE_S
    yield "p99", report["latency_ms"]["p99"]
    yield "p999", report["latency_ms"]["p999"]


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@contextmanager
def _commits(pair: Pair) -> Iterator[None]:
    """Groups that commit all the time, so that tables are written and sent again."""
    is_over = threading.Event()

    def run() -> None:
        connection = Connection(pair.master.address)
        number = 0
        while not is_over.wait(0.02):
            number += 1
            connection.call(_COMMIT, {
                "consumerGroup": f"group-{number % 100:04}", "queueId": 0, "commitOffset": number,
                "topic": f"topic-{number % 100:05}",
            })  # fmt: skip
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _make_store(make: str, directory: Path) -> None:
    """A log with a message in it, and the tables: ours takes no tables without a log."""
    broker = clusters.start_broker(make, directory, brokerRole="ASYNC_MASTER")
    try:
        wait_until(lambda: clusters.try_send(broker.port) == 0, "a first message")
    finally:
        broker.stop()
    _write_tables(broker.store / "config")


def _write_tables(config: Path) -> None:
    """Both makes read these files when they start."""
    config.mkdir(parents=True, exist_ok=True)
    topics = {
        f"topic-{n:05}": {
            "order": False, "perm": 6, "readQueueNums": QUEUES, "topicFilterType": "SINGLE_TAG",
            "topicName": f"topic-{n:05}", "topicSysFlag": 0, "writeQueueNums": QUEUES,
        }
        for n in range(_TOPICS)
    }  # fmt: skip
    groups = {
        f"group-{n:04}": {
            "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
            "consumeFromMinEnable": True, "groupName": f"group-{n:04}",
            "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1,
            "whichBrokerWhenConsumeSlowly": 1,
        }
        for n in range(_GROUPS)
    }  # fmt: skip
    offsets = {
        f"topic-{n % _TOPICS:05}@group-{n // _TOPICS * 1000 + n % 1000:04}": dict.fromkeys(
            map(str, range(QUEUES)), 0
        )
        for n in range(_OFFSET_KEYS)
    }
    version = {"counter": 7, "timestamp": int(time.time() * 1000)}
    for name, data in (
        ("topics", {"dataVersion": version, "topicConfigTable": topics}),
        ("subscriptionGroup", {"dataVersion": version, "subscriptionGroupTable": groups}),
        ("consumerOffset", {"offsetTable": offsets}),
    ):
        (config / f"{name}.json").write_text(json.dumps(data))


ROWS = [
    Row(
        "failover-java",
        "SIGKILL of the master, Java clients with their defaults",
        [
            Metric("first_read_s", "s to the first message from the slave", "lower"),
            Metric("sends_work_s", "s from the restart to a send", "lower"),
            Metric("fallback_messages", "messages that offsets fall back", "lower"),
            Metric("fallback_s", "s until offsets are back", "lower"),
        ],
        {make: _failover(make) for make in MAKES},
        rounds=1,
    ),
    Row(
        "metadata-stress",
        "10,000 topics, 5,000 groups, 200,000 offsets; sends of 1 KiB, 1000/s",
        [
            Metric("master_without", "s of master per cycle, no tables", "lower"),
            Metric("master_with", "s of master per cycle", "lower"),
            Metric("slave_without", "s of slave per cycle, no tables", "lower"),
            Metric("slave_with", "s of slave per cycle", "lower"),
            Metric("p99_without", "ms, no tables", "lower"),
            Metric("p99_with", "ms", "lower"),
            Metric("p999_without", "ms, no tables", "lower"),
            Metric("p999_with", "ms", "lower"),
        ],
        {make: _stress(make) for make in MAKES},
        rounds=1,
    ),
]
