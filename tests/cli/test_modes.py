"""The files of each deployment mode are ones that the servers take."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import process, twinlog
from twinlog.cli.modes import MODES

CONF = Path(__file__).resolve().parents[2] / "conf"


def keys_of(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    "path", sorted(CONF.rglob("*.conf")), ids=lambda p: p.parent.name + "-" + p.stem
)
def test_the_file_has_no_fault(path: Path) -> None:
    done = twinlog("config", "lint", str(path))
    assert done.code == 0, done.out


@pytest.mark.parametrize("mode", MODES)
def test_the_files_of_a_mode_belong_together(mode: str) -> None:
    folder = CONF / mode
    brokers = [keys_of(path) for path in sorted(folder.glob("broker-*.conf"))]
    assert (folder / "namesrv.conf").exists()
    groups: dict[str, list[dict[str, str]]] = {}
    for keys in brokers:
        groups.setdefault(keys["brokerName"], []).append(keys)
    assert len(groups) == MODES[mode].groups
    for members in groups.values():
        assert len(members) == MODES[mode].brokers
        if "enableControllerMode" in members[0]:
            assert {keys["totalReplicas"] for keys in members} == {str(len(members))}
            assert keys_of(folder / "namesrv.conf")["enableControllerInNamesrv"] == "true"
        else:
            assert sorted(keys["brokerId"] for keys in members) == [
                str(number) for number in range(len(members))
            ]


def test_every_mode_is_there() -> None:
    assert {path.name for path in CONF.iterdir()} == set(MODES)


def test_a_mode_starts_what_it_names(tmp_path: Path) -> None:
    """One of them whole, as a user would; the others differ in numbers only."""
    where = ("--dir", tmp_path / "cluster")
    try:
        started = process("up", "--mode", "2m-2s-failover", "--free-ports", "--no-console", *where)
        assert started.code == 0, started.err
        rows = [line.split() for line in started.out.splitlines()]
        names = {row[0] for row in rows if row and row[0].startswith("broker-")}
        assert len(names) == 4
    finally:
        process("down", "--purge", *where)


def test_a_mode_takes_no_numbers_besides(tmp_path: Path) -> None:
    done = process("up", "--mode", "3-replicas", "--brokers", "2", "--dir", tmp_path)
    assert done.code == 2
    assert "leave out --brokers" in done.err
