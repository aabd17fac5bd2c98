"""What administration and delayed delivery read of a store beyond messages."""

from __future__ import annotations

from twinlog.message.layout import ENTRY
from twinlog.store.message_store import MessageStore

# The index knows seconds since the first entry of its file: a time in it may be a little early.
INDEX_SLACK_MS = 5_000

QueueEntry = tuple[int, int, int]  # (physical offset, size, tags code)


def queue_entries(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int
) -> list[QueueEntry]:
    """Up to `count` entries of a queue from `offset` on, fewer at the end of a file."""
    queue = store.queue_table.get(topic, queue_id)
    if queue is None:
        return []
    data = queue.read(store.queue_table.pool, offset, count)
    return [(physical, size, tags_code) for physical, size, tags_code in ENTRY.iter_unpack(data)]


def placed_end(store: MessageStore, topic: str, queue_id: int) -> int:
    """The number that the next message of a queue gets. In a controlled group consumers see less:
    what is not confirmed yet has its place already."""
    queue = store.queue_table.get(topic, queue_id)
    return 0 if queue is None else queue.next_offset


def placed_entries(
    store: MessageStore, topic: str, queue_id: int, offset: int, count: int
) -> list[QueueEntry]:
    """The same as `queue_entries`, also of what consumers do not see yet."""
    found = queue_entries(store, topic, queue_id, offset, count)
    queue = store.queue_table.get(topic, queue_id)
    if found or queue is None:
        return found
    hidden = range(offset, min(offset + count, queue.next_offset))
    entries = (queue.entry(store.queue_table.pool, number) for number in hidden)
    return [entry for entry in entries if entry is not None]


def record_of_entry(
    store: MessageStore, topic: str, queue_id: int, number: int, entry: tuple[int, int]
) -> bytes | None:
    """The record that an entry, its offset and size, leads to. Raises RecordDamagedError where it
    is not the one of this number, whichever of the two is damaged."""
    queue = store.queue_table.get(topic, queue_id)
    return None if queue is None else store.reader.record_of(queue, number, entry)


def is_on_disk(store: MessageStore, topic: str, queue_id: int, offset: int, memory: int) -> bool:
    """Whether an entry lies so far behind the end that it no longer counts as in memory."""
    entries = queue_entries(store, topic, queue_id, offset, 1)
    if not entries:
        return False
    ratio = store.config.access_message_in_memory_max_ratio
    return store.commit_log.max_offset - entries[0][0] > memory * ratio // 100
