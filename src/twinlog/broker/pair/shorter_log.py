"""A master whose log may be shorter than what consumers have read of it.

A copy that becomes the master, a master that lost power, and one that gave its tail up for a
confirmed one: committed offsets go back to the ends of the queues, and the skip guard is armed.
"""

from __future__ import annotations

import logging

from twinlog.broker.pair.skip_guard import QueueEnds, SkipGuard
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.message.names import is_system_topic
from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.broker")


class ShorterLog:
    """What a master does about it."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        guard: SkipGuard,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._guard = guard

    def began(self, *, was_master: bool, is_promotion: bool, is_doubtful: bool) -> None:
        """Before the first send. `is_doubtful`: the end of the log may be gone."""
        self._guard.load(was_master=was_master)
        if not self._store.commit_log.max_offset and not is_promotion:
            return  # A new store: nobody can have read further.
        ends = self._queue_ends()
        was_cut = self._offsets.queues_cut(
            {(topic, n): end for topic, queues in ends.items() for n, end in queues.items()},
            is_rest_empty=not was_master,
        )
        if not was_master:
            self._guard.promoted(ends)
        elif was_cut or is_doubtful:
            _LOG.warning("consumers may have read further than this log goes: skip guard armed")
            self._guard.log_is_shorter(ends)

    def cut(self) -> None:
        """The log was cut while it served; queues and offsets have followed."""
        self._guard.log_is_shorter(self._queue_ends())

    def tail_came(self, *, was_own_cut: bool) -> None:
        """A copy had more of this log. Unless its places had been given to others meanwhile, who
        stands in what came may go on there."""
        if not was_own_cut:
            self._guard.tail_came(self._queue_ends())

    def _queue_ends(self) -> QueueEnds:
        end = self._store.max_offset_in_queue
        ends = {
            name: {n: end(name, n) for n in range(topic.read_queue_nums)}
            for name, topic in self._topics.table.items()
            if not is_system_topic(name)
        }
        for name, n in self._store.queues:
            # A classic slave may have the messages of a topic before it hears of the topic.
            if not is_system_topic(name):
                ends.setdefault(name, {})[n] = end(name, n)
        return ends
