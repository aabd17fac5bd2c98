"""Messages and dead letters: find, look at, download, send again."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Annotated, Literal

from msgspec import Meta, Struct

from twinlog.admin import dead_letters, messages
from twinlog.admin.sending import send_copy
from twinlog.client.errors import ClientError
from twinlog.client.message import ReceivedMessage
from twinlog.client.queues import MessageQueue
from twinlog.console.access import Role
from twinlog.console.operations import BadParameters, Context, Done, Operation, Preview, Refused
from twinlog.console.views.lists import (
    GroupName,
    Milliseconds,
    Moment,
    QueueId,
    QueueOffset,
    TopicName,
    milliseconds,
)
from twinlog.console.wording import hex_dump

SHORT_MAX = 160
BODY_SHOWN_MAX = 64 * 1024
LETTERS_MAX = 200
TRACK_SECONDS = 3.0


class SearchParams(Struct, frozen=True):
    """By `id` or `key`, or by `queue` and `offset`, or by time: the last `minutes`, or a span,
    in milliseconds since 1970 (`begin_ms`, `end_ms`) or in ISO 8601 (`begin`, `end`)."""

    topic: str = ""
    by: Literal["", "id", "key", "offset", "time"] = ""
    id: str = ""
    key: str = ""
    broker: str = ""
    queue: QueueId | None = None
    offset: QueueOffset | None = None
    minutes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    begin_ms: Milliseconds | None = None
    end_ms: Milliseconds | None = None
    begin: Moment | None = None
    end: Moment | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 64


class MessageRow(Struct, frozen=True, kw_only=True):
    """A message in a list. `short` is the beginning of its body as text."""

    topic: str
    broker: str
    queue: int
    offset: int
    message_id: str
    offset_message_id: str
    tags: str
    keys: list[str]
    store_ms: int
    size: int
    short: str
    reconsume_times: int


class Search(Struct, frozen=True):
    is_asked: bool
    messages: list[MessageRow]
    notes: list[str]


class MessageParams(Struct, frozen=True):
    id: str
    topic: TopicName | None = None
    view: Literal["text", "json", "hex"] = "text"


class Track(Struct, frozen=True):
    group: str
    state: str
    reason: str


class MessageView(Struct, frozen=True, kw_only=True):
    """One message. `body` is base64; `shown` the body in the form that was asked for, cut."""

    row: MessageRow
    born_ms: int
    born_host: str
    store_host: str
    physical_offset: int
    flag: int
    sys_flag: int
    properties: dict[str, str]
    body: str
    view: str
    shown: str
    is_cut: bool
    copies: dict[str, bool | None]
    tracks: list[Track]


class ResendParams(Struct, frozen=True):
    id: str
    topic: TopicName | None = None
    to: str = ""


class LetterGroup(Struct, frozen=True):
    group: str
    count: int
    last_ms: int


class LetterGroups(Struct, frozen=True):
    groups: list[LetterGroup]
    missing: list[str]


class LettersParams(Struct, frozen=True):
    group: GroupName
    limit: Annotated[int, Meta(ge=1, le=1_000)] = LETTERS_MAX


class Letters(Struct, frozen=True):
    group: str
    messages: list[MessageRow]
    has_more: bool


class ResendLetters(Struct, frozen=True):
    group: GroupName
    ids: list[str] = []
    all: bool = False


def short_text(body: bytes) -> str:
    """The beginning of a body in one line; of what is no text the first bytes."""
    start = body[: 4 * SHORT_MAX]
    text = start.decode("utf-8", "replace")
    broken = text[:-3].count("\ufffd")  # The cut may have hit a character; more is no text.
    if broken or "\x00" in text:
        return start[:32].hex(" ") + (" …" if len(body) > 32 else "")
    short = " ".join(text.rstrip("\ufffd").split())
    return short if len(short) <= SHORT_MAX else short[: SHORT_MAX - 1] + "…"


def row_of(message: ReceivedMessage) -> MessageRow:
    return MessageRow(
        topic=message.topic,
        broker=message.queue.broker_name,
        queue=message.queue.queue_id,
        offset=message.queue_offset,
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        tags=message.tags or "",
        keys=message.keys,
        store_ms=message.store_timestamp,
        size=len(message.body),
        short=short_text(message.body),
        reconsume_times=message.reconsume_times,
    )


async def search(context: Context, params: SearchParams) -> Search:
    if not params.by:
        return Search(False, [], [])
    if not params.topic and params.by != "id":
        raise BadParameters("which topic?")
    found, notes = await _find(context, params)
    return Search(True, [row_of(message) for message in found], notes)


async def _find(context: Context, params: SearchParams) -> tuple[list[ReceivedMessage], list[str]]:
    admin = context.admin
    if params.by == "id":
        return [await messages.find(admin, params.id.strip(), params.topic or None)], []
    if params.by == "key":
        return await messages.query_by_key(
            admin, params.topic, params.key.strip(), max_count=params.limit
        ), []
    if params.by == "offset":
        if not params.broker or params.queue is None or params.offset is None:
            raise BadParameters("broker, queue and offset are needed")
        place = MessageQueue(params.topic, params.broker, params.queue)
        return await messages.read_queue(admin, place, params.offset), []
    if params.by == "time":
        begin_ms, end_ms = _span(params, context.clock.now_ms())
        scan = await messages.query_by_time(
            admin, params.topic, begin_ms, end_ms, limit=params.limit
        )
        notes = []
        if scan.has_more:
            notes.append(f"The first {params.limit} are shown; there are more.")
        if scan.is_cut:
            notes.append(f"Stopped after {messages.SCAN_MAX} messages: choose a shorter time.")
        return scan.messages, notes
    raise AssertionError(params.by)


def _span(params: SearchParams, now_ms: int) -> tuple[int, int]:
    end_ms = milliseconds(params.end) if params.end is not None else params.end_ms or now_ms
    if params.begin is not None:
        return milliseconds(params.begin), end_ms
    if params.begin_ms is not None:
        return params.begin_ms, end_ms
    return max(0, end_ms - 60_000 * (params.minutes or 10)), end_ms


async def show_message(context: Context, params: MessageParams) -> MessageView:
    message = await messages.find(context.admin, params.id, params.topic)
    where, tracks = await asyncio.gather(_copies(context, message), _tracks(context, message))
    body = message.body
    view, shown = body_as(body[:BODY_SHOWN_MAX], params.view, is_whole=len(body) <= BODY_SHOWN_MAX)
    return MessageView(
        row=row_of(message),
        born_ms=message.born_timestamp,
        born_host=message.born_host,
        store_host=message.store_host,
        physical_offset=message.physical_offset,
        flag=message.flag,
        sys_flag=message.sys_flag,
        properties=dict(message.properties),
        body=base64.b64encode(body).decode(),
        view=view,
        shown=shown,
        is_cut=len(body) > BODY_SHOWN_MAX,
        copies=where,
        tracks=tracks,
    )


def body_as(body: bytes, view: str, *, is_whole: bool = True) -> tuple[str, str]:
    """The body as text, JSON or hex; what cannot be shown as asked is shown as hex or text."""
    if view == "hex":
        return "hex", hex_dump(body)
    try:
        text = body.decode("utf-8", "strict" if is_whole else "ignore")
    except UnicodeDecodeError:
        return "hex", hex_dump(body)
    if view == "json":
        try:
            return "json", _pretty(text)
        except (ValueError, RecursionError):
            return "text", text
    return "text", text


def _pretty(text: str) -> str:
    """JSON with its characters as they are; half a pair, which no text may hold, stays escaped."""
    value = json.loads(text)
    shown = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        shown.encode()
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return shown


async def _copies(context: Context, message: ReceivedMessage) -> dict[str, bool | None]:
    try:
        return await messages.copies(context.admin, message)
    except ClientError:
        return {}


async def _tracks(context: Context, message: ReceivedMessage) -> list[Track]:
    try:
        async with asyncio.timeout(TRACK_SECONDS):
            found = await messages.track(context.admin, message)
    except (ClientError, TimeoutError):
        return []
    return [Track(entry.group, entry.state, entry.reason) for entry in found]


async def resend(context: Context, params: ResendParams) -> Done:
    message = await messages.find(context.admin, params.id, params.topic)
    target = params.to or message.topic
    receipt = await send_copy(
        context.name_server, context.settings, messages.RESEND_GROUP, message, target
    )
    text = f"{receipt.status.name}: sent again to {target} as {receipt.message_id}"
    return Done(text, [{"message_id": receipt.message_id}], receipt.is_acknowledged)


async def preview_resend(context: Context, params: ResendParams) -> Preview:
    message = await messages.find(context.admin, params.id, params.topic)
    target = params.to or message.topic
    return Preview([f"A new message with the same body goes to {target}: all its groups get it."])


# Dead letters


async def letter_groups(context: Context, _: Struct) -> LetterGroups:
    found = await dead_letters.dead_letter_groups(context.admin)
    missing = [f"{a}: {error}" for entry in found for a, error in entry.failures.items()]
    rows = [LetterGroup(entry.group, entry.count, entry.last_ms) for entry in found]
    return LetterGroups(rows, missing)


async def letters(context: Context, params: LettersParams) -> Letters:
    rows: list[MessageRow] = []
    async for letter in dead_letters.letters(context.admin, params.group):
        if len(rows) == params.limit:
            return Letters(params.group, rows, True)
        rows.append(row_of(letter))
    return Letters(params.group, rows, False)


def _chosen(params: ResendLetters) -> list[str]:
    if not params.ids and not params.all:
        raise BadParameters("choose messages, or all of them")
    return [] if params.all else params.ids


async def preview_letters(context: Context, params: ResendLetters) -> Preview:
    ids = _chosen(params)
    rest = "Other groups do not see them, and the dead letters stay where they are."
    where = f"go to the retry topic of {params.group}, with a fresh count of retries."
    return Preview(
        [f"{len(ids)} dead letters {where}" if ids else f"All dead letters {where}", rest]
    )


async def resend_letters(context: Context, params: ResendLetters) -> Done:
    ids = _chosen(params)
    sent = await dead_letters.resend_letters(context.admin, params.group, ids)
    if ids and not sent:
        raise Refused("none of these messages is among the dead letters", 404)
    details = [
        {"message_id": letter.message_id, "status": receipt.status.name} for letter, receipt in sent
    ]
    is_ok = all(receipt.is_acknowledged for _, receipt in sent)
    return Done(f"{len(sent)} dead letters went to {params.group} again", details, is_ok)


OPERATIONS = [
    Operation(
        name="messages", method="GET", path="/messages", run=search, params=SearchParams,
        result=Search, summary="Messages by id, key, time, or queue and offset.",
    ),
    Operation(
        name="message", method="GET", path="/messages/{id}", run=show_message,
        params=MessageParams, result=MessageView,
        summary="One message, where its copies are, and who consumed it.",
    ),
    Operation(
        name="message.resend", method="POST", path="/messages/{id}/resend", run=resend,
        params=ResendParams, role=Role.ADMIN, preview=preview_resend, asks=True,
        summary="Send a message once more, to its topic or to another.",
    ),
    Operation(
        name="dead-letters", method="GET", path="/dead-letters", run=letter_groups,
        result=LetterGroups, summary="Groups that gave messages up.",
    ),
    Operation(
        name="letters", method="GET", path="/dead-letters/{group}", run=letters,
        params=LettersParams, result=Letters, summary="The dead letters of a group.",
    ),
    Operation(
        name="letters.resend", method="POST", path="/dead-letters/{group}/resend",
        run=resend_letters, params=ResendLetters, role=Role.ADMIN, preview=preview_letters,
        asks=True, summary="Give a group its dead letters again.",
    ),
]  # fmt: skip
