"""Give up places of the log that nobody has a copy of: the rest of the log is whole again.

A damaged record that no replica has is named and never served, but a slave cannot copy it, and a
broker whose queues must be made again does not start with it. A stopped store gets a record of the
same size there that belongs to no queue, so that every broker, Apache's too, goes on behind it.
What was there is kept in `store/twinlog/damaged-OFFSET-TIME`.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Final

from twinlog.message.layout import ENTRY, ENTRY_SIZE
from twinlog.message.model import PutMessage
from twinlog.message.record import blank_record, decode_record, encode_record, encoded_size
from twinlog.message.sysflag import TRANSACTION_ROLLBACK_TYPE
from twinlog.runtime.disk import Disk
from twinlog.runtime.file_copy import read_part, write_file
from twinlog.store.integrity.digests import RangeDigests
from twinlog.store.integrity.files import (
    Fault,
    QueueFiles,
    find_log,
    find_queues,
    log_start_of,
    walk_log,
)
from twinlog.store.integrity.format import check_format
from twinlog.store.integrity.heal import range_of
from twinlog.store.integrity.numbers import Numbers
from twinlog.store.log.segment import segment_name
from twinlog.store.queue.consume_queue import PRE_BLANK

_TOPIC: Final = "TWINLOG_LOST"
_HOST: Final = bytes(8)


@dataclass(frozen=True)
class LostPlace:
    """Bytes of the log without a sound record; behind them is one, or the segment ends."""

    start: int
    end: int
    reason: str

    @property
    def text(self) -> str:
        return f"{self.end - self.start} bytes at offset {self.start} of the log: {self.reason}"


class GiveUp:
    """The files of a store that no broker has open."""

    def __init__(self, disk: Disk, root: str, log_directory: str | None = None) -> None:
        check_format(disk, root)
        self._disk = disk
        self._root = root
        self._own = posixpath.join(root, "twinlog")
        self._log = find_log(disk, log_directory or posixpath.join(root, "commitlog"))

    def find(self) -> list[LostPlace]:
        """All but a torn end, which a start cuts off by itself."""
        faults: list[Fault] = []
        places: list[LostPlace] = []
        numbers = Numbers()
        start = end = log_start_of(self._disk, self._root, self._log)
        for _, found in walk_log(self._disk, self._log, start, faults):
            end = found.end
            for offset, size, reason in numbers.wrong(found.runs):
                places.append(LostPlace(offset, offset + size, reason))
        places += [
            LostPlace(fault.offset, fault.next_offset, fault.reason)
            for fault in faults
            if fault.offset < end
        ]
        return sorted(places, key=lambda place: place.start)

    def give_up(self, place: LostPlace, now_ms: int) -> None:
        """The record comes last: whoever is interrupted before finds the place again."""
        path, position = self._where(place.start)
        size = place.end - place.start
        name = f"damaged-{segment_name(place.start)}-{now_ms}"
        self._disk.make_directories(self._own)
        bad = read_part(self._disk, path, position, size)
        write_file(self._disk, posixpath.join(self._own, name), bad)
        self._disk.fsync_directory(self._own)
        self._forget_digests(place)
        self._remove_index()
        self._clear_entries(place)
        file = self._disk.open(path)
        try:
            file.pwritev((self._filler(place),), position)
            file.fdatasync()
        finally:
            file.close()

    def _where(self, offset: int) -> tuple[str, int]:
        start = offset - offset % self._log.size
        return self._log.path(start), offset - start

    def _filler(self, place: LostPlace) -> bytes:
        """The same on every copy of this log: it follows from what is behind it."""
        size = place.end - place.start
        if place.end % self._log.size == 0:
            return blank_record(size)
        path, position = self._where(place.end)
        stored_at = self._store_time(path, position)
        message = PutMessage(
            topic=_TOPIC, queue_id=0, body=b"", properties=b"", born_host=_HOST, store_host=_HOST,
            born_timestamp=stored_at, sys_flag=TRANSACTION_ROLLBACK_TYPE,
        )  # fmt: skip
        spare = size - encoded_size(message)
        if spare < 0:  # No record is smaller than one with a topic of one letter.
            message.topic, spare = _TOPIC[:spare], 0
        message.body = bytes(spare)
        return encode_record(message, 0, place.start, stored_at)

    def _store_time(self, path: str, position: int) -> int:
        size = int.from_bytes(read_part(self._disk, path, position, 4), "big")
        return decode_record(read_part(self._disk, path, position, size)).store_timestamp

    def _forget_digests(self, place: LostPlace) -> None:
        digests = RangeDigests(self._disk, self._own, self._log.size)
        at = place.start
        while at < place.end:
            begin, size = range_of(at, self._log.size)
            digests.forget(begin)
            at = begin + size
        digests.save()

    def _remove_index(self) -> None:
        """The next start makes it again: without the keys of the lost one all others move."""
        directory = posixpath.join(self._root, "index")
        for name in self._disk.list(directory):
            self._disk.unlink(posixpath.join(directory, name))
        digests = posixpath.join(self._own, "digests", "index.json")
        if self._disk.exists(digests):
            self._disk.unlink(digests)

    def _clear_entries(self, place: LostPlace) -> None:
        """Entries that lead there mean no message any more."""
        for queue in find_queues(self._disk, self._root):
            for path, position in self._entries_in(queue, place):
                file = self._disk.open(path)
                try:
                    file.pwritev((PRE_BLANK,), position)
                    file.fdatasync()
                finally:
                    file.close()

    def _entries_in(self, queue: QueueFiles, place: LostPlace) -> list[tuple[str, int]]:
        """File and position of each that leads into the place."""
        found = []
        for start in queue.starts:
            path = posixpath.join(queue.directory, segment_name(start))
            data = self._disk.read_bytes(path)
            for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
                offset, size, _ = ENTRY.unpack_from(data, at)
                if size and place.start <= offset < place.end:
                    found.append((path, at))
        return found
