"""`twinlog message ...`: find messages, see what became of them, send them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.consume import body_text, message_row
from twinlog.cli.admin.options import cluster_options, cluster_report, once_options
from twinlog.cli.admin.session import Session, call, confirm, run, run_async, show
from twinlog.cli.admin.topic import check_topic_exists
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, show_time
from twinlog.cli.times import now_ms, parse_time
from twinlog.runtime.numbers import INT32_MAX, number_or_none

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.client.message import ReceivedMessage


@click.group(cls=LazyGroup, short_help="Find messages; send them again.")
def message() -> None:
    """Find and resend single messages."""


def _short_body(row_body: Any) -> str:
    text = "-" if row_body is None else str(row_body)
    text = text.encode("unicode_escape").decode("ascii") if not text.isprintable() else text
    return text if len(text) <= 60 else f"{text[:57]}..."


LIST_COLUMNS = [
    Column("store_ms", "STORED", show_time),
    Column("broker"),
    Column("queue", is_right=True),
    Column("offset", is_right=True),
    Column("message_id", "MESSAGE ID"),
    Column("tags"),
    Column("keys"),
    Column("body", show=_short_body),
    Column("offset_message_id", "OFFSET MESSAGE ID", is_wide=True),
    Column("reconsume_times", "RETRIES", is_right=True, is_wide=True),
]


async def find(admin: Admin, message_id: str, topic: str | None) -> ReceivedMessage:
    """A message by its id, or an error that says what would help."""
    from twinlog.admin import messages
    from twinlog.client.errors import QueryNotFoundError

    if topic is not None:
        await check_topic_exists(admin, topic)
    try:
        return await messages.find(admin, message_id, topic)
    except QueryNotFoundError as error:
        if topic is not None or " at " in error.remark:
            raise CommandError(error.remark, NOT_FOUND) from error
        hint = "add --topic: then it is looked up in the topic's index"
        text = f"{message_id} names no broker of this cluster"
        raise CommandError(text, NOT_FOUND, hint=hint) from error


@message.command(epilog="Example: twinlog message get 7F00000100002A9F0000000000000000")
@click.argument("message_id")
@click.option("--topic", help="The topic; needed unless MESSAGE_ID is an offset message id.")
@cluster_options
def get(session: Session, message_id: str, topic: str | None) -> int:
    """Print one message, found by its id, with its properties and body."""
    return run(session, lambda admin: _get(admin, message_id, topic, session.output))


async def _get(admin: Admin, message_id: str, topic: str | None, output: str) -> Report:
    found = await find(admin, message_id, topic)
    row = message_row(found)
    if output in ("json", "yaml"):
        return Report(fields=row)
    if output == "name":
        return Report(fields={"message_id": found.message_id})
    properties: list[dict[str, Any]] = [
        {"property": name, "value": value} for name, value in found.properties.items()
    ]
    fields = {k: v for k, v in row.items() if k not in ("properties", "body", "body_base64")}
    fields["born_host"] = found.born_host
    fields["store_host"] = found.store_host
    fields["size"] = found.body_size
    fields["body"] = body_text(found)
    return Report([Table([Column("property"), Column("value")], properties, "properties")], fields)


@message.command(epilog="Example: twinlog message query orders --key o-1; "
                 "twinlog message query orders --since 10m")  # fmt: skip
@click.argument("topic")
@click.option("--key", help="Messages with this key.")
@click.option("--id", "message_id", help="The message with this id.")
@click.option("--queue", metavar="BROKER/QUEUE", help="The queue for --offset.")
@click.option("--offset", type=click.IntRange(min=0), help="The message at this offset of --queue.")
@click.option("--since", metavar="TIME", help="10m (ago), a date, milliseconds.")
@click.option("--until", metavar="TIME", help="In the form of --since; by default now.")
@click.option("--limit", default=64, show_default=True, type=click.IntRange(min=1),
              help="Print at most this many messages.")  # fmt: skip
@cluster_options
def query(session: Session, topic: str, **values: Any) -> int:
    """Find messages of a topic by key, id, offset or time."""
    modes = [name for name in ("key", "message_id", "offset") if values[name] is not None]
    if len(modes) > 1 or (not modes and values["since"] is None):
        raise CommandError("nothing to look for: give one of --key, --id, --offset, --since", USAGE)
    return run(session, lambda admin: _query(admin, topic, values))


async def _query(admin: Admin, topic: str, values: dict[str, Any]) -> Report:
    from twinlog.admin import messages

    await check_topic_exists(admin, topic)
    begin = parse_time(values["since"]) if values["since"] is not None else 0
    end = parse_time(values["until"]) if values["until"] is not None else now_ms()
    notes: list[str] = []
    if values["message_id"] is not None:
        found = [await find(admin, values["message_id"], topic)]
    elif values["key"] is not None:
        found = await messages.query_by_key(
            admin, topic, values["key"], max_count=values["limit"], begin_ms=begin, end_ms=end
        )
    elif values["offset"] is not None:
        found = [await _at_offset(admin, topic, values["queue"], values["offset"])]
    else:
        found, notes = await _by_time(admin, topic, begin, end, values["limit"])
    if not found:
        wanted = values["key"] or f"between {show_time(begin)} and {show_time(end)}"
        raise CommandError(f"no message {wanted} in topic {topic!r}", NOT_FOUND)
    rows = [message_row(entry) for entry in found]
    return Report([Table(LIST_COLUMNS, rows, name_key="message_id")], notes=notes)


async def _at_offset(admin: Admin, topic: str, queue: str | None, offset: int) -> ReceivedMessage:
    from twinlog.admin import messages
    from twinlog.client.queues import MessageQueue

    broker, separator, text = (queue or "").rpartition("/")
    number = number_or_none(text, high=INT32_MAX)
    if not separator or number is None:
        raise CommandError("--offset needs --queue BROKER/QUEUE", USAGE)
    return await messages.query_by_offset(admin, MessageQueue(topic, broker, number), offset)


async def _by_time(
    admin: Admin, topic: str, begin: int, end: int, limit: int
) -> tuple[list[ReceivedMessage], list[str]]:
    from twinlog.admin import messages

    scan = await messages.query_by_time(admin, topic, begin, end, limit=limit)
    notes = []
    if scan.has_more:
        notes.append(f"The first {limit} are shown; there are more: raise --limit.")
    if scan.is_cut:
        notes.append(f"Stopped after {messages.SCAN_MAX} messages: choose a shorter time.")
    return scan.messages, notes


@message.command(epilog="Example: twinlog message track 7F00...01 --topic orders")
@click.argument("message_id")
@click.option("--topic", help="The topic; needed unless MESSAGE_ID is an offset message id.")
@cluster_report
async def track(admin: Admin, message_id: str, topic: str | None) -> Report:
    """Show what each group did with a message."""
    from twinlog.admin import messages

    found = await find(admin, message_id, topic)
    rows: list[dict[str, Any]] = [
        {"group": entry.group, "state": entry.state, "reason": entry.reason}
        for entry in await messages.track(admin, found)
    ]
    columns = [Column("group"), Column("state"), Column("reason", is_wide=True)]
    return Report([Table(columns, rows, empty=f"no group consumes {found.topic}")])


@message.command(epilog="Example: twinlog message resend 7F00...01 --topic orders --yes")
@click.argument("message_id")
@click.option("--topic", help="The topic; needed unless MESSAGE_ID is an offset message id.")
@click.option("--to", "target", help="Topic to send to; otherwise the message's own.")
@click.option("--group", help="Deliver it only to this group, to a connected member.")
@click.option("--client-id", help="With --group: the member to deliver it to.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
@once_options
def resend(session: Session, message_id: str, is_sure: bool, **values: Any) -> int:
    """Send a message once more: to its topic, to another, or to one group only."""
    found = call(session, lambda admin: find(admin, message_id, values["topic"]))
    group = values["group"]
    if group is not None:
        confirm(f"have {group} handle {message_id} again?", is_sure)
        report = call(session, lambda admin: _hand_over(admin, found, group, values["client_id"]))
        return show(session, report)
    target = values["target"] or found.topic
    confirm(f"send {message_id} once more to {target} (all its groups get it)?", is_sure)
    report = run_async(session, lambda: _send_again(session, found, target))
    return show(session, report)


async def _hand_over(
    admin: Admin, found: ReceivedMessage, group: str, client_id: str | None
) -> Report:
    from twinlog.admin import groups, messages

    if client_id is None:
        members = await groups.group_members(admin, group)
        client_id = members.members[0].client_id
    result = await messages.consume_directly(admin, group, client_id, found)
    row = {
        "message_id": found.message_id, "group": group, "client_id": client_id,
        "result": result.consume_result, "milliseconds": result.spent_time_mills,
        "remark": result.remark,
    }  # fmt: skip
    columns = [Column(key) for key in row]
    return Report([Table(columns, [row])], is_healthy=row["result"] == "CR_SUCCESS")


async def _send_again(session: Session, found: ReceivedMessage, target: str) -> Report:
    from twinlog.admin import messages
    from twinlog.client.producer.producer import Producer

    producer = Producer(
        "TWINLOG_CLI_RESEND", name_server=session.namesrv, **session.client_settings
    )
    async with producer:
        receipt = await messages.send_again(producer, found, target)
    row = {
        "status": receipt.status.name, "message_id": receipt.message_id,
        "broker": receipt.queue.broker_name, "queue": receipt.queue.queue_id,
        "offset": receipt.queue_offset,
    }  # fmt: skip
    columns = [Column(key) for key in row]
    return Report([Table(columns, [row])], is_healthy=receipt.is_acknowledged)
