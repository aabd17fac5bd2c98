"""What the seed of a group's simulation draws: sizes, modes, addresses, and which faults happen."""

from __future__ import annotations

import random
from dataclasses import dataclass

from twinlog.runtime.broker_config import BrokerRole, FlushDiskType

DIALECTS = ("classic", "twin", "mixed")
"""Mixed: nobody is told what the master speaks, so each slave has to find out."""

QUESTIONS = ("fine", "late", "failing", "wrong")

# At the same time as others, whatever happens.
FAULTS = (
    "kill_slave", "power_slave", "kill_master", "power_master", "pause_slave", "pause_master",
    "partition", "partition_oneway", "reset", "slow_disk_slave", "slow_disk_master",
    "disk_full_slave", "wall_clock", "restart_consumer",
)  # fmt: skip
# What an operator does, or has to undo: one at a time.
OPERATIONS = (
    "switch", "switch", "power_all", "replace_slave", "lose_queue", "wipe_master", "retention",
    "create_topics", "restart_clean",
)  # fmt: skip
# A classic slave cannot tell that it is ahead of its master (spec, section 6).
NOT_CLASSIC = ("power_master", "power_all", "wipe_master")
NEEDS_NAMESRV = ("create_topics",)
# Seeds below have the worlds in which the faults of tests/sim/group_seeds.txt were found. Others
# may last longer, switch back, and have consumers that start again with their master.
WIDE_FROM = 200
# These seeds, and some from CORNERS_FROM on, have one of the corners on purpose, and little else.
CORNER_SEEDS = range(400, 500)
CORNERS_FROM = 2_100_000
CORNERS = {
    "classic": ("kill_in_record", "retention_killed"),
    "twin": ("lose_twice", "retention_killed"),
    "mixed": ("kill_in_record", "retention_killed"),
}
# From here on some worlds begin apart: slaves never heard of the topic when their master is lost.
APART_FROM = 2000


@dataclass
class World:
    """What the seed drew."""

    dialect: str
    slave_count: int
    role: BrokerRole
    flush: FlushDiskType
    in_sync_replicas: int
    segment_size: int
    batch_size: int
    slave_timeout_ms: int
    flush_timeout_ms: int
    fall_behind_max: int
    body_size_max: int
    queue_count: int
    runs_max: int
    has_repeats: bool
    """Idempotent producers send some messages again that were answered well."""
    has_namesrv: bool
    has_secret: bool
    is_fixed: bool
    """haMasterAddress is configured."""
    question: str
    """What becomes of the question which dialect the master speaks: one of QUESTIONS."""
    classic_slave: int
    """The number of a node that is told to speak classic among those that find out; 0 for none."""
    reseed: str
    faults: tuple[str, ...]
    operations: tuple[str, ...]
    fault_pause_s: float
    duration_s: float
    put_pause_s: float
    delay_s: tuple[float, float]
    tiny_pieces: float
    restarts_consumers: bool = False
    """Consumers begin again when a master has returned: they know what it has saved."""
    begins_apart: bool = False
    """Slaves are cut off before the first message, and their master is lost soon after it."""

    @property
    def is_sync(self) -> bool:
        return self.role is BrokerRole.SYNC_MASTER

    @property
    def is_flushed(self) -> bool:
        return self.flush is FlushDiskType.SYNC_FLUSH

    @property
    def is_durable_ack(self) -> bool:
        """Whether SEND_OK means on the disks of slaves, too."""
        return self.is_flushed and self.dialect == "twin"


