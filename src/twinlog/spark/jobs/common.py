"""What jobs share: progress, summaries, and running tasks on a session."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from twinlog.spark.places import local_path
from twinlog.spark.run.pace import Pace, time_text
from twinlog.spark.run.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BAR_WIDTH = 28
LINE_SECONDS = 5.0
POLL_SECONDS = 0.3
QUERY_POLL_SECONDS = 1
QUERY_TRIES = 8
NO_WORKER = "Python worker failed to connect back"


@dataclass
class Summary:
    """What a job found; printed as one JSON line last."""

    job: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 when all is well, 1 when differences were found."""
        return 1 if self.findings else 0

    def line(self, findings_max: int = 20) -> str:
        """Return the JSON line."""
        shown = self.findings[:findings_max]
        more = {"differences": len(self.findings), "findings": shown} if shown else {}
        data = {"job": self.job, "ok": not self.findings, **self.facts, **more}
        data["seconds"] = round(self.seconds, 3)
        return json.dumps(data, sort_keys=False, default=str)


class Progress:
    """A bar on a terminal, a line now and then in a pipe, nothing when there is no stream."""

    def __init__(
        self, stream: TextIO | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream, self.now = stream, now
        self.last = -LINE_SECONDS
        self.began = now()
        self.is_bar = bool(stream is not None and stream.isatty())
        self.has_bar = False

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show how far a job is."""
        if self.stream is None:
            return
        share = f" {done}/{total}{self._estimate(done, total)}" if total else ""
        if self.is_bar:
            filled = BAR_WIDTH * done // total if total else 0
            bar = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}]" if total else ""
            self.stream.write(f"\r\x1b[K{bar}{share} {text}")
            self.has_bar = True
        elif self.now() - self.last >= LINE_SECONDS or (total and done == total):
            self.stream.write(f"{text}{share}\n")
            self.last = self.now()
        self.stream.flush()

    def _estimate(self, done: int, total: int) -> str:
        """Say how long the rest takes, from how long the part that is done took."""
        if not 0 < done < total:
            self.began = self.now() if done == 0 else self.began
            return ""
        left = (self.now() - self.began) * (total - done) / done
        return f", about {time_text(left)} left"

    def end(self) -> None:
        """Leave the line of the bar."""
        if self.stream is not None and self.has_bar:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


@contextmanager
def session_of(
    spark: SparkSession | None, job: str, *, master: str = "local[2]"
) -> Iterator[SparkSession]:
    """Use the session given, else that of the caller's program, else one for this job."""
    from pyspark.sql import SparkSession as Sessions

    if (running := spark or Sessions.getActiveSession()) is not None:
        make_active(running)
        yield running
        return
    own = local_session(job, master=master)
    try:
        yield own
    finally:
        own.stop()


def make_active(spark: SparkSession) -> None:
    """Make a session that of this thread.

    Spark looks for formats that are written in Python only there, and only the thread that made a
    session has it. A frame of Python's own values is a public way.
    """
    spark.createDataFrame([], "nothing INT")


def with_parallelism(source: Mapping[str, str], spark: SparkSession) -> dict[str, str]:
    """Plan at least as many tasks as the session runs at a time, unless the user chose.

    A Connect session cannot tell.
    """
    given = dict(source)
    context = getattr(spark, "_sc", None)
    if context is not None and "minpartitions" not in {name.lower() for name in given}:
        most = next((v for k, v in given.items() if k.lower() == "maxpartitions"), None)
        count = int(context.defaultParallelism)
        given["minPartitions"] = str(min(count, int(most)) if most else count)
    return given


def run_tasks(
    spark: SparkSession,
    function: Callable[[Any], list[dict[str, Any]]],
    tasks: Sequence[Any],
    schema: str,
    progress: Progress,
    *,
    text: str,
) -> list[Any]:
    """Run `function` on every task on the cluster and collect the rows it returns.

    `function` must be importable on the workers. Works on a classic session and through Connect.
    """
    from twinlog.spark.run.tasks import task_frame

    if not tasks:
        return []
    frame = task_frame(spark, function, tasks, schema)
    with _watch(spark, progress, len(tasks), text):
        return list(frame.collect())


@contextmanager
def _watch(spark: SparkSession, progress: Progress, total: int, text: str) -> Iterator[None]:
    """Show finished tasks while a job runs (a Connect session cannot tell)."""
    over = threading.Event()

    def poll() -> None:
        tracker = getattr(getattr(spark, "_sc", None), "statusTracker", None)
        while tracker is not None and not over.wait(POLL_SECONDS):
            infos = [tracker().getStageInfo(stage) for stage in tracker().getActiveStageIds()]
            done = sum(info.numCompletedTasks for info in infos if info)
            progress.show(text, done, total)

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        progress.show(text, total, total)
        progress.end()


def watcher(job: str, progress: Progress) -> Callable[[StreamingQuery], None]:
    """Return what shows the progress of a streaming query each time it is called."""
    pace = Pace()

    def watch(query: StreamingQuery) -> None:
        if progress.stream is not None:
            progress.show(f"{job}: {pace.text(query.lastProgress) or 'starting'}")

    return watch


def follow_query(
    start: Callable[[], StreamingQuery],
    show: Callable[[StreamingQuery], None],
    *,
    seconds_max: float | None = None,
) -> StreamingQuery:
    """Run a streaming query to its end, starting it again when Spark could not start a worker.

    Spark gives a Python worker ten seconds to start, whatever the machine is doing; a query goes on
    from its checkpoint, so starting it again is safe.
    """
    end = None if seconds_max is None else time.monotonic() + seconds_max
    for attempt in range(QUERY_TRIES):
        query = start()
        try:
            while query.isActive and (end is None or time.monotonic() < end):
                query.awaitTermination(QUERY_POLL_SECONDS)
                show(query)
            error = query.exception()
            if error is None:
                return query
            raise error
        except Exception as error:
            if NO_WORKER not in str(error) or attempt + 1 == QUERY_TRIES:
                raise
            time.sleep(attempt + 1)
        finally:
            query.stop()
    raise AssertionError("unreachable")


def kind_of(path: str | Path) -> str:
    """Say what a directory is: "store", "archive" or "nothing".

    Raises:
        OptionError: it is a URI of something else.
    """
    place = local_path(path, "the store or archive")
    if (place / "_manifest").is_dir():
        return "archive"
    return "store" if (place / "commitlog").is_dir() else "nothing"


def source_options(options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the options of a job; every topic when none is named."""
    given = dict(options or {})
    folded = {key.lower() for key in given}
    if not folded & {"subscribe", "subscribepattern", "assign", "topic"}:
        given["subscribePattern"] = ".*"
    return given
