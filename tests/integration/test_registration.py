"""A broker that starts before its name server, or outlives it, is found soon."""

from __future__ import annotations

from pathlib import Path

from support.ha_load import ask
from support.processes import accepts, free_port, wait_until
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

SOON_S = 20.0  # Far below the 30 s of a registration period, far above what it takes.


def knows_broker(address: str, name: str) -> bool:
    answer = ask(address, RequestCode.GET_BROKER_CLUSTER_INFO)
    return f'"{name}"'.encode() in bytes(answer.body)


def test_a_name_server_that_comes_later_learns_of_the_broker(tmp_path: Path) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    broker = start_twinlog_broker(tmp_path / "broker", namesrvAddr=address, brokerName="early")
    try:
        wait_until(lambda: "name server request failed" in broker.output(), "the first failure")
        for number in range(2):
            namesrv = start_twinlog_namesrv(tmp_path / f"namesrv{number}", listenPort=port)
            try:
                wait_until(lambda: accepts(port), "the name server listens")
                wait_until(
                    lambda: knows_broker(address, "early"), "it knows the broker", deadline_s=SOON_S
                )
            finally:
                namesrv.kill()
    finally:
        broker.kill()


def test_an_order_topic_is_known_as_one_with_its_next_registration(tmp_path: Path) -> None:
    """Also when only that topic is registered, as Apache's broker does it."""
    namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
    broker = start_twinlog_broker(tmp_path / "broker", namesrv=namesrv.address)
    try:
        wait_until(lambda: knows_broker(namesrv.address, "broker-a"), "it knows the broker")
        kv = {"namespace": "ORDER_TOPIC_CONFIG", "key": "steps", "value": "broker-a:1"}
        assert ask(namesrv.address, RequestCode.PUT_KV_CONFIG, kv).code == 0
        topic = {
            "topic": "steps", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        assert ask(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0

        def is_ordered() -> bool:
            body = ask(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG).body
            return bool(fastjson.loads(body)["topicConfigTable"]["steps"]["order"])

        wait_until(is_ordered, "the broker marks the topic", deadline_s=SOON_S)
    finally:
        broker.kill()
        namesrv.kill()
