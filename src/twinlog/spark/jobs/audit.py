"""`twinlog spark audit`: is the slave's log the master's, byte for byte?

Tasks compare windows of the two logs; where a window differs, the records in it are read on both
sides and compared one by one. Three rules make the answer right on a pair that is being written
to:

- The slave's end is taken before the master's: a healthy slave never has more than its master.
- The master's end at the start of the audit is what the slave must reach; it gets `settle` seconds
  for it. A slave that is only behind gets there, one whose tail was cut off does not.
- Where the slave begins later (it was seeded with the last file only), only the common part is
  compared, and the summary says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinlog.message.ids import host_text
from twinlog.message.layout import MAGIC_BLANK, MESSAGE_MAGICS, RECORD_SIZE_MIN, SIZE_MAGIC
from twinlog.message.model import Record
from twinlog.message.record import RecordError, decode_record
from twinlog.spark.decode.records import LogSlice
from twinlog.spark.jobs.common import Progress, Summary, run_tasks, session_of
from twinlog.spark.read.store_view import LogView, StoreView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_BYTES = 64 << 20
COMPARE_BYTES = 1 << 20
RECORDS_MAX = 100  # differing records listed per window
SETTLE_POLL_SECONDS = 0.2
FINDING = (
    "kind STRING, phys_offset BIGINT, topic STRING, queue_id INT, queue_offset BIGINT, "
    "msg_id STRING, detail STRING"
)


@dataclass(frozen=True, slots=True)
class Window:
    """One task: bytes [low, high) of both logs."""

    master: str
    slave: str
    low: int
    high: int
    master_end: int
    slave_end: int


def finding(
    kind: str, phys_offset: int, detail: str, record: Record | None = None
) -> dict[str, Any]:
    """Make one row of the report."""
    return {
        "kind": kind,
        "phys_offset": phys_offset,
        "topic": record.topic if record else None,
        "queue_id": record.queue_id if record else None,
        "queue_offset": record.queue_offset if record else None,
        "msg_id": record.property_map.get("UNIQ_KEY") if record else None,
        "detail": detail,
    }


def first_difference(one: Any, other: Any) -> int | None:
    """Return the first position at which two equally long byte arrays differ."""
    for begin in range(0, len(one), COMPARE_BYTES):
        a, b = one[begin : begin + COMPARE_BYTES], other[begin : begin + COMPARE_BYTES]
        whole = len(a) // 8 * 8
        same = np.array_equal(a[:whole].view(np.int64), b[:whole].view(np.int64))
        if not same or not np.array_equal(a[whole:], b[whole:]):
            return begin + int(np.argmax(a != b))
    return None


def compare_window(window: Window) -> list[dict[str, Any]]:
    """Compare one window of two logs; runs on a worker."""
    master, slave = LogView(Path(window.master)), LogView(Path(window.slave))
    ours = master.segment(master.segment_of(window.low))
    home = slave.segment_of(window.low)
    theirs = slave.segment(home) if home >= 0 else None
    if theirs is None or theirs.base != ours.base:
        detail = f"the slave has no segment {ours.base:020d}"
        return [finding("MISSING_ON_SLAVE", window.low, detail)]
    begin, end = window.low - ours.base, window.high - ours.base
    at = first_difference(ours.view[begin:end], theirs.view[begin:end])
    if at is None:
        return []
    return differing_records(ours, theirs, window, begin + at)


def differing_records(
    ours: LogSlice, theirs: LogSlice, window: Window, position: int
) -> list[dict[str, Any]]:
    """Name the records of a window that are not the same on both sides."""
    begin = _record_start(ours, position, window)
    end = window.high - ours.base
    here = _records(ours, begin, end)
    there = _records(theirs, begin, end)
    found = []
    for at in sorted(here.keys() | there.keys()):
        mine, other = here.get(at), there.get(at)
        if mine is not None and other is not None:
            if not _same(ours, theirs, at, mine, other):
                found.append(_changed(ours, theirs, at, mine, other))
        elif mine is not None:
            found.append(_missing(ours, theirs, at, mine, window))
        elif other is not None:
            detail = "the slave has a record here, but the master has none"
            found.append(finding("EXTRA_ON_SLAVE", ours.base + at, detail, other))
        if len(found) >= RECORDS_MAX:
            break
    if not found:
        detail = f"bytes differ outside of whole records, first at {ours.base + position}"
        found.append(finding("BYTES_DIFFER", ours.base + position, detail))
    return found


def _record_start(log: LogSlice, position: int, window: Window) -> int:
    """Find the record of the master that holds a position, walking from the segment's begin."""
    view, at = memoryview(log.data), 0
    while at + 8 <= position:
        size, magic = SIZE_MAGIC.unpack_from(view, at)
        if magic not in MESSAGE_MAGICS or size < RECORD_SIZE_MIN:
            break
        if at + size > position:
            return at
        at += size
    return min(at, position)


def _records(log: LogSlice, begin: int, end: int) -> dict[int, Record]:
    return dict(_scan(log, begin, end))


def _scan(log: LogSlice, begin: int, end: int) -> Iterator[tuple[int, Record]]:
    """Yield the whole records from `begin` that start before `end`, stepping over damage."""
    view, at = memoryview(log.data), begin
    while at + RECORD_SIZE_MIN <= len(view) and at < end:
        size, magic = SIZE_MAGIC.unpack_from(view, at)
        if magic == MAGIC_BLANK:
            return
        try:
            if magic not in MESSAGE_MAGICS or not RECORD_SIZE_MIN <= size <= len(view) - at:
                raise RecordError("no record")
            record = decode_record(view[at : at + size], 0, check_crc=False)
        except (RecordError, ValueError):
            following = _next_magic(log, at + 1, end)
            if following is None:
                return
            at = following
            continue
        yield at, record
        at += size


