"""What the answer to a pull means: records, a gap, a refusal, and how far a broker has looked."""

from __future__ import annotations

from typing import Any

import numpy as np

from twinlog.message.layout import QUEUE_OFFSET_AT
from twinlog.remoting.codes import ResponseCode
from twinlog.spark.decode.records import LogSlice, chain

NO_MATCH = "NO_MATCHED_MESSAGE"  # the status, which brokers give as the remark
PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


def is_damaged(answer: Any) -> bool:
    """Say whether a broker of ours refuses the first message because its record is damaged.

    The code says what it expects: SYSTEM_ERROR that a replica heals it, the other one does not.
    """
    refusals = (ResponseCode.SYSTEM_ERROR, ResponseCode.PULL_RETRY_IMMEDIATELY)
    return answer.code in refusals and "is damaged" in (answer.remark or "")


def refuses_filter(answer: Any) -> bool:
    """Say whether a broker does not filter by properties (`enablePropertyFilter=false`)."""
    is_error = answer.code == ResponseCode.SYSTEM_ERROR
    return is_error and "does not support consumer to filter" in (answer.remark or "")


def examined(answer: Any, at: int) -> int | None:
    """Return how far a broker has looked for matches from `at`; None when it has not."""
    ext = answer.ext()
    if is_damaged(answer) or answer.code not in PULL_CODES or int(ext.get("minOffset", 0)) > at:
        return None
    end = int(ext.get("nextBeginOffset", at))
    is_nothing = answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    if is_nothing and answer.remark == NO_MATCH:
        return end if end > at else None
    return end if answer.code == ResponseCode.SUCCESS and end > at else None


def chosen_below(high: int, low: int, body: Any) -> bytes | None:
    """Return the records of an answer below `high`: a broker looks as far as it likes.

    None where they are not one record after the other from `low` on.
    """
    if not body:
        return b""
    count, size = readable_part(body)
    if size != len(body):
        return None
    data = LogSlice.over(body, 0)
    starts = chain(data)
    numbers = data.ints(">i8", starts + QUEUE_OFFSET_AT)
    if numbers[0] < low or (np.diff(numbers) <= 0).any():
        return None
    kept = int(np.searchsorted(numbers, high))
    return bytes(body[: int(starts[kept]) if kept < count else size])


def readable_part(body: Any) -> tuple[int, int]:
    """Return how many records can be walked from the start, and the bytes they take."""
    data = LogSlice.over(body, 0)
    places = chain(data)
    if not len(places):
        return 0, 0
    last = int(places[-1])
    return len(places), last + int.from_bytes(body[last : last + 4], "big")
