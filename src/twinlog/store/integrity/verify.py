"""`twinlog store verify`: is a store, running or not, what was written to it?

The log by digests and records, the ends of queues and index against the log's end; with `is_deep`
every entry of every queue against the record that it leads to, and every entry of the index.
"""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from twinlog.message.layout import (
    ENTRY,
    INDEX_ENTRY,
    INDEX_ENTRY_SIZE,
    INDEX_HEADER,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    PRE_BLANK_SIZE,
)
from twinlog.runtime.disk import Disk
from twinlog.runtime.file_copy import read_part
from twinlog.runtime.numbers import is_number
from twinlog.store.integrity.digests import RANGE_SIZE, RangeDigests, digest_of
from twinlog.store.integrity.files import (
    Fault,
    LogFiles,
    QueueFiles,
    find_log,
    find_queues,
    log_start_of,
    walk_log,
)
from twinlog.store.integrity.numbers import Numbers
from twinlog.store.integrity.record_check import queue_place, structure_fault
from twinlog.store.integrity.walk import Run, differing
from twinlog.store.log.segment import segment_name
from twinlog.store.queue.queue_manifest import QueueManifest

_ATTEMPTS: Final = 5
_FINDINGS_MAX: Final = 1000
_INDEX_STEP: Final = 50_000
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Verification:
    """What was looked at, and what is wrong."""

    log_start: int = 0
    log_end: int = 0
    checked_bytes: int = 0
    record_count: int = 0
    digest_count: int = 0
    queue_count: int = 0
    entry_count: int = 0
    index_count: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(text)


