"""Many seeds of the replication simulation; `--seed N` replays one with its trace."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from twinlog.testing.ha_sim import SimFailure, run_seed


def run_one(seed: int, dialect: str) -> tuple[int, str, dict[str, int], int, float, str]:
    """(seed, failure, faults, messages confirmed, virtual seconds, digest)"""
    try:
        simulation = run_seed(seed, dialect=dialect)
    except SimFailure as failure:
        return seed, str(failure), {}, 0, 0.0, ""
    return (
        seed,
        "",
        simulation.fault_counts,
        simulation.history.count("ok"),
        simulation.loop.now_s,
        simulation.digest,
    )


def replay(seed: int, dialect: str) -> int:
    try:
        simulation = run_seed(seed, keeps_trace=True, dialect=dialect)
    except SimFailure as failure:
        simulation = failure.simulation  # type: ignore[attr-defined]
        print("\n".join(simulation.lines))
        print(failure)
        return 1
    print("\n".join(simulation.lines))
    print(f"seed {seed} holds, digest {simulation.digest[:16]}")
    return 0


def run_many(first: int, count: int, jobs: int, *, dialect: str, stops_at_failure: bool) -> int:
    started = time.monotonic()
    faults: Counter[str] = Counter()
    confirmed, virtual_s, failures = 0, 0.0, []
    with ProcessPoolExecutor(jobs) as pool:
        for seed, failure, kinds, ok, now_s, _ in pool.map(
            partial(run_one, dialect=dialect), range(first, first + count), chunksize=4
        ):
            if failure:
                failures.append(seed)
                print(f"{failure}\n  replay: make sim SEED={seed} DIALECT={dialect}", flush=True)
                if stops_at_failure:
                    pool.shutdown(cancel_futures=True)
                    break
            faults.update(kinds)
            confirmed += ok
            virtual_s += now_s
    taken_s = time.monotonic() - started
    print(
        f"{count} seeds from {first}, {len(failures)} failed, {confirmed} messages confirmed,"
        f" {sum(faults.values())} faults, {virtual_s / 3600:.1f} h of cluster time"
        f" in {taken_s:.0f} s"
    )
    print("  " + " ".join(f"{kind}={number}" for kind, number in sorted(faults.items())))
    return 1 if failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and print its trace")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--dialect", choices=("classic", "twin"), default="classic")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    options = parser.parse_args()
    if options.seed is not None:
        return replay(options.seed, options.dialect)
    return run_many(
        options.first,
        options.count,
        options.jobs,
        dialect=options.dialect,
        stops_at_failure=options.stop,
    )


if __name__ == "__main__":
    sys.exit(main())
