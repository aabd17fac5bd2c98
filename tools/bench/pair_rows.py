"""Rows about a master and its slave under load from outside: Apache's pair and ours."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import clusters
from clusters import MAKES, PAIRS, QUEUES
from harness import Context, Metric, Row, Subject

_SAMPLE_S = 2.5
_SECONDS_MAX = {64 * 1024: 2.0}  # Hundreds of megabytes a second, on two disks.


def _seconds(context: Context) -> float:
    return max(2.0, _SAMPLE_S * min(1.0, context.scale))


def _send(make: str, role: str, size: int, connections: int, depth: int) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, role, context.directory, scale=context.scale)
        report = clusters.run_load(
            "send", addr=pair.master.address, topic=f"bench{size}", conns=connections,
            depth=depth, size=size, queues=QUEUES, pid=pair.pids,
            seconds=min(_seconds(context), _SECONDS_MAX.get(size, _SAMPLE_S)),
        )  # fmt: skip
        return _figures(report)

    return run


def _figures(report: dict) -> dict[str, float]:
    processes, messages = report["processes"], report["messages"]
    refused = sum(count for code, count in report["codes"].items() if code != "0")
    return {
        "rate": report["msg_s"],
        "master_cpu": processes["master"]["cpu_s"] * 1e6 / messages,
        "slave_cpu": processes["slave"]["cpu_s"] * 1e6 / messages,
        "p99": report["latency_ms"]["p99"],
        "anonymous": processes["master"]["anonymous_mb"],
        "disk": processes["master"]["written_mb"] * 1e6 / messages,
        "refused": refused / (messages + refused) * 100,
    }


_SEND_METRICS = [
    Metric("rate", "msg/s", "higher"),
    Metric("master_cpu", "us of master per message", "lower"),
    Metric("slave_cpu", "us of slave per message", "lower"),
    Metric("p99", "ms", "lower"),
    Metric("anonymous", "MB of master", "lower"),
    Metric("disk", "bytes written by master per message"),
    Metric("refused", "% answered with an error"),
]


_KINDS = {"async": "async pair", "sync": "sync pair", "flush": "async pair, SYNC_FLUSH"}


def _send_row(role: str, size: int, connections: int, depth: int) -> Row:
    kind = {"ASYNC_MASTER": "async", "SYNC_MASTER": "sync"}.get(role, "flush")
    label = f"{size} B" if size < 1024 else f"{size // 1024} KiB"
    return Row(
        f"send-{kind}-{size}-{connections}x{depth}",
        f"send, {_KINDS[kind]}, {label}, {connections} x {depth}",
        _SEND_METRICS,
        {make: _send(make, role, size, connections, depth) for make in MAKES},
    )


def _latency(make: str, fraction: float) -> Subject:
    """Sends by the clock at a fraction of the pair's capacity, read by a consumer all the while."""

    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, "ASYNC_MASTER", context.directory, scale=context.scale)
        common = {"addr": pair.master.address, "topic": "paced", "size": 1024, "queues": QUEUES}
        if make not in _capacities:
            clusters.run_load("send", **common, conns=1, seconds=0.1)  # The topic is there now.
            report = clusters.run_load("flow", **common, conns=16, depth=16, seconds=4)
            _capacities[make] = report["msg_s"]
        return _paced(pair.master.address, _capacities[make] * fraction, _seconds(context))

    return run


def _paced(address: str, rate: float, seconds: float) -> dict[str, float]:
    """Sends by the clock, and one consumer."""
    report = clusters.run_load(
        "flow", addr=address, topic="paced", size=1024, queues=QUEUES, conns=16, depth=64,
        rate=rate, seconds=seconds,
    )  # fmt: skip
    return {
        "offered": rate,
        **{name: report["received_ms"][name] for name in ("p50", "p99", "p999")},
        "send_p99": report["latency_ms"]["p99"],
        "backlog": max(0, report["unread"]) / rate * 1e3,
    }


def _latency_at(make: str, rate: float) -> Subject:
    """Both makes at the same rate, which is below what either can carry."""

    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, "ASYNC_MASTER", context.directory, scale=context.scale)
        if "is_there" not in context.state:
            clusters.run_load("send", addr=pair.master.address, topic="paced", size=1024,
                              queues=QUEUES, conns=1, seconds=0.1)  # fmt: skip
            context.state["is_there"] = True
        return _paced(pair.master.address, rate, _seconds(context))

    return run


# Of a make, by the first row that asks: all fractions are of the same number.
_capacities: dict[str, float] = {}


_LATENCY_METRICS = [
    Metric("offered", "msg/s"),
    Metric("p50", "ms from due to consumer", "lower"),
    Metric("p99", "ms from due to consumer", "lower"),
    Metric("p999", "ms from due to consumer", "lower"),
    Metric("send_p99", "ms from due to reply", "lower"),
    Metric("backlog", "ms of sends that are unread at the end", "lower"),
]


