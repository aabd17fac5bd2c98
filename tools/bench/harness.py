"""Run rows of a benchmark: subjects in turn, several rounds, medians with their spread.

A row is one question ("how fast are 128-byte records appended?"). Its subjects answer it: twinlog,
and a rival when there is one. Each answer is a set of metrics. Subjects alternate within a round,
so that a machine that gets slower meets all of them.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Metric:
    """One number of a row. `better` is "higher", "lower" or "" for a plain fact."""

    name: str
    unit: str
    better: str = ""


@dataclass(frozen=True)
class Context:
    """What a subject needs: a directory that is empty, and how much of the work to do."""

    directory: Path
    scale: float
    state: dict[str, Any] = field(default_factory=dict)  # Kept between the rounds of one subject.


Subject = Callable[[Context], Mapping[str, float]]


@dataclass(frozen=True)
class Row:
    """A question, its metrics and who answers it."""

    name: str
    title: str
    metrics: Sequence[Metric]
    subjects: dict[str, Subject]
    rounds: int = 3
    cleanup: Callable[[Context], None] | None = None
    rival: str = ""  # The subject that the first is held against; the second unless named.
    text: str = ""  # What a reader must know to understand the figures; a sentence or two.


class RowTimeout(Exception):
    """A row hung. The rows behind it are still measured."""


@dataclass(frozen=True)
class Ratio:
    """The first subject against its rival: of the medians, and the lowest and highest of a round.

    Above 1 the first is better, whichever direction is better for the metric.
    """

    median: float
    low: float
    high: float
    text: str = ""  # As a page shows it, where it was read from one.


def wanted(rows: Sequence[Row], only: str) -> list[Row]:
    """Rows whose name contains one of the comma-separated parts of `only`; all when it is empty."""
    parts = [part.strip() for part in only.split(",") if part.strip()]
    return [row for row in rows if not parts or any(part in row.name for part in parts)]


def explain_if_asked(text: str | None) -> None:
    """Settings come from the environment: an argument is a question, or a mistake."""
    if len(sys.argv) > 1:
        print((text or "").strip())
        if sys.argv[1:] in (["--help"], ["-h"]):
            sys.exit(0)
        sys.exit(f"\nno arguments are taken: {' '.join(sys.argv[1:])}")


def new_directory(prefix: str) -> Path:
    """For stores: below BENCH_DIR, else where temporary files go."""
    base = os.environ.get("BENCH_DIR") or None
    if base is not None and not Path(base).is_dir():
        sys.exit(f"BENCH_DIR={base} is not a directory: make it first")
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base))


def compile_all() -> None:
    """As an installation would: users do not pay for compiling at each start of a server."""
    compileall.compile_dir(ROOT / "src" / "twinlog", quiet=1)


def end_in_order() -> None:
    """SIGTERM ends a run as Ctrl-C does: brokers are stopped and stores removed."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """Interrupt whatever the main thread waits for when the time is up."""

    def raise_timeout(*_: object) -> None:
        raise RowTimeout(f"{what}: not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_row(row: Row, make_directory: Callable[[str], Path], *, rounds: int, scale: float) -> dict:
    """All samples of a row, and per metric the median, the lowest and the highest."""
    contexts = {
        subject: Context(make_directory(f"{row.name}-{subject}"), scale) for subject in row.subjects
    }
    samples: dict[str, list[dict[str, float]]] = {subject: [] for subject in row.subjects}
    taken = {**moment(), "rounds": rounds, "scale": scale}
    started = time.monotonic()
    try:
        for number in range(rounds):
            for subject, answer in row.subjects.items():
                samples[subject].append(dict(answer(contexts[subject])))
                print(f"  {row.name} {subject} {number + 1}/{rounds}", file=sys.stderr, flush=True)
    finally:
        if row.cleanup is not None:
            for context in contexts.values():
                row.cleanup(context)
    return {
        "name": row.name,
        "title": row.title,
        "text": row.text,
        "taken": {**taken, "seconds": round(time.monotonic() - started, 1)},
        "metrics": [metric.__dict__ for metric in row.metrics],
        "rival": row.rival or next(iter([*row.subjects][1:]), ""),
        "subjects": {subject: summary(row, samples[subject]) for subject in row.subjects},
        "samples": samples,
    }


def summary(row: Row, samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    result = {}
    for metric in row.metrics:
        values = [sample[metric.name] for sample in samples if metric.name in sample]
        if values:
            result[metric.name] = {
                "median": statistics.median(values),
                "low": min(values),
                "high": max(values),
            }
    return result


def moment() -> dict[str, Any]:
    """When, and of which commit; a tree that differs from its commit says so."""
    commit = _git("rev-parse", "--short", "HEAD") + ("+" if _git("status", "--porcelain") else "")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "load_before": round(os.getloadavg()[0], 2),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def facts() -> dict[str, Any]:
    """The machine, and what runs on it."""
    return {
        "machine": platform.machine(),
        "cpu": _after_colon("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "memory_gb": round(int(_after_colon("/proc/meminfo", "MemTotal").split()[0]) / 1e6),
        "kernel": platform.release(),
        "versions": {
            "Python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("twinlog", "uvloop", "msgspec")},
        },
    }


def _after_colon(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "0"


def number_text(value: float) -> str:
    """Three significant digits, thousands marked."""
    if value >= 1000:
        return f"{value:,.0f}"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One line per row and metric: title, metric, a column for each subject, the ratio."""
    subjects = subject_names(results)
    lines = [["row", "metric", *subjects, *(["ratio"] if len(subjects) > 1 else [])]]
    for result in results:
        for metric in result["metrics"]:
            cells = [_cell(result, subject, metric) for subject in subjects]
            lines.append([result["title"], f"{metric['name']} [{metric['unit']}]", *cells])
            if len(subjects) > 1:
                lines[-1].append(ratio_text(ratio(result, metric)))
    return lines


