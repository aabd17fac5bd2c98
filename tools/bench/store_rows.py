"""Rows about the store alone: no sockets, one process per sample.

The work is done by store_worker.py in a process of its own, so that CPU time and memory are the
store's, and so that it can be killed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Context, Metric, Row

_WORKER = Path(__file__).with_name("store_worker.py")
_LOG_SIZE = 1_000_000_000  # "A 1 GB log", as the figures for Apache were taken.


def _start(mode: str, directory: Path, **arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(_WORKER), mode, str(directory), json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"worker ended with {process.wait()} before it answered")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _sample(mode: str, context: Context, **arguments: Any) -> dict[str, Any]:
    """One worker on an empty directory, killed once it has answered."""
    directory = context.directory / "store"
    shutil.rmtree(directory, ignore_errors=True)
    process = _start(mode, directory, **arguments)
    try:
        return _line(process)
    finally:
        _kill(process)
        shutil.rmtree(directory, ignore_errors=True)


def _append(size: int, count: int):
    def run(context: Context) -> Mapping[str, float]:
        return _sample("append", context, size=size, count=int(count * context.scale))

    return run


def _flush(context: Context) -> Mapping[str, float]:
    return _sample("flush", context, seconds=max(0.5, 3 * context.scale))


def _topics(context: Context) -> Mapping[str, float]:
    topics = max(1, int(10_000 * context.scale))
    return _sample("topics", context, topics=topics, queues=8, rounds=3)


def _integrity(context: Context) -> Mapping[str, float]:
    count = max(8_000, int(200_000 * context.scale)) // 64 * 64
    return _sample("integrity", context, size=1024, count=count)


def _killed_store(context: Context) -> Path:
    """A log of 1 GB whose writer was killed while writing; made once per row."""
    directory = context.directory / "killed"
    if not directory.exists():
        process = _start("fill", directory, size=1024, bytes=int(_LOG_SIZE * context.scale))
        try:
            context.state["records"] = _line(process)["records"]
        finally:
            _kill(process)
    return directory


def _recover(directory: Path) -> dict[str, float]:
    """Seconds from starting a process to its first accepted put; it is killed then."""
    started = time.perf_counter()
    process = _start("recover", directory)
    try:
        answer = _line(process)
        answer["start_to_put"] = time.perf_counter() - started
    finally:
        _kill(process)
    return answer


def _recovery(context: Context) -> Mapping[str, float]:
    return _recover(_killed_store(context))


def _rebuild(context: Context) -> Mapping[str, float]:
    directory = _killed_store(context)
    for name in ("consumequeue", "twinlog", "index"):
        shutil.rmtree(directory / name, ignore_errors=True)
    (directory / "checkpoint").unlink(missing_ok=True)
    answer = _recover(directory)
    answer["rate"] = answer["records"] / answer["load"]
    return answer


_APPEND_METRICS = [
    Metric("rate", "records/s", "higher"),
    Metric("cpu", "us/record", "lower"),
    Metric("anonymous", "MiB", "lower"),
]

ROWS = [
    Row(
        "store-append-128",
        "append 128 B, queues and index",
        _APPEND_METRICS,
        {"twinlog": _append(128, 300_000)},
        rounds=5,
    ),
    Row(
        "store-append-1k",
        "append 1 KiB, queues and index",
        _APPEND_METRICS,
        {"twinlog": _append(1024, 200_000)},
        rounds=5,
    ),
    Row(
        "store-flush",
        "SYNC_FLUSH, 1 KiB",
        [
            Metric("flushes", "fdatasync/s, one record each", "higher"),
            Metric("grouped", "records/s, 64 waiting", "higher"),
        ],
        {"twinlog": _flush},
    ),
    Row(
        "store-recovery",
        "1 GB log after SIGKILL",
        [
            Metric("start_to_put", "s from process start to first put", "lower"),
            Metric("load", "s in load", "lower"),
            Metric("scanned", "records"),
        ],
        {"twinlog": _recovery},
        rounds=5,
    ),
    Row(
        "store-rebuild",
        "1 GB log, queues, index and checkpoint gone",
        [
            Metric("start_to_put", "s from process start to first put", "lower"),
            Metric("rate", "records/s rebuilt", "higher"),
            Metric("anonymous", "MiB", "lower"),
        ],
        {"twinlog": _rebuild},
    ),
    Row(
        "store-integrity",
        "checked reads and the scrub, 1 KiB",
        [
            Metric("checked", "us/message read and checked", "lower"),
            Metric("unchecked", "us/message with twinlogCheckReads=false", "lower"),
            Metric("scrub", "MiB of log per CPU second", "higher"),
            Metric("index", "MiB of log compared with the index per CPU second", "higher"),
        ],
        {"twinlog": _integrity},
    ),
    Row(
        "store-topics",
        "10,000 topics x 8 queues",
        [
            Metric("rate", "records/s", "higher"),
            Metric("disk", "MiB on disk without the log", "lower"),
            Metric("descriptors", "open", "lower"),
            Metric("anonymous", "MiB", "lower"),
        ],
        {"twinlog": _topics},
        rounds=1,
    ),
]
