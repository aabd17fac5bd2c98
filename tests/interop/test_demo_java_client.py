"""`twinlog demo --apache-client`: the master dies under RocketMQ's own Java client."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.processes import wait_until
from support.toolchain import cache_directory

DEMO = [sys.executable, "-m", "twinlog.cli.main", "demo", "--apache-client", "--no-spark"]


@pytest.mark.timeout(420)
@pytest.mark.parametrize("rate", [0, 100], ids=["fast", "paced"])
def test_the_java_client_loses_nothing_that_was_acknowledged(tmp_path: Path, rate: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    report = tmp_path / "report.html"
    done = subprocess.run(
        [*DEMO, "--seconds", "3", "--rate", str(rate), "--json", "--report", str(report)],
        env={**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache_directory())},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["lost"] == verdict["missing_on_slave"] == verdict["order_violations"] == 0
    assert verdict["in_flight_at_kill"] >= 64
    assert verdict["consumed"] >= verdict["acknowledged"] > verdict["acknowledged_before_kill"] > 0
    assert "RocketMQ Java 4.9.7" in report.read_text()
    assert list(temporary.iterdir()) == []


def jvm_of(pid: int) -> psutil.Process | None:
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
            if "DemoClient" in child.cmdline():
                return child
    return None


@pytest.mark.timeout(300)
def test_an_interrupted_run_ends_its_jvm(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*DEMO, "--seconds", "60", "--report", str(tmp_path / "report.html")],
        env={**os.environ, "TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache_directory())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        jvm = wait_until(lambda: jvm_of(process.pid), "the JVM with the clients", deadline_s=200)
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 130
        assert jvm is not None
        assert not jvm.is_running()
        assert list(temporary.iterdir()) == []
    finally:
        process.terminate()
        process.wait(90)


@pytest.mark.parametrize(("missing", "advice"), [("mvn", "install maven"), ("javac", "JDK")])
def test_a_missing_tool_is_one_clear_line(tmp_path: Path, missing: str, advice: str) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in {"java", "javac", "mvn"} - {missing}:
        path = shutil.which(name)
        assert path is not None
        (tools / name).symlink_to(path)
    done = subprocess.run(
        [*DEMO, "--json", "--report", str(tmp_path / "report.html")],
        env={"PATH": str(tools), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"needs {missing}" in done.stderr
    assert advice in done.stderr
