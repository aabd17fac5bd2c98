"""The store of the previous release opens; one that is too new is refused; upgrades in order."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.command_line import twinlog
from support.local_brokers import Brokers, until
from twinlog import __version__
from twinlog.broker.server import Broker
from twinlog.message.record import decode_record
from twinlog.remoting.codes import RequestCode
from twinlog.store.errors import StoreLayoutError
from twinlog.store.integrity.format import FORMAT

pytestmark = pytest.mark.timeout(240)
VECTORS = Path(__file__).parents[1] / "vectors"
# Written by the release before the first format file, and by 0.1.0.
STORES = ("store-format-1.tar.gz", "store-0.1.0.tar.gz")
BACKUP = VECTORS / "backup-0.1.0.tar.zst"
CONFIG: dict[str, Any] = {
    "broker_role": "ASYNC_MASTER",
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 1000,
    "broker_name": "broker-old",
}


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


@pytest.mark.parametrize("name", STORES)
async def test_the_store_of_a_previous_release_opens(
    brokers: Brokers, tmp_path: Path, name: str
) -> None:
    with tarfile.open(VECTORS / name) as archive:
        archive.extractall(tmp_path / "old", filter="data")
    broker = await assert_serves(brokers)
    written = json.loads((tmp_path / "old" / "twinlog" / "format.json").read_bytes())
    assert (written["version"], written["writtenBy"]) == (FORMAT, __version__)
    await brokers.end(broker)


async def test_a_backup_of_the_previous_release_is_restored(
    brokers: Brokers, tmp_path: Path
) -> None:
    for words in (["list"], ["verify"]):
        (await asyncio.to_thread(twinlog, "backup", *words, str(BACKUP))).ok()
    target = str(tmp_path / "old")
    (await asyncio.to_thread(twinlog, "backup", "restore", str(BACKUP), target)).ok()
    await assert_serves(brokers)


async def assert_serves(brokers: Brokers) -> Broker:
    """All messages, the committed offset, queries by key; new messages follow."""
    broker = await brokers.start("old", **CONFIG)
    bodies = set()
    for queue_id in range(4):
        assert broker.store.max_offset_in_queue("orders", queue_id) == 75
        for number in range(75):
            (record,) = broker.store.get_message("orders", queue_id, number, 1).buffers
            bodies.add(decode_record(record).body)
    assert bodies == {b"message %d " % n + b"x" * (n % 200) for n in range(300)}
    header = {"consumerGroup": "readers", "topic": "orders", "queueId": 2}
    answer = await brokers.call(broker, RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert answer.ext()["offset"] == "33"
    assert len(broker.store.query_message("orders", "k7", 10, 0, 1 << 62).buffers) == 1
    sent = await brokers.send(broker, b"new", topic="orders", queue_id=2)
    assert sent.ext()["queueOffset"] == "75"
    passes = broker.scrubber.state.passes
    broker.scrubber.hurry()
    await until(lambda: broker.scrubber.state.passes > passes)
    assert broker.scrubber.status()["damageFound"] == 0
    return broker


async def test_a_store_that_is_too_new_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    own = tmp_path / "new" / "twinlog"
    own.mkdir(parents=True)
    content = {"version": 9, "oldestReader": 8, "writtenBy": "9.1"}
    (own / "format.json").write_text(json.dumps(content))
    with pytest.raises(StoreLayoutError, match=r"written by twinlog 9\.1 in format 9"):
        await brokers.start("new", **CONFIG)
    assert json.loads((own / "format.json").read_bytes()) == content


async def test_commands_leave_a_store_that_is_too_new_alone(
    brokers: Brokers, tmp_path: Path
) -> None:
    """A backup without files that this release does not know would be restored as if it was whole;
    a store that may be read keeps its format in its backup."""
    broker = await brokers.start("store", **CONFIG)
    assert (await brokers.send(broker, b"1", topic="t")).code == 0
    await brokers.end(broker)
    root, place = tmp_path / "store", tmp_path / "backups"
    file = root / "twinlog" / "format.json"
    for oldest_reader, code in ((8, 1), (1, 0)):
        content = {"version": 9, "oldestReader": oldest_reader, "writtenBy": "9.1"}
        file.write_text(json.dumps(content))
        words = ("backup", "create", str(place), "--store", str(root))
        made = await asyncio.to_thread(twinlog, *words)
        lost = await asyncio.to_thread(twinlog, "store", "give-up", str(root), "--yes")
        assert (made.code, bool(lost.code)) == (code, bool(code)), (made, lost)
        assert ("written by twinlog 9.1 in format 9" in made.err) is bool(code)
    back = tmp_path / "back"
    (await asyncio.to_thread(twinlog, "backup", "restore", str(place), str(back))).ok()
    assert json.loads((back / "twinlog" / "format.json").read_bytes()) == content


async def restart_when_noted(
    brokers: Brokers, order: tuple[Broker, Broker], note: Path
) -> list[Broker]:
    """A command may return before the restart that it asks for."""
    again: list[Broker] = []
    for broker in order:
        await until(lambda: note.exists() and len(note.read_text().split()) > len(again), 90)
        await brokers.end(broker)
        again.append(await brokers.start("", **msgspec.structs.asdict(broker.config)))
    return again


async def test_restarts_are_planned_slaves_first_and_wait_for_in_sync(
    brokers: Brokers, tmp_path: Path
) -> None:
    server = await brokers.name_server()
    config = {
        "twinlog_ha_dialect": "auto",
        "namesrv_addr": f"127.0.0.1:{server.config.listen_port}",
    }
    master = await brokers.master(**config)
    slave = await brokers.slave(master, **config)
    address = config["namesrv_addr"]

    async def command(*words: object) -> Any:
        return await asyncio.to_thread(twinlog, *map(str, words), "-n", address)

    checked = await command("cluster", "upgrade-check", "-o", "json")
    deadline = asyncio.get_running_loop().time() + 60
    while checked.code and asyncio.get_running_loop().time() < deadline:
        checked = await command("cluster", "upgrade-check", "-o", "json")
    assert [step["address"] for step in checked.ok().json["steps"]] == [
        slave.address,
        master.address,
    ]
    note = tmp_path / "restarted"
    restarts = asyncio.create_task(restart_when_noted(brokers, (slave, master), note))
    done = await command("cluster", "rolling-restart", "--command", f"echo {{role}} >> {note}")
    done.ok()
    assert note.read_text().split() == ["slave", "master"]
    slave, master = await restarts
    failed = await command("cluster", "rolling-restart", "--command", "exit 3")
    assert (failed.code, "ended with 3" in failed.err) == (1, True)
    await brokers.end(slave)
    refused = await command("cluster", "rolling-restart", "--command", "true", "--wait", "1s")
    assert refused.code in (1, 10)