def _next_magic(log: LogSlice, begin: int, end: int) -> int | None:
    """Find the next place that looks like the begin of a record."""
    text = bytes(log.view[begin : min(end + 8, len(log.view))])
    places = [text.find(magic.to_bytes(4, "big"), 4) for magic in MESSAGE_MAGICS]
    found = [place - 4 + begin for place in places if place >= 4]
    return min(found) if found else None


def _same(ours: LogSlice, theirs: LogSlice, at: int, mine: Record, other: Record) -> bool:
    size = mine.total_size
    if size != other.total_size:
        return False
    return bytes(ours.view[at : at + size]) == bytes(theirs.view[at : at + size])


FIELDS = (
    "total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset",
    "sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times",
    "prepared_transaction_offset", "body", "topic", "properties",
)  # fmt: skip


def _changed(
    ours: LogSlice, theirs: LogSlice, at: int, mine: Record, other: Record
) -> dict[str, Any]:
    fields = [name for name in FIELDS if getattr(mine, name) != getattr(other, name)]
    size = min(mine.total_size, other.total_size)
    differ = ours.view[at : at + size] != theirs.view[at : at + size]
    byte = int(np.argmax(differ)) if differ.any() else size
    detail = f"{', '.join(fields)} differ, first at physical offset {ours.base + at + byte}"
    if "body" in fields:
        sides = [
            side for side, record in (("master", mine), ("slave", other)) if _crc_is_wrong(record)
        ]
        detail += f"; the body's crc is wrong on the {' and the '.join(sides)}" if sides else ""
    return finding("RECORD_DIFFERS", ours.base + at, detail, mine)


def _crc_is_wrong(record: Record) -> bool:
    from twinlog.message.crc import body_crc

    return body_crc(record.body) != record.body_crc


def _missing(
    ours: LogSlice, theirs: LogSlice, at: int, mine: Record, window: Window
) -> dict[str, Any]:
    place = ours.base + at
    if place >= window.slave_end and not theirs.view[at : at + mine.total_size].any():
        detail = f"the slave's log ends at {window.slave_end}, the master's at {window.master_end}"
        return finding("TRUNCATED_TAIL", place, detail, mine)
    detail = f"the slave has no whole record here (born on {host_text(mine.born_host)})"
    return finding("MISSING_ON_SLAVE", place, detail, mine)


def settled_ends(
    master: StoreView, slave: StoreView, settle: float, progress: Progress
) -> tuple[int, int]:
    """Return the ends to compare up to: (master, slave), after giving a live slave time."""
    slave_end = slave.log_end()
    master_end = master.log_end()
    if slave_end > master_end:
        return master_end, slave_end
    limit = time.monotonic() + settle
    while slave_end < master_end and time.monotonic() < limit:
        progress.show(f"audit: the slave is {master_end - slave_end} bytes behind, waiting")
        time.sleep(SETTLE_POLL_SECONDS)
        slave_end = slave.log_end()
    return master_end, min(slave_end, master_end)


def windows_of(
    master: StoreView, slave: StoreView, begin: int, master_end: int, slave_end: int
) -> list[Window]:
    """Cut the common range into windows that do not cross segments."""
    found = []
    for base, path in zip(master.log.bases.tolist(), master.log.paths, strict=True):
        low, high = max(base, begin), min(base + path.stat().st_size, master_end)
        sides = (str(master.log.directory), str(slave.log.directory))
        found += [
            Window(*sides, at, min(high, at + WINDOW_BYTES), master_end, slave_end)
            for at in range(low, high, WINDOW_BYTES)
        ]
    return found


def extra_tail(slave: StoreView, master_end: int, slave_end: int) -> list[dict[str, Any]]:
    """Describe what the slave has beyond the master's end."""
    if slave_end <= master_end:
        return []
    home = slave.log.segment_of(master_end)
    log = slave.log.segment(max(home, 0))
    first = next(_scan(log, master_end - log.base, slave_end - log.base), None)
    detail = f"the slave's log ends at {slave_end}, the master's at {master_end}"
    return [finding("EXTRA_TAIL", master_end, detail, first[1] if first else None)]


def audit(
    master: str | Path,
    slave: str | Path,
    *,
    settle: float = 10.0,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Compare the commit logs of two replicas.

    Args:
        master: the master's store directory.
        slave: the slave's store directory.
        settle: how long a slave that is behind may take to reach the master's end of now.
        spark: a session to use.
        spark_master: Spark master of a session that this starts.
        progress: where to show progress.
    """
    begin_time = time.monotonic()
    show = progress or Progress()
    ours, theirs = StoreView(Path(master)), StoreView(Path(slave))
    master_end, slave_end = settled_ends(ours, theirs, settle, show)
    ours.log.refresh()
    theirs.log.refresh()
    begin = max(ours.log.min_offset, theirs.log.min_offset)
    tasks = windows_of(ours, theirs, begin, master_end, slave_end)
    with session_of(spark, "audit", master=spark_master) as session:
        start = time.monotonic()
        rows = run_tasks(session, compare_window, tasks, FINDING, show, text="audit: windows")
        compared = time.monotonic() - start
    found = sorted((row.asDict() for row in rows), key=lambda row: row["phys_offset"])
    found += extra_tail(theirs, master_end, slave_end)
    size = max(0, master_end - begin)
    facts = {
        "master": str(master), "slave": str(slave), "from": begin, "master_end": master_end,
        "slave_end": slave_end, "windows": len(tasks), "bytes": size,
        "mb_per_second": round(2 * size / 1e6 / max(compared, 1e-9), 1),
        "not_compared_before": begin if begin > ours.log.min_offset else None,
    }  # fmt: skip
    return Summary("audit", facts, found, time.monotonic() - begin_time)
