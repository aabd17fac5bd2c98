"""Find messages by key. Corresponds to RocketMQ's IndexService.

Keys arrive with each dispatched message and wait in `pending`; `drain` hashes and writes them in
batches. A query drains first, so that nobody sees the delay.
"""

from __future__ import annotations

import logging
import posixpath
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from typing_extensions import Buffer

from twinlog.message.hashing import index_key_hash, index_key_hashes
from twinlog.runtime.clock import Clock
from twinlog.runtime.compiled import load
from twinlog.runtime.disk import Disk
from twinlog.runtime.numbers import is_number
from twinlog.store.index.index_entries import Slots
from twinlog.store.index.index_file import IndexFile, index_file_size, new_slots

_LOG = logging.getLogger("twinlog.store")
_compiled = load("twinlog.message._hashing")
PENDING_MAX: Final = 1024  # About a millisecond of hashing: so long nothing else is served.
_NAME_LENGTH: Final = 17
_QUERIED_TOPIC_MAX: Final = 1024  # No topic has as many characters; hashes of topics are kept.


class IndexService:
    """The index files, newest last, and the keys that are not in them yet."""

    def __init__(
        self, disk: Disk, clock: Clock, directory: str, *, slots_max: int, index_max: int
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._directory = directory
        self._slots_max = slots_max
        self._index_max = index_max
        self.files: list[IndexFile] = []
        # (topic, keys, physical offset, store timestamp) of each message with keys.
        self.pending: list[tuple[str, tuple[str, ...], int, int]] = []
        # The newest message without keys: it has no entry, but it makes a file that is missing.
        self.bare_offset = -1
        self.full_timestamp = (
            0  # End of the newest full and synced file: checkpoint's third number.
        )
        self._unsynced_full: list[IndexFile] = []
        self._spare_slots: Slots | None = None  # Memory for the first file of this process.
        # Hashed keys on their way to the file; they stay here when the disk is full.
        self._hashes = array("q")
        self._offsets = array("q")
        self._timestamps = array("q")
        self._hashed_count = 0  # Since the last try to write them.

    # Loading

    def load(self) -> None:
        """Open every file whose name is a time."""
        size = index_file_size(self._slots_max, self._index_max)
        for name in self._disk.list(self._directory):
            path = posixpath.join(self._directory, name)
            if not is_number(name) or self._disk.is_directory(path):
                _LOG.error("foreign entry in the index ignored path=%s", path)
                continue
            if self._disk.file_size(path) != size:
                # The index follows from the log: it is made again, never a reason not to start.
                _LOG.error("index file of another size removed path=%s", path)
                self._disk.unlink(path)
                continue
            file = IndexFile(path, self._disk.open(path), self._slots_max, self._index_max)
            file.load_header()
            self.files.append(file)

    @property
    def last_file(self) -> IndexFile | None:
        return self.files[-1] if self.files else None

    @property
    def end_offset(self) -> int:
        """Records below this are indexed; -1 when there is nothing."""
        last = self.last_file
        if last is None or (last.entry_count == 0 and len(self.files) == 1):
            return -1
        return last.end_offset

    def recover(self, offset_end: int, store_time: Callable[[int], int]) -> None:
        """After a crash: keep entries of records below `offset_end`, which are durable."""
        while self.files and (
            self.files[-1].begin_offset >= offset_end or self.files[-1].entry_count == 0
        ):
            self._remove(self.files.pop())
        if self.files:
            self.files[-1].rebuild(offset_end, store_time)
            if self.files[-1].entry_count == 0:
                self._remove(self.files.pop())

    def remove_newer_than(self, timestamp: int) -> None:
        """Keep the full files that ended by `timestamp`: only they were synced as a whole."""
        kept = 0
        for file in self.files:
            if not file.is_full or not 0 < file.end_timestamp <= timestamp:
                break
            kept += 1
        while len(self.files) > kept:
            self._remove(self.files.pop())

    def truncate(self, physical_offset: int, store_time: Callable[[int], int]) -> None:
        """The log was cut: no entry may point behind its end."""
        try:
            self.drain()
        finally:
            if self.end_offset >= physical_offset:
                self.recover(physical_offset, store_time)

    def follow_cut(self, physical_offset: int, store_time: Callable[[int], int]) -> None:
        """The same of a running store. It may need room on the disk, and nothing else may be left
        undone for that: what an index gives is compared with the message."""
        try:
            self.truncate(physical_offset, store_time)
        except OSError as error:
            _LOG.error(
                "index not cut, the scrub rebuilds it offset=%d error=%s", physical_offset, error
            )

    # Appending

    async def prepare(self) -> None:
        """Read or make the slots of the file that comes next in a thread, before traffic does."""
        last = self.last_file
        if last is None or last.is_full:
            slots = await self._disk.run(new_slots, self._slots_max)
            if self.last_file is last:
                self._spare_slots = slots
            return
        slots = await self._disk.run(last.read_slots)
        if self.last_file is last:
            last.offer_slots(slots)

    def add_many(
        self, topic: str, all_keys: Sequence[tuple[str, ...]], offsets: Sequence[int], time_ms: int
    ) -> None:
        """Keys of the records of a batch. The appender does the same inline."""
        for keys, offset in zip(all_keys, offsets, strict=True):
            if keys:
                self.pending.append((topic, keys, offset, time_ms))
            else:
                self.bare_offset = offset

    def add_hashed(
        self, hashes: Buffer, offsets: Buffer, timestamps: Buffer, bare_offset: int
    ) -> None:
        """Keys that are hashed already, as arrays of 64-bit numbers, offsets in order."""
        if self.pending:
            self._hash_pending()
        floor = self._floor()
        start = len(self._offsets)
        self._offsets.frombytes(offsets)
        known = bisect_right(self._offsets, floor, start) - start
        del self._offsets[start : start + known]
        self._hashes.frombytes(memoryview(hashes)[8 * known :])
        self._timestamps.frombytes(memoryview(timestamps).cast("B")[8 * known :])
        self._hashed_count += len(self._hashes) - start
        if bare_offset >= 0:
            self.bare_offset = bare_offset

    @property
    def is_due(self) -> bool:
        """Whether enough keys wait to be written."""
        return len(self.pending) + self._hashed_count > PENDING_MAX

    def drain(self) -> None:
        """Write every pending key. Raises OSError; what was not written stays for the next time."""
        if self.pending:
            self._hash_pending()
        self._hashed_count = 0
        hashes, offsets, timestamps = self._hashes, self._offsets, self._timestamps
        done = 0
        try:
            while done < len(hashes):
                last = self.last_file
                if last is None or last.is_full:
                    last = self._add_file()
                done += last.put_many(hashes[done:], offsets[done:], timestamps[done:])
            if self.bare_offset >= 0:
                last = self.last_file
                if last is None or (last.is_full and self.bare_offset > last.end_offset):
                    self._add_file()
                self.bare_offset = -1
        finally:
            del hashes[:done], offsets[:done], timestamps[:done]

    def _hash_pending(self) -> None:
        """Skip what is indexed already, hash the rest."""
        floor = self._floor()
        pending, self.pending = self.pending, []
        offsets: list[int] = []
        timestamps: list[int] = []
        hashes: list[int] = []
        if _compiled is not None:
            _compiled.hash_pending(pending, floor, hashes, offsets, timestamps)
        else:
            hashes = _hash_pending(pending, floor, offsets, timestamps)
        self._hashes.extend(hashes)
        self._offsets.extend(offsets)
        self._timestamps.extend(timestamps)

    def _floor(self) -> int:
        """Keys of records up to here are indexed, or hashed for it."""
        return self._offsets[-1] if self._offsets else self.end_offset

    def _add_file(self) -> IndexFile:
        """The next file; its name is the local time, made unique when files follow quickly."""
        if not self._disk.exists(self._directory):
            self._disk.make_directories(self._directory)
            self._disk.fsync_directory(posixpath.dirname(self._directory))
        before = self.last_file
        slots, self._spare_slots = self._spare_slots, None
        if before is not None:
            slots = before.release_slots()
            self._unsynced_full.append(before)
        name = self._new_name()
        path = posixpath.join(self._directory, name)
        handle = self._disk.open(path, create=True)
        try:
            handle.truncate(index_file_size(self._slots_max, self._index_max))
            # Of two new files a power cut must not leave the second only: its length and name
            # are safe before its first entry.
            handle.fdatasync()
            self._disk.fsync_directory(self._directory)
            file = IndexFile(path, handle, self._slots_max, self._index_max)
            file.start(
                before.end_timestamp if before is not None else 0,
                before.end_offset if before is not None else 0,
                slots,
            )
        except OSError:
            handle.close()
            self._disk.unlink(path)
            raise
        self.files.append(file)
        return file

    def _new_name(self) -> str:
        seconds, milliseconds = divmod(self._clock.now_ms(), 1000)
        text = datetime.fromtimestamp(seconds).strftime("%Y%m%d%H%M%S")
        name = f"{text}{milliseconds:03d}"
        last = posixpath.basename(self.files[-1].path) if self.files else ""
        # Files are loaded in the order of their names: a clock that went back must not change it.
        return name if last < name else f"{int(last) + 1:0{_NAME_LENGTH}d}"

    # Syncing

    def take_unsynced(self) -> list[IndexFile]:
        """Files to sync now: full ones and the current one."""
        files, self._unsynced_full = self._unsynced_full, []
        last = self.last_file
        if last is not None and last.is_unsynced:
            files.append(last)
        for file in files:
            file.is_unsynced = False
        return files

    def synced(self, files: list[IndexFile]) -> None:
        """They are durable: a full one moves the checkpoint's third number."""
        for file in files:
            if file.is_full:
                self.full_timestamp = max(self.full_timestamp, file.end_timestamp)

    def write_slots(self) -> None:
        last = self.last_file
        if last is not None:
            last.write_slots()

    # Query and retention

    def query(
        self, topic: str, key: str, count_max: int, begin: int, end: int
    ) -> tuple[list[int], int, int]:
        """(physical offsets, newest first; end timestamp and end offset of the newest file)."""
        try:
            self.drain()
        except OSError as error:  # A full disk is no reason not to read; housekeeping says it.
            _LOG.debug("keys not written before a query error=%s", error)
        if len(topic) > _QUERIED_TOPIC_MAX:
            return [], 0, 0
        key_hash = index_key_hash(topic, key)
        found = self._unwritten(key_hash, begin, end)[:count_max]
        last = self.last_file
        if last is None:
            return found, 0, 0
        for file in reversed(self.files):
            if file.is_time_matched(begin, end):
                found += file.select(key_hash, count_max - len(found), begin, end)
            if file.begin_timestamp < begin or len(found) >= count_max:
                break
        return found, last.end_timestamp, last.end_offset

    def _unwritten(self, key_hash: int, begin: int, end: int) -> list[int]:
        """What the disk had no room for, newest first."""
        waiting = zip(self._hashes, self._offsets, self._timestamps, strict=True)
        found = [offset for each, offset, at in waiting if each == key_hash and begin <= at <= end]
        return found[::-1]

    def remove_expired(self, log_min_offset: int) -> int:
        """Delete from the oldest on, never the last, what points only below the log."""
        count = 0
        while len(self.files) > 1 and self.files[0].newest_offset() < log_min_offset:
            self._remove(self.files.pop(0))
            count += 1
        return count

    def _remove(self, file: IndexFile) -> None:
        if file in self._unsynced_full:
            self._unsynced_full.remove(file)
        file.file.close()
        self._disk.unlink(file.path)

    def remove_all(self) -> None:
        while self.files:
            self._remove(self.files.pop())
        self.forget_pending()

    def forget_pending(self, floor: int = 0) -> None:
        """Keys from `floor` on are not wanted: their records are gone, or will be read again."""
        self.pending = [item for item in self.pending if item[2] < floor]
        self.bare_offset = min(self.bare_offset, floor - 1)
        kept = bisect_left(self._offsets, floor)
        del self._hashes[kept:], self._offsets[kept:], self._timestamps[kept:]

    def close(self) -> None:
        for file in self.files:
            file.file.close()
        self.files = []


def _hash_pending(
    pending: list[tuple[str, tuple[str, ...], int, int]],
    floor: int,
    offsets: list[int],
    timestamps: list[int],
) -> list[int]:
    """Hashes of the keys of records behind `floor`; their offsets and times go to the lists."""
    hashes: list[int] = []
    for topic, keys, offset, timestamp in pending:
        if offset > floor:
            found = index_key_hashes(topic, keys)
            hashes += found
            offsets += [offset] * len(found)
            timestamps += [timestamp] * len(found)
    return hashes
