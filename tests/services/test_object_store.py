"""A Delta table in an object store: moto's server, over HTTP, with what real clients send."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.fs
import pytest
from deltalake import DeltaTable

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

from storefiles import StoreFiles

from support.object_store import object_store
from support.processes import Process
from twinlog.spark.archive.delta import Delta
from twinlog.spark.archive.lake import LakeWriter, Written, staging_of
from twinlog.spark.jobs.archive import archive
from twinlog.spark.places import open_place
from twinlog.spark.run.session import local_session

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
PLACE = "s3a://lake/messages"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Process]:
    with object_store(tmp_path, "lake") as server:
        yield server


def rows_of() -> Counter[Any]:
    found = DeltaTable("s3://lake/messages").to_pyarrow_table()
    names = ("topic", "queue_id", "queue_offset", "body")
    return Counter(tuple(row[name] for name in names) for row in found.select(names).to_pylist())


def wanted(files: StoreFiles) -> Counter[Any]:
    names = ("topic", "queue_id", "queue_offset", "body")
    return Counter(tuple(row[name] for name in names) for row in files.rows)


def test_an_archive_in_an_object_store_is_exactly_once(store: Process, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(300)
    options = {"path": str(files.root), "maxOffsetsPerTrigger": "120"}
    spark = local_session("services", conf={"spark.sql.shuffle.partitions": "1"})
    try:
        found = archive(PLACE, options, form="delta", checkpoint=tmp_path / "one", spark=spark)
        assert found.facts["rows"] == 300
        files.fill(40)
        # Another machine without the checkpoint goes on where the table ends.
        found = archive(PLACE, options, form="delta", checkpoint=tmp_path / "two", spark=spark)
        assert found.facts["rows"] == 40
    finally:
        spark.stop()
    assert rows_of() == wanted(files)


def test_a_batch_that_is_done_again_adds_nothing_and_leaves_no_file(
    store: Process, tmp_path: Path
) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(60)
    source = {"path": str(files.root), "subscribe": "orders,events"}
    given = {"path": PLACE, "kind": "delta", "settings": "{}", "source": json.dumps(source)}
    heads = Counter((row["topic"], row["queue_id"]) for row in files.rows)
    window = [[topic, "broker-a", queue, 0, count] for (topic, queue), count in heads.items()]

    def written(prefix: str) -> list[Any]:
        done = Written("query", 1, [], [])
        with staging_of(PLACE) as staging:
            LakeWriter(given).add_window(window, prefix, staging, done)
        return [done]

    first = written("a")
    LakeWriter(given).commit(first, 1)
    LakeWriter(given).commit(written("b"), 1)
    assert rows_of() == wanted(files)
    assert Delta(PLACE).last_batch("query") == 1
    left = [file for file in open_place(PLACE)[0].get_file_info(
        pyarrow.fs.FileSelector("lake/messages", recursive=True)
    ) if file.extension == "parquet"]  # fmt: skip
    assert len(left) == len(first[0].files)
