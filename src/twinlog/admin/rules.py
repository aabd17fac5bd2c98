"""Access rules of a whole cluster: which version its brokers have, and changing accounts on all.

One broker is asked by `admin/acl.py`. Our brokers show the rules without secrets; Apache's show
them with every secret, and a migration takes them over that way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from twinlog.admin import acl
from twinlog.admin.client import Admin, Gathered, gather
from twinlog.client.errors import UsageError
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import CreateAccessConfigRequestHeader


@dataclass(frozen=True, slots=True)
class RulesVersion:
    """How often the rules of a broker were changed, and when last."""

    counter: int
    changed_ms: int


async def rules_versions(admin: Admin) -> Gathered[RulesVersion]:
    """By broker. One without access rules is among the failures, and says so."""

    async def read(address: str) -> RulesVersion:
        text = (await acl.acl_version(admin, address)).version
        version = fastjson.loads_as(text, DataVersion)
        return RulesVersion(version.counter, version.timestamp)

    return await gather((await admin.cluster()).addresses(), read)


async def update_account(
    admin: Admin, account: CreateAccessConfigRequestHeader
) -> Gathered[Request]:
    """Create an account on every broker, or change what is given of it.

    A 4.9 broker takes an absent `admin` for false, so each is told what it has now.
    """
    if len(account.access_key) < 7:
        raise UsageError("an access key must be longer than 6 characters")

    async def change(address: str) -> Request:
        header = account
        if account.admin is None:
            known = (await acl.acl_table(admin, address)).find(account.access_key)
            header = replace(account, admin=known is not None and known.is_admin)
        return await acl.change_account(admin, address, header)

    return await gather((await admin.cluster()).addresses(), change)


async def delete_account(admin: Admin, access_key: str) -> Gathered[Request]:
    return await gather(
        (await admin.cluster()).addresses(),
        lambda address: acl.delete_account(admin, address, access_key),
    )


async def read_rules(admin: Admin, address: str) -> dict[str, Any]:
    """The rules of an Apache broker as its `plain_acl.yml` has them, secrets included."""
    return rules_file(await acl.ask_rules(admin, address))


def rules_file(data: dict[str, Any]) -> dict[str, Any]:
    """Request 54's answer in the names of the file; what is not set is left out."""
    accounts = [
        {key: value for key, value in account.items() if value not in (None, "", [])}
        for account in data.get("plainAccessConfigs") or ()
    ]
    return {
        "globalWhiteRemoteAddresses": list(data.get("globalWhiteAddrs") or ()),
        "accounts": accounts,
    }
