"""`twinlog store verify --online` of a broker that works: it heals, or names what it cannot."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.command_line import Result, process
from support.damage import Flip, flip_bit
from support.decay import (
    CONFIG,
    SEGMENT,
    Tally,
    fill,
    full_segments,
    under_traffic,
    wait_for_replicas,
)
from support.pair_story import Pair, running_pair

pytestmark = pytest.mark.timeout(300)


def verify(pair: Pair, place: str) -> Result:
    return process("store", "verify", "--online", place, "-n", pair.name_server)


def test_a_broker_under_load_is_healed_or_names_the_place(tmp_path: Path) -> None:
    rng = random.Random(1)
    with running_pair(tmp_path, **CONFIG) as pair:
        bodies = fill(pair, rng, 1500)
        wait_for_replicas(pair.master, pair.slave)
        segments = full_segments(pair, rng)

        def flip() -> Flip:
            path = pair.master.store / "commitlog" / f"{rng.choice(segments):020d}"
            return flip_bit(path, rng.randrange(SEGMENT), rng)

        tally = Tally("load", 1)
        with under_traffic(bodies, tally, pair.master, pair.slave):
            damaged = flip()
            with ThreadPoolExecutor() as several:
                places = ("broker-a", "broker-a:0", pair.master.address)
                for result in several.map(lambda place: verify(pair, place), places):
                    result.ok()
            assert damaged.is_healed
            process("store", "verify", "--deep", pair.master.store).ok()
        pair.slave.stop()
        with under_traffic(bodies, tally, pair.master):
            damaged = flip()
            named = verify(pair, "broker-a")
            # By the message that a reader has met, and by the range that the scrub has compared.
            assert (named.code, "places are damaged" in named.out) == (1, True), named
            assert not damaged.is_healed
        assert verify(pair, "broker-b").code == 3
        assert verify(pair, "broker-a:7").code == 3
        assert verify(pair, pair.slave.address).code == 4
        # An address needs no name server.
        pair.slave = pair.restart(pair.slave)
        wait_for_replicas(pair.master, pair.slave)
        pair.namesrv.stop()
        verify(pair, pair.slave.address).ok()
        assert verify(pair, pair.namesrv.address).code == 4
        assert verify(pair, "broker-a").code == 4
