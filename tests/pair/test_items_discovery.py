"""Checklist 82 to 86: how a slave finds its master, and what the name servers are told."""

from __future__ import annotations

from typing import Any

from support.local_brokers import Brokers, until
from support.processes import free_port
from twinlog.broker.server import Broker
from twinlog.namesrv.server import Namesrv
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand


def address(server: Namesrv) -> str:
    return f"127.0.0.1:{server.port}"


async def master_of(brokers: Brokers, **config: Any) -> tuple[Namesrv, Broker]:
    server = await brokers.name_server()
    return server, await brokers.master(namesrv_addr=address(server), **config)


async def slave_of(brokers: Brokers, *servers: Namesrv, **config: Any) -> Broker:
    return await brokers.start(
        "slave",
        broker_role="SLAVE",
        broker_id=1,
        namesrv_addr=";".join(address(server) for server in servers),
        **config,
    )


async def known(brokers: Brokers, server: Namesrv) -> dict[str, str]:
    """Broker id -> address, as the name server has them."""
    command = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    answer = await brokers.client.invoke(address(server), command, 30_000)
    table = fastjson.loads(answer.body)["brokerAddrTable"]
    group = next(iter(table.values()), {"brokerAddrs": {}})
    return {str(key): value for key, value in group["brokerAddrs"].items()}


async def until_known(brokers: Brokers, server: Namesrv, count: int) -> dict[str, str]:
    seen: dict[str, str] = {}

    for _ in range(600):
        seen = await known(brokers, server)
        if len(seen) == count:
            return seen
        await brokers.started[0].clock.sleep_ms(50)
    raise AssertionError(f"the name server knows {seen}")


async def test_item_082_a_slave_learns_both_addresses(brokers: Brokers) -> None:
    server, master = await master_of(brokers)
    slave = await slave_of(brokers, server)
    await until(lambda: slave.pair.synchronize.master_address == master.address)
    assert slave.ha.client is not None
    await until(lambda: slave.ha.client.master_address == f"127.0.0.1:{master.ha.listen_port}")
    await until(lambda: len(master.ha.acks) == 1)


async def test_item_082_a_master_is_told_neither(brokers: Brokers) -> None:
    server, master = await master_of(brokers)
    await slave_of(brokers, server)
    await until_known(brokers, server, 2)
    for broker_id, is_told in ((0, False), (1, True)):
        header = {
            "brokerName": master.config.broker_name,
            "brokerAddr": master.address if broker_id == 0 else "127.0.0.1:9",
            "clusterName": "DefaultCluster", "haServerAddr": "127.0.0.1:10", "compressed": "false",
            "brokerId": broker_id, "bodyCrc32": 0,
        }  # fmt: skip
        command = RemotingCommand.request(RequestCode.REGISTER_BROKER, header)
        answer = await brokers.client.invoke(address(server), command, 30_000)
        assert answer.code == 0
        assert ("masterAddr" in answer.ext()) is is_told
        assert ("haServerAddr" in answer.ext()) is is_told


async def test_item_083_name_servers_do_not_replace_a_configured_address(
    brokers: Brokers,
) -> None:
    server, master = await master_of(brokers)
    fixed = f"127.0.0.1:{free_port()}"
    slave = await slave_of(brokers, server, ha_master_address=fixed)
    await until(lambda: slave.pair.synchronize.master_address == master.address)
    assert slave.ha.client is not None
    assert slave.ha.client.master_address == fixed


async def test_item_084_every_broker_keeps_registering_with_all_name_servers(
    brokers: Brokers,
) -> None:
    first, second = await brokers.name_server(), await brokers.name_server()
    both = f"{address(first)};{address(second)}"
    master = await brokers.master(namesrv_addr=both)
    slave = await slave_of(brokers, first, second)
    for server in (first, second):
        assert await until_known(brokers, server, 2) == {"0": master.address, "1": slave.address}
    port = second.port
    brokers.name_servers.remove(second)
    await second.stop()
    again = await brokers.name_server(port)
    master.registration.wake()
    slave.registration.wake()
    assert await until_known(brokers, again, 2) == {"0": master.address, "1": slave.address}


async def test_item_084_a_name_server_that_knows_no_master_does_not_hide_it(
    brokers: Brokers,
) -> None:
    first, master = await master_of(brokers)
    empty = await brokers.name_server()
    slave = await slave_of(brokers, first, empty)
    await until(lambda: slave.pair.synchronize.master_address == master.address)
    await slave.registration.register_all()
    assert slave.pair.synchronize.master_address == master.address


async def test_item_085_the_ha_address_is_broker_ip2_and_the_ha_port(brokers: Brokers) -> None:
    port = free_port()
    server, master = await master_of(brokers, broker_ip2="127.0.0.9", ha_listen_port=port)
    assert master.config.ha_listen_port == port
    slave = await slave_of(brokers, server)
    assert slave.ha.client is not None
    await until(lambda: slave.ha.client.master_address == f"127.0.0.9:{port}")


async def test_item_086_a_slave_follows_a_master_that_moved_through_the_name_server(
    brokers: Brokers,
) -> None:
    server, first = await master_of(brokers)
    slave = await slave_of(brokers, server)
    await until(lambda: len(first.ha.acks) == 1)
    assert (await brokers.send(first)).code == 0
    await brokers.end(first)
    second = await brokers.master(namesrv_addr=address(server))
    assert second.address != first.address
    await until(lambda: len(second.ha.acks) == 1)
    assert slave.pair.synchronize.master_address == second.address
    assert (await brokers.send(second)).code == 0


async def test_a_topic_is_registered_at_once_also_beside_a_full_registration(
    brokers: Brokers,
) -> None:
    server, master = await master_of(brokers)
    await until_known(brokers, server, 1)
    master.registration.wake()
    master.topics.update(TopicConfig("at-once"))

    async def has_route(topic: str) -> bool:
        command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return (await brokers.client.invoke(address(server), command, 30_000)).code == 0

    for topic in ("at-once", "BenchmarkTest"):
        for _ in range(600):
            if await has_route(topic):
                break
            await master.clock.sleep_ms(50)
        assert await has_route(topic)


async def test_a_slave_without_a_master_asks_again_and_clears_nothing(brokers: Brokers) -> None:
    server, master = await master_of(brokers)
    slave = await slave_of(brokers, server)
    master.topics.update(TopicConfig("kept"))
    await until(lambda: len(master.ha.acks) == 1)
    await until(lambda: slave.pair.synchronize.master_address is not None)
    assert await slave.pair.synchronize.sync_all()
    await brokers.end(master)
    await slave.registration.register_all()
    assert slave.pair.synchronize.master_address is None
    assert not await slave.pair.synchronize.sync_all()
    assert "kept" in slave.topics.table
