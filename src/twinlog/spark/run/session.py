"""Spark sessions for jobs and tests: quiet, small, with one line when Java is missing.

A master may be `local[2]`, `local-cluster[2,1,1024]`, `spark://host:7077` or, for Spark Connect,
`sc://host:15002` (or `connect local[2]`: a Connect server of its own).
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from twinlog.spark.errors import PipelineError
from twinlog.spark.run.home import installed_pyspark
from twinlog.spark.run.pack import packed, settings_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
CONNECT = "connect "
LOGGING = Path(__file__).absolute().with_name("log4j2.properties").as_uri()


# What the command line says about every session that this process starts.
_settings: dict[str, str] = {}
_py_files: list[str] = []


def use(*, conf: Iterable[str] = (), py_files: Iterable[str] = ()) -> None:
    """Add settings (KEY=VALUE) and Python files to the sessions that jobs of this process start.

    Raises:
        PipelineError: a setting is no KEY=VALUE, or a file does not exist.
    """
    for item in conf:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise PipelineError("BAD_OPTION", f"--conf {item!r} must be KEY=VALUE")
        _settings[key] = value
    for path in py_files:
        if not os.path.exists(path):
            raise PipelineError("BAD_OPTION", f"--py-files {path}: there is no such file")
        _py_files.append(path)


def shipped(path: str, directory: str) -> str:
    """Return a file that Spark puts on the workers' path: it knows .zip, a wheel is one."""
    if not path.endswith(".whl"):
        return path
    target = os.path.join(directory, Path(path).stem + ".zip")
    shutil.copyfile(path, target)
    return target


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
        raise PipelineError(
            "NO_JAVA", f"{java} does not run: {error}; set JAVA_HOME to a working Java"
        ) from error


# Spark looks at the null marks of Arrow columns itself, and their bounds come from one schema:
# checking both again for every value is a sixth of what the JVM does for a read.
ARROW_CHECKS_OFF = (
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.driver.extraJavaOptions": (
        f"-Dlog4j2.configurationFile={LOGGING} -XX:+UseSerialGC {ARROW_CHECKS_OFF}"
    ),
    "spark.executor.extraJavaOptions": ARROW_CHECKS_OFF,
}


# Spark's default runs the programs chmod and readlink for the files of a checkpoint. This one ends
# in the same rename(2), without readlink: a third of what a small batch takes is saved. Neither
# syncs. On other file systems the default may know a better rename, so it stays.
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


LOOPBACK = {"spark.driver.host": "127.0.0.1"}


def is_elsewhere(master: str) -> bool:
    """Say whether executors run on machines that may not have what this one has."""
    return not master.startswith(("local", "sc://", CONNECT))


def has_own_home(master: str) -> bool:
    """Say whether the driver's home is used by the driver alone.

    YARN and Kubernetes send what is in it to others. The workers of a standalone cluster have
    theirs, and only the processes that plan run here.
    """
    return not is_elsewhere(master) or master.startswith("spark://")


def use_any_python() -> None:
    """Name the Python of a cluster as each machine finds it.

    Spark starts the same command here, to plan, and on workers: a path of this machine would not
    be there. Here the first one of that name must be this one.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    home = os.path.dirname(sys.executable)
    os.environ["PATH"] = os.pathsep.join([home, os.environ.get("PATH", "")])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = "python3"


def check_python() -> None:
    """Choose the Python of the workers: the one that has the package, unless the user chose.

    Raises:
        PipelineError: PYSPARK_PYTHON names nothing that runs.
    """
    # The first `python3` of PATH, which is what Spark takes, may not have the package.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        chosen = os.environ.setdefault(variable, sys.executable)
        if shutil.which(chosen) is None:
            raise PipelineError(
                "NO_PYTHON",
                f"{variable}={chosen} does not run: set it to a Python that has twinlog[spark], "
                "or leave it unset",
            )


def local_session(
    name: str, *, master: str = "local[2]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session whose workers run this Python and write no progress bars."""
    is_remote = master.startswith("sc://")
    if not is_remote:
        check_java()
    if is_elsewhere(master):
        use_any_python()
    check_python()
    if not is_elsewhere(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"twinlog {name}")
    if is_remote or master.startswith(CONNECT):
        builder = builder.remote(master.removeprefix(CONNECT))
    else:
        builder = builder.master(master)
    quiet = {} if is_remote else QUIET
    if is_elsewhere(master):
        if not _py_files and "spark.archives" not in {**(conf or {}), **_settings}:
            quiet = {**quiet, **settings_of(packed())}  # the job ships itself
    elif not is_remote:
        quiet = {**quiet, **LOOPBACK}
    for key, value in {**quiet, **(conf or {}), **_settings}.items():
        builder = builder.config(key, value)
    with installed_pyspark() if has_own_home(master) else nullcontext():
        session = builder.getOrCreate()
    if not is_remote and not master.startswith(CONNECT):
        session.sparkContext.setLogLevel("ERROR")
        _choose_checkpoint_files(session)
    _ship(session)
    return session


def _choose_checkpoint_files(session: SparkSession) -> None:
    """Take the cheaper file manager where files are local, this Spark has it and nobody chose."""
    from py4j.protocol import Py4JError

    context = session.sparkContext
    jvm = context._jvm
    if jvm is None or session.conf.get(CHECKPOINT_FILES, None) is not None:
        return
    if not str(context._jsc.hadoopConfiguration().get("fs.defaultFS")).startswith("file:"):
        return
    try:
        jvm.java.lang.Class.forName(BY_FILE_SYSTEM)
    except Py4JError:  # Spark's internal classes move between versions.
        return
    session.conf.set(CHECKPOINT_FILES, BY_FILE_SYSTEM)


def _ship(session: SparkSession) -> None:
    """Give the workers the Python files of the command line."""
    if not _py_files:
        return
    directory = tempfile.mkdtemp(prefix="twinlog-spark-")  # Spark serves the files from there
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for path in _py_files:
        session.addArtifacts(shipped(path, directory), pyfile=True)
