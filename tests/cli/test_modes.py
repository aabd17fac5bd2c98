"""The files of each deployment mode are ones that the servers take."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import process

CONF = Path(__file__).resolve().parents[2] / "conf"
MODES = ("single-master", "2m-noslave", "2m-2s-async", "2m-2s-sync", "2m-2s-failover", "3-replicas")


def keys_of(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize(
    "path", sorted(CONF.rglob("*.conf")), ids=lambda p: p.parent.name + "-" + p.stem
)
def test_the_file_has_no_fault(path: Path) -> None:
    done = process("config", "lint", path)
    assert done.code == 0, done.out


@pytest.mark.parametrize("mode", MODES)
def test_the_files_of_a_mode_belong_together(mode: str) -> None:
    folder = CONF / mode
    brokers = [keys_of(path) for path in sorted(folder.glob("broker-*.conf"))]
    assert (folder / "namesrv.conf").exists()
    groups: dict[str, list[dict[str, str]]] = {}
    for keys in brokers:
        groups.setdefault(keys["brokerName"], []).append(keys)
    for members in groups.values():
        if "enableControllerMode" in members[0]:
            assert {keys["totalReplicas"] for keys in members} == {str(len(members))}
            assert keys_of(folder / "namesrv.conf")["enableControllerInNamesrv"] == "true"
        else:
            assert sorted(keys["brokerId"] for keys in members) == [
                str(number) for number in range(len(members))
            ]


def test_every_mode_is_there() -> None:
    assert {path.name for path in CONF.iterdir()} == set(MODES)
