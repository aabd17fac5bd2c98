"""Hand-made faults in the code (`mutant_list.py`), one change each: a simulation must find all.

Each mutant is applied to a copy of the source; seeds of its world run on it until one fails that
holds on the code as it is. A mutant that survives all seeds means that the simulation is not good
enough. Which seed noticed which mutant is kept in `noticed.json`: `--recorded` runs only those, and
a search adds what it finds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock

from anchors import with_fault
from mutant_list import GROUP_MUTANTS, PAIR_MUTANTS, Mutant
from swarm_mutants import SWARM_MUTANTS

ROOT = Path(__file__).resolve().parent.parent
_WRITING = Lock()
NOTICED = Path(__file__).with_name("noticed.json")

_RUN = """
import sys
from twinlog.testing.ha_sim import SimFailure, run_seed
from twinlog.testing.group.sim import GroupFailure, run_group_seed
from twinlog.testing.swarm.sim import SwarmFailure, run_swarm_seed
first, count, world, dialect, *without = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
run = run_group_seed if world == "group" else run_seed
if world == "swarm":
    run = lambda seed, dialect, without: run_swarm_seed(seed, without=without)
for seed in range(first, first + count):
    try:
        run(seed, dialect=dialect, without=tuple(without))
    except (SimFailure, GroupFailure, SwarmFailure) as failure:
        print(seed, failure)
        sys.exit(1)
"""


def mutate(mutant: Mutant, source: Path, directory: Path) -> Path:
    """A copy of the source with the mutant in it."""
    shutil.copytree(source / "twinlog", directory / "twinlog")
    for edit in mutant.edits:
        path = directory / "twinlog" / edit.file
        path.write_text(with_fault(path.read_text(), edit.function, edit.old, edit.new))
    return directory


def run_seeds(
    mutant: Mutant, source: Path, first: int, count: int, without: list[str]
) -> tuple[int | None, str]:
    """(the first seed that fails, what was said)"""
    # Pure Python: a compiled part would stand in for the code that was changed.
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            _RUN,
            str(first),
            str(count),
            mutant.world,
            mutant.dialect,
            *without,
        ],
        env={**os.environ, "PYTHONPATH": str(source), "TWINLOG_PURE": "1"},
        capture_output=True,
        text=True,
    )
    if result.returncode == 0:
        return None, ""
    words = (result.stdout or result.stderr).strip().splitlines()[-1]
    seed, _, text = words.partition(" ")
    if not seed.isdigit():
        raise SystemExit(f"mutant {mutant.name!r} does not run: {words}")
    return int(seed), text


def run_mutant(
    mutant: Mutant, source: Path, seeds: range, without: list[str]
) -> tuple[int | None, str]:
    """(seed that caught it or None, what was said)"""
    with tempfile.TemporaryDirectory() as name:
        mutated = mutate(mutant, source, Path(name))
        first = seeds.start
        while first < seeds.stop:
            seed, text = run_seeds(mutant, mutated, first, seeds.stop - first, without)
            if seed is None:
                break
            if run_seeds(mutant, source, seed, 1, without)[0] is None:
                return seed, text
            first = seed + 1  # It fails without the mutant, too: it says nothing.
    return None, ""


def report(mutant: Mutant, source: Path, seeds: range, without: list[str]) -> bool:
    """Run one, say what became of it; whether it was caught."""
    started = time.monotonic()
    seed, text = run_mutant(mutant, source, seeds, without)
    if seed is not None:
        note(mutant, seed)
    kind = f"{mutant.world} {mutant.dialect}"
    if seed is None:
        taken_s = time.monotonic() - started
        print(f"SURVIVED {len(seeds)} seeds  {kind}: {mutant.name}  ({taken_s:.0f} s)", flush=True)
    else:
        print(f"caught by seed {seed:4d}  {kind}: {mutant.name}: {text[:110]}", flush=True)
    return seed is not None


def noticed() -> dict[str, int]:
    """The seed that was seen to notice each mutant."""
    found: dict[str, int] = json.loads(NOTICED.read_text())
    return found


def note(mutant: Mutant, seed: int) -> None:
    with _WRITING:
        NOTICED.write_text(json.dumps({**noticed(), mutant.name: seed}, indent=2) + "\n")


def run_recorded(mutants: list[Mutant], run: Callable[..., bool]) -> Iterator[bool]:
    """Each mutant on its own seed; one that has none was not noticed."""
    seeds = noticed()
    for mutant in mutants:
        first = seeds.get(mutant.name)
        if first is None:
            print(f"NOT NOTICED  {mutant.name}", flush=True)
            yield False
        else:
            yield run(mutant, seeds=range(first, first + 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--world", choices=("pair", "group", "swarm", "all"), default="all")
    parser.add_argument("--name", default="", help="only those whose name contains this")
    parser.add_argument("--recorded", action="store_true", help="only the recorded seeds")
    parser.add_argument("--without", nargs="*", default=[], help="faults to leave out")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in PAIR_MUTANTS + GROUP_MUTANTS + SWARM_MUTANTS
        if options.world in ("all", mutant.world) and options.name in mutant.name
    ]
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        source = Path(name)  # A copy: the tree may change while this runs.
        shutil.copytree(ROOT / "src" / "twinlog", source / "twinlog")
        seeds = range(options.first, options.first + options.seeds)
        run = partial(report, source=source, without=options.without)
        if options.recorded:
            caught = sum(run_recorded(mutants, run))
        else:
            caught = sum(pool.map(partial(run, seeds=seeds), mutants))
    print(f"{len(mutants)} mutants, {caught} caught")
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
