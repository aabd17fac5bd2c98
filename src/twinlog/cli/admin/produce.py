"""`twinlog topic produce`: messages from arguments, lines of standard input, or a file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

import click

from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, run_async, show
from twinlog.cli.admin.topic import check_topic_exists
from twinlog.cli.exit_codes import UNHEALTHY, USAGE, CommandError
from twinlog.cli.output import Column, Report, Table
from twinlog.runtime.numbers import INT32_MAX, number_or_none

if TYPE_CHECKING:
    from twinlog.client.message import Message, SendReceipt
    from twinlog.client.queues import MessageQueue

GROUP = "TWINLOG_CLI_PRODUCER"
IN_FLIGHT_MAX = 1000
_COLUMNS = [
    Column("status"),
    Column("message_id", "MESSAGE ID"),
    Column("broker"),
    Column("queue", is_right=True),
    Column("offset", is_right=True),
    Column("offset_message_id", "OFFSET MESSAGE ID", is_wide=True),
]


@click.command(
    epilog="Examples: echo hi | twinlog topic produce orders --tag TagA --key o-1; "
    "twinlog topic produce orders -f events.jsonl --json"
)
@click.argument("topic")
@click.argument("bodies", nargs=-1)
@click.option("-f", "--file", type=click.Path(dir_okay=False),
              help="Read this file instead of standard input.")  # fmt: skip
@click.option("--whole", is_flag=True, help="The whole input is one message, not each line.")
@click.option(
    "--json", "is_json", is_flag=True, help="Each line is an object as `consume --json` prints it."
)
@click.option("--tag", help="Tag of the messages.")
@click.option("--key", "keys", multiple=True, help="Key of the messages; repeatable.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE",
              help="A property of the messages. Repeatable.")  # fmt: skip
@click.option(
    "--delay-level",
    type=click.IntRange(0, 18),
    default=0,
    help="Deliver later: 1 is 1s, 2 is 5s, 3 is 10s, 4 is 30s, 5 is 1m, ...",
)
@click.option("--sharding-key", help="Messages with the same sharding key stay in order.")
@click.option("--queue", metavar="BROKER/QUEUE", help="Send to exactly this queue.")
@click.option("--create", is_flag=True, help="Let the broker create the topic if it is missing.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@once_options
def produce(session: Session, topic: str, bodies: tuple[str, ...], **values: Any) -> int:
    """Send BODIES, or each line of standard input or of a file, as a message."""
    values["properties"] = dict(_pair(text) for text in values["properties"])
    for name, option in (("file", "--file"), ("is_json", "--json"), ("whole", "--whole")):
        if bodies and values[name]:
            raise CommandError(f"give BODIES or {option}, not both", USAGE)
    messages = _messages(topic, bodies, values)
    receipts = run_async(session, lambda: _send(session, topic, messages, values))
    rows = [_row(receipt) for receipt in receipts]
    bad = sum(not receipt.is_acknowledged for receipt in receipts)
    if bad:
        text = f"{bad} of {len(receipts)} are stored on the master only: see their status"
        click.echo(f"twinlog: {text}", err=True)
    if not values["quiet"]:
        show(session, Report([Table(_COLUMNS, rows, empty="no input, nothing was sent")]))
    return UNHEALTHY if bad else 0


def _row(receipt: SendReceipt) -> dict[str, Any]:
    return {
        "status": receipt.status.name,
        "message_id": receipt.message_id,
        "broker": receipt.queue.broker_name,
        "queue": receipt.queue.queue_id,
        "offset": receipt.queue_offset,
        "offset_message_id": receipt.offset_message_id,
    }


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise CommandError(f"--property {text!r} is not NAME=VALUE", USAGE)
    return name, value


def _messages(topic: str, bodies: tuple[str, ...], values: dict[str, Any]) -> Iterator[Message]:
    if bodies:
        for body in bodies:
            yield _message(topic, os.fsencode(body), values)
        return
    with _input(values["file"]) as stream:
        if values["whole"]:
            yield _message(topic, stream.read(), values)
            return
        for number, line in enumerate(stream, 1):
            content = line.rstrip(b"\r\n")
            if content:
                yield _from_line(topic, content, number, values)


def _input(path: str | None) -> IO[bytes]:
    if path is None:
        if sys.stdin.isatty():
            click.echo("twinlog: one message per line; end with Ctrl-D", err=True)
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", 3) from error


def _from_line(topic: str, line: bytes, number: int, values: dict[str, Any]) -> Message:
    if not values["is_json"]:
        return _message(topic, line, values)
    try:
        return _from_object(topic, json.loads(line), values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"line {number} is not a message as `consume --json` prints it"
        raise CommandError(text, USAGE, hint='for example {"body": "hi", "tags": "a"}') from error


def _from_object(topic: str, data: dict[str, Any], values: dict[str, Any]) -> Message:
    body = data["body"]
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    given = {**values}
    given["tag"] = data.get("tags") or values["tag"]
    keys = data.get("keys") or values["keys"]
    given["keys"] = [keys] if isinstance(keys, str) else keys
    own = _user_properties(data.get("properties") or {})
    given["properties"] = {**values["properties"], **own}
    return _message(topic, text.encode(), given)


def _user_properties(properties: dict[str, str]) -> dict[str, str]:
    """Of what `consume --json` printed, the properties that a sender may set."""
    from twinlog.client.message import RESERVED_PROPERTIES

    return {name: str(v) for name, v in properties.items() if name not in RESERVED_PROPERTIES}


def _message(topic: str, body: bytes, values: dict[str, Any]) -> Message:
    from twinlog.client.message import Message

    return Message(
        topic, body, tags=values["tag"], keys=tuple(values["keys"]),
        properties=values["properties"] or None, delay_level=values["delay_level"],
        sharding_key=values["sharding_key"],
    )  # fmt: skip


async def _send(
    session: Session, topic: str, messages: Iterator[Message], values: dict[str, Any]
) -> list[SendReceipt]:
    from twinlog.client.producer.producer import Producer

    if not values["create"]:
        async with session.admin() as admin:
            await check_topic_exists(admin, topic, also=" (or add --create)")
    queue = _queue(topic, values["queue"])
    receipts: list[SendReceipt] = []
    async with Producer(GROUP, name_server=session.namesrv, **session.client_settings) as producer:
        if queue is not None:
            return [await producer.send(message, queue=queue) for message in messages]
        batch: list[Message] = []
        for message in messages:
            batch.append(message)
            if len(batch) >= IN_FLIGHT_MAX:
                receipts += await producer.send_many(batch)
                batch.clear()
        receipts += await producer.send_many(batch)
    return receipts


def _queue(topic: str, text: str | None) -> MessageQueue | None:
    from twinlog.client.queues import MessageQueue

    if text is None:
        return None
    broker, separator, digits = text.rpartition("/")
    number = number_or_none(digits, high=INT32_MAX)
    if not separator or number is None:
        raise CommandError(f"--queue {text!r} is not BROKER/QUEUE", USAGE)
    return MessageQueue(topic, broker, number)
