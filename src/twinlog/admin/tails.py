"""What was cut from a log when it rejoined its group, or recovered: read, shown, sent again.

A cut moves bytes to `store/twinlog/cut-OFFSET-TIME/`, one file for each segment, named by the
offset in the log at which its bytes began. The files stay until somebody removes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinlog.admin.client import Admin
from twinlog.admin.messages import query_by_unique_id, send_stored
from twinlog.client.errors import QueryNotFoundError, TopicNotFoundError
from twinlog.client.message import ReceivedMessage, SendReceipt
from twinlog.message.names import (
    HALF_TOPIC,
    METADATA_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SEND_FORBIDDEN_TOPICS,
)
from twinlog.message.properties import (
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
)
from twinlog.message.record import ScanStop, decode_record, scan

_PART = re.compile(r"[0-9]{20}\Z")
_NAME = re.compile(r"cut-([0-9]{20})-([0-9]{1,15})\Z")
_KEPT_BY_BROKERS = {
    HALF_TOPIC: "the half of a transaction: its producer decides again",
    OP_HALF_TOPIC: "the end of a transaction",
    METADATA_TOPIC: "topics, groups and offsets of the broker",
}


@dataclass(frozen=True, slots=True)
class TailPart:
    """One file: where its bytes began, its whole records, and how many bytes are none."""

    path: Path
    offset: int
    messages: tuple[ReceivedMessage, ...]
    unreadable_bytes: int


@dataclass(frozen=True, slots=True)
class Tail:
    """One cut."""

    path: Path
    offset: int
    cut_ms: int

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.path.iterdir() if _PART.match(path.name))

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files)

    def parts(self) -> Iterator[TailPart]:
        for path in self.files:
            yield _read_part(path)

    def messages(self) -> list[ReceivedMessage]:
        return [message for part in self.parts() for message in part.messages]


def _read_part(path: Path) -> TailPart:
    """Whole records from the start on; a cut never begins inside of one, but a crash may end so."""
    data, offset = path.read_bytes(), int(path.name)
    found = scan(data, 0, offset)
    messages = []
    position = 0
    for entry in found.entries:
        messages.append(ReceivedMessage(decode_record(data, position), ""))
        position += entry[1]
    is_all = found.stop in (ScanStop.END, ScanStop.BLANK, ScanStop.EMPTY)
    left = 0 if is_all else len(data) - found.position
    return TailPart(path, offset, tuple(messages), left)


def find_tails(store: Path) -> list[Tail]:
    """The cuts of a store, oldest first. `store` is `storePathRootDir`."""
    directory = store / "twinlog"
    if not directory.is_dir():
        return []
    found = [(path, _NAME.match(path.name)) for path in directory.iterdir() if path.is_dir()]
    tails = [Tail(path, int(match[1]), int(match[2])) for path, match in found if match]
    return sorted(tails, key=lambda tail: (tail.cut_ms, tail.offset))


def topic_to_send(message: ReceivedMessage) -> tuple[str, str]:
    """The topic to which a message goes, or why it cannot be sent again."""
    topic = message.record.topic
    if topic == SCHEDULE_TOPIC:
        real = message.properties.get(PROPERTY_REAL_TOPIC, "")
        return (real, "") if real else ("", "a delayed message that names no topic")
    if topic in SEND_FORBIDDEN_TOPICS:
        return "", _KEPT_BY_BROKERS.get(topic, "a record of the broker's own")
    return topic, ""


async def is_there(admin: Admin, topic: str, message: ReceivedMessage) -> bool:
    """Whether the cluster has a message with this id: a producer that got no answer sent again."""
    unique = message.properties.get(PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    if not unique:
        return False
    try:
        await query_by_unique_id(admin, topic, unique)
    except (QueryNotFoundError, TopicNotFoundError):
        return False
    return True


async def send_again(admin: Admin, topic: str, message: ReceivedMessage) -> SendReceipt:
    """As it was stored: same body, properties and id, and the same queue where there is one."""
    dropped = frozenset((PROPERTY_REAL_TOPIC, PROPERTY_REAL_QUEUE_ID))
    return await send_stored(admin, topic, message, dropped, queue_id=message.queue.queue_id)
