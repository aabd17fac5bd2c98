"""All consume queues. Corresponds to the consume-queue table of RocketMQ's DefaultMessageStore.

Owns the open files of the queues and the order in which waiting entries are written: oldest first,
a bounded number at a time, so that a hundred thousand queues do not stop the loop.
"""

from __future__ import annotations

import logging
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from twinlog.message.layout import ENTRY, ENTRY_SIZE
from twinlog.message.names import HALF_TOPIC, METADATA_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from twinlog.runtime.disk import Disk
from twinlog.runtime.numbers import is_number
from twinlog.store.errors import StoreLayoutError
from twinlog.store.log.file_pool import FilePool
from twinlog.store.log.segment import parse_segment_name
from twinlog.store.log.segment_queue import list_segments
from twinlog.store.queue.consume_queue import ConsumeQueue

_LOG = logging.getLogger("twinlog.store")
# How long entries wait before they are written; more queues wait longer, so that a write covers
# several entries of each.
WRITE_DELAY_MS: Final = 200
WRITE_DELAY_MS_MAX: Final = 20_000
_QUEUES_PER_DELAY: Final = 500
_UNKNOWN_END: Final = 1 << 62  # The last entry is zero after a crash: recovery cuts the queue.
# Queues of the broker itself, whose readers know their places by number: a clean-up on request
# must leave them alone, or they begin at 0 again.
OWN_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, METADATA_TOPIC})
TAIL_SIZE_MAX: Final = 1 << 16  # A queue with more waiting bytes is written at once.


