"""Many seeds of the simulations; `--seed N` replays one with its trace.

Two worlds: `pair` is the store and its replication alone (classic, twin), `group` is whole brokers
with a name server and clients (classic, twin, mixed). A long run can be done in parts: each part
adds one line to the file that `--results` names, and `--totals FILE` adds them up.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from built_from import commit
from twinlog.testing.group.sim import GroupFailure, run_group_seed
from twinlog.testing.group.world import DIALECTS
from twinlog.testing.ha_sim import SimFailure, run_seed

KINDS = (
    ("pair", "classic"),
    ("pair", "twin"),
    *(("group", dialect) for dialect in DIALECTS),
)


@dataclass
class Totals:
    """What one part of a run found."""

    world: str
    dialect: str
    first: int
    count: int
    failed: dict[int, str] = field(default_factory=dict)
    confirmed: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, result: dict[str, Any]) -> None:
        if result["failure"]:
            self.failed[seed] = result["failure"]
        self.confirmed += result["confirmed"]
        self.virtual_s += result["virtual_s"]
        self.cpu_s += result["cpu_s"]
        self.faults.update(result["faults"])

    def text(self) -> str:
        return (
            f"{self.world} {self.dialect}: {self.count} seeds from {self.first},"
            f" {len(self.failed)} failed, {self.confirmed} messages confirmed,"
            f" {sum(self.faults.values())} faults, {self.virtual_s / 3600:.1f} h of cluster time,"
            f" {self.cpu_s:.0f} s of CPU"
        )


def run_any(seed: int, world: str, dialect: str, *, keeps_trace: bool = False) -> tuple[Any, str]:
    """(the simulation, what failed)"""
    try:
        if world == "group":
            return run_group_seed(seed, dialect=dialect, keeps_trace=keeps_trace), ""
        return run_seed(seed, dialect=dialect, keeps_trace=keeps_trace), ""
    except (SimFailure, GroupFailure) as failure:
        return failure.simulation, str(failure)  # type: ignore[union-attr]


def run_one(seed: int, world: str, dialect: str) -> dict[str, Any]:
    started_s = time.process_time()
    simulation, failure = run_any(seed, world, dialect)
    ledger = simulation.ledger if world == "group" else simulation.history
    return {
        "failure": failure,
        "confirmed": ledger.count("ok"),
        "virtual_s": simulation.loop.now_s,
        "cpu_s": time.process_time() - started_s,
        "faults": simulation.fault_counts,
    }


def replay(seed: int, world: str, dialect: str) -> int:
    simulation, failure = run_any(seed, world, dialect, keeps_trace=True)
    print("\n".join(simulation.lines))
    print(failure or f"seed {seed} holds, digest {simulation.digest[:16]}")
    return 1 if failure else 0


def _collect_between_seeds() -> None:
    """Of a worker: what a seed leaves behind is looked at once, when all of it is garbage."""
    gc.freeze()
    gc.disable()


def run_many(totals: Totals, jobs: int, *, stops_at_failure: bool) -> None:
    seeds = range(totals.first, totals.first + totals.count)
    work = partial(run_one, world=totals.world, dialect=totals.dialect)
    with ProcessPoolExecutor(jobs, initializer=_collect_between_seeds) as pool:
        for seed, result in zip(seeds, pool.map(work, seeds, chunksize=4), strict=True):
            totals.add(seed, result)
            if result["failure"]:
                replayed = f"WORLD={totals.world} DIALECT={totals.dialect}"
                print(f"{result['failure']}\n  replay: make sim SEED={seed} {replayed}", flush=True)
                if stops_at_failure:
                    pool.shutdown(cancel_futures=True)
                    return


def print_totals(path: Path) -> int:
    """Add up all parts in the file, by kind."""
    sums: dict[tuple[str, str], Totals] = {}
    for line in path.read_text().splitlines():
        part = json.loads(line)
        key = (part["world"], part["dialect"])
        total = sums.setdefault(key, Totals(*key, part["first"], 0))
        total.first = min(total.first, part["first"])
        total.count += part["count"]
        total.failed.update(part["failed"])
        total.confirmed += part["confirmed"]
        total.virtual_s += part["virtual_s"]
        total.cpu_s += part["cpu_s"]
        total.faults.update(part["faults"])
    for total in sums.values():
        print(total.text())
        print("  " + " ".join(f"{kind}={n}" for kind, n in sorted(total.faults.items())))
    print(f"{sum(total.count for total in sums.values())} seeds in all")
    return 1 if any(total.failed for total in sums.values()) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and print its trace")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000, help="shared by the kinds chosen")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--world", choices=("pair", "group", "all"), default="all")
    parser.add_argument("--dialect", choices=(*DIALECTS, "all"), default="all")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--results", type=Path, help="add a line for each kind to this file")
    parser.add_argument("--totals", type=Path, help="add up the lines of this file, run nothing")
    options = parser.parse_args()
    if options.totals is not None:
        return print_totals(options.totals)
    kinds = [
        kind
        for kind in KINDS
        if options.world in (kind[0], "all") and options.dialect in (kind[1], "all")
    ]
    if not kinds:
        parser.error(f"the world {options.world} has no dialect {options.dialect}")
    if options.seed is not None:
        return replay(options.seed, *kinds[-1])
    has_failed = False
    for world, dialect in kinds:
        totals = Totals(world, dialect, options.first, -(-options.count // len(kinds)))
        run_many(totals, options.jobs, stops_at_failure=options.stop)
        print(totals.text(), flush=True)
        print("  " + " ".join(f"{kind}={n}" for kind, n in sorted(totals.faults.items())))
        has_failed |= bool(totals.failed)
        if options.results is not None:
            with options.results.open("a") as file:
                file.write(json.dumps({**vars(totals), "commit": commit()}) + "\n")
        if has_failed and options.stop:
            break
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
