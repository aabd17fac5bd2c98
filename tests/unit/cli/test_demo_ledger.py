"""The demo's books: what counts as lost, as a duplicate, as out of order."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import click
import pytest

from twinlog import __version__
from twinlog.cli.demo.circumstances import circumstances
from twinlog.cli.demo.command import _writable, _write_page
from twinlog.cli.demo.ledger import Ledger, latency_per_bin, percentile, rate_per_bin
from twinlog.cli.demo.observe import Observer
from twinlog.cli.demo.plot import Mark, Series, chart, pieces, scale_of
from twinlog.cli.demo.verdict import Findings, Moments, judge

QUEUE = ("broker-a", 0)


def ledger_with(acknowledged: range) -> Ledger:
    ledger = Ledger()
    for number in acknowledged:
        ledger.acknowledge(number, now=number * 0.1, latency_ms=float(number))
    return ledger


def test_an_acknowledged_message_that_nobody_read_is_lost() -> None:
    ledger = ledger_with(range(3))
    ledger.consume(0, QUEUE, 0, 1.0)
    ledger.consume(2, QUEUE, 2, 1.1)
    assert ledger.lost() == [1]
    assert ledger.unread == 1


def test_an_unknown_send_may_be_read_and_is_never_lost() -> None:
    ledger = Ledger()
    ledger.leave_unknown("FLUSH_SLAVE_TIMEOUT")
    ledger.consume(7, QUEUE, 0, 1.0)
    assert ledger.lost() == []
    assert ledger.unknown == {"FLUSH_SLAVE_TIMEOUT": 1}


def test_a_repeat_is_a_duplicate_and_not_an_order_violation() -> None:
    ledger = ledger_with(range(2))
    for number in (0, 1, 0):
        ledger.consume(number, QUEUE, number, 1.0)
    assert (ledger.duplicates, ledger.order_violations) == (1, 0)


def test_a_first_delivery_behind_a_later_one_is_out_of_order() -> None:
    ledger = ledger_with(range(2))
    ledger.consume(1, QUEUE, 1, 1.0)
    ledger.consume(0, QUEUE, 0, 1.1)
    assert ledger.order_violations == 1


def test_reads_pause_from_the_kill_until_the_slave_serves() -> None:
    ledger = ledger_with(range(10))
    ledger.consume(0, QUEUE, 0, 0.9)
    ledger.consume(1, QUEUE, 1, 1.1)  # fetched before the kill
    ledger.consume(2, QUEUE, 2, 1.8)
    ledger.consume(3, QUEUE, 3, 2.0)
    assert ledger.seconds_without_reads(1.0, 2.1) == pytest.approx(0.7)
    assert ledger.seconds_without_reads(3.0, 4.0) is None


def test_a_pause_with_nothing_left_to_read_does_not_count() -> None:
    ledger = ledger_with(range(2))
    ledger.consume(0, QUEUE, 0, 1.2)
    ledger.consume(1, QUEUE, 1, 1.3)
    assert ledger.unread == 0
    assert ledger.seconds_without_reads(1.0, 9.0) == pytest.approx(0.2)


def test_writes_pause_until_the_master_is_back() -> None:
    ledger = Ledger()
    for number, at in enumerate((0.9, 1.001, 7.0, 7.1)):
        ledger.acknowledge(number, at, 1.0)
    assert ledger.seconds_without_writes(1.0) == pytest.approx(5.999)
    assert ledger.first_write_after(6.0) == pytest.approx(1.0)
    assert ledger.seconds_without_writes(8.0) is None
    assert ledger.acknowledged_until(1.0) == {0}


def test_percentiles_and_bins() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert rate_per_bin([0.1, 0.2, 1.5], 2.0, 1.0) == [(0.5, 2.0), (1.5, 1.0)]
    assert latency_per_bin([(0.1, 5.0), (1.2, 7.0)], 2.0, 1.0, 0.99) == [(0.5, 5.0), (1.5, 7.0)]
    assert ledger_with(range(100)).latency_percentiles(0, 100)["p99"] == 99.0


def test_lines_of_a_plot_are_broken_where_nothing_was_measured() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (8.0, 3.0), (8.5, 4.0)]
    assert pieces(points) == [points[:2], points[2:]]
    assert pieces([]) == []
    drawn = chart([Series("a", points, 1)], [], end=10, unit="bytes", label="A")
    assert drawn.count("<polyline") == 2


def test_a_logarithmic_scale_shows_small_and_large_values() -> None:
    points = [(0.0, 2.0), (1.0, 300.0)]
    scale = scale_of([Series("a", points, 1)], is_logarithmic=True)
    assert (scale.lowest, scale.highest) == (1.0, 1000.0)
    assert scale.steps() == [1.0, 10.0, 100.0, 1000.0]
    assert 0.09 < scale.share(2.0) < 0.11
    assert 0.8 < scale.share(300.0) < 0.85
    assert (scale.share(0.0), scale.share(1000.0)) == (0.0, 1.0)
    assert scale_of([], is_logarithmic=True).steps() == [1.0, 10.0]
    assert scale_of([Series("a", points, 1)]).share(250.0) == 0.5


def test_the_page_says_where_and_when() -> None:
    facts = circumstances()
    assert facts["Date"].endswith("UTC")
    assert "CPUs" in facts["Machine"]
    assert f"twinlog {__version__}" in facts["Versions"]
    assert facts["Code"]


async def test_a_slave_that_is_away_is_behind_by_what_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: dict[str, int | None] = {"master": 100, "slave": 100}
    observer = Observer("127.0.0.1:1", "master", "slave")

    async def log_end(address: str) -> int | None:
        return ends[address]

    monkeypatch.setattr(observer, "_log_end", log_end)
    assert await observer.lag_bytes() == 0
    ends |= {"slave": None, "master": 150}
    assert await observer.lag_bytes() == 50
    ends["slave"] = 120
    assert await observer.lag_bytes() == 30
    ends["master"] = None
    assert await observer.lag_bytes() is None


def test_the_page_goes_where_one_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _writable(None) == Path("twinlog-demo.html")
    assert _writable(tmp_path / "a.html") == tmp_path / "a.html"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(click.UsageError, match="cannot write: No such file"):
        _writable(tmp_path / "none" / "a.html")
    monkeypatch.chdir("/proc")  # Nobody may write there, not even root.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written = _write_page(_writable(None), "page")
    assert written.parent == tmp_path
    assert written.read_text() == "page"


def test_an_archive_that_was_refused_says_why_and_counts_nothing() -> None:
    findings = Findings(missing_on_slave=0, audit_differences=0, audit_result="equal")
    findings.archive_refusal = "the record at 4096 is damaged"
    reasons = judge(ledger_with(range(3)), Moments(), findings).reasons
    assert "nothing was archived: the record at 4096 is damaged" in reasons
    assert not any("lacks" in reason for reason in reasons)
    findings.archive_missing = 2
    reasons = judge(ledger_with(range(3)), Moments(), findings).reasons
    assert "the archive lacks 2 acknowledged messages" in reasons


def test_labels_of_two_moments_near_each_other_stand_apart() -> None:
    """Red: the line of the second moment crosses the label of the first."""
    marks = [Mark(8.0, "SIGKILL"), Mark(8.4, "takes over"), Mark(18.0, "restart")]
    drawn = chart([Series("a", [(0.0, 1.0)], 1)], marks, end=30, unit="bytes", label="A")
    label = r'<text class="mark"[^>]* text-anchor="(\w+)">([^<]*)<'
    assert re.findall(label, drawn) == [
        ("end", "SIGKILL"), ("start", "takes over"), ("start", "restart"),
    ]  # fmt: skip
    late = chart([], [Mark(29.0, "restart")], end=30, unit="bytes", label="A")
    assert re.findall(label, late) == [("end", "restart")]
