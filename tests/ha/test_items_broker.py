"""Checklist items that concern the broker around replication: roles, statuses, dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.local_brokers import Brokers, until
from support.processes import free_port
from twinlog.client import Message, TransactionProducer
from twinlog.client.producer.transaction import TransactionState
from twinlog.namesrv.server import build_namesrv
from twinlog.remoting.codes import RequestCode
from twinlog.runtime.config import BrokerConfig, ConfigError, load_broker_config
from twinlog.runtime.config_key import undone
from twinlog.runtime.namesrv_config import NamesrvConfig
from twinlog.testing.simdisk import SimDisk


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(tmp_path)
    yield brokers
    await brokers.stop()


# Roles and configuration


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_item_001_a_master_has_id_0_whatever_the_file_says(tmp_path: Path, role: str) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerRole={role}\nbrokerId=7\n")
    loaded = load_broker_config(str(file), {})
    assert loaded.config.broker_id == 0


@pytest.mark.parametrize("broker_id", [0, -1])
def test_item_002_a_slave_needs_an_id_above_0(tmp_path: Path, broker_id: int) -> None:
    """The message is Apache's; the exit code is 2 (DECISIONS 1)."""
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerRole=SLAVE\nbrokerId={broker_id}\n")
    with pytest.raises(ConfigError, match="Slave's brokerId must be > 0"):
        load_broker_config(str(file), {})


def test_item_004_three_roles_and_async_master_is_the_default(tmp_path: Path) -> None:
    assert BrokerConfig().broker_role == "ASYNC_MASTER"
    for role in ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"):
        file = tmp_path / role
        file.write_text(f"brokerRole={role}\nbrokerId=1\n")
        assert load_broker_config(str(file), {}).config.broker_role == role
    (tmp_path / "x").write_text("brokerRole=LEADER\n")
    with pytest.raises(ConfigError):
        load_broker_config(str(tmp_path / "x"), {})


async def test_item_005_a_slave_rejects_messages_with_14_and_stores_nothing(
    brokers: Brokers,
) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    answer = await brokers.send(slave)
    assert answer.code == 14
    assert slave.store.commit_log.max_offset == 0


