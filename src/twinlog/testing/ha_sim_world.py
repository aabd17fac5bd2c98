"""What the seed of a simulation of replication draws: sizes, modes, and which faults happen."""

from __future__ import annotations

import random
from dataclasses import dataclass

from twinlog.runtime.broker_config import FlushDiskType


@dataclass
class World:
    """What the seed drew."""

    segment_size: int
    batch_size: int
    slave_count: int
    in_sync_replicas: int
    flush: FlushDiskType
    heartbeat_ms: int
    housekeeping_ms: int
    body_size_max: int
    faults: tuple[str, ...]
    fault_pause_s: float
    duration_s: float
    put_pause_s: float
    delay_s: tuple[float, float]
    tiny_pieces: float


FAULTS: tuple[str, ...] = (
    "kill_slave", "power_slave", "kill_master", "pause_slave", "pause_master", "partition",
    "partition_oneway", "reset", "disk_full_slave", "wall_clock", "late_slave", "stranger",
)  # fmt: skip


# Of Apache's master, which only classic slaves have.
CLASSIC_FAULTS: tuple[str, ...] = ("forget_filler",)


TWIN_FAULTS: tuple[str, ...] = ("flip_bits", "power_master", "slow_disk_slave")


# What someone who is no slave says first, and a little later.
STRANGERS: tuple[tuple[bytes, bytes], ...] = (
    (b"GET / HTTP/1.1\r\n", b"\r\n"),
    (b"\x7f" * 8, b"\x7f" * 8),
    (b"\xff" * 8, b""),
    (b"\0" * 3, b""),
    (b"\0" * 7 + b"\x01", b""),
    (b"\0" * 7 + b"\x01", b"\0" + b"\x7f" * 7),
)


def draw_world(rng: random.Random, without: tuple[str, ...] = ()) -> World:
    """Every run is another world; one in four has no faults."""
    slave_count = rng.choice((1, 1, 1, 2, 2, 3))
    faults: tuple[str, ...] = ()
    if rng.random() > 0.25:
        faults = tuple(fault for fault in FAULTS if rng.random() < 0.5)
        faults = tuple(fault for fault in faults if fault not in without)
    heartbeat_ms = rng.choice((500, 2000, 5000))
    return World(
        segment_size=rng.choice((4096, 8192, 16_384, 65_536)),
        batch_size=rng.choice((7, 64, 100, 1000, 4096, 32_768)),
        slave_count=slave_count,
        in_sync_replicas=rng.randint(2, 1 + slave_count),
        flush=rng.choice((FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH)),
        heartbeat_ms=heartbeat_ms,
        housekeeping_ms=4 * heartbeat_ms,
        body_size_max=rng.choice((20, 300, 2000)),
        faults=faults,
        fault_pause_s=rng.choice((0.3, 1.0, 3.0)),
        duration_s=rng.choice((3.0, 8.0)),
        put_pause_s=rng.choice((0.01, 0.03, 0.1)),
        delay_s=rng.choice(((0.0, 0.0001), (0.0001, 0.002), (0.001, 0.05))),
        tiny_pieces=rng.choice((0.0, 0.05, 0.3)),
    )


def add_classic_faults(world: World, seed: int, without: tuple[str, ...]) -> None:
    """From a source of their own, so that the other draws stay what they are; to one world in four,
    as the slaves of a master that goes back are not checked in every moment."""
    rng = random.Random(f"classic {seed}")
    if world.faults and rng.random() < 0.25:
        world.faults += tuple(fault for fault in CLASSIC_FAULTS if fault not in without)


def add_twin_faults(world: World, seed: int, without: tuple[str, ...]) -> None:
    """From a source of their own, too."""
    rng = random.Random(f"twin {seed}")
    faults = [fault for fault in TWIN_FAULTS if rng.random() < 0.5 and fault not in without]
    if world.flush is not FlushDiskType.SYNC_FLUSH and "power_master" in faults:
        faults.remove("power_master")  # What was answered may be gone then: nothing to check.
    world.faults += tuple(faults)
