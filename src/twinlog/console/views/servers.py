"""Connections, configuration, access rules, what waits in brokers, the failover lab."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from twinlog.admin import acl, brokers, clients, pending, rules
from twinlog.admin.client import gather
from twinlog.client.errors import ClientError, TopicNotFoundError, TransportError
from twinlog.console.access import Role
from twinlog.console.operations import (
    BadParameters,
    Context,
    Done,
    Lab,
    LabNode,
    Nothing,
    Operation,
    Preview,
    Refused,
)
from twinlog.console.versions import Version, check_version, version_of
from twinlog.console.views.lists import done_on, missing_of
from twinlog.console.views.messages import MessageRow, row_of
from twinlog.remoting.headers.admin import CreateAccessConfigRequestHeader
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.config_format import ConfigValueError
from twinlog.runtime.config_key import Declaration, Effect, fixed_reason, spellings


class ConnectionRow(Struct, frozen=True):
    kind: str
    group: str
    client_id: str
    address: str
    language: str
    version: str


class Connections(Struct, frozen=True):
    connections: list[ConnectionRow]
    missing: list[str]


async def list_connections(context: Context, _: Nothing) -> Connections:
    found = await clients.connections(context.admin)
    rows = [
        ConnectionRow(c.kind, c.group, c.client_id, c.address, c.language, c.version)
        for c in found.values[""]
    ]
    return Connections(rows, missing_of(found))


# Configuration


class ConfigParams(Struct, frozen=True):
    broker: str = ""
    search: str = ""
    only: Literal["", "set", "live"] = ""


class ConfigRow(Struct, frozen=True, kw_only=True):
    """One key. `effect`: live, restart, none or refused; `origin`: default, file, command line,
    environment or run time, and of a broker that does not say, default or set."""

    key: str
    value: str
    default: str
    effect: str
    origin: str
    text: str
    values: str
    reason: str
    version: str


class Configuration(Struct, frozen=True):
    broker: str
    brokers: list[dict[str, str]]
    rows: list[ConfigRow]
    missing: list[str] = []


class SetConfig(Struct, frozen=True):
    broker: str
    key: str
    value: str
    version: Version | None = None


async def configuration(context: Context, params: ConfigParams) -> Configuration:
    info = await context.admin.cluster()
    known = [
        {"address": address, "name": f"{name}:{number}"}
        for name in info.names()
        for number, address in sorted(info.brokers[name].broker_addrs.items())
    ]
    if not known:
        return Configuration("", [], [])
    addresses = [entry["address"] for entry in known]
    answering = [a for a in addresses if a not in context.watcher.silent]
    address = params.broker or (answering or addresses)[0]
    _check_address(address, addresses)
    try:
        values, origins = await brokers.broker_config_origins(context.admin, address)
    except TransportError as error:  # The others can still be chosen.
        return Configuration(address, known, [], [f"{address}: {error}"])
    rows = [config_row(key, value, origins) for key, value in sorted(values.items())]
    wanted = params.search.lower()
    chosen = [
        row
        for row in rows
        if (wanted in row.key.lower() or wanted in row.text.lower())
        and (params.only != "set" or row.origin != "default")
        and (params.only != "live" or row.effect == "live")
    ]
    return Configuration(address, known, chosen)


def _check_address(address: str, known: list[str]) -> None:
    """Only brokers of this cluster are asked, whatever somebody types."""
    if address not in known:
        raise Refused(f"{address} is not a broker of this cluster", 404)


def config_row(key: str, value: str, origins: Mapping[str, str] | None = None) -> ConfigRow:
    """What is declared about a key, besides its value. A secret is never shown."""
    is_secret = any(word in key.lower() for word in ("secret", "password"))
    shown = "•••" if is_secret and value else value
    declared = spellings(BrokerConfig).get(key)
    if declared is None:
        return ConfigRow(
            key=key, value=shown, default="", effect="unknown", origin="set", text="", values="",
            reason="", version=version_of([value]),
        )  # fmt: skip
    effects = {
        Effect.USED: "live" if declared.says.is_live else "restart",
        Effect.NO_EFFECT: "none",
        Effect.REFUSED: "refused",
    }
    told = None if origins is None else origins.get(declared.key, "default")
    return ConfigRow(
        key=key,
        value=shown,
        default=declared.default_text,
        effect=effects[declared.says.effect],
        origin=told or _origin(declared, value),
        text=declared.says.text,
        values=declared.values,
        reason=declared.says.reason,
        version=version_of([value]),
    )


def _origin(declared: Declaration, value: str) -> str:
    """Of a broker that does not tell: whether it has the default."""
    try:
        is_default = declared.convert(value) == declared.default
    except ConfigValueError:
        is_default = False
    return "default" if is_default or (value == "" and not declared.default) else "set"


async def set_config(context: Context, params: SetConfig) -> Done:
    _check_address(params.broker, (await context.admin.cluster()).addresses())
    declared = spellings(BrokerConfig).get(params.key)
    if declared is None or not declared.says.is_live:
        raise Refused(fixed_reason(BrokerConfig, "broker", params.key))
    try:
        declared.convert(params.value)
    except ConfigValueError as error:
        raise BadParameters(str(error)) from error
    if params.version is not None:
        now = (await brokers.broker_config(context.admin, params.broker)).get(params.key, "")
        check_version(params.version, [now], f"{params.key} of {params.broker}", repr(now))
    await brokers.update_broker_config(context.admin, params.broker, {params.key: params.value})
    return Done(f"{params.key}={params.value} on {params.broker}")


async def preview_config(context: Context, params: SetConfig) -> Preview:
    _check_address(params.broker, (await context.admin.cluster()).addresses())
    declared = spellings(BrokerConfig).get(params.key)
    if declared is None or not declared.says.is_live:
        return Preview(refusal=fixed_reason(BrokerConfig, "broker", params.key))
    before = (await brokers.broker_config(context.admin, params.broker)).get(params.key, "")
    return Preview(
        [f"{params.key} changes from {before!r} to {params.value!r} at once, and in its file."]
    )


# Access rules


class RulesRow(Struct, frozen=True):
    broker: str
    counter: int | None
    changed_ms: int | None
    error: str


class AccountRow(Struct, frozen=True, kw_only=True):
    """An account as `brokers` have it; where they differ there are several rows. No secret."""

    access_key: str
    is_admin: bool
    default_topic: str
    default_group: str
    white_address: str
    topics: dict[str, str]
    groups: dict[str, str]
    brokers: list[str]
    version: str = ""


class Rules(Struct, frozen=True):
    brokers: list[RulesRow]
    is_enabled: bool
    accounts: list[AccountRow] = []


class AccountParams(Struct, frozen=True):
    """What is absent stays as it is; `-` empties addresses and lists of permissions."""

    access_key: str
    secret_key: str | None = None
    admin: bool | None = None
    white_remote_address: str | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None
    version: Version | None = None


class DeleteAccount(Struct, frozen=True):
    access_key: str


async def show_rules(context: Context, _: Nothing) -> Rules:
    found = await rules.rules_versions(context.admin)
    rows = [RulesRow(a, v.counter, v.changed_ms, "") for a, v in found.values.items()]
    rows += [RulesRow(a, None, None, str(error)) for a, error in found.failures.items()]
    tables = await gather(found.values, lambda address: acl.acl_table(context.admin, address))
    accounts = account_rows(tables.values)
    return Rules(sorted(rows, key=lambda row: row.broker), bool(found.values), accounts)


def account_rows(tables: Mapping[str, acl.AclTable]) -> list[AccountRow]:
    """The accounts of all brokers: one row where they agree."""
    alike: list[tuple[acl.AclAccount, list[str]]] = []
    for address, table in sorted(tables.items()):
        for account in table.accounts:
            known = next((brokers for other, brokers in alike if other == account), None)
            if known is None:
                alike.append((account, [address]))
            else:
                known.append(address)
    return [
        AccountRow(
            access_key=account.access_key, is_admin=account.is_admin,
            default_topic=account.default_topic, default_group=account.default_group,
            white_address=account.white_address, topics=dict(account.topics),
            groups=dict(account.groups), brokers=brokers,
            version=account_version(tables, account.access_key),
        )
        for account, brokers in sorted(alike, key=lambda pair: (pair[0].access_key, pair[1]))
    ]  # fmt: skip


def account_version(tables: Mapping[str, acl.AclTable], access_key: str) -> str:
    """Over all brokers; a secret that was changed is not seen."""
    return version_of(_entries(tables, access_key))


def _entries(tables: Mapping[str, acl.AclTable], access_key: str) -> dict[str, Any]:
    found = {address: table.find(access_key) for address, table in tables.items()}
    return {address: account.entry() for address, account in found.items() if account}


async def put_account(context: Context, params: AccountParams) -> Done:
    if params.version is not None:
        addresses = (await context.admin.cluster()).addresses()
        tables = await gather(addresses, lambda address: acl.acl_table(context.admin, address))
        now = _entries(tables.values, params.access_key)
        check_version(params.version, now, f"account {params.access_key}")
    header = CreateAccessConfigRequestHeader(
        access_key=params.access_key,
        secret_key=params.secret_key,
        white_remote_address=_or_empty(params.white_remote_address),
        admin=params.admin,
        default_topic_perm=params.default_topic_perm,
        default_group_perm=params.default_group_perm,
        topic_perms=_or_empty(params.topic_perms),
        group_perms=_or_empty(params.group_perms),
    )
    found = await rules.update_account(context.admin, header)
    return done_on(found, f"account {params.access_key} is")


def _or_empty(text: str | None) -> str | None:
    return "" if text == "-" else text


async def remove_account(context: Context, params: DeleteAccount) -> Done:
    found = await rules.delete_account(context.admin, params.access_key)
    return done_on(found, f"account {params.access_key} is deleted")


# What waits


class PendingRow(Struct, frozen=True):
    message: MessageRow
    producer_group: str
    checks: int
    born_ms: int


class Transactions(Struct, frozen=True):
    messages: list[PendingRow]
    is_cut: bool


class LevelRow(Struct, frozen=True):
    broker: str
    level: int
    delay: str
    waiting: int
    delivered: int
    end: int


class Delayed(Struct, frozen=True):
    levels: list[LevelRow]
    messages: list[MessageRow]
    missing: list[str]


async def transactions(context: Context, _: Nothing) -> Transactions:
    try:
        found = await pending.pending_transactions(context.admin)
    except TopicNotFoundError:
        return Transactions([], False)
    rows = []
    for entry in found:
        for message in entry.messages:
            message.show_topic(message.properties.get("REAL_TOPIC"))
            rows.append(
                PendingRow(
                    row_of(message),
                    message.properties.get("PGROUP", ""),
                    int(
                        brokers.first_number(message.properties.get("TRANSACTION_CHECK_TIMES", ""))
                    ),
                    message.born_timestamp,
                )
            )
    return Transactions(rows, any(entry.is_cut for entry in found))


async def delayed(context: Context, _: Nothing) -> Delayed:
    try:
        found = await pending.delay_levels(context.admin)
    except TopicNotFoundError:
        return Delayed([], [], [])
    levels = [level for answer in found.values.values() for level in answer]
    waiting = [level for level in levels if level.waiting]
    parts = await asyncio.gather(*(_waiting_messages(context, level) for level in waiting[:20]))
    rows = [
        LevelRow(level.broker, level.level, level.delay, level.waiting, level.delivered, level.end)
        for level in levels
    ]
    return Delayed(rows, [row for part in parts for row in part], missing_of(found))


async def _waiting_messages(context: Context, level: pending.DelayLevel) -> list[MessageRow]:
    try:
        found = await pending.delayed_messages(
            context.admin, level.broker, level.level, level.delivered
        )
    except ClientError:
        return []
    for message in found:
        message.show_topic(message.properties.get("REAL_TOPIC"))
    return [row_of(message) for message in found]


# The failover lab


class LabView(Struct, frozen=True):
    nodes: list[LabNode]


class LabParams(Struct, frozen=True):
    node: str


def _lab(context: Context) -> Lab:
    if context.lab is None:
        raise Refused("the failover lab is there only with `twinlog up`", 404)
    return context.lab


async def lab(context: Context, _: Nothing) -> LabView:
    return LabView(_lab(context).nodes())


async def lab_kill(context: Context, params: LabParams) -> Done:
    _lab(context).kill(params.node)
    return Done(f"SIGKILL went to {params.node}")


async def lab_stop(context: Context, params: LabParams) -> Done:
    _lab(context).stop(params.node)
    return Done(f"{params.node} is stopped (SIGSTOP)")


async def lab_resume(context: Context, params: LabParams) -> Done:
    _lab(context).resume(params.node)
    return Done(f"{params.node} continues (SIGCONT)")


async def lab_start(context: Context, params: LabParams) -> Done:
    await _lab(context).start(params.node)
    return Done(f"{params.node} runs again")


# The audit log


class AuditParams(Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 200


class Audit(Struct, frozen=True):
    lines: list[dict[str, str]]


async def audit(context: Context, params: AuditParams) -> Audit:
    return Audit(list(context.audit_lines)[-params.limit :][::-1])


OPERATIONS = [
    Operation(
        name="connections", method="GET", path="/connections", run=list_connections,
        result=Connections, summary="Producers and consumers that are connected now.",
    ),
    Operation(
        name="configuration", method="GET", path="/configuration", run=configuration,
        params=ConfigParams, result=Configuration,
        summary="The settings of a broker, with the effect and origin of each.",
    ),
    Operation(
        name="configuration.set", method="POST", path="/configuration", run=set_config,
        params=SetConfig, role=Role.ADMIN, preview=preview_config, asks=True,
        summary="Change a setting of a running broker.",
    ),
    Operation(
        name="rules", method="GET", path="/rules", run=show_rules, result=Rules,
        summary="Accounts without their secrets, and which brokers have access rules.",
    ),
    Operation(
        name="rules.put", method="POST", path="/rules", run=put_account, params=AccountParams,
        role=Role.ADMIN, summary="Create an account on every broker, or change it.",
    ),
    Operation(
        name="rules.delete", method="DELETE", path="/rules/{access_key}", run=remove_account,
        params=DeleteAccount, role=Role.ADMIN, asks=True,
        summary="Delete an account on every broker.",
    ),
    Operation(
        name="transactions", method="GET", path="/transactions", run=transactions,
        result=Transactions, summary="Half messages that nobody committed or rolled back yet.",
    ),
    Operation(
        name="delayed", method="GET", path="/delayed", run=delayed, result=Delayed,
        summary="Delayed messages that wait, by level.",
    ),
    Operation(
        name="lab", method="GET", path="/lab", run=lab, result=LabView,
        summary="The processes of the local cluster.",
    ),
    Operation(
        name="lab.kill", method="POST", path="/lab/{node}/kill", run=lab_kill, params=LabParams,
        role=Role.ADMIN, asks=True, summary="Kill a process (SIGKILL), as a crash would.",
    ),
    Operation(
        name="lab.stop", method="POST", path="/lab/{node}/stop", run=lab_stop, params=LabParams,
        role=Role.ADMIN, summary="Stop a process (SIGSTOP), as a frozen machine would.",
    ),
    Operation(
        name="lab.resume", method="POST", path="/lab/{node}/resume", run=lab_resume,
        params=LabParams, role=Role.ADMIN, summary="Let a stopped process continue (SIGCONT).",
    ),
    Operation(
        name="lab.start", method="POST", path="/lab/{node}/start", run=lab_start,
        params=LabParams, role=Role.ADMIN, summary="Start a process that is down.",
    ),
    Operation(
        name="audit", method="GET", path="/audit", run=audit, params=AuditParams, result=Audit,
        role=Role.VIEWER, summary="What was changed through this console since it started.",
    ),
]  # fmt: skip
