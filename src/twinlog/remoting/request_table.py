"""The table of a server: what each request code is, who may send it and how large it may be.

One row holds code, header, handler, access rule and limit of the body. A row without one of them
cannot be made, so a code without a rule cannot be served. The rule gets the header object that the
handler gets: the two cannot read different fields.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from twinlog.remoting.acl import Permission, Resource
from twinlog.remoting.command import Request
from twinlog.remoting.headers.base import Header
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.limits import FRAME_SIZE_MAX

H = TypeVar("H", bound=msgspec.Struct)
Handler = Callable[[ServerConnection, Request], None]

# Limits of bodies, in bytes.
UNUSED_BODY = 64 * 1024  # Nothing looks at it. Room for a client that sends one anyway.
SMALL_BODY = 64 * 1024  # One object or a few lines.
LIST_BODY = 256 * 1024  # A heartbeat of 1,000 subscriptions.
QUEUES_BODY = 256 * 1024  # 3,000 queues to lock.
WHOLE_TABLE = FRAME_SIZE_MAX  # Every topic of a broker, every offset. Read off the loop.
MESSAGES = FRAME_SIZE_MAX  # Stored as they are; `maxMessageSize` decides.


class NoHeader(Header):
    """A request without arguments."""


class Standing(enum.Enum):
    """What an account needs to be, where no topic or group is touched."""

    ANY_ACCOUNT = "any account"
    ADMIN = "admin"


Needs = Standing | list[Resource]
Rule = Callable[[H, Request], Needs]


@dataclass(frozen=True, slots=True)
class Access(Generic[H]):
    """Who may send a request. `as_apache` is what 4.9 asks for, where that is less."""

    rule: Rule[H]
    as_apache: Rule[H] | None = None

    def needs(self, header: H, request: Request, *, is_apache: bool) -> Needs:
        rule = self.as_apache if is_apache and self.as_apache is not None else self.rule
        return rule(header, request)


def _any_account(header: Any, request: Request) -> Needs:
    return Standing.ANY_ACCOUNT


def _admin(header: Any, request: Request) -> Needs:
    return Standing.ADMIN


ANY_ACCOUNT: Access[Any] = Access(_any_account)
ADMIN: Access[Any] = Access(_admin)
ADMIN_UNLESS_APACHE: Access[Any] = Access(_admin, _any_account)


def unless_apache(rule: Rule[H]) -> Access[H]:
    """Closed here; 4.9 lets every account do it."""
    return Access(rule, _any_account)


EITHER = Permission.PUB | Permission.SUB


@dataclass(frozen=True, slots=True)
class Row(Generic[H]):
    """One request code."""

    code: int
    header: type[H]
    handler: Handler
    access: Access[H]
    body_max: int
    # What a request changes, in words, for the audit log; None: it changes nothing that is audited.
    change: Callable[[H, Request], str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.access, Access):
            raise TypeError(f"request code {self.code} has no access rule")
        if type(self.body_max) is not int or not 0 < self.body_max <= FRAME_SIZE_MAX:
            raise TypeError(f"request code {self.code} has no limit of its body")
        if not (isinstance(self.header, type) and issubclass(self.header, msgspec.Struct)):
            raise TypeError(f"request code {self.code} has no header")


class RequestTable:
    """All rows of a server, by code."""

    def __init__(self, rows: Iterable[Row[Any]]) -> None:
        self.rows: dict[int, Row[Any]] = {}
        for row in rows:
            if row.code in self.rows:
                raise ValueError(f"request code {row.code} has two rows")
            self.rows[int(row.code)] = row

    def __iter__(self) -> Iterator[Row[Any]]:
        return iter(self.rows.values())

    def body_max(self, code: int) -> int:
        """The largest body of a code; of one that is not served, what a refusal may cost."""
        row = self.rows.get(code)
        return UNUSED_BODY if row is None else row.body_max
