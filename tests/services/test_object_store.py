"""A Delta table in an object store: moto's server, over HTTP, with what real clients send."""

from __future__ import annotations

import json
import os
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

from support.processes import Process, free_port, process_group
from twinlog.spark.archive.delta import Delta
from twinlog.spark.archive.lake import LakeWriter, Written, staging_of
from twinlog.spark.jobs.archive import archive
from twinlog.spark.places import open_place
from twinlog.spark.run.session import local_session

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]
PLACE = "s3a://lake/messages"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Process]:
    """An object store with an empty bucket; its address and keys are in the environment."""
    port = free_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        with process_group() as group:
            server = start_store(port, tmp_path)
            group.add(server)
            make = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
            pyarrow.fs.S3FileSystem(allow_bucket_creation=True, **make).create_dir("lake")
            yield server
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


ROOT = Path(__file__).resolve().parents[2]
OBJECT_STORE = ROOT / ".cache" / "object-store" / "bin" / "python"  # By tools/services.sh.


def start_store(port: int, directory: Path) -> Process:
    argv = [str(OBJECT_STORE), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Process("object store", argv, log=directory / "moto.log", cwd=directory)
    server.wait_for_text("Running on")
    return server


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
