"""Answers that wait for something besides durability.

A send that creates its topic is answered when the name servers have the topic, as Apache's broker
does it, so that whoever was answered finds it.

The message itself is stored at once: those behind it must not overtake it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twinlog.broker.routes.registration import ANNOUNCE_SEND_MS, Registration
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.tasks import TaskOwner


class HeldAnswers:
    """Stands for a connection and keeps what is written to it until `release`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._held: list[Callable[[], None]] | None = []
        self._is_answered = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def write(self, *arguments: Any) -> None:
        self._pass(lambda: self._connection.write(*arguments))

    def write_run(self, *arguments: Any) -> None:
        self._pass(lambda: self._connection.write_run(*arguments))

    def write_pieces(self, *arguments: Any) -> None:
        self._pass(lambda: self._connection.write_pieces(*arguments))

    def reply(self, *arguments: Any, **options: Any) -> None:
        self._pass(lambda: self._connection.reply(*arguments, **options))

    def _pass(self, write: Callable[[], None]) -> None:
        if self._is_answered:
            return
        if self._held is None:
            write()
        else:
            self._held.append(write)

    def answer_instead(self, *arguments: Any, **options: Any) -> None:
        """Reply this, and nothing of what was or will be said: a request has one answer."""
        self._held, self._is_answered = None, True
        self._connection.reply(*arguments, **options)

    def release(self) -> None:
        held, self._held = self._held, None
        for write in held or ():
            write()


def answer_when_routed(
    registration: Registration, tasks: TaskOwner, connection: ServerConnection
) -> ServerConnection:
    """For a send that created its topic: its answer leaves when the name servers know the topic."""
    if not registration.addresses:
        return connection
    held = HeldAnswers(connection)

    async def release() -> None:
        try:
            await registration.announce(ANNOUNCE_SEND_MS)
        finally:
            held.release()

    tasks.job("answer-when-routed", release(), about=connection.remote_text)
    return cast("ServerConnection", held)
