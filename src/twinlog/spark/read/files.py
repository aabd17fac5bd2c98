"""The `store` transport: rows straight from a replica's files, with no load on any broker."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twinlog.message.hashing import jhash
from twinlog.message.layout import PRE_BLANK_SIZE, RECORD_SIZE_MIN
from twinlog.message.names import LMQ_PREFIX, SCHEDULE_TOPIC
from twinlog.spark.decode.records import (
    Decoder,
    Expected,
    Layout,
    LogSlice,
    bad_crcs,
    cut_batches,
    lay_out,
)
from twinlog.spark.decode.vector import I64
from twinlog.spark.errors import DataLossError, OptionError, RecordCorruptError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import Offsets, QueueKey
from twinlog.spark.plan.windows import Limits, Range, by_queue, find_cuts, windows
from twinlog.spark.read import key_index
from twinlog.spark.read.choice import Choice
from twinlog.spark.read.store_view import ENTRY, LogView, QueueView, StoreView
from twinlog.spark.read.transport import (
    ADVICE,
    Heads,
    LossPolicy,
    Skip,
    Window,
    queue_tasks,
    select_queues,
)

log = logging.getLogger("twinlog.spark")
HEAL_SECONDS = 0.2  # a record that is being written looks torn; one retry after this tells
EXT_ADDRESS_MAX = -(2**31) - 1  # a tag code at or below it is an address in the extension files


class QueueIndex:
    """A queue's entries as the planner wants them."""

    def __init__(self, queue: QueueView) -> None:
        self.queue = queue

    def sample(self, queue_offset: int) -> tuple[int, int]:
        """Return (physical offset, size) of one entry."""
        entry = self.queue.entry(queue_offset)
        return int(entry["offset"]), int(entry["size"])

    def first_from(self, physical: int, low: int, high: int) -> int:
        """Return the first entry of [low, high) whose record begins at or after `physical`."""
        return self.queue.first_at_or_after(physical, low, high)


