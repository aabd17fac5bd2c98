"""The archive as a table: which files to read, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from twinlog.spark.archive.manifest import ArchivedFile, Manifest
from twinlog.spark.decode.columns import arrow_schema
from twinlog.spark.errors import ArchiveError
from twinlog.spark.options import EARLIEST, LATEST, SourceOptions
from twinlog.spark.plan.offsets import Offsets, QueueKey
from twinlog.spark.plan.positions import look_up
from twinlog.spark.plan.windows import Range
from twinlog.spark.read.choice import Choice
from twinlog.spark.read.transport import select_queues

if TYPE_CHECKING:
    from twinlog.spark.plan.pushdown import Pushed


@dataclass(frozen=True)
class FilePart:
    """One task: a file of the archive, and which of its rows are wanted."""

    path: str
    file: ArchivedFile
    queues: tuple[tuple[QueueKey, int, int], ...]  # wanted offsets of each queue in the file
    low_ms: int | None = None
    high_ms: int | None = None


@dataclass(frozen=True)
class ArchivedWindow:
    """One task of a stream: stretches of queues, whichever files have them."""

    ranges: tuple[Range, ...]


def read_archived(
    options: SourceOptions, window: ArchivedWindow, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a window in the order of queues and offsets.

    Raises:
        ArchiveError: the archive does not have them all.
    """
    assert options.archive is not None
    root = Path(options.archive)
    wanted = {r[:3]: (r.low, r.high) for r in window.ranges}
    choice = Choice(options)
    own = ("topic", "broker", "queue_id", "queue_offset", *choice.archived_columns())
    needed = tuple(dict.fromkeys((*columns, *own)))
    plain = replace(options, tags=(), sql=None)
    found = [
        batch
        for file in Manifest(root).require().files()
        if (part := _part_of(root, file, wanted)) is not None
        for batch in read_file(plain, part, needed)
    ]
    table = pa.Table.from_batches(found, arrow_schema(needed))
    if table.num_rows != sum(r.rows for r in window.ranges) and options.fail_on_data_loss:
        raise ArchiveError(
            "ARCHIVE_GAP", f"{root} has only {table.num_rows} of the rows {window.ranges}"
        )
    order = [(name, "ascending") for name in ("topic", "broker", "queue_id", "queue_offset")]
    rows = table.sort_by(order)
    if options.is_filtered:
        rows = rows.filter(choice.archived(rows))
    yield from rows.select(list(columns)).to_batches(max_chunksize=options.batch_rows)


def _part_of(
    root: Path, file: ArchivedFile, wanted: Mapping[QueueKey, tuple[int, int]]
) -> FilePart | None:
    queues = []
    for broker, queue, first, last in file.queues:
        key = (file.topic, broker, queue)
        low, high = wanted.get(key, (0, 0))
        if low <= last and high > first:
            queues.append((key, low, high))
    return FilePart(str(file.path(root)), file, tuple(queues)) if queues else None


