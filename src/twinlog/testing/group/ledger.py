"""What clients sent, what they were told, and what that promised. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

SEND_OK = 0
NOTHING_STORED = (2, 13, 14, 16, 17)


@dataclass
class Sent:
    """One message and the best that its producer knows."""

    number: int
    topic: str
    queue_id: int
    body: bytes
    sent_s: float
    is_once: bool = False
    status: str = "unknown"
    offset: int = -1
    ok_s: float = 0.0
    is_excused: bool = False
    """The mode does not promise that it survived what happened since."""

    def text(self) -> str:
        return f"message {self.number} of {self.topic}/{self.queue_id} at {self.offset}"


@dataclass
class Ledger:
    """Everything that was sent in one run."""

    messages: list[Sent] = field(default_factory=list)
    by_body: dict[bytes, Sent] = field(default_factory=dict)
    repeat_count: int = 0

    def new(self, topic: str, queue_id: int, filler: bytes, now_s: float, is_once: bool) -> Sent:
        number = len(self.messages)
        body = b"%06d:%s" % (number, filler)
        sent = Sent(number, topic, queue_id, body, now_s, is_once)
        self.messages.append(sent)
        self.by_body[body] = sent
        return sent

    def promised(self) -> Iterator[Sent]:
        """What must still be there."""
        return (sent for sent in self.messages if sent.status == "ok" and not sent.is_excused)

    def count(self, status: str) -> int:
        return sum(sent.status == status for sent in self.messages)


@dataclass
class Committed:
    """What one group was told about its offsets."""

    offset: int
    first_s: float
    history: list[tuple[float, int]] = field(default_factory=list)
    """When it was told so, and which offset."""
