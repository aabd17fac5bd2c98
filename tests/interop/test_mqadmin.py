"""Every verb of mqadmin 4.9.7 that concerns a name server or a broker; its output against facts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.cluster import Cluster, unique
from support.apache import mqadmin, start_mqadmin
from support.java_driver import Driver, Job
from support.processes import ProcessGroup, wait_until

Verb = Callable[..., str]


@pytest.fixture(scope="module")
def verb(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verb]:
    """mqadmin with the name server's address, in a JVM of its own: it exits at a wrong option."""
    driver = Driver(tmp_path_factory.mktemp("mqadmin"))

    def call(name: str, *arguments: object, fails: bool | None = False) -> str:
        words = [name, "-n", cluster.address, *map(str, arguments)]
        return driver.mqadmin(*words, fails=fails)

    yield call
    driver.close()


@pytest.fixture(scope="module")
def topic(java: Driver, cluster: Cluster, verb: Verb) -> str:
    """A topic with 20 messages that group `readers_TOPIC` has consumed."""
    name = unique("admin")
    verb("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", 4, "-w", 4)
    sent = java.run("send", namesrv=cluster.address, topic=name, count=20, keys="key", tags="a")
    assert sent["failed"] == []
    return name


@pytest.fixture(scope="module")
def consumer(java: Driver, cluster: Cluster, topic: str) -> Iterator[Job]:
    job = java.start("push", namesrv=cluster.address, topic=topic, group=f"readers_{topic}")
    job.wait_for("message", 20)
    at = {"namesrv": cluster.address, "topic": topic, "group": f"readers_{topic}"}

    def has_committed() -> bool:
        queues = java.run("offsets", **at)["queue"]
        return all(event["consumed"] == event["max"] for event in queues)

    wait_until(has_committed, "all committed")
    yield job
    java.write(job.id, "stop", {})


@pytest.fixture(scope="module")
def broker(cluster: Cluster) -> str:
    address: str = cluster.broker.address
    return address


def test_topic_verbs(verb: Verb, broker: str, topic: str) -> None:
    name = unique("made")
    text = verb("updateTopic", "-b", broker, "-t", name, "-r", 3, "-w", 2, "-p", 6)
    assert f"create topic to {broker} success" in text
    assert "readQueueNums=3, writeQueueNums=2" in text
    wait_until(lambda: name in verb("topicList"), "the topic in topicList")
    assert '"readQueueNums":3' in verb("topicRoute", "-t", name)
    text = verb("updateTopicPerm", "-b", broker, "-t", name, "-p", 4)
    assert "update topic perm from 6 to 4" in text
    assert "DefaultCluster" in verb("topicClusterList", "-t", topic)
    lines = [line.split() for line in verb("topicStatus", "-t", topic).splitlines()]
    rows = [line for line in lines if line and line[0] == "broker-a"]
    assert sum(int(row[3]) - int(row[2]) for row in rows) == 20
    assert topic in verb("topicList", "-c", "DefaultCluster")
    assert '"1.2.3.4"' in verb("allocateMQ", "-t", topic, "-i", "1.2.3.4")
    verb("updateOrderConf", "-m", "put", "-t", topic, "-v", "broker-a:4")
    assert "broker-a:4" in verb("updateOrderConf", "-m", "get", "-t", topic)
    verb("updateOrderConf", "-m", "delete", "-t", topic)
    text = verb("deleteTopic", "-c", "DefaultCluster", "-t", name)
    assert f"delete topic [{name}] from cluster [DefaultCluster] success." in text
    assert f"delete topic [{name}] from NameServer success." in text
    wait_until(lambda: name not in verb("topicList"), "the topic gone")


def rows_of(text: str, *first: str) -> list[list[str]]:
    """Lines that begin with these cells, as cells."""
    rows = (line.split() for line in text.splitlines())
    return [row for row in rows if row[: len(first)] == list(first)]


def test_group_verbs(
    verb: Verb, java: Driver, cluster: Cluster, broker: str, topic: str, consumer: Job
) -> None:
    group = f"readers_{topic}"
    text = verb("consumerConnection", "-g", group)
    assert topic in text
    assert "CONSUME_FROM_FIRST_OFFSET" in text
    assert "Diff Total: 0" in progress(verb, group)
    rows = [line.split() for line in progress(verb, group).splitlines() if topic in line.split()]
    assert sum(int(row[3]) for row in rows) == 20
    assert group in verb("consumerProgress")
    assert consumer.of("started")[0]["client"] in verb("consumerStatus", "-g", group)
    stats = rows_of(verb("brokerConsumeStats", "-b", broker), topic, group, "broker-a")
    assert [row[3] for row in stats] == ["0", "1", "2", "3"]
    assert sum(int(row[4]) for row in stats) == sum(int(row[5]) for row in stats) == 20
    other = unique("cloned")
    verb("updateSubGroup", "-b", broker, "-g", other, "-r", 7)
    assert rows_of(verb("getConsumerConfig", "-g", other), "retryMaxTimes") == [
        ["retryMaxTimes", "=", "7"]
    ]
    text = verb("cloneGroupOffset", "-s", group, "-d", other, "-t", topic)
    assert f"clone group offset success. srcGroup[{group}], destGroup=[{other}], " in text
    queues = java.run("offsets", namesrv=cluster.address, topic=topic, group=other)["queue"]
    assert sum(event["consumed"] for event in queues) == 20
    text = verb("deleteSubGroup", "-b", broker, "-g", other)
    assert f"delete subscription group [{other}] from broker [{broker}] success." in text
    assert rows_of(verb("getConsumerConfig", "-g", other), "retryMaxTimes") == []


