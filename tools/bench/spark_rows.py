"""Rows about the pipeline: reading, archiving and auditing a store, compared with Spark's own
Parquet.

All rows share one Spark session and the stores that were generated for them: 2048 different
documents, so that Parquet's codec has work to do, and as many bytes as the design measured with. A
subject is run unmeasured first, until the JVM has compiled it. Next to the rate stands the CPU of
the JVM and its Python workers, which a busy machine does not change.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import clusters
import psutil
from harness import Context, Metric, Row

from support.processes import ProcessGroup
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv

_STORE_BYTES = {1024: 1_074_000_000, 100: 315_000_000}
_WARM_UPS = 3
_ARCHIVE_WARM_UPS = 1  # the reads before it have compiled most; the first run starts the workers
_LOAD_SECONDS = 4.0
_TRIGGER_ROWS = "200000"  # both ways of archiving commit after so many
_kept: dict[str, Any] = {}


def session() -> Any:
    if "spark" not in _kept:
        from twinlog.spark.run.session import local_session

        _kept["spark"] = local_session("bench", conf={"spark.driver.memory": "2g"})
        atexit.register(_kept["spark"].stop)
    return _kept["spark"]


def store(size: int, scale: float) -> tuple[Path, Mapping[str, int]]:
    import spark_work

    if "directory" not in _kept:
        _kept["directory"] = Path(tempfile.mkdtemp(prefix="twinlog-bench-spark-"))
        atexit.register(shutil.rmtree, _kept["directory"], True)
    root = _kept["directory"] / f"store-{size}"
    facts = spark_work.generate(root, size, int(_STORE_BYTES[size] * scale))
    return root, facts


def _rates(seconds: float, rows: float, size: float) -> dict[str, float]:
    return {"rows": rows / seconds, "mb": size / 1e6 / seconds}


def _cpu_seconds() -> float:
    """CPU of the JVM and the Python workers so far, ended workers included."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _measured(
    context: Context,
    work: Callable[[], float],
    rows: float,
    size: float,
    warm_ups: int = _WARM_UPS,
) -> dict:
    """One sample of `work`, which returns seconds; warmed up before the first."""
    for _ in range(0 if context.state.get("is_warm") else warm_ups):
        work()
    context.state["is_warm"] = True
    before = _cpu_seconds()
    seconds = work()
    return {**_rates(seconds, rows, size), "cpu": (_cpu_seconds() - before) / rows * 1e6}


