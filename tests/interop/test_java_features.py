"""Beyond the everyday path: retry, delay, transactions, SQL92, request-reply, trace."""

from __future__ import annotations

import pytest

from interop.cluster import DELAY_LEVELS, Cluster, names, unique
from support.java_driver import Driver
from support.processes import wait_until


def test_a_refused_message_comes_again_through_the_retry_topic(
    cluster: Cluster, client: Driver
) -> None:
    topic, group = unique("retry"), unique("group")
    client.run("send", namesrv=cluster.address, topic=topic, count=8, tags="good,bad")
    consumer = client.start(
        "push", namesrv=cluster.address, topic=topic, group=group, fail=2, failTag="bad"
    )
    consumer.wait(
        lambda job: sum(event["reconsume"] == 2 for event in job.of("message")) == 4,
        "the bad ones for the third time",
    )
    messages = consumer.stop()["message"]
    times = sorted((event["name"], event["reconsume"]) for event in messages)
    bad = [(f"m-{n}", times) for n in range(1, 8, 2) for times in range(3)]
    assert times == sorted(bad + [(f"m-{n}", 0) for n in range(0, 8, 2)])
    assert {event["topic"] for event in messages} == {topic}
    retried = [event for event in messages if event["reconsume"]]
    assert all("ORIGIN_MESSAGE_ID" in event["properties"] for event in retried)


def test_a_message_refused_too_often_is_a_dead_letter(cluster: Cluster, client: Driver) -> None:
    topic, group = unique("dead"), unique("group")
    client.run("send", namesrv=cluster.address, topic=topic, count=2)
    consumer = client.start(
        "push", namesrv=cluster.address, topic=topic, group=group, fail=99, maxReconsume=1
    )

    def dead_letters() -> list[str]:
        result = client.run("pull", namesrv=cluster.address, topic=f"%DLQ%{group}", group="reader")
        return sorted(names(result["message"]))

    consumer.wait_for("message", 4)
    # The topic comes with the first dead letter; until then there is no route to it.
    wait_until(lambda: has_route(client, cluster, f"%DLQ%{group}"), "the dead-letter topic")
    wait_until(lambda: dead_letters() == ["m-0", "m-1"], "both dead letters")
    messages = consumer.stop()["message"]
    assert sorted(event["reconsume"] for event in messages) == [0, 0, 1, 1]


def has_route(client: Driver, cluster: Cluster, topic: str) -> bool:
    job = client.start("offsets", namesrv=cluster.address, topic=topic, group="reader")
    job.wait(lambda job: job.of("done") or job.of("error"), "an answer")
    found = job.by_name()
    client.write(job.id, "stop", {})
    return not found["error"] and bool(found["queue"])


def test_delayed_messages_come_when_their_level_says(cluster: Cluster, client: Driver) -> None:
    topic, group = unique("delay"), unique("group")
    client.run("send", namesrv=cluster.address, topic=topic, prefix="now")
    consumer = client.start("push", namesrv=cluster.address, topic=topic, group=group)
    consumer.wait_for("message", 1)
    delays_ms = [int(text.removesuffix("s")) * 1000 for text in DELAY_LEVELS.split()]
    levels = {**dict(enumerate(delays_ms, 1)), 99: delays_ms[-1]}  # No such level: the highest.
    for level in levels:
        result = client.run(
            "send", namesrv=cluster.address, topic=topic, prefix=f"level{level}", delay=level
        )
        assert result["sent"][0]["status"] == "SEND_OK"
    messages = consumer.wait_for("message", 1 + len(levels))
    consumer.stop()
    waited = {event["name"]: event["seen"] - event["born"] for event in messages}
    for level, delay_ms in levels.items():
        assert waited[f"level{level}-0"] >= delay_ms, level
    assert {event["topic"] for event in messages} == {topic}


def test_transactions_are_committed_rolled_back_and_asked_for(
    cluster: Cluster, client: Driver
) -> None:
    topic, group = unique("transaction"), unique("group")
    client.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    plans = ["commit", "rollback", "check-commit", "check-rollback", "never"]
    producer = client.start(
        "transaction", namesrv=cluster.address, topic=topic, group=unique("producers"),
        count=10, plans=",".join(plans),
    )  # fmt: skip
    producer.wait_for("done")
    assert {event["status"] for event in producer.of("sent")} == {"SEND_OK"}
    consumer = client.start("push", namesrv=cluster.address, topic=topic, group=group)
    consumer.wait_for("message", 5)

    def checks() -> dict[str, int]:
        seen = [event["name"] for event in producer.of("checked")]
        return {name: seen.count(name) for name in set(seen)}

    # Undecided ones are asked for until transactionCheckMax (3), then given up.
    wait_until(lambda: min(checks().get(f"m-{n}", 0) for n in (4, 9)) >= 3, "three checks")

    def given_up() -> set[str]:
        found = client.run(
            "pull", namesrv=cluster.address, topic=topic_of_these, group=unique("lookers"),
        )  # fmt: skip
        seen = {event["msgId"]: event["name"] for event in found["message"]}
        return {seen[event["msgId"]] for event in producer.of("sent") if event["msgId"] in seen}

    assert has_route(client, cluster, "RMQ_SYS_TRANS_HALF_TOPIC")
    # The topic comes with the first that is given up.
    topic_of_these = "TRANS_CHECK_MAX_TIME_TOPIC"
    wait_until(lambda: has_route(client, cluster, topic_of_these), "the topic of those given up")
    wait_until(lambda: given_up() == {"m-4", "m-9"}, "those never decided, in their topic")
    messages = consumer.stop()["message"]
    producer.stop()
    assert sorted(names(messages)) == sorted(["first-0", "m-0", "m-2", "m-5", "m-7"])
    assert set(checks()) == {f"m-{n}" for n in (2, 3, 4, 7, 8, 9)}


