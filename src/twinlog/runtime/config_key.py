"""How a key of a configuration file is declared: once, with its type and its default.

    slave_timeout: Annotated[Positive, live("How long a SYNC_MASTER waits, in ms.")] = 3000

The type gives the range, the metadata gives the text and the effect. Servers that start, lint,
explain, changes at run time and the reference page all read this declaration; there is no other
table of keys.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from twinlog.runtime.config_format import ConfigValueError, key_of, text_of, trailing_comment
from twinlog.runtime.numbers import INT32_MAX, INT64_MAX, number_or_none

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
# Java's int and long: a larger number is none there, and no counter or buffer here can hold it.
Positive: TypeAlias = Annotated[int, Meta(ge=1, le=INT32_MAX)]
PositiveLong: TypeAlias = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]
NaturalLong: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]


class Effect(StrEnum):
    """What a key does in this server."""

    USED = "used"
    NO_EFFECT = "no effect here"
    REFUSED = "refused"  # Any value but the default ends the start.


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What a declaration says besides type and default."""

    text: str
    effect: Effect = Effect.USED
    reason: str = ""
    """Why the key has no effect, or is refused."""
    is_live: bool = False
    """May be changed while the server runs, and takes effect at once."""
    is_missed: bool = False
    """Has no effect, and who sets it would miss what it does elsewhere: worth a warning."""
    is_important: bool = False
    """Apache's `-m` prints it."""
    default: str = ""
    """The default in words, where its value depends on the machine or on other keys."""
    spelling: str = ""
    """The key in the file, where it does not follow from the attribute's name."""
    aliases: tuple[str, ...] = ()


def used(
    text: str,
    *,
    default: str = "",
    spelling: str = "",
    aliases: tuple[str, ...] = (),
    is_important: bool = False,
) -> Key:
    """A key that is read when the server starts."""
    return Key(
        text=text,
        default=default,
        spelling=spelling,
        aliases=aliases,
        is_important=is_important,
    )


def live(text: str, *, aliases: tuple[str, ...] = (), is_important: bool = False) -> Key:
    """A key that may also be changed while the server runs."""
    return Key(text=text, is_live=True, aliases=aliases, is_important=is_important)


def no_effect(
    text: str,
    reason: str,
    *,
    default: str = "",
    spelling: str = "",
    aliases: tuple[str, ...] = (),
    is_missed: bool = False,
    is_important: bool = False,
) -> Key:
    """A key that is accepted because people's files hold it."""
    return Key(
        text=text,
        effect=Effect.NO_EFFECT,
        reason=reason,
        default=default,
        spelling=spelling,
        aliases=aliases,
        is_missed=is_missed,
        is_important=is_important,
    )


def refused(text: str, reason: str) -> Key:
    """A key whose silence would be dangerous: only its default is accepted."""
    return Key(text=text, effect=Effect.REFUSED, reason=reason)


class Finding(NamedTuple):
    """Something about the values of a configuration that its owner should know."""

    key: str
    text: str
    is_fault: bool = True
    about: tuple[str, ...] = ()
    """Other keys that it follows from; while one of them is wrong, it says nothing."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One key, with everything that is said about it."""

    name: str
    key: str
    kind: Any
    """The type with its range, as msgspec takes it."""
    default: Any
    says: Key

    @property
    def spellings(self) -> Iterator[str]:
        """The key, its other names, and both of Apache's spellings of "mapped"."""
        for spelling in (self.key, *self.says.aliases):
            yield spelling
            if "apped" in spelling:
                yield spelling.replace("apped", "aped")
            elif "aped" in spelling:
                yield spelling.replace("aped", "apped")

    @property
    def values(self) -> str:
        """Which values are allowed, in words."""
        return _values(self.kind)

    @property
    def default_text(self) -> str:
        """The default for people, the same on every machine."""
        if self.says.default:
            return self.says.default
        home = os.path.expanduser("~")
        text = text_of(self.default)
        return text.replace(home, "~", 1) if text.startswith(home) else text

    def convert(self, text: str) -> Any:
        """`text` as a value. Raises ConfigValueError."""
        comment = trailing_comment(text)
        if comment is not None and "password" not in self.name:
            raise ConfigValueError(
                self.key, f"{comment!r} is not a comment here; put it on a line of its own"
            )
        plain = _plain(self.kind)
        if plain is str:
            return text
        if plain is int and number_or_none(text.strip(), -INT64_MAX - 1) is None:
            # msgspec takes 1e3 and 5.0 for whole numbers; whoever typed that meant something else.
            raise ConfigValueError(self.key, f"expected {self.values}")
        try:
            return msgspec.convert(text.strip(), self.kind, strict=False)
        except msgspec.ValidationError as error:
            raise ConfigValueError(self.key, f"expected {self.values}") from error


