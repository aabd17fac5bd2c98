"""Requests that wait for their answers. Pure: time is passed in.

Corresponds to the response table of RocketMQ's NettyRemotingAbstract. One table per connection: an
answer that comes over another connection matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from twinlog.remoting.command import Request
from twinlog.remoting.errors import RemotingError

# Called once: with the answer, or with None and the reason.
AnswerCallback = Callable[[Request | None, RemotingError | None], object]
_OPAQUE_MASK = 0x7FFFFFFF


class OpaqueCounter:
    """Numbers for requests: 31 bits, so that no peer sees a negative one."""

    __slots__ = ("_next",)

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def take(self) -> int:
        opaque = self._next
        self._next = (opaque + 1) & _OPAQUE_MASK
        return opaque


class PendingRequests:
    """Opaque -> who waits and until when."""

    __slots__ = ("_entries", "next_deadline_ms")

    def __init__(self) -> None:
        self._entries: dict[int, tuple[AnswerCallback, int, int]] = {}
        self.next_deadline_ms: int | None = (
            None  # No later than the earliest deadline in the table.
        )

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, opaque: int, callback: AnswerCallback, deadline_ms: int, code: int) -> bool:
        """Register a request before it is sent. True: its deadline is the earliest now."""
        assert opaque not in self._entries, opaque
        self._entries[opaque] = (callback, deadline_ms, code)
        if self.next_deadline_ms is None or deadline_ms < self.next_deadline_ms:
            self.next_deadline_ms = deadline_ms
            return True
        return False

    def __contains__(self, opaque: int) -> bool:
        return opaque in self._entries

    def take(self, opaque: int) -> AnswerCallback | None:
        """Who waits for this answer; None when nobody does (late, or never asked)."""
        entry = self._entries.pop(opaque, None)
        return None if entry is None else entry[0]

    def expire(self, now_ms: int) -> list[tuple[AnswerCallback, int]]:
        """Remove and return those whose deadline has passed, with their codes."""
        due = [opaque for opaque, entry in self._entries.items() if entry[1] <= now_ms]
        expired = [self._entries.pop(opaque) for opaque in due]
        self.next_deadline_ms = min((entry[1] for entry in self._entries.values()), default=None)
        return [(callback, code) for callback, _, code in expired]

    def drain(self) -> list[AnswerCallback]:
        """Remove and return all: the connection is gone."""
        entries, self._entries = self._entries, {}
        self.next_deadline_ms = None
        return [entry[0] for entry in entries.values()]
