"""What a Java consumer and its group find after the broker was stopped or killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.cluster import Cluster, expected_names, names, start_cluster, unique
from support.java_driver import Driver
from support.processes import process_group, wait_until


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with process_group() as group:
        yield start_cluster(group, tmp_path, flushConsumerOffsetInterval=500)


def offsets(java: Driver, cluster: Cluster, topic: str, group: str) -> list[tuple[int, int]]:
    """(consumed, end) of every queue."""
    result = java.run("offsets", namesrv=cluster.address, topic=topic, group=group)
    return [(event["consumed"], event["max"]) for event in result["queue"]]


def consume_all(java: Driver, cluster: Cluster, topic: str, group: str, count: int) -> None:
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=group)
    consumer.wait_for("message", count)

    def committed() -> bool:
        return all(done == end for done, end in offsets(java, cluster, topic, group))

    wait_until(committed, "offsets committed to the broker")
    consumer.stop()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_messages_and_offsets_survive(own_cluster: Cluster, java: Driver, how: str) -> None:
    cluster, topic, group = own_cluster, unique("survive"), unique("group")
    send = {"namesrv": cluster.address, "topic": topic}
    assert java.run("send", **send, count=60)["failed"] == []
    consume_all(java, cluster, topic, group, 60)
    # The broker writes consumer offsets every 500 ms here; a kill may lose younger ones.
    root = Path(str(cluster.broker.config["storePathRootDir"]))
    offset_file = root / "config" / "consumerOffset.json"
    wait_until(
        lambda: offset_file.exists() and f"{topic}@{group}" in offset_file.read_text(),
        "the group's offsets on disk",
    )
    assert java.run("send", **send, first=60, count=40, mode="async")["failed"] == []
    if how == "stop":
        assert cluster.broker.stop() in (0, 143)
    else:
        cluster.broker.kill()
    cluster.restart_broker()
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=group)
    messages = consumer.wait_for("message", 40)
    consumer.stop()
    assert set(names(messages)) >= set(expected_names("m", 100)[60:])
    if how == "stop":
        assert sorted(names(messages)) == sorted(expected_names("m", 100)[60:])


def test_a_consumer_stays_while_the_broker_is_killed_and_returns(
    own_cluster: Cluster, java: Driver
) -> None:
    cluster, topic, group = own_cluster, unique("stays"), unique("group")
    send = {"namesrv": cluster.address, "topic": topic}
    assert java.run("send", **send, count=20)["failed"] == []
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=group)
    consumer.wait_for("message", 20)
    for round_number in (1, 2):
        cluster.broker.kill()
        cluster.restart_broker()
        first = 20 * round_number
        wait_until(
            lambda: java.run("send", **send, prefix="probe", retries=0)["sent"], "sends work again"
        )
        assert java.run("send", **send, first=first, count=20)["failed"] == []
        wanted = set(expected_names("m", first + 20))
        consumer.wait(lambda job, wanted=wanted: wanted <= set(names(job.of("message"))), "all")  # type: ignore[misc]
    consumer.stop()
