"""What all views share: kinds of parameters, lists by pages, how a change on many servers ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from twinlog.admin.client import Gathered
from twinlog.console.operations import BadParameters, Done

T = TypeVar("T")
PAGE_SIZE = 100
# Names as brokers allow them; what is wrong with one is said by the function that uses it.
_NAME = "^[%|a-zA-Z0-9_-]+$"
TopicName = Annotated[str, Meta(extra_json_schema={"pattern": _NAME, "maxLength": 127})]
GroupName = Annotated[str, Meta(extra_json_schema={"pattern": _NAME, "maxLength": 255})]
# Numbers as requests carry them.
QueueId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
QueueOffset = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Milliseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Since 1970."""


Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


def milliseconds(moment: str) -> int:
    """Since 1970, of an ISO 8601 time; one without a zone is in UTC."""
    try:
        time = datetime.fromisoformat(moment)
    except ValueError as error:
        raise BadParameters(f"{moment!r} is not a time: 2026-01-31T12:00 for example") from error
    return max(0, round(1000 * (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()))


def cut(rows: Sequence[T], page: int, size: int) -> tuple[list[T], int, int]:
    """One page of a list, its number, and how many there are; beyond the last is the last."""
    pages = max(1, -(-len(rows) // size))
    page = min(max(1, page), pages)
    return list(rows[(page - 1) * size : page * size]), page, pages


def missing_of(found: Gathered[Any]) -> list[str]:
    """Who did not answer."""
    return [f"{address}: {error}" for address, error in found.failures.items()]


def done_on(found: Gathered[Any], text: str) -> Done:
    """A change on several servers: `text` if any of them took it, else the error of one."""
    found.any_or_raise()
    missing = [{"missing": line} for line in missing_of(found)]
    return Done(f"{text} on {len(found.values)} broker(s)", missing, found.is_complete)
