"""Which queue a message goes to.

Corresponds to TopicPublishInfo.selectOneMessageQueue and SelectMessageQueueByHash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from twinlog.client.queues import MessageQueue
from twinlog.message.hashing import jhash


class RoundRobin:
    """Queues in turn, starting anywhere. One instance for each topic."""

    __slots__ = ("index",)

    def __init__(self, start: int = 0) -> None:
        self.index = start

    def choose(
        self,
        queues: Sequence[MessageQueue],
        *,
        avoid: Collection[str] = (),
        is_available: Callable[[str], bool] | None = None,
    ) -> MessageQueue:
        """The next queue, if possible not on a broker of `avoid` and on one that is available.

        `avoid` holds the brokers that failed this message already; it is the stronger wish.
        """
        count = len(queues)
        start = self.index
        fallback: MessageQueue | None = None
        for step in range(count):
            queue = queues[(start + step) % count]
            if queue.broker_name in avoid:
                continue
            if is_available is None or is_available(queue.broker_name):
                self.index = (start + step + 1) % count
                return queue
            fallback = fallback or queue
        self.index = (start + 1) % count
        return fallback or queues[start % count]


def choose_by_key(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The same queue for the same key, the one that a Java producer would choose."""
    value = abs(jhash(key))
    # Java's Math.abs(Integer.MIN_VALUE) stays negative and is taken for 0.
    return queues[0 if value == 2**31 else value % len(queues)]