def groups(results: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Results with the same subjects together: each group is a table without empty columns."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        found.setdefault(tuple(result["subjects"]), []).append(result)
    return list(found.values())


def subject_names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for result in results:
        names.update(dict.fromkeys(result["subjects"]))
    return list(names)


def _cell(result: Mapping[str, Any], subject: str, metric: Mapping[str, str]) -> str:
    found = result["subjects"].get(subject, {}).get(metric["name"])
    if found is None:
        return ""
    if "text" in found:  # Read from a page.
        return str(found["text"])
    text = number_text(found["median"])
    if found["low"] == found["high"]:
        return text
    return f"{text} ({number_text(found['low'])} .. {number_text(found['high'])})"


def ratio(result: Mapping[str, Any], metric: Mapping[str, str]) -> Ratio | None:
    """The row's first subject against its rival; None where there is nothing to compare."""
    if "ratios" in result:  # Read from a page: the rounds are not there any more.
        shown = result["ratios"].get(metric["name"])
        return None if shown is None else Ratio(**shown)
    first, rival = next(iter(result["subjects"])), result["rival"]
    if not rival or rival == first or not metric["better"]:
        return None

    def better(ours: float | None, theirs: float | None) -> float | None:
        if not ours or not theirs:
            return None
        return ours / theirs if metric["better"] == "higher" else theirs / ours

    name = metric["name"]
    medians = [result["subjects"][who].get(name, {}).get("median") for who in (first, rival)]
    of_medians = better(*medians)
    if of_medians is None:
        return None
    rounds = zip(result["samples"][first], result["samples"][rival], strict=True)
    paired = [better(ours.get(name), theirs.get(name)) for ours, theirs in rounds]
    seen = [of_medians, *(value for value in paired if value is not None)]
    return Ratio(of_medians, min(seen), max(seen))


def ratio_text(found: Ratio | None) -> str:
    if found is None or found.text:
        return "" if found is None else found.text
    if found.low == found.high:
        return f"{found.median:.2f}x"
    return f"{found.median:.2f}x ({found.low:.2f} .. {found.high:.2f})"
