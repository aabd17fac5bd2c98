"""`twinlog spark verify`: log against consume queues against checksums; or queues written again.

Tasks walk windows of the log that begin at known record starts (any queue entry names one), check
each record and compare the entries of its queue with it. `rebuild` writes the consume queues again
from the log, next to the old ones, then swaps: the broker must be stopped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from twinlog.message.hashing import jhash
from twinlog.message.layout import (
    ENTRY_SIZE,
    MAGIC_BLANK,
    PHYSICAL_OFFSET_AT,
    PRE_BLANK_SIZE,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SIZE_MAGIC,
)
from twinlog.message.names import LMQ_PREFIX, SCHEDULE_TOPIC
from twinlog.message.sysflag import UNQUEUED_FLAG
from twinlog.spark.decode.records import (
    Layout,
    LogSlice,
    bad_crcs,
    chain,
    lay_out,
    tail_properties,
    topics,
)
from twinlog.spark.decode.vector import I64
from twinlog.spark.errors import PipelineError, RecordCorruptError
from twinlog.spark.jobs.common import Progress, Summary, run_tasks, session_of
from twinlog.spark.read.store_view import ENTRY, StoreView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_BYTES = 64 << 20
LISTED = 50
QUEUE_FILE_SIZE = 6_000_000
RESULT = (
    "kind STRING, phys_offset BIGINT, topic STRING, queue_id INT, queue_offset BIGINT, "
    "detail STRING, records BIGINT, low BIGINT, high BIGINT"
)


@dataclass(frozen=True, slots=True)
class LogWindow:
    """One task: records that begin in [low, high); `low` is the begin of one."""

    store: str
    low: int
    high: int
    rebuild: str | None = None
    queue_file_size: int = QUEUE_FILE_SIZE


def _result(kind: str, **facts: Any) -> dict[str, Any]:
    names = ("phys_offset", "topic", "queue_id", "queue_offset", "detail", "low", "high")
    return {"kind": kind, "records": 0, **dict.fromkeys(names), **facts}


def verify_window(window: LogWindow) -> list[dict[str, Any]]:
    """Check one window; runs on a worker. Returns findings and one count per queue."""
    store = StoreView(Path(window.store))
    log = store.log.segment(store.log.segment_of(window.low))
    found: list[dict[str, Any]] = []
    counts: dict[tuple[str, int], list[int]] = {}
    for layout in _walk(store, log, window, found):
        wrong = bad_crcs(layout)
        for row in np.flatnonzero(wrong).tolist()[:LISTED]:
            place = log.base + int(layout.starts[row])
            found.append(_result("CRC_MISMATCH", phys_offset=place, detail="the body is damaged"))
        _check_entries(store, layout, window, found, counts)
    found = found[: LISTED * 4]
    found += [
        _result("", topic=topic, queue_id=queue, records=n, low=low, high=high)
        for (topic, queue), (n, low, high) in counts.items()
    ]
    return found


def _walk(
    store: StoreView, log: LogSlice, window: LogWindow, found: list[dict[str, Any]]
) -> Iterator[Layout]:
    """Yield the records of a window, reporting damage and going on after it."""
    at, end = window.low - log.base, window.high - log.base
    while at < end:
        starts = chain(log, at, None if end > len(log.view) else end)
        try:
            layout = lay_out(log, starts)
        except RecordCorruptError as error:
            found.append(_result(error.condition, phys_offset=log.base + at, detail=error.message))
            layout = lay_out(log, np.array(list(_good(log, starts)), np.int64))
        if len(layout):
            _check_places(layout, found)
            yield layout
        at = (
            int(starts[-1]) + int(SIZE_MAGIC.unpack_from(log.data, int(starts[-1]))[0])
            if len(starts)
            else at
        )
        if at + 8 > end or SIZE_MAGIC.unpack_from(log.data, at)[1] == MAGIC_BLANK:
            return
        following = _next_known(store, log.base + at + 1)
        detail = f"no record; the next one that a queue knows is at {following}"
        found.append(_result("RECORD_CORRUPT", phys_offset=log.base + at, detail=detail))
        if following is None:
            return
        at = following - log.base


def _good(log: LogSlice, starts: I64) -> Iterator[int]:
    for start in starts.tolist():
        try:
            lay_out(log, np.array([start], np.int64))
        except RecordCorruptError:
            continue
        yield start


def _next_known(store: StoreView, physical: int) -> int | None:
    """Return the first record start at or after an offset that some queue names."""
    known = []
    for topic, ids in store.queues().items():
        for queue_id in ids:
            queue = store.queue(topic, queue_id)
            end = queue.end(store.log)
            at = queue.first_at_or_after(physical, queue.first, end)
            if at < end:
                known.append(int(queue.entry(at)["offset"]))
    return min(known, default=None)


def _check_places(layout: Layout, found: list[dict[str, Any]]) -> None:
    own = layout.int_at(">i8", layout.starts + PHYSICAL_OFFSET_AT)
    for row in np.flatnonzero(own != layout.starts + layout.log.base).tolist()[:LISTED]:
        place = layout.log.base + int(layout.starts[row])
        detail = f"the record says that it is at {own[row]}"
        found.append(_result("WRONG_PLACE", phys_offset=place, detail=detail))


def entries_of(layout: Layout) -> tuple[Any, I64, I64, npt.NDArray[Any]]:
    """Return topic codes with names, queue ids, queue offsets and the entries of records.

    Half messages and rolled-back ones have no entry and are left out.
    """
    layout = layout.rows(layout.sys_flags & UNQUEUED_FLAG == 0)
    names = topics(layout).dictionary_encode()
    tags = tail_properties(layout).column("TAGS").dictionary_encode()
    hashes = np.array([jhash(tag) for tag in tags.dictionary.to_pylist()] or [0], np.int64)
    codes = tags.indices.fill_null(0).to_numpy(zero_copy_only=False)
    missing = tags.indices.is_null().to_numpy(zero_copy_only=False)
    entries = np.zeros(len(layout), ENTRY)
    entries["offset"] = layout.starts + layout.log.base
    entries["size"] = layout.sizes
    entries["tag"] = np.where(missing, 0, hashes[codes])
    queue_ids = layout.int_at(">i4", layout.starts + QUEUE_ID_AT)
    return names, queue_ids, layout.int_at(">i8", layout.starts + QUEUE_OFFSET_AT), entries


def _check_entries(
    store: StoreView,
    layout: Layout,
    window: LogWindow,
    found: list[dict[str, Any]],
    counts: dict[tuple[str, int], list[int]],
) -> None:
    names, queue_ids, offsets, entries = entries_of(layout)
    codes = names.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    labels = codes * (1 << 32) + queue_ids
    for label in np.unique(labels).tolist():
        rows = labels == label
        topic, queue_id = names.dictionary[label >> 32].as_py(), int(label & 0xFFFFFFFF)
        wanted = offsets[rows]
        low, high = int(wanted.min()), int(wanted.max()) + 1
        known = counts.setdefault((topic, queue_id), [0, low, high])
        known[:] = [known[0] + len(wanted), min(known[1], low), max(known[2], high)]
        if window.rebuild is not None:
            _write_entries(window, topic, queue_id, wanted, entries[rows])
            continue
        queue = store.queue(topic, queue_id)
        if not queue.files:
            continue  # a deleted topic: the driver reports it once
        _compare_queue(queue, wanted, entries[rows], topic, queue_id, found)


def _compare_queue(
    queue: Any, wanted: I64, entries: npt.NDArray[Any], topic: str, queue_id: int, found: list[Any]
) -> None:
    inside = (wanted >= queue.first) & (wanted < queue.limit)
    span = (
        queue.entries(int(wanted[inside].min()), int(wanted[inside].max()) + 1)
        if inside.any()
        else []
    )
    stored = np.zeros(len(wanted), ENTRY)
    if inside.any():
        stored[inside] = span[wanted[inside] - wanted[inside].min()]
    fields = ["offset", "size"] if topic == SCHEDULE_TOPIC else ["offset", "size", "tag"]
    differs = np.zeros(len(wanted), bool)
    for name in fields:
        differs |= stored[name] != entries[name]
    for row in np.flatnonzero(differs).tolist()[:LISTED]:
        empty = int(stored[row]["size"]) == 0
        kind = "ENTRY_MISSING" if empty else "ENTRY_DIFFERS"
        detail = f"the queue has {stored[row].item()}, but the log has {entries[row].item()}"
        place = {"phys_offset": int(entries[row]["offset"]), "queue_offset": int(wanted[row])}
        found.append(_result(kind, topic=topic, queue_id=queue_id, detail=detail, **place))


def _write_entries(
    window: LogWindow, topic: str, queue_id: int, offsets: I64, entries: npt.NDArray[Any]
) -> None:
    """Write entries where they belong: every one has its own place, so tasks need no order."""
    assert window.rebuild is not None
    directory = Path(window.rebuild) / topic / str(queue_id)
    directory.mkdir(parents=True, exist_ok=True)
    size = window.queue_file_size
    homes = offsets * ENTRY_SIZE // size
    for home in np.unique(homes).tolist():
        handle = os.open(directory / f"{home * size:020d}", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(handle, size)
            chosen = homes == home
            places = offsets[chosen] * ENTRY_SIZE - home * size
            runs = np.split(
                np.arange(len(places)), np.flatnonzero(np.diff(places) != ENTRY_SIZE) + 1
            )
            for run in runs:
                os.pwrite(handle, entries[chosen][run].tobytes(), int(places[run[0]]))
        finally:
            os.close(handle)


def plan_windows(store: StoreView, end: int, rebuild: str | None = None) -> list[LogWindow]:
    """Cut the log into windows at record starts that queues know."""
    size = max((q.file_size for q in _queues(store)), default=0) or QUEUE_FILE_SIZE
    windows = []
    for base, path in zip(store.log.bases.tolist(), store.log.paths, strict=True):
        stop = min(base + path.stat().st_size, end)
        low = base
        while low < stop:
            high = (
                stop
                if stop - low <= WINDOW_BYTES * 3 // 2
                else _next_known(store, low + WINDOW_BYTES)
            )
            high = stop if high is None or high > stop else high
            windows.append(LogWindow(str(store.root), low, high, rebuild, size))
            low = high
    return windows


def _queues(store: StoreView) -> Iterator[Any]:
    for topic, ids in store.queues().items():
        for queue_id in ids:
            yield store.queue(topic, queue_id)


def verify(
    store: str | Path,
    *,
    rebuild: bool = False,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Check a store's log, queues and checksums; or write its queues again.

    Raises:
        PipelineError: `rebuild` and a broker holds the store's lock.
    """
    begin = time.monotonic()
    show = progress or Progress()
    view = StoreView(Path(store))
    target = Path(store) / "twinlog" / f"consumequeue.{os.getpid()}" if rebuild else None
    if target is not None:
        _refuse_running_broker(Path(store))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
    # While a broker writes, only what is dispatched can be compared.
    end = view.log_end()
    tasks = plan_windows(view, end, str(target) if target else None)
    with session_of(spark, "verify", master=spark_master) as session:
        start = time.monotonic()
        rows = run_tasks(session, verify_window, tasks, RESULT, show, text="verify: windows")
        busy = time.monotonic() - start
    results = [row.asDict() for row in rows]
    found = [
        {k: v for k, v in row.items() if v is not None and k not in ("records", "low", "high")}
        for row in results
        if row["kind"]
    ]
    spans = _spans(results)
    orphans = {}
    if target is not None:
        _fill_blanks(target, spans, tasks[0].queue_file_size if tasks else QUEUE_FILE_SIZE)
        _swap(Path(store), target)
    else:
        orphans = _check_queues(view, spans, found)
    facts = {
        "store": str(store), "from": view.log.min_offset, "end": end, "windows": len(tasks),
        "records": sum(count for count, _, _ in spans.values()), "queues": len(spans),
        "topics_without_queue": orphans, "rebuilt": rebuild,
        "mb_per_second": round((end - view.log.min_offset) / 1e6 / max(busy, 1e-9), 1),
    }  # fmt: skip
    return Summary("verify", facts, found, time.monotonic() - begin)


