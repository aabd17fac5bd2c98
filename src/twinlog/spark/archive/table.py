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
from twinlog.spark.options import EARLIEST, LATEST, SourceOptions, bad
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
    files = [
        (first, file)
        for file in manifest.files()
        if file.topic == topic and file.store_ms[1] >= timestamp_ms
        for *place, first, _ in file.queues
        if place == [broker, queue]
    ]
    found: list[int] = []
    for first, file in sorted(files, key=lambda pair: pair[0]):
        if found and first > min(found):
            break  # the rows of a queue may be in the files of two days in turn
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


def archive_alone(options: SourceOptions, pushed: Pushed) -> list[FilePart]:
    """Return the files of an archive to read that has no log behind it.

    Raises:
        OptionError: the start is that of a consumer group, which brokers and stores know.
    """
    if "startingGroup" in options.raw:
        raise bad(
            "startingGroup",
            options.raw["startingGroup"],
            "an archive knows no consumer groups: give path or nameServer in addition",
        )
    manifest = manifest_of(options)
    spans = manifest.spans()
    keys = [key for key in select_queues(options, spans) if pushed.wants_queue(key)]
    start = {key: _bound(options, manifest, key, spans[key], "starting") for key in keys}
    end = {key: _bound(options, manifest, key, spans[key], "ending") for key in keys}
    return archive_files(options, pushed, manifest, *pushed.narrow(start, end))


def manifest_of(options: SourceOptions) -> Manifest:
    """Return the manifest of the option `archive`."""
    assert options.archive is not None
    return Manifest(Path(options.archive)).require()


def archive_files(
    options: SourceOptions, pushed: Pushed, manifest: Manifest, start: Offsets, end: Offsets
) -> list[FilePart]:
    """Return the files that have rows between these offsets."""
    bounds = {key: (low, end[key]) for key, low in start.items()}
    low_ms, high_ms = _times(options, pushed)
    parts = []
    for file in manifest.files():
        part = _part_of(manifest.root, file, bounds)
        if part is not None:
            part = replace(part, low_ms=low_ms, high_ms=high_ms)
            if _in_time(part):
                parts.append(part)
    return parts


def _bound(
    options: SourceOptions, manifest: Manifest, key: QueueKey, span: tuple[int, int], side: str
) -> int:
    low, high = span
    kind, value = options.position(side)
    default = low if side == "starting" else high
    if kind == "word":
        return {EARLIEST: low, LATEST: high}.get(value, default)
    number = look_up(value, key) if kind in ("table", "times") else None
    if number is None:
        return default  # times of a whole read are compared row by row
    if kind == "times":
        found = first_at_time(manifest, key, number)
        return high if found is None else found
    return {EARLIEST: low, LATEST: high}.get(number, number)


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
