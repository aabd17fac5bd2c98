"""Rows about the pipeline: reading, archiving and auditing a store, beside Spark's own Parquet.

All rows share one Spark session and the stores that were generated for them.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import Context, Metric, Row

_STORE_BYTES = 300_000_000
_kept: dict[str, Any] = {}


def session() -> Any:
    if "spark" not in _kept:
        from twinlog.spark.session import local_session

        _kept["spark"] = local_session("bench", conf={"spark.driver.memory": "2g"})
        atexit.register(_kept["spark"].stop)
    return _kept["spark"]


def store(size: int, scale: float) -> tuple[Path, Mapping[str, int]]:
    from twinlog.spark import bench

    if "directory" not in _kept:
        _kept["directory"] = Path(tempfile.mkdtemp(prefix="twinlog-bench-spark-"))
        atexit.register(shutil.rmtree, _kept["directory"], True)
    root = _kept["directory"] / f"store-{size}"
    facts = bench.generate(root, size, int(_STORE_BYTES * scale))
    return root, facts


def _rates(seconds: float, rows: float, size: float) -> dict[str, float]:
    return {"rows": rows / seconds, "mb": size / 1e6 / seconds}


def _reading(size: int, how: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        from twinlog.spark import bench

        root, facts = store(size, context.scale)
        if how == "one core":
            return _rates(bench.read_directly(root), facts["rows"], facts["bytes"])
        if how == "loop":
            seconds, rows = bench.read_plainly(root)
            return _rates(seconds, rows, facts["bytes"] * rows / facts["rows"])
        if how == "parquet":
            parquet = root.with_name(f"parquet-{size}")
            bench.make_parquet(session(), root, parquet)
            seconds = bench.read_parquet(session(), parquet)
        else:
            seconds = bench.read_store(session(), root)
        return _rates(seconds, facts["rows"], facts["bytes"])

    return run


def _archiving(how: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        from twinlog.spark import bench

        root, facts = store(1024, context.scale)
        work = bench.archive_store if how == "archive" else bench.write_parquet_by_rows
        seconds = work(session(), root, context.directory / "out")
        return _rates(seconds, facts["rows"], facts["bytes"])

    return run


def _audit(context: Context) -> Mapping[str, float]:
    from twinlog.spark import bench

    root, _ = store(1024, context.scale)
    other = root.with_name("replica")
    if not other.exists():
        shutil.copytree(root, other)
    facts = bench.audit_stores(session(), root, other)
    return {"mb": float(facts["mb_per_second"])}


_RATES = [Metric("rows", "rows/s", "higher"), Metric("mb", "MB/s of log", "higher")]
ROWS = [
    *(
        Row(
            f"spark-read-{size}",
            f"Spark reads a store, {size} B bodies, all columns",
            _RATES,
            {
                "twinlog": _reading(size, "store"),
                "spark parquet": _reading(size, "parquet"),
                "one core": _reading(size, "one core"),
                "python loop": _reading(size, "loop"),
            },
        )
        for size in (1024, 100)
    ),
    Row(
        "spark-archive",
        "Archive a store exactly once, 1024 B bodies",
        _RATES,
        {"twinlog": _archiving("archive"), "spark parquet": _archiving("rows")},
        rounds=2,
    ),
    Row(
        "spark-audit",
        "Audit master against slave (both logs read)",
        [Metric("mb", "MB/s, both logs", "higher")],
        {"twinlog": _audit},
    ),
]
