"""The files of each deployment mode are ones that the servers take."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
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


ONE_BROKER = ("--brokers", "1", "--free-ports", "--no-console")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--mode", "3-replicas"), "1 group of 1 broker with fixed roles (ASYNC_MASTER)"),
        (("--brokers", "2"), "1 group of 1 broker"),
        (("--groups", "2"), "1 group of 1 broker"),
        (("--sync",), "ASYNC_MASTER"),
        (("--failover",), "fixed roles"),
    ],
    ids=" ".join,
)
def test_another_cluster_than_the_running_one_is_refused(
    running: Path, asked: tuple[str, ...], words: str
) -> None:
    """Red: `up --mode 3-replicas` exits with 0 while a single broker goes on running."""
    done = process("up", *asked, "--dir", running)
    assert done.code == 1
    assert words in done.err
    assert f"twinlog down --dir {running}" in done.err


def test_the_same_cluster_may_be_asked_for_again(running: Path) -> None:
    for asked in ((), ONE_BROKER, ("--mode", "single-master"), ("--groups", "1")):
        assert process("up", *asked, "--dir", running).code == 0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("running") / "cluster"
    assert process("up", *ONE_BROKER, "--dir", directory).code == 0
    yield directory
    process("down", "--purge", "--dir", directory)


def test_stores_of_elected_masters_are_not_started_as_a_mode_with_fixed_roles(
    tmp_path: Path,
) -> None:
    """Red: `--mode 2m-2s-sync` starts a controller on what `--failover` left."""
    where = ("--dir", tmp_path / "cluster")
    options = ("--free-ports", "--no-console")
    try:
        assert process("up", "--failover", *options, *where).code == 0
        assert process("down", *where).code == 0
        for mode in ("2m-2s-sync", "single-master"):
            done = process("up", "--mode", mode, *options, *where)
            assert done.code == 1
            assert "elected" in done.err
            assert "--fresh" in done.err
        one = process("up", "--brokers", "1", *options, *where)
        assert (one.code, "elected" in one.err) == (1, True)
    finally:
        process("down", "--purge", *where)


def test_purge_removes_what_a_larger_cluster_has_left(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    where, options = ("--dir", directory), ("--free-ports", "--no-console")
    try:
        assert process("up", *options, *where).code == 0
        assert process("down", *where).code == 0
        assert process("up", "--brokers", "1", *options, *where).code == 0
    finally:
        process("down", "--purge", *where)
    assert not directory.exists()


def test_the_hint_can_be_typed_and_foreign_files_stay(tmp_path: Path) -> None:
    """Red: the name of the directory is not quoted, and is said to be removed when it is not."""
    directory = tmp_path / "my $cluster"
    directory.mkdir()
    (directory / "notes.txt").touch()
    started = process("up", *ONE_BROKER, "--dir", directory).ok()
    try:
        (hint,) = [line for line in started.out.splitlines() if line.startswith("stop with")]
        words = shlex.split(hint.removeprefix("stop with").partition("   (")[0])
        stopped = process(*words[1:], "--purge").ok()
    finally:
        process("down", "--purge", "--dir", directory)
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
    assert f"{directory} stays" in stopped.out
