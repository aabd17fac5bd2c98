"""Many seeds of the swarm: controlled groups of whole brokers under faults on virtual time.

`--seed N` replays one with its trace. Every run adds one line to a file of results, goes on where
the last one ended unless told otherwise, and prints the totals of all runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from built_from import commit
from twinlog.testing.swarm.sim import Swarm, SwarmFailure, run_swarm_seed
from twinlog.testing.swarm.switches import Switches

RESULTS = Path(__file__).with_name("swarm.jsonl")
SUMS = ("seeds", "sent", "acknowledged", "early", "elections", "incomplete", "kills")
MAXIMA = ("longest_without_master_s", "longest_to_serve_s")


def run_one(seed: int) -> dict[str, Any]:
    started_s = time.process_time()
    failure = ""
    try:
        swarm: Swarm = run_swarm_seed(seed)
    except SwarmFailure as error:
        swarm, failure = error.simulation, str(error)
    checks, faults = swarm.checks, swarm.fault_counts
    return {
        "failure": failure,
        "seeds": 1,
        "sent": len(swarm.ledger.messages),
        "acknowledged": swarm.ledger.count("ok"),
        "early": checks.early_count,
        "elections": checks.election_count,
        "incomplete": checks.incomplete_count,
        "kills": swarm.kill_count,
        "longest_without_master_s": checks.longest_without_s,
        "longest_to_serve_s": swarm.served_after_s,
        "virtual_s": swarm.loop.now_s,
        "cpu_s": time.process_time() - started_s,
        "faults": dict(faults),
    }


def add(total: dict[str, Any], part: dict[str, Any]) -> None:
    for key in (*SUMS, "virtual_s", "cpu_s"):
        total[key] = total.get(key, 0) + part[key]
    for key in MAXIMA:
        total[key] = max(total.get(key, 0.0), part[key])
    faults = Counter(total.get("faults", {}))
    faults.update(part["faults"])
    total["faults"] = dict(faults)


def text(total: dict[str, Any], failed: int) -> str:
    sums = ", ".join(f"{total[key]} {key}" for key in SUMS)
    maxima = ", ".join(f"{key} {total[key]:.1f}" for key in MAXIMA)
    return (
        f"{sums}, {failed} failed; {maxima}; {total['virtual_s'] / 3600:.1f} h of cluster time,"
        f" {total['cpu_s'] / 3600:.2f} h of CPU\n"
        + " ".join(f"{kind}={n}" for kind, n in sorted(total["faults"].items()))
    )


def replay(seed: int) -> int:
    try:
        swarm, failure = run_swarm_seed(seed, keeps_trace=True), ""
    except SwarmFailure as error:
        swarm, failure = error.simulation, str(error)
    print("\n".join(swarm.lines))
    print(failure or f"seed {seed} holds, digest {swarm.digest[:16]}")
    return 1 if failure else 0


def run_switches(seed: int, count: int) -> int:
    """So many planned switches in one simulated hour."""
    run = Switches(seed, count=count, pause_s=3600 / count - 2)
    run.run()
    print(
        f"{run.done} switches in {run.loop.now_s:.0f} s, {run.ledger.count('ok')} of"
        f" {len(run.ledger.messages)} sends acknowledged, longest time without a master"
        f" {run.checks.longest_without_s:.1f} s; held first {run.held[4]}, last {run.held[-1]}"
    )
    print(run.leak() or "no leak")
    return 1 if run.leak() else 0


def _collect_between_seeds() -> None:
    """Of a worker: what a seed leaves behind is looked at once, when all of it is garbage."""
    gc.freeze()
    gc.disable()


def run_many(seeds: range, jobs: int) -> dict[str, Any]:
    total: dict[str, Any] = {"first": seeds.start, "commit": commit(), "failed": {}}
    with ProcessPoolExecutor(jobs, initializer=_collect_between_seeds) as pool:
        for seed, result in zip(seeds, pool.map(run_one, seeds, chunksize=4), strict=True):
            add(total, result)
            if result["failure"]:
                total["failed"][seed] = result["failure"]
                print(f"{result['failure']}\n  replay: make swarm SEED={seed}", flush=True)
    return total


def past_runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and print its trace")
    parser.add_argument("--first", type=int, help="where to begin; else after the last run")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--switches", type=int, help="so many in one simulated hour, nothing else")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.switches:
        return run_switches(options.seed or 0, options.switches)
    if options.seed is not None:
        return replay(options.seed)
    runs = past_runs(options.results)
    first = options.first
    if first is None:
        first = max((run["first"] + run["seeds"] for run in runs), default=0)
    part = run_many(range(first, first + options.count), options.jobs)
    print(f"seeds from {first}: {text(part, len(part['failed']))}")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a") as file:
        file.write(json.dumps(part) + "\n")
    total: dict[str, Any] = {}
    for run in (*runs, part):
        add(total, run)
    print(f"all runs: {text(total, sum(len(run['failed']) for run in (*runs, part)))}")
    return 1 if part["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
