"""Names of queues, in the order that every RocketMQ client agrees on.

Members of one group each compute the whole allocation for themselves. They come to the same answer
only if all of them sort queues and client ids in the same way, so the order here is Java's: by
UTF-16 units.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinlog.remoting.bodies.common import MessageQueue as MessageQueue


def java_order(text: str) -> bytes:
    """A sort key that orders text as Java's String.compareTo does."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return sorted(
        queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id)
    )


def sorted_client_ids(client_ids: Iterable[str]) -> list[str]:
    return sorted(client_ids, key=java_order)
