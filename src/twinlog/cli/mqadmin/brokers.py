"""Verbs about clusters, brokers and name servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from twinlog.admin import brokers, groups, topics
from twinlog.admin.brokers import BrokerSummary, first_number
from twinlog.cli.exit_codes import FAILED, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.places import all_addresses, masters, one_of_places
from twinlog.cli.mqadmin.rows import Form
from twinlog.cli.times import now_ms
from twinlog.client.errors import ClientError
from twinlog.client.net.answers import body_as
from twinlog.message.names import DLQ_PREFIX, RETRY_PREFIX
from twinlog.remoting.bodies.ha import HAClientInfo, HARuntimeInfo
from twinlog.remoting.bodies.offsets import ConsumeStatsList
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.admin import (
    GetConsumeStatsInBrokerHeader,
    ResetMasterFlushOffsetHeader,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinlog.cli.mqadmin.startup import Call

HOUR_MS = 3_600_000


async def repeat(call: Call, action: Callable[[Call], Awaitable[None]]) -> None:
    """Once, or with -i again and again until interrupted."""
    seconds = call.options.number("i", 0)
    if "i" in call.options and seconds < 1:
        raise CommandError("-i (interval) must be above 0", USAGE)
    while True:
        await action(call)
        if not seconds:
            return
        call.end_round()
        await asyncio.sleep(seconds)


async def cluster_list(call: Call) -> None:
    await repeat(call, _more_stats if "m" in call.options else _base_info)


_BASE = Form("{:<16}  {:<22}  {:<4}  {:<22} {:<16} {:>19} {:>19} {:>10} {:>5} {:>6}")
_MORE = Form("{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}")


async def _base_info(call: Call) -> None:
    entries = await brokers.list_brokers(call.admin)
    call.line(_BASE("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)",
                    "#OutTPS(LOAD)", "#PCWait(ms)", "#Hour", "#SPACE"))  # fmt: skip
    for entry in entries:
        call.line(_base_line(entry))
        if entry.error is not None:
            call.missing.append(f"mqadmin: {entry.address}: {entry.error}")


def _base_line(entry: BrokerSummary) -> str:
    runtime = entry.runtime

    def load(tps: str, queue: str) -> str:
        size = runtime.get(f"{queue}ThreadPoolQueueSize", "")
        wait = runtime.get(f"{queue}ThreadPoolQueueHeadWaitTimeMills", "")
        return f"{first_number(runtime.get(tps, '')):9.2f}({size},{wait}ms)"

    earliest = runtime.get("earliestMessageTimeStamp", "")
    hours = (now_ms() - int(earliest)) / HOUR_MS if earliest else 0.0
    return _BASE(
        entry.cluster, entry.name, entry.broker_id, entry.address,
        runtime.get("brokerVersionDesc", ""), load("putTps", "send"),
        load("getTransferedTps", "pull"), runtime.get("pageCacheLockTimeMills", ""),
        f"{hours:2.2f}", f"{entry.disk_ratio:.4f}",
    )  # fmt: skip


async def _more_stats(call: Call) -> None:
    entries = await brokers.list_brokers(call.admin)
    call.line(_MORE("#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest",
                    "#InTotalToday", "#OutTotalToday"))  # fmt: skip
    for entry in entries:
        counts = []
        for first, last in (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow")):
            for kind in ("Put", "Get"):
                high = entry.runtime.get(f"msg{kind}Total{last}", "0")
                low = entry.runtime.get(f"msg{kind}Total{first}", "0")
                counts.append(int(high) - int(low))
        call.line(_MORE(entry.cluster, entry.name, *counts))
        if entry.error is not None:
            call.missing.append(f"mqadmin: {entry.address}: {entry.error}")


async def broker_status(call: Call) -> None:
    one_of_places(call)
    with_address = "b" not in call.options
    for address in await all_addresses(call):
        try:
            runtime = await brokers.broker_runtime(call.admin, address)
        except ClientError as error:
            if not with_address:
                raise
            call.incomplete(address, error)
            continue
        for key, value in sorted(runtime.items()):
            call.line(
                f"{address:<24} {key:<32}: {value}" if with_address else f"{key:<32}: {value}"
            )


async def get_broker_config(call: Call) -> None:
    one_of_places(call)
    address = call.options.get("b")
    if address is not None:
        await _print_config(call, f"============{address}============", address)
        return
    info = await call.admin.cluster()
    for name in info.names(call.options.text("c")):
        broker = info.brokers[name]
        master = broker.master_address or "null"
        for broker_id, place in broker.broker_addrs.items():
            head = (
                f"Master: {place}" if broker_id == 0 else f"My Master: {master}=====Slave: {place}"
            )
            await _print_config(call, f"============{head}============", place)


async def _print_config(call: Call, head: str, address: str) -> None:
    call.line(head)
    for key, value in sorted((await brokers.broker_config(call.admin, address)).items()):
        call.line(f"{key:<50}=  {value}")
    call.line()


async def update_broker_config(call: Call) -> None:
    one_of_places(call)
    changes = {call.options.text("k"): call.options.text("v")}
    for address in await masters(call):
        await brokers.update_broker_config(call.admin, address, changes)
        call.line(f"update broker config success, {address}")


async def broker_consume_stats(call: Call) -> None:
    options = call.options
    answer = await call.admin.ask(
        options.text("b"), RequestCode.GET_BROKER_CONSUME_STATS,
        GetConsumeStatsInBrokerHeader(options.flag("o")), action="consumption statistics",
        timeout_ms=options.number("t", 50_000),
    )  # fmt: skip
    body = body_as(answer, ConsumeStatsList)
    form = Form("{:<64}  {:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}")
    call.line(form("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset",
                   "#Consumer Offset", "#Diff", "#LastTime"))  # fmt: skip
    level = options.number("l", 0)
    for by_group in body.consume_stats_list:
        for group, tables in by_group.items():
            for table in tables:
                for entry in groups.queue_progress(table):
                    if entry.lag < level or entry.last_ms <= 0:
                        continue
                    queue = entry.queue
                    call.line(form(java.front(queue.topic, 64), group,
                                   java.front(queue.broker_name, 32), queue.queue_id,
                                   entry.broker_offset, entry.consumer_offset, entry.lag,
                                   java.second_time(entry.last_ms)))  # fmt: skip
    call.line(f"\nDiff Total: {body.total_diff}")


# Statistics of topics

_STATS = Form("{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}")


async def stats_all(call: Call) -> None:
    names = java.hash_order(await topics.list_topics(call.admin))
    call.line(_STATS("#Topic", "#Consumer Group", "#Accumulation", "#InTPS", "#OutTPS",
                     "#InMsg24Hour", "#OutMsg24Hour"))  # fmt: skip
    chosen = call.options.get("t")
    for topic in names:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or chosen not in (None, topic):
            continue
        try:
            await _stats_of(call, topic, active_only="a" in call.options)
        except ClientError as error:
            if chosen is not None:
                raise
            call.incomplete(topic, error)


async def _stats_of(call: Call, topic: str, *, active_only: bool) -> None:
    route = await call.admin.route(topic)
    addresses = [b.master_address for b in route.brokers.values() if b.master_address]
    in_tps, in_day = await _sums(call, addresses, "TOPIC_PUT_NUMS", topic)
    consumers = java.hash_order(await topics.topic_groups(call.admin, topic))
    for group in consumers:
        out_tps, out_day = await _sums(call, addresses, "GROUP_GET_NUMS", f"{topic}@{group}")
        try:
            lag = max(0, (await groups.group_progress(call.admin, group, topic=topic)).lag)
        except ClientError:
            lag = 0
        if not active_only or in_day > 0 or out_day > 0:
            call.line(_STATS(java.front(topic, 64), java.front(group, 64), lag, f"{in_tps:.2f}",
                             f"{out_tps:.2f}", in_day, out_day))  # fmt: skip
    if not consumers and (not active_only or in_day > 0):
        call.line(_STATS(java.front(topic, 64), "", 0, f"{in_tps:.2f}", "", in_day,
                         "NO_CONSUMER"))  # fmt: skip


async def _sums(call: Call, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    tps, day = 0.0, 0
    for address in addresses:
        try:
            data = await brokers.broker_stats(call.admin, address, name, key)
        except ClientError:
            continue  # The broker has no such counter yet.
        tps += data.stats_minute.tps
        day += data.day_sum
    return tps, day


# Name servers


async def wipe_write_perm(call: Call) -> None:
    await _permission(call, "wipe", brokers.wipe_write_permission)


async def add_write_perm(call: Call) -> None:
    await _permission(call, "add", brokers.add_write_permission)


async def _permission(call: Call, word: str, change: Callable[..., Awaitable[Any]]) -> None:
    name = call.options.text("b")
    found = await change(call.admin, name)
    for address, count in found.values.items():
        call.line(f"{word} write perm of broker[{name}] in name server[{address}] OK, {count}")
    for address, error in found.failures.items():
        call.line(f"{word} write perm of broker[{name}] in name server[{address}] Failed")
        call.incomplete(address, error)


async def get_namesrv_config(call: Call) -> None:
    found = await brokers.name_server_config(call.admin)
    found.any_or_raise()
    for address, values in found.values.items():
        call.line(f"============{address}============")
        for key, value in sorted(values.items()):
            call.line(f"{key:<50}=  {value}")
    for address, error in found.failures.items():
        call.incomplete(address, error)


async def update_namesrv_config(call: Call) -> None:
    key, value = call.options.text("k"), call.options.text("v")
    found = await brokers.update_name_server_config(call.admin, {key: value})
    found.all_or_raise()
    servers = f"[{', '.join(call.session.namesrv.split(';'))}]" if "n" in call.options else ""
    call.line(f"update name server config success!{servers}\n{key} : {value}")


async def update_kv_config(call: Call) -> None:
    options = call.options
    found = await topics.put_kv(call.admin, options.text("s"), options.text("k"), options.text("v"))
    found.all_or_raise()
    call.line("create or update kv config to namespace success.")


async def delete_kv_config(call: Call) -> None:
    found = await topics.delete_kv(call.admin, call.options.text("s"), call.options.text("k"))
    found.all_or_raise()
    call.line("delete kv config from namespace success.")


# Housekeeping


async def clean_expired_cq(call: Call) -> None:
    await _clean(call, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


async def delete_expired_commit_log(call: Call) -> None:
    await _clean(call, RequestCode.DELETE_EXPIRED_COMMITLOG)


async def clean_unused_topic(call: Call) -> None:
    await _clean(call, RequestCode.CLEAN_UNUSED_TOPIC)


async def _clean(call: Call, code: int) -> None:
    """On -b, on the masters of -c, or on every master."""
    options = call.options
    if "b" in options or "c" in options:
        addresses = await masters(call)
    else:
        addresses = await call.admin.masters()
    try:
        for address in addresses:
            await brokers.clean_unused(call.admin, address, code)
    except ClientError as error:
        call.line("false")
        raise CommandError(str(error), FAILED) from error
    call.line("success")


# Replication: a verb of 5.x, with its columns


async def ha_status(call: Call) -> None:
    one_of_places(call)
    await repeat(call, _ha_status)


async def _ha_status(call: Call) -> None:
    for address in await masters(call):
        answer = await call.admin.ask(address, RequestCode.GET_BROKER_HA_STATUS, action="HA status")
        info = body_as(answer, HARuntimeInfo)
        if info.master:
            _print_master(call, address, info)
        else:
            _print_slave(call, info.ha_client_runtime_info)


def _print_master(call: Call, address: str, info: HARuntimeInfo) -> None:
    slaves = info.ha_connection_info
    call.line(
        f"\n#MasterAddr\t{address}"
        f"\n#MasterCommitLogMaxOffset\t{info.master_commit_log_max_offset}"
        f"\n#SlaveNum\t{len(slaves)}\n#InSyncSlaveNum\t{info.in_sync_slave_nums}"
    )
    form = Form("{:<32}  {:<16} {:>16} {:>16} {:>16} {:>16}")
    call.line(form("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status",
                   "#TransferFromWhere"))  # fmt: skip
    for slave in slaves:
        speed = (slave.transferred_byte_in_second or 0) / 1024
        state = "OK" if slave.in_sync else "Fall Behind"
        call.line(form(slave.addr, slave.slave_ack_offset, slave.diff,
                       f"{speed:.2f}", state, slave.transfer_from_where))  # fmt: skip


def _print_slave(call: Call, client: HAClientInfo) -> None:
    speed = client.transferred_byte_in_second / 1024
    call.line(
        f"\n#MasterAddr\t{client.master_addr}"
        f"\n#CommitLogMaxOffset\t{client.max_offset}"
        f"\n#TransferSpeed(KB/s)\t{speed:.2f}"
        f"\n#LastReadTime\t{java.human_time(client.last_read_timestamp)}"
        f"\n#LastWriteTime\t{java.human_time(client.last_write_timestamp)}"
        f"\n#MasterFlushOffset\t{client.master_flush_offset}"
    )


async def reset_master_flush_offset(call: Call) -> None:
    """For slaves of RocketMQ 5. Ours count what they flush themselves and refuse the request."""
    offset = call.options.number("o", 0)
    await call.admin.ask(
        call.options.text("b"), RequestCode.RESET_MASTER_FLUSH_OFFSET,
        ResetMasterFlushOffsetHeader(offset), action="reset of the master's flush offset",
    )  # fmt: skip
    call.line(f"reset master flush offset to {offset} success")
