"""Our `mqadmin` against Apache's 4.9.7: the same verb on the same cluster, line by line.

What moves while two tools look one after the other (rates, uptimes, paths of files) is masked; all
other text, its columns and their widths must be the same. Once with twinlog's servers, once with
Apache's.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.cluster import Cluster, start_cluster, unique
from support.apache import start_mqadmin
from support.command_line import mqadmin
from support.java_driver import Driver
from support.processes import process_group, wait_until

MASKS = (
    (r"[ \d]{7}\d\.\d\d\(\d*,\d*ms\)", "TPS(LOAD)"),
    (r"(Message Body Path:\s+)\S+", r"\1PATH"),
    (r"lastUpdateTimestamp=\d+", "lastUpdateTimestamp=T"),
    (r" +\d+ +\d+\.\d\d \d\.\d{4}$", " PCWAIT HOUR SPACE"),
    (r"(Consume TPS:) [\d.]+", r"\1 X"),
    # Where Apache forgets to end the line.
    (r"\](MessageTrack|create topic|TopicConfig)", r"]\n\1"),
)


@dataclass
class Both:
    """The two tools on one cluster."""

    cluster: Cluster
    driver: Driver

    @property
    def broker(self) -> str:
        address: str = self.cluster.broker.address
        return address

    def apache(self, verb: str, *arguments: object) -> str:
        words = [verb, "-n", self.cluster.address, *map(str, arguments)]
        return self.driver.mqadmin(*words)

    def ours(self, verb: str, *arguments: object) -> str:
        result = mqadmin(verb, "-n", self.cluster.address, *arguments)
        assert result.code == 0, result
        assert result.err == ""
        return result.out

    def same(
        self,
        verb: str,
        *arguments: object,
        mask: Callable[[str], str] | None = None,
        has_header: bool = True,
    ) -> list[str]:
        """Both print the same, but for the order of rows that come out of Java's hash tables."""
        theirs, mine = (masked(tool(verb, *arguments), mask) for tool in (self.apache, self.ours))
        assert not has_header or mine[:1] == theirs[:1]
        assert sorted(mine) == sorted(theirs)
        return mine


def masked(text: str, mask: Callable[[str], str] | None) -> list[str]:
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return [mask(line) if mask else line for line in text.rstrip("\n").split("\n")]


