"""Access rules of brokers with `aclEnable=true`: which version they have, and changing accounts.

Our brokers show the rules without secrets (`admin/acl.py`); Apache's show them with every secret,
and a migration takes them over that way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from twinlog.admin.client import Admin, Gathered, gather
from twinlog.client.errors import UsageError
from twinlog.client.net.calls import json_object
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
)
from twinlog.runtime.numbers import number_of


@dataclass(frozen=True, slots=True)
class RulesVersion:
    """How often the rules of a broker were changed, and when last."""

    counter: int
    changed_ms: int


async def rules_versions(admin: Admin) -> Gathered[RulesVersion]:
    """By broker. One without access rules is among the failures, and says so."""

    async def read(address: str) -> RulesVersion:
        answer = await admin.ask(
            address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, action="version of the access rules"
        )
        text = answer.header(GetBrokerAclConfigResponseHeader).version
        data = fastjson.loads(text.encode())
        return RulesVersion(number_of(data.get("counter", 0)), number_of(data.get("timestamp", 0)))

    return await gather((await admin.cluster()).addresses(), read)


async def update_account(
    admin: Admin, account: CreateAccessConfigRequestHeader
) -> Gathered[Request]:
    """Create an account on every broker, or change what is given of it."""
    if len(account.access_key) < 7:
        raise UsageError("an access key is longer than 6 characters")

    async def update(address: str) -> Request:
        return await admin.ask(
            address,
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            account,
            action="change of an account",
        )

    return await gather((await admin.cluster()).addresses(), update)


async def delete_account(admin: Admin, access_key: str) -> Gathered[Request]:
    header = DeleteAccessConfigRequestHeader(access_key)

    async def delete(address: str) -> Request:
        return await admin.ask(
            address, RequestCode.DELETE_ACL_CONFIG, header, action="deletion of an account"
        )

    return await gather((await admin.cluster()).addresses(), delete)


async def read_rules(admin: Admin, address: str) -> dict[str, Any]:
    """The rules of an Apache broker as its `plain_acl.yml` has them, secrets included."""
    answer = await admin.ask(
        address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, action="access rules"
    )
    return rules_file(json_object(answer))


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
