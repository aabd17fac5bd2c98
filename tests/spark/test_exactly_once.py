"""Crashes at every point of a batch: nothing lost, nothing twice; the check is checked too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from storefiles import StoreFiles

from twinlog.spark.archive import sink
from twinlog.spark.archive.manifest import Batch, Manifest
from twinlog.spark.errors import ArchiveError
from twinlog.spark.jobs.archive import archive
from twinlog.spark.run.faults import VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
# In the process that plans the query, in a worker, in the process that commits a batch.
PLANNING = ("latest", "pinned", "planned")
POINTS = (*PLANNING, "staged", "before-rename", "renamed", "published")


def raw_rows(out: Path) -> Counter[tuple[str, int, int]]:
    """Count the rows of all published files, without any help from the manifest's own checks."""
    found: Counter[tuple[str, int, int]] = Counter()
    for path in sorted((out / "_manifest").iterdir()):
        for file in json.loads(path.read_text())["files"]:
            rows = pq.read_table(out / file["name"], columns=["topic", "queue_id", "queue_offset"])
            found.update((r["topic"], r["queue_id"], r["queue_offset"]) for r in rows.to_pylist())
    return found


def all_rows(files: StoreFiles) -> Counter[tuple[str, int, int]]:
    return Counter((r["topic"], r["queue_id"], r["queue_offset"]) for r in files.rows)


CRASHES = [
    pytest.param([("pinned", "kill"), ("planned", "kill"), ("latest", "raise")], id="planner"),
    pytest.param([("staged", "kill"), ("before-rename", "raise")], id="before"),
    pytest.param([("renamed", "kill"), ("published", "kill")], id="after"),
    pytest.param(
        [(point, action) for point in POINTS for action in ("raise", "kill")],
        id="all",
        marks=pytest.mark.chaos,
    ),
]


@pytest.mark.parametrize("crashes", CRASHES)
def test_a_crash_at_any_point_neither_loses_nor_repeats(
    spark: Any, control: Path, tmp_path: Path, crashes: list[tuple[str, str]]
) -> None:
    files = StoreFiles(tmp_path / "store")
    out = tmp_path / "archive"
    for point, action in crashes:
        if point == "pinned":  # only a query without a checkpoint passes there
            shutil.rmtree(out / "_checkpoint", ignore_errors=True)
        files.fill(60)
        control.write_text(f"{point} {action}")
        with pytest.raises(Exception, match=r"."):
            archive(out, {"path": str(tmp_path / "store")}, spark=spark)
        assert not control.exists(), f"the fault at {point} did not happen"
        # Planned with other options, as after an operator's change.
        options = {"path": str(tmp_path / "store"), "maxRecordsPerPartition": "25"}
        archive(out, options, spark=spark)
        assert raw_rows(out) == all_rows(files)
        Manifest(out).batches()


