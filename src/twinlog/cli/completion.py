"""Completion in a shell: words of ours, and the names that the cluster knows now.

Pressing Tab asks the cluster, for a second at most (TWINLOG_COMPLETE_SECONDS): a shell that hangs
is worse than one that knows no names. What goes wrong offers nothing and prints nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    _resolve_context,
    _resolve_incomplete,
    add_completion_class,
)

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.cli.admin.session import Session

T = TypeVar("T")
LIMIT_SECONDS = 1.0  # Unless TWINLOG_COMPLETE_SECONDS says another.
# Groups whose verbs take the name of what they are about, as NAME or NAMES.
_OF_GROUP = {"topic": "topic", "group": "group", "broker": "broker", "context": "context"}
_OF_METAVAR = {"BROKER": "broker", "[BROKER]": "broker"}
_OF_PARAMETER = {
    "topic": "topic",
    "group": "group",
    "broker_name": "broker",
    "broker": "broker",
    "brokers": "broker",
    "cluster": "cluster",
    "source": "group",
    "target": "group",
    "context_name": "context",
}
_NEW = {"create", "add"}  # Verbs whose NAME is a new one.


def kind_of(parameter: click.Parameter, path: list[str]) -> str | None:
    """topic, group, broker, cluster or context; None when it is no name that exists."""
    if parameter.metavar in _OF_METAVAR:
        return _OF_METAVAR[parameter.metavar]
    name = parameter.name or ""
    if name in ("name", "names"):
        return None if path[-1] in _NEW else _OF_GROUP.get(path[1] if len(path) > 1 else "")
    if name in ("source", "target") and path[1:2] != ["group"]:
        return None
    return _OF_PARAMETER.get(name) if _is_text(parameter) else None


def _is_text(parameter: click.Parameter) -> bool:
    return isinstance(parameter.type, click.types.StringParamType)


class _Names:
    """Mixed into click's classes for the shells."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        cli, prog_name = self.cli, self.prog_name  # type: ignore[attr-defined]
        context = _resolve_context(cli, {}, prog_name, args)
        found, incomplete = _resolve_incomplete(context, args, incomplete)
        kind = None
        if isinstance(found, click.Parameter):
            kind = kind_of(found, context.command_path.split())
        if kind is None:
            return found.shell_complete(context, incomplete)
        names = names_of(kind, context, incomplete)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class _Bash(_Names, BashComplete):
    pass


class _Zsh(_Names, ZshComplete):
    pass


class _Fish(_Names, FishComplete):
    pass


def register() -> None:
    """Use these classes from now on."""
    for kind in (_Bash, _Zsh, _Fish):
        add_completion_class(kind)


# Names


def names_of(kind: str, context: click.Context, incomplete: str) -> list[str]:
    """All names of a kind; none when nobody tells them in time."""
    with contextlib.suppress(Exception), _silence():
        if kind == "context":
            from twinlog.cli.admin import contexts

            return sorted(contexts.load().contexts)
        return sorted(set(_QUESTIONS[kind](_session(context), incomplete)))
    return []


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Whatever would be said about an error would be in the middle of a command line."""
    import logging

    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _session(context: click.Context) -> Session:
    """The cluster that the words so far are about."""
    from twinlog.cli.admin.session import find_cluster

    given: dict[str, object] = {}
    step: click.Context | None = context
    while step is not None:
        for name, value in step.params.items():
            if value is not None:
                given.setdefault(name, value)
        step = step.parent
    session = find_cluster(_text(given, "namesrv"), _text(given, "context_name"))
    access_key, secret_key = _text(given, "access_key"), _text(given, "secret_key")
    if access_key and secret_key:
        session = replace(session, access_key=access_key, secret_key=secret_key)
    from twinlog.cli.admin.tls import OPTIONS, merged

    tls = merged({name: given.get(name.replace("-", "_")) for name in OPTIONS}, session.tls)
    return replace(session, tls=tls, timeout_ms=round(_limit() * 500))


def _limit() -> float:
    try:
        return max(0.01, float(os.environ["TWINLOG_COMPLETE_SECONDS"]))
    except (KeyError, ValueError):
        return LIMIT_SECONDS


def _text(given: dict[str, object], name: str) -> str | None:
    value = given.get(name)
    return value if isinstance(value, str) else None


# What each kind of name is asked for: the short way over a plain socket, else the client's.


def _topics(session: Session, incomplete: str) -> Iterable[str]:
    from twinlog.admin.names import is_user_topic, system_names
    from twinlog.cli.admin import quick

    found = quick.topic_names(session)
    if found is None:
        return _asked(session, _ask_topics)
    topics, clusters, brokers = found
    if incomplete.startswith("%"):
        return topics
    system = system_names(clusters, brokers)
    return [topic for topic in topics if is_user_topic(topic, system)]


def _brokers(session: Session, incomplete: str) -> Iterable[str]:
    """Names; with a colon typed, each replica."""
    table, _ = _cluster(session)
    if ":" not in incomplete:
        return table
    return [f"{name}:{number}" for name, addresses in table.items() for number in addresses]


def _clusters(session: Session, incomplete: str) -> Iterable[str]:
    return _cluster(session)[1]


def _groups(session: Session, incomplete: str) -> Iterable[str]:
    from twinlog.admin.groups import is_user_group
    from twinlog.cli.admin import quick
    from twinlog.remoting.codes import RequestCode

    names: set[str] = set()
    for addresses in _cluster(session)[0].values():
        broker = replace(session, namesrv=addresses[min(addresses)])
        answers = quick.ask(broker, (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,))
        if answers is None:
            return _asked(session, _ask_groups)
        names.update(answers[0].get("subscriptionGroupTable") or ())
    return filter(is_user_group, names)


def _cluster(session: Session) -> tuple[dict[str, dict[int, str]], list[str]]:
    """Addresses of each broker by id, and the names of clusters."""
    from twinlog.cli.admin import quick
    from twinlog.remoting.codes import RequestCode

    answers = quick.ask(session, (RequestCode.GET_BROKER_CLUSTER_INFO,))
    if answers is None:
        return _asked(session, _ask_cluster)
    (data,) = answers
    brokers = {
        name: {int(number): address for number, address in entry["brokerAddrs"].items()}
        for name, entry in (data.get("brokerAddrTable") or {}).items()
    }
    return brokers, list(data.get("clusterAddrTable") or ())


_QUESTIONS: dict[str, Callable[[Session, str], Iterable[str]]] = {
    "topic": _topics,
    "group": _groups,
    "broker": _brokers,
    "cluster": _clusters,
}


def _asked(session: Session, question: Callable[[Admin], Awaitable[T]]) -> T:
    import asyncio

    from twinlog.cli.admin.session import run_loop

    async def main() -> T:
        async with asyncio.timeout(_limit()), session.admin() as admin:
            return await question(admin)

    return run_loop(main)


async def _ask_topics(admin: Admin) -> list[str]:
    from twinlog.admin.names import is_user_topic
    from twinlog.admin.topics import list_topics, system_topics

    system = await system_topics(admin)
    return [topic for topic in await list_topics(admin) if is_user_topic(topic, system)]


async def _ask_groups(admin: Admin) -> list[str]:
    from twinlog.admin.groups import is_user_group, list_groups

    found = await list_groups(admin)
    return [name for table in found.values.values() for name in table if is_user_group(name)]


async def _ask_cluster(admin: Admin) -> tuple[dict[str, dict[int, str]], list[str]]:
    info = await admin.cluster()
    return {name: dict(b.broker_addrs) for name, b in info.brokers.items()}, list(info.clusters)
