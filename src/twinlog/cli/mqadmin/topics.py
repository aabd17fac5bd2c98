"""Verbs about topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinlog.admin import topics
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.places import cluster_names, masters, one_of_places
from twinlog.cli.mqadmin.rows import Form
from twinlog.client.errors import ClientError
from twinlog.client.net.routes import TopicRoute
from twinlog.message.names import DLQ_PREFIX, RETRY_PREFIX
from twinlog.remoting.bodies.common import TOPIC_FLAG_UNIT, TOPIC_FLAG_UNIT_SUB
from twinlog.remoting.bodies.topic import TopicConfig
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.admin import DeleteTopicRequestHeader
from twinlog.remoting.headers.namesrv import DeleteTopicInNamesrvRequestHeader

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


async def update_topic(call: Call) -> None:
    options = call.options
    sys_flag = (TOPIC_FLAG_UNIT if options.flag("u") else 0) | (
        TOPIC_FLAG_UNIT_SUB if options.flag("s") else 0
    )
    config = TopicConfig(
        options.text("t"), options.number("r", 8), options.number("w", 8),
        options.number("p", 6), topic_sys_flag=sys_flag, order=options.flag("o"),
    )  # fmt: skip
    one_of_places(call)
    addresses = await masters(call)
    created = []
    for address in addresses:
        await topics.put_topic_config(call.admin, address, config)
        created.append(f"create topic to {address} success.")
    order = [await _set_order(call, config, addresses)] if config.order else []
    # Apache says it first for one broker, last for a cluster.
    for line in [*order, *created] if "b" in call.options else [*created, *order]:
        call.line(line)
    call.line(java.topic_config(config))


async def _set_order(call: Call, config: TopicConfig, addresses: list[str]) -> str:
    info = await call.admin.cluster()
    names = [name for name, broker in info.brokers.items() if broker.master_address in addresses]
    if "b" in call.options:
        old = await topics.get_kv(call.admin, ORDER_NAMESPACE, config.topic_name)
        kept = [part for part in (old or "").split(";") if part.partition(":")[0] not in names]
        value = ";".join([p for p in kept if p] + [f"{n}:{config.write_queue_nums}" for n in names])
        kind = "broker"
    else:
        value = ";".join(f"{name}:{config.write_queue_nums}" for name in java.hash_order(names))
        kind = "cluster"
    found = await topics.put_kv(call.admin, ORDER_NAMESPACE, config.topic_name, value)
    found.all_or_raise()
    return f"set {kind} orderConf. isOrder=true, orderConf=[{value}]"


async def delete_topic(call: Call) -> None:
    cluster = call.options.get("c")
    if cluster is None:
        raise CommandError("mqadmin deleteTopic: -c (clusterName) is missing", USAGE)
    await delete_one(call, cluster, call.options.text("t"))


async def delete_one(call: Call, cluster: str, name: str) -> None:
    addresses = await masters(call, cluster)
    for address in addresses:
        await call.admin.ask(
            address,
            RequestCode.DELETE_TOPIC_IN_BROKER,
            DeleteTopicRequestHeader(name),
            action="deletion",
        )
    call.line(f"delete topic [{name}] from cluster [{cluster}] success.")
    told = await call.admin.tell_name_servers(
        RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrvRequestHeader(name, cluster),
        action="deletion",
    )  # fmt: skip
    told.all_or_raise()
    call.line(f"delete topic [{name}] from NameServer success.")


async def update_topic_perm(call: Call) -> None:
    name, perm = call.options.text("t"), call.options.number("p", 6)
    one_of_places(call)
    route = await call.admin.route(name)
    first = route.queue_data[0]
    config = TopicConfig(
        name,
        first.read_queue_nums,
        first.write_queue_nums,
        perm,
        topic_sys_flag=first.topic_sys_flag,
    )
    address = call.options.get("b")
    if address is None:
        for master in await masters(call):
            await topics.put_topic_config(call.admin, master, config)
            call.line(f"update topic perm from {first.perm} to {perm} in {master} success.")
        return
    broker = next((b for b in route.brokers.values() if b.master_address == address), None)
    if broker is None:
        raise CommandError(f"{address} is not a master that has topic {name!r}", NOT_FOUND)
    old = next(data.perm for data in route.queue_data if data.broker_name == broker.broker_name)
    if old == perm:
        call.line("new perm equals to the old one!")
        return
    await topics.put_topic_config(call.admin, address, config)
    call.line(f"update topic perm from {old} to {perm} in {address} success.")
    call.line(f"{java.topic_config(config)}.")


# Looking


def route_json(route: TopicRoute) -> dict[str, Any]:
    """The members that Apache's JSON has, in its order."""
    result: dict[str, Any] = {
        "brokerDatas": [
            {
                "brokerAddrs": dict(broker.broker_addrs),
                "brokerName": broker.broker_name,
                "cluster": broker.cluster,
            }
            for broker in route.brokers.values()
        ],
        "filterServerTable": {},
    }
    if route.order_topic_conf is not None:
        result["orderTopicConf"] = route.order_topic_conf
    result["queueDatas"] = [
        {
            "brokerName": data.broker_name,
            "perm": data.perm,
            "readQueueNums": data.read_queue_nums,
            "topicSysFlag": data.topic_sys_flag,
            "writeQueueNums": data.write_queue_nums,
        }
        for data in route.queue_data
    ]
    return result


