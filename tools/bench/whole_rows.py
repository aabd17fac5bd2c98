"""Rows about whole brokers: recovery after SIGKILL, memory, several groups behind a name server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import clusters
from clusters import MAKES, QUEUES
from harness import Context, Metric, Row, Subject

from support.twinlog_servers import TWINLOG

_LOG_BYTES = 1_000_000_000
_RECORD_OVERHEAD = 230  # Of a 1 KiB message in the log: fields, topic, properties.
_SAMPLE_S = 3.0
_FIXED_RATE = 8_000
_IDLE_S = 4.0
_LOAD_CORE, _BROKER_CORE = 0, 1
_LOAD_S = 2.0


def _killed(make: str, *, is_rebuilt: bool = False) -> Subject:
    """SIGKILL of a broker with 1 GB of log while it is written to; to the first accepted send.

    `is_rebuilt`: with queues and checkpoint gone, so that all of it is made again from the log.
    """

    def run(context: Context) -> Mapping[str, float]:
        broker = context.state.get("broker")
        if broker is None:
            broker = clusters.start_broker(make, context.directory / "broker")
            context.state["broker"] = broker
            _fill(broker, int(_LOG_BYTES * min(1.0, context.scale)))
        broker.kill()
        if is_rebuilt:
            shutil.rmtree(broker.store / "consumequeue")
            (broker.store / "checkpoint").unlink(missing_ok=True)
        started = time.perf_counter()
        restarted = type(broker)(*_arguments(make, broker))
        context.state["broker"] = restarted
        taken = clusters.timed(lambda: clusters.try_send(restarted.port) == 0, started)
        return {"first_send": taken}

    return run


def _arguments(make: str, broker: Any) -> tuple[Any, ...]:
    """A broker process again, without waiting for it: the clock runs."""
    options = (broker.java_options,) if make == "apache" else ()
    return (broker.directory, broker.config, *options)


def _fill(broker: Any, size: int) -> None:
    sent = 0
    while sent < size:
        report = clusters.run_load(
            "send", addr=broker.address, topic="fill", size=1024, members=32, conns=4, depth=2,
            queues=QUEUES, seconds=2,
        )  # fmt: skip
        sent += int(report["messages"] * (1024 + _RECORD_OVERHEAD))


def _end_broker(context: Context) -> None:
    if "broker" in context.state:
        context.state["broker"].kill()


def _memory(make: str) -> Subject:
    """Anonymous memory of a broker that has just started, and after load of every kind."""

    def run(context: Context) -> Mapping[str, float]:
        directory = context.directory / "broker"
        broker = clusters.start_broker(make, directory)
        try:
            clusters.timed(lambda: clusters.try_send(broker.port) == 0, time.perf_counter())
            before = clusters.usages([broker.pid])
            idle_s = max(2.0, _IDLE_S * min(1.0, context.scale))
            time.sleep(idle_s)  # What is measured is the time in which nothing happens.
            idle = clusters.usage_since(before)[broker.pid]
            seconds = max(2.0, _LOAD_S * min(1.0, context.scale))
            common = {"addr": broker.address, "queues": QUEUES, "seconds": seconds}
            clusters.run_load("send", topic="small", size=128, conns=200, depth=4, **common)
            clusters.run_load("send", topic="large", size=64 * 1024, conns=8, depth=4, **common)
            clusters.run_load("pull", topic="large", batch=32, again=True, **common)
            loaded = clusters.usages([broker.pid])[broker.pid]
        finally:
            broker.kill()
            shutil.rmtree(directory, ignore_errors=True)
        return {
            "idle": idle.anonymous_mb,
            "loaded": loaded.anonymous_mb,
            "idle_cpu": idle.cpu_s / idle_s * 100,
        }

    return run


class _Groups:
    """`twinlog up` with so many groups of one broker each. Pinned: the load generators have the
    first core, the brokers the second one and nothing else."""

    def __init__(self, directory: Path, count: int, *, is_pinned: bool = False) -> None:
        self.directory = directory
        self._is_pinned = is_pinned
        self._run("up", "--brokers", "1", "--groups", str(count), "--free-ports")
        nodes = json.loads((directory / "cluster.json").read_text())["nodes"]
        self.brokers = [node for node in nodes if node["kind"] == "broker"]
        if is_pinned:
            for broker in self.brokers:
                _pin_process(broker["pid"], _BROKER_CORE)

    def _run(self, *arguments: str) -> None:
        argv = [str(TWINLOG), *arguments, "--dir", str(self.directory)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"twinlog {arguments[0]}: {done.stdout}{done.stderr}")

    def load(self, **flags: object) -> list[dict[str, Any]]:
        """The same load on every group at once, all connections together as many as on one."""

        def run(node: Mapping[str, Any]) -> dict[str, Any]:
            if self._is_pinned:
                os.sched_setaffinity(0, {_LOAD_CORE})  # Of this thread, and of what it starts.
            return clusters.run_load(
                "send", addr=f"127.0.0.1:{node['port']}", topic="groups", size=1024,
                queues=QUEUES, conns=16 // len(self.brokers), depth=16,
                pid=f"broker={node['pid']}", **flags,
            )  # fmt: skip

        with ThreadPoolExecutor(len(self.brokers)) as pool:
            return list(pool.map(run, self.brokers))

    def stop(self) -> None:
        self._run("down", "--purge")


def _pin_process(pid: int, core: int) -> None:
    """All threads that there are; those that they start follow them."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def _groups(count: int, *, is_pinned: bool = False) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        seconds = max(2.0, _SAMPLE_S * min(1.0, context.scale))
        groups = _Groups(context.directory / "cluster", count, is_pinned=is_pinned)
        try:
            groups.load(seconds=1)
            fastest = groups.load(seconds=seconds)
            paced = groups.load(seconds=seconds, rate=_FIXED_RATE)
        finally:
            groups.stop()
        return {
            "rate": sum(report["msg_s"] for report in fastest),
            "cpu": sum(report["processes"]["broker"]["cpu_s"] for report in paced)
            * 1e6
            / sum(report["messages"] for report in paced),
            "p99": max(report["latency_ms"]["p99"] for report in fastest),
            "busy": sum(
                report["processes"]["broker"]["cpu_s"] / report["seconds"] for report in fastest
            )
            * 100,
        }

    return run


