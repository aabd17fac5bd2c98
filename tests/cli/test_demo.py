"""`twinlog demo` as a user runs it: good, sabotaged, interrupted. Spark has its own tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import wait_until

SECONDS = 2


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "twinlog.cli.main", "demo", "--seconds", str(SECONDS), *arguments]


def run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any], Path]:
    report = tmp_path / "report.html"
    done = subprocess.run(
        command("--json", "--report", str(report), *arguments),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), report


@pytest.mark.timeout(300)
def test_a_good_run_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code, verdict, report = run(tmp_path, "--no-spark")
    assert code == 0, verdict
    assert verdict["reasons"] == []
    assert verdict["lost"] == verdict["missing_on_slave"] == verdict["order_violations"] == 0
    assert verdict["has_switched"]
    assert verdict["seconds_without_writes"] < 10  # Far less; but this machine may be busy.
    assert verdict["in_flight_at_kill"] >= 64
    assert verdict["consumed"] >= verdict["acknowledged"] > verdict["acknowledged_before_kill"] > 0
    page = report.read_text()
    assert "Nothing acknowledged was lost." in page
    assert page.count("<svg") == 3
    assert "takes over" in page
    assert "http://" not in page
    assert "https://" not in page
    assert [path for path in tmp_path.iterdir() if path != report] == []


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_a_slow_rate_is_kept_and_many_sends_are_open_at_the_kill_all_the_same(
    tmp_path: Path,
) -> None:
    code, verdict, _ = run(tmp_path, "--no-spark", "--rate", "50", "--size", "4096")
    assert code == 0, verdict
    assert verdict["in_flight_at_kill"] >= 64
    # Thousands without a rate; after the outage what was due meanwhile is made up for.
    assert max(verdict["rate_before"], verdict["rate_after"]) < 500


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["corrupt", pytest.param("drop", marks=pytest.mark.chaos)])
def test_sabotage_is_found(tmp_path: Path, kind: str) -> None:
    code, verdict, report = run(tmp_path, "--no-spark", "--sabotage", kind)
    assert code == 1
    assert verdict["missing_on_slave"] == 1
    assert not verdict["has_switched"], "with fixed roles"
    assert "The run failed." in report.read_text()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that ended and that nobody has waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def interrupted(
    tmp_path: Path, arguments: tuple[str, ...], signals: tuple[int, ...], moment: str
) -> None:
    """Send the signals once the run has said `moment`: it ends in order and leaves nothing."""
    log = tmp_path.with_suffix(".log")
    with log.open("w") as stream:
        process = subprocess.Popen(
            command("--report", str(tmp_path / "report.html"), *arguments),
            env={**os.environ, "TMPDIR": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            stderr=stream,
        )
    try:
        wait_until(lambda: moment in log.read_text(), moment, deadline_s=200)
        children = wait_until(
            lambda: psutil.Process(process.pid).children(recursive=True), "processes of the demo"
        )
        for number in signals:
            process.send_signal(number)
            time.sleep(0.15)  # Two at the same moment would count as one.
        assert process.wait(60) == 130, log.read_text()
        wait_until(lambda: not any(is_alive(child) for child in children), "all are stopped")
        assert "Traceback" not in log.read_text()
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGINT,) * 3, (signal.SIGTERM,)],
    ids=["ctrl-c", "impatient", "terminated"],
)
def test_an_interrupted_run_stops_what_it_started(tmp_path: Path, signals: tuple[int, ...]) -> None:
    interrupted(tmp_path, ("--no-spark",), signals, "traffic for")


@pytest.mark.chaos
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["Spark: archive", "Spark: audit"])
def test_a_spark_job_is_ended_with_the_run(tmp_path: Path, moment: str) -> None:
    interrupted(tmp_path, (), (signal.SIGINT,), moment)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_with_spark_the_topic_is_archived_and_the_replicas_are_equal(tmp_path: Path) -> None:
    code, verdict, _ = run(tmp_path)
    assert code == 0, verdict
    assert verdict["audit"] == "equal"
    assert verdict["rows_archived"] >= verdict["acknowledged"]
