"""What a name server writes about its route."""

from __future__ import annotations

import pytest

from twinlog.namesrv.watch import RouteSnapshot, route_changes

A, B, C = "h:10911", "h:10921", "h:10931"
PAIR = {("a", 0): A, ("a", 1): B}


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (PAIR, PAIR, []),
        ({}, PAIR, [("broker-registered", A), ("broker-registered", B)]),
        (PAIR, {("a", 1): B}, [("broker-left", A)]),
        (PAIR, {("a", 0): C, ("a", 1): B}, [("master-changed", C)]),
        (PAIR, {("a", 0): A, ("a", 1): C}, [("broker-moved", C)]),
        (PAIR, {("a", 0): B}, [("broker-left", B), ("master-changed", B)]),
    ],
)
def test_who_came_and_who_left(
    before: dict[tuple[str, int], str],
    after: dict[tuple[str, int], str],
    events: list[tuple[str, str]],
) -> None:
    found = list(route_changes(RouteSnapshot(before), RouteSnapshot(after), {A: "it unregistered"}))
    assert [(kind, details["broker"]) for kind, details in found] == events
    assert all(details["group"] == "a" for _, details in found)
    gone = [details for kind, details in found if kind == "broker-left" and details["broker"] == A]
    assert all(details["reason"] == "it unregistered" for details in gone)


def test_who_is_kept_out_is_told_once() -> None:
    rival = RouteSnapshot(PAIR, {C: (("a", 0), A)})
    (event,) = route_changes(RouteSnapshot(PAIR), rival, {})
    assert event == ("broker-kept-out", {"group": "a", "brokerId": 0, "broker": C, "holder": A})
    assert list(route_changes(rival, rival, {})) == []
