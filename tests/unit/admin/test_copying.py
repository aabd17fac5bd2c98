"""Which queue of another cluster gets the messages of which."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.admin.copying import pair_queues
from twinlog.admin.relocation import difference
from twinlog.client.message import ReceivedMessage
from twinlog.client.queues import MessageQueue
from twinlog.message.record import Record

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
COUNTS = st.dictionaries(NAMES, st.integers(1, 5), min_size=1)
TARGETS = st.lists(NAMES.map("new-{}".format), min_size=1, unique=True)


@given(COUNTS, TARGETS)
def test_each_queue_has_one_of_its_own_and_each_broker_has_them_without_a_gap(
    counts: dict[str, int], targets: list[str]
) -> None:
    pairs = pair_queues("t", counts, targets)
    wanted = {MessageQueue("t", name, n) for name, count in counts.items() for n in range(count)}
    assert pairs.keys() == wanted
    assert len(set(pairs.values())) == len(pairs)
    for target in targets:
        numbers = sorted(q.queue_id for q in pairs.values() if q.broker_name == target)
        assert numbers == list(range(len(numbers)))
    assert pairs == pair_queues("t", counts, targets[::-1])


def test_brokers_that_share_one_come_behind_each_other() -> None:
    pairs = pair_queues("t", {"old-a": 2, "old-b": 2}, ["new"])
    assert [(str(q.broker_name), q.queue_id, pairs[q].queue_id) for q in sorted(pairs)] == [
        ("old-a", 0, 0), ("old-a", 1, 1), ("old-b", 0, 2), ("old-b", 1, 3),
    ]  # fmt: skip


def received(**changes: Any) -> ReceivedMessage:
    values: dict[str, Any] = {
        "total_size": 0, "magic": 0, "body_crc": 0, "queue_id": 2, "flag": 9, "queue_offset": 42,
        "physical_offset": 500, "sys_flag": 0, "born_timestamp": 1, "born_host": bytes(8),
        "store_timestamp": 2, "store_host": bytes(8), "reconsume_times": 1,
        "prepared_transaction_offset": 0, "body": b"hello", "topic": "T", "properties": b"",
    }  # fmt: skip
    return ReceivedMessage(Record(**{**values, **changes}), "broker-a")


def test_a_message_that_no_client_named_is_equal_to_its_copy() -> None:
    """Its id says where it is, and a copy is elsewhere."""
    copy = received(physical_offset=700)
    assert copy.message_id != received().message_id
    assert difference(received(), [copy]) == ""


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"body": b"other"}, "the copy has another body"),
        ({"properties": b"UNIQ_KEY\x01A1"}, "the copy has another message_id"),
        ({"born_timestamp": 2}, "the copy has another born_timestamp"),
    ],
)
def test_a_copy_that_is_another_message_is_told(change: dict[str, Any], fault: str) -> None:
    assert difference(received(), [received(**change)]) == fault
    assert difference(received(), []) == "has no copy"
    assert difference(received(), [received()] * 2) == "has two copies"
