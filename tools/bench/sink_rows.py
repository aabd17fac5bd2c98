"""Rows about writing into topics with Spark, compared with our Python client's own rate.

One broker without a slave, Spark with two cores: all share the machine. The first two send rows
that Spark makes itself; `replay` reads them from a store, with all that a message had.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import spark_rows
from client_rows import ours
from harness import Context, Metric, Row

from support.processes import ProcessGroup
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv

_ROWS = 1_000_000
_CLIENT_SECONDS = 5.0
_SIZE = 100
_numbers = itertools.count(1)


def _cluster(context: Context) -> Any:
    """The broker of one subject, kept for its rounds."""
    if "namesrv" not in context.state:
        group = context.state["group"] = ProcessGroup()
        namesrv = group.add(start_twinlog_namesrv(context.directory / "namesrv"))
        broker = start_twinlog_broker(context.directory / "broker", namesrv=namesrv.address)
        context.state["broker"] = group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        context.state["namesrv"] = namesrv
    return context.state["namesrv"].address


def _stop(context: Context) -> None:
    if "group" in context.state:
        context.state["group"].kill_all()


def _writing(**options: str) -> Callable[[Context], Mapping[str, float]]:
    def run(context: Context) -> Mapping[str, float]:
        address = _cluster(context)
        count = int(_ROWS * context.scale)
        frame = spark_rows.session().range(0, count, 1, 2)
        frame = frame.selectExpr(f"CAST(rpad(CAST(id AS STRING), {_SIZE}, 'x') AS BINARY) AS body")
        given = {"nameServer": address, "topic": "sink", **options}
        if "exactlyOnce" in options:
            given["producerId"] = f"bench-{next(_numbers)}"
        begin = time.perf_counter()
        frame.write.format("twinlog").options(**given).mode("append").save()
        return {"rows": count / (time.perf_counter() - begin)}

    return run


def _replaying(context: Context) -> Mapping[str, float]:
    from twinlog.spark.jobs.move import replay

    address = _cluster(context)
    root, _ = spark_rows.store(_SIZE, context.scale)
    begin = time.perf_counter()
    facts = replay(root, address, spark=spark_rows.session()).facts
    return {"rows": facts["rows"] / (time.perf_counter() - begin)}


def _client(context: Context) -> Mapping[str, float]:
    seconds = str(max(1.0, _CLIENT_SECONDS * min(1.0, context.scale)))
    found = ours(_cluster(context), "send", "client", "batched", str(_SIZE), seconds, "0")
    return {"rows": found["rate"]}


ROWS = [
    Row(
        "spark-sink-100",
        f"Rows into a topic, {_SIZE} B bodies",
        [Metric("rows", "rows/s", "higher")],
        {
            "twinlog": _writing(),
            "exactly once": _writing(exactlyOnce="true"),
            "replay of a store": _replaying,
            "python client": _client,
        },
        cleanup=_stop,
    )
]
