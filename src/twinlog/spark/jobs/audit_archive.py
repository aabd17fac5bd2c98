"""`twinlog spark audit STORE ARCHIVE`: are the archived rows those of the store, all of them?

One task per archived file: its rows are compared, column by column, with what the store's log
holds at the same queue offsets. Rows that retention has removed from the store are counted, not
compared. The manifest itself is checked for gaps and overlaps when it is read, and each file
against its checksum.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twinlog.spark.archive.manifest import ArchivedFile, Manifest
from twinlog.spark.archive.parquet import file_crc
from twinlog.spark.archive.table import FilePart, read_file
from twinlog.spark.decode.columns import ALL_COLUMNS, arrow_schema
from twinlog.spark.errors import PipelineError
from twinlog.spark.jobs.common import Progress, Summary, run_tasks, session_of
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.windows import Range
from twinlog.spark.read.rows import open_transport, read_window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_LISTED = 20
RESULT = (
    "kind STRING, file STRING, topic STRING, queue_id INT, queue_offset BIGINT, detail STRING, "
    "compared BIGINT, expired BIGINT"
)
KEY = ("queue_id", "queue_offset")


@dataclass(frozen=True)
class FileTask:
    """One archived file and the store to compare it with."""

    store: str
    broker: str
    archive: str
    file: dict[str, Any]


def _result(task: FileTask, kind: str, **facts: Any) -> dict[str, Any]:
    blank = {"queue_id": None, "queue_offset": None, "detail": None, "compared": 0, "expired": 0}
    return {"kind": kind, "file": task.file["name"], "topic": task.file["topic"], **blank, **facts}


def compare_file(task: FileTask) -> list[dict[str, Any]]:
    """Compare one file with the store; runs on a worker."""
    file = ArchivedFile(**task.file)
    path = file.path(Path(task.archive))
    if not path.exists() or file_crc(path) != file.crc:
        what = "its bytes are not those that were published" if path.exists() else "it is gone"
        return [_result(task, "FILE_DAMAGED", detail=what)]
    options = SourceOptions.parse(
        {
            "path": task.store,
            "brokerName": task.broker,
            "subscribe": file.topic,
            "verifyCrc": "true",
        }
    )
    try:
        ours = _archived(options, path, file)
        ranges, expired = _present(options, file)
        theirs = _stored(options, ranges)
    except PipelineError as error:
        return [_result(task, error.condition, detail=error.message)]
    return _compare(task, ours, theirs, ranges, expired)


def _archived(options: SourceOptions, path: Path, file: ArchivedFile) -> pa.Table:
    bounds = tuple(((file.topic, b, q), low, high + 1) for b, q, low, high in file.queues)
    batches = list(read_file(options, FilePart(str(path), file, bounds), ALL_COLUMNS))
    return pa.Table.from_batches(batches, arrow_schema())


def _present(options: SourceOptions, file: ArchivedFile) -> tuple[list[Range], int]:
    transport = open_transport(options)
    keys = [(file.topic, broker, queue) for broker, queue, _, _ in file.queues]
    bounds = transport.bounds(keys)
    ranges, expired = [], 0
    for (broker, queue, low, last), key in zip(file.queues, keys, strict=True):
        begin, end = bounds.get(key, (last + 1, last + 1))
        first = max(low, min(begin, last + 1))
        expired += first - low
        if min(end, last + 1) > first:
            ranges.append(Range(file.topic, broker, queue, first, min(end, last + 1)))
    return ranges, expired


def _stored(options: SourceOptions, ranges: list[Range]) -> pa.Table:
    batches = list(read_window(options, tuple(ranges), ALL_COLUMNS)) if ranges else []
    return pa.Table.from_batches(batches, arrow_schema())


def _compare(
    task: FileTask, ours: pa.Table, theirs: pa.Table, ranges: list[Range], expired: int
) -> list[dict[str, Any]]:
    begins = {r.queue_id: r.low for r in ranges}
    mine = {_key(row): row for row in ours.to_pylist() if _in_store(row, begins)}
    stored = {_key(row): row for row in theirs.to_pylist()}
    found = []
    for key, row in mine.items():
        other = stored.get(key)
        if other == row:
            continue
        names = [n for n in ALL_COLUMNS if other is None or row[n] != other[n]]
        detail = "the store has no such row" if other is None else f"{', '.join(names)} differ"
        place = {"queue_id": key[0], "queue_offset": key[1], "detail": detail}
        found.append(_result(task, "ROW_DIFFERS", **place))
    found = found[:ROWS_LISTED]
    return [*found, _result(task, "", compared=len(mine), expired=expired)]


def _key(row: dict[str, Any]) -> tuple[int, int]:
    return row["queue_id"], row["queue_offset"]


def _in_store(row: dict[str, Any], begins: dict[int, int]) -> bool:
    return bool(row["queue_offset"] >= begins.get(row["queue_id"], 1 << 62))


def audit_archive(
    store: str | Path,
    archive: str | Path,
    *,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Compare an archive with the store it was made from."""
    begin = time.monotonic()
    show = progress or Progress()
    manifest = Manifest(Path(archive)).require()
    batches = manifest.batches()
    files = [file for batch in batches for file in batch.files]
    names = {broker for file in files for broker, _, _, _ in file.queues}
    broker = names.pop() if len(names) == 1 else ""
    tasks = [FileTask(str(store), broker, str(archive), asdict(file)) for file in files]
    with session_of(spark, "audit", master=spark_master) as session:
        rows = run_tasks(session, compare_file, tasks, RESULT, show, text="audit: files")
    results = [row.asDict() for row in rows]
    promised = sum(r[4] - r[3] for batch in batches for r in batch.ranges)
    skipped = sum(s[4] - s[3] for b in batches for s in b.skipped if not s[5].startswith("GAP"))
    found = [
        {k: v for k, v in row.items() if k not in ("compared", "expired") and v is not None}
        for row in results
        if row["kind"]
    ]
    archived = sum(file.rows for file in files)
    if archived != promised - skipped:
        detail = f"the manifest promises {promised - skipped} rows, but its files have {archived}"
        found.append({"kind": "ROWS_MISSING", "detail": detail})
    facts = {
        "store": str(store), "archive": str(archive), "files": len(files), "rows": archived,
        "compared": sum(row["compared"] for row in results),
        "expired_in_store": sum(row["expired"] for row in results),
    }  # fmt: skip
    return Summary("audit", facts, found, time.monotonic() - begin)
