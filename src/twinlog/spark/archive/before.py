"""An archive and the live topic as one stream: what the log no longer has comes from the archive.

A batch is of one of the two. While a queue stands before the first record of the log, batches go
through the archive only, up to where it ends or the log begins; the other queues wait so long. The
tasks of such a batch hold the same stretch of every queue and give its rows in the order of queues
and offsets, so they do not depend on how the files are cut and may be compacted between two tries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from twinlog.spark.archive.table import (
    ArchivedWindow,
    FilePart,
    archive_files,
    first_at_time,
    manifest_of,
)
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import Offsets, QueueKey, limit_rows
from twinlog.spark.plan.positions import ranges_between
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.windows import Range
from twinlog.spark.read.transport import (
    Heads,
    LossPolicy,
    Transport,
    Window,
    select_queues,
    wants,
)

ROWS_PER_TASK = 100_000  # held in memory while they are put in order
Spans = dict[QueueKey, tuple[int, int]]


class ArchiveBefore:
    """A transport that reads an archive before the one it is given."""

    def __init__(self, options: SourceOptions, live: Transport) -> None:
        assert options.archive is not None
        self.options, self.live = options, live
        self.manifest = manifest_of(options)
        self._absent: set[QueueKey] = set()  # in the archive, but not in the log
        self._seen: Offsets = {}  # how far the log was seen to go

    @property
    def policy(self) -> LossPolicy:
        """The rule about lost data, which is that of the live part."""
        return self.live.policy

    @policy.setter
    def policy(self, policy: LossPolicy) -> None:
        self.live.policy = policy

    def queues(self) -> list[QueueKey]:
        """Return every queue of both."""
        return sorted({*self.live.queues(), *self.manifest.spans()})

    def bounds(self, keys: Iterable[QueueKey]) -> Spans:
        """Return the first offset of the archive and the end of the log."""
        return self._joined(self._log_bounds(keys))

    def _log_bounds(self, keys: Iterable[QueueKey]) -> Spans:
        return self.live.bounds([key for key in keys if key not in self._absent])

    def _in_log(self, offsets: Offsets) -> Offsets:
        return {key: number for key, number in offsets.items() if key not in self._absent}

    def _joined(self, live: Spans) -> Spans:
        firsts = {key: low for key, (low, _) in self.manifest.spans().items()}
        return {k: (min(low, firsts.get(k, low)), high) for k, (low, high) in live.items()}

    def heads(self, known: Mapping[QueueKey, int]) -> Heads:
        """Look at both; while a queue is in the archive, nothing ends behind the archive.

        The first look finds the queues that only the archive has, too: the log is asked for them,
        so that they are not those of a broker that is away. They end with the archive.
        """
        spans = self.manifest.spans()
        wanted = {key: 0 for key in spans if wants(self.options, key)}
        found = self.live.heads(known or wanted)
        self._absent = {key for key in spans if key in found.gone}
        self._seen |= {key: high for key, (_, high) in found.bounds.items()}
        gone = {k for k in found.gone if k not in spans or self._is_lost(k, known, spans)}
        select_queues(self.options, {*found.bounds, *spans}, known)
        ends = {key: self._archive_end(key, spans, found) for key in known if key in spans}
        inside = {key: end for key, end in ends.items() if known[key] < end}
        if not inside:
            archived = {k: spans[k] for k in self._absent if known.get(k, 0) <= spans[k][1]}
            bounds = {**self._joined(found.bounds), **archived}
            return Heads(bounds, frozenset(gone), found.silent, found.lasts)
        bounds = {key: (min(number, 0), number) for key, number in known.items()}
        for key, end in inside.items():
            bounds[key] = (spans[key][0], end)
        return Heads(bounds, frozenset(gone), found.silent)

    def _is_lost(self, key: QueueKey, known: Mapping[QueueKey, int], spans: Spans) -> bool:
        """Say whether a queue that the log no longer has is known to have had more rows."""
        number, end = known.get(key, 0), spans[key][1]
        return number > end or (number == end and self._seen.get(key, 0) > end)

    @staticmethod
    def _archive_end(key: QueueKey, spans: Spans, found: Heads) -> int:
        """Return where the archive is left: at its end, or where the log begins."""
        end = spans[key][1]
        return min(end, found.bounds[key][0]) if key in found.bounds else end

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first offset stored at or after a time, in the archive first."""
        begin = self._log_bounds([key]).get(key, (0, 0))[0]
        archived = first_at_time(self.manifest, key, timestamp_ms)
        if key in self._absent or (archived is not None and archived < begin):
            return archived
        return self.live.at_time(key, timestamp_ms)

    def group_offsets(self, group: str) -> Offsets:
        """Return a consumer group's offsets."""
        return self.live.group_offsets(group)

    def limit_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        """Limit by the mean size of a row in the archive's files, or exactly in the log."""
        if not self._is_archived(start, end):
            return self.live.limit_bytes(start, end, bytes_max)
        files = self.manifest.files()
        mean = max(1, sum(f.size for f in files) // max(1, sum(f.rows for f in files)))
        return limit_rows(start, end, max(1, bytes_max // mean))

    def _is_archived(self, start: Offsets, end: Offsets) -> bool:
        moved = [key for key, high in end.items() if high > start.get(key, high)]
        live = self._log_bounds(moved)
        return any(start[key] < live.get(key, (1 << 62, 0))[0] for key in moved)

    def marks(self, offsets: Offsets) -> dict[str, Any]:
        """Identify the log; the archive is known by its manifest."""
        return self.live.marks(self._in_log(offsets))

    def places(self, offsets: Offsets) -> Offsets:
        """Ask the log."""
        return self.live.places(self._in_log(offsets))

    def check_marks(self, marks: Mapping[str, Any]) -> None:
        """Check the log."""
        self.live.check_marks(marks)

    def cuts(self, ranges: Sequence[Range]) -> dict[str, Any]:
        """Choose the cuts of the archive, or of the log."""
        if not ranges:
            return {}
        begins = self._log_bounds(r[:3] for r in ranges)
        if all(r.low >= begins.get(r[:3], (1 << 62, 0))[0] for r in ranges):
            return self.live.cuts(ranges)
        return {"archive": self.options.max_records_per_partition or ROWS_PER_TASK}

    def plan(self, ranges: Sequence[Range], cuts: Mapping[str, Any]) -> list[Any]:
        """Cut into tasks, of the archive or of the log."""
        if "archive" not in cuts:
            return list(self.live.plan(ranges, cuts))
        parts = slices(ranges, int(cuts["archive"]))
        return [ArchivedWindow(part) for part in parts]

    def read(self, window: Window, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a window of the log."""
        return self.live.read(window, columns)

    def with_keys(self, ranges: list[Range], keys: Collection[str]) -> list[Range]:
        """Ask the log's index."""
        return self.live.with_keys(ranges, keys)

    def commit_group(self, group: str, offsets: Offsets) -> None:
        """Report progress."""
        self.live.commit_group(group, self._in_log(offsets))

    def close(self) -> None:
        """Let go of connections."""
        self.live.close()


def slices(ranges: Sequence[Range], rows_max: int) -> list[tuple[Range, ...]]:
    """Cut into parts that have the same share of each queue: queues grow side by side."""
    total = sum(r.rows for r in ranges)
    count = max(1, -(-total // rows_max))
    found = []
    for number in range(count):
        part = [
            r._replace(
                low=r.low + r.rows * number // count, high=r.low + r.rows * (number + 1) // count
            )
            for r in ranges
        ]
        found.append(tuple(r for r in part if r.rows > 0))
    return [part for part in found if part]


class ArchiveAndLog:
    """Both as one table for a batch: rows before the end of the archive come from its files."""

    def __init__(self, options: SourceOptions, live: Transport, pushed: Pushed) -> None:
        self.options, self.live, self.pushed = options, live, pushed
        self.manifest = manifest_of(options)
        self.spans = self.manifest.spans()
        present = set(live.queues())
        keys = [k for k in select_queues(options, present | {*self.spans}) if pushed.wants_queue(k)]
        self.bounds = live.bounds([key for key in keys if key in present])
        self.joined = {key: self._joined(key) for key in keys}

    def _joined(self, key: QueueKey) -> tuple[int, int]:
        live = self.bounds.get(key)
        low, high = self.spans.get(key) or live or (0, 0)
        return (min(low, live[0]), max(high, live[1])) if live else (low, high)

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first offset stored at or after a time, in the archive first."""
        found = first_at_time(self.manifest, key, timestamp_ms) if key in self.spans else None
        if found is not None or key not in self.bounds:
            return found
        return self.live.at_time(key, timestamp_ms)

    def group_offsets(self, group: str) -> Offsets:
        """Return a consumer group's offsets."""
        return self.live.group_offsets(group)

    def plan(
        self, start: Offsets, end: Offsets, policy: LossPolicy
    ) -> tuple[list[FilePart], list[Range]]:
        """Return the files of the archive to read, and the ranges of the log."""
        files = archive_files(self.options, self.pushed, self.manifest, start, end)
        begin = {key: self._live_start(key, start[key]) for key in self.bounds}
        high = {key: end[key] for key in self.bounds}
        return files, ranges_between(begin, high, self.bounds, policy)

    def _live_start(self, key: QueueKey, start: int) -> int:
        """Return where the log is entered: what lies between it and the archive is missing."""
        archived = self.spans[key][1] if key in self.spans else start
        is_by_time = self.options.position("starting")[0] in ("time", "times")
        if is_by_time and start == self.bounds[key][0]:
            return archived  # the missing rows may have been stored at or after the time
        return max(start, archived)
