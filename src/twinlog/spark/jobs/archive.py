"""`twinlog spark archive`: topics to Parquet, exactly once.

The stream's checkpoint lies inside the archive. When it is lost, the next run starts where the
manifest ends, so nothing is archived twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinlog.spark.archive.manifest import Batch, Manifest
from twinlog.spark.jobs.common import Progress, Summary, follow_query, session_of, source_options
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.offsets import to_json
from twinlog.spark.plan.positions import describe_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def archive(
    out: str | Path,
    options: Mapping[str, str],
    *,
    once: bool = True,
    trigger: str = "10 seconds",
    compression: str = "zstd",
    spark: SparkSession | None = None,
    master: str = "local[2]",
    progress: Progress | None = None,
    seconds_max: float | None = None,
) -> Summary:
    """Archive topics into the directory `out`.

    Args:
        out: archive directory; made if it does not exist.
        options: options of the format "twinlog" (path or nameServer, topics, limits).
        once: archive what is there now and end; else go on until stopped.
        trigger: how often a batch starts when it goes on.
        compression: zstd, snappy, lz4 or none.
        spark: a session to use.
        master: Spark master of a session that this starts.
        progress: where to show progress.
        seconds_max: stop a continuous run after this time.
    """
    from twinlog.spark.archive.ranges import RangesSource
    from twinlog.spark.archive.sink import ArchiveSink

    begin = time.monotonic()
    root = Path(out).absolute()
    source = with_start({"verifyCrc": "true", **source_options(options)}, Manifest(root))
    SourceOptions.parse(source)
    before = Manifest(root).batches()
    show = progress or Progress()
    with session_of(spark, "archive", master=master) as session:
        session.dataSource.register(RangesSource)
        session.dataSource.register(ArchiveSink)
        writer = (
            session.readStream.format("twinlog_ranges").options(**source).load()
            .writeStream.format("twinlog_archive").option("path", str(root))
            .option("source", json.dumps(source)).option("compression", compression)
            .option("checkpointLocation", str(root / "_checkpoint"))
            .queryName("twinlog archive")
        )  # fmt: skip
        trigger_by = {"availableNow": True} if once else {"processingTime": trigger}
        manifest, known = Manifest(root), len(before)

        def watch(query: StreamingQuery) -> None:
            last: Any = query.lastProgress
            if last and show.stream is not None:
                done = len(manifest.batches()) - known
                show.show(f"archive: batch {last['batchId']}, {done} published")

        follow_query(writer.trigger(**trigger_by).start, watch, seconds_max=seconds_max)
        show.end()
    return _summary(Manifest(root), before, time.monotonic() - begin)


def with_start(source: dict[str, str], manifest: Manifest) -> dict[str, str]:
    """Choose where a first run starts: after what is archived, else at the earliest record."""
    ends = manifest.ends() if manifest.exists() else {}
    if ends:
        starts = {name for name in source if name.lower().startswith("starting")}
        kept = {name: value for name, value in source.items() if name not in starts}
        # JSON offsets leave queues that the archive does not know at their first record.
        return {**kept, "startingOffsets": json.dumps(to_json(ends, {}), sort_keys=True)}
    options = SourceOptions.parse(source)
    if describe_start(options, "") == "":
        return {**source, "startingOffsets": "earliest"}
    return source


def _summary(manifest: Manifest, before: list[Batch], seconds: float) -> Summary:
    added = manifest.batches()[len(before) :] if manifest.exists() else []
    files = [file for batch in added for file in batch.files]
    rows = sum(file.rows for file in files)
    facts = {
        "archive": str(manifest.root),
        "batches": len(added),
        "rows": rows,
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "rows_total": sum(batch.rows for batch in before) + rows,
        "skipped": [skip for batch in added for skip in batch.skipped],
    }
    return Summary("archive", facts, seconds=seconds)
