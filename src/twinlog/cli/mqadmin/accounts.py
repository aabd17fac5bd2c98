"""Verbs about accounts: those of 4.9 for `plain_acl.yml`, and those of 5.3 put on the same file.

A user of 5.3 is an account whose name is its access key; a Super user is an admin. An ACL entry is
a permission of a topic or group, `Topic:*` and `Group:*` are the defaults. Secrets are never shown.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from twinlog.admin import acl
from twinlog.admin.acl import AclAccount, AclTable
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.mqadmin import java
from twinlog.cli.mqadmin.places import all_addresses, masters, one_of_places
from twinlog.cli.mqadmin.rows import Form
from twinlog.message.hashing import jhash
from twinlog.remoting.headers.admin import CreateAccessConfigRequestHeader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinlog.cli.mqadmin.startup import Call

_HIDDEN = "******"


# 4.9


async def update_acl_config(call: Call) -> None:
    """What is not given stays as it is, but for -m: without it the account is no admin."""
    one_of_places(call)
    options = call.options
    header = CreateAccessConfigRequestHeader(
        options.text("a"), options.text("s"), options.get("w"), options.flag("m"),
        options.get("i"), options.get("u"), options.get("t"), options.get("g"),
    )  # fmt: skip
    for address in await all_addresses(call):
        await acl.change_account(call.admin, address, header)
        call.line(f"create or update plain access config to {address} success.")
    # Apache's class prints itself as Object does: a name and a number.
    number = jhash(header.access_key) & 0xFFFFFFFF
    call.line(f"org.apache.rocketmq.common.PlainAccessConfig@{number:x}")


async def delete_acl_config(call: Call) -> None:
    one_of_places(call)
    for address in await all_addresses(call):
        await acl.delete_account(call.admin, address, call.options.text("a"))
        call.line(f"delete plain access config account from {address} success.")
    call.line(f"account's accesskey is:{call.options.text('a')}")


async def update_global_white_addr(call: Call) -> None:
    one_of_places(call)
    for address in await all_addresses(call):
        await acl.put_white_addresses(call.admin, address, call.options.text("g"))
        call.line(f"update global white remote addresses to {address} success.")


_VERSION = Form("{:<16}  {:<22}  {:<22}  {:<20}  {:<22}  {:<22}")


async def cluster_acl_config_version(call: Call) -> None:
    one_of_places(call)
    is_cluster = "b" not in call.options
    if is_cluster:
        call.line(_VERSION("#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath",
                           "#AclConfigVersionNum", "#AclLastUpdateTime"))  # fmt: skip
    for address in await masters(call):
        found = await acl.acl_version(call.admin, address)
        files = json.loads(found.all_acl_file_version or "{}")
        for path, version in files.items():
            moment = java.second_time(int(version.get("timestamp", 0)))
            call.line(_VERSION(found.cluster_name, found.broker_name, found.broker_addr, path,
                               str(version.get("counter", 0)), moment))  # fmt: skip
    what = "cluster" if is_cluster else "broker"
    call.line(f"get {what}'s plain access config version success.")


async def get_acl_config(call: Call) -> None:
    one_of_places(call)
    for address in await masters(call):
        table = await acl.acl_table(call.admin, address)
        call.line()
        call.line(f"{'globalWhiteRemoteAddresses':<20}: [{', '.join(table.white_addresses)}]")
        call.line()
        call.line("accounts:")
        for account in table.accounts:
            _print_account(call, account)


def _print_account(call: Call, account: AclAccount) -> None:
    """The members in the order of Apache's class; the secret is not told."""
    entry = account.entry()
    shown = {"accessKey": entry.pop("accessKey"), "secretKey": _HIDDEN, **entry}
    for name, value in shown.items():
        if isinstance(value, list):
            value = f"[{', '.join(value)}]" if value else ""
        text = java.boolean(value) if isinstance(value, bool) else value
        call.line(f"  {name:<18}: {text}")
    call.line()


# 5.3: users


def _user_type(text: str) -> bool:
    if text.lower() not in ("super", "normal", ""):
        raise CommandError(f"-t {text}: Super or Normal are known", USAGE)
    return text.lower() == "super"


async def create_user(call: Call) -> None:
    one_of_places(call)
    options = call.options
    account = AclAccount(options.text("u"), _user_type(options.text("t")))
    for address in await all_addresses(call):
        await acl.put_account(call.admin, address, account, options.text("p"))
        call.line(f"create user to {address} success.")


async def update_user(call: Call) -> None:
    one_of_places(call)
    options = call.options
    if "s" in options and options.text("s").lower() != "enable":
        raise CommandError("plain_acl.yml has no disabled accounts", USAGE, hint="use deleteUser")
    async for address, table in _tables(call):
        account = _known(table, options.text("u"))
        if "t" in options:
            account = replace(account, is_admin=_user_type(options.text("t")))
        await acl.put_account(call.admin, address, account, options.get("p"))
        call.line(f"update user to {address} success.")


async def delete_user(call: Call) -> None:
    one_of_places(call)
    for address in await all_addresses(call):
        await acl.delete_account(call.admin, address, call.options.text("u"))
        call.line(f"delete user to {address} success.")


_USER = Form("{:<16}  {:<22}  {:<22}  {:<22}")


async def get_user(call: Call) -> None:
    await _print_users(call, call.options.get("u"), is_exact=True)