async def test_item_006_a_slave_stays_a_slave_when_the_master_is_gone(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    await brokers.send(master)
    brokers.started.remove(master)
    await master.stop()
    await until(lambda: slave.ha.client is not None and slave.ha.client.link is None)
    assert (await brokers.send(slave)).code == 14
    assert slave.config.broker_role == "SLAVE"
    assert slave.config.broker_id == 1


async def test_item_007_topics_and_groups_are_not_changed_on_a_slave(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    header = {
        "topic": "t", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    answer = await brokers.call(slave, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code == 1
    assert answer.remark is not None
    assert "please execute it from master broker." in answer.remark


async def test_item_008_ending_a_transaction_on_a_slave_is_answered_with_11(
    brokers: Brokers,
) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    header = {
        "producerGroup": "g", "tranStateTableOffset": 0, "commitLogOffset": 0,
        "commitOrRollback": 8, "fromTransactionCheck": "false", "msgId": "x", "transactionId": "x",
    }  # fmt: skip
    assert (await brokers.call(slave, RequestCode.END_TRANSACTION, header)).code == 11


async def test_item_009_master_and_slave_listen_on_the_service_port_plus_1(
    brokers: Brokers,
) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    for broker in (master, slave):
        assert broker.ha.listen_port == broker.config.listen_port + 1
        _, writer = await asyncio.open_connection("127.0.0.1", broker.ha.listen_port)
        writer.close()


def test_item_010_there_is_no_dledger_mode_that_would_have_no_ha_service() -> None:
    """Refused with the reason rather than ignored (DECISIONS 4)."""
    (finding,) = undone(BrokerConfig(enable_d_leger_commit_log=True))
    assert finding.is_fault
    assert "twinlog does not have this" in finding.text


async def test_item_011_the_ha_service_starts_with_the_store(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    assert master.ha.client is None
    assert slave.ha.client is not None
    assert slave.ha.client.link is not None
    assert master.ha.check_sync(0) == (None, "")


async def test_item_012_delayed_messages_are_not_delivered_by_a_slave(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    assert (await brokers.send(master, DELAY="1")).code == 0
    key = ("SCHEDULE_TOPIC_XXXX", 0)
    await until(lambda: slave.store.max_offset_in_queue(*key) == 1)
    await until(lambda: master.store.max_offset_in_queue("load", 0) == 1)
    end = master.store.commit_log.max_offset
    await until(lambda: slave.store.commit_log.max_offset == end)
    # The copy came through the log, once; the slave does not even try.
    assert slave.store.max_offset_in_queue("load", 0) == 1
    assert not slave.schedule._is_running
    assert not slave.transactions._is_running


# Dispatch on the slave


async def test_item_053_appending_builds_queues_and_index_on_the_slave(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    for number in range(20):
        assert (await brokers.send(master, b"%d" % number, KEYS=f"k{number}")).code == 0
    await until(lambda: slave.store.max_offset_in_queue("load", 0) == 20)
    found = slave.store.query_message("load", "k7", 10, 0, 1 << 62)
    assert len(found.physical_offsets) == 1


async def test_item_054_an_incomplete_message_at_the_tail_waits(brokers: Brokers) -> None:
    master = await brokers.master(ha_transfer_batch_size=50)
    slave = await brokers.slave(master)
    assert (await brokers.send(master, b"whole")).code == 0
    whole = slave.store.commit_log.max_offset
    await until(lambda: slave.store.dispatched.value == whole)
    record = master.store.commit_log.read(0, whole)
    brokers.started.remove(master)
    await master.stop()
    # Half of a record that claims to follow.
    half = record[:28] + whole.to_bytes(8, "big") + record[36:60]
    slave.store.commit_log.append_raw(whole, half)
    await asyncio.sleep(0.2)
    assert slave.store.dispatched.value == whole
    assert slave.store.reput.damage_offset < 0
    assert slave.store.commit_log.max_offset == whole + len(half)


# Statuses


async def test_item_061_async_master_never_waits_for_a_slave(brokers: Brokers) -> None:
    master = await brokers.master(broker_role="ASYNC_MASTER")
    answer = await brokers.send(master)
    assert (answer.code, answer.remark) == (0, None)


async def test_item_062_wait_false_waits_for_nothing(brokers: Brokers) -> None:
    master = await brokers.master()
    answer = await brokers.send(master, WAIT="false")
    assert answer.code == 0


async def test_item_070_flush_and_replication_are_waited_for_together(brokers: Brokers) -> None:
    master = await brokers.master(flush_disk_type="SYNC_FLUSH")
    slave = await brokers.slave(master)
    answer = await brokers.send(master)
    assert answer.code == 0
    end = master.store.commit_log.max_offset
    assert master.store.flushed.value >= end
    assert slave.store.commit_log.max_offset >= end


async def test_item_071_if_both_fail_the_replication_status_wins(brokers: Brokers) -> None:
    disk = SimDisk()
    master = await brokers.master(
        disk=disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=300, slave_timeout=300
    )
    await brokers.send(master)  # The topic is saved before anything of it is answered.
    _, writer = await asyncio.open_connection("127.0.0.1", master.ha.listen_port)
    writer.write(bytes(8))
    await until(lambda: len(master.ha.acks) == 1)
    disk.stall()
    try:
        answer = await brokers.send(master)
    finally:
        disk.resume()
    assert answer.code == 12
    assert answer.remark is not None
    assert "slave 127.0.0.1:" in answer.remark
    writer.close()


async def test_item_074_codes_11_and_12_carry_id_and_offset(brokers: Brokers) -> None:
    master = await brokers.master(slave_timeout=300)
    lone = await brokers.send(master)
    _, writer = await asyncio.open_connection("127.0.0.1", master.ha.listen_port)
    writer.write(bytes(8))
    await until(lambda: len(master.ha.acks) == 1)
    late = await brokers.send(master)
    for number, (answer, code) in enumerate(((lone, 11), (late, 12))):
        assert answer.code == code
        assert answer.ext()["queueOffset"] == str(number)
        assert len(answer.ext()["msgId"]) == 32
        assert answer.remark
    writer.close()


# Discovery


async def test_item_086_a_slave_follows_a_master_that_moved(brokers: Brokers) -> None:
    first = await brokers.master()
    slave = await brokers.start("slave", broker_role="SLAVE", broker_id=1)
    slave.ha.update_master_address(f"127.0.0.1:{first.ha.listen_port}")
    await until(lambda: len(first.ha.acks) == 1)
    assert (await brokers.send(first)).code == 0
    brokers.started.remove(first)
    await first.stop()
    second = await brokers.master()
    assert second.ha.listen_port != first.ha.listen_port
    slave.ha.update_master_address(None)
    slave.ha.update_master_address(f"127.0.0.1:{second.ha.listen_port}")
    await until(lambda: len(second.ha.acks) == 1)
    assert (await brokers.send(second)).code == 0
    assert slave.store.commit_log.max_offset == second.store.commit_log.max_offset


async def test_item_083_a_configured_address_is_not_replaced(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    slave.ha.update_master_address("127.0.0.1:1")
    assert slave.ha.client is not None
    assert slave.ha.client.master_address == f"127.0.0.1:{master.ha.listen_port}"


async def test_a_slave_of_a_slave_is_refused_with_a_reason(brokers: Brokers) -> None:
    master = await brokers.master()
    slave = await brokers.slave(master)
    await brokers.start(
        "third", broker_role="SLAVE", broker_id=2,
        ha_master_address=f"127.0.0.1:{slave.ha.listen_port}",
    )  # fmt: skip
    await until(lambda: slave.ha.status().replicas)
    (replica,) = slave.ha.status().replicas
    assert replica.state == "SUSPEND"
    assert replica.reason == "this broker is a slave: replicate from its master"


async def test_item_075_a_half_message_that_is_not_replicated_is_rolled_back(
    brokers: Brokers, tmp_path: Path
) -> None:
    port = free_port()
    namesrv = build_namesrv(
        NamesrvConfig(listen_port=port, kv_config_path=str(tmp_path / "kv.json"))
    )
    await namesrv.start()
    executed: list[str] = []

    async def check(_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async def execute(_: object, transaction_id: str) -> TransactionState:
        executed.append(transaction_id)
        return TransactionState.COMMIT

    master = await brokers.master(namesrv_addr=f"127.0.0.1:{port}")
    producer = TransactionProducer("g", check=check, name_server=f"127.0.0.1:{port}")
    try:
        await producer.start()
        receipt = await producer.send_in_transaction(Message("load", b"half"), execute)
        assert receipt.state is TransactionState.ROLLBACK
        assert executed == []
        await until(lambda: master.store.max_offset_in_queue("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0) == 1)
    finally:
        await producer.close()
        await namesrv.stop()