async def topic_route(call: Call) -> None:
    route = await call.admin.route(call.options.text("t"))
    if "l" not in call.options:
        call.line(java.pretty_json(route_json(route)))
        return
    form = Form("{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}")
    call.line(form("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue",
                   "#Perm"))  # fmt: skip
    by_name = {data.broker_name: data for data in route.queue_data}
    for broker in sorted(route.brokers.values(), key=lambda b: b.broker_name):
        data = by_name[broker.broker_name]
        addresses = "{" + ", ".join(f"{i}={a}" for i, a in broker.broker_addrs.items()) + "}"
        call.line(form(broker.cluster, broker.broker_name, addresses, data.read_queue_nums,
                       data.write_queue_nums, data.perm))  # fmt: skip
    call.line("-" * 158)
    reads = sum(data.read_queue_nums for data in by_name.values())
    writes = sum(data.write_queue_nums for data in by_name.values())
    call.line(form("Total:", len(by_name), "", reads, writes, ""))


async def topic_status(call: Call) -> None:
    name = call.options.text("t")
    found = await topics.topic_stats(call.admin, name)
    found.any_or_raise()
    entries = [entry for stats in found.values.values() for entry in stats]
    if not entries:
        raise CommandError(f"topic {name!r} has no queues", FAILED)
    form = Form("{:<32}  {:<4}  {:<20}  {:<20}    {}")
    call.line(form("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for entry in sorted(entries, key=lambda entry: entry.queue):
        updated = java.human_time(entry.last_update_ms) if entry.last_update_ms > 0 else ""
        broker = java.front(entry.queue.broker_name, 32)
        call.line(form(broker, entry.queue.queue_id, entry.min_offset, entry.max_offset, updated))
    for address, error in found.failures.items():
        call.incomplete(address, error)


async def topic_cluster_list(call: Call) -> None:
    route = await call.admin.route(call.options.text("t"))
    first = next(iter(route.brokers), None)
    info = await call.admin.cluster()
    for cluster in java.hash_order(info.clusters):
        if first in info.clusters[cluster]:
            call.line(cluster)


async def topic_list(call: Call) -> None:
    names = java.hash_order(await topics.list_topics(call.admin))
    if "c" not in call.options:
        for name in names:
            call.line(name)
        return
    info = await call.admin.cluster()
    call.line(Form("{:<20}  {:<48}  {:<48}")("#Cluster Name", "#Topic", "#Consumer Group"))
    for name in names:
        if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            await _topic_list_line(call, name, cluster_names(info))


async def _topic_list_line(call: Call, name: str, clusters: dict[str, str]) -> None:
    try:
        route = await call.admin.route(name)
        cluster = clusters.get(next(iter(route.brokers), ""), "")
        groups = await topics.topic_groups(call.admin, name)
    except ClientError:
        # Apache prints the topic anyway.
        cluster, groups = "", []
    for group in java.hash_order(groups) or [""]:
        cells = (java.front(cluster, 20), java.front(name, 64), java.front(group, 64))
        call.line(Form("{:<20}  {:<64}  {:<64}")(*cells))


async def allocate_mq(call: Call) -> None:
    """Average allocation, as the tool of Apache shows it."""
    name = call.options.text("t")
    addresses = [part for part in call.options.text("i").split(",") if part]
    if not addresses:
        raise CommandError("mqadmin allocateMQ: -i names no client", USAGE)
    queues = (await call.admin.route(name)).read_queues(name)
    result: dict[str, list[dict[str, Any]]] = {address: [] for address in addresses}
    for index, queue in enumerate(queues):
        result[addresses[_owner(index, len(queues), len(addresses))]].append(queue.wire())
    from twinlog.remoting import fastjson

    call.line(fastjson.dumps({"result": result}).decode())


def _owner(index: int, count: int, owners: int) -> int:
    """Which of `owners` gets queue `index`: the first ones get one more when it does not divide."""
    share, more = divmod(count, owners)
    border = more * (share + 1)
    return index // (share + 1) if index < border else more + (index - border) // max(share, 1)


async def update_order_conf(call: Call) -> None:
    name, method = call.options.text("t"), call.options.text("m")
    if method == "get":
        value = await topics.get_kv(call.admin, ORDER_NAMESPACE, name)
        if value is None:
            raise CommandError(f"topic {name!r} has no order configuration", NOT_FOUND)
        call.line(f"get orderConf success. topic=[{name}], orderConf=[{value}] ")
    elif method == "put":
        value = call.options.text("v")
        if not value:
            raise CommandError("mqadmin updateOrderConf: -v (orderConf) is missing", USAGE)
        (await topics.put_kv(call.admin, ORDER_NAMESPACE, name, value)).all_or_raise()
        call.line(f"update orderConf success. topic=[{name}], orderConf=[{value}]")
    elif method == "delete":
        (await topics.delete_kv(call.admin, ORDER_NAMESPACE, name)).all_or_raise()
        call.line(f"delete orderConf success. topic=[{name}]")
    else:
        raise CommandError(f"-m {method}: put, get or delete are known", USAGE)