async def list_user(call: Call) -> None:
    await _print_users(call, call.options.get("f"), is_exact=False)


async def _print_users(call: Call, wanted: str | None, *, is_exact: bool) -> None:
    one_of_places(call)
    for address in await masters(call):
        table = await acl.acl_table(call.admin, address)
        names = [account.access_key for account in table.accounts]
        chosen = [n for n in names if wanted is None or n == wanted or
                  (not is_exact and wanted in n)]  # fmt: skip
        if is_exact and wanted is not None and not chosen:
            raise CommandError(f"no user {wanted!r}", NOT_FOUND)
        call.line(_USER("#UserName", "#Password", "#UserType", "#UserStatus"))
        for account in table.accounts:
            if account.access_key in chosen:
                kind = "Super" if account.is_admin else "Normal"
                call.line(_USER(account.access_key, _HIDDEN, kind, "enable"))
        if not is_exact and "c" in call.options:
            call.line(f"get user from {address} success.")


# 5.3: ACLs


async def create_acl(call: Call) -> None:
    await _change_acl(call, "create")


async def update_acl(call: Call) -> None:
    await _change_acl(call, "update")


async def delete_acl(call: Call) -> None:
    await _change_acl(call, "delete")


async def _change_acl(call: Call, word: str) -> None:
    one_of_places(call)
    if call.options.get("i"):
        raise CommandError("plain_acl.yml has no source address of a permission", USAGE)
    perm = None if word == "delete" else _permission(call)
    async for address, table in _tables(call):
        account = _known(table, _subject(call.options.text("s")))
        resources = call.options.get("r")
        if resources is None:
            account = replace(account, topics={}, groups={}, default_topic="DENY",
                              default_group="DENY")  # fmt: skip
        for resource in (resources or "").split(","):
            account = _with_resource(account, resource.strip(), perm) if resource else account
        await acl.put_account(call.admin, address, account, None)
        call.line(f"{word} acl to {address} success.")


def _permission(call: Call) -> str:
    if call.options.text("d").lower() not in ("allow", "deny"):
        raise CommandError(f"-d {call.options.text('d')}: Allow or Deny are known", USAGE)
    if call.options.text("d").lower() == "deny":
        return "DENY"
    actions = {action.strip().upper() for action in call.options.text("a").split(",")}
    if "ALL" in actions:
        actions = {"PUB", "SUB"}
    if not actions <= {"PUB", "SUB"}:
        raise CommandError(f"-a {call.options.text('a')}: plain_acl.yml knows Pub and Sub", USAGE)
    return "|".join(sorted(actions))


def _subject(text: str) -> str:
    kind, separator, name = text.partition(":")
    if separator and kind.lower() != "user":
        raise CommandError(f"-s {text}: write User:NAME", USAGE)
    return name if separator else text


def _with_resource(account: AclAccount, resource: str, perm: str | None) -> AclAccount:
    kind, _, name = resource.partition(":")
    if kind.lower() not in ("topic", "group") or not name:
        raise CommandError(f"-r {resource}: write Topic:NAME or Group:NAME", USAGE)
    is_topic = kind.lower() == "topic"
    if name == "*":
        default = perm or "DENY"
        if is_topic:
            return replace(account, default_topic=default)
        return replace(account, default_group=default)
    change = {name: perm}
    return acl.changed(account, topics=change) if is_topic else acl.changed(account, groups=change)


_ACL = Form("{:<16}  {:<10}  {:<22}  {:<20}  {:<24}  {:<10}")


async def get_acl(call: Call) -> None:
    await _print_acls(call)


async def list_acl(call: Call) -> None:
    await _print_acls(call)


async def _print_acls(call: Call) -> None:
    one_of_places(call)
    subject = call.options.get("s")
    wanted = None if subject is None else _subject(subject)
    resource = call.options.get("r")
    for address in await masters(call):
        table = await acl.acl_table(call.admin, address)
        call.line(_ACL("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp",
                       "#Decision"))  # fmt: skip
        for account in table.accounts:
            if wanted in (None, account.access_key):
                for name, perm in _entries(account):
                    if resource in (None, name):
                        _print_acl(call, account, name, perm)


def _entries(account: AclAccount) -> list[tuple[str, str]]:
    return [
        ("Topic:*", account.default_topic), ("Group:*", account.default_group),
        *((f"Topic:{name}", perm) for name, perm in account.topics.items()),
        *((f"Group:{name}", perm) for name, perm in account.groups.items()),
    ]  # fmt: skip


def _print_acl(call: Call, account: AclAccount, name: str, perm: str) -> None:
    is_denied = perm == "DENY"
    actions = "All" if is_denied else ", ".join(part.title() for part in perm.split("|"))
    policy = "Default" if name.endswith(":*") else "Custom"
    source = f"[{account.white_address}]" if account.white_address else "null"
    call.line(_ACL(f"User:{account.access_key}", policy, name, f"[{actions}]", source,
                   "Deny" if is_denied else "Allow"))  # fmt: skip


# Both


async def _tables(call: Call) -> AsyncIterator[tuple[str, AclTable]]:
    for address in await all_addresses(call):
        yield address, await acl.acl_table(call.admin, address)


def _known(table: AclTable, access_key: str) -> AclAccount:
    account = table.find(access_key)
    if account is None:
        raise CommandError(f"no account {access_key!r}", NOT_FOUND if table.accounts else FAILED)
    return account
