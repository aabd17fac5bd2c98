"""Brokers and name servers: what they are doing, and their settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from twinlog.admin.client import Admin, Gathered, gather
from twinlog.client.errors import AccessDeniedError, ClientError
from twinlog.client.net.answers import body_as
from twinlog.message.perm import PERM_WRITE
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import KVTable
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    GetBrokerConfigRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)
from twinlog.remoting.headers.base import Header
from twinlog.remoting.headers.namesrv import (
    AddWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
)
from twinlog.runtime.numbers import number_of

if TYPE_CHECKING:
    from twinlog.remoting.bodies.stats import BrokerStatsData


def booted_of(runtime: Mapping[str, str]) -> str:
    """When the process of these runtime statistics began, in ms; empty where it does not say."""
    return runtime.get("bootTimestamp", "")


class BrokerSummary(msgspec.Struct, frozen=True):
    """One line of the list of brokers."""

    cluster: str
    name: str
    broker_id: int
    address: str
    runtime: Mapping[str, str]
    error: str | None = None
    is_drained: bool = False  # A master that producers are told not to choose.
    is_denied: bool = False  # It answered, and access control refuses the account.

    @property
    def version(self) -> str:
        return self.runtime.get("brokerVersionDesc", "")

    @property
    def booted(self) -> str:
        return booted_of(self.runtime)

    @property
    def put_tps(self) -> float:
        return first_number(self.runtime.get("putTps", ""))

    @property
    def get_tps(self) -> float:
        return first_number(self.runtime.get("getTransferedTps", ""))

    @property
    def max_offset(self) -> int:
        return number_of(self.runtime.get("commitLogMaxOffset", "0") or 0)

    @property
    def disk_ratio(self) -> float:
        return first_number(self.runtime.get("commitLogDiskRatio", ""))


class ProducerInfo(msgspec.Struct, frozen=True):
    """One producer that is connected to a broker."""

    group: str
    client_id: str
    address: str
    language: str
    version: int
    last_update_ms: int


def first_number(text: str) -> float:
    """The first of the numbers that RocketMQ writes side by side; 0 when there is none."""
    parts = text.split()
    try:
        return float(parts[0]) if parts else 0.0
    except ValueError:
        return 0.0


async def list_brokers(
    admin: Admin, *, cluster: str | None = None, timeout_ms: int | None = None
) -> list[BrokerSummary]:
    """Every broker with its statistics; one that does not answer has its error instead."""
    info = await admin.cluster()
    answers, drained = await asyncio.gather(
        gather(info.addresses(cluster), lambda a: broker_runtime(admin, a, timeout_ms)),
        drained_brokers(admin, info.names(cluster)),
    )
    rows = []
    for name in info.names(cluster):
        broker = info.brokers[name]
        for broker_id, address in broker.broker_addrs.items():
            failure = answers.failures.get(address)
            rows.append(
                BrokerSummary(
                    cluster=broker.cluster,
                    name=name,
                    broker_id=broker_id,
                    address=address,
                    runtime=answers.values.get(address, {}),
                    error=None if failure is None else str(failure),
                    is_drained=broker_id == 0 and name in drained,
                    is_denied=isinstance(failure, AccessDeniedError),
                )
            )
    return rows


async def broker_runtime(
    admin: Admin, address: str, timeout_ms: int | None = None
) -> dict[str, str]:
    """RocketMQ's runtime statistics."""
    answer = await admin.ask(
        address, RequestCode.GET_BROKER_RUNTIME_INFO, action="runtime statistics",
        timeout_ms=timeout_ms,
    )  # fmt: skip
    return body_as(answer, KVTable).table


async def producers(admin: Admin, address: str) -> list[ProducerInfo]:
    """Every producer that one broker knows (request 328)."""
    from twinlog.remoting.bodies.clients import ProducerTableInfo  # `ha status` does without.

    answer = await admin.ask(address, RequestCode.GET_ALL_PRODUCER_INFO, action="producers")
    return [
        ProducerInfo(
            group=group,
            client_id=one.client_id,
            address=one.remote_ip.lstrip("/"),
            language=one.language,
            version=one.version,
            last_update_ms=one.last_update_timestamp,
        )
        for group, clients in body_as(answer, ProducerTableInfo).data.items()
        for one in clients
    ]