class ConsumeQueueTable:
    """Queues by (topic, queue id)."""

    def __init__(self, disk: Disk, directory: str, *, file_size: int, open_files_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self.file_size = -(-file_size // ENTRY_SIZE) * ENTRY_SIZE
        self.pool = FilePool(disk, open_files_max)
        self.by_key: dict[tuple[str, int], ConsumeQueue] = {}
        self.holed: list[ConsumeQueue] = []  # Lost a file: for recovery to make again.
        self._is_size_known = False
        # (queue, physical offset of its oldest waiting entry), oldest first.
        self._dirty: deque[tuple[ConsumeQueue, int]] = deque()
        self._unsynced: dict[ConsumeQueue, None] = {}

    # Loading

    def load(self, known_file_size: int = 0) -> None:
        """Find every queue and where it ends.

        Where files of `known_file_size` are known to be right, one of another length was cut.
        """
        self._is_size_known = known_file_size == self.file_size
        self._disk.make_directories(self._directory)
        for topic in self._disk.list(self._directory):
            topic_path = posixpath.join(self._directory, topic)
            if not self._disk.is_directory(topic_path):
                _LOG.warning("foreign entry ignored path=%s", topic_path)
                continue
            for name in self._disk.list(topic_path):
                if is_number(name, 10):
                    self._load_queue(topic, int(name), posixpath.join(topic_path, name))

    def _load_queue(self, topic: str, queue_id: int, directory: str) -> None:
        queue = ConsumeQueue(topic, queue_id, directory, self.file_size)
        self.by_key[queue.key] = queue
        try:
            starts = list_segments(
                self._disk, directory, self.file_size, key="mappedFileSizeConsumeQueue"
            )
        except StoreLayoutError as error:
            if not self._is_size_known:
                raise
            _LOG.warning("queue has a truncated file, rebuilt: %s", error)
            self._remove_files(directory)
            self.holed.append(queue)
            return
        if not starts:
            return
        if starts[-1] - starts[0] != (len(starts) - 1) * self.file_size:
            # A power cut may take a new file and leave the next one; the log knows both.
            _LOG.warning("queue has a hole between its files, rebuilt path=%s", directory)
            self.holed.append(queue)
            queue.first_start, queue.written_end = starts[0], starts[-1] + self.file_size
            return
        entries = self._count_valid(queue.path_of(starts[-1]))
        if not entries and len(starts) == 1:
            # Made, and never safely written: the queue has nothing, and begins where a record says.
            self.pool.forget(queue.path_of(starts[0]))
            self._disk.unlink(queue.path_of(starts[0]))
            return
        queue.first_start = starts[0]
        queue.written_end = starts[-1] + entries * ENTRY_SIZE
        queue.next_offset = queue.max_offset = queue.written_end // ENTRY_SIZE
        last = queue.entry(self.pool, queue.next_offset - 1)
        is_zero = last is not None and last[1] <= 0
        queue.last_physical_end = _UNKNOWN_END if is_zero else queue.find_last_end(self.pool)

    def _remove_files(self, directory: str) -> None:
        for name in self._disk.list(directory):
            if parse_segment_name(name) is not None:
                self._disk.unlink(posixpath.join(directory, name))

    def _count_valid(self, path: str) -> int:
        """Entries before the first empty one: binary search, all behind the end is zero."""
        file = self.pool.get(path)
        low, high = 0, self.file_size // ENTRY_SIZE
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = ENTRY.unpack(file.pread(ENTRY_SIZE, middle * ENTRY_SIZE))
            if offset >= 0 and size > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.by_key.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new and empty when it is not known."""
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            directory = posixpath.join(self._directory, _directory_name(topic), str(queue_id))
            queue = ConsumeQueue(topic, queue_id, directory, self.file_size)
            self.by_key[queue.key] = queue
        return queue

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.by_key.values())

    def __len__(self) -> int:
        return len(self.by_key)

    # Writing

    def mark_dirty(self, queue: ConsumeQueue, now_ms: int, offset: int) -> None:
        """`queue` has entries to write, the first for the record at `offset`."""
        assert queue.dirty_since_ms < 0
        queue.dirty_since_ms = now_ms
        queue.dirty_offset = offset
        self._dirty.append((queue, offset))

    def _oldest_dirty(self) -> ConsumeQueue | None:
        """The queue whose oldest waiting entry is the oldest of all.

        A queue that was written meanwhile, because it had much to write or was cut, is skipped:
        when it waits again it has a later place.
        """
        dirty = self._dirty
        while dirty:
            queue, offset = dirty[0]
            if queue.dirty_since_ms >= 0 and queue.dirty_offset == offset:
                return queue
            dirty.popleft()
        return None

    def write_due(self, now_ms: int, count_max: int) -> int:
        """Write the queues that have waited long enough, at most `count_max`."""
        factor = 1 + len(self._dirty) // _QUEUES_PER_DELAY
        due_ms = now_ms - min(WRITE_DELAY_MS * factor, WRITE_DELAY_MS_MAX)
        count = 0
        while count < count_max and (queue := self._oldest_dirty()) is not None:
            if queue.dirty_since_ms > due_ms:
                break
            self.write(queue)
            count += 1
        return count

    def write_before(self, offset: int, count_max: int) -> bool:
        """Write at most `count_max` queues that wait for records before `offset`.

        Whether there are more: the caller lets the loop run in between.
        """
        for _ in range(count_max):
            queue = self._oldest_dirty()
            if queue is None or queue.dirty_offset >= offset:
                return False
            self.write(queue)
        return True

    def write_all(self) -> None:
        """Write everything that waits."""
        while (queue := self._oldest_dirty()) is not None:
            self.write(queue)

    def write(self, queue: ConsumeQueue) -> None:
        """Write the waiting entries of one queue. Raises OSError, nothing is lost then."""
        if queue.write(self._disk, self.pool):
            self._unsynced[queue] = None

    # Syncing

    def take_unsynced(self) -> list[str]:
        """Paths written since the last call. The caller syncs them and their directories."""
        paths: list[str] = []
        for queue in self._unsynced:
            paths.extend(queue.path_of(start) for start in queue.unsynced)
            queue.unsynced.clear()
        self._unsynced.clear()
        return paths

    # Cutting

    def truncate(self, physical_offset: int) -> dict[tuple[str, int], int]:
        """Drop entries of records at or behind `physical_offset`, in every queue.

        Returns the new ends of the queues that are shorter now.
        """
        shorter = {}
        for queue in tuple(self.by_key.values()):
            if queue.last_physical_end > physical_offset or queue.tail:
                end = queue.max_offset
                queue.truncate(self._disk, self.pool, physical_offset)
                if queue.max_offset < end:
                    shorter[queue.key] = queue.max_offset
                if queue.unsynced:
                    self._unsynced[queue] = None
        return shorter

    def clear_behind(self) -> None:
        """After a crash: nothing is left behind the end of any queue."""
        for queue in self.by_key.values():
            queue.clear_behind(self._disk, self.pool)
            if queue.unsynced:
                self._unsynced[queue] = None

    def remove_expired(self, log_min_offset: int) -> int:
        """Delete queue files whose records are gone; the number of files."""
        return sum(
            queue.remove_expired_files(self._disk, self.pool, log_min_offset)
            for queue in tuple(self.by_key.values())
        )

    def of_topics(self, topics: set[str], before: int | None = None) -> list[ConsumeQueue]:
        """The queues of these topics that have no record behind `before`; None: all of them."""
        queues = [queue for queue in self.by_key.values() if queue.topic in topics]
        return [q for q in queues if before is None or q.last_physical_end <= before]

    def destroy(self, queues: Iterable[ConsumeQueue]) -> None:
        """Remove queues with their files; their offsets start again at 0."""
        for queue in queues:
            queue.destroy(self._disk, self.pool)
            queue.dirty_since_ms = -1
            self._unsynced.pop(queue, None)
            self.by_key.pop(queue.key, None)
            topic_path = posixpath.dirname(queue.directory)
            if self._disk.exists(topic_path) and not self._disk.list(topic_path):
                self._disk.remove_directory(topic_path)

    def restart(self, queue: ConsumeQueue) -> None:
        """Empty the queue: its topic was deleted and made again, numbers begin at 0."""
        queue.truncate_entries(self._disk, self.pool, queue.first_offset)

    def close(self) -> None:
        self.pool.close()


def _directory_name(topic: str) -> str:
    """The topic, as every broker names its directory; one that is a path leads nowhere else.

    A broker makes no such topic, but a slave is sent, and recovery finds, what others made.
    """
    if topic in {".", ".."}:
        return topic.replace(".", "%2E")
    return topic.replace("/", "%2F").replace("\0", "%00")