@pytest.fixture(scope="module", autouse=True)
def utc() -> Iterator[None]:
    """The JVM of the driver runs in UTC: so do we."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module", params=["twinlog", "apache"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("columns")
    with process_group() as group:
        make = request.param
        cluster = start_cluster(group, directory, namesrv_of=make, broker_of=make)
        driver = Driver(directory / "mqadmin")
        tools = Both(cluster, driver)
        # In its first second an Apache broker refuses to tell its statistics.
        words = ("clusterList", "-n", cluster.address)
        wait_until(
            lambda: mqadmin(*words).code == 0 and "broker-a" in mqadmin(*words).out,
            "the broker is registered", interval_s=0.5,
        )  # fmt: skip
        yield tools
        driver.close()


@pytest.fixture(scope="module")
def topic(both: Both) -> str:
    """A topic with eight messages that a group has consumed in part."""
    name = unique("columns")
    both.apache("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", 4, "-w", 4)
    wait_until(lambda: name in both.ours("topicList"), "the topic is there", interval_s=0.5)
    sent = both.driver.run(
        "send", namesrv=both.cluster.address, topic=name, count=8, keys="key", tags="a"
    )
    assert sent["failed"] == []
    group = f"readers_{name}"
    consumer = both.driver.start("push", namesrv=both.cluster.address, topic=name, group=group)
    consumer.wait_for("message", 8)
    consumer.stop()
    wait_until(
        lambda: "Diff Total: 0" in both.ours("consumerProgress", "-g", group),
        "the group has committed", interval_s=0.5,
    )  # fmt: skip
    return name


@pytest.fixture(scope="module")
def group(topic: str) -> str:
    return f"readers_{topic}"


def sent_ids(both: Both, topic: str) -> tuple[str, str]:
    """Unique id and offset id of the first message."""
    line = next(
        line for line in both.ours("printMsg", "-t", topic).splitlines() if "MSGID:" in line
    )
    offset_id = re.search(r"msgId=(\w+)", line)
    assert offset_id is not None
    return line.split()[1], offset_id[1]


def test_topics(both: Both, topic: str) -> None:
    assert topic in both.same("topicList", has_header=False)
    both.same("topicList", "-c")
    both.same("topicRoute", "-t", topic)
    both.same("topicRoute", "-t", topic, "-l")
    assert len(both.same("topicStatus", "-t", topic)) == 5
    assert both.same("topicClusterList", "-t", topic) == ["DefaultCluster"]
    both.same("TOPICSTATUS", "--topic", topic)


def test_changing_topics_and_groups(both: Both) -> None:
    name = unique("changed")
    both.same("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", 3, "-w", 2, "-p", 6)
    ordered = ("updateTopic", "-b", both.broker, "-t", name, "-o", "true", "-u", "true")
    both.apache(*ordered)  # Prints a stack trace when there is no order configuration yet.
    both.same(*ordered)
    wait_until(lambda: name in both.ours("topicList"), "the topic is there", interval_s=0.5)
    both.apache("updateTopicPerm", "-b", both.broker, "-t", name, "-p", 4)
    both.same("updateTopicPerm", "-c", "DefaultCluster", "-t", name, "-p", 4)
    both.same("updateOrderConf", "-t", name, "-m", "put", "-v", "broker-a:4")
    both.same("updateOrderConf", "-t", name, "-m", "get")
    both.same("updateOrderConf", "-t", name, "-m", "delete")
    both.same("deleteTopic", "-c", "DefaultCluster", "-t", name)
    group = unique("group")
    both.same("updateSubGroup", "-c", "DefaultCluster", "-g", group, "-r", 3, "-d", "true")
    both.same("updateSubGroup", "-b", both.broker, "-g", group, "-s", "false", "-a", "false")
    both.same("getConsumerConfig", "-g", group)
    both.same("deleteSubGroup", "-b", both.broker, "-g", group)
    both.same("deleteSubGroup", "-c", "DefaultCluster", "-g", group, "-r", "true")


def test_progress(both: Both, topic: str, group: str) -> None:
    lines = both.same("consumerProgress", "-g", group)
    assert any(line.startswith(topic) for line in lines)
    both.same("consumerProgress", "-g", group, "-s", "true")
    both.same("consumerProgress")
    both.same("brokerConsumeStats", "-b", both.broker)
    both.same("statsAll", "-t", topic, mask=lambda line: re.sub(r"\d+\.\d\d", "R", line))


def test_members(both: Both, topic: str, group: str) -> None:
    consumer = both.driver.start("push", namesrv=both.cluster.address, topic=topic, group=group)
    try:
        both_online = lambda: mqadmin(  # noqa: E731
            "consumerConnection", "-n", both.cluster.address, "-g", group
        ).code == 0  # fmt: skip
        wait_until(both_online, "the member is online", interval_s=0.5)
        lines = both.same("consumerConnection", "-g", group)
        assert lines[0].split() == ["#ClientId", "#ClientAddr", "#Language", "#Version"]
        both.same("consumerProgress")
        both.same("consumerProgress", "-g", group, "-s", "true")
        time_text = str(int(time.time() * 1000) - 3_600_000)
        both.same("resetOffsetByTime", "-g", group, "-t", topic, "-s", time_text)
        both.same("skipAccumulatedMessage", "-g", group, "-t", topic)
    finally:
        consumer.stop()


def test_looking_into_consumers_and_queues(both: Both, topic: str, group: str) -> None:
    both.same("queryCq", "-t", topic, "-q", 0, "-i", 0, "-c", 3)
    both.same("queryCq", "-t", topic, "-q", 0, "-i", 0, "-b", both.broker, "-g", group)
    consumer = both.driver.start("push", namesrv=both.cluster.address, topic=topic, group=group)
    try:
        words = ("consumerConnection", "-n", both.cluster.address, "-g", group)
        wait_until(lambda: mqadmin(*words).code == 0, "the member is online", interval_s=0.5)
        both.same("consumerStatus", "-g", group, mask=lambda line: re.sub(r"\S+/\S+$", "F", line))
        client = both.ours("consumerStatus", "-g", group).splitlines()[1].split()[1]
        numbers = re.compile(r"\d{17}|[ \d]+\.\d\d|cachedMsgCount=\d+")
        both.same("consumerStatus", "-g", group, "-i", client,
                  mask=lambda line: numbers.sub("N", line))  # fmt: skip
    finally:
        consumer.stop()


def test_timed_sends(both: Both, topic: str) -> None:
    both.same("checkMsgSendRT", "-t", topic, "-a", 3, "-s", 10,
              mask=lambda line: re.sub(r"(    |: )[\d.]+$", r"\1T", line))  # fmt: skip


@pytest.mark.parametrize("machine_form", ["false", "true"])
def test_timed_sends_to_a_cluster(both: Both, tmp_path: Path, machine_form: str) -> None:
    """Apache's goes on until it is ended, and its log lines stand among its rows."""
    words = ("-a", 3, "-s", 10, "-p", machine_form, "-m", "room")
    mine = both.ours("clusterRT", *words).splitlines()
    arguments = ["clusterRT", "-n", both.cluster.address, *map(str, words), "-i", "1"]
    theirs = start_mqadmin(*arguments, home=tmp_path)

    def rows() -> list[str]:
        # A row is written in pieces, and log lines may come between them: whole rows count.
        lines = theirs.output().rpartition("\n")[0].splitlines()
        whole = re.compile(r"#|.*broker-a(( +[\d.]+){3} *|\|\d+)$")
        return [line for line in lines if " INFO " not in line and whole.match(line)]

    try:
        theirs.wait_ready(lambda: len(rows()) >= len(mine), "a row of the broker", deadline_s=150)
    finally:
        theirs.kill()
    assert [untimed(line) for line in mine] == [untimed(row) for row in rows()[: len(mine)]]


