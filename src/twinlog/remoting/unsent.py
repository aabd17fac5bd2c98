"""Requests of ours that wait until their peer has read what came before.

What is handed to a transport is sent, however late: a peer that stood still would then work for
callers that have gone, and answer those that wait too late as well, for as long as the load goes
on. What waits here is dropped when half of its time is over, and was certainly not sent. Half,
because an answer takes time too: with a peer that is slower than its clients, all that leaves here
would otherwise leave just before its end. Pure: time is passed in.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.session import AnswerCallback


class UnsentRequest(NamedTuple):
    """One that waits."""

    command: RemotingCommand
    callback: AnswerCallback
    drop_ms: float
    deadline_ms: float


class UnsentRequests:
    """In the order in which they came."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[UnsentRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(
        self, command: RemotingCommand, callback: AnswerCallback, timeout_ms: float, now_ms: int
    ) -> None:
        self._waiting.append(
            UnsentRequest(command, callback, now_ms + timeout_ms / 2, now_ms + timeout_ms)
        )

    def take(self) -> UnsentRequest:
        """The one that waits for the longest time."""
        return self._waiting.popleft()

    def expire(self, now_ms: int) -> list[UnsentRequest]:
        """Remove and return those that are not worth sending any more."""
        if not any(unsent.drop_ms <= now_ms for unsent in self._waiting):
            return []
        expired = [unsent for unsent in self._waiting if unsent.drop_ms <= now_ms]
        self._waiting = deque(unsent for unsent in self._waiting if unsent.drop_ms > now_ms)
        return expired

    def drain(self) -> list[UnsentRequest]:
        """Remove and return all: the connection is gone."""
        waiting, self._waiting = self._waiting, deque()
        return list(waiting)
