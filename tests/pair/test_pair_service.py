"""Two twinlogs in one process: the dialect question, metadata through the log, offsets back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.local_brokers import Brokers, until
from support.not_twinlog import NotTwinlog
from support.processes import free_port
from twinlog.broker.server import Broker
from twinlog.ha.dialect import Dialect
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.errors import RemotingError


async def start_pair(brokers: Brokers, **config: Any) -> tuple[Broker, Broker]:
    server = await brokers.name_server()
    values = {
        "namesrv_addr": f"127.0.0.1:{server.port}",
        "twinlog_ha_dialect": "auto",
        "flush_consumer_offset_interval": 100,
        **config,
    }
    master = await brokers.master(**values)
    slave = await brokers.start("slave", broker_role="SLAVE", broker_id=1, **values)
    await until(lambda: is_twin(slave) and len(master.ha.acks) == 1)
    return master, slave


def is_twin(slave: Broker) -> bool:
    link = None if slave.ha.client is None else slave.ha.client.link
    return link is not None and link.twin is not None


async def commit(brokers: Brokers, broker: Broker, offset: int, topic: str = "t") -> None:
    header = {"consumerGroup": "g", "topic": topic, "queueId": 0, "commitOffset": offset}
    assert (await brokers.call(broker, RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0


async def test_two_twinlogs_find_each_other(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    assert slave.pair.is_master_twin
    assert not slave.pair.is_master_classic
    assert master.pair.writer.is_enabled


async def test_everything_is_on_the_slave_within_a_second(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    master.topics.update(TopicConfig("made"))
    master.groups.update(SubscriptionGroupConfig("made"))
    await brokers.send(master, topic="t")
    await commit(brokers, master, 1)
    await until(lambda: "made" in slave.topics.table, 10)
    await until(lambda: "made" in slave.groups.table, 10)
    await until(lambda: slave.offsets.query("g", "t", 0) == 1, 10)
    master.topics.delete("made")
    await until(lambda: "made" not in slave.topics.table, 10)


def ha_address(master: Broker) -> str:
    return f"127.0.0.1:{master.ha.listen_port}"


async def test_a_master_that_did_not_answer_is_still_what_it_was(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = await start_pair(brokers)

    async def fail(*arguments: Any) -> Any:
        raise RemotingError("not up yet")

    monkeypatch.setattr(slave.client, "invoke", fail)
    verdict = await slave.pair.ask_dialect(ha_address(master))
    assert verdict.dialect is Dialect.TWIN, "it is away, and comes back as what it was"
    verdict = await slave.pair.ask_dialect("127.0.0.1:1")
    assert verdict.dialect is Dialect.UNKNOWN, "another address is another question"
    assert not slave.pair.is_master_classic, "offsets may not be moved back on a guess"


async def test_without_a_name_server_two_twinlogs_find_each_other(brokers: Brokers) -> None:
    master = await brokers.master(twinlog_ha_dialect="auto")
    slave = await brokers.slave(master, twinlog_ha_dialect="auto")
    assert is_twin(slave)
    assert slave.pair.is_master_twin


async def test_a_slave_does_not_dial_before_its_master_has_said_what_it_is(
    brokers: Brokers,
) -> None:
    """Something listens at the HA port, and nobody answers where the service port would be."""
    opened: list[bytes] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(await reader.read(8))
        writer.close()

    port = free_port(also=(-1,))
    server = await asyncio.start_server(accept, "127.0.0.1", port)
    values = {"broker_role": "SLAVE", "broker_id": 1, "twinlog_ha_dialect": "auto"}
    slave = await brokers.start("slave", ha_master_address=f"127.0.0.1:{port}", **values)
    client = slave.ha.client
    assert client is not None
    await until(lambda: "has not said yet" in client.status().last_disconnect_reason)
    assert opened == []
    # The broker behind it comes up: an Apache one, by what it answers.
    other = NotTwinlog(
        {"brokerName": slave.config.broker_name, "haListenPort": str(port)}, port=port - 1
    )
    service = await other.listen()
    await until(lambda: set(opened) == {bytes(8)})
    assert slave.pair.is_master_classic
    await service.close()
    server.close()


async def test_what_was_learnt_of_another_dialect_is_forgotten(brokers: Brokers) -> None:
    """A master that is replaced: the slave stays away from the first, and follows the second."""
    master, slave = await start_pair(brokers)
    client = slave.ha.client
    assert client is not None
    client._stay_reason = "it sent the same bytes again"
    assert client.link is not None
    client.link.close("test")
    await until(lambda: client.link is None)
    slave.ha.dialect_heard(is_other=True)
    await until(lambda: is_twin(slave) and len(master.ha.acks) == 1)
    assert client.status().damage == ""


async def test_a_copy_of_a_twinlog_never_follows_a_classic_master(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    await brokers.send(master)
    await until(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset)
    values = {"ha_master_address": ha_address(master), "broker_role": "SLAVE", "broker_id": 1}
    end = slave.store.commit_log.max_offset
    await brokers.end(slave)
    again = await brokers.start("slave", twinlog_ha_dialect="classic", **values)
    client = again.ha.client
    assert client is not None
    await until(lambda: "is a copy of a twinlog" in client.status().last_disconnect_reason)
    await brokers.send(master)
    assert client.connect_count == 0
    assert again.store.commit_log.max_offset == end


async def test_offsets_committed_on_the_slave_come_back_with_the_master(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    for _ in range(10):
        await brokers.send(master, topic="t")
    await commit(brokers, master, 2)
    await until(lambda: slave.offsets.query("g", "t", 0) == 2)
    await until(lambda: slave.store.max_offset_in_queue("t", 0) == 10)
    values = {"namesrv_addr": master.config.namesrv_addr, "twinlog_ha_dialect": "auto"}
    await brokers.end(master)
    await commit(brokers, slave, 7)
    again = await brokers.master(**values)
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    answer = await brokers.call(again, RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert answer.ext()["offset"] == "7", "the first answer already knows"
    # A client with an old route: its commit is passed on, and never moves back.
    await until(lambda: is_twin(slave) and len(again.ha.acks) == 1)
    await commit(brokers, slave, 9)
    assert again.offsets.query("g", "t", 0) == 9, "the master knows before the slave answers"
    await commit(brokers, slave, 8)
    await commit(brokers, slave, 3, topic="elsewhere")
    await asyncio.sleep(1)
    assert again.offsets.query("g", "t", 0) == 9


async def test_sends_are_taken_while_pulls_wait_for_the_slaves_offsets(brokers: Brokers) -> None:
    master, _ = await start_pair(brokers)
    master.pair.offset_return.close_gate()
    header = {"consumerGroup": "g", "topic": "t", "queueId": 0}
    waiting = asyncio.ensure_future(brokers.call(master, RequestCode.QUERY_CONSUMER_OFFSET, header))
    assert (await brokers.send(master, topic="t")).code == 0
    assert not waiting.done()
    await master.pair._fetch_offsets([master.config.namesrv_addr or ""])
    assert (await asyncio.wait_for(waiting, 20)).code in (0, 22)


async def test_a_clean_stop_takes_the_last_commits_along(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    await brokers.send(master, topic="t")
    master.offsets.commit("g", "t", 0, 1)
    await brokers.end(master)
    await until(lambda: slave.offsets.query("g", "t", 0) == 1)


async def test_metadata_lag_is_shown_beside_the_lag_of_data(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    master.topics.update(TopicConfig("made"))
    await until(lambda: "made" in slave.topics.table)
    for broker, key, value in (
        (master, "metadataInLog", "true"),
        (slave, "metadataMasterIsTwinlog", "true"),
        (slave, "metadataBehindRecords", "0"),
    ):
        answer = await brokers.call(broker, RequestCode.GET_BROKER_RUNTIME_INFO)
        assert fastjson.loads(answer.body)["table"][key] == value
        answer = await brokers.call(broker, RequestCode.GET_BROKER_HA_STATUS)
        assert fastjson.loads(answer.body)["twinlog"]["metadata"][key] == value


async def test_a_stranger_cannot_send_the_slave_elsewhere(brokers: Brokers) -> None:
    _, slave = await start_pair(brokers)
    assert slave.ha.client is not None
    before = slave.ha.client.master_address
    header = {"clusterName": "elsewhere", "brokerName": slave.config.broker_name,
              "brokerId": "0", "haAddress": "127.0.0.1:1"}  # fmt: skip
    assert (await brokers.call(slave, RequestCode.TWINLOG_INFO, header)).code == 0
    assert slave.ha.client.master_address == before


async def test_a_slave_of_a_log_that_begins_inside_a_file_serves_it(brokers: Brokers) -> None:
    """With real files: such a master was the classic slave of another once."""
    master = await brokers.master(twinlog_ha_dialect="twin")
    master.store.commit_log.start_at(777)
    assert (await brokers.send(master, topic="t")).code in (0, 11)
    slave = await brokers.slave(master, twinlog_ha_dialect="twin")
    await until(lambda: slave.store.max_offset_in_queue("t", 0) == 1)
    assert slave.store.commit_log.min_offset == 777
    assert slave.store.get_message("t", 0, 0, 1).buffers
