"""A store is backed up while its broker serves, both are lost, and a new one goes on from it."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Result, twinlog
from support.damage import flip_bit
from support.local_brokers import Brokers, until
from twinlog.broker.server import Broker
from twinlog.message.record import decode_record
from twinlog.remoting.codes import RequestCode

pytestmark = pytest.mark.timeout(240)
CONFIG: dict[str, Any] = {"broker_role": "ASYNC_MASTER", "mapped_file_size_commit_log": 64 * 1024}


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


async def command(*words: object) -> Result:
    return await asyncio.to_thread(twinlog, *(str(word) for word in words))


class Load:
    """One message behind the other, with the time of each answer."""

    def __init__(self, brokers: Brokers, broker: Broker) -> None:
        self.acknowledged: list[tuple[float, bytes]] = []
        self._is_over = False
        self._task = asyncio.create_task(self._run(brokers, broker))

    async def _run(self, brokers: Brokers, broker: Broker) -> None:
        number = 0
        while not self._is_over:
            body = b"%08d" % number + bytes(random.Random(number).randbytes(300))
            answer = await brokers.send(broker, body, topic="t", queue_id=number % 4)
            assert answer.code == 0
            self.acknowledged.append((time.monotonic(), body))
            number += 1

    async def end(self) -> None:
        self._is_over = True
        await self._task

    def before(self, moment: float) -> set[bytes]:
        return {body for at, body in self.acknowledged if at < moment}


def bodies_of(broker: Broker) -> set[bytes]:
    found = set()
    for topic, queue_id in broker.store.queues:
        offset = broker.store.min_offset_in_queue(topic, queue_id)
        while topic == "t" and offset < broker.store.max_offset_in_queue(topic, queue_id):
            result = broker.store.get_message(topic, queue_id, offset, 64)
            for buffer in result.buffers:
                at = 0
                while at < len(buffer):
                    record = decode_record(buffer, at)
                    found.add(record.body)
                    at += record.total_size
            offset = result.next_begin_offset
    return found


async def commit(brokers: Brokers, broker: Broker, offset: int) -> None:
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": offset}
    answer = await brokers.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == 0
    await broker.saves.save_all()


async def committed(brokers: Brokers, broker: Broker) -> str:
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    answer = await brokers.call(broker, RequestCode.QUERY_CONSUMER_OFFSET, header)
    return answer.ext().get("offset", "")


async def test_what_was_acknowledged_before_the_backup_is_in_a_store_restored_from_it(
    brokers: Brokers, tmp_path: Path
) -> None:
    first = await brokers.start("first", **CONFIG)
    load = Load(brokers, first)
    await until(lambda: len(load.acknowledged) > 300)
    await commit(brokers, first, 20)
    place, store = tmp_path / "backups", tmp_path / "first"
    moment = time.monotonic()
    made = await command("backup", "create", place, "--store", store, "-o", "json")
    assert made.ok().json["backups"][0]["segments"] >= 1
    segments = set((place / "segments").iterdir())
    await until(lambda: len(load.acknowledged) > 700)
    later = time.monotonic()
    again = await command("backup", "create", place, "--store", store, "-o", "json")
    assert segments < set((place / "segments").iterdir()), "only what is new is added"
    assert again.ok().json["backups"][0]["mark"] > made.json["backups"][0]["mark"]
    await load.end()
    store_id = first.identity.store_id
    await brokers.end(first)
    shutil.rmtree(store)

    listed = (await command("backup", "list", place, "-o", "json")).ok().json
    assert len(listed) == 2
    assert (await command("backup", "verify", place)).ok()
    (await command("backup", "restore", place, tmp_path / "second")).ok()
    second = await brokers.start("second", **CONFIG)
    assert load.before(later) <= bodies_of(second)
    assert second.identity.store_id != store_id
    assert await committed(brokers, second) == "20"
    sent = await brokers.send(second, b"new", topic="t", queue_id=1)
    assert sent.code == 0
    (await command("backup", "restore", place, tmp_path / "third", "--id", listed[0]["id"],
                   "--keep-identity")).ok()  # fmt: skip
    third = await brokers.start("third", **CONFIG)
    assert load.before(moment) <= bodies_of(third)
    assert third.identity.store_id == store_id


async def test_a_restore_ends_where_it_is_told_and_never_writes_over_anything(
    brokers: Brokers, tmp_path: Path
) -> None:
    first = await brokers.start("first", **CONFIG)
    for number in range(60):
        assert (await brokers.send(first, b"%d" % number, topic="t")).code == 0
    await asyncio.sleep(0.05)  # The clock of store times: milliseconds.
    border = time.time_ns() // 1_000_000
    await asyncio.sleep(0.05)
    for number in range(60, 90):
        assert (await brokers.send(first, b"%d" % number, topic="t")).code == 0
    file = tmp_path / "one.tar.zst"
    (await command("backup", "create", file, "--store", tmp_path / "first")).ok()
    assert (await command("backup", "restore", file, tmp_path / "first")).code == 1
    (await command("backup", "restore", file, tmp_path / "back", "--to", border)).ok()
    back = await brokers.start("back", **CONFIG)
    assert bodies_of(back) == {b"%d" % number for number in range(60)}
    assert (await command("backup", "create", file, "--store", tmp_path / "first")).code == 2
    assert (await command("backup", "list", tmp_path / "none")).code == 3


async def test_a_damaged_backup_is_found_and_not_restored(brokers: Brokers, tmp_path: Path) -> None:
    first = await brokers.start("first", **CONFIG)
    for number in range(300):
        await brokers.send(first, b"%0200d" % number, topic="t")
    place = tmp_path / "backups"
    (await command("backup", "create", place, "--store", tmp_path / "first")).ok()
    (segment,) = sorted((place / "segments").iterdir())[:1]
    flip = flip_bit(segment, 1000, random.Random(1))
    found = await command("backup", "verify", place, "-o", "json")
    assert (found.code, len(found.json["findings"])) == (1, 1)
    refused = await command("backup", "restore", place, tmp_path / "back")
    assert refused.code == 1
    assert "is damaged" in refused.err
    segment.write_bytes(segment.read_bytes()[: flip.position] + bytes([flip.before])
                        + segment.read_bytes()[flip.position + 1 :])  # fmt: skip
    manifest = next(place.glob("backup-*/manifest.json"))
    content = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**content, "mark": 1}))
    assert (await command("backup", "verify", place)).code == 1
