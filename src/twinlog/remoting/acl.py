"""Access control as ACL 1.0 has it: accounts, signatures, white lists, permissions. Pure.

Corresponds to RocketMQ's PlainAccessValidator and PlainPermissionManager. The rules come from
`conf/plain_acl.yml`; reading and watching that file is `acl_file.py`. Comparison of signatures
takes the same time whatever differs.

It is here because brokers and name servers both enforce it; what a request needs is said by the
table of each (`broker/handlers.py`, `namesrv/processor.py`).
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinlog.message.names import RETRY_PREFIX, TRACE_TOPIC
from twinlog.remoting.signing import is_signed

KEY_LENGTH_MIN = 7  # "longer than 6 characters"

REFUSAL = "org.apache.rocketmq.acl.common.AclException: "  # Clients know a refusal by this name.
RELOAD_INTERVAL_MS = 500  # How often the rule files are looked at, as Apache's file watcher does.


class Permission(enum.IntFlag):
    """What an account may do with a topic or group; RocketMQ's numbers."""

    NONE = 0
    DENY = 1
    PUB = 4
    SUB = 8


class AclConfigError(ValueError):
    """The rules cannot be used. The text names the account or key and what is wrong."""


class AccessDenied(Exception):
    """The request is refused. The text goes to the client."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A topic, or a group as its retry topic, and what is needed of it."""

    name: str
    permission: Permission


_TRACES = Resource(TRACE_TOPIC, Permission.PUB)  # Every account may write traces.
_PERMISSION_NAMES = {
    Permission.PUB: "PUB",
    Permission.SUB: "SUB",
    Permission.PUB | Permission.SUB: "PUB or SUB",
}


@dataclass(frozen=True, slots=True)
class Account:
    access_key: str
    secret_key: str
    white_address: Callable[[str], bool]
    is_admin: bool = False
    default_topic: Permission = Permission.DENY
    default_group: Permission = Permission.DENY
    permissions: Mapping[str, Permission] = field(default_factory=dict)

    def check_standing(self, code: int, *, needs_admin: bool) -> None:
        """Raise AccessDenied unless the account is what a request without resources asks for."""
        if needs_admin and not self.is_admin:
            raise AccessDenied(f"Need admin permission for request code={code}, but accessKey="
                               f"{self.access_key} is not")  # fmt: skip

    def check_resources(self, resources: Sequence[Resource]) -> None:
        """Raise AccessDenied for the first resource that the account has no permission for."""
        if self.is_admin and not self.permissions:
            return
        for resource in resources:
            if resource == _TRACES:
                continue
            is_group = resource.name.startswith(RETRY_PREFIX)
            default = self.default_group if is_group else self.default_topic
            granted = self.permissions.get(resource.name, default)
            if granted & Permission.DENY or not granted & resource.permission:
                kind = "group" if is_group else "topic"
                name = resource.name.removeprefix(RETRY_PREFIX)
                raise AccessDenied(
                    f"No default permission for {kind}:{name}, accessKey={self.access_key} needs "
                    f"{_PERMISSION_NAMES[resource.permission]} on it"
                )


@dataclass(frozen=True, slots=True)
class AclRules:
    """All rules of one moment. A reload makes a new one; nobody changes this one."""

    global_white: tuple[Callable[[str], bool], ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)

    def authenticate(
        self,
        *,
        version: int,
        ext: Mapping[str, str],
        body: bytes | memoryview,
        remote_address: str,
    ) -> Account | None:
        """The account that signed the request; None for an address that needs none.

        Raises AccessDenied with the reason.
        """
        if any(matches(remote_address) for matches in self.global_white):
            return None
        account = self._account(ext)
        if account.white_address(remote_address):
            return None
        if not is_signed(ext, bytes(body), account.secret_key, version=version):
            raise AccessDenied(f"Check signature failed for accessKey={account.access_key}")
        return account

    def _account(self, ext: Mapping[str, str]) -> Account:
        access_key = ext.get("AccessKey")
        if not access_key:
            raise AccessDenied("No accessKey is configured")
        account = self.accounts.get(access_key)
        if account is None:
            raise AccessDenied(f"No acl config for {access_key}")
        return account


# ---- the file's content -> rules


def parse_rules(data: Any, *, source: str) -> AclRules:
    """Build rules from the parsed YAML. Anything that is not understood refuses the whole file:
    a rule that is silently skipped may be the one that was meant to protect."""
    if not isinstance(data, dict):
        raise AclConfigError(f"{source}: expected keys such as 'accounts', found {_kind(data)}")
    white = data.get("globalWhiteRemoteAddresses") or []
    if not isinstance(white, list):
        raise AclConfigError(f"{source}: globalWhiteRemoteAddresses must be a list")
    entries = data.get("accounts") or []
    if not isinstance(entries, list):
        raise AclConfigError(f"{source}: accounts must be a list")
    accounts: dict[str, Account] = {}
    for entry in entries:
        account = _parse_account(entry, source)
        if account.access_key in accounts:
            raise AclConfigError(f"{source}: accessKey {account.access_key} occurs twice")
        accounts[account.access_key] = account
    return AclRules(tuple(address_pattern(str(text), source) for text in white), accounts)


