"""Every member computes the whole allocation for itself: all must come to the same answer."""

from __future__ import annotations

import itertools

import pytest

from twinlog.client.consumer.rebalance import (
    STRATEGIES,
    AllocateByConfig,
    AllocateByConsistentHash,
    AllocateByMachineRoom,
    AllocateNearby,
    allocate,
    allocate_averagely,
    allocate_by_circle,
    difference,
)
from twinlog.client.queues import (
    MessageQueue,
    sorted_client_ids,
    sorted_queues,
)
from twinlog.message.names import dlq_topic, retry_topic


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, number) for number in range(count)]


def ids(queue_list: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queue_list]


# Shares of Java's AllocateMessageQueueAveragely, by its formula: (queues, clients) -> shares.
AVERAGE = [
    (4, 1, [[0, 1, 2, 3]]),
    (4, 2, [[0, 1], [2, 3]]),
    (5, 2, [[0, 1, 2], [3, 4]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (2, 3, [[0], [1], []]),
    (3, 5, [[0], [1], [2], [], []]),
]


@pytest.mark.parametrize(("queue_count", "client_count", "shares"), AVERAGE)
def test_average_shares_are_javas(
    queue_count: int, client_count: int, shares: list[list[int]]
) -> None:
    clients = [f"c{number}" for number in range(client_count)]
    found = [ids(allocate_averagely(c, queues(queue_count), clients)) for c in clients]
    assert found == shares


def test_circle_deals_out_one_by_one() -> None:
    clients = ["a", "b", "c"]
    found = [ids(allocate_by_circle(c, queues(7), clients)) for c in clients]
    assert found == [[0, 3, 6], [1, 4], [2, 5]]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_shares_are_disjoint_and_cover_all_queues(name: str) -> None:
    for queue_count, client_count in itertools.product(range(17), range(1, 7)):
        clients = [f"10.0.0.{number}@{number}" for number in range(client_count)]
        shares = [
            queue
            for client in clients
            for queue in allocate(STRATEGIES[name], client, queues(queue_count), clients)
        ]
        assert sorted(shares) == queues(queue_count)


def test_consistent_hash_moves_few_queues_when_a_client_comes() -> None:
    strategy = AllocateByConsistentHash()
    many = queues(64)
    before = {q: c for c in ("a", "b", "c") for q in allocate(strategy, c, many, ["a", "b", "c"])}
    members = ["a", "b", "c", "d"]
    after = {q: c for c in members for q in allocate(strategy, c, many, members)}
    moved = {queue for queue in many if before[queue] != after[queue]}
    assert {after[queue] for queue in moved} == {"d"}
    assert 0 < len(moved) < 64


def test_consistent_hash_without_virtual_nodes_gives_nothing() -> None:
    assert AllocateByConsistentHash(0)("a", queues(3), ["a"]) == []


def test_consistent_hash_wraps_around_the_ring() -> None:
    # With one point in the ring everything belongs to it, before and behind.
    assert AllocateByConsistentHash(1)("only", queues(16), ["only"]) == queues(16)


def test_by_config_takes_its_list_whatever_the_others_do() -> None:
    assert AllocateByConfig((queues(9)[8],))("a", queues(4), ["a", "b"]) == [queues(9)[8]]


def test_machine_room_takes_only_brokers_of_its_rooms() -> None:
    mixed = queues(3, "room1@a") + queues(3, "room2@b") + queues(2, "plain")
    strategy = AllocateByMachineRoom(frozenset({"room1"}))
    shares = [strategy(client, mixed, ["x", "y"]) for client in ("x", "y")]
    assert shares == [[mixed[0], mixed[2]], [mixed[1]]]


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.split("@")[0]


def test_nearby_keeps_queues_in_their_room_and_shares_the_rest() -> None:
    strategy = AllocateNearby(room_of_queue, room_of_client)
    mixed = queues(2, "r1@a") + queues(2, "r2@b") + queues(2, "r3@c")
    clients = ["r1@x", "r2@y"]
    assert strategy("r1@x", mixed, clients) == [*mixed[0:2], mixed[4]]
    assert strategy("r2@y", mixed, clients) == [*mixed[2:4], mixed[5]]


def test_nearby_client_in_a_room_without_brokers_gets_only_shared_queues() -> None:
    strategy = AllocateNearby(room_of_queue, room_of_client)
    assert strategy("r9@z", queues(2, "r1@a"), ["r9@z"]) == queues(2, "r1@a")


def test_nothing_is_taken_while_the_broker_does_not_list_us() -> None:
    assert allocate(allocate_averagely, "me", queues(4), ["other"]) == []


def test_nothing_is_taken_of_no_queues() -> None:
    assert allocate(allocate_averagely, "me", [], ["me"]) == []


def test_order_of_input_does_not_matter() -> None:
    shuffled = [*reversed(queues(4, "b")), *reversed(queues(4, "a"))]
    first = allocate(allocate_averagely, "x", shuffled, ["z", "x"])
    assert first == queues(4, "a")


def test_order_is_javas_by_utf16_units() -> None:
    # U+1F600 is a surrogate pair, which Java sorts before U+FF5E; code points say otherwise.
    assert sorted_client_ids(["\uff5e", "\U0001f600"]) == ["\U0001f600", "\uff5e"]
    assert sorted_queues([MessageQueue("T", "b", 10), MessageQueue("T", "b", 9)])[0].queue_id == 9


def test_names_of_a_groups_own_topics() -> None:
    assert (retry_topic("g"), dlq_topic("g")) == ("%RETRY%g", "%DLQ%g")
    assert MessageQueue("T", "b", 3).wire() == {"brokerName": "b", "queueId": 3, "topic": "T"}


def test_difference_lists_what_to_let_go_and_what_to_take() -> None:
    change = difference(queues(3), queues(5)[2:])
    assert ids(list(change.revoked)) == [0, 1]
    assert ids(list(change.gained)) == [3, 4]
