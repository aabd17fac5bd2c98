"""`make bench-failover`: a controlled group under faults, next to Apache RocketMQ 5.3.3's.

Environment: ROWS=kill-sync-2,switch picks rows (parts of names; LIST=1 lists them), TIMES=50 how
often each fault happens (TIMES_APACHE=2 for one make), LIMIT_S=600 after how many seconds a row has
no further fault, MAKES=twinlog leaves Apache out, RATE=400 sends per second of the measuring
client, LOAD_S=1800 how long full load lasts, BENCH_DIR where stores are written. SHARE=-10 asks the
kernel for a larger part of a shared machine, for everything that is measured (autogroup in
sched(7), as root). Each group of faults adds one line to the file of results (OUT, by default
tools/bench/failover.jsonl): figures, load of the machine, and how many messages were acknowledged
and lost. DOCS=1 writes the section "Failover" of docs/BENCHMARKS.md from that file; RENDER=1
measures nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

import failover_clients
import failover_report
from failover_faults import Trial
from failover_groups import Group, Host
from failover_load import read_log
from failover_table import ROWS, Row

from twinlog.admin.tails import find_tails

SETTLE_S = 20.0
RESULTS = Path(__file__).with_name("failover.jsonl")


async def measure(row: Row, make: str, directory: Path, hosts: list[Host]) -> dict[str, Any]:
    times = int(os.environ.get(f"TIMES_{make.upper()}", os.environ.get("TIMES", row.times)))
    rate = int(os.environ.get("RATE", "400"))
    config = {**row.config, "cleanResourceInterval": 10_000}
    group = await asyncio.to_thread(
        lambda: Group(make, directory, row.replicas, hosts=hosts, **config)
    )
    seen: list[dict[str, Any]] = []
    load_before = os.getloadavg()[0]
    error = ""
    try:
        async with failover_clients.running(row.client, group.address, directory, rate) as load:
            await load.more(20)
            await asyncio.to_thread(group.wait_in_sync)
            trial = Trial(group, load, hosts)
            try:
                deadline = time.monotonic() + float(os.environ.get("LIMIT_S", "inf"))
                for _ in range(times):
                    if time.monotonic() > deadline:
                        break
                    await load.more(rate // 4 if row.client == "raw" else 20)
                    seen.append(await row.fault(trial))
            except AssertionError as failed:
                traceback.print_exc()
                error = str(failed)[:300]
        found = await read_settled(group, load.bodies)
        lost = sorted(load.bodies.keys() - found.keys())
        aside = bodies_aside(group)
        return {
            "row": row.name, "make": make, **harness.moment(),
            "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
            "share": Path("/proc/self/autogroup").read_text().split()[-1],
            "client": row.client, "times": len(seen), "seen": seen,
            "acknowledged": len(load.bodies), "lost": len(lost),
            "lost_not_aside": len(set(lost) - aside),
            "lost_names": [body.decode() for body in lost[:20]],
            "doubled": sum(count - 1 for count in found.values()),
            "unknown": load.unknown, "refused": len(load.refused),
            "first_refusal": load.refused[:1], "error": error,
        }  # fmt: skip
    finally:
        await asyncio.to_thread(group.end)


async def read_settled(group: Group, wanted: Mapping[bytes, float]) -> dict[bytes, int]:
    """The log of the last master, looked at again while something is missing: a replica that has
    just come back may hold up what is shown."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = await asyncio.to_thread(read_log, group)
        if wanted.keys() <= found.keys() or time.monotonic() > deadline:
            return found
        await asyncio.sleep(1)


def bodies_aside(group: Group) -> set[bytes]:
    """What rejoining replicas of ours moved aside."""
    tails = [tail for broker in group.brokers for tail in find_tails(broker.store)]
    return {bytes(message.body) for tail in tails for message in tail.messages()}


def run(row: Row, make: str) -> dict[str, Any]:
    directory = harness.new_directory("twinlog-failover-")
    places = Host.several(row.replicas) if row.has_hosts else nullcontext([])
    try:
        with places as hosts:
            return asyncio.run(measure(row, make, directory, hosts))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def main() -> int:
    harness.explain_if_asked(__doc__)
    parts = [part for part in os.environ.get("ROWS", "").split(",") if part]
    rows = [row for row in ROWS if not parts or any(part in row.name for part in parts)]
    results = Path(os.environ.get("OUT", RESULTS))
    if os.environ.get("LIST"):
        print("\n".join(f"{row.name:24} {row.title}" for row in rows))
        return 0
    if os.environ.get("SHARE"):
        Path("/proc/self/autogroup").write_text(os.environ["SHARE"])
    failed = 0
    makes = os.environ.get("MAKES", "twinlog,apache").split(",")
    for row in rows if not os.environ.get("RENDER") else []:
        for make in (make for make in makes if make in row.makes):
            try:
                line = rounded(run(row, make))
            except Exception:
                traceback.print_exc()
                failed += 1
                continue
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(failover_report.one_line(row, line), flush=True)
    if os.environ.get("DOCS"):
        failover_report.write(results)
    return 1 if failed else 0


if __name__ == "__main__":
    harness.end_in_order()
    sys.exit(main())
