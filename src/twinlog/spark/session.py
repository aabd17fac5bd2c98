"""Spark sessions for jobs and tests: quiet, small, with one line when Java is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from twinlog.spark.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()


def check_java() -> None:
    """Find out whether Spark can start.

    Raises:
        PipelineError: there is no Java; the text is one line.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        raise PipelineError(
            "NO_JAVA",
            f"Spark needs Java {JAVA_LEAST} or newer: install openjdk-{JAVA_LEAST}-jre-headless or "
            "set JAVA_HOME",
        )
    try:
        subprocess.run([java, "-version"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise PipelineError("NO_JAVA", f"{java} does not run: {error}") from error


def local_session(
    name: str, *, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session whose workers run this Python and write no progress bars."""
    check_java()
    # Workers must run the Python that has the package; the first `python3` of PATH may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING} -XX:+UseSerialGC",
        **(conf or {}),
    }
    builder = SparkSession.builder.master(master).appName(f"twinlog {name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
