"""Chaos of the pipeline as a whole: each round kills a part at a seeded point and counts all rows.

    make spark-chaos ROUNDS=50 SEED=7 ONLY=spark-masters

The driver, its JVM alone, an executor, a worker's machine, one broker, both, the name server or the
object store (by tools/object_store.sh) is killed while a process stands at the point, or at
any moment. Every row of the log must be in the Delta table and in the copy of the topic, once and
in order. With the engine `small` the same parts of the pipeline run without the JVM, so that many
rounds fit into minutes; with `spark` they run on a standalone cluster. The brokers are two masters,
or a group that elects its master and is told to change it (`ONLY=small-group`). Each run adds a
line with its totals to the file that RESULTS names, a failed one too; tools/spark_chaos.jsonl has
the runs so far.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chaos_world import World, running_world

from built_from import commit

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(4 * 3600)]
ROUNDS = int(os.environ.get("TWINLOG_SPARK_ROUNDS", "14"))
SEED = int(os.environ.get("TWINLOG_SPARK_SEED", "1"))
SECONDS = float(os.environ.get("TWINLOG_SPARK_SECONDS", "inf"))  # no round begins later
RESULTS = os.environ.get("TWINLOG_SPARK_RESULTS", "")
VICTIMS = {
    "masters": ("driver", "executor", "host", "brokers", "namesrv", "objects", "jvm", "master"),
    "group": (
        "switch", "master", "driver", "switch", "executor", "master", "brokers", "namesrv",
        "host", "objects",
    ),
}  # fmt: skip
POINTS = (
    "any moment", "latest", "planned", "staged", "before-rename", "published", "rows-sending",
    "rows-sent",
)  # fmt: skip
ROWS_MAX = 120


def victims(numbers: Random, kinds: tuple[str, ...]) -> Iterator[str]:
    """So many as there are rounds; each kind comes once before one comes again."""
    for first in range(0, ROUNDS, len(kinds)):
        yield from numbers.sample(kinds, len(kinds))[: ROUNDS - first]


def play(world: World, victim: str) -> dict[str, Any]:
    """One round."""
    numbers, begin, starts = world.numbers, time.monotonic(), world.driver.starts
    point = numbers.choice(POINTS)
    if point != "any moment":
        world.stop_at(point)
    world.send(numbers.randint(20, ROWS_MAX))
    is_stopped = point != "any moment" and world.is_stopped()
    if not is_stopped:
        time.sleep(numbers.uniform(0, 3))
    world.kill(victim)
    if numbers.random() < 0.5:  # what waits goes on beside what takes its place, or long after
        world.go_on()
    world.send(numbers.randint(1, ROWS_MAX // 4))
    world.go_on()
    rows = world.check()
    return {
        "victim": victim, "point": point if is_stopped else "any moment", "rows": rows,
        "driver_starts": world.driver.starts - starts, "seconds": round(time.monotonic() - begin),
    }  # fmt: skip


@dataclass
class Totals:
    """What one run was and did."""

    engine: str
    brokers: str
    seed: int
    rounds: int = 0
    rows: int = 0  # in the log at the end, each of them in the table and in the copy
    driver_starts: int = 0
    seconds: float = 0.0
    victims: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    failed: str = ""

    def add(self, done: dict[str, Any]) -> None:
        self.rounds += 1
        self.rows = done["rows"]
        self.driver_starts += done["driver_starts"]
        self.victims[done["victim"]] += 1
        self.points[done["point"]] += 1


@contextmanager
def recorded(totals: Totals) -> Iterator[None]:
    """Add the totals to the file of results, whatever becomes of the run."""
    begin, built = time.monotonic(), commit()
    try:
        yield
    except BaseException as error:
        totals.failed = f"round {totals.rounds}: {str(error).partition(chr(10))[0]}"
        raise
    finally:
        totals.seconds = round(time.monotonic() - begin)
        if RESULTS:
            with open(RESULTS, "a", encoding="utf-8") as file:
                file.write(json.dumps({**vars(totals), "commit": built}) + "\n")


@pytest.mark.parametrize("brokers", ["masters", "group"])
@pytest.mark.parametrize("engine", ["small", "spark"])
def test_every_row_is_there_once_whatever_is_killed(
    tmp_path: Path, engine: str, brokers: str
) -> None:
    is_spark, is_group = engine == "spark", brokers == "group"
    begin, totals = time.monotonic(), Totals(engine, brokers, SEED)
    with (
        recorded(totals),
        running_world(tmp_path, SEED, is_spark=is_spark, is_group=is_group) as world,
    ):
        world.send(50)
        world.check()
        for victim in victims(world.numbers, VICTIMS[brokers]):
            if time.monotonic() - begin > SECONDS:
                break
            where = {"engine": engine, "brokers": brokers, "seed": SEED, "round": totals.rounds}
            done = play(world, victim)
            totals.add(done)
            print(json.dumps({**where, **done}), flush=True)
