"""Everything that the console can do, as rows of a table.

A row has one function. The HTTP API calls it with JSON, the pages call it for what they show and
with what a form holds, and the OpenAPI description is made of it. So a page can do nothing that the
API cannot, and who may do what is said once.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from twinlog.console.access import Role

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.client.settings import ClientSettings
    from twinlog.console.watch import Watcher
    from twinlog.runtime.clock import Clock


class LabNode(Struct, frozen=True):
    """A process of the local cluster."""

    name: str
    kind: str
    address: str
    state: str  # up, stopped (SIGSTOP) or down.
    role: str = ""
    pid: int = 0


class Lab(Protocol):
    """The local cluster of `twinlog up`, as far as the console may touch its processes."""

    def nodes(self) -> list[LabNode]: ...

    def kill(self, name: str) -> None: ...

    def stop(self, name: str) -> None: ...

    def resume(self, name: str) -> None: ...

    async def start(self, name: str) -> None: ...


@dataclass(slots=True)
class Context:
    """What operations work with."""

    admin: Admin
    name_server: str
    settings: ClientSettings
    watcher: Watcher
    clock: Clock
    lab: Lab | None = None
    audit_lines: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=1_000))
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def turn_of(self, operation: Operation, params: Struct) -> asyncio.Lock:
        """Changes of one thing are made one after the other, so that each sees the one before."""
        first = params.__struct_fields__[:1]
        thing = getattr(params, first[0]) if first else ""
        key = f"{operation.name.partition('.')[0]} {thing}"
        return self._locks.setdefault(key, asyncio.Lock())


class Nothing(Struct, frozen=True):
    """No parameters."""


class Preview(Struct, frozen=True):
    """What a change would do. With a `refusal` it cannot be done."""

    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    refusal: str = ""


class Done(Struct, frozen=True):
    """How a change ended, for people and for scripts."""

    text: str
    details: list[dict[str, Any]] = []
    is_complete: bool = True


class Refused(Exception):
    """The operation cannot be done; the text says why and what to do instead."""

    def __init__(self, text: str, status: int = 409) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row."""

    name: str
    method: str
    path: str
    summary: str
    run: Callable[[Context, Any], Awaitable[Any]]
    params: type[Struct] = Nothing
    result: Any = Done
    role: Role = Role.VIEWER
    preview: Callable[[Context, Any], Awaitable[Preview]] | None = None
    asks: bool = False
    """The page asks before it does it."""
    asks_if_told: bool = False
    """... only when the preview has something to say: most such changes destroy nothing."""

    @property
    def is_change(self) -> bool:
        return self.role is Role.ADMIN


@dataclass(slots=True)
class Table:
    """Operations by name."""

    rows: dict[str, Operation] = field(default_factory=dict)

    def add(self, *operations: Operation) -> None:
        for operation in operations:
            assert operation.name not in self.rows, operation.name
            self.rows[operation.name] = operation


class BadParameters(ValueError):
    """What was sent is not what the operation takes."""


def read_params(kind: type[Struct], values: Mapping[str, Any]) -> Any:
    """Parameters from text or JSON. An empty text counts as left out."""
    given = {key: value for key, value in values.items() if value not in ("", None)}
    known = set(kind.__struct_fields__)
    unknown = sorted(given.keys() - known)
    if unknown:
        raise BadParameters(f"unknown parameter {unknown[0]!r}")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadParameters(_plain(str(error))) from error


def _plain(text: str) -> str:
    """msgspec's sentence with the parameter first, as in all other errors of ours."""
    if found := re.fullmatch(r"Object missing required field `(\w+)`", text):
        return f"{found[1]} is missing"
    if found := re.fullmatch(r"(.*) - at `\$\.(\w+)`", text):
        return f"{found[2]}: {found[1][:1].lower()}{found[1][1:]}"
    return text


def resource_of(params: Struct) -> str:
    """What a change is about, for the audit log: its parameters, without what is long or secret."""
    parts = []
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if name == "version" or value in (None, "", [], False):
            continue
        if name in ("secret_key", "body"):
            value = "..."
        parts.append(f"{name}={value}")
    return " ".join(parts)
