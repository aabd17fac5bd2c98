"""What commands print, in a pipe and on a real terminal, held against stored texts.

Numbers, addresses and times of a run are masked. UPDATE_SNAPSHOTS=1 writes the texts again; the
difference is then for a reader to judge.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pexpect
import pytest

from support.command_line import TWINLOG, LocalTwins, process
from support.processes import wait_until

SNAPSHOTS = Path(__file__).parent / "snapshots"
DEADLINE_S = 120
# Not `ha status` and `cluster clients`: which cells are empty depends on the moment.
COMMANDS = [
    "topic list", "topic list -o json", "topic list -o name", "topic show orders",
    "topic route orders", "broker list", "broker list -o wide", "cluster list",
    "group list", "group progress billing", "message query orders --key o-1",
    "dlq list", "config explain flushDiskType", "context list",
    "generate compose --host 127.0.0.1", "ps",
]  # fmt: skip
MASKS = [
    (r"\x1b\[[0-9;?]*[a-zA-Z]", ""),
    (r"(Secret=)\S+", r"\1SECRET"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r"\d+(\.\d+)? ?%", "N%"),
    (r"\b\d+(\.\d+)? ?(ms|s|m|h|d|B|KB|MB|GB|KiB|MiB|GiB)\b", "AMOUNT"),
    (r"\d+(\.\d+)?", "N"),
    (r"[ \t]+", " "),
    (r" ?-{3,} ?| ?─+ ?", ""),
]


def masked(text: str, cluster: LocalTwins) -> str:
    text = text.replace("\r\n", "\n").replace(str(cluster.directory), "DIR")
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.strip() for line in text.strip().splitlines()) + "\n"


@pytest.fixture(scope="module")
def filled(cluster: LocalTwins) -> LocalTwins:
    """A topic with a message that a group has consumed."""
    cluster.twinlog("topic", "create", "orders", "-q", 1).ok()
    words = ("topic", "produce", "orders", "--tag", "TagA", "--key", "o-1")
    cluster.twinlog(*words, stdin=b"hi\n").ok()
    cluster.twinlog("topic", "consume", "orders", "--group", "billing", "-c", "1").ok()
    wait_until(
        lambda: cluster.twinlog("group", "progress", "billing", "-o", "json").json["lag"] == 0,
        "the group has committed",
    )
    return cluster


def words_of(command: str, cluster: LocalTwins) -> list[str]:
    words = command.split()
    return [*words, "--dir", str(cluster.directory)] if words == ["ps"] else words


@pytest.mark.parametrize("command", COMMANDS)
def test_output_is_as_it_was(filled: LocalTwins, command: str) -> None:
    done = process(*words_of(command, filled), NAMESRV_ADDR=filled.namesrv).ok()
    shown = masked(done.out, filled)
    file = SNAPSHOTS / (re.sub(r"\W+", "-", command) + ".txt")
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text()
    assert done.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_shows_the_same(filled: LocalTwins, command: str) -> None:
    """Wide enough for every table: only colours differ."""
    environment = {**os.environ, "TERM": "xterm", "NAMESRV_ADDR": filled.namesrv}
    environment.pop("NO_COLOR", None)
    terminal = pexpect.spawn(
        str(TWINLOG), words_of(command, filled), env=environment, encoding="utf-8",
        timeout=DEADLINE_S, dimensions=(60, 250),
    )  # fmt: skip
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    file = SNAPSHOTS / (re.sub(r"\W+", "-", command) + ".txt")
    assert masked(terminal.before or "", filled) == file.read_text()