def test_the_check_sees_repeats_when_the_rule_is_off(
    spark: Any, control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from control_sink import CarelessSink

    files = StoreFiles(tmp_path / "store")
    files.fill(60)
    monkeypatch.setattr(sink, "ArchiveSink", CarelessSink)
    out = tmp_path / "archive"
    control.write_text("published raise")
    with pytest.raises(Exception, match="injected"):
        archive(out, {"path": str(tmp_path / "store")}, spark=spark)
    with pytest.raises(ArchiveError, match="ARCHIVE_OVERLAP"):
        archive(out, {"path": str(tmp_path / "store")}, spark=spark)
    found = raw_rows(out)
    assert set(found) == set(all_rows(files))
    assert set(found.values()) == {2}


def test_retention_that_deletes_segments_under_way(
    spark: Any, control: Path, tmp_path: Path
) -> None:
    """Between plan and read: an error that names them, or skipped and recorded; never silent."""
    files = StoreFiles(tmp_path / "store", segment_size=4096)
    files.fill(60)
    out, go = tmp_path / "archive", control.with_name("control.go")
    options = {"path": str(tmp_path / "store")}
    archive(out, options, spark=spark)
    files.fill(200)

    def expire() -> None:
        while control.exists():
            time.sleep(0.02)
        for path in sorted((files.root / "commitlog").iterdir())[:5]:
            path.unlink()
        go.touch()

    for is_strict in (True, False):
        control.write_text("planned wait")
        go.unlink(missing_ok=True)
        retention = threading.Thread(target=expire)
        retention.start()
        try:
            if is_strict:
                with pytest.raises(Exception, match="OFFSET_EXPIRED"):
                    archive(out, options, spark=spark)
                assert sum(raw_rows(out).values()) == 60
            else:
                summary = archive(out, {**options, "failOnDataLoss": "false"}, spark=spark)
        finally:
            retention.join()
            go.unlink(missing_ok=True)
    found = raw_rows(out)
    lost = all_rows(files) - found
    assert found - all_rows(files) == Counter()
    assert lost
    assert sum(lost.values()) == sum(skip[4] - skip[3] for skip in summary.facts["skipped"])
    begin = min(int(path.name) for path in (files.root / "commitlog").iterdir())
    gone = [r for r in files.rows[60:] if r["phys_offset"] < begin]
    assert set(lost) == {(r["topic"], r["queue_id"], r["queue_offset"]) for r in gone}
    Manifest(out).batches()


def test_a_checkpoint_that_lost_its_newest_files(spark: Any, tmp_path: Path) -> None:
    """As after a power failure: Spark does not sync its logs, the archive syncs its own."""
    files = StoreFiles(tmp_path / "store")
    files.fill(60)
    out = tmp_path / "archive"
    options = {"path": str(tmp_path / "store"), "failOnDataLoss": "false"}
    archive(out, options, spark=spark)
    for log in ("offsets", "commits"):
        logged = sorted(int(path.name) for path in (out / "_checkpoint" / log).glob("[0-9]*"))
        (out / "_checkpoint" / log / str(logged[-1])).unlink()
    files.fill(60)
    with pytest.raises(Exception, match=r"ARCHIVE_GAP.*_checkpoint"):
        archive(out, options, spark=spark)
    assert sum(raw_rows(out).values()) == 60
    shutil.rmtree(out / "_checkpoint")
    archive(out, options, spark=spark)
    assert raw_rows(out) == all_rows(files)
    assert not any(batch.skipped for batch in Manifest(out).batches())


SCRIPT = """
import json, sys
from twinlog.spark.jobs.archive import archive
print(archive(sys.argv[1], json.loads(sys.argv[2])).line())
"""


def test_a_writer_that_outlived_its_driver_cannot_publish(tmp_path: Path) -> None:
    """Two writers read the same end; the second to publish must fail, not append."""
    manifest = Manifest(tmp_path)
    sequence = manifest.next_sequence()
    ranges: list[list[Any]] = [["orders", "broker-a", 0, 0, 10]]
    manifest.publish(Batch(sequence, "query", 1, ranges, []))
    with pytest.raises(ArchiveError, match="ARCHIVE_CONFLICT"):
        manifest.publish(Batch(sequence, "query", 1, ranges, []))
    assert manifest.has("query", 1)
    assert not manifest.has("query", 2)
    assert not manifest.has("other", 1)
    assert len(manifest.batches()) == 1


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_sigkill_of_the_driver_at_any_point(tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    out, control = tmp_path / "archive", tmp_path / "control"
    options = json.dumps({"path": str(tmp_path / "store"), "maxOffsetsPerTrigger": "40"})
    command = [sys.executable, "-c", SCRIPT, str(out), options]
    environment = {**os.environ, VARIABLE: str(control)}
    for point in POINTS:
        if point == "pinned":
            shutil.rmtree(out / "_checkpoint", ignore_errors=True)
        files.fill(100)
        control.write_text(f"{point} wait")
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        deadline = time.monotonic() + 120
        while control.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not control.exists()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        subprocess.run(command, check=True, env={**os.environ}, timeout=400)
        assert raw_rows(out) == all_rows(files)
        Manifest(out).batches()
