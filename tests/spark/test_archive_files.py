"""The files of an archive, written without a session: every row once, as its manifest says."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from storefiles import StoreFiles
from test_exactly_once import all_rows, raw_rows

from twinlog.spark.archive import parquet
from twinlog.spark.archive.manifest import Batch, Manifest
from twinlog.spark.archive.parquet import PartitionedWriter
from twinlog.spark.archive.sink import ArchiveWriter, Done
from twinlog.spark.archive.stage import stage_window
from twinlog.spark.jobs.compact import compact
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.rows import plan_batch


def publish(files: StoreFiles, out: Path) -> None:
    """One batch of the archive, of all that is there."""
    publish_rows({"path": str(files.root)}, out)


def publish_rows(place: dict[str, str], out: Path) -> None:
    """One batch of the archive, as tasks and commit make it."""
    source = {**place, "subscribe": "orders,events", "verifyCrc": "true"}
    writer = ArchiveWriter({"path": str(out), "source": json.dumps(source)})
    options = SourceOptions.parse({**source, "maxRecordsPerPartition": "150"})
    done = Done("query", 0, [], [], {}, [])
    for number, window in enumerate(plan_batch(options, Pushed())):
        staged, skipped = stage_window(
            options, window, PartitionedWriter(out, f"w{number}", "1", "zstd")
        )
        assert not skipped
        done.staged += staged
        done.ranges += [list(r) for r in window]
    writer.commit([done], 0)
    writer.commit([done], 0)  # told again by Spark: nothing happens


def test_every_row_is_in_one_file_of_its_topic(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(400)
    publish(files, tmp_path / "out")
    assert raw_rows(tmp_path / "out") == all_rows(files)
    for file in Manifest(tmp_path / "out").files():
        table = pq.read_table(file.path(tmp_path / "out"), partitioning=None)
        assert set(table["topic"].to_pylist()) == {file.topic}
        offsets = zip(table["queue_id"].to_pylist(), table["queue_offset"].to_pylist(), strict=True)
        by_queue: dict[int, list[int]] = {}
        for queue, offset in offsets:
            by_queue.setdefault(queue, []).append(offset)
        assert file.queues == [["broker-a", q, o[0], o[-1]] for q, o in sorted(by_queue.items())]
        assert all(o == sorted(o) for o in by_queue.values())


def test_rows_are_written_in_groups_of_a_good_size(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(400)
    publish(files, tmp_path / "out")
    for file in Manifest(tmp_path / "out").files():
        assert pq.ParquetFile(file.path(tmp_path / "out")).num_row_groups == 1
    assert parquet.ROW_GROUP_BYTES > 8 << 20
    assert Counter(f.topic for f in Manifest(tmp_path / "out").files())["orders"] >= 2


def test_the_processes_that_publish_do_not_load_what_tasks_need() -> None:
    """Spark starts two of them for every batch."""
    script = (
        "import sys, pyspark.sql.worker.python_streaming_sink_runner; before = set(sys.modules); "
        "import twinlog.spark.archive.sink; "
        "print(*{name.partition('.')[0] for name in sys.modules.keys() - before})"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert not {b"pyarrow", b"numpy", b"pandas"} & set(loaded.stdout.split())


@pytest.mark.parametrize(
    "ask",
    [
        lambda manifest: sum(manifest.ends().values()) == 30,
        lambda manifest: manifest.has("query", 3) and not manifest.has("query", 4),
        lambda manifest: manifest.published() in ({}, {"query": 3}),
    ],
)
def test_a_compaction_between_listing_and_reading_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Manifest], bool]
) -> None:
    manifest = Manifest(tmp_path)
    for number in (1, 2, 3):
        ranges = [["orders", "broker-a", 0, number * 10 - 10, number * 10]]
        manifest.publish(Batch(number, "query", number, ranges, files=[], marks={}, skipped=[]))
    names, is_merged = Manifest._names, []

    def listed(self: Manifest) -> Any:
        found = names(self)
        if not is_merged:
            is_merged.append(True)
            compact(tmp_path)
        return found

    monkeypatch.setattr(Manifest, "_names", listed)
    assert ask(manifest)
    assert is_merged
    assert [path.name for path in manifest.directory.iterdir()] == ["000000000003.base.json"]


def test_compaction_beside_an_archive_job_loses_and_doubles_nothing(tmp_path: Path) -> None:
    files, out = StoreFiles(tmp_path / "store"), tmp_path / "archive"
    files.fill(600)
    source = {"path": str(files.root), "subscribe": "orders,events", "verifyCrc": "true"}
    writer = ArchiveWriter({"path": str(out), "source": json.dumps(source)})
    options = SourceOptions.parse({**source, "maxRecordsPerPartition": "25"})
    is_done = threading.Event()

    def tidy() -> int:
        rounds = 0
        while not is_done.is_set():
            if Manifest(out).exists():
                compact(out, grace_seconds=3600)
                rounds += 1
        return rounds

    with ThreadPoolExecutor() as pool:
        tidying = pool.submit(tidy)
        try:
            for number, window in enumerate(plan_batch(options, Pushed())):
                done = Done("query", number, [list(r) for r in window], [], {}, [])
                staging = PartitionedWriter(out, f"w{number}", "1", "zstd")
                done.staged, _ = stage_window(options, window, staging)
                writer.commit([done], number)
                writer.commit([done], number)
        finally:
            is_done.set()
        assert tidying.result() > 0
    assert number > 10
    found: Counter[tuple[str, int, int]] = Counter()
    for file in Manifest(out).files():
        rows = pq.read_table(file.path(out), columns=["topic", "queue_id", "queue_offset"])
        found.update((r["topic"], r["queue_id"], r["queue_offset"]) for r in rows.to_pylist())
    assert found == all_rows(files)
