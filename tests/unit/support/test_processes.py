"""The helpers that other suites stand on: waits that end, processes that are ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import Process, free_broker_port, port_is_free, process_group, wait_until


def test_wait_until_names_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match="the moon to rise"):
        wait_until(lambda: False, "the moon to rise", deadline_s=0.01, interval_s=0.001)


def test_wait_until_returns_the_value() -> None:
    values = iter([0, 0, 7])
    assert wait_until(lambda: next(values), "seven", interval_s=0) == 7


def test_process_that_dies_before_it_is_ready_shows_its_log(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; sys.exit('bad key')"]
    process = Process("child", argv, log=tmp_path / "log")
    with pytest.raises(AssertionError, match=r"(?s)ended with 1 .*bad key"):
        process.wait_for_text("ready")


def test_group_kills_what_is_left(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with process_group() as group:
        process = Process("child", argv, log=tmp_path / "log", stdin=-1)
        group.add(process)
        process.wait_for_text("ready")
        assert process.is_alive
    assert not process.is_alive
    assert process.popen.stdin is not None
    process.popen.stdin.close()


def test_broker_port_leaves_room_for_its_neighbours() -> None:
    port = free_broker_port()
    assert all(port_is_free(port + distance) for distance in (-2, 0, 1))


def test_a_port_is_given_to_one_process_only() -> None:
    """Nor twice to the same one, while its server may want to start again."""
    port = free_broker_port()
    code = (
        f"from support import processes; processes.PORTS = [{port}, {port + 1}, {port - 2}];"
        "print(processes.free_port())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout == ""
    assert "no free port found" in done.stderr
    assert free_broker_port() not in (port - 2, port, port + 1)


def test_what_a_test_starts_listens_to_ctrl_c() -> None:
    shown = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT))"]
    said = subprocess.run(shown, capture_output=True, text=True, timeout=60).stdout
    assert "default_int_handler" in said


def test_under_a_parent_that_ignores_sigint_it_listens_too() -> None:
    """A script that runs the tests in the background has SIGINT ignored and passes that on."""
    one = f"{__file__}::test_what_a_test_starts_listens_to_ctrl_c"
    script = 'trap "" INT; exec "$@"'
    argv = [
        "sh",
        "-c",
        script,
        "sh",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run([*argv, one], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
