"""`twinlog ha tail list|show|resend`: what was cut from a log when it rejoined its group.

Works on the files of a store, so it runs on the broker's machine; only `resend` asks the cluster.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.consume import message_row
from twinlog.cli.admin.message import LIST_COLUMNS
from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, call, confirm, show
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup, nearest
from twinlog.cli.output import Column, Report, Table, show_bytes, show_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.tails import Tail
    from twinlog.client.message import ReceivedMessage


@click.group(cls=LazyGroup, short_help="Show and resend messages that were cut from a log.")
def tail() -> None:
    """Show and resend messages that were cut from a log when a broker rejoined or recovered."""


_STORE = click.option(
    "--store", "stores", multiple=True, type=click.Path(path_type=Path), metavar="DIR",
    help="storePathRootDir of a broker; by default those of `twinlog up`.",
)  # fmt: skip
_COLUMNS = [
    Column("tail"),
    Column("cut_ms", "CUT AT", show_time),
    Column("offset", is_right=True),
    Column("bytes", "SIZE", show_bytes, is_right=True),
    Column("messages", is_right=True),
    Column("unreadable_bytes", "UNREADABLE", show_bytes, is_right=True),
    Column("topics"),
    Column("store", is_wide=True),
]


def _stores(given: tuple[Path, ...]) -> list[Path]:
    if given:
        for store in given:
            if not store.is_dir():
                raise CommandError(f"--store {store}: no such directory", NOT_FOUND)
            if not any((store / name).is_dir() for name in ("commitlog", "twinlog")):
                hint = "give the storePathRootDir of a broker"
                raise CommandError(f"--store {store}: no store is here", NOT_FOUND, hint=hint)
        return list(given)
    from twinlog.cli.local import default_directory
    from twinlog.cli.local_cluster import load_cluster

    cluster = load_cluster(default_directory())
    if cluster is None:
        raise CommandError("which store?", USAGE, hint="add --store DIR (storePathRootDir)")
    return [node.store_path for node in cluster.brokers]


def _tails(given: tuple[Path, ...]) -> list[tuple[Path, Tail]]:
    from twinlog.admin.tails import find_tails

    try:
        return [(store, found) for store in _stores(given) for found in find_tails(store)]
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", FAILED) from error


def _tail(given: tuple[Path, ...], name: str) -> Tail:
    found = {tail.name: tail for _, tail in _tails(given)}
    chosen = found.get(name.rstrip(os.sep).rpartition(os.sep)[2])
    if chosen is None:
        hint = nearest(name, list(found)) or "see: twinlog ha tail list"
        raise CommandError(f"no tail {name!r}", NOT_FOUND, hint=hint)
    return chosen


def _messages(found: Tail) -> list[ReceivedMessage]:
    try:
        return found.messages()
    except OSError as error:
        raise CommandError(f"{error.filename}: {error.strerror}", FAILED) from error


@tail.command("list", epilog="Example: twinlog ha tail list --store /var/lib/twinlog/store")
@_STORE
@once_options
def list_command(session: Session, stores: tuple[Path, ...]) -> int:
    """List the cuts of a store, with their contents."""
    rows = []
    for store, found in _tails(stores):
        parts = list(found.parts())
        messages = [message for part in parts for message in part.messages]
        rows.append(
            {
                "tail": found.name,
                "cut_ms": found.cut_ms,
                "offset": found.offset,
                "bytes": found.size,
                "messages": len(messages),
                "unreadable_bytes": sum(part.unreadable_bytes for part in parts),
                "topics": sorted({message.record.topic for message in messages}),
                "store": str(store),
            }
        )
    return show(session, Report([Table(_COLUMNS, rows, empty="nothing was cut")]))


@tail.command("show", epilog="Example: twinlog ha tail show cut-00000000000000081204-1763373667412")
@click.argument("name", metavar="TAIL")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(min=1),
              help="Print at most this many messages.")  # fmt: skip
@_STORE
@once_options
def show_command(session: Session, name: str, limit: int, stores: tuple[Path, ...]) -> int:
    """Print the messages of one cut, in the order of the log."""
    messages = _messages(_tail(stores, name))
    rows = [message_row(message) for message in messages[:limit]]
    notes = [f"{limit} of {len(messages)} are shown: raise --limit."] if messages[limit:] else []
    columns = [Column("topic"), *LIST_COLUMNS]
    table = Table(columns, rows, empty="no whole message", name_key="message_id")
    return show(session, Report([table], notes=notes))


@tail.command("resend", epilog="Example: twinlog ha tail resend cut-00000000000000081204-176 --yes")
@click.argument("name", metavar="TAIL")
@click.option(
    "--all", "is_all", is_flag=True, help="Also send messages whose id the cluster already has."
)
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@_STORE
@once_options
def resend(
    session: Session, name: str, is_all: bool, is_sure: bool, stores: tuple[Path, ...]
) -> int:
    """Send the messages of one cut to their topics again, with their ids.

    A message whose id the cluster has is left out: its producer has sent it again. Halves of
    transactions and a broker's own records are not sent. The files stay.
    """
    messages = _messages(_tail(stores, name))
    confirm(f"send the messages of {name} again?", is_sure)
    return show(session, call(session, lambda admin: _resend(admin, messages, is_all)))


_RESENT = [Column("message_id", "MESSAGE ID"), Column("topic"), Column("status"), Column("broker")]


async def _resend(admin: Admin, messages: list[ReceivedMessage], is_all: bool) -> Report:
    rows = [await _resend_one(admin, message, is_all) for message in messages]
    sent = [row for row in rows if row["broker"]]
    failed = [row for row in sent if row["status"] != "SEND_OK"]
    sentence = f"{len(sent) - len(failed)} of {len(rows)} messages were sent again"
    return Report([Table(_RESENT, rows)], sentence=sentence, is_healthy=not failed)


async def _resend_one(admin: Admin, message: ReceivedMessage, is_all: bool) -> dict[str, Any]:
    from twinlog.admin import tails
    from twinlog.client.errors import ClientError

    topic, reason = tails.topic_to_send(message)
    row = {"message_id": message.message_id, "topic": topic or message.record.topic}
    if not topic:
        return {**row, "status": f"not sent: {reason}", "broker": ""}
    try:
        if not is_all and await tails.is_there(admin, topic, message):
            return {**row, "status": "is there already", "broker": ""}
        receipt = await tails.send_again(admin, topic, message)
    except ClientError as error:
        return {**row, "status": f"failed: {error}", "broker": "?"}
    return {**row, "status": receipt.status.name, "broker": receipt.queue.broker_name}