def merge_rules(parts: Iterable[AclRules]) -> AclRules:
    """Several files: an access key lives in one of them, the first that has it."""
    white: list[Callable[[str], bool]] = []
    accounts: dict[str, Account] = {}
    for part in parts:
        white.extend(part.global_white)
        for key, account in part.accounts.items():
            accounts.setdefault(key, account)
    return AclRules(tuple(white), accounts)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _parse_account(entry: Any, source: str) -> Account:
    if not isinstance(entry, dict):
        raise AclConfigError(f"{source}: an account must have keys, found {_kind(entry)}")
    access_key, secret_key = str(entry.get("accessKey") or ""), str(entry.get("secretKey") or "")
    if len(access_key) < KEY_LENGTH_MIN or len(secret_key) < KEY_LENGTH_MIN:
        raise AclConfigError(
            f"{source}: accessKey and secretKey must be longer than 6 characters "
            f"(account {access_key or 'without accessKey'})"
        )
    permissions = dict(_named_permissions(entry, "topicPerms", "", source))
    permissions |= dict(_named_permissions(entry, "groupPerms", RETRY_PREFIX, source))
    return Account(
        access_key,
        secret_key,
        address_pattern(str(entry.get("whiteRemoteAddress") or ""), source),
        bool(entry.get("admin", False)),
        parse_permission(entry.get("defaultTopicPerm"), source),
        parse_permission(entry.get("defaultGroupPerm"), source),
        permissions,
    )


def _named_permissions(
    entry: Mapping[str, Any], key: str, prefix: str, source: str
) -> Iterable[tuple[str, Permission]]:
    items = entry.get(key) or []
    if not isinstance(items, list):
        raise AclConfigError(f"{source}: {key} must be a list of name=PERM")
    for item in items:
        name, separator, permission = str(item).partition("=")
        if not separator or not name.strip():
            raise AclConfigError(f"{source}: {key} entry '{item}' is not name=PERM")
        yield prefix + name.strip(), parse_permission(permission.strip(), source)


_PERMISSIONS = {
    "DENY": Permission.DENY,
    "PUB": Permission.PUB,
    "SUB": Permission.SUB,
    "PUB|SUB": Permission.PUB | Permission.SUB,
    "SUB|PUB": Permission.PUB | Permission.SUB,
}


def parse_permission(value: Any, source: str) -> Permission:
    if value is None or value == "":
        return Permission.DENY
    permission = _PERMISSIONS.get(str(value).strip())
    if permission is None:
        raise AclConfigError(
            f"{source}: '{value}' is not a permission; use DENY, PUB, SUB or PUB|SUB"
        )
    return permission


# ---- address patterns


def address_pattern(text: str, source: str) -> Callable[[str], bool]:
    """A matcher for `*`, single addresses, comma lists, `{1,2}` groups, ranges and wildcards."""
    text = text.strip()
    if not text:
        return lambda _: False
    if set(re.split(r"[.:]", text)) == {"*"}:
        return lambda _: True
    if "{" in text:
        return _any_of([_single(part, source) for part in _expand_braces(text, source)])
    return _any_of([_single(part.strip(), source) for part in text.split(",")])


def _any_of(matchers: list[Callable[[str], bool]]) -> Callable[[str], bool]:
    if len(matchers) == 1:
        return matchers[0]
    return lambda address: any(matches(address) for matches in matchers)


def _expand_braces(text: str, source: str) -> list[str]:
    match = re.fullmatch(r"([^{}]*)\{([^{}]+)\}", text)
    if match is None:
        raise AclConfigError(f"{source}: '{text}' is not an address pattern; use a.b.c.{{1,2}}")
    return [match.group(1) + part.strip() for part in match.group(2).split(",")]


def _single(text: str, source: str) -> Callable[[str], bool]:
    if "*" in text or "-" in text:
        return _ranges(text, source)
    try:
        wanted = ipaddress.ip_address(text)
    except ValueError as error:
        raise AclConfigError(f"{source}: '{text}' is not an IP address or pattern") from error

    def matches(address: str) -> bool:
        try:
            return ipaddress.ip_address(address) == wanted
        except ValueError:
            return False

    return matches


def _ranges(text: str, source: str) -> Callable[[str], bool]:
    separator, base, count, limit = (":", 16, 8, 0xFFFF) if ":" in text else (".", 10, 4, 255)
    pieces = text.split(separator)
    if len(pieces) != count:
        raise AclConfigError(f"{source}: '{text}' must have {count} parts")
    bounds = [_bounds(piece, base, limit, text, source) for piece in pieces]

    def matches(address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if (parsed.version == 6) != (separator == ":"):
            return False
        parts = [int(part, base) for part in parsed.exploded.split(separator)]
        return all(low <= part <= high for part, (low, high) in zip(parts, bounds, strict=True))

    return matches


def _part(text: str, base: int) -> int:
    if re.fullmatch(r"[0-9]{1,3}" if base == 10 else r"[0-9A-Fa-f]{1,4}", text) is None:
        raise ValueError(text)
    return int(text, base)


def _bounds(piece: str, base: int, limit: int, text: str, source: str) -> tuple[int, int]:
    if piece == "*":
        return 0, limit
    low, separator, high = piece.partition("-")
    try:
        first = _part(low, base)
        last = _part(high, base) if separator else first
    except ValueError as error:
        raise AclConfigError(f"{source}: '{piece}' in '{text}' is not a number") from error
    if not 0 <= first <= last <= limit:
        raise AclConfigError(f"{source}: '{piece}' in '{text}' is not a range within 0-{limit}")
    return first, last
