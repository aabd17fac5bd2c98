"""Consume queues that are missing or cut after a stop or a kill: made again before the first send.

Each is compared, entry by entry, with the log, by a reader that knows nothing but the format.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.local_brokers import Brokers, until
from twinlog.broker.server import Broker
from twinlog.remoting.codes import RequestCode

TOPICS = ("a", "b", "%RETRY%c")
QUEUES = 2
KINDS = ("queue", "topic", "all", "last", "any", "cut", "empty", "index", "extra")
FILE_ENTRIES = 8
MESSAGES = 120
MAGIC = 0xDAA320A7 - (1 << 32)
Entries = dict[tuple[str, int], dict[int, tuple[int, int]]]


def entries_of_log(store: Path) -> Entries:
    """Number -> (offset, size) of each queue, from the log alone."""
    found: Entries = defaultdict(dict)
    for file in sorted((store / "commitlog").iterdir()):
        data, at = file.read_bytes(), 0
        while at + 88 < len(data):
            size, magic = struct.unpack_from(">ii", data, at)
            if magic != MAGIC:
                break
            queue_id, _, number, offset = struct.unpack_from(">iiqq", data, at + 12)
            (body_size,) = struct.unpack_from(">i", data, at + 84)
            length = data[at + 88 + body_size]
            topic = data[at + 89 + body_size : at + 89 + body_size + length].decode()
            assert offset == int(file.name) + at
            if number == 0:
                found[(topic, queue_id)].clear()
            found[(topic, queue_id)][number] = (offset, size)
            at += size
    return found


def entries_of_queues(store: Path) -> Entries:
    found: Entries = defaultdict(dict)
    for directory in (store / "consumequeue").glob("*/*"):
        if not directory.is_dir() or not directory.name.isdigit():
            continue
        for file in sorted(directory.iterdir()):
            if len(file.name) != 20 or not file.is_file():
                continue
            data = file.read_bytes()
            for place in range(0, len(data), 20):
                offset, size, _ = struct.unpack_from(">qiq", data, place)
                if 0 < size < 0x7FFFFFFF:
                    key = (directory.parent.name, int(directory.name))
                    found[key][(int(file.name) + place) // 20] = (offset, size)
    return found


def damage(store: Path, rng: random.Random) -> list[str]:
    """Lose some of what follows from the log; what was done."""
    root, done = store / "consumequeue", []
    for _ in range(rng.randint(1, 4)):
        directories = [path for path in root.glob("*/*") if path.is_dir()]
        files = [path for path in root.glob("*/*/*") if path.is_file()]
        kind = rng.choice(KINDS)
        if kind == "all" and root.exists():
            shutil.rmtree(root)
        elif kind == "index":
            shutil.rmtree(store / "index", ignore_errors=True)
        elif kind == "extra" and directories:
            (rng.choice(directories) / "note.txt").write_text("left by somebody")
            (root / "no-directory").write_text("left by somebody")
        elif kind in ("queue", "topic") and directories:
            path = rng.choice(directories)
            shutil.rmtree(path if kind == "queue" else path.parent)
        elif files and kind in ("last", "any", "cut", "empty"):
            path = rng.choice(files)
            if kind == "last":
                path = max(path.parent.iterdir())
            if kind in ("last", "any"):
                path.unlink()
            else:
                size = 0 if kind == "empty" else rng.randrange(1, path.stat().st_size or 2)
                with path.open("r+b") as file:
                    file.truncate(size)
        done.append(kind)
    return done


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


async def start(brokers: Brokers, name: str) -> Broker:
    return await brokers.start(
        name, mapped_file_size_commit_log=16 * 1024, broker_name="broker",
        mapped_file_size_consume_queue=FILE_ENTRIES * 20, max_hash_slot_num=100,
        max_index_num=400, default_topic_queue_nums=QUEUES,
    )  # fmt: skip


async def fill(brokers: Brokers, broker: Broker, rng: random.Random) -> None:
    for number in range(MESSAGES):
        topic, queue = rng.choice(TOPICS), rng.randrange(QUEUES)
        answer = await brokers.send(
            broker, b"%d" % number + bytes(rng.randrange(300)), topic=topic, queue_id=queue,
            KEYS=f"key-{number}",
        )  # fmt: skip
        if topic.startswith("%"):
            continue
        assert answer.code == 0, answer.remark


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("seed", range(12))
async def test_what_is_lost_is_made_again(brokers: Brokers, seed: int, is_clean: bool) -> None:
    rng = random.Random(seed)
    broker = await start(brokers, "first")
    await fill(brokers, broker, rng)
    await until(lambda: broker.store.dispatched.value == broker.store.commit_log.max_offset)
    await broker.store.housekeeping.save_round()
    await fill(brokers, broker, rng)
    if is_clean:
        await brokers.end(broker)
    first, second = brokers.directory / "first", brokers.directory / "second"
    # What a running process has written is what a killed one leaves.
    shutil.copytree(first, second)
    done = damage(second, rng)
    expected = entries_of_log(second)
    broker = await start(brokers, "second")
    for (topic, queue_id), entries in expected.items():
        assert broker.store.max_offset_in_queue(topic, queue_id) == len(entries), (topic, done)
        answer = await brokers.send(broker, b"next", topic=topic, queue_id=queue_id)
        if answer.code == 0:
            assert int(answer.ext()["queueOffset"]) == len(entries), (topic, done)
    await brokers.end(broker)
    assert entries_of_queues(second) == entries_of_log(second), done


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("kind", ["gone", "empty"])
async def test_the_first_file_of_a_queue_is_made_again(
    brokers: Brokers, kind: str, is_clean: bool
) -> None:
    broker = await start(brokers, "first")
    await fill(brokers, broker, random.Random(1))
    await until(lambda: broker.store.dispatched.value == broker.store.commit_log.max_offset)
    await broker.store.housekeeping.save_round()
    if is_clean:
        await brokers.end(broker)
    first, second = brokers.directory / "first", brokers.directory / "second"
    shutil.copytree(first, second)
    files = sorted((second / "consumequeue" / "a" / "1").iterdir())
    assert len(files) > 1, "else the queue is lost as a whole"
    if kind == "gone":
        files[0].unlink()
    else:
        files[0].write_bytes(b"")
    broker = await start(brokers, "second")
    assert broker.store.min_offset_in_queue("a", 1) == 0
    await brokers.end(broker)
    assert entries_of_queues(second) == entries_of_log(second)


async def test_a_slave_keeps_its_queue_when_its_master_lost_one(brokers: Brokers) -> None:
    master = await brokers.master(broker_role="ASYNC_MASTER", twinlog_ha_dialect="twin")
    slave = await brokers.slave(master, twinlog_ha_dialect="twin")
    for number in range(30):
        await brokers.send(master, b"%d" % number, topic="t", queue_id=1)
    await until(lambda: slave.store.max_offset_in_queue("t", 1) == 30)
    port = master.config.listen_port
    await brokers.end(master)
    shutil.rmtree(brokers.directory / "master" / "consumequeue" / "t" / "1")
    master = await brokers.master(
        broker_role="ASYNC_MASTER", twinlog_ha_dialect="twin", listen_port=port
    )
    answer = await brokers.send(master, b"next", topic="t", queue_id=1)
    assert (answer.code, answer.ext()["queueOffset"]) == (0, "30")
    await until(lambda: slave.store.max_offset_in_queue("t", 1) == 31)
    answer = await brokers.call(slave, RequestCode.GET_MIN_OFFSET, {"topic": "t", "queueId": 1})
    assert answer.ext()["offset"] == "0"


async def test_a_lost_queue_whose_records_are_expired_goes_on_with_its_number(
    brokers: Brokers,
) -> None:
    broker = await start(brokers, "first")
    for number in range(10):
        await brokers.send(broker, b"%d" % number, topic="a", queue_id=0)
    for _ in range(60):
        await brokers.send(broker, bytes(1000), topic="b", queue_id=0)
    await until(lambda: broker.store.dispatched.value == broker.store.flushed.value)
    while broker.store.min_offset_in_queue("a", 0) < 10:
        broker.store.commit_log.remove_first()
    await brokers.end(broker)
    shutil.rmtree(brokers.directory / "first" / "consumequeue" / "a")
    broker = await start(brokers, "first")
    answer = await brokers.send(broker, b"next", topic="a", queue_id=0)
    assert (answer.code, answer.ext()["queueOffset"]) == (0, "10")


@pytest.mark.parametrize("is_saved_between", [True, False])
async def test_queues_whose_first_files_are_expired_are_not_made_again(
    brokers: Brokers, caplog: pytest.LogCaptureFixture, is_saved_between: bool
) -> None:
    """Killed after retention, whether the last list was written amid it or behind it."""
    broker = await start(brokers, "first")
    store = broker.store
    for number in range(200):
        await brokers.send(broker, bytes(500), topic="a", queue_id=number % 2)
    await until(lambda: store.dispatched.value == store.commit_log.max_offset)
    await store.housekeeping.save_round()
    while store.min_offset_in_queue("a", 0) < 3 * FILE_ENTRIES:
        store.commit_log.remove_first()
    if is_saved_between:
        await store.housekeeping.save_round()
    await store.cleaner.clean()
    if not is_saved_between:
        await store.housekeeping.save_round()
    first, second = brokers.directory / "first", brokers.directory / "second"
    assert not (first / "consumequeue" / "a" / "0" / ("0" * 20)).exists()
    shutil.copytree(first, second)
    broker = await start(brokers, "second")
    assert "rebuilt" not in caplog.text
    assert broker.store.min_offset_in_queue("a", 0) >= 3 * FILE_ENTRIES
