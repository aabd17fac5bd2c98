"""Verbs about controllers and the groups that they decide about: RocketMQ 5.3's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.admin import failover
from twinlog.admin.brokers import read_properties
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.brokers import repeat
from twinlog.client.net.answers import body_as
from twinlog.remoting import fastjson
from twinlog.remoting.addresses import split_addresses
from twinlog.remoting.bodies.controller import (
    BrokerReplicasInfo,
    EpochEntryCache,
    ReplicaIdentity,
    ReplicasInfo,
)
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers import controller as headers
from twinlog.runtime.numbers import number_or_none

if TYPE_CHECKING:
    from twinlog.cli.mqadmin.startup import Call

_ID_MAX = 2**63 - 1


async def _leader(call: Call) -> str:
    """The controller of -a says who leads; as Apache's, the first address is asked."""
    given = split_addresses(call.options.text("a"))
    if not given:
        raise CommandError("-a (controllerAddress) is empty", USAGE)
    return await failover.leader(call.admin, given)


async def get_controller_meta_data(call: Call) -> None:
    address = (split_addresses(call.options.text("a")) or [""])[0]
    found = await failover.metadata(call.admin, address)
    call.line()
    call.line(f"#ControllerGroup\t{_text(found.group)}")
    call.line(f"#ControllerLeaderId\t{_text(found.leader_id)}")
    call.line(f"#ControllerLeaderAddress\t{_text(found.leader_address)}")
    for peer in found.peers:
        call.line(f"#Peer:\t{peer}")


def _text(value: object) -> str:
    return "null" if value in (None, "") else str(value)


async def get_controller_config(call: Call) -> None:
    for address in split_addresses(call.options.text("a")):
        answer = await call.admin.ask(
            address, RequestCode.GET_CONTROLLER_CONFIG, action="settings of the controller"
        )
        call.line(f"============{address}============")
        for key, value in read_properties(answer.body).items():
            call.line(f"{key:<50}=  {value}")


async def update_controller_config(call: Call) -> None:
    key, value = call.options.text("k"), call.options.text("v")
    addresses = split_addresses(call.options.text("a"))
    for address in addresses:
        await call.admin.ask(
            address, RequestCode.UPDATE_CONTROLLER_CONFIG, None, f"{key}={value}\n".encode(),
            action="change of settings",
        )  # fmt: skip
    call.line(f"update controller config success![{', '.join(addresses)}]")
    call.line(f"{key} : {value}")


async def get_sync_state_set(call: Call) -> None:
    if "b" not in call.options and "c" not in call.options:
        raise CommandError("give -b (brokerName) or -c (clusterName)", USAGE)
    await repeat(call, _sync_state_set)


async def _sync_state_set(call: Call) -> None:
    name = call.options.get("b")
    names = [name] if name is not None else await _names_of_cluster(call)
    leader = await _leader(call)
    answer = await call.admin.ask(
        leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, fastjson.dumps(names),
        action="in-sync replicas",
    )  # fmt: skip
    table = body_as(answer, BrokerReplicasInfo).replicas_info_table
    if name is not None and name not in table:
        raise CommandError(f"the controller knows no broker {name!r}", NOT_FOUND)
    for broker_name in java.hash_order(table):
        _print_replicas(call, broker_name, table[broker_name])


async def _names_of_cluster(call: Call) -> list[str]:
    return java.hash_order((await call.admin.cluster()).names(call.options.text("c")))


def _print_replicas(call: Call, name: str, info: ReplicasInfo) -> None:
    members, others = info.in_sync_replicas, info.not_in_sync_replicas
    call.line()
    call.line(f"#brokerName\t{name}")
    call.line(f"#MasterBrokerId\t{_text(info.master_broker_id)}")
    call.line(f"#MasterAddr\t{_text(info.master_address)}")
    call.line(f"#MasterEpoch\t{info.master_epoch}")
    call.line(f"#SyncStateSetEpoch\t{info.sync_state_set_epoch}")
    call.line(f"#SyncStateSetNums\t{len(members)}")
    for title, replicas in (("InSyncReplica", members), ("NotInSyncReplica", others)):
        for replica in replicas:
            call.line()
            call.line(f"{title}:\t{_identity(replica)}")


