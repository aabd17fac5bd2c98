"""`twinlog acl ...`: accounts of brokers with `aclEnable=true`, on every broker of a cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import cluster_report, once_options
from twinlog.cli.admin.session import Session, call, confirm, missing_of, show
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup, nearest
from twinlog.cli.output import Column, Report, Table

if TYPE_CHECKING:
    from twinlog.admin.acl import AclAccount, AclTable
    from twinlog.admin.client import Admin, Gathered

_COLUMNS = [
    Column("access_key", "ACCOUNT"),
    Column("admin"),
    Column("default_topic", "TOPICS"),
    Column("default_group", "GROUPS"),
    Column("topics", "OF TOPICS"),
    Column("groups", "OF GROUPS"),
    Column("white_address", "FREE FROM"),
    Column("brokers", is_right=True),
]
_PERMISSIONS = ("DENY", "PUB", "SUB", "PUB|SUB")
_SECRET_BYTES = 24


@click.group(cls=LazyGroup, short_help="Manage accounts and their permissions.")
def acl() -> None:
    """Manage the accounts of brokers with aclEnable=true. A change goes to every broker.

    Permissions are DENY, PUB, SUB or PUB|SUB. Other topics and groups get the
    default of the account, which is DENY unless it is given.
    """


async def _tables(admin: Admin) -> Gathered[AclTable]:
    from twinlog.admin.acl import acl_table
    from twinlog.admin.client import gather

    found = await gather(
        (await admin.cluster()).addresses(), lambda address: acl_table(admin, address)
    )
    found.any_or_raise()
    return found


def _row(account: AclAccount, brokers: int) -> dict[str, Any]:
    return {
        "access_key": account.access_key,
        "admin": account.is_admin,
        "default_topic": account.default_topic,
        "default_group": account.default_group,
        "topics": [f"{name}={perm}" for name, perm in account.topics.items()],
        "groups": [f"{name}={perm}" for name, perm in account.groups.items()],
        "white_address": account.white_address,
        "brokers": brokers,
    }


@acl.command("list", epilog="Example: twinlog acl list -o json")
@cluster_report
async def list_command(admin: Admin) -> Report:
    """List all accounts without their secrets, and count the brokers that agree."""
    found = await _tables(admin)
    counted: dict[tuple[str, str], list[AclAccount]] = {}
    for table in found.values.values():
        for account in table.accounts:
            counted.setdefault((account.access_key, repr(account)), []).append(account)
    rows = [_row(same[0], len(same)) for _, same in sorted(counted.items())]
    names = [row["access_key"] for row in rows]
    twice = sorted({name for name in names if names.count(name) > 1})
    white = sorted({a for table in found.values.values() for a in table.white_addresses})
    notes = [f"{name} is not the same on all brokers" for name in twice]
    if white:
        notes.append(f"needs no account: {', '.join(white)}")
    return Report([Table(_COLUMNS, rows, empty="no accounts")], missing=missing_of(found),
                  notes=notes)  # fmt: skip


# Changes


def _pairs(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> Any:
    pairs: dict[str, str | None] = {}
    for text in given:
        name, separator, perm = text.partition("=")
        if not separator or not name or (perm and perm.upper() not in _PERMISSIONS):
            raise click.BadParameter(f"{text!r}: write NAME=DENY, PUB, SUB or PUB|SUB")
        pairs[name] = perm.upper() or None
    return pairs


def _account_options(command: Callable[..., Any]) -> Callable[..., Any]:
    perm = click.Choice(_PERMISSIONS, case_sensitive=False)
    for option in reversed([
        click.argument("account_name", metavar="ACCOUNT"),
        click.option("--secret", metavar="KEY", help="The secret key, longer than 6 characters."),
        click.option("--admin/--no-admin", "is_admin", default=None,
                     help="Whether it may administer the cluster and use everything."),
        click.option("--default-topic", type=perm, metavar="PERM",
                     help="Permission for other topics."),
        click.option("--default-group", type=perm, metavar="PERM",
                     help="Permission for other groups."),
        click.option("--topic", "topics", multiple=True, callback=_pairs, metavar="NAME=PERM",
                     help="Permission for one topic; `NAME=` removes it. Repeatable."),
        click.option("--group", "groups", multiple=True, callback=_pairs, metavar="NAME=PERM",
                     help="Permission for one group; `NAME=` removes it. Repeatable."),
        click.option("--white-address", metavar="PATTERN",
                     help="Requests from these addresses are not checked at all."),
    ]):  # fmt: skip
        command = option(command)
    return command


@acl.command("add", epilog="Example: twinlog acl add billing-app --topic 'orders=PUB|SUB' "
             "--group billing=SUB")  # fmt: skip
@_account_options
@once_options
def add(session: Session, account_name: str, secret: str | None, **values: Any) -> int:
    """Add an account. Without --secret, a secret is generated and shown once."""
    made = secret or secrets.token_urlsafe(_SECRET_BYTES)

    async def action(admin: Admin) -> Report:
        from twinlog.admin.acl import AclAccount

        found = await _tables(admin)
        if any(table.find(account_name) for table in found.values.values()):
            raise CommandError(f"account {account_name!r} already exists", FAILED,
                               hint="use: twinlog acl update")  # fmt: skip
        account = _changed(AclAccount(account_name), **values)
        return await _put(admin, dict.fromkeys(found.values, account), made)

    report = call(session, action)
    if secret is None:
        report.notes.append(f"secret key, shown only now: {made}")
    return show(session, report)


@acl.command("update", epilog="Example: twinlog acl update billing-app --topic refunds=PUB")
@_account_options
@once_options
def update(session: Session, account_name: str, secret: str | None, **values: Any) -> int:
    """Change an account. What is not given stays as it is."""
    if secret is None and not any(value not in (None, {}) for value in values.values()):
        raise CommandError("nothing to change was given", USAGE, hint="see: twinlog acl update -h")

    async def action(admin: Admin) -> Report:
        found = await _tables(admin)
        accounts = {
            address: _changed(known, **values)
            for address, table in found.values.items()
            if (known := table.find(account_name)) is not None
        }
        if not accounts:
            raise _unknown(account_name, found)
        return await _put(admin, accounts, secret)

    return show(session, call(session, action))


def _changed(
    account: AclAccount,
    *,
    is_admin: bool | None,
    default_topic: str | None,
    default_group: str | None,
    topics: dict[str, str | None],
    groups: dict[str, str | None],
    white_address: str | None,
) -> AclAccount:
    from twinlog.admin.acl import changed

    account = changed(account, topics=topics, groups=groups)
    return replace(
        account,
        is_admin=account.is_admin if is_admin is None else is_admin,
        default_topic=default_topic or account.default_topic,
        default_group=default_group or account.default_group,
        white_address=account.white_address if white_address is None else white_address,
    )


async def _put(admin: Admin, accounts: dict[str, AclAccount], secret: str | None) -> Report:
    from twinlog.admin.acl import put_account
    from twinlog.admin.client import gather

    done = await gather(accounts, lambda a: put_account(admin, a, accounts[a], secret))
    done.any_or_raise()
    (first, *_) = done.values
    row = _row(accounts[first], len(done.values))
    return Report([Table(_COLUMNS, [row])], missing=missing_of(done))


@acl.command("remove", epilog="Example: twinlog acl remove billing-app --yes")
@click.argument("account_name", metavar="ACCOUNT")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@once_options
def remove(session: Session, account_name: str, is_sure: bool) -> int:
    """Remove an account. Clients that use it are refused at once."""
    confirm(f"remove account {account_name}?", is_sure)

    async def action(admin: Admin) -> Report:
        from twinlog.admin.acl import delete_account
        from twinlog.admin.client import gather

        found = await _tables(admin)
        holders = [address for address, table in found.values.items() if table.find(account_name)]
        if not holders:
            raise _unknown(account_name, found)
        done = await gather(holders, lambda a: delete_account(admin, a, account_name))
        done.any_or_raise()
        rows = [{"access_key": account_name, "broker": address} for address in done.values]
        columns = [Column("access_key", "REMOVED"), Column("broker")]
        return Report([Table(columns, rows)], missing=missing_of(done))

    return show(session, call(session, action))


def _unknown(access_key: str, found: Gathered[AclTable]) -> CommandError:
    known = sorted({a.access_key for table in found.values.values() for a in table.accounts})
    hint = nearest(access_key, known) or "see: twinlog acl list"
    return CommandError(f"no account {access_key!r}", NOT_FOUND, hint=hint)


# Asking


@acl.command("test", epilog="Example: twinlog acl test billing-app --pub orders --consume billing")
@click.argument("account_name", metavar="ACCOUNT")
@click.option("--pub", "publishes", multiple=True, metavar="TOPIC",
              help="Ask whether it may send to this topic.")  # fmt: skip
@click.option("--sub", "subscribes", multiple=True, metavar="TOPIC",
              help="Ask whether it may read this topic.")  # fmt: skip
@click.option("--consume", "groups", multiple=True, metavar="GROUP",
              help="Ask whether it may be a member of this group.")  # fmt: skip
@click.option(
    "--admin", "is_admin", is_flag=True, help="Ask whether it may administer the cluster."
)
@click.option("--from", "remote", default="", metavar="IP", help="Assume a client at this address.")
@once_options
def test(session: Session, account_name: str, **values: Any) -> int:
    """Say what the rules allow, without trying it. Exit code 0: every broker allows it; else 1."""
    if not any(values[name] for name in ("publishes", "subscribes", "groups", "is_admin")):
        raise CommandError("nothing to test was given", USAGE, hint="add --pub, --sub or --consume")

    async def action(admin: Admin) -> Report:
        found = await _tables(admin)
        rows = [
            {"broker": address, **row}
            for address, table in found.values.items()
            for row in _verdicts(table, account_name, **values)
        ]
        columns = [Column("broker"), Column("asked"), Column("allowed"), Column("why")]
        return Report([Table(columns, rows)], missing=missing_of(found))

    report = call(session, action)
    code = show(session, report)
    return code or (0 if all(row["allowed"] for row in report.tables[0].rows) else FAILED)


def _verdicts(
    table: AclTable,
    access_key: str,
    *,
    publishes: tuple[str, ...],
    subscribes: tuple[str, ...],
    groups: tuple[str, ...],
    is_admin: bool,
    remote: str,
) -> list[dict[str, Any]]:
    """By the very rules of the broker; its secrets are not needed for that."""
    from twinlog.message.names import RETRY_PREFIX
    from twinlog.remoting.acl import Permission, Resource

    wanted = [
        *((f"send to {name}", Resource(name, Permission.PUB)) for name in publishes),
        *((f"read {name}", Resource(name, Permission.SUB)) for name in subscribes),
        *((f"be in {name}", Resource(RETRY_PREFIX + name, Permission.SUB)) for name in groups),
    ]
    asked = [(text, resource) for text, resource in wanted]
    rows = [_verdict(table, access_key, remote, text, resource) for text, resource in asked]
    if is_admin:
        rows.append(_verdict(table, access_key, remote, "administer", None))
    return rows


def _verdict(
    table: AclTable, access_key: str, remote: str, text: str, resource: Any
) -> dict[str, Any]:
    from twinlog.remoting.acl import AccessDenied, address_pattern, parse_rules

    known = table.find(access_key)
    if any(address_pattern(white, "white addresses")(remote) for white in table.white_addresses):
        return {"asked": text, "allowed": True, "why": f"{remote} needs no account"}
    if known is None:
        return {"asked": text, "allowed": False, "why": f"No acl config for {access_key}"}
    if known.white_address and address_pattern(known.white_address, access_key)(remote):
        return {
            "asked": text,
            "allowed": True,
            "why": f"{remote} is on the white list of this account",
        }
    entry = {**known.entry(), "secretKey": "not needed here"}
    account = parse_rules({"accounts": [entry]}, source="the broker").accounts[access_key]
    try:
        if resource is None:
            account.check_standing(0, needs_admin=True)
        else:
            account.check_resources([resource])
    except AccessDenied as denied:
        why = "it is not an admin" if resource is None else str(denied)
        return {"asked": text, "allowed": False, "why": why}
    return {"asked": text, "allowed": True, "why": "by its permissions"}
