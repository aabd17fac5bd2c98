"""The C++ client and the JavaScript client, alone and together with the Java client."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.cluster import DELAY_LEVELS, Cluster, expected_names, names, unique
from interop.foreign import ForeignClient, Start, cpp, javascript, running
from support.java_driver import Driver
from support.processes import wait_until

# Not its batches: Apache 4.9.7 itself stores one of them as a single message that nobody can read.
CPP_MODES = ("sync", "async", "ordered")
CLIENTS = [pytest.param(cpp, id="cpp"), pytest.param(javascript, id="javascript")]


def send_arguments(start: Start, topic: str, mode: str, count: int) -> list[str]:
    if start is javascript:
        return ["send", topic, str(count), "m"]
    return ["send", topic, mode, str(count), "m"]


@pytest.mark.parametrize(
    ("start", "mode"),
    [
        *(pytest.param(cpp, mode, id=f"cpp-{mode}") for mode in CPP_MODES),
        pytest.param(javascript, "sync", id="javascript"),
    ],
)
def test_foreign_sends_reach_a_java_consumer(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start, mode: str
) -> None:
    topic = unique("foreign")
    # The JavaScript client sends only to a topic that exists.
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first", tags="a", keys="m")
    with running(
        start, tmp_path / "send.log", cluster.address, *send_arguments(start, topic, mode, 20)
    ) as producer:
        producer.wait_for("done")
        assert {event["status"] for event in producer.of("sent")} <= {"OK", "SEND_OK"}
        assert len(producer.of("sent")) == 20
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    messages = consumer.wait_for("message", 21)
    consumer.stop()
    assert sorted(names(messages)) == sorted(["first-0", *expected_names("m", 20)])
    assert {event["tags"] for event in messages} == {"a", "b"}
    assert {event["keys"] for event in messages} == {f"m{n}" for n in range(20)}


def test_cpp_oneway(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    arguments = send_arguments(cpp, topic, "oneway", 20)
    with running(cpp, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        messages = consumer.wait_for("message", 21)
    consumer.stop()
    assert sorted(names(messages)) == sorted(["first-0", *expected_names("m", 20)])


@pytest.mark.parametrize("start", CLIENTS)
def test_what_a_foreign_client_delays_comes_when_its_level_says(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic = unique("delayed")
    delays_ms = [int(text.removesuffix("s")) * 1000 for text in DELAY_LEVELS.split()]
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    consumer.wait_for("message", 1)
    arguments = [*send_arguments(start, topic, "sync", len(delays_ms)), "1"]
    with running(start, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        messages = consumer.wait_for("message", 1 + len(delays_ms))
    consumer.stop()
    waited = {event["name"]: event["seen"] - event["born"] for event in messages}
    assert set(waited) == {"first-0", *expected_names("m", len(delays_ms))}
    for number, delay_ms in enumerate(delays_ms):
        assert waited[f"m-{number}"] >= delay_ms, f"level {number + 1}"


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumer_sees_of_transactions_what_was_committed(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    """Neither of the two can send half messages: Java decides, at once and when it is asked."""
    topic = unique("decided")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    plans = ["rollback", "check-rollback", "never", "commit", "check-commit"]
    producer = java.start(
        "transaction", namesrv=cluster.address, topic=topic, group=unique("producers"),
        count=10, plans=",".join(plans),
    )  # fmt: skip
    producer.wait_for("done")
    arguments = ["consume", topic, unique("group"), "*", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        wanted = {"first-0", *(f"m-{n}" for n in (3, 4, 8, 9))}
        wait_until(lambda: set(names(consumer.of("message"))) >= wanted, "what was committed")
    producer.stop()
    assert set(names(consumer.of("message"))) == wanted


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumer_gets_what_java_sent(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first", tags="a")
    arguments = ["consume", topic, unique("group"), "*", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        consumer.wait_for("message", 1)
        java.run("send", namesrv=cluster.address, topic=topic, count=20, tags="a,b", keys="k")
        messages = consumer.wait_for("message", 21)
    assert set(names(messages)) == {"first-0", *expected_names("m", 20)}


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumer_filters_by_tag(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, count=20, tags="a,b")
    arguments = ["consume", topic, unique("group"), "b", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        messages = consumer.wait_for("message", 10)
    assert {event["tags"] for event in messages} == {"b"}
    assert set(names(messages)) == {f"m-{n}" for n in range(1, 20, 2)}


@pytest.mark.parametrize("start", CLIENTS)
def test_what_a_foreign_consumer_refuses_comes_again(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, count=8, tags="good,refuse")
    good, refused = ({f"m-{n}" for n in range(first, 8, 2)} for first in (0, 1))
    arguments = ["consume", topic, unique("group"), "*", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        wait_until(lambda: delivered(consumer, 1) == refused, "the refused ones again")
    assert delivered(consumer, 0) >= good
    assert delivered(consumer, 1) == refused
    # C++ takes several at a time: those behind a refused one are refused with it, unseen.
    assert delivered(consumer, 0) & refused


def delivered(consumer: ForeignClient, times_before: int) -> set[str]:
    events = consumer.of("message")
    return {event["name"] for event in events if event["reconsume"] == times_before}


def test_cpp_ordered_consumer_gets_each_queue_in_order(
    cluster: Cluster, java: Driver, tmp_path: Path
) -> None:
    topic = unique("foreign")
    send = {"namesrv": cluster.address, "topic": topic, "mode": "ordered"}
    java.run("send", **send, count=100)
    arguments = ["consume", topic, unique("group"), "*", "ORDERLY"]
    with running(cpp, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        consumer.wait_for("message", 100)
        java.run("send", **send, first=100, count=100)
        messages = consumer.wait_for("message", 200)
    assert sorted(names(messages)) == sorted(expected_names("m", 200))
    for queue in range(4):
        offsets = [event["offset"] for event in messages if event["queue"] == queue]
        assert offsets == list(range(50))


def test_cpp_pull(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, count=100, tags="a,b")
    arguments = ["pull", topic, unique("group"), "b"]
    with running(cpp, tmp_path / "pull.log", cluster.address, *arguments) as consumer:
        consumer.wait_for("done")
        messages = consumer.of("message")
    assert sorted(names(messages)) == sorted(f"m-{n}" for n in range(1, 100, 2))


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumer_shares_a_group_with_java(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    """Queues are divided between the two: together they get everything, each at least one queue."""
    topic, group = unique("foreign"), unique("group")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    arguments = ["consume", topic, group, "*", "CLUSTERING"]
    mine = java.start("push", namesrv=cluster.address, topic=topic, group=group)
    mine.wait_for("started")
    sent = 0
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as theirs:
        theirs.wait_for("started")
        for _ in range(60):
            java.run("send", namesrv=cluster.address, topic=topic, first=sent, count=8)
            sent += 8
            if theirs.of("message") and mine.of("message"):
                break

        def together() -> set[str]:
            return set(names(mine.of("message"))) | set(names(theirs.of("message")))

        wanted = {"first-0", *expected_names("m", sent)}
        mine.wait(lambda _: together() >= wanted, "all messages by the two")
        assert theirs.of("message")
    mine.stop()


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_broadcast(cluster: Cluster, java: Driver, tmp_path: Path, start: Start) -> None:
    topic, group = unique("foreign"), unique("group")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    arguments = ["consume", topic, group, "*", "BROADCASTING"]
    with (
        running(start, tmp_path / "one.log", cluster.address, *arguments) as one,
        running(start, tmp_path / "two.log", cluster.address, *arguments) as two,
    ):
        for consumer in (one, two):
            consumer.wait_for("started")
        for attempt in range(60):
            # A broadcast consumer begins at the end of each queue that it has not seen yet.
            java.run("send", namesrv=cluster.address, topic=topic, prefix=f"r{attempt}", count=8)
            if all(has_every_queue(consumer) for consumer in (one, two)):
                break
        java.run("send", namesrv=cluster.address, topic=topic, prefix="end", count=20)
        wanted = set(expected_names("end", 20))
        for consumer in (one, two):
            wait_until(
                lambda consumer=consumer: wanted <= set(names(consumer.of("message"))),  # type: ignore[misc]
                "every message at both consumers",
            )


def has_every_queue(consumer: ForeignClient) -> bool:
    return {event["queue"] for event in consumer.of("message")} == {0, 1, 2, 3}
