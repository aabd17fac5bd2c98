"""Which queue of another cluster gets the messages of which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.admin.copying import pair_queues
from twinlog.client.queues import MessageQueue

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
