"""Rows about clients: ours, the C++ client of PyPI's `rocketmq` and the Java client, one broker.

The broker is twinlog's, without a slave. Every sample of a Python client is a process of its own;
the JVM stays up during a row, so that later rounds meet it warm.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import clusters
from clusters import QUEUES
from harness import Context, Metric, Row, Subject

from support.java_driver import Driver
from support.processes import ProcessGroup
from support.toolchain import cpp_client_python
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv

WINDOW = 256  # Sends on their way at a time, for every client.
_SAMPLE_S = 3.0
_DEADLINE_S = 180.0
# The driver's own are for tests that must start quickly: these are a JVM's and a client's defaults.
_JAVA_OPTIONS = ("-Xmx2g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")
_JAVA_SETTINGS = {"routeMs": 30_000, "heartbeatMs": 30_000, "persistMs": 5_000}
_HERE = Path(__file__).parent
_groups = itertools.count(1)


class ClientBroker:
    """The broker of all rows here; started by the first, ended by `stop`."""

    def __init__(self) -> None:
        self._group = ProcessGroup()
        self.namesrv = ""
        self.address = ""
        self.backlogs: dict[int, int] = {}

    def get(self, directory: Path) -> ClientBroker:
        if not self.namesrv:
            place = directory.parent.parent / f"{directory.parent.name}-clients"
            place.mkdir()
            self._place = place
            namesrv = start_twinlog_namesrv(place / "namesrv")
            self._group.add(namesrv)
            broker = start_twinlog_broker(place / "broker", namesrv=namesrv.address)
            self._group.add(broker)
            namesrv.wait_for_text(f"address={broker.address}")
            self.namesrv, self.address = namesrv.address, broker.address
        return self

    def backlog(self, size: int, scale: float) -> tuple[str, int]:
        """A topic with messages of that size, and how many they are."""
        topic = f"backlog{size}"
        if size not in self.backlogs:
            seconds = max(1.0, _SAMPLE_S * min(1.0, scale))
            report = clusters.run_load(
                "send", addr=self.address, topic=topic, size=size, depth=16, queues=QUEUES,
                seconds=seconds,
            )  # fmt: skip
            self.backlogs[size] = int(report["messages"])
        return topic, self.backlogs[size]

    def stop(self) -> None:
        self._group.kill_all()
        if self.namesrv:
            subprocess.run(["rm", "-rf", str(self._place)], check=True)
        self.namesrv = ""


BROKER = ClientBroker()


def _figures(report: Mapping[str, Any]) -> Mapping[str, float]:
    messages = max(1, report["messages"])
    return {
        "rate": report["messages"] / report["seconds"],
        "cpu": report["cpu"] * 1e6 / messages,
    }


def _run(argv: list[str]) -> Mapping[str, float]:
    """One sample; a client that crashes gives none, and the reason is shown."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        print(f"bench: {argv[1]}: no result in {_DEADLINE_S:g} s", file=sys.stderr)
        return {}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"messages"')]
    if not lines:
        print(f"bench: {argv[1]} ended with {done.returncode}: {done.stderr[-500:]}",
              file=sys.stderr)  # fmt: skip
        return {}
    return _figures(json.loads(lines[-1]))


def ours(*arguments: str) -> Mapping[str, float]:
    return _run([sys.executable, str(_HERE / "client_worker.py"), *arguments])


def _cpp(*arguments: str) -> Mapping[str, float]:
    return _run([str(cpp_client_python()), str(_HERE / "cpp_client_worker.py"), *arguments])


def _java(context: Context, command: str, **arguments: object) -> Mapping[str, float]:
    settings = {**_JAVA_SETTINGS, "namesrv": BROKER.namesrv, **arguments}
    driver = context.state.get("driver")
    if driver is None:
        driver = Driver(context.directory / "java", options=_JAVA_OPTIONS)
        context.state["driver"] = driver
        # Once without counting: a JVM that has just started would be measured compiling.
        warm_up = {**settings, "group": f"warm-up-{next(_groups)}"}
        driver.run(command, deadline_s=_DEADLINE_S, **warm_up)
    events = driver.run(command, deadline_s=_DEADLINE_S, **settings)
    return _figures(events["rate"][0]) if events["rate"] else {}


def _close(context: Context) -> None:
    if "driver" in context.state:
        context.state["driver"].close()


_Python = Callable[..., Mapping[str, float]]


def _send(client: _Python, mode: str, size: int) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        broker = BROKER.get(context.directory)
        seconds = max(1.0, _SAMPLE_S * min(1.0, context.scale))
        return client(
            broker.namesrv, "send", f"sends{size}", mode, str(size), str(seconds), str(WINDOW)
        )

    return run


def _java_send(mode: str, size: int) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        BROKER.get(context.directory)
        milliseconds = int(1000 * max(1.0, _SAMPLE_S * min(1.0, context.scale)))
        return _java(
            context, "sendRate", topic=f"sends{size}", mode=mode, size=size, window=WINDOW,
            milliseconds=milliseconds,
        )  # fmt: skip

    return run


def _consume(client: _Python, size: int) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        broker = BROKER.get(context.directory)
        topic, count = broker.backlog(size, context.scale)
        return client(broker.namesrv, "consume", topic, f"bench-{next(_groups)}", str(count))

    return run


def _java_consume(size: int) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        topic, count = BROKER.get(context.directory).backlog(size, context.scale)
        return _java(
            context, "consumeRate", topic=topic, group=f"bench-{next(_groups)}", count=count,
            threads=20,
        )  # fmt: skip

    return run


_METRICS = [Metric("rate", "msg/s", "higher"), Metric("cpu", "us of client per message", "lower")]
_SIZES = (128, 1024)


def _label(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def _send_row(mode: str, title: str, size: int, *, has_rivals: bool) -> Row:
    subjects = {"our client": _send(ours, mode, size)}
    if has_rivals:
        subjects["C++ client"] = _send(_cpp, mode, size)
        subjects["Java client"] = _java_send(mode, size)
    return Row(
        f"client-{mode}-{size}", f"{title}, {_label(size)}", _METRICS, subjects, cleanup=_close
    )


def _consume_row(size: int) -> Row:
    subjects = {
        "our client": _consume(ours, size),
        "C++ client": _consume(_cpp, size),
        "Java client": _java_consume(size),
    }
    return Row(
        f"client-consume-{size}", f"one push consumer, backlog, {_label(size)}", _METRICS,
        subjects, cleanup=_close,
    )  # fmt: skip


ROWS = [
    *(_send_row("awaited", "one producer, one send at a time", size, has_rivals=True)
      for size in _SIZES),
    *(_send_row("pipelined", f"one producer, {WINDOW} sends at a time", size, has_rivals=True)
      for size in _SIZES),
    *(_send_row("batched", "one producer, automatic batches", size, has_rivals=False)
      for size in _SIZES),
    *(_consume_row(size) for size in _SIZES),
]  # fmt: skip
