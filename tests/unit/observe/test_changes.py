"""What changed between two looks: a row for each kind of event."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.observe.changes import Departed, Snapshot, changes
from twinlog.runtime.event_journal import (
    EVENTS_MAX,
    LINE_MAX,
    RECENT_BYTES_MAX,
    EventJournal,
    RecentEvents,
    select,
)
from twinlog.testing.simdisk import SimDisk

LEFT = Departed("h/1", 5, "reset", True)
REFUSED = Departed("h/2", 6, "no credentials", False)

ROWS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    ({}, {}, []),
    ({"role": "SLAVE"}, {"role": "SYNC_MASTER", "epoch": 4},
     [("role-changed", {"was": "SLAVE", "to": "SYNC_MASTER", "epoch": 4})]),
    ({}, {"replicas": {"h/1": ""}}, [("replica-joined", {"replica": "h/1"})]),
    ({}, {"replicas": {"h/1": "is behind"}},
     [("replica-joined", {"replica": "h/1"}),
      ("replica-not-in-sync", {"replica": "h/1", "reason": "is behind"})]),
    ({"replicas": {"h/1": ""}}, {"replicas": {"h/1": "silent 1600 ms"}},
     [("replica-not-in-sync", {"replica": "h/1", "reason": "silent 1600 ms"})]),
    ({"replicas": {"h/1": "silent 1600 ms"}}, {"replicas": {"h/1": "silent 2100 ms"}}, []),
    ({"replicas": {"h/1": "silent"}}, {"replicas": {"h/1": ""}},
     [("replica-in-sync", {"replica": "h/1"})]),
    ({"replicas": {"h/1": ""}}, {"departed": (LEFT,)},
     [("replica-left", {"replica": "h/1", "reason": "reset"})]),
    # It left and came back between two looks: the list of those who left shows it.
    ({"replicas": {"h/1": ""}}, {"replicas": {"h/1": ""}, "departed": (LEFT,)},
     [("replica-left", {"replica": "h/1", "reason": "reset"})]),
    ({"departed": (LEFT,)}, {"departed": (LEFT, REFUSED)},
     [("replica-refused", {"replica": "h/2", "reason": "no credentials"})]),
    ({"master": "m"}, {"master": "m", "is_linked": False, "link_reason": "reset"},
     [("master-lost", {"master": "m", "reason": "reset"})]),
    ({"is_linked": False}, {"master": "m"}, [("master-found", {"master": "m"})]),
    # A slave that was elected: it follows nobody now.
    ({"role": "SLAVE", "is_linked": False, "master": "m"}, {"role": "SYNC_MASTER"},
     [("role-changed", {"was": "SLAVE", "to": "SYNC_MASTER", "epoch": 0})]),
    # A new epoch: the slave has yet to dial whoever leads it.
    ({"epoch": 1}, {"epoch": 2, "master": "m", "is_linked": False},
     [("role-changed", {"was": "", "to": "", "epoch": 2})]),
    ({}, {"damage": "differs"}, [("replication-stopped", {"reason": "differs"})]),
    ({"damage": "differs"}, {}, [("replication-goes-on", {})]),
    ({"log_end": 90}, {"cut_count": 1, "log_end": 70},
     [("log-cut", {"logEnd": 70, "logEndBefore": 90})]),
    ({}, {"refusal": "disk full"}, [("sends-refused", {"reason": "disk full"})]),
    ({"refusal": "disk full"}, {}, [("sends-taken", {})]),
    ({"refusal": "93 %"}, {"refusal": "94 %"}, []),
    ({}, {"disks": {"/s": "ok"}}, []),
    ({}, {"disks": {"/s": "full"}}, [("disk-level", {"directory": "/s", "level": "full"})]),
    ({"disks": {"/s": "full"}}, {"disks": {"/s": "ok"}},
     [("disk-level", {"directory": "/s", "level": "ok"})]),
    ({}, {"unsaved": {"topics": "no space"}},
     [("table-not-saved", {"table": "topics", "reason": "no space"})]),
    ({"unsaved": {"topics": "no space"}}, {}, [("table-saved", {"table": "topics"})]),
    ({}, {"contained": {"timer": (1, "KeyError")}},
     [("contained-error", {"what": "timer", "count": 1, "error": "KeyError"})]),
    ({"contained": {"timer": (1, "x")}}, {"contained": {"timer": (9, "x")}}, []),
    ({"contained": {"timer": (9, "x")}}, {"contained": {"timer": (10, "y")}},
     [("contained-error", {"what": "timer", "count": 10, "error": "y"})]),
    ({}, {"refused": {"SEND X": 3}}, [("requests-refused", {"what": "SEND X", "count": 3})]),
    ({"refused": {"SEND X": 3}}, {"refused": {"SEND X": 8}}, []),
    ({"settings": {"a": "1", "b": "2"}}, {"settings": {"a": "1", "b": "3"}},
     [("configuration-changed", {"changed": {"b": "3"}})]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "expected"), ROWS)
def test_changes(
    before: dict[str, Any], after: dict[str, Any], expected: list[tuple[str, dict[str, Any]]]
) -> None:
    assert list(changes(Snapshot(**before), Snapshot(**after))) == expected
    assert list(changes(Snapshot(**after), Snapshot(**after))) == []


def test_a_line_that_a_crash_cut_does_not_take_the_next_one_with_it() -> None:
    disk = SimDisk()
    EventJournal(disk, "/journal").write(1, "leads")
    size = len(disk.read_bytes("/journal/events"))
    file = disk.open("/journal/events")
    file.truncate(size - 3)
    file.close()
    EventJournal(disk, "/journal").write(2, "elected")
    again = RecentEvents(EventJournal(disk, "/journal"))
    again.load()
    assert [event["event"] for event in again.select()] == ["elected"]


def test_events_survive_and_are_bounded() -> None:
    disk = SimDisk()
    journal = RecentEvents(EventJournal(disk, "/store/twinlog", size_max=20_000))
    for number in range(3 * EVENTS_MAX):
        journal.write(number, "tick", group="a" if number % 2 else "b", number=number)
    journal.close()
    again = RecentEvents(EventJournal(disk, "/store/twinlog", size_max=20_000))
    again.load()
    kept = again.select(limit=10**9)
    assert 100 < len(kept) <= EVENTS_MAX
    assert [event["number"] for event in kept][-1] == 3 * EVENTS_MAX - 1
    assert sorted(event["time"] for event in kept) == [event["time"] for event in kept]
    assert {event["group"] for event in again.select("a")} == {"a"}
    assert [e["number"] for e in again.select(None, 3 * EVENTS_MAX - 3)] == [2997, 2998, 2999]
    assert len(again.select(limit=5)) == 5


def test_lines_that_a_person_has_edited_are_no_trouble() -> None:
    odd: list[dict[str, Any]] = [{"event": "x"}, {"time": "noon"}, {"time": 5, "group": None}]
    assert select(odd, None, None, None) == odd
    assert select(odd, "g", 1, 0) == [{"time": 5, "group": None}]


@given(st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 40)), max_size=60))
@settings(deadline=None, max_examples=30)
def test_whatever_peers_make_us_write_an_answer_stays_small(shapes: list[tuple[int, int]]) -> None:
    """Peers choose settings and names; memory, file and answer are bounded whatever they are."""
    disk = SimDisk()
    journal = RecentEvents(EventJournal(disk, "/store/twinlog", size_max=20_000))
    for number, (length, keys) in enumerate(shapes):
        changed = {f"key{key}": "²" * length for key in range(keys)}
        journal.write(number, "configuration-changed", changed=changed)
        assert len(msgspec.json.encode(journal.select())) <= 2 * RECENT_BYTES_MAX
    kept = journal.select()
    assert [event["time"] for event in kept] == list(range(len(shapes)))[-len(kept) or None :]
    assert len(kept) >= min(len(shapes), RECENT_BYTES_MAX // LINE_MAX)
