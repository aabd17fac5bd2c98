"""What the seed of a swarm draws: sizes, promises, clock rates, and which faults happen."""

from __future__ import annotations

import random
from dataclasses import dataclass

from twinlog.runtime.broker_config import BrokerRole, FlushDiskType

FAULTS = (
    "kill",
    "kill_master",
    "kill_master",
    "power",
    "power_master",
    "power_joining",
    "pause",
    "pause_master",
    "cut_pair",
    "cut_off",
    "cut_master",
    "cut_oneway",
    "cut_controller",
    "split",
    "reset",
    "reset_some",
    "loss",
    "reorder",
    "slow_disk",
    "full_disk",
    "lose_disk",
    "expire",
    "kill_controller",
    "kill_controller_and_master",
    "power_controller",
    "pause_controller",
    "pause_etcd",
    "kill_etcd",
    "cut_etcd",
    "old_backup",
    "kill_all",
    "switch",
    "switch_twice",
    "restart_clean",
    "wall_clock",
    "kill_namesrv",
    "restart_consumer",
    "lease_left",
    "last_member",
    "power_then_kill",
    "late_proposal",
    "restart_alone",
    "elect_new_disk",
)
PROFILES = {
    "any": FAULTS,
    "power": (
        "power",
        "power_master",
        "power_master",
        "power_joining",
        "power_joining",
        "kill_master",
        "cut_pair",
        "slow_disk",
    ),
    "restarts": (
        "kill",
        "kill_master",
        "kill_master",
        "switch",
        "switch",
        "switch_twice",
        "restart_clean",
        "restart_consumer",
        "restart_consumer",
    ),
    "links": (
        "split",
        "cut_pair",
        "cut_off",
        "cut_master",
        "cut_oneway",
        "pause",
        "reset",
        "kill_master",
    ),
    "backup": ("old_backup", "old_backup", "switch", "kill_master", "restart_clean", "cut_pair"),
    "controllers": (
        "kill_controller",
        "kill_controller_and_master",
        "pause_controller",
        "cut_controller",
        "cut_etcd",
        "cut_etcd",
        "split",
        "pause_etcd",
        "kill_etcd",
        "kill_master",
        "cut_pair",
        "loss",
    ),
    "lease": (
        "pause_master",
        "cut_master",
        "cut_oneway",
        "split",
        "switch",
        "kill_controller",
        "pause_controller",
        "cut_controller",
        "loss",
        "reset",
    ),
    "corners": (
        "lease_left",
        "last_member",
        "power_then_kill",
        "late_proposal",
        "restart_alone",
        "elect_new_disk",
    ),
}
"""Corners need things in a row that are rare together; half of the seeds draw from all."""
ENDINGS = set(PROFILES["restarts"]) - {"switch_twice"}
"""Processes end, nothing else."""
WIDER_FAULTS = ("wrong_controller", "late_connection", "late_drained")
WIDER_FROM = 31_000_000
"""Seeds below stay the runs that they were: many are recorded, with what they have found."""
RATE_SPREAD = 0.04
"""Two clocks may differ by 8 %: rules assume less than 5 %, the defaults leave room for more."""


@dataclass
class SwarmWorld:
    """What the seed drew."""

    replicas: int
    controllers: int
    namesrvs: int
    role: BrokerRole
    flush: FlushDiskType
    segment_size: int
    batch_size: int
    body_size_max: int
    queue_count: int
    faults: tuple[str, ...]
    fault_pause_s: float
    duration_s: float
    put_pause_s: float
    delay_s: tuple[float, float]
    tiny_pieces: float
    rates: tuple[float, ...]
    unknown_rate: float
    """Of the controller's writes, so many have an outcome that is not known."""
    least: int = 1
    """minInSyncReplicas."""
    has_stray: bool = False
    """Whether there is another controller, of no group, and nobody has set `totalReplicas`."""

    @property
    def is_orderly(self) -> bool:
        """Whether processes end, and nothing else happens."""
        return not self.unknown_rate and set(self.faults) <= ENDINGS

    @property
    def is_sync(self) -> bool:
        return self.role is BrokerRole.SYNC_MASTER

    @property
    def is_flushed(self) -> bool:
        return self.flush is FlushDiskType.SYNC_FLUSH


def draw_world(seed: int, without: tuple[str, ...] = ()) -> SwarmWorld:
    """Every seed is another world; one in ten has no faults."""
    rng = random.Random(f"swarm {seed}")
    flush = rng.choice((FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH))
    profile = rng.choice(("any", "any", "any", "corners", *PROFILES))
    share = {"any": 0.35, "corners": 0.4}.get(profile, 0.7)
    faults = [fault for fault in PROFILES[profile] if rng.random() < share and fault not in without]
    if rng.random() < 0.1:
        faults = []
    roles = (BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER)
    world = SwarmWorld(
        replicas=rng.choice((2, 2, 3, 3, 4)),
        controllers=_controllers(profile, rng),
        namesrvs=rng.choice((1, 1, 2)),
        role=BrokerRole.ASYNC_MASTER if profile == "lease" else rng.choice(roles),
        flush=flush,
        segment_size=rng.choice((8192, 16_384, 65_536)),
        batch_size=rng.choice((1000, 4096, 32_768)),
        body_size_max=rng.choice((20, 100, 600)),
        queue_count=rng.choice((1, 2)),
        faults=tuple(faults),
        fault_pause_s=rng.choice((0.7, 1.4, 2.8)),
        duration_s=rng.choice((8.0, 14.0)) if faults else 5.0,
        put_pause_s=rng.choice((0.1, 0.2, 0.4)),
        delay_s=rng.choice(((0.0, 0.0001), (0.0001, 0.002), (0.001, 0.02))),
        tiny_pieces=rng.choice((0.0, 0.02)),
        rates=tuple(1 + rng.uniform(-RATE_SPREAD, RATE_SPREAD) for _ in range(8)),
        unknown_rate=rng.choice((0.0, 0.0, 0.1)),
    )
    if seed >= WIDER_FROM:
        _widen(world, seed, without)
    return world


def _widen(world: SwarmWorld, seed: int, without: tuple[str, ...]) -> None:
    """What later worlds draw besides, each with numbers of its own: one more changes no other."""
    world.least = random.Random(f"least {seed}").choice((1, 1, 2))
    if not world.faults:
        return
    drawn = [name for name in WIDER_FAULTS if random.Random(f"{name} {seed}").random() < 0.3]
    if "old_backup" in world.faults and "wrong_controller" in drawn:
        drawn.remove("wrong_controller")  # An operator adopts what both of them have frozen.
    drawn = [name for name in drawn if name not in without]
    world.has_stray = "wrong_controller" in drawn
    world.faults += (*drawn, *drawn)  # A choice among many seldom takes one.


def _controllers(profile: str, rng: random.Random) -> int:
    """One has its own file, several share an etcd."""
    choices = {"controllers": (2, 3), "backup": (1,)}
    return rng.choice(choices.get(profile, (1, 1, 2, 3)))
