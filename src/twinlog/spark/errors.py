"""Errors of the pipeline.

    PipelineError            condition: a fixed name that scripts may look for; exit_code: of a job
      OptionError            BAD_OPTION, BAD_COLUMN, BAD_OFFSETS: what the user wrote
      NotFoundError          TOPIC_NOT_FOUND, STORE_NOT_FOUND, ARCHIVE_NOT_FOUND
      UnreachableError       BROKER_UNREACHABLE
      DataLossError          OFFSET_EXPIRED, OFFSET_AHEAD, QUEUE_VANISHED, QUEUE_REMADE,
                             LOG_DIVERGED
      RecordCorruptError     RECORD_CORRUPT, CRC_MISMATCH, BODY_UNDECODABLE
      ArchiveError           ARCHIVE_GAP, ARCHIVE_OVERLAP, ARCHIVE_CONFLICT, ARCHIVE_DAMAGED

They travel from Python workers through the JVM as text, so the text carries everything: the
condition in brackets first, then what was found where, then what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# The last line of a traceback of a worker, or the innermost cause of the JVM.
ROOT_CAUSE = re.compile(
    r"^(?:Caused by: )?((?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception): [^\n]+)", re.MULTILINE
)
DECODE_YOURSELF = "leave decodeBody out and decode the column body with a function"
CONDITION = re.compile(r"\[([A-Z]+(?:_[A-Z]+)+)\] ([^\n]*)")


class PipelineError(Exception):
    """Base of all errors of the pipeline; the text begins with the condition in brackets."""

    exit_code = 2

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(f"[{condition}] {message}")
        self.condition = condition
        self.message = message

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str]]:
        # Workers pickle exceptions: the default would pass the joined text as the condition.
        return (type(self), (self.condition, self.message))


class OptionError(PipelineError):
    """What the user wrote cannot be meant."""


class NotFoundError(PipelineError):
    """The store, topic or archive that was named does not exist."""

    exit_code = 3


class UnreachableError(PipelineError):
    """No broker or name server answered."""

    exit_code = 4


class DataLossError(PipelineError):
    """Offsets that were promised are not there (any more)."""


class RecordCorruptError(PipelineError):
    """A record in the log is not what the index or its checksum says."""


class ArchiveError(PipelineError):
    """The archive is not what its manifest says, or another query writes to it."""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest, if one is near."""
    by_folded = {item.lower(): item for item in known}
    close = difflib.get_close_matches(name.lower(), list(by_folded), n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" for the nearest known name, or nothing."""
    found = nearest_name(name, known)
    return f"; did you mean {found!r}?" if found is not None else ""


def condition_of(text: str) -> tuple[str, str, int]:
    """Find our own error inside the text that Spark makes of it: condition, message, exit code."""
    codes = {"TOPIC_NOT_FOUND": 3, "STORE_NOT_FOUND": 3, "ARCHIVE_NOT_FOUND": 3}
    codes["BROKER_UNREACHABLE"] = UnreachableError.exit_code
    found = re.search(r"twinlog\.spark\.errors\.\w+: \[([A-Z_]+)\] ([^\n]*)", text)
    found = found or CONDITION.search(text)
    if found is None:
        causes = ROOT_CAUSE.findall(text)
        first = text.strip().splitlines()[0]
        return "SPARK_FAILED", f"{first}: {causes[-1]}" if causes else first, 2
    return found[1], found[2], codes.get(found[1], 2)