class Verifier:
    """One run over a store."""

    def __init__(self, disk: Disk, root: str, *, is_deep: bool, progress: Progress) -> None:
        self._disk = disk
        self._root = root
        self._is_deep = is_deep
        self._progress = progress
        self._queues: dict[tuple[str, int], QueueFiles] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._headless: dict[tuple[str, int], int] = {}  # Records before the first file.
        self._log: LogFiles | None = None
        self._digested = 0  # Bytes that were read for their digests: they count as work.
        self._total = 0
        self.result = Verification()

    def run(self, log_directory: str | None = None) -> Verification:
        """Raises StoreLayoutError where there is no log, OSError where it cannot be read."""
        directory = log_directory or posixpath.join(self._root, "commitlog")
        for _ in range(_ATTEMPTS):
            first = find_log(self._disk, directory).starts[0]
            try:
                return self._run(directory)
            except FileNotFoundError:
                # A broker serves from it, and something expired, or a topic was deleted: begin
                # again with what is left.
                if find_log(self._disk, directory).starts[0] == first and not self._is_in_use:
                    raise
                self.result, self._ends, self._digested = Verification(), {}, 0
                self._headless = {}
        return self._run(directory)

    def _run(self, directory: str) -> Verification:
        log = find_log(self._disk, directory)
        # Before the log is read: entries that come later may lead behind its end.
        self._queues = self._find_queues()
        self._log = log
        self._check_files(log)
        self._check_digests(log)
        self._check_records(log)
        self._check_queues()
        self._check_index()
        return self.result

    def _check_files(self, log: LogFiles) -> None:
        for before, after in itertools.pairwise(log.starts):
            if after - before != log.size:
                self.result.add(f"{log.path(after)} does not follow {log.path(before)}")
        for start in log.starts:
            size = self._disk.file_size(log.path(start))
            # The last one may be short: a start extends it.
            if size > log.size or (size < log.size and start != log.starts[-1]):
                self.result.add(f"{log.path(start)} has {size} bytes, not {log.size}")

    def _check_digests(self, log: LogFiles) -> None:
        digests = RangeDigests(self._disk, posixpath.join(self._root, "twinlog"), log.size)
        sealed = sum(min(log.size, RANGE_SIZE * len(digests.of(start))) for start in log.starts)
        self._total = sealed + len(log.starts) * log.size
        for start in log.starts:
            if path := digests.broken_file(start):
                self.result.add(f"{path} is damaged; the next scrub writes it again")
            if not digests.of(start):
                continue
            file = self._disk.open(log.path(start), read_only=True)
            try:
                for number in range(len(digests.of(start))):
                    offset = start + number * RANGE_SIZE
                    wanted = digests.find(offset)
                    size = min(RANGE_SIZE, start + log.size - offset)
                    self._digested += size
                    self._progress(self._digested, self._total)
                    if wanted is None:
                        continue
                    self.result.digest_count += 1
                    if digest_of(file.pread(size, offset - start)) != wanted:
                        self.result.add(
                            f"{size} bytes at offset {offset} of the log are not what their digest "
                            f"says ({log.path(start)}, position {offset - start})"
                        )
            finally:
                file.close()

    def _check_records(self, log: LogFiles) -> None:
        result = self.result
        result.log_start = result.log_end = log_start_of(self._disk, self._root, log)
        faults: list[Fault] = []
        numbers = Numbers()
        for at, found in walk_log(self._disk, log, result.log_start, faults):
            result.record_count += found.record_count
            result.checked_bytes += found.end - at
            result.log_end = found.end
            for run in found.runs:
                self._check_run(run)
            for offset, _, reason in numbers.wrong(found.runs):
                self.result.add(f"the record at offset {offset} of the log is damaged: {reason}")
            self._progress(self._digested + found.end - log.starts[0], self._total)
        for fault in faults:
            start = fault.offset - fault.offset % log.size
            self.result.add(
                f"the log is damaged at offset {fault.offset} ({log.path(start)}, position "
                f"{fault.offset - start}): {fault.reason}; records follow at {fault.next_offset}"
            )

    def _check_run(self, run: Run) -> None:
        key, count = (run.topic, run.queue_id), len(run.entries) // ENTRY.size
        # Of the last records: the numbers of a topic that was made again began again.
        self._ends[key] = run.first_number + count
        queue = self._queues.get(key)
        if queue is not None and run.first_number < queue.starts[0] // ENTRY.size:
            self._headless.setdefault(key, run.first_number)
        if queue is None or not self._is_deep:
            return
        number, last = run.first_number, min(run.first_number + count, queue.end)
        while number < last:
            found = queue.read(self._disk, number, last - number)
            if not found:
                return
            at = (number - run.first_number) * ENTRY.size
            part = Run(*run[:2], number, run.entries[at : at + len(found)])
            for wrong in differing(part, found):
                self._wrong_entry(queue, wrong, part, found)
            self.result.entry_count += len(found) // ENTRY.size
            number += len(found) // ENTRY.size

    def _wrong_entry(self, queue: QueueFiles, number: int, run: Run, found: bytes) -> None:
        at = (number - run.first_number) * ENTRY.size
        is_, wanted = ENTRY.unpack_from(found, at), ENTRY.unpack_from(run.entries, at)
        if is_[0] > wanted[0] and self._is_sound(queue, number, is_[0], is_[1]):
            return  # The topic was deleted and made again: its numbers began again.
        self.result.add(
            f"entry {number} of queue {queue.topic}-{queue.queue_id} says {is_}, the log {wanted}"
        )

    def _is_sound(self, queue: QueueFiles, number: int, offset: int, size: int) -> bool:
        """Whether an entry leads to a record of its queue with its number."""
        assert self._log is not None
        start = offset - offset % self._log.size
        if start not in self._log.starts or not 0 < size <= self._log.size:
            return False
        data = read_part(self._disk, self._log.path(start), offset - start, size)
        place = queue_place(queue.topic, queue.queue_id)
        return not structure_fault(data, 0, size, offset, place=place, number=number)

    def _find_queues(self) -> dict[tuple[str, int], QueueFiles]:
        return {(q.topic, q.queue_id): q for q in find_queues(self._disk, self._root)}

    @property
    def _unwritten_max(self) -> int:
        """Entries that may be missing: a broker that runs writes them later than records, and one
        that was killed makes them at its start."""
        return _UNWRITTEN_MAX if self._is_in_use else 0

    @property
    def _is_in_use(self) -> bool:
        """Whether a broker runs, or was killed."""
        return self._disk.exists(posixpath.join(self._root, "abort"))

    @property
    def _is_restored(self) -> bool:
        """Whether it comes from a backup, which has no queues: the first start makes them."""
        names = ("checkpoint", "consumequeue")
        return not any(self._disk.exists(posixpath.join(self._root, name)) for name in names)

    def _queue_faults(self) -> list[str]:
        """Queues and files of them that are lost, as the list of queues says which there were."""
        if self._is_restored:
            return []
        manifest = QueueManifest(self._disk, posixpath.join(self._root, "twinlog"))
        manifest.load()
        queues = self._find_queues()
        faults = [
            f"queue {topic}-{queue_id} ends at {queue.end if queue else 0}, it had {end} entries"
            for (topic, queue_id), end in manifest.ends.items()
            if (queue := queues.get((topic, queue_id))) is None or queue.end < end
            if queue is not None or not self._is_deleted(topic)
        ]
        for queue in queues.values():
            faults += self._file_faults(queue, manifest.file_size or queue.file_size)
        return faults

    def _is_deleted(self, topic: str) -> bool:
        """Whether a broker that runs has deleted it: the list of queues follows in seconds."""
        table = posixpath.join(self._root, "config", "topics.json")
        directory = posixpath.join(self._root, "consumequeue", topic)
        if not self._is_in_use or self._disk.exists(directory) or not self._disk.exists(table):
            return False
        return f'"{topic}"'.encode() not in self._disk.read_bytes(table)

    def _file_faults(self, queue: QueueFiles, wanted: int) -> list[str]:
        paths = [posixpath.join(queue.directory, segment_name(start)) for start in queue.starts]
        sizes = {path: self._disk.file_size(path) for path in paths}
        faults = [
            f"{path} has {size} bytes, not {wanted}"
            for path, size in sizes.items()
            if size != wanted
        ]
        holes = [
            f"{posixpath.join(queue.directory, segment_name(before + wanted))} is missing"
            for before, after in itertools.pairwise(queue.starts)
            if after - before != wanted
        ]
        return faults + holes

    def _check_queues(self) -> None:
        self.result.queue_count = len(self._queues)
        if self._unwritten_max == 0:  # Else retention may be at work.
            for (topic, queue_id), number in self._headless.items():
                first = self._queues[topic, queue_id].starts[0] // ENTRY.size
                text = f"queue {topic}-{queue_id} begins with entry {first}"
                self.result.add(f"{text}, the log has record {number}")
        if faults := self._queue_faults():
            # A broker may be making a file, or deleting a topic: what it does not do twice counts.
            again = self._queue_faults()
            for fault in faults:
                if fault in again:
                    self.result.add(fault)
        for key, queue in self._queues.items():
            end = self._ends.get(key)
            if end is not None and queue.end < end:
                missing = end - queue.end
                if missing > self._unwritten_max:
                    self.result.add(
                        f"queue {queue.topic}-{queue.queue_id} ends at {queue.end}, the log has "
                        f"{missing} more of its records"
                    )
            data = queue.read(self._disk, queue.end - 1, 1) if queue.end else b""
            if data:
                offset, size, _ = ENTRY.unpack(data)
                if size != PRE_BLANK_SIZE and offset + size > self.result.log_end:
                    self.result.add(
                        f"the last entry of queue {queue.topic}-{queue.queue_id} leads to "
                        f"{offset}, the log ends at {self.result.log_end}"
                    )

    def _check_index(self) -> None:
        directory = posixpath.join(self._root, "index")
        paths = [posixpath.join(directory, name) for name in self._disk.list(directory)]
        sizes = {
            path: self._disk.file_size(path)
            for path in paths
            if is_number(posixpath.basename(path)) and not self._disk.is_directory(path)
        }
        whole = max(sizes.values(), default=0)
        for path, size in sizes.items():
            self.result.index_count += 1
            if size == whole and size >= INDEX_HEADER_SIZE:
                self._check_index_file(path)
            elif size or self._unwritten_max == 0:  # A broker that runs may be making it.
                self.result.add(f"{path} has {size} bytes, not {max(whole, INDEX_HEADER_SIZE)}")

    def _check_index_file(self, path: str) -> None:
        file = self._disk.open(path, read_only=True)
        try:
            head = file.pread(INDEX_HEADER_SIZE, 0)
            begin, end, first, last, used, count = INDEX_HEADER.unpack(head)
            if count <= 1:
                return
            is_right = begin <= end and first <= last <= self.result.log_end and used < count
            if not is_right:
                self.result.add(
                    f"{path}: its header says {count - 1} entries of [{first}, {last}], the log "
                    f"ends at {self.result.log_end}"
                )
            elif self._is_deep:
                self._check_index_entries(path, count)
        finally:
            file.close()

    def _check_index_entries(self, path: str, count: int) -> None:
        file = self._disk.open(path, read_only=True)
        try:
            slots = _slots_of(file.size(), count)
            if slots is None:
                return
            base = INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots
            for number in range(1, count, _INDEX_STEP):
                size = min(_INDEX_STEP, count - number) * INDEX_ENTRY_SIZE
                data = file.pread(size, base + number * INDEX_ENTRY_SIZE)
                for index, entry in enumerate(INDEX_ENTRY.iter_unpack(data), number):
                    self._check_index_entry(path, index, entry)
        finally:
            file.close()

    def _check_index_entry(self, path: str, number: int, entry: tuple[int, int, int, int]) -> None:
        key_hash, offset, _, previous = entry
        if key_hash < 0 or not 0 <= offset < self.result.log_end or not 0 <= previous < number:
            self.result.add(f"{path}: entry {number} is {entry}, which no message has")


_UNWRITTEN_MAX: Final = 10_000
# Slots and entries of Apache's defaults; files of other sizes are checked by their header alone.
_DEFAULT_SLOTS: Final = 5_000_000
_DEFAULT_ENTRIES: Final = 20_000_000


def _slots_of(size: int, count: int) -> int | None:
    default = INDEX_HEADER_SIZE + 4 * _DEFAULT_SLOTS + INDEX_ENTRY_SIZE * _DEFAULT_ENTRIES
    return _DEFAULT_SLOTS if size == default else None
