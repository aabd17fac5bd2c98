"""A SPARK_HOME without Spark's own copy of PySpark.

Spark puts `python/lib/pyspark.zip` first on the path of every Python process that it starts.
Nothing compiled is in it, so each of them (about six in a session that reads and writes, one more
for each stream) compiles PySpark again: 1.3 s of CPU instead of 0.4. Where the processes run this
Python, which has PySpark installed, a home without that file lets them import the installed one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

NEEDED = ("bin", "conf", "jars", "sbin")


@contextmanager
def installed_pyspark() -> Iterator[None]:
    """Choose such a home for a JVM that is started within, unless it cannot work.

    Only the JVM keeps it: other programs that this process starts may run another Python.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    if "SPARK_HOME" in os.environ or not _is_own_python() or not (installed / "jars").is_dir():
        yield
        return
    os.environ["SPARK_HOME"] = _home(installed)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _is_own_python() -> bool:
    """Say whether the processes that Spark starts here run this Python, by a path or by a name."""
    chosen = shutil.which(os.environ.get("PYSPARK_PYTHON", ""))
    if chosen is None:
        return False
    own = sys.executable
    return os.path.dirname(chosen) == os.path.dirname(own) and os.path.samefile(chosen, own)


@cache
def _home(installed: Path) -> str:
    home = tempfile.mkdtemp(prefix="twinlog-spark-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in NEEDED:
        if (installed / name).exists():
            os.symlink(installed / name, os.path.join(home, name))
    return home