def _reading(size: int, how: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        import spark_work

        root, facts = store(size, context.scale)
        if how == "one core":
            return _rates(spark_work.read_directly(root), facts["rows"], facts["bytes"])
        if how == "loop":
            seconds, rows = spark_work.read_plainly(root)
            return _rates(seconds, rows, facts["bytes"] * rows / facts["rows"])
        work = functools.partial(spark_work.read_store, session(), root)
        if how == "parquet":
            parquet = root.with_name(f"parquet-{size}")
            spark_work.make_parquet(session(), root, parquet)
            work = functools.partial(spark_work.read_parquet, session(), parquet)
        return _measured(context, work, facts["rows"], facts["bytes"])

    return run


def _pulling(size: int) -> Callable[[Context], Mapping[str, float]]:
    """The other transport: the same rows, from a broker that has them."""

    def run(context: Context) -> Mapping[str, float]:
        import spark_work

        root, facts = store(size, context.scale)
        address = _served(context, root)
        work = functools.partial(spark_work.read_topics, session(), address)
        return _measured(context, work, facts["rows"], facts["bytes"])

    return run


def _served(context: Context, root: Path) -> str:
    """A broker over a copy of a generated store, kept for all rounds; its name server."""
    import spark_work

    if "group" not in context.state:
        group = context.state["group"] = ProcessGroup()
        shutil.copytree(root, context.directory / "broker" / "store")
        namesrv = group.add(start_twinlog_namesrv(context.directory / "namesrv"))
        broker = start_twinlog_broker(
            context.directory / "broker", namesrv=namesrv.address,
            mappedFileSizeCommitLog=spark_work.SEGMENT, fileReservedTime=1_000_000,
        )  # fmt: skip
        group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        context.state["served"] = namesrv.address
    return str(context.state["served"])


def _backlog(context: Context, size: int) -> tuple[str, str, int]:
    """A broker with a topic full of messages, kept for all rounds."""
    if "group" not in context.state:
        group = context.state["group"] = ProcessGroup()
        namesrv = group.add(start_twinlog_namesrv(context.directory / "namesrv"))
        broker = start_twinlog_broker(context.directory / "broker", namesrv=namesrv.address)
        group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        report = clusters.run_load(
            "send", addr=broker.address, topic="backlog", size=size, depth=16, queues=8,
            seconds=max(1.0, _LOAD_SECONDS * min(1.0, context.scale)),
        )  # fmt: skip
        context.state["backlog"] = ("backlog", namesrv.address, int(report["messages"]))
        context.state["store"] = broker.store
    found: tuple[str, str, int] = context.state["backlog"]
    return found


def _stop(context: Context) -> None:
    if "group" in context.state:
        context.state["group"].kill_all()


def _archiving(size: int, how: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        import spark_work

        root, facts = store(size, context.scale)
        kind = spark_work.archive_store if how == "archive" else spark_work.write_parquet_by_rows
        out, limit = context.directory / "out", {"maxOffsetsPerTrigger": _TRIGGER_ROWS}
        work = functools.partial(kind, session(), root, out, **limit)
        return _measured(context, work, facts["rows"], facts["bytes"], _ARCHIVE_WARM_UPS)

    return run


def _batches(context: Context) -> Mapping[str, float]:
    """What a micro-batch costs whatever is in it."""
    import spark_work

    root = context.directory / "store"
    spark_work.generate(root, 100, int(14_000_000 * max(0.3, context.scale)))
    found = spark_work.batch_seconds(session(), root, context.directory)
    return {"p50": found[len(found) // 2], "p95": found[int(len(found) * 0.95)]}


def _look(context: Context) -> Mapping[str, float]:
    """What the planner of a stream spends before each batch on finding what is new."""
    import spark_work

    if "looked" not in context.state:
        group = context.state["group"] = ProcessGroup()
        namesrv = group.add(start_twinlog_namesrv(context.directory / "namesrv"))
        broker = start_twinlog_broker(
            context.directory / "broker", namesrv=namesrv.address, mappedFileSizeConsumeQueue=2000
        )
        group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        spark_work.make_queues(namesrv.address)
        context.state["looked"] = namesrv.address
    found = spark_work.look_seconds(context.state["looked"])
    return {"p50": found[len(found) // 2], "p95": found[int(len(found) * 0.95)]}


def _latency(context: Context) -> Mapping[str, float]:
    """Age of the rows of a live log when their batch is committed."""
    import spark_work

    _, address, _ = _backlog(context, 100)
    oldest, newest = spark_work.live_latency(
        session(), context.state["store"], address, context.directory
    )
    return {"oldest": oldest, "newest": newest}


def _audit(context: Context) -> Mapping[str, float]:
    import spark_work

    root, _ = store(1024, context.scale)
    other = root.with_name("replica")
    if not other.exists():
        shutil.copytree(root, other)
    facts = spark_work.audit_stores(session(), root, other)
    return {"mb": float(facts["mb_per_second"]), "core": float(facts["mb_per_second"]) / 2}


_RATES = [
    Metric("rows", "rows/s", "higher"),
    Metric("mb", "MB/s of log", "higher"),
    Metric("cpu", "CPU s per million rows", "lower"),
]
ROWS = [
    *(
        Row(
            f"spark-read-{size}",
            f"Spark reads {size} B messages, all columns",
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
    *(
        Row(
            f"spark-network-{size}",
            f"Spark reads {size} B messages over the network, all columns; the broker is here too",
            _RATES,
            {"twinlog": _pulling(size), "from files": _reading(size, "store")},
            cleanup=_stop,
        )
        for size in (1024, 100)
    ),
    *(
        Row(
            f"spark-archive-{size}",
            f"Archive a store exactly once, {size} B bodies, 200,000 rows per batch",
            _RATES,
            {"twinlog": _archiving(size, "archive"), "spark parquet": _archiving(size, "rows")},
            rounds=2,
        )
        for size in (1024, 100)
    ),
    Row(
        "spark-audit",
        "Audit master against slave (both logs read, 2 cores)",
        [Metric("mb", "MB/s, both logs", "higher"), Metric("core", "MB/s per core", "higher")],
        {"twinlog": _audit},
    ),
    Row(
        "spark-batch",
        "Cost of a micro-batch of 2,000 rows",
        [Metric("p50", "s", "lower"), Metric("p95", "s", "lower")],
        {"twinlog": _batches},
    ),
    Row(
        "spark-look",
        "A look for new offsets over 1,000 queues of a broker",
        [Metric("p50", "s", "lower"), Metric("p95", "s", "lower")],
        {"twinlog": _look},
        cleanup=_stop,
    ),
    Row(
        "spark-latency",
        "Age of a live log's rows when their batch is committed, median",
        [Metric("oldest", "s", "lower"), Metric("newest", "s", "lower")],
        {"twinlog": _latency},
        rounds=2,
        cleanup=_stop,
    ),
]
