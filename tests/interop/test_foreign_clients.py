"""The C++ client and the JavaScript client, alone and together with the Java client."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.cluster import (
    DELAY_LEVELS,
    SUBJECT,
    Cluster,
    check_bodies,
    check_order,
    expected_names,
    names,
    unique,
)
from interop.foreign import ForeignClient, Start, cpp, javascript, running
from support.java_driver import Driver, Event
from support.processes import wait_until

CPP_MODES = ("sync", "async", "ordered", "async-ordered")
JAVASCRIPT_MODES = ("sync", "async", "ordered")
CLIENTS = [pytest.param(cpp, id="cpp"), pytest.param(javascript, id="javascript")]


@pytest.mark.parametrize(
    ("start", "mode"),
    [
        *(pytest.param(cpp, mode, id=f"cpp-{mode}") for mode in CPP_MODES),
        *(pytest.param(javascript, mode, id=f"javascript-{mode}") for mode in JAVASCRIPT_MODES),
    ],
)
def test_foreign_sends_reach_a_java_consumer(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start, mode: str
) -> None:
    topic = unique("foreign")
    # The JavaScript client sends only to a topic that exists.
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first", tags="a", keys="m")
    arguments = ["send", topic, mode, "20", "m"]
    with running(start, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        assert {event["status"] for event in producer.of("sent")} <= {"OK", "SEND_OK"}
        assert len(producer.of("sent")) == 20
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    messages = consumer.wait_for("message", 21)
    consumer.stop()
    assert sorted(names(messages)) == sorted(["first-0", *expected_names("m", 20)])
    assert {event["tags"] for event in messages} == {"a", "b"}
    assert {event["keys"] for event in messages} == {f"m{n}" for n in range(20)}
    by_name = {event["name"]: event for event in messages}
    for sent in producer.of("sent"):
        arrived = by_name[f"m-{sent['n']}"]
        assert int(sent["offset"]) == arrived["offset"]
        assert arrived["properties"]["n"] == str(sent["n"])
    if mode.endswith("ordered"):
        check_keys_keep_to_their_queue(messages)


def check_keys_keep_to_their_queue(messages: list[Event], *, in_order: bool = True) -> None:
    """The key of an ordered send is its number modulo 4."""
    for key in range(4):
        wanted = [f"m-{n}" for n in range(key, 20, 4)]
        of_key = [event for event in messages if event["name"] in wanted]
        assert len({event["queue"] for event in of_key}) == 1
        of_key.sort(key=lambda event: event["offset"])
        assert not in_order or names(of_key) == wanted


@pytest.mark.parametrize("mode", ["oneway", "oneway-ordered"])
def test_cpp_oneway(cluster: Cluster, java: Driver, tmp_path: Path, mode: str) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    arguments = ["send", topic, mode, "20", "m"]
    with running(cpp, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        messages = consumer.wait_for("message", 21)
    consumer.stop()
    assert sorted(names(messages)) == sorted(["first-0", *expected_names("m", 20)])
    if mode == "oneway-ordered":
        # Not in their order: Apache's threads take one-way sends of a connection side by side.
        check_keys_keep_to_their_queue(messages, in_order=False)


def test_cpp_batch(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    """Apache 4.9.7 stores it as one message that nobody can read; we as the messages it holds."""
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    arguments = ["send", topic, "batch", "5", "m"]
    with running(cpp, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        assert [event["status"] for event in producer.of("sent")] == ["OK"]
    java.run("send", namesrv=cluster.address, topic=topic, prefix="last")
    count = 3 if SUBJECT == "apache" else 7
    messages = consumer.wait_for("message", count)
    consumer.stop()
    assert len(messages) == count
    assert {"first-0", "last-0"} < set(names(messages))
    if SUBJECT != "apache":
        members = [event for event in messages if event["name"] in expected_names("m", 5)]
        assert names(sorted(members, key=lambda event: event["offset"])) == expected_names("m", 5)
        assert len({event["queue"] for event in members}) == 1
        assert {event["keys"] for event in members} == {f"m{n}" for n in range(5)}
        assert {event["tags"] for event in members} == {"a", "b"}


@pytest.mark.parametrize("start", CLIENTS)
def test_what_a_foreign_client_delays_comes_when_its_level_says(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic = unique("delayed")
    delays_ms = [int(text.removesuffix("s")) * 1000 for text in DELAY_LEVELS.split()]
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    consumer.wait_for("message", 1)
    arguments = ["send", topic, "sync", str(len(delays_ms)), "m", "delay=1"]
    with running(start, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        messages = consumer.wait_for("message", 1 + len(delays_ms))
    consumer.stop()
    waited = {event["name"]: event["seen"] - event["born"] for event in messages}
    assert set(waited) == {"first-0", *expected_names("m", len(delays_ms))}
    for number, delay_ms in enumerate(delays_ms):
        assert waited[f"m-{number}"] >= delay_ms, f"level {number + 1}"


@pytest.mark.parametrize("start", CLIENTS)
def test_large_bodies_of_foreign_clients_arrive_whole(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    """Both compress from 4096 bytes on."""
    topic, sizes = unique("large"), [10, 5000, 100_000, 1_000_000]
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    text = ",".join(map(str, sizes))
    arguments = ["send", topic, "sync", "8", "m", f"sizes={text}"]
    with running(start, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        assert producer.of("failed") == []
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=unique("group"))
    messages = [event for event in consumer.wait_for("message", 9) if event["name"] != "first-0"]
    consumer.stop()
    assert sorted(names(messages)) == expected_names("m", 8)
    check_bodies(messages, sizes)


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumers_unpack_what_java_compressed(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic, sizes = unique("large"), [10, 5000, 100_000, 1_000_000]
    sent = java.run(
        "send", namesrv=cluster.address, topic=topic, count=8, tags="a", keys="k",
        sizes=",".join(map(str, sizes)),
    )["sent"]  # fmt: skip
    arguments = ["consume", topic, unique("group"), "*", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        messages = consumer.wait_for("message", 8)
    check_bodies(messages, sizes)
    check_attributes(messages, sent, topic)


def check_attributes(messages: list[Event], sent: list[Event], topic: str) -> None:
    """Each came from where Java's acknowledgement says it is, with all that Java gave it."""
    by_name = {event["name"]: event for event in messages}
    for event in sent:
        arrived = by_name[f"m-{event['n']}"]
        assert (arrived["queue"], int(arrived["offset"])) == (event["queue"], event["offset"])
        assert arrived["physical"] == int(event["offsetMsgId"][16:], 16)
        assert arrived["msgId"] in (event["msgId"], event["offsetMsgId"])
        assert (arrived["topic"], arrived["n"]) == (topic, str(event["n"]))
        assert (arrived["tags"], arrived["keys"]) == ("a", f"k{event['n']}")
        assert 0 <= arrived["stored"] - arrived["born"] < 60_000


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
    java.run("send", namesrv=cluster.address, topic=topic, count=30, tags="a,b,c")
    arguments = ["consume", topic, unique("group"), "b || c", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        messages = consumer.wait_for("message", 20)
    assert {event["tags"] for event in messages} == {"b", "c"}
    assert set(names(messages)) == {f"m-{n}" for n in range(30) if n % 3}


def test_javascript_consumer_filters_by_sql(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    topic = unique("foreign")
    java.run(
        "send", namesrv=cluster.address, topic=topic, count=30,
        properties="colour=red;price=3|colour=blue;price=12|price=20",
    )  # fmt: skip
    expression = "price BETWEEN 10 AND 15 OR colour IS NULL"
    arguments = ["consume", topic, unique("group"), expression, "CLUSTERING", "sql=true"]
    with running(javascript, tmp_path / "sql.log", cluster.address, *arguments) as consumer:
        messages = consumer.wait_for("message", 20)
    assert set(names(messages)) == {f"m-{n}" for n in range(30) if n % 3}
    assert len(messages) == 20


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumer_of_two_topics(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topics = [unique("foreign"), unique("foreign")]
    for topic in topics:
        java.run("send", namesrv=cluster.address, topic=topic, prefix=topic, count=8)
    arguments = ["consume", ",".join(topics), unique("group"), "*", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        messages = consumer.wait_for("message", 16)
    wanted = {(topic, f"{topic}-{n}") for topic in topics for n in range(8)}
    assert {(event["topic"], event["name"]) for event in messages} == wanted


@pytest.mark.parametrize("start", CLIENTS)
def test_foreign_consumer_goes_on_where_it_stopped(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic, group = unique("foreign"), unique("group")
    arguments = ["consume", topic, group, "*", "CLUSTERING"]
    for part in ("one", "two"):
        java.run("send", namesrv=cluster.address, topic=topic, prefix=part, count=20)
        log = tmp_path / f"{part}.log"
        with running(start, log, cluster.address, *arguments) as consumer:
            consumer.wait_for("message", 20)
            wait_until(lambda: has_committed(java, cluster, topic, group), "its offsets")
        assert sorted(names(consumer.of("message"))) == sorted(expected_names(part, 20))


def has_committed(java: Driver, cluster: Cluster, topic: str, group: str) -> bool:
    queues = java.run("offsets", namesrv=cluster.address, topic=topic, group=group)["queue"]
    return all(event["consumed"] == event["max"] for event in queues)


def test_javascript_with_a_namespace(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    """Its topics and groups are then called NAMESPACE%NAME."""
    topic, group, space = unique("foreign"), unique("group"), "namespace=MQ_INST_1"
    whole = f"MQ_INST_1%{topic}"
    java.run("send", namesrv=cluster.address, topic=whole, prefix="java", count=8)
    arguments = ["send", topic, "sync", "8", "m", space]
    with running(javascript, tmp_path / "send.log", cluster.address, *arguments) as producer:
        producer.wait_for("done")
        assert len(producer.of("sent")) == 8
    wanted = sorted([*expected_names("java", 8), *expected_names("m", 8)])
    arguments = ["consume", topic, group, "*", "CLUSTERING", space]
    with running(javascript, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        assert sorted(names(consumer.wait_for("message", 16))) == wanted
        wait_until(lambda: has_committed(java, cluster, whole, f"MQ_INST_1%{group}"), "its offsets")
    result = java.run("pull", namesrv=cluster.address, topic=whole, group=unique("group"))
    assert sorted(names(result["message"])) == wanted


@pytest.mark.parametrize("start", CLIENTS)
def test_what_a_foreign_consumer_refuses_comes_again(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    topic = unique("foreign")
    # No queue has both kinds: a good one that C++ takes with a refused one would come again too.
    java.run(
        "send", namesrv=cluster.address, topic=topic, mode="ordered", count=8, tags="good,refuse"
    )
    good, refused = ({f"m-{n}" for n in range(first, 8, 2)} for first in (0, 1))
    arguments = ["consume", topic, unique("group"), "*", "CLUSTERING"]
    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        wait_until(lambda: delivered(consumer, 1) == refused, "the refused ones again")
    assert delivered(consumer, 0) >= good
    assert delivered(consumer, 1) == refused
    # C++ takes several at a time: those behind a refused one are refused with it, unseen.
    assert delivered(consumer, 0) & refused


@pytest.mark.parametrize("start", CLIENTS)
def test_what_a_foreign_consumer_always_refuses_is_a_dead_letter(
    cluster: Cluster, java: Driver, tmp_path: Path, start: Start
) -> None:
    """JavaScript says how often it wants to try; for C++ the broker's configuration says it."""
    topic, group = unique("foreign"), unique("group")
    broker = cluster.broker.address
    made = ("updateSubGroup", "-n", cluster.address, "-b", broker, "-g", group, "-r", "1")
    if start is cpp:
        assert "success" in java.mqadmin(*made)
    java.run("send", namesrv=cluster.address, topic=topic, count=2, tags="hate")
    arguments = ["consume", topic, group, "*", "CLUSTERING"]
    arguments += ["retries=1"] if start is javascript else []

    def dead_letters() -> list[str]:
        result = java.start("pull", namesrv=cluster.address, topic=f"%DLQ%{group}", group="reader")
        result.wait(lambda job: job.of("done") or job.of("error"), "an answer")
        java.write(result.id, "stop", {})
        return sorted(names(result.of("message")))

    with running(start, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        wait_until(lambda: dead_letters() == ["m-0", "m-1"], "both dead letters", interval_s=0.5)
    # C++ takes several at a time: one behind another is refused with it, unseen.
    times = sorted((event["name"], event["reconsume"]) for event in consumer.of("message"))
    assert set(times) <= {("m-0", 0), ("m-0", 1), ("m-1", 0), ("m-1", 1)}
    assert len(times) == len(set(times)) >= (4 if start is javascript else 2)


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


def test_a_cpp_ordered_consumer_waits_at_what_it_refuses(
    cluster: Cluster, java: Driver, tmp_path: Path
) -> None:
    """The refused one comes again before those behind it, which keep their order."""
    topic = unique("foreign")
    java.run(
        "send", namesrv=cluster.address, topic=topic, mode="ordered", keysOrdered=1, count=12,
        tags="good,good,refuse",
    )  # fmt: skip
    arguments = ["consume", topic, unique("group"), "*", "ORDERLY"]
    with running(cpp, tmp_path / "consume.log", cluster.address, *arguments) as consumer:
        # The last one is refused at first: when it came twice, all is there.
        wait_until(lambda: names(consumer.of("message")).count("m-11") == 2, "the last one again")
    assert set(names(consumer.of("message"))) == set(expected_names("m", 12))
    check_order([{**event, "broker": ""} for event in consumer.of("message")])
    seen = names(consumer.of("message"))
    for number in (2, 5, 8, 11):
        first = seen.index(f"m-{number}")
        assert f"m-{number}" in seen[first + 1 :], "it came again"
        behind = {f"m-{n}" for n in range(number + 1, 12)}
        assert not behind & set(seen[: seen.index(f"m-{number}", first + 1)])


def test_cpp_ordered_consumer_shares_queues_with_java(
    cluster: Cluster, java: Driver, tmp_path: Path
) -> None:
    """A queue is locked by one of the two at a time: each sees an order without a gap."""
    topic, group = unique("foreign"), unique("group")
    send = {"namesrv": cluster.address, "topic": topic, "mode": "ordered"}
    java.run("send", **send, count=40)
    mine = java.start("push", namesrv=cluster.address, topic=topic, group=group, order="true")
    mine.wait_for("message", 40)
    sent = 40
    arguments = ["consume", topic, group, "*", "ORDERLY"]
    with running(cpp, tmp_path / "consume.log", cluster.address, *arguments) as theirs:
        theirs.wait_for("started")
        for _ in range(120):
            java.run("send", **send, first=sent, count=40)
            sent += 40
            if theirs.of("message"):
                break

        def together() -> set[str]:
            return set(names(mine.of("message"))) | set(names(theirs.of("message")))

        wanted = set(expected_names("m", sent))
        mine.wait(lambda _: together() >= wanted, "all messages by the two")
        assert theirs.of("message")
    mine.stop()
    for events in (mine.of("message"), theirs.of("message")):
        for queue in range(4):
            offsets = [event["offset"] for event in events if event["queue"] == queue]
            assert offsets == sorted(offsets), queue


def test_cpp_pull(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, count=100, tags="a,b")
    arguments = ["pull", topic, unique("group"), "b"]
    with running(cpp, tmp_path / "pull.log", cluster.address, *arguments) as consumer:
        consumer.wait_for("done")
        messages = consumer.of("message")
    assert sorted(names(messages)) == sorted(f"m-{n}" for n in range(1, 100, 2))


def test_cpp_pull_beyond_the_end(cluster: Cluster, java: Driver, tmp_path: Path) -> None:
    topic = unique("foreign")
    java.run("send", namesrv=cluster.address, topic=topic, count=8)
    arguments = ["pull", topic, unique("group"), "*", "offset=1000"]
    with running(cpp, tmp_path / "pull.log", cluster.address, *arguments) as consumer:
        consumer.wait_for("done")
    ends = java.run("offsets", namesrv=cluster.address, topic=topic, group="reader")["queue"]
    wanted = sorted((event["queue"], "OFFSET_ILLEGAL", event["max"]) for event in ends)
    pulled = consumer.of("pulled")
    assert sorted((event["queue"], event["status"], event["next"]) for event in pulled) == wanted


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
