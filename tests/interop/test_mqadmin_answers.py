"""Apache's mqadmin 4.9.7 on Apache's servers and on ours, both in the same state: the same text.

What a run chooses for itself (addresses, ids, times) is named alike on both sides before the two
are compared. All other text must be the same, also what is said about things that are not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from interop.cluster import start_cluster
from support.java_driver import Driver
from support.processes import ProcessGroup, process_group, wait_until

MASKS = (
    (r"\b[0-9A-F]{32}(?:[0-9A-F]{24})?\b", "ID"),
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:,\d{3})?", "TIME"),
    (r"\b1[78]\d{11}\b", "MS"),
    (r"127\.0\.0\.1:\d+", "PEER"),
    (r"Consume TPS: [\d.]+", "Consume TPS: R"),
    (r"(?m)^\s+(?:at |\.\.\. \d+ more).*\n", ""),
)


@dataclass
class Side:
    """One make of servers, and what the words of a test stand for there."""

    driver: Driver
    namesrv: str
    words: dict[str, str] = field(default_factory=dict)

    def verb(self, verb: str, *arguments: object) -> str:
        given = [self.words.get(str(argument), str(argument)) for argument in arguments]
        text = self.driver.mqadmin(verb, "-n", self.namesrv, *given, fails=None)
        for word, value in self.words.items():
            text = text.replace(value, word)
        for pattern, name in MASKS:
            text = re.sub(pattern, name, text)
        return text


@dataclass
class Sides:
    apache: Side
    twinlog: Side

    def both(self, verb: str, *arguments: object) -> tuple[str, str]:
        return self.apache.verb(verb, *arguments), self.twinlog.verb(verb, *arguments)

    def same(self, verb: str, *arguments: object, mask: Callable[[str], str] = str) -> str:
        """What both print; lines out of Java's hash tables come in any order."""
        theirs, ours = map(mask, self.both(verb, *arguments))
        assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
        return ours


def start_side(group: ProcessGroup, directory: Path, make: str) -> Side:
    """Nine messages in topic T, all of them consumed by group G."""
    # Apache makes the topic of half messages at its first check, whether there are any or not.
    cluster = start_cluster(
        group, directory / make, namesrv_of=make, broker_of=make, transactionCheckInterval=3_600_000
    )
    driver = Driver(directory / f"{make}-driver")
    broker = cluster.broker.address
    side = Side(driver, cluster.address, {"BROKER": broker, "NAMESRV": cluster.address})
    wait_until(lambda: "broker-a" in side.verb("clusterList"), "it is registered", interval_s=0.5)
    for topic in ("T", "other"):
        side.verb("updateTopic", "-b", "BROKER", "-t", topic, "-r", 4, "-w", 4)
    wait_until(lambda: "other" in side.verb("topicList").split(), "the topics", interval_s=0.5)
    at = {"namesrv": cluster.address, "topic": "T", "mode": "ordered"}
    sent = driver.run("send", **at, count=8, keys="key", tags="a")["sent"]
    assert len(sent) == 8
    side.words["OFFSET_ID"] = sent[0]["offsetMsgId"]
    side.words["UNIQUE_ID"] = sent[0]["msgId"]
    consumer = driver.start(
        "push", namesrv=cluster.address, topic="T", group="G", instance="consumer"
    )
    consumer.wait_for("message", 8)
    # The ninth finds the consumer waiting.
    producer = driver.start("send", **at, prefix="n", tags="b", group="PG", instance="producer")
    producer.wait_for("done")
    consumer.wait_for("message", 9)
    wait_until(
        lambda: "Diff Total: 0" in side.verb("consumerProgress", "-g", "G"), "all is committed",
        interval_s=0.5,
    )  # fmt: skip
    return side


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    directory = tmp_path_factory.mktemp("answers")
    with process_group() as group:
        found = Sides(*(start_side(group, directory, make) for make in ("apache", "twinlog")))
        yield found
        for side in (found.apache, found.twinlog):
            side.driver.close()


def test_clusters(sides: Sides) -> None:
    rates = re.compile(r"[ \d]{7}\d\.\d\d\(\d*,\d*ms\)| +\d+ +\d+\.\d\d \d\.\d{4}$", re.MULTILINE)
    text = sides.same("clusterList", mask=lambda text: rates.sub(" R", text))
    assert "broker-a                0     BROKER        V4_9_7" in text
    row = sides.same("clusterList", "-m").splitlines()[1].split()
    assert row == ["DefaultCluster", "broker-a", "0", "0", "9", "9"]


