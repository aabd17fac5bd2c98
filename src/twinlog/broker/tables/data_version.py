"""DataVersion: how a table says that it changed. Equal only when both numbers are."""

from __future__ import annotations

from typing import Any

from twinlog.runtime.numbers import number_of


class DataVersion:
    """A counter and the time of the last change, as RocketMQ's class of the same name."""

    __slots__ = ("counter", "timestamp")

    def __init__(self, timestamp: int = 0, counter: int = 0) -> None:
        self.timestamp = timestamp
        self.counter = counter

    def next_version(self, now_ms: int) -> None:
        self.timestamp = now_ms
        self.counter += 1

    def assign(self, other: Any) -> None:
        """Take over what a file or a master says (a JSON object, or nothing)."""
        if isinstance(other, dict):
            self.timestamp = number_of(other.get("timestamp") or 0)
            self.counter = number_of(other.get("counter") or 0)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "timestamp": self.timestamp}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DataVersion)
            and self.counter == other.counter
            and self.timestamp == other.timestamp
        )

    def __hash__(self) -> int:
        return hash((self.counter, self.timestamp))

    def __repr__(self) -> str:
        return f"DataVersion(counter={self.counter}, timestamp={self.timestamp})"
