"""`twinlog topic consume` and `tail`: messages on the screen or in a pipe, without joining a group.

Every queue is read by one loop of pulls; an offset of a group is neither used nor changed. With
`--group` the command is a member of that group instead and commits what it has printed.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import connection_options
from twinlog.cli.admin.session import Session, call, run_async
from twinlog.cli.admin.topic import check_topic_exists
from twinlog.cli.exit_codes import USAGE, CommandError
from twinlog.cli.output import OUTPUTS, show_time
from twinlog.cli.times import parse_time
from twinlog.message.names import TOOLS_GROUP
from twinlog.runtime.numbers import INT64_MAX, number_or_none

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.client.message import ReceivedMessage
    from twinlog.client.queues import MessageQueue
    from twinlog.remoting.bodies.subscription import SubscriptionData

SUSPEND_MS = 5000
PULL_COUNT = 32
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What to print of a topic."""

    topic: str
    start: str = "start"
    expression: str = "*"
    is_sql: bool = False
    queue: str | None = None
    count_max: int | None = None
    stops_at_end: bool = False


def body_text(message: ReceivedMessage) -> str:
    return message.body.decode("utf-8", "backslashreplace")


def message_row(message: ReceivedMessage) -> dict[str, Any]:
    """A message as JSON has it; a body that is no text comes in base64."""
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "tags": message.tags,
        "keys": message.keys,
        "born_ms": message.born_timestamp,
        "store_ms": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
        "properties": message.properties,
    }
    try:
        row["body"] = message.body.decode("utf-8")
    except UnicodeDecodeError:
        import base64

        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


def message_line(message: ReceivedMessage) -> str:
    place = f"{message.queue.broker_name}/{message.queue.queue_id}@{message.queue_offset}"
    marks = [f"[{message.tags}]"] if message.tags else []
    marks += [f"key={','.join(message.keys)}"] if message.keys else []
    return " ".join((show_time(message.store_timestamp), place, *marks, body_text(message)))


def printer(output: str, template: str | None, body_only: bool) -> Callable[..., None]:
    """A function that prints one message."""
    if template is not None:
        return _template_printer(template)
    if body_only:

        def write_body(message: ReceivedMessage) -> None:
            sys.stdout.buffer.write(message.body + b"\n")
            sys.stdout.buffer.flush()

        return write_body
    if output in ("json", "yaml"):
        return lambda message: click.echo(json.dumps(message_row(message), ensure_ascii=False))
    if output == "name":
        return lambda message: click.echo(message.message_id)
    return lambda message: click.echo(message_line(message))


_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\0": "\0", r"\\": "\\"}


def _template_printer(template: str) -> Callable[..., None]:
    text = re.sub(r"\\[ntr0\\]", lambda match: _ESCAPES[match[0]], template)

    def write(message: ReceivedMessage) -> None:
        row = message_row(message)
        row["body"] = body_text(message)
        row["keys"] = ",".join(message.keys)
        row["time"] = show_time(message.store_timestamp)
        try:
            click.echo(text.format(**row))
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            known = ", ".join(sorted(row))
            why = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise CommandError(
                f"--format {template!r}: {why}", USAGE, hint=f"the fields are: {known}"
            ) from error

    return write


_SHARED = [
    click.argument("topic"),
    click.option("--tag", "expression", default="*", help="Only these tags: 'a || b'."),
    click.option("--sql", help="Only messages that meet this SQL92 condition."),
    click.option("--queue", metavar="BROKER/QUEUE", help="Only one queue."),
    click.option("-f", "--format", "template", help="E.g. '{time} {queue} {offset} {body}'."),
    click.option("--body", "body_only", is_flag=True, help="Only the bodies, as they are."),
    click.option("--json", "is_json", is_flag=True, help="One JSON object per line; also -o json."),
]


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SHARED):
        command = option(command)
    return command


@click.command(epilog="Example: twinlog topic consume orders -o start -e --json")
@_shared
@click.option("-o", "--offset", "offsets", multiple=True, metavar="WHERE",
              help="start, end, N (offset), -N (last N of each queue), 10m (ago), a date; "
              "or json, name: how to print.")  # fmt: skip
@click.option("-e", "--exit", "stops_at_end", is_flag=True, help="Stop at the end of the topic.")
@click.option(
    "-c", "--count", "count_max", type=click.IntRange(min=1), help="Stop after this many messages."
)
@click.option("--group", help="As a member of this group: shares queues, commits offsets.")
@connection_options
def consume(
    session: Session, topic: str, offsets: tuple[str, ...], group: str | None, **values: Any
) -> int:
    """Print the messages of a topic, from the start unless --offset is given."""
    output, start = "json" if values["is_json"] else "table", "start"
    for text in offsets:
        if text in OUTPUTS:
            output = text
        else:
            start = text
    show = printer(output, values["template"], values["body_only"])
    wish = _wish(topic, start, values)
    wish = replace(wish, count_max=values["count_max"], stops_at_end=values["stops_at_end"])
    if group is not None:
        if offsets and start != "start":
            raise CommandError("--offset and --group exclude each other: a group has its own",
                               USAGE, hint="move it with: twinlog group reset")  # fmt: skip
        run_async(session, lambda: _consume_as_member(session, group, wish, show))
    else:
        call(session, lambda admin: read(admin, wish, show))
    return 0