VOLATILE = re.compile(
    r".*Tps$|.*TimeMax$|putLatency.*|putMessageDistributeTime|runtime|commitLogDirCapacity"
    r"|.*DiskRatio.*|earliestMessageTimeStamp|pageCacheLockTimeMills|sendThreadPoolQueueHead.*"
    r"|queryThreadPoolQueueHead.*|pullThreadPoolQueueHead.*|remain.*|dispatchBehindBytes"
)


def test_status_of_a_broker(sides: Sides) -> None:
    """Every key of Apache's, with the same value unless it is a rate or a measure."""
    theirs, ours = (table(text, ":") for text in sides.both("brokerStatus", "-b", "BROKER"))
    assert set(theirs) - set(ours) == {key for key in theirs if "DiskRatio_" in key}
    steady = {key: value for key, value in theirs.items() if not VOLATILE.fullmatch(key)}
    assert {key: ours[key] for key in steady} == steady
    assert (ours["msgPutTotalTodayNow"], ours["msgGetTotalTodayNow"]) == ("9", "9")
    assert len(steady) > 20


def table(text: str, sign: str) -> dict[str, str]:
    pairs = (line.partition(sign) for line in text.splitlines() if sign in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


# What is there: a verb, and a piece of the answer that a failure would not have.
READS = {
    "topicList": "DefaultCluster_REPLY_TOPIC",
    "topicList -c": "DefaultCluster        T   ",
    "topicRoute -t T": '"brokerAddrs":{0:"BROKER"',
    "topicRoute -t T -l": "{0=BROKER}",
    "topicStatus -t T": "0     0                     3                       TIME",
    "topicClusterList -t T": "DefaultCluster",
    "allocateMQ -t T -i 1.1.1.1,2.2.2.2": '"queueId":3',
    "consumerProgress": "V4_9_7                   PUSH   CLUSTERING",
    "consumerProgress -g G": "Diff Total: 0",
    "consumerProgress -g G -s true": "#Client IP",
    "consumerConnection -g G": "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET",
    "consumerStatus -g G": "Rebalance OK",
    "brokerConsumeStats -b BROKER": "\nDiff Total: 0",
    "producerConnection -g PG -t T": "@producer",
    "producer -b BROKER": "producer group (PG) instance : clientId=",
    "queryMsgById -i OFFSET_ID": "trackType=CONSUMED",
    "queryMsgByKey -t T -k key0": "UNIQUE_ID    0  ",
    "queryMsgByUniqueKey -t T -i UNIQUE_ID": "Keys:                [key0]",
    "queryMsgByOffset -t T -b broker-a -i 0 -o 0": "OffsetID:            OFFSET_ID",
    "printMsg -t T": "MSGID: UNIQUE_ID MessageExt [brokerName=broker-a, queueId=0, ",
    "printMsgByQueue -t T -a broker-a -i 0 -p true -d true": "BODY: m-0:",
    "consumeMessage -t T -b broker-a -i 0 -o 0 -c 2": "BODY: m-4:",
    "queryCq -t T -q 0 -i 0 -c 2 -b BROKER": "max: 3",
    "queryCq -t T -q 0 -i 0 -c 2 -b BROKER -g G": "Subscription data: ",
    "getConsumerConfig -g G": f"{'retryMaxTimes':<40}=  16",
}


@pytest.mark.parametrize("line", READS)
def test_what_is_there(sides: Sides, line: str) -> None:
    assert READS[line] in sides.same(*line.split())


# What is not there, or may not be: the verb, and the reason that it gives.
ABSENT = {
    "topicRoute -t Nope": "CODE: 17  DESC: No topic route info in name server for the topic: Nope",
    "topicStatus -t Nope": "CODE: 17  DESC: ",
    "topicClusterList -t Nope": "CODE: 17  DESC: ",
    "consumerProgress -g Nope": "CODE: 17  DESC: ",
    "consumerConnection -g Nope": "No topic route info in name server for the topic: %RETRY%Nope",
    "consumerStatus -g Nope": "No topic route info in name server for the topic: %RETRY%Nope",
    "producerConnection -g Nope -t T": "CODE: 1  DESC: the producer group[Nope] not exist",
    "queryMsgById -i nonsense": "query message by id finished, but no message.",
    "queryMsgByKey -t T -k nokey": "query message by key finished, but no message.",
    "queryCq -t T -q 9 -i 0 -c 2 -b BROKER": "CODE: 1  DESC: 9@T is not exist!",
    "queryCq -t Nope -q 0 -i 0 -c 2 -b BROKER": "CODE: 1  DESC: 0@Nope is not exist!",
    "cloneGroupOffset -s Nope -d O -t T": "CODE: 17  DESC: ",
    "resetOffsetByTime -g Nope -t T -s 1": "CODE: 1  DESC: THe consumer group <Nope> not exist",
    "skipAccumulatedMessage -g Nope -t T": "CODE: 1  DESC: THe consumer group <Nope> not exist",
    "updateTopicPerm -b BROKER -t Nope -p 4": "CODE: 17  DESC: ",
    "updateTopic -b BROKER -t a/b": "illegal characters",
    "updateTopic -b BROKER -t TBW102": "conflict with system topic",
    "wipeWritePerm -b nope": "wipe write perm of broker[nope] in name server[NAMESRV] OK, 0",
    "deleteTopic -c DefaultCluster -t Nope": "delete topic [Nope] from NameServer success",
    "deleteSubGroup -b BROKER -g Nope": "success",
    "printMsg -t Nope": "CODE: 17  DESC: ",
    "brokerStatus -b 127.0.0.1:1": "connect to PEER failed",
    "deleteKvConfig -s nowhere -k nothing": "delete kv config from namespace success",
    "updateOrderConf -m get -t Nope": "CODE: 22  DESC: ",
}


@pytest.mark.parametrize("line", ABSENT)
def test_what_is_not_there(sides: Sides, line: str) -> None:
    assert ABSENT[line] in sides.same(*line.split())


def test_configurations(sides: Sides) -> None:
    """Every key of Apache's with its value, but for ports and paths; ours are more."""
    assert different(*sides.both("getNamesrvConfig")) == {"listenPort"}
    texts = sides.both("getBrokerConfig", "-b", "BROKER")
    assert len(table(texts[0], " = ")) > 150
    # The last one Apache computes when it starts, for filters that we do not keep.
    computed = "bitMapLengthConsumeQueueExt"
    assert different(*texts) == {"listenPort", "haListenPort", computed}


def different(theirs: str, ours: str) -> set[str]:
    mine = table(ours, " = ")
    pairs = table(theirs, " = ").items()
    return {key for key, value in pairs if mine.get(key) != value and not value.startswith("/")}


def test_statistics_of_a_topic(sides: Sides) -> None:
    """What came before the first sample of ten seconds counts, on both."""

    def row(side: Side, topic: str) -> list[str]:
        lines = side.verb("statsAll", "-t", topic).splitlines()
        return next(line.split() for line in lines if line.startswith(f"{topic} "))

    for side in (sides.apache, sides.twinlog):
        wait_until(
            lambda side=side: row(side, "T")[-2:] == ["9", "9"],  # type: ignore[misc]
            "in and out of 24 hours", interval_s=1,
        )  # fmt: skip
    rates = re.compile(r"\d+\.\d\d")
    text = sides.same("statsAll", "-t", "T", mask=lambda text: rates.sub("R", text))
    assert next(line.split() for line in text.splitlines()[1:]) == [
        "T", "G", "0", "R", "R", "9", "9"
    ]  # fmt: skip


def test_groups_are_made_given_offsets_and_deleted(sides: Sides) -> None:
    made = sides.same("updateSubGroup", "-b", "BROKER", "-g", "O", "-r", 7, "-d", "false")
    assert "create subscription group to BROKER success" in made
    assert f"{'retryMaxTimes':<40}=  7" in sides.same("getConsumerConfig", "-g", "O")
    cloned = sides.same("cloneGroupOffset", "-s", "G", "-d", "O", "-t", "T")
    assert "clone group offset success. srcGroup[G], destGroup=[O], topic[T]" in cloned
    # Each says where the group was before: where the one before it had put the group.
    ends, begins = ["3", "2", "2", "2"], ["0", "0", "0", "0"]
    back = ("resetOffsetByTime", "-g", "O", "-t", "T", "-s", 1)
    assert moves(sides.same(*back)) == (ends, begins)
    assert moves(sides.same("skipAccumulatedMessage", "-g", "O", "-t", "T")) == (begins, ends)
    assert moves(sides.same(*back)) == (ends, begins)
    gone = sides.same("deleteSubGroup", "-b", "BROKER", "-g", "O", "-r", "true")
    assert "delete subscription group [O] from broker [BROKER] success" in gone
    assert "CODE: 1  DESC: THe consumer group <O> not exist" in sides.same(*back)


def moves(text: str) -> tuple[list[str], list[str]]:
    """Offsets of a group before and after, queue by queue."""
    rows = sorted(line.split() for line in text.splitlines() if line.startswith("broker-a"))
    return [row[3] for row in rows], [row[5] for row in rows]


def test_permissions_are_taken_and_given_back(sides: Sides) -> None:
    """Of a topic by its broker, of a broker by its name server."""
    change = ("updateTopicPerm", "-b", "BROKER", "-t", "other", "-p")
    assert "update topic perm from 6 to 4 in BROKER success" in sides.same(*change, 4)
    assert "new perm equals to the old one!" in sides.same(*change, 4)
    assert "update topic perm from 4 to 6 in BROKER success" in sides.same(*change, 6)
    for verb, perm in (("wipeWritePerm", 4), ("addWritePerm", 6)):
        answer = sides.same(verb, "-b", "broker-a")
        assert re.search(r"of broker\[broker-a\] in name server\[NAMESRV\] OK, \d\d\n", answer)
        assert f'"perm":{perm},' in sides.same("topicRoute", "-t", "T")


def test_name_servers_keep_values(sides: Sides) -> None:
    for words in (
        ("updateOrderConf", "-m", "put", "-t", "T", "-v", "broker-a:4"),
        ("updateOrderConf", "-m", "get", "-t", "T"),
        ("updateOrderConf", "-m", "delete", "-t", "T"),
        ("updateOrderConf", "-m", "get", "-t", "T"),
        ("updateKvConfig", "-s", "space", "-k", "key", "-v", "value"),
        ("deleteKvConfig", "-s", "space", "-k", "key"),
        ("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true"),
    ):
        sides.same(*words)
    for side in (sides.apache, sides.twinlog):
        assert table(side.verb("getNamesrvConfig"), " = ")["orderMessageEnable"] == "true"


def test_brokers_are_configured_and_cleaned(sides: Sides) -> None:
    change = ("updateBrokerConfig", "-b", "BROKER", "-k", "deleteWhen", "-v", "05")
    assert "update broker config success, BROKER" in sides.same(*change)
    for side in (sides.apache, sides.twinlog):
        assert table(side.verb("getBrokerConfig", "-b", "BROKER"), " = ")["deleteWhen"] == "05"
    for verb in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert sides.same(verb, "-b", "BROKER").strip() == "success"


def test_sends(sides: Sides) -> None:
    words = ("-t", "other", "-p", "hello", "-k", "k", "-c", "b", "-b", "broker-a", "-i", 1)
    row = sides.same("sendMessage", *words).splitlines()[1].split()
    assert row == ["broker-a", "1", "SEND_OK", "ID"]
    times = re.compile(r"rt=\d+ms|queueOffset=\d+|(?<=true {20})\d+|(?<=Avg RT: )[\d.]+")
    text = sides.same(
        "sendMsgStatus", "-b", "broker-a", "-s", 64, "-c", 3,
        mask=lambda text: times.sub("N", text),
    )  # fmt: skip
    assert text.count("sendStatus=SEND_OK, msgId=ID, offsetMsgId=ID") == 3
    timed = ("checkMsgSendRT", "-t", "other", "-a", 4, "-s", 64)
    for text in sides.both(*timed):
        rows = [line.split() for line in text.splitlines()]
        assert rows[0] == ["#Broker", "Name", "#QID", "#Send", "Result", "#RT"]
        assert [row[:3] for row in rows[1:5]] == [
            ["broker-a", queue, "true"] for queue in (row[1] for row in rows[1:5])
        ]
        assert rows[-1][:2] == ["Avg", "RT:"]


@pytest.mark.parametrize("verb", ["exportMetadata", "exportConfigs"])
def test_exports(sides: Sides, tmp_path: Path, verb: str) -> None:
    files = []
    for name, side in (("theirs", sides.apache), ("ours", sides.twinlog)):
        directory = tmp_path / name
        directory.mkdir()
        assert "success" in side.verb(verb, "-c", "DefaultCluster", "-f", directory)
        (file,) = directory.iterdir()
        content = json.loads(file.read_text())
        content.pop("exportTime", None)
        files.append(content)
    assert files[0] == files[1]
    assert "T" in files[1].get("topicConfigTable", "T")


def test_topics_are_deleted(sides: Sides) -> None:
    text = sides.same("deleteTopic", "-c", "DefaultCluster", "-t", "other")
    assert "delete topic [other] from cluster [DefaultCluster] success." in text
    assert "CODE: 17  DESC: " in sides.same("topicRoute", "-t", "other")
    assert "CODE: 17  DESC: " in sides.same("topicStatus", "-t", "other")