def _identity(replica: ReplicaIdentity) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{replica.broker_name}',"
        f" brokerId={replica.broker_id},"
        f" brokerAddress='{replica.broker_address}',"
        f" alive={java.boolean(replica.alive)}}}"
    )


async def get_broker_epoch(call: Call) -> None:
    if "b" not in call.options and "c" not in call.options:
        raise CommandError("give -b (brokerName) or -c (clusterName)", USAGE)
    await repeat(call, _broker_epoch)


async def _broker_epoch(call: Call) -> None:
    info = await call.admin.cluster()
    name = call.options.get("b")
    if name is not None and name not in info.brokers:
        raise CommandError(f"no broker {name!r}", NOT_FOUND)
    if name is not None:
        addresses = list(info.brokers[name].broker_addrs.values())
    else:
        addresses = info.addresses(call.options.text("c"))
    for address in java.hash_order(addresses):
        answer = await call.admin.ask(
            address, RequestCode.GET_BROKER_EPOCH_CACHE, action="epochs of the broker"
        )
        _print_epochs(call, address, body_as(answer, EpochEntryCache))


def _print_epochs(call: Call, address: str, cache: EpochEntryCache) -> None:
    call.line()
    call.line(f"#clusterName\t{cache.cluster_name}")
    call.line(f"#brokerName\t{cache.broker_name}")
    call.line(f"#brokerAddr\t{address}")
    call.line(f"#brokerId\t{cache.broker_id}")
    if cache.epoch_list:
        cache.epoch_list[-1].end_offset = cache.max_offset
    for entry in cache.epoch_list:
        call.line(
            f"#Epoch: EpochEntry{{epoch={entry.epoch},"
            f" startOffset={entry.start_offset}, endOffset={entry.end_offset}}}"
        )


async def elect_master(call: Call) -> None:
    cluster, name = call.options.text("c"), call.options.text("bn")
    wanted = number_or_none(call.options.text("b"), 0, _ID_MAX)
    if wanted is None:
        raise CommandError(f"-b {call.options.text('b')}: not the id of a broker", USAGE)
    header = headers.ElectMasterRequestHeader(cluster, name, wanted, designate_elect=True)
    answer = await call.admin.ask(
        await _leader(call), RequestCode.CONTROLLER_ELECT_MASTER, header, action="election",
        timeout_ms=failover.SWITCH_TIMEOUT_MS,
    )  # fmt: skip
    master = answer.header(headers.MasterResponseHeader)
    call.line()
    call.line(f"#ClusterName\t{cluster}")
    call.line(f"#BrokerName\t{name}")
    call.line(f"#BrokerMasterAddr\t{_text(master.master_address)}")
    call.line(f"#MasterEpoch\t{_text(master.master_epoch)}")
    call.line(f"#SyncStateSetEpoch\t{_text(master.sync_state_set_epoch)}")


async def clean_broker_metadata(call: Call) -> None:
    name, ids = call.options.text("bn"), call.options.get("b")
    is_living = "l" in call.options
    if ids is not None and any(number_or_none(n, 0, _ID_MAX) is None for n in ids.split(";")):
        raise CommandError(f"-b {ids}: expected ids, for instance 1;2;3", USAGE)
    if not is_living and not call.options.get("c"):
        raise CommandError("give -c (clusterName), or -l for living brokers", USAGE)
    header = headers.CleanBrokerDataRequestHeader(call.options.get("c"), name, ids, is_living)
    await call.admin.ask(
        await _leader(call), RequestCode.CLEAN_BROKER_DATA, header, action="removal"
    )
    call.line(f"clear broker {name} metadata from controller success! ")