def progress(verb: Verb, group: str) -> str:
    return verb("consumerProgress", "-g", group)


def test_offsets_are_reset_on_running_consumers(
    verb: Verb, java: Driver, cluster: Cluster, topic: str, consumer: Job
) -> None:
    group = f"readers_{topic}"
    before = len(consumer.of("message"))
    text = verb("resetOffsetByTime", "-g", group, "-t", topic, "-s", 1, "-f", "true")
    assert sorted(row[1:] for row in rows_of(text, "broker-a")) == [
        [str(queue), "0"] for queue in range(4)
    ]
    consumer.wait(lambda job: len(job.of("message")) >= before + 20, "everything again")
    text = verb("skipAccumulatedMessage", "-g", group, "-t", topic)
    queues = java.run("offsets", namesrv=cluster.address, topic=topic, group=group)["queue"]
    ends = sorted([str(event["queue"]), str(event["max"])] for event in queues)
    assert sorted(row[1:] for row in rows_of(text, "broker-a")) == ends


def test_message_verbs(
    verb: Verb, java: Driver, cluster: Cluster, topic: str, broker: str, tmp_path: Path
) -> None:
    sent = java.run("send", namesrv=cluster.address, topic=topic, keys="look", tags="b")["sent"][0]
    text = verb("queryMsgById", "-i", sent["offsetMsgId"])
    assert f"Queue Offset:        {sent['offset']}" in text
    assert sent["msgId"] in verb("queryMsgByKey", "-t", topic, "-k", "look0")
    assert "look0" in verb("queryMsgByUniqueKey", "-t", topic, "-i", sent["msgId"])
    text = verb(
        "queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", sent["queue"],
        "-o", sent["offset"],
    )  # fmt: skip
    assert sent["msgId"] in text
    assert sent["msgId"] in verb("printMsg", "-t", topic)
    text = verb("printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", sent["queue"], "-p", "true")
    assert sent["msgId"] in text
    text = verb("sendMessage", "-t", topic, "-p", "hello", "-k", "fromadmin")
    assert [row[2] for row in rows_of(text, "broker-a")] == ["SEND_OK"]
    text = verb("consumeMessage", "-t", topic, "-b", "broker-a", "-i", 0, "-o", 0, "-c", 2)
    assert re.findall(r"^MSGID: \w+ MessageExt .* queueOffset=(\d+),", text, re.MULTILINE) == [
        "0", "1"
    ]  # fmt: skip
    text = verb("queryCq", "-t", topic, "-q", 0, "-i", 0, "-c", 2, "-b", broker)
    assert re.search(r"^max: \d+, min: 0$", text, re.MULTILINE)
    entries = re.findall(r"^idx: (\d+)\nConsumeQueueData.* tagsCode=(\d+),", text, re.MULTILINE)
    assert entries == [("0", str(ord("a"))), ("1", str(ord("a")))]
    text = verb("sendMsgStatus", "-b", "broker-a", "-s", 64, "-c", 2)
    assert text.count("sendStatus=SEND_OK") == 2
    text = verb("checkMsgSendRT", "-t", topic, "-a", 2, "-s", 64)
    assert [row[2] for row in rows_of(text, "broker-a")] == ["true", "true"]


def test_broker_verbs(verb: Verb, broker: str, topic: str) -> None:
    text = wait_until(lambda: verb("clusterList"), "an answer")
    assert rows_of(text, "DefaultCluster", "broker-a", "0", broker)
    (row,) = rows_of(verb("clusterList", "-m"), "DefaultCluster", "broker-a")
    assert int(row[4]) >= 20, "in total today"
    lines = verb("brokerStatus", "-b", broker).splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {key.strip(): value.strip() for key, value in status.items()}
    assert int(facts["commitLogMaxOffset"]) > 0
    for key in ("putTps", "getTotalTps", "msgPutTotalTodayNow", "bootTimestamp", "brokerVersion"):
        assert key in facts
    assert rows_of(verb("getBrokerConfig", "-b", broker), "brokerName", "=", "broker-a")
    text = verb("updateBrokerConfig", "-b", broker, "-k", "deleteWhen", "-v", "05")
    assert f"update broker config success, {broker}" in text
    lines = verb("getBrokerConfig", "-b", broker).splitlines()
    assert any(line.split() == ["deleteWhen", "=", "05"] for line in lines)
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert verb(name, "-b", broker).strip() == "success"
    assert rows_of(verb("statsAll", "-t", topic), topic)