@pytest.mark.parametrize("name", ["java", "java_binary"])
def test_request_is_answered(cluster: Cluster, request: pytest.FixtureRequest, name: str) -> None:
    """Not with the 5.3.3 client: it stops waiting as soon as its request is stored."""
    client: Driver = request.getfixturevalue(name)
    topic, group = unique("request"), unique("group")
    client.run("send", namesrv=cluster.address, topic=topic, prefix="first")
    replier = client.start("reply", namesrv=cluster.address, topic=topic, group=group)
    replier.wait_for("message", 1)
    replier.events.clear()  # The first one carried no address to answer to.
    result = client.run("request", namesrv=cluster.address, topic=topic, count=5, group=unique("p"))
    client.write(replier.id, "stop", {})
    assert result["failed"] == []
    assert [event["body"] for event in result["answer"]] == [f"re:m-{n}" for n in range(5)]


def sql_case(cluster: Cluster, client: Driver, topic: str, sql: str) -> list[str]:
    consumer = client.start(
        "push", namesrv=cluster.address, topic=topic, group=unique("sql"), sql=sql
    )
    # All went to one queue: when the last one is there, the others have been judged.
    consumer.wait(lambda job: "last-0" in names(job.of("message")), f"the last message by {sql}")
    messages = consumer.stop()["message"]
    return sorted(name for name in names(messages) if name not in ("first-0", "last-0"))


SQL_CASES = {
    "a > 5": [6, 7, 8, 9],
    "a BETWEEN 2 AND 4": [2, 3, 4],
    "a NOT BETWEEN 1 AND 8": [0, 9],
    "name IN ('n1', 'n3')": [1, 3],
    "name NOT IN ('n1', 'n3') AND a < 5": [0, 2, 4],
    "missing IS NULL": list(range(10)),
    "name IS NOT NULL AND even = TRUE": [0, 2, 4, 6, 8],
    "a = 3 OR name = 'n7'": [3, 7],
    "NOT (a >= 2)": [0, 1],
    "price > 1.5 AND price <= 3.5": [2, 3],
}


def test_sql92_filters(cluster: Cluster, java: Driver) -> None:
    topic = unique("sqltopic")
    sets = "|".join(
        f"a={n};name=n{n};even={'true' if n % 2 == 0 else 'false'};price={n}.5" for n in range(10)
    )
    send = {"namesrv": cluster.address, "topic": topic, "mode": "queue", "queue": 0}
    java.run("send", namesrv=cluster.address, topic=topic, prefix="first", properties="none=1")
    assert java.run("send", **send, count=10, properties=sets)["failed"] == []
    assert java.run("send", **send, prefix="last", properties="last=yes")["failed"] == []
    for sql, expected in SQL_CASES.items():
        found = sql_case(cluster, java, topic, f"({sql}) OR last = 'yes'")
        assert found == sorted(f"m-{n}" for n in expected), sql


def test_a_wrong_sql_expression_is_refused(cluster: Cluster, java: Driver) -> None:
    topic = unique("wrongsql")
    java.run("send", namesrv=cluster.address, topic=topic, count=1)
    consumer = java.start(
        "push", namesrv=cluster.address, topic=topic, group=unique("sql"), sql="a >> 5"
    )
    wait_until(lambda: consumer.of("error"), "the broker's refusal")
    assert "CODE: 23" in consumer.of("error")[0]["text"]
    java.write(consumer.id, "stop", {})


def test_traces_are_sent_and_can_be_consumed(cluster: Cluster, java: Driver) -> None:
    topic, group = unique("trace"), unique("group")
    producer = java.start("send", namesrv=cluster.address, topic=topic, count=3, trace="true")
    producer.wait_for("done")
    consumer = java.start("push", namesrv=cluster.address, topic=topic, group=group, trace="true")
    consumer.wait_for("message", 3)

    def traced() -> str:
        result = java.run(
            "pull", namesrv=cluster.address, topic="RMQ_SYS_TRACE_TOPIC", group="tracereader"
        )
        return " ".join(str(event["keys"]) for event in result["message"])

    ids = [event["msgId"] for event in producer.of("sent")]
    wait_until(lambda: all(name in traced() for name in ids), "a trace of every message")
    producer.stop()
    consumer.stop()
