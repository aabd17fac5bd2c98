"""mqadmin's verbs that look into clients, traces and queues, and that time sends."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

from support.command_line import MQADMIN, LocalTwins, Result
from twinlog.cli.mqadmin.checks import running_info_text
from twinlog.client import ConsumeFrom, Message, Producer, PushConsumer
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.clients import ConsumerRunningInfo

DEADLINE_S = 60


async def mqadmin(cluster: LocalTwins, *words: object) -> Result:
    """In a thread: the consumers of the test must go on answering."""
    return await asyncio.to_thread(cluster.mqadmin, *words)


async def create(cluster: LocalTwins, topic: str) -> None:
    words = ("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", 2, "-w", 2)
    (await mqadmin(cluster, *words)).ok()


async def test_consumer_status(cluster: LocalTwins) -> None:
    await create(cluster, "Watched")
    got = asyncio.Event()

    async def handler(message: object) -> None:
        got.set()

    async with PushConsumer("watchers", name_server=cluster.namesrv) as consumer:
        await consumer.subscribe("Watched", "*", handler)
        async with Producer("pg", name_server=cluster.namesrv) as producer:
            await producer.send(Message("Watched", b"x"))
        async with asyncio.timeout(DEADLINE_S):
            await got.wait()
        shown = (await mqadmin(cluster, "consumerStatus", "-g", "watchers")).ok().out
        lines = shown.splitlines()
        assert lines[0].split() == ["#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"]
        number, client_id, _, path = lines[1].split()
        assert number == "1"
        assert "Same subscription in the same group of consumer\n\nRebalance OK\n" in shown
        one = await mqadmin(cluster, "consumerStatus", "-g", "watchers", "-i", client_id)
        text = one.ok().out
        assert "#Consumer Properties#\n" in text
        assert "Topic: Watched " in text
        details = [line for line in text.splitlines() if "ProcessQueueInfo [commitOffset=" in line]
        assert len([line for line in details if line.startswith("Watched ")]) == 2
        assert Path(path).read_text().startswith("#Consumer Properties#\n")
        nobody = await mqadmin(cluster, "consumerStatus", "-g", "watchers", "-i", "nobody")
        assert nobody.code == 1
        assert "nobody" in nobody.err
    assert (await mqadmin(cluster, "consumerStatus", "-g", "no-such-group")).code == 3


def test_running_information_has_apaches_form() -> None:
    queue = '{"brokerName":"b","queueId":1,"topic":"T"}'
    told = {
        "properties": {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"},
        "subscriptionSet": [{"topic": "T", "subString": "a", "classFilterMode": False}],
        "mqTable": {queue: {"commitOffset": 7, "locked": True, "cachedMsgSizeInMiB": 2}},
        "statusTable": {"T": {"pullRT": 1.5, "consumeFailedMsgs": 3}},
        "jstack": "main at ...",
    }
    info = fastjson.loads_as(fastjson.dumps(told), ConsumerRunningInfo)
    lines = running_info_text(info).splitlines()
    assert f"{'PROP_CONSUME_TYPE':<40}: CONSUME_PASSIVELY" in lines
    assert f"001 Topic: {'T':<40} ClassFilter: {'false':<8} SubExpression: a" in lines
    assert f"{'T':<32}  {'b':<32}  {1:<4}  {7:<20}" in lines
    assert any("commitOffset=7," in line and "locked=true" in line for line in lines)
    (detail,) = [line for line in lines if "ProcessQueueInfo [" in line]
    assert re.findall(r"(\w+)=", detail) == [
        "commitOffset", "cachedMsgMinOffset", "cachedMsgMaxOffset", "cachedMsgCount",
        "cachedMsgSizeInMiB", "transactionMsgMinOffset", "transactionMsgMaxOffset",
        "transactionMsgCount", "locked", "tryUnlockTimes", "lastLockTimestamp", "droped",
        "lastPullTimestamp", "lastConsumeTimestamp",
    ]  # fmt: skip
    assert "cachedMsgSizeInMiB=2," in detail
    assert f"{'T':<32}  {1.5:14.2f} {0:14.2f} {0:14.2f} {0:14.2f} {0:18.2f} {3:25d}" in lines
    assert lines[-2:] == ["#Consumer jstack#", "main at ..."]


def heads(group: str, time: str) -> list[str]:
    return ["#Type", group, "#ClientHost", time, "#CostTimes", "#Status"]


async def test_query_trace(cluster: LocalTwins) -> None:
    await create(cluster, "Traces")
    pub = ["Pub", "1700000000000", "region", "senders", "T", "ID1", "tag", "key", "10.0.0.1:1",
           "3", "12", "0", "OFFSETID", "true", "10.0.0.9"]  # fmt: skip
    other = ["Pub", "1", "region", "senders", "T", "ID2", "", "", "h", "3", "1", "0", "O", "true"]
    before = ["SubBefore", "1700000001000", "region", "readers", "REQ", "ID1", "0", "key"]
    after = ["SubAfter", "REQ", "ID1", "5", "false", "key", "0", "1700000001005", "readers"]
    body = "".join("\x01".join(context) + "\x02" for context in (pub, other, before, after))
    async with Producer("pg", name_server=cluster.namesrv) as producer:
        await producer.send(Message("Traces", body.encode(), keys=["ID1"]))
    shown = (await mqadmin(cluster, "queryMsgTraceById", "-i", "ID1", "-t", "Traces")).ok().out
    rows = [line.split() for line in shown.splitlines() if line]
    assert rows[0] == [
        "#Type",
        "#ProducerGroup",
        "#ClientHost",
        "#SendTime",
        "#CostTimes",
        "#Status",
    ]
    assert (rows[1][0], rows[1][1], rows[1][-2], rows[1][-1]) == (
        "Pub", "senders", "12ms", "success",
    )  # fmt: skip
    assert rows[2] == [
        "#Type",
        "#ConsumerGroup",
        "#ClientHost",
        "#ConsumerTime",
        "#CostTimes",
        "#Status",
    ]
    assert (rows[3][0], rows[3][1], rows[3][-2:]) == ("Sub", "readers", ["5ms", "failed"])
    assert len(rows) == 4
    missing = await mqadmin(cluster, "queryMsgTraceById", "-i", "ID9", "-t", "Traces")
    assert missing.code == 3
    assert "ID9" in missing.err


async def test_timed_sends(cluster: LocalTwins) -> None:
    rows = (await mqadmin(cluster, "clusterRT", "-a", 3, "-s", 10)).ok().out.splitlines()
    assert rows[0].split("  ")[0] == "#Cluster Name"
    cluster_name, broker, average, good, failed = rows[1].split()
    assert (cluster_name, broker, good, failed) == ("DefaultCluster", "broker-a", "3", "0")
    assert float(average) >= 0
    words = ("clusterRT", "-a", 2, "-p", "true", "-m", "room", "-c", "DefaultCluster")
    assert "|room|DefaultCluster|broker-a|" in (await mqadmin(cluster, *words)).ok().out
    assert (await mqadmin(cluster, "clusterRT", "-c", "nowhere")).code == 3
    assert (await mqadmin(cluster, "clusterRT", "-a", 1)).code == 2

    await create(cluster, "Timed")
    shown = (await mqadmin(cluster, "checkMsgSendRT", "-t", "Timed", "-a", 4)).ok().out.splitlines()
    assert " ".join(shown[0].split()) == "#Broker Name #QID #Send Result #RT"
    assert [line.split()[1:3] for line in shown[1:5]] == [
        ["0", "true"], ["1", "true"], ["0", "true"], ["1", "true"],
    ]  # fmt: skip
    assert shown[5].startswith("Avg RT: ")
    assert (await mqadmin(cluster, "checkMsgSendRT", "-t", "NoSuchTopic", "-a", 2)).code == 3


async def test_entries_of_a_queue(cluster: LocalTwins) -> None:
    await create(cluster, "Entries")
    async with Producer("pg", name_server=cluster.namesrv) as producer:
        receipt = await producer.send(Message("Entries", b"x", tags="TagA"))
    queue = receipt.queue.queue_id
    words = ("queryCq", "-t", "Entries", "-q", queue, "-i", 0)
    lines = (await mqadmin(cluster, *words)).ok().out.splitlines()
    assert lines[:3] == ["Queue data: ", "max: 1, min: 0", "=" * 38]
    assert lines[3] == "idx: 0"
    assert lines[4].startswith("ConsumeQueueData{physicOffset=")
    assert (
        ", tagsCode=2598919, extendDataJson='null', bitMap='null', eval=false, msg='null'}"
        in (lines[4])
    )
    with_group = (await mqadmin(cluster, *words, "-b", cluster.master, "-g", "nobody")).ok().out
    assert "Filter data: \nnobody@Entries is not online!\n" in with_group
    beyond = await mqadmin(cluster, "queryCq", "-t", "Entries", "-q", queue, "-i", 9)
    assert beyond.code == 3
    assert (await mqadmin(cluster, "queryCq", "-t", "Entries", "-q", 0, "-i", "x")).code == 2


async def test_a_monitor_reports_what_groups_have_not_consumed(cluster: LocalTwins) -> None:
    """In Apache's words, for groups that have members; Ctrl-C ends it at once."""
    await create(cluster, "Monitored")
    may_end = asyncio.Event()

    async def handler(message: object) -> None:
        await may_end.wait()

    async with (
        PushConsumer(
            "slow", name_server=cluster.namesrv, commit_ms=100,
            consume_from=ConsumeFrom.FIRST_OFFSET,
        ) as consumer,
        Producer("pg", name_server=cluster.namesrv) as producer,
    ):  # fmt: skip
        await producer.send_many(Message("Monitored", b"x") for _ in range(6))
        await consumer.subscribe("Monitored", "*", handler)
        await consumer.commit()
        monitor = await asyncio.create_subprocess_exec(
            str(MQADMIN), "startMonitoring", "-n", cluster.namesrv,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        try:
            assert monitor.stdout is not None
            async with asyncio.timeout(DEADLINE_S):
                text = (await monitor.stdout.readuntil(b"endRound\n")).decode()
            monitor.send_signal(signal.SIGINT)
            async with asyncio.timeout(DEADLINE_S):
                _, complaints = await monitor.communicate()
        finally:
            if monitor.returncode is None:
                monitor.kill()
            may_end.set()
    assert (monitor.returncode, complaints) == (130, b"")
    lines = text.splitlines()
    assert lines[0] == "[MONITOR] =========================================beginRound"
    (line,) = [line for line in lines if "consumerGroup=slow, topic=Monitored," in line]
    found = re.fullmatch(
        r"\[MONITOR\] reportUndoneMsgs: UndoneMsgs \[consumerGroup=slow, topic=Monitored,"
        r" undoneMsgsTotal=6, undoneMsgsSingleMQ=(\d), undoneMsgsDelayTimeMills=\d+\]",
        line,
    )
    assert found is not None, line
    assert 3 <= int(found[1]) <= 6