ROWS = [
    Row(
        "recovery",
        "1 GB log after SIGKILL of the broker",
        [Metric("first_send", "s from process start to the first accepted send", "lower")],
        {make: _killed(make) for make in MAKES},
        cleanup=_end_broker,
    ),
    Row(
        "rebuild",
        "1 GB of log after SIGKILL, queues and checkpoint gone",
        [Metric("first_send", "s from process start to the first accepted send", "lower")],
        {make: _killed(make, is_rebuilt=True) for make in MAKES},
        cleanup=_end_broker,
    ),
    Row(
        "memory",
        "one broker, idle and after load",
        [
            Metric("idle", "MB, anonymous", "lower"),
            Metric("loaded", "MB, anonymous", "lower"),
            Metric("idle_cpu", "% of a core, idle", "lower"),
        ],
        {make: _memory(make) for make in MAKES},
        text="The load is 200 connections with 128 B and 8 with 64 KiB, then pulls of the backlog.",
    ),
    *(
        Row(
            name,
            title,
            [
                Metric("rate", "msg/s, all groups", "higher"),
                Metric(
                    "cpu", f"us of a broker per message at {_FIXED_RATE:,} msg/s per group", "lower"
                ),
                Metric("busy", "% of a core, all brokers at full rate"),
                Metric("p99", "ms", "lower"),
            ],
            {
                "two groups": _groups(2, is_pinned=is_pinned),
                "one group": _groups(1, is_pinned=is_pinned),
            },
            text="`twinlog up --groups 2` against one group: 16 x 16 in all, no slaves. " + text,
        )
        for name, title, is_pinned, text in (
            (
                "groups-2",
                "a broker group per core behind one name server, 1 KiB",
                False,
                "The load generators share the two cores with the brokers.",
            ),
            (
                "pinned-groups-2",
                "two groups and one on one core, the load generators on the other, 1 KiB",
                True,
                "The brokers have one core together and the load generators the other, so a ratio "
                "of 1 says that a second group costs nothing but the core that it needs.",
            ),
        )
    ),
]
