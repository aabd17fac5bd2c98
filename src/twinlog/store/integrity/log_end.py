"""Where the log of a restored store ends, and with which numbers its queues go on behind that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twinlog.message.layout import ENTRY
from twinlog.message.record import ScanEntry, scan
from twinlog.runtime.disk import Disk
from twinlog.runtime.file_copy import read_part
from twinlog.store.integrity.files import Fault, LogFiles, walk_log
from twinlog.store.integrity.walk import Run
from twinlog.store.queue.queue_manifest import Ends


@dataclass(frozen=True, slots=True)
class Until:
    """Up to which record a log is restored; without a bound, all of it is."""

    time_ms: int | None = None  # The last one that was stored by then.
    offset: int | None = None  # The last one that ends by then.

    @property
    def is_bound(self) -> bool:
        return self.time_ms is not None or self.offset is not None

    def excludes(self, entry: ScanEntry) -> bool:
        offset, size, _, _, _, stored_at, _, _ = entry
        is_later = self.time_ms is not None and stored_at > self.time_ms
        return is_later or (self.offset is not None and offset + size > self.offset)


WHOLE: Final = Until()


def find_end(disk: Disk, log: LogFiles, log_start: int, until: Until) -> tuple[int, Ends]:
    """Where the first record begins that is left out, and the first number of each queue from
    there on: a queue goes on with it."""
    faults: list[Fault] = []
    later: Ends = {}
    end, is_found = log_start, False
    for at, found in walk_log(disk, log, log_start, faults):
        if not is_found:
            start = at - at % log.size
            data = read_part(disk, log.path(start), at - start, found.end - at)
            for entry in scan(data, 0, at, check_crc=False).entries:
                if until.excludes(entry):
                    end, is_found = entry[0], True
                    break
                end = entry[0] + entry[1]
        if is_found:
            _note_numbers(later, found.runs, end)
    return end, later


def _note_numbers(later: Ends, runs: list[Run], end: int) -> None:
    for run in runs:
        if (run.topic, run.queue_id) in later:
            continue
        for count, (offset, _, _) in enumerate(ENTRY.iter_unpack(run.entries)):
            if offset >= end:
                later[run.topic, run.queue_id] = run.first_number + count
                break
