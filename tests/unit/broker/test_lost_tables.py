"""Files of tables that are missing, empty, cut or old at a start: named, and made again.

Generated: each file x what became of it x the role of the next start x how the last run ended. The
whole broker, without ports, on a simulated disk; what the tables must hold is known from what was
put into them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from support.captured import ROOT, open_without_ports, slave_config
from support.stores import message
from twinlog.broker.server import Broker, build_broker
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.runtime.config import BrokerConfig
from twinlog.testing.simdisk import SimCrash, SimDisk

IN_LOG = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
FILES = (*IN_LOG, "consumerFilter.json")
_TIMES = itertools.count(1_700_000_000_000)


def build(disk: SimDisk, *, in_log: bool = True, **config: Any) -> Broker:
    disk.now_ms = _TIMES.__next__  # No two writes at the same time.
    values: dict[str, Any] = {
        "store_path_root_dir": ROOT,
        "mapped_file_size_commit_log": 65536,
        "mapped_file_size_consume_queue": 6000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
        "enable_property_filter": True,
        "twinlog_metadata_in_log": in_log,
    }
    return build_broker(BrokerConfig(**{**values, **config}), rng=random.Random(1), disk=disk)


async def put(broker: Broker, generation: int) -> None:
    """Something in every table, and all of it saved."""
    broker.topics.update(TopicConfig(topic_name=f"T{generation}", read_queue_nums=generation))
    broker.groups.update(SubscriptionGroupConfig(f"g{generation}", retry_max_times=generation))
    for number in range(4):
        broker.store.put(message(number, topic="T1"))
    broker.offsets.commit("g1", "T1", 0, 4 * generation - 1)
    broker.schedule.replace({"offsetTable": {1: generation}})
    broker.filters.saver.touched()
    broker.pair.writer.tick()
    broker.store.write_pending()
    broker.offsets.saver.touched()
    await broker.saves.save_all()


def held(broker: Broker) -> dict[str, Any]:
    """What the tables hold, by the names of their files."""
    topics = broker.topics.table
    groups = broker.groups.table
    return {
        "topics.json": {name: topics[name].read_queue_nums for name in topics if name[0] == "T"},
        "subscriptionGroup.json": {
            name: groups[name].retry_max_times for name in ("g1", "g2") if name in groups
        },
        "consumerOffset.json": broker.offsets.query("g1", "T1", 0),
        "delayOffset.json": broker.schedule.offsets.get(1),
        "consumerFilter.json": None,
    }


async def a_store(*, is_clean: bool, in_log: bool = True) -> tuple[SimDisk, dict[str, Any]]:
    """The disk of a broker that ran twice: the first time to a clean stop."""
    disk = SimDisk()
    for generation in (1, 2):
        broker = build(disk, in_log=in_log)
        await open_without_ports(broker)
        await put(broker, generation)
        wanted = held(broker)
        if is_clean or generation == 1:
            await broker.stop()
        else:
            disk = disk.kill()
            with suppress(SimCrash):  # Its disk is gone.
                await broker.tasks.stop()
    return disk, wanted


def remove(disk: SimDisk, path: str) -> None:
    if disk.exists(path):
        disk.unlink(path)


def overwrite(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path)
    file.truncate(0)
    if data:
        file.pwritev([data], 0)


def all_missing(disk: SimDisk, path: str) -> None:
    remove(disk, path)
    remove(disk, path + ".bak")


def file_missing(disk: SimDisk, path: str) -> None:
    remove(disk, path)


def file_empty(disk: SimDisk, path: str) -> None:
    overwrite(disk, path, b"")


def both_empty(disk: SimDisk, path: str) -> None:
    for name in (path, path + ".bak"):
        overwrite(disk, name, b"")


def file_cut(disk: SimDisk, path: str) -> None:
    overwrite(disk, path, disk.read_bytes(path)[:-2].rstrip())


def old_backup(disk: SimDisk, path: str) -> None:
    """Only an older copy is left, as after a restore of some of the files."""
    remove(disk, path)
    overwrite(disk, path + ".bak", b"{}")


DAMAGE: list[Callable[[SimDisk, str], None]] = [
    all_missing, file_missing, file_empty, both_empty, file_cut, old_backup,
]  # fmt: skip


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("role", ["master", "slave"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
async def test_a_table_that_is_not_as_it_was_left_is_named_and_made_again(
    damage: Callable[[SimDisk, str], None],
    role: str,
    is_clean: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in FILES:
        disk, wanted = await a_store(is_clean=is_clean)
        damage(disk, f"{ROOT}/config/{name}")
        caplog.clear()
        broker = build(disk, **(slave_config() if role == "slave" else {}))
        await open_without_ports(broker)
        try:
            problems = broker.table_check.status()
            assert set(problems) == {f"tableProblem {name}"}, name
            assert any(name in record.getMessage() for record in caplog.records)
            broker.watch.started()  # As the command does when all ports listen.
            events = [
                event for event in broker.watch.events.select() if event["event"] == "table-lost"
            ]
            assert [event["table"] for event in events] == [name]
            assert held(broker) == wanted, (name, problems)
        finally:
            await broker.stop()


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("role", ["master", "slave"])
async def test_tables_that_are_as_they_were_left_are_no_news(role: str, is_clean: bool) -> None:
    disk, wanted = await a_store(is_clean=is_clean)
    broker = build(disk, **(slave_config() if role == "slave" else {}))
    await open_without_ports(broker)
    assert broker.table_check.status() == {}
    assert held(broker) == wanted
    await broker.stop()


async def test_a_first_start_misses_nothing() -> None:
    broker = build(SimDisk())
    await open_without_ports(broker)
    assert broker.table_check.status() == {}
    await broker.stop()


async def test_what_is_in_no_log_and_no_backup_is_said_to_be_lost() -> None:
    disk, _ = await a_store(is_clean=True, in_log=False)
    all_missing(disk, f"{ROOT}/config/consumerOffset.json")
    broker = build(disk, in_log=False)
    await open_without_ports(broker)
    text = broker.table_check.status()["tableProblem consumerOffset.json"]
    assert text == "the file is missing and has no backup that can be read: what it held is lost"
    assert broker.offsets.query("g1", "T1", 0) == -1
    await broker.stop()
