"""Who is told which queues moved: once a turn, and one that fails does not cost the others."""

from __future__ import annotations

from collections.abc import Callable, Collection

from twinlog.runtime.failures import Failures
from twinlog.store.queue.consume_queue import ConsumeQueue

# Called with (topic, queue id) of each queue that moved.
DispatchListener = Callable[[Collection[tuple[str, int]]], None]


class DispatchListeners:
    """Held pulls, delays, transactions, metadata: all that follows what is dispatched."""

    def __init__(self) -> None:
        self._all: list[DispatchListener] = []
        self.failures: Failures | None = None  # Set when the store starts.

    def add(self, listener: DispatchListener) -> None:
        self._all.append(listener)

    def tell(self, queues: Collection[ConsumeQueue]) -> None:
        if not queues or not self._all:
            return
        keys = [queue.key for queue in queues]
        for listener in self._all:
            try:
                listener(keys)
            except Exception as error:
                if self.failures is None:
                    raise
                self.failures.note("dispatch listener", error, f"queues {keys[:3]}")
