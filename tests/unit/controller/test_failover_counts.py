"""Numbers of elections and of the time without a master."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twinlog.controller.metrics import _REASONS_MAX, FailoverCounts


def group(name: str, master: int | None, *living: int) -> Any:
    record = SimpleNamespace(group=name, master_broker_id=master)
    return SimpleNamespace(record=record, is_alive=lambda n, now_ms: n in living)


def test_elections_are_counted_by_reason_without_its_numbers() -> None:
    counts = FailoverCounts()
    counts.happened("elected", "a", "no heartbeat for 412 ms")
    counts.happened("elected", "a", "no heartbeat for 98 ms")
    counts.happened("unclean-elected", "a", "asked for")
    for other in ("not-elected", "admitted", "removed"):
        counts.happened(other, "a", "x")
    assert counts.elections == {
        ("a", "elected", "no heartbeat for N ms"): 2, ("a", "unclean-elected", "asked for"): 1,
    }  # fmt: skip


def test_reasons_are_bounded() -> None:
    counts = FailoverCounts()
    for number in range(3 * _REASONS_MAX):
        counts.happened("elected", f"g{number}", "x" * (number % 7))
    counts.happened("elected", "a", "one more")
    assert counts.elections["a", "elected", "other"] == 1
    assert sum(counts.elections.values()) == 3 * _REASONS_MAX + 1


def test_time_without_a_master() -> None:
    counts = FailoverCounts()
    counts.look(1000, [group("a", 1, 1), group("b", None)])
    assert counts.without_master_ms == {"a": 0, "b": 0}
    counts.look(1050, [group("a", 1, 1), group("b", None)])
    counts.look(1100, [group("a", 1, 2), group("b", 1, 1)])
    assert counts.without_master_ms == {"a": 50, "b": 50}
    assert counts.lost == {"a"}, "its record names a master that is not heard"
    counts.pause()
    counts.look(9000, [group("a", 1, 2)])
    assert counts.without_master_ms["a"] == 50, "another controller led meanwhile"
    counts.look(9010, [group("a", 1, 2)])
    assert counts.without_master_ms["a"] == 60
