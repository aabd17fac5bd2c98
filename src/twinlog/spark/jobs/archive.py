"""`twinlog spark archive`: topics to Parquet or a lakehouse table, exactly once.

The stream's checkpoint lies inside the archive. When it is lost, the next run starts where the
manifest (or the table's newest commit) ends, so nothing is archived twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinlog.spark.archive.manifest import Batch, Manifest
from twinlog.spark.errors import OptionError
from twinlog.spark.jobs.common import (
    Progress,
    Summary,
    follow_query,
    session_of,
    source_options,
    watcher,
    with_parallelism,
)
from twinlog.spark.options import SourceOptions
from twinlog.spark.places import is_local, local_path
from twinlog.spark.plan.offsets import Offsets, to_json
from twinlog.spark.plan.positions import describe_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive(
    out: str | Path,
    options: Mapping[str, str],
    *,
    form: str = "parquet",
    table: Mapping[str, str] | None = None,
    checkpoint: str | Path | None = None,
    once: bool = True,
    trigger: str = "10 seconds",
    compression: str = "zstd",
    spark: SparkSession | None = None,
    master: str = "local[2]",
    progress: Progress | None = None,
    seconds_max: float | None = None,
) -> Summary:
    """Archive topics into the place `out`.

    Args:
        out: archive directory, made if it does not exist; of a table also a URI (s3://...).
        options: options of the format "twinlog" (path or nameServer, topics, limits).
        form: parquet (with our manifest), delta or iceberg.
        table: settings of an Iceberg catalog, and `table`, its name there.
        checkpoint: directory of the stream's checkpoint; inside `out` where that is local.
        once: archive what is there now and end; else go on until stopped.
        trigger: how often a batch starts when it goes on.
        compression: zstd, snappy, lz4 or none.
        spark: a session to use.
        master: Spark master of a session that this starts.
        progress: where to show progress.
        seconds_max: stop a continuous run after this time.
    """
    begin = time.monotonic()
    target = _target(out, form, table or {}, checkpoint)
    source = with_start({"verifyCrc": "true", **source_options(options)}, target.ends())
    SourceOptions.parse(source)
    show = progress or Progress()
    with session_of(spark, "archive", master=master) as session:
        source = with_parallelism(source, session)
        writer = target.writer(session, source).option("compression", compression)
        writer = writer.option("checkpointLocation", target.checkpoint)
        trigger_by = {"availableNow": True} if once else {"processingTime": trigger}

        follow_query(
            writer.queryName("twinlog archive").trigger(**trigger_by).start,
            watcher("archive", show), seconds_max=seconds_max,
        )  # fmt: skip
        show.end()
    return Summary("archive", target.facts(), seconds=time.monotonic() - begin)


class _Parquet:
    """Plain Parquet under our own manifest."""

    def __init__(self, root: Path, checkpoint: str | Path | None) -> None:
        self.root = root
        self.manifest = Manifest(root)
        self.checkpoint = str(checkpoint or root / "_checkpoint")
        self.before = self.manifest.batches()

    def ends(self) -> Offsets:
        return self.manifest.ends() if self.manifest.exists() else {}

    def writer(self, session: SparkSession, source: dict[str, str]) -> Any:
        from twinlog.spark.archive.sink import ArchiveSink

        session.dataSource.register(ArchiveSink)
        writer = _ranges(session, source).format("twinlog_archive").option("path", str(self.root))
        return writer.option("source", json.dumps(source))

    def facts(self) -> dict[str, Any]:
        return _facts(Manifest(self.root), self.before)


class _Lake:
    """A lakehouse table."""

    def __init__(
        self, place: str, form: str, settings: Mapping[str, str], checkpoint: str | Path | None
    ) -> None:
        from twinlog.spark.archive.lake import open_table

        if is_local(place):
            place = str(local_path(place, "the table").absolute())
            Path(place).mkdir(parents=True, exist_ok=True)
            checkpoint = checkpoint or Path(place) / "_checkpoint"
        if checkpoint is None:
            raise OptionError(
                "BAD_OPTION", f"a table at {place} needs a checkpoint: give --checkpoint DIR"
            )
        self.place, self.form, self.settings = place, form, dict(settings)
        self.checkpoint = str(checkpoint)
        table = open_table(form, place, settings)
        self.before, self.known_ends = table.rows(), table.ends()

    def ends(self) -> Offsets:
        return self.known_ends

    def writer(self, session: SparkSession, source: dict[str, str]) -> Any:
        from twinlog.spark.archive.lake import LakeSink

        session.dataSource.register(LakeSink)
        writer = _ranges(session, source).format("twinlog_lake").option("path", self.place)
        writer = writer.option("kind", self.form).option("settings", json.dumps(self.settings))
        return writer.option("source", json.dumps(source))

    def facts(self) -> dict[str, Any]:
        from twinlog.spark.archive.lake import open_table

        total = open_table(self.form, self.place, self.settings).rows()
        return {
            "archive": self.place, "format": self.form, "rows": total - self.before,
            "rows_total": total,
        }  # fmt: skip


def _target(
    out: str | Path, form: str, table: Mapping[str, str], checkpoint: str | Path | None
) -> _Parquet | _Lake:
    if form != "parquet":
        return _Lake(str(out), form, table, checkpoint)
    if not is_local(out):
        raise OptionError(
            "BAD_PLACE",
            f"{out}: plain Parquet is published by linking a file, which needs a mounted file "
            "system; use --format delta or iceberg there",
        )
    return _Parquet(local_path(out, "the archive").absolute(), checkpoint)


def _ranges(session: SparkSession, source: dict[str, str]) -> Any:
    from twinlog.spark.archive.ranges import RangesSource

    session.dataSource.register(RangesSource)
    return session.readStream.format("twinlog_ranges").options(**source).load().writeStream


def with_start(source: dict[str, str], ends: Offsets) -> dict[str, str]:
    """Choose where a first run starts: after what is archived, else at the earliest record."""
    if ends:
        starts = {name for name in source if name.lower().startswith("starting")}
        kept = {name: value for name, value in source.items() if name not in starts}
        # JSON offsets leave queues that the archive does not know at their first record.
        return {**kept, "startingOffsets": json.dumps(to_json(ends, {}), sort_keys=True)}
    options = SourceOptions.parse(source)
    if describe_start(options, "") == "":
        return {**source, "startingOffsets": "earliest"}
    return source


def _facts(manifest: Manifest, before: list[Batch]) -> dict[str, Any]:
    added = manifest.batches()[len(before) :] if manifest.exists() else []
    files = [file for batch in added for file in batch.files]
    rows = sum(file.rows for file in files)
    return {
        "archive": str(manifest.root),
        "batches": len(added),
        "rows": rows,
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "rows_total": sum(batch.rows for batch in before) + rows,
        "skipped": [skip for batch in added for skip in batch.skipped],
    }
