"""Which slaves are missing: they left, did not return and were not replaced."""

from __future__ import annotations

import pytest

from twinlog.ha.followers import Followers
from twinlog.ha.status import DepartedStatus
from twinlog.runtime.limits import HA_DEPARTED_COUNT_MAX

ONE, TWO, THREE = "h:1/1", "h:2/2", "h:3/3"


def departed(address: str) -> DepartedStatus:
    return DepartedStatus(address, since_ms=1, until_ms=2, ack_offset=0, reason="closed")


# (who left and who stayed, in order; who is connected now; who is missing)
CASES: list[tuple[list[tuple[str, list[str]]], list[str], list[str]]] = [
    ([], [ONE, TWO], []),
    ([(TWO, [ONE])], [ONE], [TWO]),
    ([(TWO, [ONE])], [ONE, "h:99/2"], []),  # It returned, from another port.
    ([(TWO, [ONE])], [ONE, "other:99/2"], []),  # ... from another machine.
    ([(TWO, [ONE])], [ONE, THREE], []),  # Another has its place.
    ([(TWO, [ONE]), (ONE, [])], [], [ONE, TWO]),
    ([(TWO, [ONE]), (ONE, [])], [TWO], [ONE]),
    ([(TWO, [ONE]), (THREE, [ONE])], [ONE], [THREE]),  # Never more than two at once.
    ([(TWO, [ONE, THREE]), (THREE, [ONE])], [ONE], [THREE, TWO]),
    # The old connection of a slave that dialled again ends late.
    ([(ONE, ["h:99/1"])], ["h:99/1"], []),
    ([("h:1", ["h:99"])], ["h:99"], []),
    # Classic slaves are known by their hosts.
    ([("b:1", ["a:1"])], ["a:1"], ["b:1"]),
    ([("b:1", ["a:1"])], ["a:1", "b:7"], []),
    ([("b:1", ["a:1"])], ["a:1", "c:7"], []),
    ([("a:2", ["a:1"])], ["a:1"], []),  # Perhaps the same one twice.
]


@pytest.mark.parametrize(("past", "now", "missing"), CASES)
def test_missing(past: list[tuple[str, list[str]]], now: list[str], missing: list[str]) -> None:
    followers = Followers()
    for address, others in past:
        followers.left(departed(address), others)
    assert [gone.address for gone in followers.missing(now)] == missing


def test_the_last_departure_counts_and_a_few_slaves_are_remembered() -> None:
    followers = Followers()
    everybody = [f"h:{number}/{number}" for number in range(100)]
    for number, address in enumerate(everybody):
        followers.left(departed(address), everybody[number + 1 :])
    followers.left(DepartedStatus(everybody[-1], 5, 6, 0, "again"), [])
    found = followers.missing([])
    assert len(found) == HA_DEPARTED_COUNT_MAX
    assert [gone.reason for gone in found] == ["again"] + ["closed"] * (len(found) - 1)
