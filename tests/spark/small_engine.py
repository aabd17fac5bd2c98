"""Spark's micro-batches without the JVM: a driver that plans, tasks in processes of their own.

    python -c 'import small_engine; small_engine.main()' '{"work": ..., "table": ..., ...}'

It keeps a log of offsets and one of commits, as Spark's checkpoint does, tries a task four times
and ends when that is in vain. The parts of the pipeline are called as Spark calls them, so that
they can be killed hundreds of times where a JVM takes a minute to start.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from twinlog.spark.archive.delta import Delta
from twinlog.spark.archive.lake import LakeWriter, Written, staging_of
from twinlog.spark.jobs.archive import with_start
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_stream, read_window
from twinlog.spark.run.faults import point
from twinlog.spark.write.sending import Task, send_rows
from twinlog.spark.write.sink import SinkOptions

TRIES = 4
AT_A_TIME = 2
IDLE_S = 0.2
SENT = ("body", "keys", "tags", "msg_id", "queue_id")
Work = Callable[[dict[str, Any], str, int, int, Any], Any]


def archive_task(given: dict[str, Any], query: str, batch: int, number: int, window: Any) -> Any:
    """What `LakeWriter.write` does in a task."""
    done = Written(query, batch, [], [])
    prefix = f"{batch:08d}-{query}-{number}-{os.urandom(4).hex()}"
    with staging_of(given["table"]) as staging:
        _writer(given).add_window(window, prefix, staging, done)
    point("staged")
    return done


def mirror_task(given: dict[str, Any], query: str, batch: int, number: int, window: Any) -> Any:
    """Send the rows of a window to the queues that they had."""
    source = SourceOptions.parse(given["source"])
    target = {"nameServer": given["source"]["nameServer"], "topic": given["copy"]}
    columns = (*SENT, "broker", "queue_offset")

    def batches() -> Iterator[pa.RecordBatch]:
        for part in read_window(source, window, columns, patience_ms=source.outage_ms):
            names = ("broker", "queue_id", "queue_offset")
            rows = zip(*(part.column(name).to_pylist() for name in names), strict=True)
            places = pa.array([",".join(map(str, row)) for row in rows], pa.string())
            yield part.select(list(SENT)).append_column("origin", places)

    options = SinkOptions.parse({**target, "exactlyOnce": "true"})
    read = list(batches())  # in Spark another process reads; both have an event loop
    return send_rows(options, iter(read), Task(number, query, batch))


def _writer(given: dict[str, Any]) -> LakeWriter:
    options = {"path": given["table"], "kind": "delta", "settings": "{}"}
    return LakeWriter({**options, "source": json.dumps(given["source"])})


def attempt(work: Work, arguments: tuple[Any, ...], result: str) -> None:
    """One attempt of a task: its result is a file, or it is lost."""
    found = pickle.dumps(work(*arguments))
    Path(f"{result}.new").write_bytes(found)
    os.replace(f"{result}.new", result)


class Query:
    """One streaming query with its checkpoint."""

    def __init__(self, name: str, given: dict[str, Any], work: Work) -> None:
        self.name, self.given, self.work = name, given, work
        self.home = Path(given["work"]) / name
        for part in ("offsets", "commits", "results"):
            (self.home / part).mkdir(parents=True, exist_ok=True)
        options = SourceOptions.parse(given["source"])
        self.planner = StreamPlanner(options, open_stream(options))
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["small_engine"])

    def run(self) -> None:
        while True:
            last = self._newest("offsets")
            if last > self._newest("commits"):
                self._batch(last)
                continue
            start = self._offset(last)
            end = self.planner.latest(start, limited=True)
            point("latest")
            if end == start:
                time.sleep(IDLE_S)
                continue
            self._write("offsets", last + 1, end)

    def _batch(self, number: int) -> None:
        windows = self.planner.partitions(self._offset(number - 1), self._offset(number))
        point("planned")
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            tasks = enumerate(windows)
            results = list(pool.map(lambda task: self._task(number, *task), tasks))
        if self.work is archive_task:
            _writer(self.given).commit(results, number)
        self._write("commits", number, {})

    def _task(self, batch: int, number: int, window: Any) -> Any:
        for _ in range(TRIES):
            result = self.home / "results" / os.urandom(8).hex()
            arguments = (self.given, self.name, batch, number, window)
            process = self.processes.Process(
                target=attempt, args=(self.work, arguments, str(result))
            )
            process.start()
            process.join()
            if result.exists():
                return pickle.loads(result.read_bytes())
        raise RuntimeError(f"task {number} of batch {batch} failed {TRIES} times")

    def _newest(self, kind: str) -> int:
        return max((int(p.name) for p in (self.home / kind).iterdir()), default=-1)

    def _offset(self, number: int) -> dict[str, Any]:
        if number < 0:
            return self.planner.initial()
        found: dict[str, Any] = json.loads((self.home / "offsets" / str(number)).read_text())
        return found

    def _write(self, kind: str, number: int, value: dict[str, Any]) -> None:
        new = self.home / f".{kind}"
        new.write_text(json.dumps(value))
        new.replace(self.home / kind / str(number))


def endless(name: str, given: dict[str, Any], work: Work) -> None:
    try:
        Query(name, given, work).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    given = json.loads(sys.argv[1])
    ends = Delta(given["table"]).ends()
    archived = {**given, "source": with_start({"verifyCrc": "true", **given["source"]}, ends)}
    copied = {**given, "source": {**given["source"], "startingOffsets": "earliest"}}
    copied["source"]["keepOrder"] = "true"
    jobs = (("archive", archived, archive_task), ("mirror", copied, mirror_task))
    threads = [threading.Thread(target=endless, args=arguments) for arguments in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
