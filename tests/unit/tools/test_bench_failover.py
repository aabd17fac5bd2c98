"""The failover section: figures and verdicts come from the lines of results, and it stays on the
page when the rest of the page is rendered again."""

from __future__ import annotations

import failover_report
import pytest
import report
from failover_table import ROWS, Row


def row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def line(name: str, gaps: list[float], *, make: str = "twinlog", lost: int = 0) -> dict:
    return {
        "row": name, "make": make, "at": "2026-11-17T09:00:00", "commit": "abc", "load": [1.0, 2.0],
        "times": len(gaps), "seen": [{"gap_s": gap, "in_sync_s": 2.0} for gap in gaps],
        "acknowledged": 1000, "lost": lost, "error": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("gaps", "lost", "wanted"),
    [
        ([0.2, 0.3, 0.5], 0, "gap p50 ≤ 0.3: met; gap p99 ≤ 0.6: met; in sync max ≤ 5: met"),
        ([0.2, 0.3, 0.7], 0, "gap p99 ≤ 0.6: **missed, 0.7**"),
        ([0.4, 0.4, 0.4], 0, "gap p50 ≤ 0.3: **missed, 0.4**"),
        ([0.1], 3, "0 lost: **missed, 3**"),
    ],
)
def test_an_aim_is_held_against_every_fault_of_all_runs(gaps, lost, wanted):
    lines = [line("kill-sync-2", [gap], lost=lost) for gap in gaps]
    assert wanted in failover_report.verdict(row("kill-sync-2"), lines)


def test_a_group_that_may_lose_answers_for_what_is_not_kept_aside():
    lines = [{**line("rejoin", [2.0], lost=5), "lost_not_aside": missing} for missing in (0, 2)]
    assert "0 lost and not kept aside: met" in failover_report.verdict(row("rejoin"), lines[:1])
    assert "0 lost: " not in failover_report.verdict(row("rejoin"), lines)
    assert "kept aside: **missed, 2**" in failover_report.verdict(row("rejoin"), lines)
    assert "the 5 lost ones are all kept aside" in failover_report.render(lines[:1])
    assert "of 10 lost ones 2 are not kept aside" in failover_report.render(lines)
    assert "loses messages on purpose" in failover_report.render(lines)
    assert "loses messages on purpose" not in failover_report.render([line("cut", [1.0])])


def test_totals_count_sync_masters_of_ours_only():
    lines = [
        line("kill-sync-2", [0.1] * 30),
        line("kill-sync-3", [0.1] * 12),
        line("kill-async-2", [2.0] * 7, lost=4),
        line("kill-sync-2", [0.9] * 5, make="apache", lost=9),
    ]
    text = failover_report.render(lines)
    assert "42, with 2,000 messages acknowledged and 0 lost" in text
    assert "| 5; 9 of 1,000 |" in text


def test_the_section_is_replaced_and_kept_when_the_page_is_rendered_again():
    page = "# Benchmarks\n\n## Aims\n\nnone\n"
    first = failover_report.render([line("kill-sync-2", [0.1])])
    once = report.with_failover(page, first)
    assert report.failover_of(once).rstrip() == first.rstrip()
    second = failover_report.render([line("kill-sync-2", [0.25])])
    assert report.with_failover(once, second) == report.with_failover(page, second)
    assert report.with_failover(page, "") == page


def test_times_of_loaded_runs_count_only_where_there_are_no_others():
    loaded = {**line("kill-sync-2", [9.0] * 5), "load": [20.0, 2.0], "share": "0"}
    shared = {**loaded, **line("kill-sync-2", [0.3] * 3), "load": [20.0, 2.0], "share": "-10"}
    quiet = {**line("kill-sync-2", [0.1] * 2), "load": [1.5, 6.0]}
    text = failover_report.render([loaded, shared, quiet])
    assert "| gap s p50 0.1, max 0.1;" in text
    assert "| 10; 0 of 3,000 |" in text
    assert "| gap s p50 0.3, max 0.3;" in failover_report.render([loaded, shared])
    assert "gap s p50 9" in failover_report.render([loaded])


def test_slow_runs_whose_times_do_not_count_are_told():
    """Red: a page on which the slowest rejoin of a busy machine cannot be found."""
    busy = {**line("kill-sync-2", [0.1]), "load": [25.0, 39.0]}
    busy["seen"] = [{"gap_s": 0.1, "in_sync_s": 52.5}]
    quiet = line("kill-sync-2", [0.1])
    told = "The times leave out 1 run on a busier machine (load average 25 to 39)"
    text = failover_report.render([busy, quiet])
    assert told in text
    assert "“in sync” reached 52.5." in text
    assert "in sync s p50 2, max 2" in text
    assert "busier" not in failover_report.render([quiet])
    assert "busier" not in failover_report.render([busy])  # Its times count, and show it.
