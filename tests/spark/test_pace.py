"""What jobs show while they run: rows, bytes, rate and an estimate."""

from __future__ import annotations

import io
import json
from typing import Any

from twinlog.spark.jobs.common import Progress, watcher
from twinlog.spark.plan.offsets import symbol, to_json
from twinlog.spark.run.pace import Pace, size_text, time_text


class Clock:
    """A clock that tests move."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def offset(rows: int, place: int) -> dict[str, Any]:
    mark = {"crc": 1, "epoch": 0, "last": place - 9, "phys": place}
    return to_json({("orders", "broker-a", 0): rows}, {"broker-a": mark})


def progress(start: Any, end: Any, behind: int) -> dict[str, Any]:
    latest = {**offset(0, 9), "behind": behind, "skipped": 0}
    texts = [json.dumps(value) for value in (start, end, latest)]
    source = dict(zip(("startOffset", "endOffset", "latestOffset"), texts, strict=True))
    return {"sources": [source]}


def test_a_query_tells_rows_bytes_rate_and_when_it_is_done() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.text(None) == ""
    assert pace.text({"sources": []}) == ""
    assert pace.text(progress(symbol("earliest"), symbol("earliest"), 0)) == ""
    clock.now += 10
    first = pace.text(progress(offset(1000, 5000), offset(3000, 5000 + (3 << 20)), 6000))
    wanted = "2,000 rows, 3.0 MiB of the log, 200 rows per second, 6,000 rows to go, about 30 s"
    assert first == wanted
    clock.now += 10  # counted from where the run began, not from where the batch did
    last = pace.text(progress(offset(3000, 9000), offset(9000, 5000 + (9 << 20)), 0))
    assert last == "8,000 rows, 9.0 MiB of the log, 400 rows per second"


def test_sizes_and_times_are_written_as_people_read_them() -> None:
    sizes = [size_text(size) for size in (0, 1023, 1536, 5 << 30, 9000 << 40)]
    assert sizes == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB", "9000.0 TiB"]
    times = [time_text(seconds) for seconds in (0.1, 59, 90, 3599, 5400)]
    assert times == ["1 s", "59 s", "2 min", "60 min", "1.5 h"]


def test_a_job_of_tasks_estimates_what_is_left() -> None:
    clock, stream = Clock(), io.StringIO()
    shown = Progress(stream, now=clock)
    shown.show("verify", 0, 10)
    clock.now += 20
    shown.show("verify", 4, 10)
    clock.now += 30
    shown.show("verify", 10, 10)
    assert stream.getvalue().splitlines() == [
        "verify 0/10", "verify 4/10, about 30 s left", "verify 10/10",
    ]  # fmt: skip


def test_a_query_that_has_no_progress_yet_is_starting() -> None:
    class Query:
        lastProgress = None  # noqa: N815

    stream = io.StringIO()
    query: Any = Query()
    watcher("archive", Progress(stream))(query)
    watcher("archive", Progress())(query)
    assert stream.getvalue() == "archive: starting\n"
