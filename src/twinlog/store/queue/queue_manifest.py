"""Which consume queues there were, and from where to where: `store/twinlog/queues`.

Has no counterpart in RocketMQ. A queue whose directory is lost cannot be told from one that never
was: the next message would begin it at 0 again, and a slave would believe it. Written before each
recovery point, so every queue below that point is in it; a number in it is one that the queue had
reached on disk, or less. A file that is missing or damaged (an Apache store, one of an older
twinlog) says nothing.
"""

from __future__ import annotations

import logging
import posixpath
import threading
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from twinlog.message.layout import ENTRY_SIZE
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.store.queue.queue_table import ConsumeQueueTable

_LOG = logging.getLogger("twinlog.store")
_MAGIC: Final = b"twinlog queues 1 "
# With more queues than this only those that come and go are written down at every point, and how
# far all of them went once a minute: the file has some 30 bytes for each.
_QUEUES_EVERY_TIME: Final = 5000
_INTERVAL_MS: Final = 60_000

Ends = dict[tuple[str, int], int]
UNKNOWN_FLOOR: Final = -1  # Retention is at work.


class KnownQueues(NamedTuple):
    """Where queues begin and end, in entries, while the log began at `floor`: retention takes the
    first files of queues, and only after it has taken records."""

    begins: Ends
    ends: Ends
    floor: int


class _Content(msgspec.Struct, array_like=True):
    file_size: int
    queues: list[tuple[str, int, int]]
    begins: list[int] = []  # Of the queues, in their order; older releases wrote none.
    floor: int = UNKNOWN_FLOOR


def _content(ends: Ends, file_size: int) -> _Content:
    return _Content(file_size, [(*key, end) for key, end in ends.items()])


class QueueManifest:
    """The file: what it said at the start, and what it says now."""

    def __init__(self, disk: Disk, own_directory: str) -> None:
        self._disk = disk
        self._path = posixpath.join(own_directory, "queues")
        self._saved: KnownQueues | None = None
        self._saved_count = -1
        self._saved_ms = -_INTERVAL_MS
        self._forgotten = 0
        # `save` writes in a thread; what is forgotten meanwhile must not come back.
        self._lock = threading.Lock()
        self.ends: Ends = {}
        self.file_size = 0
        self._begins: Ends = {}
        self._floor = UNKNOWN_FLOOR

    def load(self) -> None:
        if not self._disk.exists(self._path):
            return
        head, _, data = self._disk.read_bytes(self._path).partition(b"\n")
        if head != b"%b%08x" % (_MAGIC, crc32(data)):
            _LOG.warning("list of queues unreadable, not used path=%s", self._path)
            return
        content = msgspec.json.decode(data, type=_Content)
        self.file_size = content.file_size
        self.ends = {(topic, queue_id): end for topic, queue_id, end in content.queues}
        self._begins = dict(zip(self.ends, content.begins, strict=False))
        self._floor = content.floor

    def lost(self, queues: ConsumeQueueTable, floor: int) -> Ends:
        """Queues that are not there, or shorter than they were at either end. The log begins at
        `floor`."""
        found = queues.by_key
        begins = self._begins if floor == self._floor else {}
        return {
            key: end
            for key, end in self.ends.items()
            if (queue := found.get(key)) is None
            or queue.next_offset < end
            or queue.first_offset > begins.get(key, queue.first_offset)
        }

    def gather(
        self, queues: ConsumeQueueTable, now_ms: int, *, floor: int, is_stop: bool
    ) -> KnownQueues | None:
        """What is to be saved when all that is written by now is synced; None: nothing new."""
        is_large = len(queues) > _QUEUES_EVERY_TIME
        is_early = is_large and not is_stop and now_ms - self._saved_ms < _INTERVAL_MS
        if is_early and len(queues) == self._saved_count:
            return None
        self._saved_count, self._saved_ms = len(queues), now_ms
        written = [queue for queue in queues if queue.written_end]
        begins = {queue.key: queue.first_offset for queue in written}
        ends = {queue.key: queue.written_end // ENTRY_SIZE for queue in written}
        known = KnownQueues(begins, ends, floor)
        return None if known == self._saved else known

    async def save(self, known: KnownQueues, file_size: int) -> None:
        """Write what was gathered. Raises OSError."""
        content = _content(known.ends, file_size)
        content.begins, content.floor = list(known.begins.values()), known.floor
        self._saved = None
        await self._disk.run(self._write, content, self._forgotten)
        self._saved = known

    def write(self, ends: Ends, file_size: int) -> None:
        """At once, where no broker runs: the first start makes what is not there. Raises
        OSError."""
        self._write(_content(ends, file_size), self._forgotten)

    def _write(self, content: _Content, forgotten: int) -> None:
        data = msgspec.json.encode(content)
        with self._lock:
            if forgotten == self._forgotten:
                text = b"%b%08x\n%b" % (_MAGIC, crc32(data), data)
                write_atomically(self._disk, self._path, text)

    def forget(self) -> None:
        """Queues are cut or removed on purpose: what was written down is not what must be there."""
        with self._lock:
            self._forgotten += 1
            self._saved, self._saved_count = None, -1
            if self._disk.exists(self._path):
                self._disk.unlink(self._path)
                self._disk.fsync_directory(posixpath.dirname(self._path))
