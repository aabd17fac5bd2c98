"""Rows compared with Kafka: our SYNC_MASTER pair with batches, two Kafka brokers with acks=all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import clusters
from clusters import QUEUES, Usage, usage_since
from harness import Context, Metric, Row, Subject
from kafka import KafkaPair

from twinlog.client.producer.batching import IN_FLIGHT_SIZE_MAX

_SAMPLE_S = 5.0
_BATCH_BYTES = 64 * 1024
_MEMBER_OVERHEAD = 64  # Of a batch's member: lengths and its unique id.
_WORKER = Path(__file__).with_name("batch_worker.py")
_SIZES = (128, 1024)


class Contenders:
    """Both pairs, up while the rows here are measured; started by the first that asks."""

    def __init__(self) -> None:
        self._ours: clusters.Pair | None = None
        self._kafka: KafkaPair | None = None
        self._place: Path | None = None

    def ours(self, context: Context) -> clusters.Pair:
        if self._ours is None:
            self._ours = clusters.Pair("twinlog", "SYNC_MASTER", self._directory(context) / "ours")
            self._ours.warm_up(max(2.0, 5.0 * min(1.0, context.scale)))
        return self._ours

    def kafka(self, context: Context) -> KafkaPair:
        if self._kafka is None:
            topics = [f"bench{size}" for size in _SIZES]
            self._kafka = KafkaPair(self._directory(context) / "kafka", topics)
            seconds = max(3.0, clusters.WARM_UP_S * min(1.0, context.scale))
            for topic, size in zip(topics, _SIZES, strict=True):
                self._kafka.send(topic, size, seconds / len(_SIZES))
        return self._kafka

    def _directory(self, context: Context) -> Path:
        if self._place is None:
            base = context.directory.parent
            self._place = base.with_name(f"{base.name}-kafka")
        return self._place

    def stop(self) -> None:
        for pair in (self._ours, self._kafka):
            if pair is not None:
                pair.stop()
        if self._place is not None:
            subprocess.run(["rm", "-rf", str(self._place)], check=True)
        self._ours = self._kafka = self._place = None


CONTENDERS = Contenders()


def _seconds(context: Context) -> float:
    return max(2.0, _SAMPLE_S * min(1.0, context.scale))


def _settle() -> None:
    """Nobody pays for the gigabyte that the sample before has left to be written."""
    os.sync()


def _figures(report: Mapping[str, Any], before: Mapping[int, Usage]) -> Mapping[str, float]:
    used = usage_since(before)
    return {
        "rate": report["messages"] / report["seconds"],
        "p99": report["p99"],
        "cpu": sum(one.cpu_s for one in used.values()) * 1e6 / report["messages"],
        "anonymous": max(one.anonymous_mb for one in used.values()),
    }


def _kafka(size: int) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        pair = CONTENDERS.kafka(context)
        _settle()
        before = clusters.usages(pair.pids)
        return _figures(pair.send(f"bench{size}", size, _seconds(context)), before)

    return run


def _ours(size: int, load: Callable[[clusters.Pair, int, float], Mapping[str, Any]]) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        pair = CONTENDERS.ours(context)
        _settle()
        before = clusters.usages([pair.master.pid, pair.slave.pid])
        return _figures(load(pair, size, _seconds(context)), before)

    return run


def _client(pair: clusters.Pair, size: int, seconds: float) -> Mapping[str, Any]:
    argv = [sys.executable, str(_WORKER), pair.namesrv.address, f"bench{size}", str(size)]
    done = subprocess.run([*argv, str(seconds)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{_WORKER.name}: {done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _compiled(pair: clusters.Pair, size: int, seconds: float) -> Mapping[str, Any]:
    report = clusters.run_load(
        "send", addr=pair.master.address, topic=f"bench{size}", size=size, queues=QUEUES,
        conns=1, depth=IN_FLIGHT_SIZE_MAX // _BATCH_BYTES,
        members=_BATCH_BYTES // (size + _MEMBER_OVERHEAD), seconds=seconds,
    )  # fmt: skip
    return {**report, "p99": report["latency_ms"]["p99"]}


_METRICS = [
    Metric("rate", "msg/s", "higher"),
    Metric("p99", "ms from send to acknowledgement", "lower"),
    Metric("cpu", "us of both brokers per message", "lower"),
    Metric("anonymous", "MB of the larger broker", "lower"),
]
_LOADS = {
    "client": (_client, "our Python client's automatic batches"),
    "compiled": (_compiled, "batches of a compiled load generator"),
}
ROWS = [
    Row(
        f"kafka-{size}-{name}",
        f"two replicas, {size if size < 1024 else size // 1024} {'B' if size < 1024 else 'KiB'}, "
        f"{title}",
        _METRICS,
        {"twinlog": _ours(size, load), "kafka": _kafka(size)},
        text="Kafka is used through its own Java producer in both rows of a size: one producer, "
        "batches of 64 KiB, at most 5 requests in flight (it allows no more while it keeps order). "
        "twinlog's sender has up to 4 MiB in flight in both rows, which is the default of its "
        "client. A sample begins when everything before it is on disk.",
    )
    for size in _SIZES
    for name, (load, title) in _LOADS.items()
]
