"""`twinlog namesrv` as a process: ready line, clean stop, exit codes."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TWINLOG = Path(sys.executable).parent / "twinlog"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TWINLOG, *arguments], capture_output=True, text=True, timeout=60)


def config(directory: Path, text: str) -> str:
    path = directory / "namesrv.conf"
    path.write_text(f"listenPort=0\nkvConfigPath={directory}/kvConfig.json\n{text}")
    return str(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_line_names_the_address_and_a_signal_stops_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = config(tmp_path, "")
    process = subprocess.Popen(
        [TWINLOG, "namesrv", "-c", path], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    ready = process.stderr.readline().strip()
    assert ready.startswith("twinlog namesrv ready listen=127.0.0.1:")
    with socket.create_connection(("127.0.0.1", int(ready.rpartition(":")[2])), timeout=30):
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_print_shows_the_configuration_and_exits(tmp_path: Path) -> None:
    shown = run("namesrv", "-p", "-c", config(tmp_path, "orderMessageEnable=true\n"))
    assert shown.returncode == 0
    assert "orderMessageEnable=true\n" in shown.stdout
    assert "listenPort=0\n" in shown.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [("listenPort=many\n", "listenPort=many"), ("clusterTest=7x\n", "clusterTest=7x")],
)
def test_bad_value_is_one_line_with_file_key_and_value(
    tmp_path: Path, text: str, said: str
) -> None:
    path = config(tmp_path, text)
    ended = run("namesrv", "-c", path)
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert path in ended.stderr
    assert said in ended.stderr


def test_missing_file_is_a_bad_configuration(tmp_path: Path) -> None:
    ended = run("namesrv", "-c", str(tmp_path / "no.conf"))
    assert ended.returncode == 2
    assert "no.conf" in ended.stderr


def test_taken_port_ends_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        path = config(tmp_path, f"listenPort={taken.getsockname()[1]}\n")
        ended = run("namesrv", "-c", path)
    assert ended.returncode == 1
    assert "cannot start" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_unreadable_kv_file_ends_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{broken")
    ended = run("namesrv", "-c", config(tmp_path, ""))
    assert ended.returncode == 1
    assert "kvConfig.json cannot be read" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "kvConfig.json").read_text() == "{broken"


def test_help_lists_commands_without_importing_them() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    assert "namesrv" in shown.stdout


@pytest.mark.parametrize("name", ["mqnamesrv", "mqbroker"])
def test_apaches_names_are_the_servers_alone(name: str) -> None:
    command = Path(sys.executable).parent / name
    done = subprocess.run([command, "-h"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: {name} [OPTIONS]\n")
    assert "Commands" not in done.stdout
    printed = subprocess.run(
        [command, "-p", "-n", "127.0.0.1:1"], capture_output=True, text=True, timeout=60
    )
    assert printed.returncode == 0
    assert "listenPort=" in printed.stdout
