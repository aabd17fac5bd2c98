"""What the tests of the pipeline share: one Spark session per process, and a file for faults."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TOOLS = HERE.parents[1] / "tools"
sys.path[:0] = [str(HERE), str(TOOLS / "bench"), str(TOOLS)]  # for spark_work, for built_from


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that tests write faults into; workers inherit its name."""
    from twinlog.spark.run.faults import VARIABLE

    path = tmp_path_factory.mktemp("faults") / "control"
    before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
    os.environ[VARIABLE] = str(path)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [before["PYTHONPATH"]])])
    yield path
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture(scope="session")
def spark(control: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session; starting one costs more than most tests."""
    from twinlog.spark.run.session import local_session

    # Tests run each query once: compiling it costs more than it saves.
    quick = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),  # not where others clean up
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    }
    session = local_session("tests", conf=quick)
    yield session
    session.stop()
