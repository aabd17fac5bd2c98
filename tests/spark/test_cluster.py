"""The pipeline on a cluster of processes: workers have the package only from the wheel.

Runs in processes of its own: a process has one Spark context. The Python of the workers sees
nothing of this checkout; what they need of twinlog must travel with the job.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from standalone import standalone
from storefiles import StoreFiles

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sysconfig.get_paths()["purelib"]
DEADLINE_S = 500
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

JOBS = """
import json, shutil, sys
from pathlib import Path
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from twinlog.spark.jobs.archive import archive
from twinlog.spark.jobs.audit import audit
from twinlog.spark.jobs.audit_archive import audit_archive
from twinlog.spark.jobs.verify import verify
from twinlog.spark.run.session import local_session, use

class Planner(DataSource):
    "Where the process that plans on the driver has PySpark from."
    def schema(self):
        return "path STRING"
    def reader(self, schema):
        return PlannerReader()

class PlannerReader(DataSourceReader):
    def partitions(self):
        return [InputPartition(sys.modules["pyspark"].__file__)]
    def read(self, partition):
        yield (partition.value,)

store, work, master, settings, files = json.loads(sys.argv[1])
use(conf=settings, py_files=files)
spark = local_session("cluster test", master=master)
try:
    rows = spark.read.format("twinlog").option("path", store).option("subscribe", "orders,events")
    frame = rows.option("maxRecordsPerPartition", "50").load()
    found = {"rows": frame.count(), "keys": sorted(r.keys for r in frame.select("keys").collect())}
    spark.dataSource.register(Planner)
    planned = spark.read.format("Planner").load().collect()[0].path
    found["is_installed"] = planned == pyspark.__file__
    shutil.copytree(store, work + "/replica")
    first = {"path": store, "maxOffsetsPerTrigger": "250", "maxRecordsPerPartition": "60"}
    summaries = [
        archive(work + "/archive", first, spark=spark),
        audit_archive(store, work + "/archive", spark=spark),
        audit(store, work + "/replica", spark=spark, settle=0),
        verify(store, spark=spark),
    ]
    found["summaries"] = [json.loads(summary.line()) for summary in summaries]
    print(json.dumps(found))
finally:
    spark.stop()
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The package as it is installed elsewhere; `make dist` tries the compiled one."""
    out = tmp_path / "wheel"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    pure = {**os.environ, "TWINLOG_BUILD": "pure"}
    subprocess.run(command, cwd=ROOT, env=pure, check=True, capture_output=True, timeout=DEADLINE_S)
    return next(out.glob("*.whl"))


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that has the dependencies, but reads no .pth file: no checkout of ours is seen."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    return path


def run(arguments: list[Any], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", JOBS, json.dumps(arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any], files: StoreFiles) -> None:
    assert found["rows"] == len(files.rows)
    assert found["keys"] == sorted(row["keys"] for row in files.rows)
    archived, against_archive, against_replica, verified = found["summaries"]
    assert archived["rows"] == len(files.rows)
    assert archived["batches"] >= 2
    assert against_archive["ok"]
    assert against_archive["compared"] == len(files.rows)
    assert against_replica["ok"]
    assert against_replica["bytes"] == files.end
    assert verified["ok"]
    assert verified["records"] == len(files.rows)


def store_of(tmp_path: Path) -> StoreFiles:
    files = StoreFiles(tmp_path / "store")
    files.fill(400)
    return files


def test_two_worker_processes_that_have_the_package_from_the_wheel(
    tmp_path: Path, wheel: Path, bare_python: Path
) -> None:
    files = store_of(tmp_path)
    settings = ["spark.executor.memory=512m", f"spark.executorEnv.PYTHONPATH={PACKAGES}"]
    driver = {
        "PYSPARK_PYTHON": str(bare_python),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), PACKAGES]),
    }
    master = "local-cluster[2,1,1024]"
    found = run([str(files.root), str(tmp_path), master, settings, [str(wheel)]], driver)
    check(found, files)


@pytest.mark.chaos
def test_the_same_without_the_wheel_is_seen_to_fail(tmp_path: Path, bare_python: Path) -> None:
    files = store_of(tmp_path)
    settings = ["spark.executor.memory=512m", f"spark.executorEnv.PYTHONPATH={PACKAGES}"]
    driver = {
        "PYSPARK_PYTHON": str(bare_python),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), PACKAGES]),
    }
    with pytest.raises(AssertionError, match="No module named 'twinlog'"):
        run([str(files.root), str(tmp_path), "local-cluster[2,1,1024]", settings, []], driver)


@pytest.mark.chaos
def test_spark_connect(tmp_path: Path) -> None:
    files = store_of(tmp_path)
    found = run([str(files.root), str(tmp_path), "connect local[2]", [], []], {})
    check(found, files)


@pytest.mark.chaos
def test_workers_that_have_nothing_but_python_and_spark(tmp_path: Path) -> None:
    """A standalone cluster whose workers lack the driver's environment: the job ships itself."""
    files = store_of(tmp_path)
    with standalone(tmp_path, workers=1, cores=2) as cluster:
        settings = ["spark.executor.memory=512m", *cluster.settings]
        found = run([str(files.root), str(tmp_path), cluster.address, settings, []], {})
    check(found, files)
    assert found["is_installed"], "each process that plans compiles PySpark again"
