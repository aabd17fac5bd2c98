"""What went wrong and was contained: counted by what it was about, logged once a kind, shown.

An error that belongs to one request, message, connection, group or timer round costs that one.
Whoever contains it says so here. The first of a kind is logged with its place, later ones at every
power of ten: a peer that provokes the same error a thousand times per second does not fill a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from twinlog.runtime.clock import SystemClock

_LOG = logging.getLogger("twinlog.failures")

WHAT_MAX = 256  # Different tasks, timers and request codes; beyond, all the rest is one.
KINDS_MAX = 1024
_OTHER = "other"
_FRAMES_SHOWN = 3
_TEXT_MAX = 200


@dataclass(slots=True)
class Failure:
    """What failed, how often, and why the last time."""

    what: str
    count: int = 0
    last_error: str = ""
    last_about: str = ""
    last_ms: int = 0


class Failures:
    """The contained failures of one process (or client), by what failed."""

    def __init__(self, now_ms: Callable[[], int] | None = None) -> None:
        self._now_ms = now_ms or SystemClock().now_ms
        self._table: dict[str, Failure] = {}
        self._kinds: dict[tuple[str, str, str], int] = {}
        self.refusals: dict[tuple[int, int], int] = {}
        """Requests that were answered with an error, by request and response code."""
        self.listener: Callable[[str, BaseException], None] | None = None
        """For whoever wants to know of each: the simulation takes every one for a fault."""

    @property
    def count(self) -> int:
        """All of them, since the start."""
        return sum(failure.count for failure in self._table.values())

    @property
    def table(self) -> dict[str, Failure]:
        """By what failed; for status and metrics."""
        return self._table

    def note(self, what: str, error: BaseException, about: str = "") -> None:
        """`what` failed and was contained. It is one of few names; `about` may be anything."""
        failure = self._table.get(what)
        if failure is None:
            name = what if len(self._table) < WHAT_MAX else _OTHER
            failure = self._table.setdefault(name, Failure(name))
        failure.count += 1
        failure.last_error = error_text(error)
        failure.last_about = about[:_TEXT_MAX]
        failure.last_ms = self._now_ms()
        self._log(failure, error)
        if self.listener is not None:
            self.listener(what, error)

    def refused(self, request_code: int, response_code: int) -> None:
        """A request was refused as it should be: no failure, but worth a number."""
        key = (request_code, response_code)
        if key not in self.refusals and len(self.refusals) >= KINDS_MAX:
            key = (0, response_code)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def contain(self, what: str, function: Callable[..., object], *arguments: Any) -> bool:
        """Call `function`; an exception of it is noted and goes no further. Whether all is well."""
        try:
            function(*arguments)
        except Exception as error:
            self.note(what, error)
            return False
        return True

    def _log(self, failure: Failure, error: BaseException) -> None:
        place = _place(error.__traceback__)
        kind = (failure.what, type(error).__name__, place)
        count = self._kinds.get(kind, 0) + 1
        if count > 1 or len(self._kinds) < KINDS_MAX:
            self._kinds[kind] = count
        if count == 1 or str(count).rstrip("0") == "1":
            _LOG.error(
                "contained failure of %s about=%s error=%s at=%s count=%d",
                failure.what, failure.last_about or "-", failure.last_error, place, count,
            )  # fmt: skip
        _LOG.debug("contained failure of %s", failure.what, exc_info=error)

    def status(self) -> dict[str, str]:
        """Keys for a server's runtime information; none while nothing failed but the count."""
        shown = {"containedFailures": str(self.count)}
        for failure in self._table.values():
            about = f" (about {failure.last_about})" if failure.last_about else ""
            text = f"{failure.count} times, last at {failure.last_ms}: {failure.last_error}{about}"
            shown[f"containedFailure {failure.what}"] = text
        return shown


def error_text(error: BaseException) -> str:
    """One line, whatever a peer made of it."""
    text = f"{type(error).__name__}: {error}"[:_TEXT_MAX]
    return text.encode("unicode_escape").decode("ascii")


def _place(traceback: TracebackType | None) -> str:
    """The innermost places of a traceback: `service.py:320<service.py:290`."""
    places: list[str] = []
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename.rpartition("/")[2]
        places.append(f"{name}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return "<".join(reversed(places[-_FRAMES_SHOWN:])) or "?"