async def broker_config(admin: Admin, address: str) -> dict[str, str]:
    """All settings of a broker."""
    answer = await admin.ask(address, RequestCode.GET_BROKER_CONFIG, action="settings")
    return read_properties(answer.body)


async def broker_config_origins(
    admin: Admin, address: str
) -> tuple[dict[str, str], dict[str, str] | None]:
    """All settings of a broker, and where each that is not a default is from: file, command line,
    environment or run time. None of a broker that cannot say so."""
    answer = await admin.ask(
        address, RequestCode.GET_BROKER_CONFIG, GetBrokerConfigRequestHeader(twinlog_origins=True),
        action="settings",
    )  # fmt: skip
    text = answer.ext().get("twinlogOrigins")
    values = read_properties(answer.body)
    return values, None if text is None else dict(fastjson.loads(text.encode()))


async def update_broker_config(admin: Admin, address: str, changes: Mapping[str, str]) -> Request:
    """Change settings; the broker writes them to its file."""
    body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
    return await admin.ask(
        address, RequestCode.UPDATE_BROKER_CONFIG, None, body, action="change of settings"
    )


async def name_server_config(admin: Admin) -> Gathered[dict[str, str]]:
    async def read(address: str) -> dict[str, str]:
        answer = await admin.ask(address, RequestCode.GET_NAMESRV_CONFIG, action="settings")
        return read_properties(answer.body)

    return await gather(admin.instance.name_servers.addresses, read)


async def update_name_server_config(admin: Admin, changes: Mapping[str, str]) -> Gathered[Request]:
    body = "".join(f"{key}={value}\n" for key, value in changes.items()).encode()
    return await admin.tell_name_servers(
        RequestCode.UPDATE_NAMESRV_CONFIG, None, body, action="change of settings"
    )


def read_properties(body: bytes) -> dict[str, str]:
    """`key=value` lines as brokers send them: without escapes, so not quite a properties file."""
    lines = body.decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


async def wipe_write_permission(admin: Admin, broker_name: str) -> Gathered[int]:
    """Let no producer choose this broker; how many topics were changed, by name server."""
    return await _permission(
        admin,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        WipeWritePermOfBrokerRequestHeader(broker_name),
        "wipeTopicCount",
    )


async def add_write_permission(admin: Admin, broker_name: str) -> Gathered[int]:
    return await _permission(
        admin,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        AddWritePermOfBrokerRequestHeader(broker_name),
        "addTopicCount",
    )


async def _permission(admin: Admin, code: int, header: Header, field: str) -> Gathered[int]:
    told = await admin.tell_name_servers(code, header, action="change of the write permission")
    counts = {a: number_of(answer.ext().get(field, 0)) for a, answer in told.values.items()}
    return Gathered(counts, told.failures)


async def drained_brokers(admin: Admin, names: Iterable[str]) -> frozenset[str]:
    """Brokers that producers do not choose: their own topic's route has lost its permission."""

    async def is_drained(name: str) -> bool:
        try:
            route = await admin.route(name)  # Every broker has a topic of its name.
        except ClientError:
            return False
        own = [queue for queue in route.queue_data if queue.broker_name == name]
        return bool(own) and not any(queue.perm & PERM_WRITE for queue in own)

    chosen = sorted(set(names))
    found = await asyncio.gather(*map(is_drained, chosen))
    return frozenset(name for name, drained in zip(chosen, found, strict=True) if drained)


async def clean_unused(admin: Admin, address: str, code: int) -> Request:
    """306, 316 or 329: drop expired queues, queues of unknown topics, expired log files."""
    return await admin.ask(address, code, action="cleaning", timeout_ms=60_000)


async def broker_stats(admin: Admin, address: str, name: str, key: str) -> BrokerStatsData:
    """Counts of the last minute, hour and day (request 315)."""
    from twinlog.remoting.bodies.stats import BrokerStatsData  # Most commands need none.

    answer = await admin.ask(
        address, RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStatsDataRequestHeader(name, key),
        action="statistics",
    )  # fmt: skip
    return body_as(answer, BrokerStatsData)