def untimed(line: str) -> str:
    """Without time and average; that one has a column of 8."""
    line = re.sub(r"^(DefaultCluster +broker-a +)[\d.]+ +", padded, line)
    return re.sub(r"^[-\d]{10} [:\d]{8}(\|.*\|)\d+$", r"TIME\1RT", line)


def padded(found: re.Match[str]) -> str:
    return found[1] + "RT".ljust(len(found[0]) - len(found[1]))


def test_traces(both: Both) -> None:
    name = unique("traced")
    more = {"namesrv": both.cluster.address, "topic": name, "trace": "true"}
    sender = both.driver.start("send", group="tracers", **more)
    sender.wait_for("done")
    identity = sender.of("sent")[0]["msgId"]
    reader = both.driver.start("push", group=f"readers_{name}", **more)
    reader.wait_for("message", 1)

    def kinds() -> set[str]:
        words = ("-n", both.cluster.address, "-i", identity)
        lines = mqadmin("queryMsgTraceById", *words).out.splitlines()
        return {line[:3] for line in lines}

    wait_until(lambda: kinds() >= {"Pub", "Sub"}, "both ends of its trace", interval_s=0.5)
    lines = both.same("queryMsgTraceById", "-i", identity)
    assert [line[:5] for line in lines if line] == ["#Type", "Pub  ", "#Type", "Sub  "]
    both.same("queryMsgTraceById", "-i", identity, "-t", "RMQ_SYS_TRACE_TOPIC")
    sender.stop()
    reader.stop()


def test_producers(both: Both) -> None:
    """A tool is a producer itself while it runs: only the others are compared."""
    lines = both.ours("producer", "-b", both.broker).splitlines()
    form = (
        r"producer group \(\S+\) instance : clientId=\S+,remoteIP=/\S+, language=\w+, "
        r"version=\d+, lastUpdateTimestamp=\d+"
    )
    for line in [*lines, *both.apache("producer", "-b", both.broker).splitlines()]:
        assert re.fullmatch(form, line), line