def draw_world(seed: int, dialect: str, without: tuple[str, ...] = ()) -> World:
    """Every run is another world; one in eight has no faults."""
    rng = random.Random(f"{dialect} {seed}")
    slave_count = rng.choice((1, 1, 2, 2))
    is_fixed = dialect == "mixed" or rng.random() < 0.3
    has_namesrv = not is_fixed or rng.random() < 0.5
    world = World(
        dialect=dialect,
        slave_count=slave_count,
        role=BrokerRole.ASYNC_MASTER if rng.random() < 0.15 else BrokerRole.SYNC_MASTER,
        flush=rng.choice((FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH)),
        in_sync_replicas=2 if rng.random() < 0.8 else 1 + slave_count,
        segment_size=rng.choice((4096, 8192, 16_384, 65_536)),
        batch_size=rng.choice((64, 1000, 4096, 32_768)),
        slave_timeout_ms=rng.choice((200, 600, 2000)),
        flush_timeout_ms=rng.choice((200, 1000, 5000)),
        fall_behind_max=rng.choice((600, 4096, 1 << 20)),
        body_size_max=rng.choice((20, 100, 600)),
        queue_count=rng.choice((1, 2)),
        runs_max=rng.choice((2, 8, 64)),
        has_repeats=rng.random() < 0.6 and "repeats" not in without,
        has_namesrv=has_namesrv,
        has_secret=rng.random() < {"classic": 0.0, "twin": 0.5, "mixed": 0.15}[dialect]
        and "secret" not in without,
        classic_slave=0,
        is_fixed=is_fixed,
        question=rng.choice(QUESTIONS) if dialect == "mixed" else "fine",
        reseed="all" if rng.random() < 0.4 else "tail",
        faults=(),
        operations=(),
        fault_pause_s=rng.choice((0.5, 1.0, 2.0)),
        duration_s=rng.choice((5.0, 8.0)),
        put_pause_s=rng.choice((0.1, 0.2, 0.4)),
        delay_s=rng.choice(((0.0, 0.0001), (0.0001, 0.002), (0.001, 0.02))),
        tiny_pieces=rng.choice((0.0, 0.02, 0.1)),
    )
    if dialect == "mixed" and not world.has_secret and rng.random() < 0.2:
        world.classic_slave = 1 + rng.randrange(1 + slave_count)
    if rng.random() > 0.125:
        _draw_faults(world, rng, without)
        if seed >= WIDE_FROM:
            _widen(world, random.Random(f"wide {dialect} {seed}"), without)
    if seed >= APART_FROM and dialect != "mixed" and "apart" not in without:
        world.begins_apart = random.Random(f"apart {dialect} {seed}").random() < 0.25
    if seed in CORNER_SEEDS or seed >= CORNERS_FROM:
        rng = random.Random(f"corner {dialect} {seed}")
        if seed in CORNER_SEEDS or rng.random() < 0.2:
            _turn_into_corner(world, rng, without)
    return world


def _turn_into_corner(world: World, rng: random.Random, without: tuple[str, ...]) -> None:
    corner = rng.choice(CORNERS[world.dialect])
    if corner in without:
        return
    world.operations = (corner,)
    world.faults = rng.choice(((), (), world.faults))
    world.begins_apart = False
    world.duration_s = 12.0
    world.put_pause_s = 0.1
    if corner == "lose_twice":
        world.flush = FlushDiskType.ASYNC_FLUSH
    elif corner == "retention_killed":
        world.segment_size, world.body_size_max = rng.choice((4096, 8192)), 600
    else:
        world.batch_size, world.delay_s, world.tiny_pieces = 64, (0.001, 0.004), 0.5


def _widen(world: World, rng: random.Random, without: tuple[str, ...]) -> None:
    world.restarts_consumers = rng.random() < 0.5
    if rng.random() < 0.4 and "switch_back" not in without:
        world.operations += ("switch_back",)
        world.duration_s += rng.choice((4.0, 8.0, 12.0))


def _draw_faults(world: World, rng: random.Random, without: tuple[str, ...]) -> None:
    excluded = set(without)
    if world.dialect == "classic" or world.classic_slave:
        excluded.update(NOT_CLASSIC)
    if not world.has_namesrv:
        excluded.update(NEEDS_NAMESRV)
    if not world.is_flushed or not world.is_sync:
        excluded.add("power_all")
    if not world.is_sync:
        excluded.add("wipe_master")
    faults = [fault for fault in FAULTS if rng.random() < 0.35]
    operations = [operation for operation in OPERATIONS if rng.random() < 0.35]
    world.faults = tuple(fault for fault in faults if fault not in excluded)
    world.operations = tuple(o for o in operations if o not in excluded)