class Origin(StrEnum):
    """Where the value of a key is from, if not from its declaration."""

    ENVIRONMENT = "environment"
    FILE = "file"
    COMMAND_LINE = "command line"
    RUN_TIME = "run time"


@functools.cache
def declarations(struct: type[msgspec.Struct]) -> Mapping[str, Declaration]:
    """The keys of a configuration by attribute, in the order of their declaration."""
    hints = get_type_hints(struct, include_extras=True)
    found = {}
    for field in msgspec.structs.fields(struct):
        says = next((part for part in get_args(hints[field.name]) if isinstance(part, Key)), None)
        if says is not None:
            key = says.spelling or key_of(field.name)
            found[field.name] = Declaration(field.name, key, hints[field.name], field.default, says)
    return found


@functools.cache
def spellings(struct: type[msgspec.Struct]) -> Mapping[str, Declaration]:
    """The keys of a configuration by everything that a file may call them."""
    every = declarations(struct).values()
    return {spelling: declared for declared in every for spelling in declared.spellings} | {
        declared.key: declared for declared in every
    }


@functools.cache
def live_keys(struct: type[msgspec.Struct]) -> frozenset[str]:
    """The keys that may be changed while the server runs."""
    return frozenset(d.key for d in declarations(struct).values() if d.says.is_live)


def fixed_reason(struct: type[msgspec.Struct], server: str, key: str) -> str:
    """Why a key that is not live cannot be changed while `server` runs."""
    declared = spellings(struct).get(key)
    if declared is None:
        return f"{key} is not known"
    if declared.says.effect is Effect.USED:
        return f"{key} is read when the {server} starts: change it in the file, and restart"
    if declared.says.effect is Effect.NO_EFFECT:
        return f"{key} has no effect here: {declared.says.reason}"
    return f"{key} is refused: {declared.says.reason}"


def undone(config: msgspec.Struct) -> Iterator[Finding]:
    """What the values ask for and this server does not do: refused keys, and missed ones."""
    for declared in declarations(type(config)).values():
        says = declared.says
        if getattr(config, declared.name) == declared.default:
            continue
        if says.effect is Effect.REFUSED:
            yield Finding(declared.key, says.reason)
        elif says.is_missed:
            yield Finding(declared.key, f"no effect here: {says.reason}", is_fault=False)


def by_reason(declared: Iterable[Declaration]) -> dict[str, list[str]]:
    """Keys without effect under what they have in common."""
    found: dict[str, list[str]] = {}
    for each in declared:
        found.setdefault(each.says.reason, []).append(each.key)
    return found


def _plain(kind: Any) -> Any:
    """The type without its metadata, and without None."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _plain(next(part for part in get_args(kind) if part is not type(None)))
    return kind


def _values(kind: Any) -> str:
    plain = _plain(kind)
    if isinstance(plain, type) and issubclass(plain, Enum):
        *others, last = (str(member.value) for member in plain)
        return f"{', '.join(others)} or {last}"
    if plain is bool:
        return "true or false"
    if plain is int:
        return _range(part for part in get_args(kind) if isinstance(part, Meta))
    return "text"


def _range(metas: Iterable[Meta]) -> str:
    low = high = None
    for meta in metas:
        low = meta.ge if meta.ge is not None else low
        high = meta.le if meta.le is not None else high
    if low is None:
        return "a number"
    return f"a number from {low}" if high is None else f"a number from {low} to {high}"
