"""Accounts of brokers with `aclEnable=true`: who may do what. Requests 50 to 54.

Secrets are written, never read: what a broker might tell of them is dropped here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twinlog.admin.client import Admin
from twinlog.client.net.answers import json_object
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)


@dataclass(frozen=True, slots=True)
class AclAccount:
    """One account without its secret. Permissions: DENY, PUB, SUB or PUB|SUB."""

    access_key: str
    is_admin: bool = False
    default_topic: str = "DENY"
    default_group: str = "DENY"
    white_address: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """As it stands in plain_acl.yml, but for the secret."""
        return {
            "accessKey": self.access_key,
            "whiteRemoteAddress": self.white_address,
            "admin": self.is_admin,
            "defaultTopicPerm": self.default_topic,
            "defaultGroupPerm": self.default_group,
            "topicPerms": [f"{name}={perm}" for name, perm in self.topics.items()],
            "groupPerms": [f"{name}={perm}" for name, perm in self.groups.items()],
        }


@dataclass(frozen=True, slots=True)
class AclTable:
    """The rules of one broker."""

    white_addresses: tuple[str, ...]
    accounts: tuple[AclAccount, ...]

    def find(self, access_key: str) -> AclAccount | None:
        return next((a for a in self.accounts if a.access_key == access_key), None)


async def ask_rules(admin: Admin, address: str) -> dict[str, Any]:
    """Request 54's answer as it is: of an Apache broker with every secret."""
    answer = await admin.ask(
        address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, action="access rules"
    )
    return json_object(answer)


async def acl_table(admin: Admin, address: str) -> AclTable:
    """Accounts and white addresses of one broker."""
    data = await ask_rules(admin, address)
    accounts = data.get("plainAccessConfigs") or ()
    return AclTable(tuple(data.get("globalWhiteAddrs") or ()), tuple(map(account_of, accounts)))


def account_of(data: Mapping[str, Any]) -> AclAccount:
    """Of an answer, or of an entry of plain_acl.yml, whose secret is left out."""
    return AclAccount(
        str(data.get("accessKey") or ""),
        bool(data.get("admin")),
        str(data.get("defaultTopicPerm") or "DENY"),
        str(data.get("defaultGroupPerm") or "DENY"),
        str(data.get("whiteRemoteAddress") or ""),
        _named(data.get("topicPerms")),
        _named(data.get("groupPerms")),
    )


def _named(items: Any) -> dict[str, str]:
    pairs = (str(item).partition("=") for item in items or ())
    return {name.strip(): perm.strip() for name, _, perm in pairs}


async def put_account(
    admin: Admin, address: str, account: AclAccount, secret_key: str | None
) -> Request:
    """Create or replace an account; without a secret the broker keeps the one that it has."""
    entry = account.entry()
    header = CreateAccessConfigRequestHeader(
        account.access_key,
        secret_key,
        account.white_address,
        account.is_admin,
        account.default_topic,
        account.default_group,
        ",".join(entry["topicPerms"]),
        ",".join(entry["groupPerms"]),
    )
    return await change_account(admin, address, header)


async def change_account(
    admin: Admin, address: str, header: CreateAccessConfigRequestHeader
) -> Request:
    """Create an account, or change what is given of it."""
    return await admin.ask(
        address, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header, action="change of an account"
    )


async def delete_account(admin: Admin, address: str, access_key: str) -> Request:
    return await admin.ask(
        address, RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader(access_key),
        action="removal of an account",
    )  # fmt: skip


async def put_white_addresses(admin: Admin, address: str, addresses: str) -> Request:
    return await admin.ask(
        address, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        UpdateGlobalWhiteAddrsConfigRequestHeader(addresses),
        action="change of the white addresses",
    )  # fmt: skip


async def acl_version(admin: Admin, address: str) -> GetBrokerAclConfigResponseHeader:
    """Which version of its rules a broker has."""
    answer = await admin.ask(
        address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, action="version of the access rules"
    )
    return answer.header(GetBrokerAclConfigResponseHeader)


def changed(
    account: AclAccount,
    *,
    topics: Mapping[str, str | None] | None = None,
    groups: Mapping[str, str | None] | None = None,
) -> AclAccount:
    """With other permissions; None takes one away, so that the default holds again."""
    return replace(
        account,
        topics=_merged(account.topics, topics or {}),
        groups=_merged(account.groups, groups or {}),
    )


def _merged(old: Mapping[str, str], new: Mapping[str, str | None]) -> dict[str, str]:
    both: dict[str, str | None] = {**old, **new}
    return {name: perm for name, perm in both.items() if perm is not None}