@click.command(epilog="Example: twinlog topic tail orders -l 10")
@_shared
@click.option("-l", "--last", default=10, show_default=True,
              help="Begin with the last N messages of each queue.")  # fmt: skip
@connection_options
def tail(session: Session, topic: str, last: int, **values: Any) -> int:
    """Print the last messages of a topic, then each one that comes, until interrupted."""
    output = "json" if values["is_json"] else "table"
    show = printer(output, values["template"], values["body_only"])
    wish = _wish(topic, f"-{last}" if last else "end", values)
    call(session, lambda admin: read(admin, wish, show))
    return 0


def _wish(topic: str, start: str, values: dict[str, Any]) -> Wish:
    return Wish(
        topic, start, values["sql"] or values["expression"], values["sql"] is not None,
        values["queue"],
    )  # fmt: skip


# Reading without a group


async def read(admin: Admin, wish: Wish, show: Callable[[ReceivedMessage], None]) -> None:
    """Print until the end, the count or the user says stop."""
    from twinlog.client.consumer.subscription import parse_subscription

    await check_topic_exists(admin, wish.topic)
    queues = await _queues(admin, wish)
    subscription = parse_subscription(wish.topic, wish.expression, sql=wish.is_sql)
    left = _Budget(wish.count_max)
    readers = [
        asyncio.ensure_future(_read_queue(admin, queue, wish, subscription, left, show))
        for queue in queues
    ]
    try:
        await asyncio.gather(*readers)
    except _Enough:
        pass
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


class _Enough(Exception):
    """As many messages as were wanted are printed."""


class _Budget:
    """How many messages may still be printed, over all queues."""

    def __init__(self, count_max: int | None) -> None:
        self._left = count_max

    def spend(self) -> None:
        if self._left is not None:
            self._left -= 1

    def check(self) -> None:
        if self._left is not None and self._left <= 0:
            raise _Enough


async def _queues(admin: Admin, wish: Wish) -> list[MessageQueue]:
    queues = (await admin.instance.route(wish.topic)).read_queues(wish.topic)
    if wish.queue is None:
        return queues
    broker, _, number = wish.queue.rpartition("/")
    chosen = [q for q in queues if str(q.queue_id) == number and broker in ("", q.broker_name)]
    if not chosen:
        known = ", ".join(f"{q.broker_name}/{q.queue_id}" for q in queues[:8])
        raise CommandError(f"no queue {wish.queue!r} in {wish.topic}", 3, hint=f"there is: {known}")
    return chosen


async def start_offset(admin: Admin, queue: MessageQueue, start: str) -> int:
    from twinlog.client.net import calls

    low = await calls.min_offset(admin.instance, queue)
    high = await calls.max_offset(admin.instance, queue)
    if start in ("start", "beginning", "earliest", "first"):
        return low
    if start in ("end", "latest", "last"):
        return high
    number = number_or_none(start, -INT64_MAX)
    if number is not None and start.startswith("-"):
        return max(low, high + number)
    if number is not None and len(start) < 10:
        return min(max(low, number), high)
    return await calls.offset_for_time(admin.instance, queue, parse_time(start))


async def _read_queue(
    admin: Admin,
    queue: MessageQueue,
    wish: Wish,
    subscription: SubscriptionData,
    left: _Budget,
    show: Callable[[ReceivedMessage], None],
) -> None:
    from twinlog.client.errors import TransportError
    from twinlog.client.net import calls

    offset = await start_offset(admin, queue, wish.start)
    end = await calls.max_offset(admin.instance, queue)
    while not wish.stops_at_end or offset < end:
        try:
            result = await calls.pull(
                admin.instance, queue, offset, group=TOOLS_GROUP, count_max=PULL_COUNT,
                subscription=subscription, suspend_ms=0 if wish.stops_at_end else SUSPEND_MS,
            )  # fmt: skip
        except TransportError as error:
            # The other replica, or the same one when it is back: a reader does not give up.
            click.echo(f"twinlog: {queue.broker_name}/{queue.queue_id}: {error}", err=True)
            await asyncio.sleep(RETRY_SECONDS)
            continue
        for message in result.messages:
            if subscription.accepts(message.tags) and not (
                wish.stops_at_end and message.queue_offset >= end
            ):
                left.check()
                show(message)
                left.spend()
        left.check()
        if result.next_offset == offset and not result.messages and wish.stops_at_end:
            return
        offset = result.next_offset


# Reading as a member


async def _consume_as_member(
    session: Session, group: str, wish: Wish, show: Callable[[ReceivedMessage], None]
) -> None:
    from twinlog.client.consumer.consumer_core import ConsumeFrom
    from twinlog.client.consumer.pull_consumer import PullConsumer

    async with session.admin() as admin:
        await check_topic_exists(admin, wish.topic)
    left = wish.count_max
    idle_ms = 3000 if wish.stops_at_end else 1 << 30
    consumer = PullConsumer(
        group, name_server=session.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET,
        **session.client_settings,
    )  # fmt: skip
    async with consumer:
        await consumer.subscribe(wish.topic, wish.expression, sql=wish.is_sql)
        while left is None or left > 0:
            batch = await consumer.poll(idle_ms, min(PULL_COUNT, left or PULL_COUNT))
            if not batch:
                return
            for message in batch:
                show(message)
            if left is not None:
                left -= len(batch)
