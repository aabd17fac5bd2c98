"""Tables of a broker on a disk that is slow, full or broken: gathered, kept, tried again."""

from __future__ import annotations

import asyncio
import errno
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import SUBSCRIPTION, Brokers, pull, until
from support.raw_peer import request
from twinlog.broker.server import Broker
from twinlog.remoting import codec, connection, fastjson
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.runtime.disk import write_atomically
from twinlog.testing.simdisk import SimDisk

COUNT = 400
SAVES_MAX = 20  # As many as reads of the socket, each of dozens of requests; not one for each.


class FaultyDisk(SimDisk):
    """One kind of call on the tables' directory fails until it is mended."""

    fault: tuple[str, int] | None = None

    def begin(self, call: str, path: str) -> None:
        if self.fault is not None and call == self.fault[0] and "/config" in path:
            raise OSError(self.fault[1], "the test's fault", path)
        super().begin(call, path)


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


def power_cut(disk: SimDisk) -> SimDisk:
    """What a power cut would leave now; the broker goes on, so that it can be stopped."""
    image = disk.crash(None)
    disk.is_off = False
    return image


async def start(brokers: Brokers, disk: SimDisk, **config: Any) -> Broker:
    return await brokers.start(
        "broker", disk, store_path_root_dir="/store", flush_consumer_offset_interval=200, **config
    )


async def pipelined(broker: Broker, frames: list[bytes]) -> list[Request]:
    """Send all at once, then read as many answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.config.listen_port)
    writer.write(b"".join(frames))
    answers = []
    for _ in frames:
        head = await reader.readexactly(4)
        body = await reader.readexactly(struct.unpack(">i", head)[0])
        answers.append(codec.decode_command(head + body))
    writer.close()
    return answers


def creating_send(number: int) -> bytes:
    header = {
        "a": "p", "b": f"new-{number}", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
        "i": "", "j": 0, "k": "false",
    }  # fmt: skip
    return request(RequestCode.SEND_MESSAGE_V2, header, b"body", opaque=number)


def creating_pull(number: int) -> bytes:
    header = {
        "consumerGroup": f"new-{number}", "topic": "t", "queueId": 0, "queueOffset": 0,
        "maxMsgNums": 1, "sysFlag": SUBSCRIPTION, "commitOffset": 0, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0,
    }  # fmt: skip
    return request(RequestCode.PULL_MESSAGE, header, opaque=number)


@pytest.fixture(autouse=True)
def whole_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk in memory is done in every turn of the loop. How many turns a packet takes depends on
    the machine; what is told apart here is one write for a turn, and one for each change."""
    monkeypatch.setattr(connection, "SHARE_MS", 600_000)


async def test_a_thousand_new_topics_cost_a_handful_of_saves(brokers: Brokers) -> None:
    disk = SimDisk()
    broker = await start(brokers, disk)
    answers = await pipelined(broker, [creating_send(number) for number in range(COUNT)])
    assert {answer.code for answer in answers} == {0}
    assert broker.topics.saver.save_count < SAVES_MAX
    # The power fails with the last answer: every topic that was answered is there.
    others = Brokers(brokers.directory)
    again = await start(others, power_cut(disk))
    assert {f"new-{number}" for number in range(COUNT)} <= set(again.topics.table)
    await others.stop()


async def test_a_thousand_new_groups_cost_a_handful_of_saves(brokers: Brokers) -> None:
    disk = SimDisk()
    broker = await start(brokers, disk)
    await brokers.send(broker, topic="t")
    answers = await pipelined(broker, [creating_pull(number) for number in range(COUNT)])
    assert {answer.code for answer in answers} == {0}
    assert broker.groups.saver.save_count < SAVES_MAX
    others = Brokers(brokers.directory)
    again = await start(others, power_cut(disk))
    assert {f"new-{number}" for number in range(COUNT)} <= set(again.groups.table)
    await others.stop()


class CountingDisk(SimDisk):
    """How often a file was replaced."""

    replaced = 0

    def rename(self, old: str, new: str) -> None:
        self.replaced += new == "/broker.conf"
        super().rename(old, new)


async def test_changes_of_the_configuration_share_their_writes(brokers: Brokers) -> None:
    disk = CountingDisk()
    write_atomically(disk, "/broker.conf", b"brokerName=a\n")
    disk.replaced = 0
    broker = await start(brokers, disk, config_path="/broker.conf")
    code = RequestCode.UPDATE_BROKER_CONFIG
    frames = [
        request(code, {}, b"fileReservedTime=%d\n" % number, opaque=number)
        for number in range(1, COUNT + 1)
    ]
    answers = await pipelined(broker, frames)
    assert {answer.code for answer in answers} == {0}
    assert disk.replaced < SAVES_MAX
    left = power_cut(disk).read_bytes("/broker.conf").decode()
    assert left == f"brokerName=a\nfileReservedTime={COUNT}\n"


