"""What the pages show as printed is what the programs print, but for its numbers and times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.doc_blocks import ROOT, blocks_run_by
from twinlog.cli.admin.ha_group import _report
from twinlog.cli.demo.command import _print
from twinlog.cli.demo.ledger import Ledger
from twinlog.cli.demo.verdict import Findings, Moments, judge
from twinlog.cli.output import render
from twinlog.controller.group_status import controlled_group
from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts

HERE = "tests/docs/test_shown_output.py"


def shown(page: str) -> list[str]:
    (block,) = blocks_run_by(HERE, page)
    return [line for line in block.text.splitlines() if line]


def without_numbers(line: str) -> str:
    return re.sub(r"\d[\d,.:-]*", "0", line)


def test_the_verdict_of_the_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ledger = Ledger()
    for number in range(1, 5):
        ledger.acknowledge(number, now=float(number), latency_ms=1.0)
        ledger.consume(number, ("broker-a", 0), number, number + 0.5)
    findings = Findings(
        missing_on_slave=0, audit_differences=0, audit_result="equal", archived_rows=4,
        archive_missing=0,
    )  # fmt: skip
    verdict = judge(ledger, Moments(kill=1.2, switched=1.3, restart=2.4, caught_up=3.0), findings)
    _print(verdict, tmp_path / "page.html")
    printed = {without_numbers(line) for line in capsys.readouterr().out.splitlines()}
    assert verdict.is_good, verdict.reasons
    assert [line for line in shown("README.md") if without_numbers(line) not in printed] == []


def test_the_status_of_a_group() -> None:
    """The group of the page, from the facts that it tells."""
    elected = 1_795_000_867_412  # The day does not matter.
    replicas = [
        ReplicaFacts(
            1, "127.0.0.1:10911", is_member=False, is_alive=True, heard_ms=9, last_epoch=6,
            end=41_000_000, link_ms=5, confirmed=41_000_000,
        ),
        ReplicaFacts(
            2, "127.0.0.1:10921", is_member=True, is_alive=True, heard_ms=9, last_epoch=6,
            end=83_991_616, link_ms=5, confirmed=83_991_616,
        ),
    ]  # fmt: skip
    facts = GroupFacts(
        "DefaultCluster", "broker-a", replicas=replicas, master_broker_id=2, master_epoch=6,
        election="clean", total_replicas=2, min_in_sync_replicas=1, lease_left_ms=1700,
    )  # fmt: skip
    why = "the connection of master 1 closed"
    event = {
        "time": elected, "event": "elected", "epoch": 6, "reason": why, "members": [2],
    }  # fmt: skip
    text = render(_report([controlled_group(facts, [event])]), "table")
    printed = [line for line in text.splitlines() if line]
    page = [without_numbers(line) for line in shown("docs/GROUPS.md")]
    assert page == [without_numbers(line) for line in printed]


def test_the_list_of_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    named = [re.match(r"make ([a-z-]+) ", line) for line in shown("CONTRIBUTING.md")]
    assert {match[1] for match in named if match} <= targets
    assert all(named)
