"""What the producer of a simulation sent, and what it knows of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Sent:
    """One message and what its producer knows: "ok", "unknown" or "refused"."""

    body: bytes
    end_offset: int = -1
    status: str = "unknown"


@dataclass
class History:
    """Everything the producer did."""

    messages: dict[int, Sent] = field(default_factory=dict)
    next_number: int = 0

    def count(self, status: str) -> int:
        return sum(sent.status == status for sent in self.messages.values())
