"""A restored node beside those who knew the old one: nobody takes it for that."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from support.command_line import twinlog
from support.local_brokers import Brokers, until
from support.processes import free_broker_port
from twinlog.broker.server import Broker
from twinlog.remoting.codes import RequestCode

pytestmark = pytest.mark.timeout(240)
CONFIG: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "twinlog_ha_dialect": "auto",
}


async def command(*words: object) -> None:
    (await asyncio.to_thread(twinlog, *(str(word) for word in words))).ok()


async def restored(directory: Path, name: str, *options: object) -> None:
    """A copy of the store `name` as it is now, in `name`-restored."""
    place = directory / f"{name}-backups"
    await command("backup", "create", place, "--store", directory / name)
    await command("backup", "restore", place, directory / f"{name}-restored", *options)


def files_of(broker: Broker) -> tuple[int, str]:
    return broker.store.commit_log.max_offset, broker.identity.store_id


async def test_an_old_slave_refuses_a_restored_master_and_names_both(
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports = {"listen_port": free_broker_port()}
    master = await brokers.master(**CONFIG, **ports, broker_role="ASYNC_MASTER")
    slave = await brokers.slave(master, **CONFIG)
    for number in range(50):
        assert (await brokers.send(master, b"%d" % number, topic="t")).code == 0
    end = master.store.commit_log.max_offset
    await until(lambda: slave.store.commit_log.max_offset == end)
    old_id = master.identity.store_id
    await restored(tmp_path, "master")
    await brokers.end(master)
    caplog.clear()
    second = await brokers.start("master-restored", **CONFIG, **ports, broker_role="ASYNC_MASTER")
    new_id = second.identity.store_id
    assert (await brokers.send(second, b"new", topic="t")).code == 0
    await until(lambda: f"store {old_id}, this is {new_id}" in caplog.text)
    assert new_id not in ("", old_id)
    assert files_of(slave) == (end, old_id)
    assert len(second.ha.acks) == 0


async def test_a_restored_copy_of_a_slave_is_one_more_slave(
    brokers: Brokers, tmp_path: Path
) -> None:
    master = await brokers.master(**CONFIG)
    slave = await brokers.slave(master, **CONFIG)
    for number in range(50):
        assert (await brokers.send(master, b"%d" % number, topic="t")).code == 0
    await restored(tmp_path, "slave")
    address = f"127.0.0.1:{master.ha.listen_port}"
    copy = await brokers.start(
        "slave-restored", **CONFIG, broker_role="SLAVE", broker_id=2, ha_master_address=address
    )
    await until(lambda: len(master.ha.acks) == 2)
    assert copy.identity._twin.replica_uid != slave.identity._twin.replica_uid
    for number in range(50, 60):
        assert (await brokers.send(master, b"%d" % number, topic="t")).code == 0
    await until(lambda: files_of(slave) == files_of(copy) == files_of(master))


async def offset_call(brokers: Brokers, broker: Broker, code: int, **more: object) -> Any:
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0, **more}
    return (await brokers.call(broker, code, header)).ext().get("offset")


async def test_offsets_behind_the_end_of_a_restored_log_skip_no_message(
    brokers: Brokers, tmp_path: Path
) -> None:
    """A log that is restored up to a time is shorter than what consumers had read of it."""
    first = await brokers.master(**CONFIG, broker_role="ASYNC_MASTER")
    for number in range(90):
        assert (await brokers.send(first, b"%d" % number, topic="t")).code == 0
        if number == 59:
            border = time.time_ns() // 1_000_000
            await asyncio.sleep(0.05)  # Store times are milliseconds.
    await offset_call(brokers, first, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=85)
    await first.saves.save_all()
    await restored(tmp_path, "master", "--to", border)
    second = await brokers.start("master-restored", **CONFIG, broker_role="ASYNC_MASTER")
    assert second.store.max_offset_in_queue("t", 0) == 60
    offset = await offset_call(brokers, second, RequestCode.QUERY_CONSUMER_OFFSET)
    assert offset == "60"
    assert (await brokers.send(second, b"new", topic="t")).ext()["queueOffset"] == offset
