"""`twinlog spark compact`: small files become few, old ones expire, what no manifest names goes.

New files are written first, then one merged manifest names them instead of the old ones: the
commit point. Old files stay for a grace time, because a reader may have planned with them, and are
removed as orphans by a later run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq

from twinlog.runtime.numbers import is_number
from twinlog.spark.archive.lake import open_table
from twinlog.spark.archive.manifest import (
    VERSION,
    ArchivedFile,
    Batch,
    Manifest,
    merge_ranges,
    sync_directory,
)
from twinlog.spark.archive.parquet import PartitionedWriter
from twinlog.spark.errors import ArchiveError
from twinlog.spark.jobs.common import Progress, Summary
from twinlog.spark.places import is_local, local_path
from twinlog.spark.plan.offsets import QueueKey

TARGET_BYTES = 256 << 20
GRACE_SECONDS = 3600.0
BATCH_ROWS = 16384


def compact(
    archive: str | Path,
    *,
    target_bytes: int = TARGET_BYTES,
    grace_seconds: float = GRACE_SECONDS,
    expire_days: float | None = None,
    compression: str = "zstd",
    table: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Merge the small files of an archive and remove orphans; an archive job may run meanwhile.

    A file expires as a whole, when its newest row was stored so long ago. The archive then begins
    behind it, and ends where it did: archiving goes on there.

    Args:
        archive: the archive directory.
        target_bytes: merge files up to about this size.
        grace_seconds: how long files that are not named any more are kept.
        expire_days: forget rows that were stored earlier than this many days ago; None: keep all.
        compression: of the merged files.
        table: settings of an Iceberg catalog, as for `archive`.
        progress: where to show progress.
    """
    begin = time.monotonic()
    show = progress or Progress()
    if (form := lake_format(archive)) is not None:
        show.show(f"compact: a {form} table")
        facts = open_table(form, str(archive), table or {}).compact(expire_days, grace_seconds)
        facts = {"archive": str(archive), "format": form, **facts}
        return Summary("compact", facts, seconds=time.monotonic() - begin)
    manifest = Manifest(local_path(archive, "the archive")).require()
    batches = manifest.batches()
    before = [file for batch in batches for file in batch.files]
    expired = _expired(before, expire_days)
    after = before
    if len(batches) > 1 or expired:
        kept = [file for file in before if file not in expired]
        after = _merge(manifest, kept, target_bytes, compression, show)
        _publish(manifest, batches, after)
    removed = remove_orphans(manifest, grace_seconds)
    found = {
        "archive": str(archive), "files_before": len(before), "files_after": len(after),
        "rows": sum(file.rows for file in after), "removed": removed,
        "expired_rows": sum(file.rows for file in expired),
    }  # fmt: skip
    return Summary("compact", found, seconds=time.monotonic() - begin)


def lake_format(place: str | Path) -> str | None:
    """Say which lakehouse format a table has; None for an archive of ours."""
    if is_local(place):
        root = local_path(place, "the archive")
        if (root / "_delta_log").is_dir():
            return "delta"
        return "iceberg" if (root / "metadata").is_dir() or (root / "catalog.db").exists() else None
    return "delta"


def _expired(files: list[ArchivedFile], days: float | None) -> list[ArchivedFile]:
    if days is None:
        return []
    limit_ms = (time.time() - days * 86400) * 1000
    return [file for file in files if file.store_ms[1] < limit_ms]


def _merge(
    manifest: Manifest,
    files: list[ArchivedFile],
    target_bytes: int,
    compression: str,
    progress: Progress,
) -> list[ArchivedFile]:
    groups: dict[tuple[str, str], list[list[ArchivedFile]]] = defaultdict(list)
    for file in files:
        open_groups = groups[file.topic, file.date]
        size = sum(other.size for other in open_groups[-1]) if open_groups else target_bytes
        if size + file.size > target_bytes or not open_groups:
            open_groups.append([])
        open_groups[-1].append(file)
    chosen = [group for parts in groups.values() for group in parts]
    merged: list[ArchivedFile] = []
    for number, group in enumerate(chosen):
        progress.show("compact: groups of files", number, len(chosen))
        if len(group) == 1:
            merged += group
        else:
            prefix = f"{manifest.next_sequence():08d}-c{os.urandom(4).hex()}-{number}"
            merged += _merge_group(manifest, group, prefix, compression)
    progress.end()
    return merged


def _merge_group(
    manifest: Manifest, group: list[ArchivedFile], prefix: str, compression: str
) -> list[ArchivedFile]:
    writer = PartitionedWriter(manifest.root, prefix, f"{os.getpid()}", compression)
    try:
        for file in group:
            source = pq.ParquetFile(file.path(manifest.root))
            for batch in source.iter_batches(batch_size=BATCH_ROWS):
                writer.write(batch)
        staged = writer.finish()
    except BaseException:
        writer.discard()
        raise
    if sum(s.final.rows for s in staged) != sum(file.rows for file in group):
        raise ArchiveError(
            "ARCHIVE_DAMAGED",
            f"{group[0].name} and the files merged with it do not have the rows of their manifest",
        )
    for item in staged:
        final = item.final.path(manifest.root)
        os.replace(item.temporary, final)
        sync_directory(final.parent)
    return [item.final for item in staged]


def _first_offsets(files: list[ArchivedFile]) -> dict[QueueKey, int]:
    firsts: dict[QueueKey, int] = {}
    for file in files:
        for broker, queue, first, _ in file.queues:
            key = (file.topic, broker, queue)
            firsts[key] = min(first, firsts.get(key, first))
    return firsts


def _publish(manifest: Manifest, batches: list[Batch], files: list[ArchivedFile]) -> None:
    last = batches[-1]
    published: dict[str, int] = {}
    for batch in batches:
        published[batch.query] = max(batch.batch, published.get(batch.query, -1))
    spans = merge_ranges([r for batch in batches for r in [*batch.ranges, *batch.skipped_ranges()]])
    firsts = _first_offsets(files)
    if sum(file.rows for file in files) < sum(batch.rows for batch in batches):
        # What expired was the beginning of each queue.
        spans = {key: (firsts.get(key, high), high) for key, (_, high) in spans.items()}
    skipped = [skip for batch in batches for skip in batch.skipped if not skip[5].startswith("GAP")]
    merged = Batch(
        sequence=last.sequence, query=last.query, batch=last.batch, marks=last.marks,
        ranges=[[*key, *ends] for key, ends in sorted(spans.items())], files=files, skipped=skipped,
    )  # fmt: skip
    known = manifest.published()
    data = {"v": VERSION, "published": {**known, **published}, "batches": [asdict(merged)]}
    kept = f"{last.sequence:012d}.base.json"
    if (manifest.directory / kept).exists():
        manifest.replace(kept, data)
    else:
        manifest.write(kept, data)
    for path in manifest.directory.iterdir():
        number = path.name[:12]
        if path.name != kept and is_number(number) and int(number) <= last.sequence:
            path.unlink()


def remove_orphans(manifest: Manifest, grace_seconds: float) -> int:
    """Remove files that no manifest names and that nobody can be reading any more."""
    named = {file.path(manifest.root) for file in manifest.files()}
    limit = time.time() - grace_seconds
    removed = 0
    candidates = [
        *manifest.root.glob("topic=*/date=*/*.parquet"),
        *manifest.root.glob("_staging/*"),
    ]
    for path in candidates:
        with contextlib.suppress(FileNotFoundError):  # an archive job has just published it
            if path not in named and path.stat().st_mtime < limit:
                path.unlink()
                removed += 1
    return removed