def _spans(results: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, int, int]]:
    spans: dict[tuple[str, int], tuple[int, int, int]] = {}
    for row in results:
        if row["kind"]:
            continue
        key = (row["topic"], row["queue_id"])
        count, low, high = spans.get(key, (0, row["low"], row["high"]))
        spans[key] = (count + row["records"], min(low, row["low"]), max(high, row["high"]))
    return spans


def _check_queues(
    view: StoreView, spans: dict[tuple[str, int], tuple[int, int, int]], found: list[Any]
) -> dict[str, int]:
    """Compare what each queue holds with what the log had for it."""
    for queue in _queues(view):
        begin, end = queue.begin(view.log.min_offset), queue.end(view.log)
        count, _, high = spans.get((queue.topic, queue.queue_id), (0, 0, 0))
        if queue.topic.startswith(LMQ_PREFIX) or max(0, end - begin) <= count:
            continue
        detail = (
            f"{end - begin} entries ({begin} to {end}), but the log has {count} records for them"
        )
        place = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": high}
        found.append({"kind": "ENTRY_WITHOUT_RECORD", "detail": detail, **place})
    present = view.queues()
    orphans: dict[str, int] = {}
    for (topic, queue_id), (count, _, _) in spans.items():
        if queue_id in present.get(topic, ()):
            continue
        orphans[topic] = orphans.get(topic, 0) + count
        if topic in view.topics():
            detail = f"the log has {count} records, but there is no consume queue"
            found.append(
                {"kind": "QUEUE_MISSING", "topic": topic, "queue_id": queue_id, "detail": detail}
            )
    return orphans


def _refuse_running_broker(store: Path) -> None:
    with open(store / "lock", "a+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            raise PipelineError(
                "STORE_IN_USE", f"a broker is running on {store}: stop it before you use --rebuild"
            ) from error


def _fill_blanks(
    target: Path, spans: dict[tuple[str, int], tuple[int, int, int]], size: int
) -> None:
    """Put pre-blank entries before the first one of a queue, as RocketMQ does."""
    for (topic, queue_id), (_, low, _) in spans.items():
        base = low * ENTRY_SIZE // size * size
        blanks = np.zeros((low * ENTRY_SIZE - base) // ENTRY_SIZE, ENTRY)
        blanks["size"] = PRE_BLANK_SIZE
        if len(blanks):
            with open(target / topic / str(queue_id) / f"{base:020d}", "r+b") as file:
                file.write(blanks.tobytes())


def _swap(store: Path, target: Path) -> None:
    """Put the new queues in place; the old ones are kept next to them."""
    old = store / "consumequeue"
    if old.exists():
        os.replace(old, store / "twinlog" / f"consumequeue.old.{os.getpid()}")
    os.replace(target, old)
