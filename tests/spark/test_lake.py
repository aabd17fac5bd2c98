"""Archives as Delta and Iceberg tables: exactly once, read by other engines' libraries."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from storefiles import StoreFiles

from support.processes import wait_until
from twinlog.spark.archive.delta import Delta, table_schema
from twinlog.spark.archive.iceberg import Iceberg
from twinlog.spark.archive.lake import LakeWriter, Written, commit_once, staging_of
from twinlog.spark.errors import ArchiveError, OptionError
from twinlog.spark.jobs.archive import archive
from twinlog.spark.jobs.compact import compact
from twinlog.spark.options import SourceOptions
from twinlog.spark.places import is_local, local_path, open_place, table_uri
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_stream

KINDS = ["delta", "iceberg"]


class Job:
    """The batches of an archive job, without Spark."""

    def __init__(self, files: StoreFiles, place: Path, kind: str) -> None:
        self.source = {
            "path": str(files.root), "subscribe": "orders,events", "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
        }  # fmt: skip
        self.place, self.kind = place, kind
        place.mkdir(exist_ok=True)
        options = SourceOptions.parse(self.source)
        self.planner = StreamPlanner(options, open_stream(options))
        self.offset = self.planner.latest(self.planner.initial(), limited=True)

    def writer(self) -> LakeWriter:
        options = {
            "path": str(self.place), "kind": self.kind, "settings": "{}",
            "source": json.dumps(self.source),
        }  # fmt: skip
        return LakeWriter(options)

    def run(self, end: Any, number: int) -> list[Any]:
        """What the tasks of a batch write."""
        done = Written("query", number, [], [])
        with staging_of(str(self.place)) as staging:
            for count, window in enumerate(self.planner.partitions(self.offset, end)):
                prefix = f"{number}-{count}-{len(list(self.place.rglob('*')))}"
                self.writer().add_window(window, prefix, staging, done)
        return [done, None]

    def table(self) -> Any:
        return Delta(str(self.place)) if self.kind == "delta" else Iceberg(str(self.place), {})


def rows_of(place: Path, kind: str) -> Counter[Any]:
    if kind == "delta":
        found = DeltaTable(str(place)).to_pyarrow_table()
    else:
        table = Iceberg(str(place), {}).seen
        assert table is not None
        found = table.scan().to_arrow()
    names = ("topic", "queue_id", "queue_offset", "body", "tags")
    return Counter(tuple(row[name] for name in names) for row in found.select(names).to_pylist())


def wanted(files: StoreFiles) -> Counter[Any]:
    names = ("topic", "queue_id", "queue_offset", "body", "tags")
    return Counter(tuple(row[name] for name in names) for row in files.rows)


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    made = StoreFiles(tmp_path / "store")
    made.fill(250)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_batches_that_are_done_again_add_nothing(
    files: StoreFiles, tmp_path: Path, kind: str
) -> None:
    job = Job(files, tmp_path / "table", kind)
    for number in range(1, 4):
        end = job.planner.latest(job.offset, limited=True)
        lost = job.run(end, number)  # its driver died before the commit
        job.writer().commit(job.run(end, number), number)
        job.writer().commit(job.run(end, number), number)  # Spark did not hear of the commit
        job.writer().abort(job.run(end, number), number)
        assert any((job.place / file.name).exists() for file in lost[0].files)
        job.offset = end
    assert rows_of(job.place, kind) == wanted(files)
    assert job.table().rows() == 250
    assert job.table().last_batch("query") == 3
    assert job.table().last_batch("another") == -1
    assert sum(job.table().ends().values()) == 250
    again = Job(files, job.place, kind)
    first = again.planner.latest(again.offset, limited=True)
    with pytest.raises(ArchiveError, match=r"ARCHIVE_OVERLAP.*remove the checkpoint"):
        again.writer().commit(again.run(first, 9), 9)
    assert rows_of(job.place, kind) == wanted(files)


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_copy_of_the_checkpoint_loses_no_rows_silently(
    files: StoreFiles, tmp_path: Path, kind: str
) -> None:
    """Its batches have numbers that the table knows, and may go further than they did then."""
    job = Job(files, tmp_path / "table", kind)
    old = job.offset
    for number in range(1, 3):
        end = job.planner.latest(job.offset, limited=True)
        job.writer().commit(job.run(end, number), number)
        job.offset = end
    before = rows_of(job.place, kind)
    assert 150 < before.total() < 250
    job.offset, job.source["maxOffsetsPerTrigger"] = old, "1000"
    job.planner.options = SourceOptions.parse(job.source)
    larger = job.planner.latest(job.offset, limited=True)
    with pytest.raises(ArchiveError, match=r"ARCHIVE_GAP.*now it ends at .*remove the checkpoint"):
        job.writer().commit(job.run(larger, 1), 1)
    assert rows_of(job.place, kind) == before


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_beside_an_archive_job_loses_and_doubles_nothing(
    files: StoreFiles, tmp_path: Path, kind: str
) -> None:
    job = Job(files, tmp_path / "table", kind)
    job.source["maxOffsetsPerTrigger"] = "30"
    job.planner.options = SourceOptions.parse(job.source)
    end = job.planner.latest(job.offset, limited=True)
    job.writer().commit(job.run(end, 1), 1)
    is_done, number = threading.Event(), 1

    def tidy() -> int:
        rounds = 0
        while not is_done.is_set():
            job.table().compact(36_500, 3600)
            rounds += 1
        return rounds

    with ThreadPoolExecutor() as pool:
        tidying = pool.submit(tidy)
        try:
            while end != job.offset:
                job.offset, number = end, number + 1
                end = job.planner.latest(job.offset, limited=True)
                job.writer().commit(job.run(end, number), number)
        finally:
            is_done.set()
        assert tidying.result() > 0
    assert rows_of(job.place, kind) == wanted(files)
    assert sum(job.table().ends().values()) == 250


def test_a_commit_that_others_are_faster_than_is_tried_again() -> None:
    """A compaction that changes the table at every look for a while, as on a busy machine."""
    table: list[str] = []
    losses = iter(range(8))

    def add(_: object) -> None:
        if next(losses, None) is not None:
            raise RuntimeError("table has been updated by another process")
        table.append("batch")

    assert commit_once(lambda: table, bool, add)
    assert table == ["batch"]


def test_a_table_whose_commits_are_forgotten_knows_its_ends_by_its_rows(
    files: StoreFiles, tmp_path: Path
) -> None:
    job = Job(files, tmp_path / "table", "delta")
    end = job.planner.latest(job.offset, limited=True)
    job.writer().commit(job.run(end, 1), 1)
    ends = job.table().ends()
    table = DeltaTable(str(job.place))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 day"})
    table.create_checkpoint()
    assert table.version() > 0
    for version in range(table.version()):
        (job.place / "_delta_log" / f"{version:020d}.json").unlink()
    assert sum(ends.values()) > 50
    assert job.table().ends() == ends


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first_batch", [1, 2])
def test_a_driver_that_outlives_another_commits_nothing_twice(
    files: StoreFiles, tmp_path: Path, control: Path, kind: str, first_batch: int
) -> None:
    """Both have seen that the batch is not there; the table decides whose commit it is."""
    job = Job(files, tmp_path / "table", kind)
    number = 1
    while number < first_batch:
        end = job.planner.latest(job.offset, limited=True)
        job.writer().commit(job.run(end, number), number)
        job.offset, number = end, number + 1
    end = job.planner.latest(job.offset, limited=True)
    late, mine = job.run(end, number), job.run(end, number)
    for suffix in (".go", ".pid"):
        Path(f"{control}{suffix}").unlink(missing_ok=True)
    control.write_text("before-rename wait")
    with ThreadPoolExecutor() as pool:
        old = pool.submit(job.writer().commit, late, number)
        wait_until(Path(f"{control}.pid").exists, "the old driver is about to commit")
        job.writer().commit(mine, number)
        Path(f"{control}.go").touch()
        old.result()
    rows = rows_of(job.place, kind)
    assert set(rows.values()) == {1}
    assert rows.total() == job.table().rows() == sum(job.table().ends().values())
    assert all((job.place / file.name).exists() for file in mine[0].files)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_a_commit_whose_outcome_is_unknown_are_kept(
    files: StoreFiles, tmp_path: Path, kind: str
) -> None:
    job = Job(files, tmp_path / "table", kind)
    end = job.planner.latest(job.offset, limited=True)
    done, _ = job.run(end, 1)
    # All tasks were done, so the commit was tried: it may be on its way.
    job.writer().abort([done], 1)
    assert all((job.place / file.name).exists() for file in done.files)
    job.writer().abort([done, None], 1)
    assert not any((job.place / file.name).exists() for file in done.files)


@pytest.mark.parametrize("kind", KINDS)
def test_engines_prune_by_day_and_topic(files: StoreFiles, tmp_path: Path, kind: str) -> None:
    files.now += 3 * 86_400_000
    files.fill(50)
    job = Job(files, tmp_path / "table", kind)
    number = 0
    while (end := job.planner.latest(job.offset, limited=True)) != job.offset:
        number += 1
        job.writer().commit(job.run(end, number), number)
        job.offset = end
    if kind == "delta":
        table = DeltaTable(str(job.place))
        days = {part["date"] for part in table.partitions()}
        some = table.to_pyarrow_table(filters=[("topic", "=", "orders")])
        assert len(days) == 2
        assert len(table.file_uris([("topic", "=", "orders")])) < len(table.file_uris())
    else:
        loaded = Iceberg(str(job.place), {}).seen
        assert loaded is not None
        chosen = loaded.scan(row_filter="topic = 'orders'")
        some = chosen.to_arrow()
        assert len(list(chosen.plan_files())) < len(list(loaded.scan().plan_files()))
    assert set(some.column("topic").to_pylist()) == {"orders"}
    assert len(some) == sum(row["topic"] == "orders" for row in files.rows)
    summary = compact(job.place, expire_days=1, grace_seconds=0)
    assert summary.facts["format"] == kind
    left = rows_of(job.place, kind)
    # What was stored long ago is gone, nothing else.
    assert set(left) <= set(wanted(files))


def test_a_table_of_an_older_version_gets_the_new_column(files: StoreFiles, tmp_path: Path) -> None:
    place = tmp_path / "table"
    old = table_schema().remove(table_schema().get_field_index("reconsume_times"))
    DeltaTable.create(str(place), old, partition_by=["topic", "date"])
    job = Job(files, place, "delta")
    end = job.planner.latest(job.offset, limited=True)
    job.writer().commit(job.run(end, 1), 1)
    found = DeltaTable(str(place)).to_pyarrow_table()
    assert pc.sum(found.column("reconsume_times")).as_py() == 0
    assert len(found) == sum(job.table().ends().values())


def test_places_and_their_schemes() -> None:
    for place in ("/data/x", "x/y", "file:///data/x", "C"):
        assert is_local(place)
    assert str(local_path("file:///data/a%20b", "it")) == "/data/a b"
    assert table_uri("s3a://bucket/x") == "s3://bucket/x"
    assert open_place("file:///data/x")[1] == "/data/x"
    for place in ("ftp://host/x", "http://host/x", "s4://b/x", "dbfs:/x"):
        with pytest.raises(OptionError, match="BAD_PLACE"):
            is_local(place)


@pytest.mark.parametrize(
    ("out", "form", "text"),
    [
        ("s3a://bucket/x", "parquet", "use --format delta"),
        ("ftp://host/x", "delta", "scheme 'ftp'"),
        ("s3://bucket/x", "delta", "needs a checkpoint"),
        ("/tmp/nowhere/x", "orc", "parquet, delta or iceberg"),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_made(
    files: StoreFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, form: str,
    text: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=text):
        archive(out.replace("/tmp/nowhere", str(tmp_path)), {"path": str(files.root)}, form=form)
    assert not (tmp_path / "s3a:").exists()
    with pytest.raises(OptionError, match="BAD_PLACE"):
        SourceOptions.parse({"path": "s3://bucket/store", "subscribe": "orders"})


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_delta_archive_by_spark_goes_on_without_its_checkpoint(
    spark: Any, files: StoreFiles, tmp_path: Path
) -> None:
    out = tmp_path / "table"
    options = {"path": str(files.root), "maxOffsetsPerTrigger": "150"}
    assert archive(out, options, form="delta", spark=spark).facts["rows"] == 250
    files.fill(30)
    elsewhere = tmp_path / "another-checkpoint"
    # In a thread that did not make the session, as programs with several jobs do it.
    with ThreadPoolExecutor() as pool:
        call = partial(archive, form="delta", checkpoint=elsewhere, spark=spark)
        more = pool.submit(call, out, options).result()
    assert (more.facts["rows"], more.facts["rows_total"]) == (30, 280)
    assert rows_of(out, "delta") == wanted(files)