def test_offsets_of_a_group_that_is_offline(both: Both, topic: str, group: str) -> None:
    def is_offline() -> bool:
        words = ("consumerConnection", "-n", both.cluster.address, "-g", group)
        return mqadmin(*words).code == 3

    wait_until(is_offline, "nobody is connected", interval_s=0.5)
    long_ago = str(int(time.time() * 1000) - 3_600_000)
    both.apache("resetOffsetByTime", "-g", group, "-t", topic, "-s", long_ago)
    both.same("resetOffsetByTime", "-g", group, "-t", topic, "-s", long_ago)
    both.same("cloneGroupOffset", "-s", group, "-d", group, "-t", topic)
    both.apache("skipAccumulatedMessage", "-g", group, "-t", topic)
    both.same("skipAccumulatedMessage", "-g", group, "-t", topic, "-f", "true")
    both.same("resetOffsetByTime", "-g", group, "-t", topic, "-s", "now")


def test_messages(both: Both, topic: str) -> None:
    unique_id, offset_id = sent_ids(both, topic)
    lines = both.same("queryMsgByKey", "-t", topic, "-k", "key0")
    assert len(lines) > 1
    # Some of Apache's verbs keep a closed client and work only once in a JVM.
    both.same("queryMsgByUniqueKey", "-t", topic, "-i", unique_id)
    both.same("queryMsgById", "-i", offset_id)
    both.same("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", 0, "-o", 0)
    both.same("printMsg", "-t", topic, has_header=False)
    both.same("printMsg", "-t", topic, "-s", "a", "-d", "false", has_header=False)
    both.same("consumeMessage", "-t", topic, "-b", "broker-a", "-i", 0, "-c", 2)


def test_sending(both: Both, topic: str) -> None:
    def without_id(line: str) -> str:
        return re.sub(r"[0-9A-F]{32,}", "ID", line)

    words = ("-t", topic, "-p", "hello", "-k", "k9", "-c", "b", "-b", "broker-a", "-i", 2)
    lines = both.same("sendMessage", *words, mask=without_id)
    assert lines[1].split() == ["broker-a", "2", "SEND_OK", "ID"]


def test_brokers(both: Both) -> None:
    lines = both.same("clusterList")
    assert len(lines) == 2
    both.same("clusterList", "-m", mask=lambda line: re.sub(r" +\d+$", " N", line))
    both.same("getBrokerConfig", "-b", both.broker)
    both.same("getBrokerConfig", "-c", "DefaultCluster")
    both.same("updateBrokerConfig", "-b", both.broker, "-k", "fileReservedTime", "-v", 48)
    for place in (("-b", both.broker), ("-c", "DefaultCluster")):
        both.same("brokerStatus", *place, mask=lambda line: line.partition(": ")[0])
    both.same("cleanExpiredCQ", "-b", both.broker)
    both.same("cleanUnusedTopic", "-b", both.broker)
    both.same("deleteExpiredCommitLog", "-b", both.broker)


def test_name_servers(both: Both) -> None:
    both.same("getNamesrvConfig")
    both.same("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    both.same("wipeWritePerm", "-b", "broker-a")
    both.same("addWritePerm", "-b", "broker-a")
    both.same("updateKvConfig", "-s", "space", "-k", "k", "-v", "v")
    both.same("deleteKvConfig", "-s", "space", "-k", "k")


@pytest.mark.parametrize("verb", ["exportMetadata", "exportConfigs", "exportMetrics"])
def test_exports(both: Both, topic: str, tmp_path: Path, verb: str) -> None:
    """The files have the same members, and the same values but for times and rates."""
    contents = []
    for tool, name in ((both.apache, "theirs"), (both.ours, "mine")):
        directory = tmp_path / name
        os.makedirs(directory)
        tool(verb, "-c", "DefaultCluster", "-f", directory)
        (file,) = directory.iterdir()
        contents.append(json.loads(file.read_text()))
    theirs, mine = contents
    if verb == "exportMetrics":
        assert shape(mine) == shape(theirs)
        return
    for content in contents:
        content.pop("exportTime", None)
    assert mine == theirs


def shape(value: object) -> object:
    """Names without values; what a JVM says about itself may be absent here."""
    if isinstance(value, dict):
        optional = ("cpuNum", "totalMemKBytes")
        return {key: shape(item) for key, item in sorted(value.items()) if key not in optional}
    return type(value).__name__ if not isinstance(value, list) else "list"