def test_producer_connection(verb: Verb, java: Driver, cluster: Cluster, topic: str) -> None:
    group = unique("producers")
    producer = java.start("send", namesrv=cluster.address, topic=topic, group=group)
    producer.wait_for("done")
    wait_until(
        lambda: producer.id in verb("producerConnection", "-g", group, "-t", topic, fails=None),
        "its client",
    )
    broker = cluster.broker.address
    assert group in verb("producer", "-b", broker)
    producer.stop()


def test_name_server_verbs(verb: Verb, cluster: Cluster, topic: str) -> None:
    assert "kvConfigPath" in verb("getNamesrvConfig")
    verb("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    lines = verb("getNamesrvConfig").splitlines()
    assert any(line.split() == ["orderMessageEnable", "=", "true"] for line in lines)
    assert "success" in verb("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
    assert "success" in verb("deleteKvConfig", "-s", "space", "-k", "key")
    for name, perm in (("wipeWritePerm", 4), ("addWritePerm", 6)):
        text = verb(name, "-b", "broker-a")
        assert re.search(r"of broker\[broker-a\] in name server\[[\d.:]+\] OK, [1-9]", text)
        assert f'"perm":{perm},' in verb("topicRoute", "-t", topic)


def test_export_verbs(verb: Verb, topic: str, tmp_path: Path) -> None:
    verb("exportMetadata", "-c", "DefaultCluster", "-f", tmp_path)
    data = json.loads((tmp_path / "metadata.json").read_text())
    assert topic in data["topicConfigTable"]
    verb("exportConfigs", "-c", "DefaultCluster", "-f", tmp_path)
    assert "DefaultCluster" in (tmp_path / "configs.json").read_text()
    verb("exportMetrics", "-c", "DefaultCluster", "-f", tmp_path)
    assert "broker-a" in (tmp_path / "metrics.json").read_text()


def test_trace_of_a_message(verb: Verb, java: Driver, cluster: Cluster) -> None:
    name = unique("traced")
    job = java.start("send", namesrv=cluster.address, topic=name, trace="true", group="tracers")
    job.wait_for("done")
    identity = job.of("sent")[0]["msgId"]

    def found() -> bool:
        return "tracers" in verb("queryMsgTraceById", "-i", identity, fails=None)

    wait_until(found, "its trace", interval_s=0.5)
    job.stop()


def test_sends_to_a_cluster_are_timed(
    verb: Verb, group: ProcessGroup, cluster: Cluster, tmp_path: Path
) -> None:
    """It sends to a topic with the name of the broker and goes on until it is ended."""
    before = stored(verb, "broker-a")
    timing = group.add(
        start_mqadmin("clusterRT", "-n", cluster.address, "-a", "5", "-i", "1", home=tmp_path)
    )

    def rows() -> list[list[str]]:
        lines = [line.split() for line in timing.output().splitlines()]
        return [line for line in lines if line[:2] == ["DefaultCluster", "broker-a"]]

    timing.wait_ready(rows, "a row of the broker")
    timing.kill()
    assert rows()[0][3:] == ["5", "0"], "successes and failures"
    assert stored(verb, "broker-a") >= before + 5


def stored(verb: Verb, topic: str) -> int:
    lines = [line.split() for line in verb("topicStatus", "-t", topic).splitlines()]
    return sum(int(line[3]) - int(line[2]) for line in lines if line and line[0] == "broker-a")


def test_a_monitor_reports_what_a_group_has_not_consumed(
    java: Driver, group: ProcessGroup, cluster: Cluster, tmp_path: Path
) -> None:
    """It looks at the groups that have members; one that refuses in order stays where it is."""
    name = unique("monitored")
    java.run("send", namesrv=cluster.address, topic=name, count=7)
    stuck = java.start(
        "push", namesrv=cluster.address, topic=name, group=f"stuck_{name}", order="true", fail=999
    )
    stuck.wait_for("message", 1)
    monitor = group.add(start_mqadmin("startMonitoring", "-n", cluster.address, home=tmp_path))

    def report() -> list[str]:
        wanted = f"UndoneMsgs [consumerGroup=stuck_{name}, topic={name}, "
        return [line for line in monitor.output().splitlines() if wanted in line]

    monitor.wait_ready(report, "a report of the group", deadline_s=150)
    monitor.kill()
    java.write(stuck.id, "stop", {})
    assert "undoneMsgsTotal=7," in report()[0]


def test_every_verb_is_here(tmp_path: Path) -> None:
    """What mqadmin lists, against what the tests of this directory call."""
    listed = re.findall(r"^   ([a-zA-Z]+) ", mqadmin(home=tmp_path), re.MULTILINE)
    assert len(listed) > 50
    here = Path(__file__).parent
    texts = [(here / name).read_text() for name in ("test_mqadmin.py", "test_acl.py")]
    called = set(re.findall(r'"([a-zA-Z]+)"', "".join(texts)))
    assert set(listed) - called == set()
