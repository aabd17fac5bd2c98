"""A node whose segments are damaged all over is killed while it repairs them, or its peer stops.

Nothing damaged is served, nothing stays half written: after the kill a scrub makes the log what it
was, byte by byte.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.decay import CONFIG, SEGMENT, fill, scrub_status, served, wait_for_replicas
from support.pair_story import Pair, running_pair
from support.processes import wait_until
from support.served import scrub
from support.twinlog_servers import TwinlogBroker

SEED = int(os.environ.get("SEED", "1"))
pytestmark = pytest.mark.timeout(300)


def sealed(broker: TwinlogBroker) -> list[Path]:
    """Without the segment that is being filled, and the one that is prepared."""
    files = sorted((broker.store / "commitlog").iterdir())
    end = int(scrub_status(broker)["end"])
    return [path for path in files if int(path.name) + SEGMENT <= end]


def damage_all(files: list[Path], rng: random.Random) -> None:
    """Zeros, noise and single bits, in every segment."""
    for path in files:
        with path.open("r+b", buffering=0) as file:
            for _ in range(rng.randrange(1, 20)):
                file.seek(rng.randrange(SEGMENT - 5000))
                file.write(rng.choice((bytes(4096), rng.randbytes(4096), b"\x01")))


def kept_aside(broker: TwinlogBroker) -> int:
    return len(list((broker.store / "twinlog").glob("damaged-0*")))


def begin_repair(broker: TwinlogBroker, count: int) -> None:
    """Until `count` more ranges are kept aside: each is then about to be written."""
    before = kept_aside(broker)
    scrub_status(broker, begin=True)
    wait_until(lambda: kept_aside(broker) >= before + count, "it repairs")


def judge(broker: TwinlogBroker, bodies: set[bytes]) -> None:
    assert set(served(broker)) <= bodies, "a damaged body was served"


@pytest.mark.parametrize("who", ["master", "slave"])
def test_a_kill_leaves_nothing_half_written(tmp_path: Path, who: str) -> None:
    rng = random.Random(f"{SEED} {who}")
    with running_pair(tmp_path, **CONFIG) as pair:
        bodies = fill(pair, rng, 3000)
        broker: TwinlogBroker = getattr(pair, who)
        files = sealed(broker)
        assert len(files) > 3
        scrub(broker)
        right = {path: path.read_bytes() for path in files}
        for number in range(4):
            damage_all(files, rng)
            begin_repair(broker, rng.randrange(1, len(files)))
            time.sleep(rng.random() * 0.005)  # Anywhere in the write that follows.
            broker.kill()
            broker = pair.restart(broker)
            setattr(pair, who, broker)
            judge(broker, bodies)
            pair.wait_in_sync()
            wait_for_replicas(broker)
            heal(broker)
            assert [path.name for path in files if path.read_bytes() != right[path]] == [], number
            assert set(served(broker)) == bodies


def heal(broker: TwinlogBroker) -> None:
    wait_until(lambda: not scrub(broker)["places"], "nothing is damaged any more")


def test_a_peer_that_stands_still_delays_and_spoils_nothing(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with running_pair(tmp_path, **CONFIG) as pair:
        bodies = fill(pair, rng, 3000)
        files = sealed(pair.master)
        scrub(pair.master)
        right = {path: path.read_bytes() for path in files}
        damage_all(files, rng)
        begin_repair(pair.master, 1)
        with standing_still(pair):
            judge(pair.master, bodies)
            status = scrub(pair.master)
        assert status["places"] or all(path.read_bytes() == right[path] for path in files)
        pair.wait_in_sync()
        wait_for_replicas(pair.master)
        heal(pair.master)
        assert [path.name for path in files if path.read_bytes() != right[path]] == []
        assert set(served(pair.master)) == bodies


@contextlib.contextmanager
def standing_still(pair: Pair) -> Iterator[None]:
    pair.slave.suspend()
    try:
        yield
    finally:
        pair.slave.resume()