def first_at_time(manifest: Manifest, key: QueueKey, timestamp_ms: int) -> int | None:
    """Return the first offset of a queue that was stored at or after a time."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    topic, broker, queue = key
    files = [f for f in manifest.files() if f.topic == topic and f.store_ms[1] >= timestamp_ms]
    found = []
    for file in files:
        if not any(entry[:2] == [broker, queue] for entry in file.queues):
            continue
        names = ["broker", "queue_id", "queue_offset", "store_ts"]
        rows = pq.ParquetFile(file.path(manifest.root)).read(columns=names)
        times = pc.floor(pc.divide(pc.cast(rows.column("store_ts"), pa.int64()), 1000))
        own = pc.and_(
            pc.equal(rows.column("broker"), broker), pc.equal(rows.column("queue_id"), queue)
        )
        late = pc.and_(own, pc.greater_equal(times, timestamp_ms))
        chosen = rows.filter(late).column("queue_offset")
        if len(chosen):
            found.append(pc.min(chosen).as_py())
    return min(found, default=None)


def archive_plan(options: SourceOptions, pushed: Pushed) -> tuple[Offsets, list[FilePart]]:
    """Return where the archive ends and the files to read of it."""
    assert options.archive is not None
    root = Path(options.archive)
    manifest = Manifest(root).require()
    spans = manifest.spans()
    wanted = {key for key in select_queues(options, spans) if pushed.wants_queue(key)}
    lows, highs = pushed.narrow(
        *({key: _bounds(options, key, spans[key])[side] for key in wanted} for side in (0, 1))
    )
    bounds = {key: (lows[key], highs[key]) for key in wanted}
    parts = []
    low_ms, high_ms = _times(options, pushed)
    for file in manifest.files():
        part = _part_of(root, file, bounds)
        if part is not None:
            part = replace(part, low_ms=low_ms, high_ms=high_ms)
            if _in_time(part):
                parts.append(part)
    return {key: spans[key][1] for key in wanted}, parts


def _bounds(options: SourceOptions, key: QueueKey, span: tuple[int, int]) -> tuple[int, int]:
    low, high = span
    kind, value = options.position("starting")
    if kind == "table":
        number = look_up(value, key)
        low = {None: low, EARLIEST: low, LATEST: high}.get(number, number or 0)
    elif kind == "word" and value == LATEST:
        low = high
    kind, value = options.position("ending")
    if kind == "table":
        number = look_up(value, key)
        high = {None: high, EARLIEST: low, LATEST: high}.get(number, number or 0)
    elif kind == "word" and value == EARLIEST:
        high = low
    return low, high


def _times(options: SourceOptions, pushed: Pushed) -> tuple[int | None, int | None]:
    kind, value = options.position("starting")
    low = value if kind == "time" else None
    if pushed.time_low_ms is not None:
        low = max(low or 0, pushed.time_low_ms)
    kind, value = options.position("ending")
    high = value if kind == "time" else None
    if pushed.time_high_ms is not None:
        high = min(high or pushed.time_high_ms + 1, pushed.time_high_ms + 1)
    return low, high


def _in_time(part: FilePart) -> bool:
    first, last = part.file.store_ms
    after = part.low_ms is None or last >= part.low_ms
    return after and (part.high_ms is None or first < part.high_ms)


def read_file(
    options: SourceOptions, part: FilePart, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of one archived file.

    Raises:
        ArchiveError: the file is gone or not what the manifest says.
    """
    import pyarrow.parquet as pq  # only tasks need it, see source.py

    choice = Choice(options)
    needed = dict.fromkeys((*columns, *_filter_columns(choice, part)))
    count = 0
    try:
        source = pq.ParquetFile(part.path)
        if source.metadata.num_rows != part.file.rows:
            raise ArchiveError(
                "ARCHIVE_DAMAGED",
                f"{part.path} has {source.metadata.num_rows} rows, but its manifest says "
                f"{part.file.rows}",
            )
        for batch in source.iter_batches(batch_size=options.batch_rows, columns=list(needed)):
            count += batch.num_rows
            kept = _wanted(choice, part, batch)
            table = pa.Table.from_batches([kept]).select(list(columns)).cast(arrow_schema(columns))
            yield from table.to_batches()
    except (OSError, pa.ArrowInvalid) as error:
        raise ArchiveError("ARCHIVE_DAMAGED", f"{part.path} cannot be read: {error}") from error


def _filter_columns(choice: Choice, part: FilePart) -> list[str]:
    names = ["broker", "queue_id", "queue_offset"] if _is_partial(part) else []
    if part.low_ms is not None or part.high_ms is not None:
        names.append("store_ts")
    return [*names, *choice.archived_columns()]


def _is_partial(part: FilePart) -> bool:
    bounds = {key: (low, high) for key, low, high in part.queues}
    for broker, queue, first, last in part.file.queues:
        low, high = bounds.get((part.file.topic, broker, queue), (0, 0))
        if first < low or last >= high:
            return True
    return False


def _wanted(choice: Choice, part: FilePart, batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    keep: Any = None
    if _is_partial(part):
        keep = np.zeros(batch.num_rows, bool)
        offsets = batch.column("queue_offset").to_numpy()
        ids = batch.column("queue_id").to_numpy()
        for (_, broker, queue), low, high in part.queues:
            own = pc.equal(batch.column("broker"), broker).to_numpy(zero_copy_only=False)
            keep |= own & (ids == queue) & (offsets >= low) & (offsets < high)
    if part.low_ms is not None or part.high_ms is not None:
        times = batch.column("store_ts").cast(pa.int64()).to_numpy() // 1000
        inside = np.ones(batch.num_rows, bool)
        if part.low_ms is not None:
            inside &= times >= part.low_ms
        if part.high_ms is not None:
            inside &= times < part.high_ms
        keep = inside if keep is None else keep & inside
    chosen = choice.archived(batch)
    if chosen is not None:
        chosen = chosen.to_numpy(zero_copy_only=False)
        keep = chosen if keep is None else keep & chosen
    return batch if keep is None else batch.filter(pa.array(keep))
