"""Rows about what a broker does besides plain sends: delays, transactions, SQL92 filters."""

from __future__ import annotations

from collections.abc import Mapping

import clusters
from clusters import MAKES, PAIRS, QUEUES
from harness import Context, Metric, Row, Subject

_ROLE = "ASYNC_MASTER"
_SAMPLE_S = 3.0
_FAR = 18  # The last delay level, two hours: nothing is delivered while sends are measured.


def _seconds(context: Context) -> float:
    return max(2.0, _SAMPLE_S * min(1.0, context.scale))


def _send(make: str, topic: str, **flags: object) -> Subject:
    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, _ROLE, context.directory, scale=context.scale)
        report = clusters.run_load(
            "send", addr=pair.master.address, topic=topic, conns=16, depth=16, size=1024,
            queues=QUEUES, seconds=_seconds(context), pid=pair.pids, **flags,
        )  # fmt: skip
        refused = sum(count for code, count in report["codes"].items() if code != "0")
        messages = report["messages"]
        return {
            "rate": report["msg_s"],
            "cpu": report["processes"]["master"]["cpu_s"] * 1e6 / messages,
            "p99": report["latency_ms"]["p99"],
            "refused": refused / (messages + refused) * 100,
        }

    return run


def _filtered_pull(make: str) -> Subject:
    """Messages of 16 producers, each with its number as property `a`; half of them match."""

    def run(context: Context) -> Mapping[str, float]:
        pair = PAIRS.get(make, _ROLE, context.directory, scale=context.scale)
        if "filled" not in context.state:
            answer = clusters.ask(pair.master.port, 25, {}, b"enablePropertyFilter=true")
            if answer is None or answer["code"] != 0:
                raise RuntimeError(f"{make} does not filter by properties: {answer}")
            clusters.run_load(
                "send", addr=pair.master.address, topic="filtered", size=1024, conns=16, depth=16,
                queues=QUEUES, seconds=max(2.0, 5 * min(1.0, context.scale)),
                properties="a={n},color=red",
            )  # fmt: skip
            context.state["filled"] = True
        report = clusters.run_load(
            "pull", addr=pair.master.address, topic="filtered", queues=QUEUES, batch=32,
            seconds=_seconds(context), again=True, pid=pair.pids,
            sql="a >= 8 AND color = 'red'",
        )  # fmt: skip
        return {
            "rate": report["msg_s"],
            "cpu": report["processes"]["master"]["cpu_s"] * 1e6 / report["messages"],
            "p99": report["latency_ms"]["p99"],
        }

    return run


_SEND_METRICS = [
    Metric("rate", "msg/s", "higher"),
    Metric("cpu", "us of master per message", "lower"),
    Metric("p99", "ms", "lower"),
    Metric("refused", "% answered with an error"),
]

ROWS = [
    Row(
        "broker-delayed-send",
        "delayed send, async pair, 1 KiB, 16 x 16",
        _SEND_METRICS,
        {make: _send(make, "delayed", properties=f"DELAY={_FAR}") for make in MAKES},
    ),
    Row(
        "broker-transaction",
        "half message and its commit, async pair, 1 KiB, 16 x 16",
        _SEND_METRICS,
        {make: _send(make, "transactions", transaction=True) for make in MAKES},
    ),
    Row(
        "broker-sql92-pull",
        "pull with a SQL92 expression that half of the messages match, 1 KiB, 32 per pull",
        [
            Metric("rate", "matching msg/s", "higher"),
            Metric("cpu", "us of master per matching message", "lower"),
            Metric("p99", "ms per pull", "lower"),
        ],
        {make: _filtered_pull(make) for make in MAKES},
    ),
]