def _latency_row(percent: int) -> Row:
    return Row(
        f"latency-{percent}",
        f"end to end at {percent} % of capacity, async pair, 1 KiB, open loop",
        _LATENCY_METRICS,
        {make: _latency(make, percent / 100) for make in MAKES},
        text="The rate is a share of each side's own capacity, which is measured first, with sends "
        "and one consumer at the same time.",
    )


def _latency_at_row(rate: int) -> Row:
    return Row(
        f"latency-at-{rate // 1000}k",
        f"end to end at {rate:,} msg/s, async pair, 1 KiB, open loop",
        _LATENCY_METRICS,
        {make: _latency_at(make, rate) for make in MAKES},
        text="Both sides get the same rate.",
    )


def _pull(make: str, source: str) -> Subject:
    """Four readers, 32 messages per pull, over a backlog of 1 KiB messages that is read again."""

    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, "ASYNC_MASTER", context.directory, scale=context.scale)
        if "filled" not in context.state:
            seconds = max(3.0, 6 * min(1.0, context.scale))
            clusters.run_load(
                "send", addr=pair.master.address, topic="backlog", size=1024, depth=16,
                queues=QUEUES, seconds=seconds,
            )  # fmt: skip
            context.state["filled"] = True
        broker = getattr(pair, source)
        report = clusters.run_load(
            "pull", addr=broker.address, topic="backlog", queues=QUEUES, batch=32,
            seconds=_seconds(context), again=True, pid=pair.pids,
        )  # fmt: skip
        return {
            "rate": report["msg_s"],
            "bytes": report["mb_s"],
            "cpu": report["processes"][source]["cpu_s"] * 1e6 / report["messages"],
            "p99": report["latency_ms"]["p99"],
        }

    return run


def _pull_row(name: str, title: str, source: str) -> Row:
    return Row(
        name,
        f"{title}, 1 KiB, 4 queues, 32 per pull",
        [
            Metric("rate", "msg/s", "higher"),
            Metric("bytes", "MB/s", "higher"),
            Metric("cpu", f"us of {source} per message", "lower"),
            Metric("p99", "ms per pull", "lower"),
        ],
        {make: _pull(make, source) for make in MAKES},
    )


def _start_up(make: str) -> Subject:
    """From the start of the process on an empty store to the first accepted send."""

    def run(context: Context) -> Mapping[str, float]:
        directory = context.directory / "start"
        shutil.rmtree(directory, ignore_errors=True)
        started = time.perf_counter()
        broker = clusters.start_broker(make, directory, wait=False)
        try:
            taken = clusters.timed(lambda: clusters.try_send(broker.port) == 0, started)
            return {"first_send": taken, "anonymous": _anonymous_mb(broker.pid)}
        finally:
            broker.kill()

    return run


def _anonymous_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    raise RuntimeError(f"no RssAnon of {pid}")


def _ceiling(context: Context) -> Mapping[str, float]:
    """The load generator against a server that only answers: what it could measure at most."""
    process = subprocess.Popen(
        [clusters.load_generator(), "echo", "-addr=127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        rates = {}
        for connections, depth in ((16, 16), (64, 1), (1, 1)):
            report = clusters.run_load(
                "send", addr=address, size=128, conns=connections, depth=depth,
                seconds=_seconds(context),
            )  # fmt: skip
            rates[f"rate_{connections}x{depth}"] = report["msg_s"]
        return rates
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


_SHAPES = ((16, 16), (64, 1), (1, 1))

ROWS = [
    Row(
        "load-ceiling",
        "load generator alone, against an echo server",
        [Metric(f"rate_{c}x{d}", "msg/s") for c, d in _SHAPES],
        {"load generator": _ceiling},
        rounds=1,
    ),
    *(
        _send_row("ASYNC_MASTER", size, connections, depth)
        for size in (128, 1024)
        for connections, depth in _SHAPES
    ),
    _send_row("ASYNC_MASTER", 64 * 1024, 16, 4),
    _send_row("ASYNC_MASTER", 128, 1000, 1),
    *(_latency_row(percent) for percent in (20, 50, 80)),
    *(_latency_at_row(rate) for rate in (10_000, 20_000, 30_000)),
    _pull_row("pull-backlog", "pull of a backlog", "master"),
    _pull_row("pull-slave", "pull of a backlog from the slave", "slave"),
    *(
        _send_row("SYNC_MASTER", size, connections, depth)
        for size in (128, 1024)
        for connections, depth in _SHAPES
    ),
    _send_row("ASYNC_MASTER+SYNC_FLUSH", 1024, 64, 1),
    Row(
        "start-up",
        "start on an empty store",
        [
            Metric("first_send", "s to the first accepted send", "lower"),
            Metric("anonymous", "MB, idle", "lower"),
        ],
        {make: _start_up(make) for make in MAKES},
    ),
]
QUICK = ("load-ceiling", "send-async-128-16x16", "send-sync-1024-16x16", "pull-backlog", "start-up")
