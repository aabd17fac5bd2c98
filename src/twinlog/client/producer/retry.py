"""Whether a failed send is made again, and where.

Corresponds to the retry loop of DefaultMQProducerImpl.sendDefaultImpl.
"""

from __future__ import annotations

import enum

from twinlog.client.errors import ClientError


class RetryAction(enum.Enum):
    """What to do with a send that failed."""

    GIVE_UP = "give up"
    ANOTHER_BROKER = "another broker"
    SAME_QUEUE = "same queue"


# Before the n-th retry: none for the first, since another broker is likely to be well.
BACKOFF_MS = (0, 50, 100, 200, 400, 800)


def decide(
    error: ClientError, *, attempt: int, attempts_max: int, is_pinned: bool, time_left_ms: float
) -> RetryAction:
    """What to do after attempt number `attempt` (from 1) failed with `error`.

    A pinned message (explicit queue, sharding key) stays on its queue: order is worth more than
    speed. Nothing is retried once the time is up: the caller is told instead. What certainly was
    not stored is retried until then, however often, if the reason is one that passes: a broker
    that restarts is back within a second.
    """
    if not error.retriable or time_left_ms <= 0:
        return RetryAction.GIVE_UP
    if attempt >= attempts_max and not (is_unlimited(error) and attempts_max > 1):
        return RetryAction.GIVE_UP
    return RetryAction.SAME_QUEUE if is_pinned else RetryAction.ANOTHER_BROKER


def is_unlimited(error: ClientError) -> bool:
    """Whether only time limits the repeats: no copy can come of them, and the reason passes."""
    return error.is_passing and error.is_safe_to_repeat


def backoff_ms(attempt: int) -> int:
    """How long to wait before the attempt after number `attempt`."""
    return BACKOFF_MS[min(max(attempt - 1, 0), len(BACKOFF_MS) - 1)]
