"""Metadata records: what they say, how large tables are cut, and what a reader never loses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.broker.pair.metadata_log import (
    DelayMoved,
    GroupsChanged,
    MetadataChange,
    MetadataError,
    OffsetJournal,
    OffsetsMoved,
    OffsetTable,
    TopicsChanged,
    decode_change,
    encode_change,
    merge_offsets,
    split_change,
)

VERSION = {"counter": 1, "timestamp": 2}


@pytest.mark.parametrize(
    "change",
    [
        TopicsChanged(version=VERSION, put={"t": {"perm": 6}}, deleted=["x"]),
        GroupsChanged(version=VERSION, put={"g": {"retryMaxTimes": 3}}),
        OffsetsMoved(forward={"t@g": {0: 5}}, back={"t@h": {1: 2}}, removed=["x@y"]),
        DelayMoved(offsets={1: 12, 18: 4}),
    ],
)
def test_changes_survive_their_byte_form(change: MetadataChange) -> None:
    assert decode_change(encode_change(change)) == change


@pytest.mark.parametrize("body", [b"", b"{}", b'{"kind":"other"}', b'{"kind":"delay"}', b"\xff"])
def test_what_is_no_change_is_refused(body: bytes) -> None:
    with pytest.raises(MetadataError):
        decode_change(body)


def test_a_large_table_is_cut_into_several_records() -> None:
    topics = {f"topic-{n}": {"perm": 6, "topicName": f"topic-{n}"} for n in range(5000)}
    deleted = [f"gone-{n}" for n in range(3000)]
    bodies = list(split_change(TopicsChanged(VERSION, topics, deleted), 16_384))
    assert all(len(body) <= 16_384 for body in bodies)
    put: dict[str, object] = {}
    gone: list[str] = []
    for body in bodies:
        change = decode_change(body)
        assert isinstance(change, TopicsChanged)
        put |= change.put
        gone += change.deleted
    assert (put, gone) == (topics, deleted)


@given(
    st.dictionaries(
        st.text("abc@", min_size=1, max_size=8),
        st.dictionaries(st.integers(0, 99), st.integers(0, 10**12), min_size=1, max_size=60),
        max_size=40,
    )
)
def test_cut_offset_tables_merge_to_the_same(table: OffsetTable) -> None:
    merged: OffsetTable = {}
    for body in split_change(OffsetsMoved(forward=table), 400):
        change = decode_change(body)
        assert isinstance(change, OffsetsMoved)
        merge_offsets(merged, change)
    assert merged == table


def test_an_offset_never_moves_back_unless_it_was_set_back() -> None:
    table: OffsetTable = {"t@g": {0: 100, 1: 7}}
    assert merge_offsets(table, OffsetsMoved(forward={"t@g": {0: 50, 1: 8}})) == 1
    assert table == {"t@g": {0: 100, 1: 8}}
    merge_offsets(table, OffsetsMoved(back={"t@g": {0: 3}}))
    assert table == {"t@g": {0: 3, 1: 8}}


def test_an_empty_change_deletes_nothing() -> None:
    table: OffsetTable = {"t@g": {0: 1}}
    assert merge_offsets(table, OffsetsMoved()) == 0
    assert table == {"t@g": {0: 1}}


def test_the_journal_keeps_the_last_value_of_an_interval() -> None:
    journal = OffsetJournal()
    assert journal.drain() is None
    journal.committed("t@g", 0, 5, previous=-1)
    journal.committed("t@g", 0, 9, previous=5)
    journal.committed("t@g", 1, 2, previous=8)
    journal.committed("t@g", 1, 3, previous=2)
    assert journal.drain() == OffsetsMoved(forward={"t@g": {0: 9}}, back={"t@g": {1: 3}})
    assert journal.drain() is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=60), st.integers(1, 9))
def test_a_slave_that_applies_every_interval_ends_where_the_master_is(
    commits: list[tuple[int, int]], interval: int
) -> None:
    journal, master, slave = OffsetJournal(), {}, {}  # type: ignore[var-annotated]
    for number, (queue_id, offset) in enumerate(commits):
        journal.committed("t@g", queue_id, offset, master.get(queue_id, -1))
        master[queue_id] = offset
        if number % interval == 0 and (change := journal.drain()):
            merge_offsets(slave, change)
    if change := journal.drain():
        merge_offsets(slave, change)
    assert slave.get("t@g", {}) == master


def test_what_was_committed_after_a_removal_stays_in_a_large_change() -> None:
    """A group that was deleted and came back within one interval."""
    forward = {f"topic-{n}@group": {0: n} for n in range(40)}
    table: dict[str, dict[int, int]] = {}
    for body in split_change(OffsetsMoved(forward=forward, removed=list(forward)), 400):
        change = decode_change(body)
        assert isinstance(change, OffsetsMoved)
        merge_offsets(table, change)
    assert table == forward
