"""Two twinlogs in one process: the dialect question, metadata through the log, offsets back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.local_brokers import Brokers, until
from twinlog.broker.server import Broker
from twinlog.broker.subscription_group import SubscriptionGroupConfig
from twinlog.ha.twin.link import TwinLink
from twinlog.remoting import fastjson
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
    return slave.ha.client is not None and isinstance(slave.ha.client.link, TwinLink)


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


async def test_who_asks_second_waits_for_the_first_answer(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would dial in the classic dialect while the question is on its way."""
    master, slave = await start_pair(brokers)
    pair = slave.pair
    pair._verdict = None
    asked = 0
    invoke = slave.client.invoke

    async def slowly(*arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)
        return await invoke(*arguments)

    monkeypatch.setattr(slave.client, "invoke", slowly)
    assert await asyncio.gather(*(pair.ask_is_twin() for _ in range(5))) == [True] * 5
    assert asked == 1
    assert master.address == pair.synchronize.master_address


async def test_a_master_that_did_not_answer_is_neither_and_is_asked_again(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, slave = await start_pair(brokers)
    pair = slave.pair
    pair._verdict = None
    invoke = slave.client.invoke

    async def fail(*arguments: Any) -> Any:
        raise RemotingError("not up yet")

    monkeypatch.setattr(slave.client, "invoke", fail)
    assert not await pair.ask_is_twin()
    assert not pair.is_master_classic, "offsets may not be moved back on a guess"
    monkeypatch.setattr(slave.client, "invoke", invoke)
    assert await pair.ask_is_twin()


async def test_the_verdict_stays_while_the_master_is_away(brokers: Brokers) -> None:
    master, slave = await start_pair(brokers)
    address = slave.pair.synchronize.master_address
    slave.pair.master_found(None, None)
    assert slave.pair.is_master_twin, "or a returning master would be dialled in classic"
    slave.pair.master_found(address, None)
    slave.pair.master_found("127.0.0.1:1", None)
    assert not slave.pair.is_master_twin, "another address is another question"
    slave.pair.master_found(master.address, None)


async def test_a_classic_connection_makes_way_when_the_master_turns_out_to_be_twinlog(
    brokers: Brokers,
) -> None:
    master, slave = await start_pair(brokers)
    assert slave.ha.client is not None
    slave.pair._verdict = (master.address, False)
    link = slave.ha.client.link
    assert link is not None
    link.close("test")
    await until(lambda: slave.ha.client.link not in (None, link) and not is_twin(slave))
    slave.pair._verdict = None
    await slave.pair.ask_is_twin()
    await until(lambda: is_twin(slave) and len(master.ha.acks) == 1)


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
