"""`make bench-scale`: what a message costs our broker as the work grows. Flat lines are the aim.

Curves: the log from 0.1 to 10 GiB, topics from 1 to 10,000, connections from 1 to 2,000, consumers
of one topic from 1 to 100, slaves of a synchronous master from 1 to 4, and an hour under load
(only when it is asked for with ONLY=time). The hour runs at half of the capacity, which is
measured first; it writes 4 GB for each 1,000 msg/s, and the broker deletes its oldest files when
the disk is too full for that. The other curves run at a fixed rate that is far from the broker's
limit, so that CPU time per message is compared and not how well a full loop gathers work.

Environment: ONLY=topics,log picks curves, SCALE=0.01 shortens them, OUT and BENCH_DIR as in
`make bench`, DOCS=1 renders docs/BENCHMARKS.md and its plots.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clusters
import harness
import picture
import report
import results
from harness import Metric

from support.processes import ProcessGroup, process_group, wait_until

GIB = 1 << 30
RATE = 4_000
SECONDS = 4.0
CAPACITY_SECONDS = 10.0
CURVE_DEADLINE_S = 7200.0
LONG = ("time",)  # Only when it is asked for.
_FILL_MEMBERS = 56  # Of 1 KiB: a batch of about 64 KiB.
_RECORD_SIZE = 1024 + 200


@dataclass(frozen=True)
class Curve:
    """One kind of growing work. `points` yields the metrics of each x, in rising order."""

    name: str
    title: str
    axis: str
    metrics: list[Metric]
    points: Callable[[Path, float], Iterator[dict[str, float]]]


_CPU = Metric("cpu", "us of broker per message", "lower")
_P99 = Metric("p99", "ms", "lower")
_MEMORY = Metric("memory", "MB, anonymous", "lower")


def _send(broker: Any, **flags: object) -> dict[str, float]:
    """Paced sends; the median of three samples."""
    samples = []
    for _ in range(3):
        used = clusters.run_load(
            "send", addr=broker.address, rate=RATE, seconds=SECONDS, pid=f"broker={broker.pid}",
            **{"size": 1024, "conns": 16, "depth": 64, "queues": 4, **flags},
        )  # fmt: skip
        process = used["processes"]["broker"]
        samples.append((
            process["cpu_s"] * 1e6 / used["messages"], used["latency_ms"]["p99"],
            process["anonymous_mb"],
        ))  # fmt: skip
    cpu, p99, memory = sorted(samples)[1]
    return {"cpu": cpu, "p99": p99, "memory": memory}


def _log(directory: Path, scale: float) -> Iterator[dict[str, float]]:
    broker = clusters.start_broker("twinlog", directory)
    try:
        size = 0
        for gib in (0.1, 0.3, 1, 3, 10):
            while size < gib * scale * GIB:
                seconds = min(5.0, max(0.2, (gib * scale * GIB - size) / 100e6))
                filled = clusters.run_load(
                    "send", addr=broker.address, topic="grown", size=1024, queues=4, conns=4,
                    depth=4, members=_FILL_MEMBERS, seconds=seconds,
                )  # fmt: skip
                size += int(filled["messages"] * _RECORD_SIZE)
            found = _send(broker, topic="grown")
            pulled = clusters.run_load(
                "pull", addr=broker.address, topic="grown", seconds=2, again=True,
                pid=f"broker={broker.pid}",
            )  # fmt: skip
            pull = pulled["processes"]["broker"]["cpu_s"] * 1e6 / pulled["messages"]
            yield {"x": gib * scale, **found, "pull": pull}
    finally:
        broker.kill()


def _topics(directory: Path, scale: float) -> Iterator[dict[str, float]]:
    broker = clusters.start_broker("twinlog", directory)
    try:
        for count in (1, 10, 100, 1000, 10_000):
            topics = max(1, int(count * scale))
            name = f"t{topics}x"
            _touch(broker, name, topics)
            yield {"x": topics, **_send(broker, topic=name, topics=topics)}
    finally:
        broker.kill()


def _touch(broker: Any, name: str, topics: int) -> None:
    """Every topic is made by a first send, which is not measured: in order, on one connection."""
    made = 0
    while made < topics:
        sent = clusters.run_load(
            "send", addr=broker.address, topic=name, topics=topics, first=made, conns=1, depth=32,
            queues=4, size=16, seconds=min(5.0, max(0.2, (topics - made) / 500)),
        )  # fmt: skip
        made += int(sent["messages"])


def _connections(directory: Path, scale: float) -> Iterator[dict[str, float]]:
    broker = clusters.start_broker("twinlog", directory)
    try:
        for count in (1, 10, 100, 500, 1000, 2000):
            connections = max(1, int(count * scale))
            depth = max(2, 1024 // connections)
            yield {"x": connections, **_send(broker, topic="c", conns=connections, depth=depth)}
    finally:
        broker.kill()


def _consumers(directory: Path, scale: float) -> Iterator[dict[str, float]]:
    """Every consumer reads all of the topic; cost is of a message delivered to one of them."""
    broker = clusters.start_broker("twinlog", directory)
    try:
        common = {"addr": broker.address, "topic": "fan", "queues": 1, "size": 1024}
        clusters.run_load("send", **common, conns=1, seconds=0.2)
        for count in (1, 3, 10, 30, 100):
            consumers = max(1, int(count * scale))
            # Deliveries per second stay the same, or 100 consumers would need a hundred times more.
            rate = max(40.0, RATE / consumers)
            samples = []
            for _ in range(3):
                found = clusters.run_load(
                    "flow", **common, conns=4, depth=64, rate=rate, consumers=consumers,
                    seconds=SECONDS, pid=f"broker={broker.pid}",
                )  # fmt: skip
                process = found["processes"]["broker"]
                samples.append((
                    process["cpu_s"] * 1e6 / found["received"], found["received_ms"]["p99"],
                    process["anonymous_mb"],
                ))  # fmt: skip
            cpu, p99, memory = sorted(samples)[1]
            yield {"x": consumers, "cpu": cpu, "p99": p99, "memory": memory}
    finally:
        broker.kill()


def _replicas(directory: Path, scale: float) -> Iterator[dict[str, float]]:
    """A master that waits for all of its slaves; each point is a group of its own."""
    for slaves in (1, 2, 3, 4):
        place = directory / str(slaves)
        with process_group() as group:
            yield {"x": slaves, **_copied(group, place, slaves)}
        shutil.rmtree(place, ignore_errors=True)


def _copied(group: ProcessGroup, place: Path, slaves: int) -> dict[str, float]:
    master = _started(group, place / "master", brokerRole="SYNC_MASTER", inSyncReplicas=slaves + 1)
    copies = [
        _started(
            group, place / f"slave{number}", brokerRole="SLAVE", brokerId=number,
            haMasterAddress=f"127.0.0.1:{master.ha_port}",
        )
        for number in range(1, slaves + 1)
    ]  # fmt: skip
    joined = "master transfer data"
    wait_until(lambda: master.output().count(joined) >= slaves, "all slaves have joined")
    before = clusters.usages([copy.pid for copy in copies])
    found = _send(master, topic="copied")
    used = sum(use.cpu_s for use in clusters.usage_since(before).values())
    return {**found, "slave": used * 1e6 / (RATE * SECONDS * 3) / slaves}


def _started(group: ProcessGroup, directory: Path, **config: object) -> Any:
    return group.add(clusters.start_broker("twinlog", directory, **config))


def _hour(directory: Path, scale: float) -> Iterator[dict[str, float]]:
    """The same load all the time, with a consumer: what grows with it would end a broker."""
    broker = clusters.start_broker("twinlog", directory, fileReservedTime=1)
    flow = {"addr": broker.address, "topic": "hour", "queues": 4, "size": 1024}
    try:
        clusters.run_load("send", **flow, conns=1, seconds=0.2)
        rate = _half_of_capacity(flow)
        began = time.monotonic()
        while time.monotonic() - began < 3600 * scale:
            found = clusters.run_load(
                "flow", **flow, conns=16, depth=64, rate=rate, pid=f"broker={broker.pid}",
                seconds=max(2.0, 300 * scale),
            )  # fmt: skip
            process = found["processes"]["broker"]
            yield {
                "x": round((time.monotonic() - began) / 60, 1),
                "rate": found["messages"] / found["seconds"],
                "cpu": process["cpu_s"] * 1e6 / found["messages"],
                "p99": found["received_ms"]["p99"],
                "memory": process["anonymous_mb"],
                "descriptors": len(list(Path(f"/proc/{broker.pid}/fd").iterdir())),
            }
    finally:
        broker.kill()


def _half_of_capacity(flow: dict[str, Any]) -> int:
    """Messages per second: half of what goes through broker and consumer unpaced, just now."""
    found = clusters.run_load("flow", **flow, conns=16, depth=64, seconds=CAPACITY_SECONDS)
    return max(100, int(found["received"] / found["seconds"] / 2))


_DELIVERED = Metric("cpu", "us of broker per message delivered", "lower")
CURVES = [
    Curve(
        "log", f"1 KiB sends at {RATE:,} msg/s, and pulls, as the log grows", "GiB of log",
        [_CPU, Metric("pull", "us of broker per message pulled", "lower"), _P99, _MEMORY], _log,
    ),
    Curve(
        "topics", f"1 KiB sends at {RATE:,} msg/s over more and more topics", "topics",
        [_CPU, _P99, _MEMORY], _topics,
    ),
    Curve(
        "connections", f"1 KiB sends at {RATE:,} msg/s over more and more connections",
        "connections", [_CPU, _P99, _MEMORY], _connections,
    ),
    Curve(
        "consumers", f"consumers that all read one topic, {RATE:,} deliveries per second in all",
        "consumers", [_DELIVERED, _P99, _MEMORY], _consumers,
    ),
    Curve(
        "replicas", f"1 KiB sends at {RATE:,} msg/s that wait for all slaves", "slaves",
        [_CPU, Metric("slave", "us of each slave per message", "lower"), _P99, _MEMORY], _replicas,
    ),
    Curve(
        "time", "1 KiB sends and a consumer at half of the capacity for an hour", "minutes",
        [Metric("rate", "msg/s", "higher"), _CPU, _P99, _MEMORY,
         Metric("descriptors", "open", "lower")], _hour,
    ),
]  # fmt: skip


def measure(curve: Curve, scale: float) -> dict[str, Any]:
    directory = harness.new_directory("twinlog-scale-")
    taken, started = harness.moment(), time.monotonic()
    points = []
    try:
        for point in curve.points(directory / "broker", scale):
            points.append(point)
            print(f"  {curve.name} {json.dumps(point)}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return {
        "name": curve.name, "title": curve.title, "axis": curve.axis,
        "metrics": [metric.__dict__ for metric in curve.metrics],
        "taken": {**taken, "scale": scale, "seconds": round(time.monotonic() - started, 1)},
        "points": points,
    }  # fmt: skip


def main() -> int:
    harness.explain_if_asked(__doc__)
    only = [part for part in os.environ.get("ONLY", "").split(",") if part]
    wanted = [c for c in CURVES if c.name in only or not (only or c.name in LONG)]
    if not wanted:
        print(f"bench-scale: there are {', '.join(c.name for c in CURVES)}", file=sys.stderr)
        return 2
    scale = float(os.environ.get("SCALE", "1"))
    file = results.curves_file()
    document = {"curves": results.read(file)["curves"]}
    harness.compile_all()
    failed = []
    for curve in wanted:
        print(f"bench-scale: {curve.title}", file=sys.stderr, flush=True)
        try:
            with harness.deadline(CURVE_DEADLINE_S, curve.name):
                found = measure(curve, scale)
        except Exception as error:
            # Its older result stays, and the other curves are measured.
            traceback.print_exc()
            failed.append(f"{curve.name} failed: {type(error).__name__}: {error}"[:2000])
            continue
        kept = {entry["name"]: entry for entry in document["curves"]} | {curve.name: found}
        document["curves"] = [kept[each.name] for each in CURVES if each.name in kept]
        results.save(document, file)
        picture.draw_curve(found, file.with_name(f"scale-{curve.name}.svg"))
    code = report.main() if os.environ.get("DOCS", "") not in ("", "0") else 0
    print(f"bench-scale: written to {file}")
    for line in failed:
        print(f"bench-scale: {line}", file=sys.stderr)
    return 1 if failed else code


if __name__ == "__main__":
    harness.end_in_order()
    sys.exit(main())
