"""What a task of the archive does: the rows of a window, written to staged files."""

from __future__ import annotations

from typing import Any

from twinlog.spark.archive.manifest import Staged
from twinlog.spark.archive.parquet import PartitionedWriter
from twinlog.spark.decode.columns import ALL_COLUMNS
from twinlog.spark.errors import RecordCorruptError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.windows import Range
from twinlog.spark.read.rows import read_window
from twinlog.spark.read.transport import Skip


def by_topic(window: tuple[Range, ...]) -> list[tuple[Range, ...]]:
    """Cut a window by topic: rows that go to one file are decoded together and not copied again."""
    names = sorted({r.topic for r in window})
    return [tuple(r for r in window if r.topic == name) for name in names]


def stage_window(
    options: SourceOptions, window: tuple[Range, ...], writer: PartitionedWriter
) -> tuple[list[Staged], list[list[Any]]]:
    """Write the rows of a window; return the files, and the ranges that the loss rule skipped."""
    skipped: list[Skip] = []
    count = 0
    try:
        for part in by_topic(window):
            rows = read_window(options, part, ALL_COLUMNS, skipped, patience_ms=options.outage_ms)
            for batch in rows:
                count += batch.num_rows
                writer.write(batch)
            writer.close_files()
        _check_count(window, count, skipped, options)
        staged = writer.finish()
    except BaseException:
        writer.discard()
        raise
    return staged, [[s.topic, s.broker, s.queue_id, s.low, s.high, s.reason] for s in skipped]


def _check_count(
    window: tuple[Range, ...], count: int, skipped: list[Skip], options: SourceOptions
) -> None:
    lost = sum(skip.high - skip.low for skip in skipped)
    wanted = sum(r.rows for r in window) - lost
    if count != wanted and not options.is_filtered:
        raise RecordCorruptError(
            "RECORD_CORRUPT", f"{count} rows were read instead of {wanted}: {window}"
        )
