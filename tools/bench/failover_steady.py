"""What being controlled costs while nothing happens, and whether full load looks like a failure."""

from __future__ import annotations

import asyncio
import os
import statistics
from typing import Any

import clusters
from failover_faults import Seen, Trial
from failover_groups import QUEUES

_TURNS, _TURN_S = 5, 4.0
_PACED_S, _PACED_RATE = 5.0, 500
_STREAM = {"queues": QUEUES, "conns": 16, "depth": 16}


async def full_load(trial: Trial) -> Seen:
    """Sends as fast as answers come, for LOAD_S seconds."""
    seconds = float(os.environ.get("LOAD_S", "1800"))
    before = await asyncio.to_thread(trial.group.facts)
    report = await asyncio.to_thread(
        clusters.run_load, "send", addr=before.master, topic="Full", size=128, seconds=seconds,
        **_STREAM,
    )  # fmt: skip
    after = await asyncio.to_thread(trial.group.facts)
    return {
        "elections": after.epoch - before.epoch,
        "messages": _taken(report), "refused": report["messages"] - _taken(report),
        "in_sync_s": await trial.back_in_sync(),
    }  # fmt: skip


async def cost(trial: Trial) -> Seen:
    """A fixed SYNC pair and the controlled one, in turns."""
    return await asyncio.to_thread(_cost, trial)


def _cost(trial: Trial) -> Seen:
    fixed = clusters.Pair(trial.group.make, "SYNC_MASTER", trial.group.directory / "fixed")
    try:
        addresses = {"fixed": fixed.master.address, "controlled": trial.group.facts().master}
        for address in addresses.values():
            clusters.run_load("send", addr=address, topic="Cost", seconds=1, **_STREAM)
        rates = [_each(addresses, _rate) for _ in range(_TURNS)]
        shown = [_each(addresses, _visible_ms) for _ in range(_TURNS)]
    finally:
        fixed.stop()
    ratio = statistics.median(turn["controlled"] / turn["fixed"] for turn in rates)
    later = statistics.median(turn["controlled"] - turn["fixed"] for turn in shown)
    return {"slower_percent": (1 - ratio) * 100, "later_ms": later, "rates": rates, "p99_ms": shown}


def _each(addresses: dict[str, str], measure: Any) -> dict[str, float]:
    return {name: measure(address) for name, address in addresses.items()}


def _rate(address: str) -> float:
    report = clusters.run_load(
        "send", addr=address, topic="Cost", size=1024, seconds=_TURN_S, **_STREAM
    )
    return _taken(report) / float(report["seconds"])


def _taken(report: dict[str, Any]) -> int:
    return int(report["codes"].get("0", 0))


def _visible_ms(address: str) -> float:
    """p99 from when a send was due until a consumer has it."""
    report = clusters.run_load(
        "flow", addr=address, topic="Cost", size=1024, seconds=_PACED_S, rate=_PACED_RATE,
        **_STREAM,
    )  # fmt: skip
    return float(report["received_ms"]["p99"])
