"""The end of a master's log goes to its replicas before a clean stop.

RocketMQ's HAService closes its connections at once; what an ASYNC_MASTER answered last is then on
its own disk alone, and lost to whoever takes its place.
"""

from __future__ import annotations

import logging

from twinlog.ha.acks import AckTable
from twinlog.runtime.clock import Clock

_LOG = logging.getLogger("twinlog.ha")

_WAIT_MS_MAX = 5_000  # Supervisors kill what has not stopped within ten seconds.
_STILL_MS_MAX = 1_000  # A slave that takes nothing is not waited for any longer.
_CHECK_MS = 10


async def drain(acks: AckTable, end: int, clock: Clock) -> None:
    """Wait until all replicas have the log up to `end`, as long as they come nearer to it."""
    now_ms = moved_ms = clock.monotonic_ms()
    deadline_ms = now_ms + _WAIT_MS_MAX
    before: list[int] = []
    while now_ms < min(deadline_ms, moved_ms + _STILL_MS_MAX):
        acked = [replica.ack_offset for replica in acks.replicas]
        if all(offset >= end for offset in acked):
            return
        if acked != before:
            before, moved_ms = acked, now_ms
        await clock.sleep_ms(_CHECK_MS)
        now_ms = clock.monotonic_ms()
    missing = end - min(before)
    _LOG.warning("stopping although a slave lacks the end of the log bytes=%d", missing)