class StoreTransport:
    """Reads a store directory."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.path is not None
        if "commitGroup" in options.raw:
            raise OptionError(
                "BAD_OPTION",
                "commitGroup reports to a broker, so it needs nameServer instead of path",
            )
        self.options = options
        self.store = StoreView(Path(options.path))
        self.broker = options.raw.get("brokerName") or self.store.broker_name()
        self.policy = LossPolicy(options.fail_on_data_loss)

    def queues(self) -> list[QueueKey]:
        """Return every queue of the store."""
        found = self.store.readable_queues().items()
        return [(topic, self.broker, queue_id) for topic, ids in found for queue_id in ids]

    def bounds(self, keys: Iterable[QueueKey]) -> dict[QueueKey, tuple[int, int]]:
        """Return first and end offset of queues."""
        self.store.log.refresh()
        confirmed = self.store.confirmed() if self.options.isolation == "confirmed" else None
        present = self.store.readable_queues()
        found = {}
        for key in keys:
            topic, broker, queue_id = key
            if broker == self.broker and queue_id in present.get(topic, ()):
                queue = self.store.queue(topic, queue_id)
                end = queue.end(self.store.log, confirmed=confirmed)
                found[key] = (min(end, queue.begin(self.store.log.min_offset)), end)
        return found

    def heads(self, known: Mapping[QueueKey, int]) -> Heads:
        """Look at the queues; the store's own list is final about what is gone."""
        present = self.queues()
        bounds = self.bounds({*select_queues(self.options, present, known), *known})
        lasts = self.places({key: end for key, (_, end) in bounds.items() if key in known})
        return Heads(bounds, frozenset(known).difference(present), lasts=lasts)

    def at_time(self, key: QueueKey, timestamp_ms: int) -> int | None:
        """Return the first offset stored at or after a time."""
        low, high = self.bounds([key])[key]
        queue = self.store.queue(key[0], key[2])
        found = queue.first_at_time(self.store.log, timestamp_ms, low, high)
        return found if found < high else None

    def group_offsets(self, group: str) -> Offsets:
        """Return the offsets in the store's own file."""
        table = self.store.consumer_offsets().get(group, {})
        return {
            (topic, self.broker, queue_id): offset
            for topic, offsets in table.items()
            for queue_id, offset in offsets.items()
        }

    def limit_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        """Cut in the order of the log, so that the limit is exact."""
        rows_max = bytes_max // RECORD_SIZE_MIN + 1
        keys = [key for key, high in end.items() if high > start.get(key, high)]
        parts = [
            self.store.queue(k[0], k[2]).entries(start[k], min(end[k], start[k] + rows_max))
            for k in keys
        ]
        if not keys or sum(int(part["size"].sum()) for part in parts) <= bytes_max:
            return dict(end)
        owners = np.repeat(np.arange(len(keys)), [len(part) for part in parts])
        entries = np.concatenate(parts)
        order = np.argsort(entries["offset"].astype(np.int64), kind="stable")
        spent = np.cumsum(entries["size"].astype(np.int64)[order])
        taken = max(1, int(np.searchsorted(spent, bytes_max, "right")))
        counts = np.bincount(owners[order[:taken]], minlength=len(keys))
        limited = dict(end)
        for number, key in enumerate(keys):
            limited[key] = start[key] + int(counts[number])
        return limited

    def _last_entries(self, offsets: Offsets) -> dict[QueueKey, tuple[int, int]]:
        """Return place and size of the last record before each offset, where it is there."""
        found = {}
        for key, end in offsets.items():
            queue = self.store.queue(key[0], key[2])
            if key[1] != self.broker or end <= queue.first or end > queue.limit:
                continue
            entry = queue.entry(end - 1)
            size, offset = int(entry["size"]), int(entry["offset"])
            if 0 < size < PRE_BLANK_SIZE and offset >= self.store.log.min_offset:
                found[key] = offset, size
        return found

    def places(self, offsets: Offsets) -> Offsets:
        """Return the physical offset of the last record before each offset."""
        return {key: offset for key, (offset, _) in self._last_entries(offsets).items()}

    def marks(self, offsets: Offsets) -> dict[str, Any]:
        """Fingerprint the furthest record behind these offsets."""
        entries = self._last_entries(offsets)
        if not entries:
            return {}
        offset, size = max(entries.values())
        mark = {
            "crc": self.store.log.header_crc(offset),
            "epoch": self.store.epoch_at(offset + size),
            "last": offset,
            "phys": offset + size,
        }
        return {self.broker: mark}

    def check_marks(self, marks: Mapping[str, Any]) -> None:
        """Compare the log with what was there when the offsets were made."""
        mark = marks.get(self.broker)
        if marks and mark is None:
            raise OptionError(
                "BAD_OFFSETS",
                f"the checkpoint belongs to broker {', '.join(marks)}, but this store "
                f"belongs to {self.broker!r}: use another checkpoint, or set brokerName if this is "
                "the same broker under another name",
            )
        self.store.log.refresh()
        if mark is None or int(mark["last"]) < self.store.log.min_offset:
            return
        self._check_epoch(mark)
        if self.store.log.header_crc(int(mark["last"])) != int(mark["crc"]):
            raise DataLossError(
                "LOG_DIVERGED",
                f"broker {self.broker}: the record at physical offset {mark['last']} "
                "is not the one that was read before: a failover has cut the log, or this "
                "checkpoint belongs to another cluster; start with a new checkpoint",
            )

    def _check_epoch(self, mark: Mapping[str, Any]) -> None:
        epochs = self.store.epochs()
        ends = {epoch: start for (epoch, _), (_, start) in itertools.pairwise(epochs)}
        end = ends.get(int(mark.get("epoch", 0)))
        if end is not None and end < int(mark["phys"]):
            raise DataLossError(
                "LOG_DIVERGED",
                f"broker {self.broker}: epoch {mark['epoch']} ends at physical offset {end}, but "
                f"rows up to {mark['phys']} were read: a failover has cut off what lies between; "
                "start with a new checkpoint",
            )

    def cuts(self, ranges: Sequence[Range]) -> dict[str, Any]:
        """Cut into windows of the log."""
        options = self.options
        if options.keep_order:
            return {"queues": queue_tasks(ranges, options)}
        limits = Limits(
            options.min_partitions,
            options.max_partitions,
            options.max_bytes_per_partition,
            options.max_records_per_partition,
        )
        found: dict[str, Any] = {"phys": find_cuts(ranges, self._indexes(ranges), limits)}
        if options.max_records_per_partition:
            found["rows"] = options.max_records_per_partition
        return found

    def plan(self, ranges: Sequence[Range], cuts: Mapping[str, Any]) -> list[Window]:
        """Cut ranges into windows of the log, or by rows as a batch of the network was."""
        if "queues" in cuts:
            return by_queue(ranges, int(cuts["queues"]))
        return windows(ranges, self._indexes(ranges), cuts.get("phys", ()), cuts.get("rows"))

    def _indexes(self, ranges: Sequence[Range]) -> list[QueueIndex]:
        return [QueueIndex(self.store.queue(r.topic, r.queue_id)) for r in ranges]

    def read(self, window: Window, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a window in physical order."""
        reader = WindowReader(self.store, self.options, self.broker, self.policy)
        return reader.batches(window, columns)

    def with_keys(self, ranges: list[Range], keys: Collection[str]) -> list[Range]:
        """Ask the store's index."""
        return key_index.narrow(self.store, ranges, keys)

    def commit_group(self, group: str, offsets: Offsets) -> None:
        """Refuse: files are only read."""
        raise OptionError(
            "BAD_OPTION", "commitGroup reports to a broker, so it needs nameServer instead of path"
        )

    def close(self) -> None:
        """Nothing is kept open."""


class WindowReader:
    """Reads the rows of one window: a pure function of the window, counted."""

    def __init__(
        self, store: StoreView, options: SourceOptions, broker: str, policy: LossPolicy
    ) -> None:
        self.store, self.options, self.broker, self.policy = store, options, broker, policy
        self.choice = Choice(options)
        self.tag_codes = np.array(sorted(jhash(tag) for tag in options.tags), np.int64)

    def batches(self, window: Window, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """Yield record batches.

        Raises:
            DataLossError: rows of the window are gone.
            RecordCorruptError: a record is not what the queue says.
        """
        choice = self.choice
        decoder = Decoder(choice.needed(columns), self.broker, self.options.decompress)
        rows = _Rows.collect(self._present(window), self.store)
        if choice.tags:
            rows = rows.with_tags(self.tag_codes)
        for layout in self._layouts(rows):
            if len(matching := choice.matching(layout)):
                yield choice.chosen(decoder.batch(matching), columns)

    def _present(self, window: Window) -> list[Range]:
        """Apply the loss rule to the parts of a window that retention has taken."""
        low_end = self.store.log.min_offset
        present = []
        for r in window:
            queue = self.store.queue(r.topic, r.queue_id)
            first = queue.entry(r.low) if r.low >= queue.first else None
            if first is None or int(first["offset"]) < low_end:
                begin = queue.begin(low_end)
                reason = (
                    "OFFSET_EXPIRED retention removed these messages; "
                    f"the queue now begins at {begin}"
                )
                cut = max(r.low, min(begin, r.high))
                if cut > r.low:
                    self.policy.lost(
                        Skip(r.topic, r.broker, r.queue_id, r.low, cut, reason), ADVICE
                    )
                r = r._replace(low=cut)
            if r.rows > 0:
                present.append(r)
        return present

    def _layouts(self, rows: _Rows) -> Iterator[Layout]:
        # Rows are in physical order: those of a segment lie between two cuts.
        bases = self.store.log.bases
        cuts = [0, *np.searchsorted(rows.offsets, bases[1:], "left").tolist(), len(rows)]
        for home, (first, last) in enumerate(itertools.pairwise(cuts)):
            if first == last:
                continue
            chosen = rows.between(first, last)
            try:
                segment = self.store.log.segment(home)
            except DataLossError as error:
                self._segment_gone(chosen, error)
                continue
            runs = cut_batches(
                chosen.sizes, rows_max=self.options.batch_rows, bytes_max=self.options.batch_bytes
            )
            for begin, end in runs:
                layout = self._checked(segment, chosen.between(begin, end))
                if len(layout):
                    yield layout

    def _segment_gone(self, rows: _Rows, error: DataLossError) -> None:
        for queue in np.unique(rows.owners).tolist():
            offsets = rows.queue_offsets[rows.owners == queue]
            r = rows.ranges[queue]
            low, high = int(offsets.min()), int(offsets.max()) + 1
            reason = f"{error.condition} {error.message}"
            self.policy.lost(Skip(r.topic, r.broker, r.queue_id, low, high, reason), ADVICE)

    def _checked(self, segment: LogSlice, rows: _Rows) -> Layout:
        try:
            layout = lay_out(segment, rows.offsets - segment.base, rows.expected())
        except RecordCorruptError:
            time.sleep(HEAL_SECONDS)
            layout = self._checked_again(segment, rows)
        if not self.options.verify_crc:
            return layout
        wrong = bad_crcs(layout)
        for row in np.flatnonzero(wrong).tolist():
            at = segment.base + int(layout.starts[row])
            reason = f"CRC_MISMATCH the body of the record at physical offset {at} is damaged"
            self.policy.lost(rows_skip(rows, _row_of(rows, at), reason), ADVICE)
        return layout.rows(~wrong) if wrong.any() else layout

    def _checked_again(self, segment: LogSlice, rows: _Rows) -> Layout:
        """Read the entries again (a torn tail heals); leave bad rows out if the policy says so."""
        rows = rows.read_again(self.store)
        try:
            return lay_out(segment, rows.offsets - segment.base, rows.expected())
        except RecordCorruptError:
            if self.policy.fail:
                raise
        good = np.ones(len(rows), bool)
        for row in range(len(rows)):
            one = rows.between(row, row + 1)
            try:
                lay_out(segment, one.offsets - segment.base, one.expected())
            except RecordCorruptError as error:
                good[row] = False
                reason = f"{error.condition} {error.message}"
                self.policy.lost(rows_skip(rows, row, reason), ADVICE)
        kept = rows.rows(good)
        return lay_out(segment, kept.offsets - segment.base, kept.expected())


class _Rows:
    """The index entries of a window, as parallel arrays in physical order."""

    def __init__(
        self,
        ranges: Sequence[Range],
        owners: I64,
        queue_offsets: I64,
        entries: npt.NDArray[Any],
        queue_ids: I64 | None,
    ) -> None:
        self.ranges, self.owners, self.queue_offsets = ranges, owners, queue_offsets
        self.entries = entries
        self.queue_ids = queue_ids
        self.offsets: I64 = entries["offset"].astype(np.int64)
        self.sizes: I64 = entries["size"].astype(np.int64)

    @classmethod
    def collect(cls, ranges: Sequence[Range], store: StoreView) -> _Rows:
        """Read the entries of all ranges; every one must be there."""
        parts = []
        for r in ranges:
            part = store.queue(r.topic, r.queue_id).entries(r.low, r.high)
            sizes = part["size"]
            if len(part) != r.rows or not ((sizes > 0) & (sizes < PRE_BLANK_SIZE)).all():
                raise DataLossError(
                    "OFFSET_AHEAD",
                    f"{r.topic} broker {r.broker} queue {r.queue_id}: entries {r.low} to {r.high} "
                    "are not all in the consume queue (the topic was deleted and created again, or "
                    "the log was cut)",
                )
            parts.append(part)
        entries = np.concatenate(parts) if parts else np.empty(0, ENTRY)
        counts = [r.rows for r in ranges]
        owners = np.repeat(np.arange(len(ranges)), counts)
        numbers = [np.arange(r.low, r.high) for r in ranges]
        queue_offsets = np.concatenate(numbers) if numbers else np.empty(0, np.int64)
        order = np.argsort(entries["offset"].astype(np.int64), kind="stable")
        ids: I64 | None = np.array([r.queue_id for r in ranges], np.int64)
        if any(r.topic.startswith(LMQ_PREFIX) for r in ranges):
            ids = None  # the entries of a light queue point to records of other queues
        return cls(ranges, owners[order], queue_offsets[order], entries[order], ids)

    def __len__(self) -> int:
        return len(self.offsets)

    def rows(self, chosen: npt.NDArray[np.bool_]) -> _Rows:
        """Return some of the rows."""
        return self._some(chosen)

    def _some(self, which: Any) -> _Rows:
        cut = (self.owners[which], self.queue_offsets[which], self.entries[which])
        return _Rows(self.ranges, *cut, self.queue_ids)

    def between(self, begin: int, end: int) -> _Rows:
        """Return rows [begin, end)."""
        return self._some(slice(begin, end))

    def with_tags(self, codes: I64) -> _Rows:
        """Keep the rows whose tag hash may match: it is in the index, so the log is not read."""
        found = self.entries["tag"].astype(np.int64)
        is_plain = np.array([r.topic != SCHEDULE_TOPIC for r in self.ranges], bool)
        unknown = (found <= EXT_ADDRESS_MAX) | ~is_plain[self.owners]
        return self.rows(np.isin(found, codes) | unknown)

    def expected(self) -> Expected:
        """Return what the records must say of themselves."""
        if self.queue_ids is None:
            return Expected(self.sizes, self.offsets)
        return Expected(self.sizes, self.offsets, self.queue_ids[self.owners], self.queue_offsets)

    def read_again(self, store: StoreView) -> _Rows:
        """Read the same entries from the files again."""
        again = [
            store.queue(self.ranges[owner].topic, self.ranges[owner].queue_id).entry(offset)
            for owner, offset in zip(self.owners.tolist(), self.queue_offsets.tolist(), strict=True)
        ]
        entries = np.array(again, ENTRY)
        return _Rows(self.ranges, self.owners, self.queue_offsets, entries, self.queue_ids)


def _row_of(rows: _Rows, physical_offset: int) -> int:
    return int(np.searchsorted(rows.offsets, physical_offset))


def rows_skip(rows: _Rows, row: int, reason: str) -> Skip:
    """Describe one row of a window as skipped."""
    r = rows.ranges[int(rows.owners[row])]
    offset = int(rows.queue_offsets[row])
    return Skip(r.topic, r.broker, r.queue_id, offset, offset + 1, reason)


__all__ = ["LogView", "StoreTransport", "WindowReader"]