async def test_a_change_that_cannot_be_written_is_written_with_the_next(brokers: Brokers) -> None:
    disk = SimDisk()
    write_atomically(disk, "/broker.conf", b"brokerName=a\n")
    broker = await start(brokers, disk, config_path="/broker.conf")
    disk.fail("pwritev", path="broker.conf", number=errno.ENOSPC)
    code = RequestCode.UPDATE_BROKER_CONFIG
    answer = await brokers.call(broker, code, body=b"fileReservedTime=7\n")
    assert answer.code == 1
    assert "holds only until the next start" in (answer.remark or "")
    assert (await brokers.call(broker, code, body=b"deleteWhen=05\n")).code == 0
    assert disk.read_bytes("/broker.conf") == (b"brokerName=a\nfileReservedTime=7\ndeleteWhen=05\n")


async def test_sends_to_a_new_topic_keep_their_order_while_it_is_saved(brokers: Brokers) -> None:
    broker = await start(brokers, SimDisk())
    header = {
        "a": "p", "b": "fresh", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": "",
        "j": 0, "k": "false",
    }  # fmt: skip
    frames = [
        request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number, opaque=number)
        for number in range(50)
    ]
    answers = await pipelined(broker, frames)
    places = {answer.opaque: int(answer.ext()["queueOffset"]) for answer in answers}
    assert places == {number: number for number in range(50)}


async def test_an_answer_waits_for_a_slow_disk(brokers: Brokers) -> None:
    disk = SimDisk()
    broker = await start(brokers, disk)
    await brokers.send(broker, topic="t")
    disk.stall()
    group = {"groupName": "readers"}
    calls = [
        brokers.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header("made")),
        brokers.call(
            broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, fastjson.dumps(group)
        ),
        pull(brokers, broker, 0, consumerGroup="puller"),
        brokers.send(broker, topic="sent"),
    ]
    waiting = [asyncio.ensure_future(call) for call in calls]
    await until(lambda: "made" in broker.topics.table and "readers" in broker.groups.table)
    assert (await pull(brokers, broker, 0, consumerGroup="TOOLS_CONSUMER")).code == 0
    assert not any(answer.done() for answer in waiting), "not on disk yet"
    disk.resume()
    assert [(await answer).code for answer in waiting] == [0, 0, 0, 0]
    assert broker.topics.saver.save_count <= 4


def topic_header(name: str) -> dict[str, Any]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip


async def unsaved(brokers: Brokers, broker: Broker) -> set[str]:
    """What the runtime information says is in memory only."""
    answer = await brokers.call(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = fastjson.loads(answer.body)["table"]
    return {key.removeprefix("notSaved ") for key in table if key.startswith("notSaved ")}


FAULTS = [
    ("open", errno.EROFS), ("truncate", errno.EIO), ("pwritev", errno.ENOSPC),
    ("fdatasync", errno.EIO), ("rename", errno.EIO), ("fsync_directory", errno.EIO),
]  # fmt: skip


@pytest.mark.parametrize(("call", "number"), FAULTS)
async def test_tables_that_cannot_be_saved_are_kept_and_tried_again(
    brokers: Brokers, call: str, number: int
) -> None:
    disk = FaultyDisk()
    broker = await start(brokers, disk)
    assert (await brokers.send(broker, topic="t")).code == 0
    await until(lambda: not broker.topics.saver.is_dirty)
    disk.fault = (call, number)
    commit = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 1}
    assert (await brokers.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    assert (await pull(brokers, broker, 0, consumerGroup="new")).code == 0
    heartbeat = {"clientID": "c", "consumerDataSet": [{"groupName": "beating"}]}
    beat = await brokers.call(broker, RequestCode.HEART_BEAT, None, fastjson.dumps(heartbeat))
    assert beat.code == 0
    assert (await brokers.send(broker, topic="t")).code == 0, "a topic that is there"
    refused = await brokers.send(broker, topic="sent")
    assert refused.code == 1
    assert "topic[sent] cannot be saved" in (refused.remark or "")
    made = await brokers.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_header("made"))
    assert made.code == 1
    assert "not saved yet" in (made.remark or "")
    await until(lambda: broker.saves.problems.keys() >= {"topics", "groups", "offsets"})
    assert await unsaved(brokers, broker) >= {"topics", "groups", "offsets"}
    assert broker.store.max_offset_in_queue("sent", 0) == 0
    disk.fault = None
    await until(lambda: not broker.saves.problems)
    assert await unsaved(brokers, broker) == set()
    assert (await brokers.send(broker, topic="sent")).code == 0
    assert broker.tasks.failed is None
    others = Brokers(brokers.directory)
    again = await start(others, power_cut(disk))
    assert {"made", "sent", "%RETRY%beating"} <= set(again.topics.table)
    assert {"new", "beating"} <= set(again.groups.table)
    assert again.offsets.query("g", "t", 0) == 1
    await others.stop()
