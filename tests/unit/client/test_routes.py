"""What a route says, and which replica to read."""

from __future__ import annotations

from typing import Any

from twinlog.client.net.routes import choose_read_address, parse_route
from twinlog.remoting.bodies.route import BrokerData


def route_data(**changes: Any) -> dict[str, Any]:
    return {
        "brokerDatas": [
            {"brokerName": "b", "cluster": "C", "brokerAddrs": {"1": "h:2", "0": "h:1"}},
            {"brokerName": "a", "cluster": "C", "brokerAddrs": {"1": "h:4"}},
        ],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "b", "perm": 6, "readQueueNums": 2, "writeQueueNums": 1},
            {"brokerName": "a", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
            {"brokerName": "gone", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4},
        ],
        **changes,
    }


def test_queues_to_send_to_are_those_of_masters_in_order_of_brokers() -> None:
    route = parse_route(route_data())
    assert [q.broker_name for q in route.write_queues("T")] == ["b"]
    assert [q.broker_name for q in route.write_queues("T", with_master_only=False)] == ["a", "b"]


def test_queues_to_read_need_no_master() -> None:
    queues = parse_route(route_data()).read_queues("T")
    assert [(q.broker_name, q.queue_id) for q in queues] == [("a", 0), ("b", 0), ("b", 1)]


def test_permissions_count() -> None:
    data = route_data()
    data["queueDatas"][0]["perm"] = 4
    data["queueDatas"][1]["perm"] = 2
    route = parse_route(data)
    assert [q.broker_name for q in route.read_queues("T")] == ["b", "b"]
    assert [q.broker_name for q in route.write_queues("T", with_master_only=False)] == ["a"]


def test_the_template_topic_becomes_the_route_of_a_new_topic() -> None:
    data = route_data()
    data["queueDatas"] = [
        {"brokerName": "b", "perm": 7, "readQueueNums": 8, "writeQueueNums": 8},
        {"brokerName": "a", "perm": 7, "readQueueNums": 2, "writeQueueNums": 2},
    ]
    route = parse_route(data).as_template_for_new_topic(4)
    assert [(d.write_queue_nums, d.perm) for d in route.queue_data] == [(4, 6), (2, 6)]


def test_an_empty_route_has_nothing() -> None:
    route = parse_route({})
    assert route.read_queues("T") == route.write_queues("T") == []


BROKER = BrokerData("C", "b", {0: "m", 1: "s1", 2: "s2"})


def chosen(broker: BrokerData, suggested: int, *down: str) -> tuple[str, bool] | None:
    found = choose_read_address(broker, suggested, lambda address: address not in down)
    return None if found is None else (found.address, found.is_slave)


def test_the_suggested_replica_is_read() -> None:
    assert chosen(BROKER, 0) == ("m", False)
    assert chosen(BROKER, 1) == ("s1", True)
    assert choose_read_address(BROKER, 2) is not None


def test_an_unknown_slave_means_the_next_one() -> None:
    assert chosen(BrokerData("C", "b", {0: "m", 2: "s2"}), 1) == ("s2", True)


def test_a_replica_that_cannot_be_reached_is_replaced() -> None:
    assert chosen(BROKER, 0, "m") == ("s1", True)
    assert chosen(BROKER, 1, "s1") == ("s2", True)
    assert chosen(BROKER, 2, "s1", "s2") == ("m", False)


def test_the_last_resort_is_the_suggested_one() -> None:
    assert chosen(BROKER, 0, "m", "s1", "s2") == ("m", False)
    assert chosen(BROKER, 1, "m", "s1", "s2") == ("s1", True)


def test_no_address_is_no_answer() -> None:
    assert chosen(BrokerData("C", "b", {}), 0) is None
    assert BrokerData("C", "b", {}).master_address is None
