"""`make swarm`: every run adds a line to the file of results, goes on behind it, and sums up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import swarm
from twinlog.testing.swarm.world import draw_world

QUIET = next(n for n in range(1000) if not draw_world(n).faults and not draw_world(n + 1).faults)


def run(results: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    arguments = ["swarm.py", "--count", "1", "--jobs", "1", "--results", str(results), *options]
    monkeypatch.setattr("sys.argv", arguments)
    return swarm.main()


def test_runs_follow_each_other_and_their_totals_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    assert run(results, monkeypatch, "--first", str(QUIET)) == 0
    assert run(results, monkeypatch) == 0
    first, second = (json.loads(line) for line in results.read_text().splitlines())
    assert (first["first"], second["first"]) == (QUIET, QUIET + 1)
    assert first["failed"] == second["failed"] == {}
    acknowledged = first["acknowledged"] + second["acknowledged"]
    said = capsys.readouterr().out.splitlines()
    totals = next(line for line in said[::-1] if line.startswith("all runs: "))
    assert f"2 seeds, {first['sent'] + second['sent']} sent, {acknowledged} ackn" in totals
    assert "0 failed" in totals
