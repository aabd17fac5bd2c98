"""Moving a group of brokers between Apache RocketMQ and twinlog: who takes over from whom.

A replica of the other make joins the group as a slave and gets log and tables by replication, at
the same offsets; then it becomes the master, and the name servers lead clients to it. `judge` says
what speaks against it, a pure function of what the brokers answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from twinlog.admin.brokers import broker_config, broker_runtime
from twinlog.admin.client import Admin
from twinlog.remoting.bodies.route import MASTER_ID, BrokerData
from twinlog.runtime.numbers import number_of

# What a replica must have as its master has it: sizes of files, and what a message means.
FENCE_KEY = "startAcceptSendRequestTimeStamp"
FENCED = "4102444800000"  # The year 2100: a fenced master that is started again takes no sends.
_EQUAL_KEYS = ("mappedFileSizeCommitLog", "messageDelayLevel")
_SEGMENT_SIZE = 1 << 30  # RocketMQ's default.
# What is carried into the file of a new replica, when the master says it.
_CARRIED_KEYS = (
    "brokerClusterName", "brokerName", "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue",
    "messageDelayLevel", "maxMessageSize", "fileReservedTime", "deleteWhen", "flushDiskType",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "defaultTopicQueueNums",
    "enablePropertyFilter", "slaveReadEnable", "transactionTimeOut", "transactionCheckMax",
    "transactionCheckInterval", "traceTopicEnable", "msgTraceTopicName", "rejectTransactionMessage",
    "maxIndexNum", "maxHashSlotNum", "messageIndexEnable", "aclEnable", "haListenPort",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One broker of a group, as it answered."""

    address: str
    broker_id: int
    is_twinlog: bool
    log_min: int
    log_end: int
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def make(self) -> str:
        return "twinlog" if self.is_twinlog else "Apache"

    @property
    def name(self) -> str:
        return f"{self.make} {self.address} (brokerId {self.broker_id})"

    @property
    def segment_size(self) -> int:
        return number_of(self.config.get("mappedFileSizeCommitLog", 0)) or _SEGMENT_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A group, its master, and the replica that takes over (None: there is none yet)."""

    group: str
    source: Member
    target: Member | None
    free_id: int
    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def behind(self) -> int | None:
        return None if self.target is None else self.source.log_end - self.target.log_end

    @property
    def left_behind(self) -> int:
        """Bytes of the master's log that its replica does not have, or will not get."""
        if self.target is not None and self.target.log_end > 0:
            return max(0, self.target.log_min - self.source.log_min)
        if self.source.is_twinlog:
            return 0
        newest = self.source.log_end - self.source.log_end % self.source.segment_size
        return max(0, newest - self.source.log_min)


# Pure


def choose(members: Sequence[Member], source: Member, wanted: str | None) -> Member | None:
    """The replica that was named; else the slave of the other make that has the most."""
    slaves = [m for m in members if m.broker_id != MASTER_ID]
    if wanted is not None:
        return next((m for m in slaves if wanted in (m.address, str(m.broker_id))), None)
    others = [m for m in slaves if m.is_twinlog != source.is_twinlog]
    return max(others, key=lambda m: (m.log_end, -m.broker_id), default=None)


def judge(source: Member, target: Member | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What must be mended before, and what the operator should know."""
    obstacles: list[str] = []
    notes: list[str] = []
    if source.config.get("enableDLegerCommitLog", "false") == "true":
        obstacles.append(
            f"{source.name} has enableDLegerCommitLog=true: nobody else reads that log"
        )
    if source.config.get("enableControllerMode", "false") == "true":
        obstacles.append(
            f"{source.name} has enableControllerMode=true: the group's controller decides who"
            " leads it"
        )
    if source.config.get(FENCE_KEY) == FENCED:
        notes.append(
            f"{source.name} takes no sends: a cutover was interrupted. Call it again to finish it,"
            f" or `cutover --rehearse`, which opens the broker again, as {FENCE_KEY}=0 does"
        )
    if source.config.get("aclEnable", "false") == "true":
        notes.append("access rules are in force: the replica needs the same rules and an account")
    if target is not None:
        _judge_pair(obstacles, source, target)
    return tuple(obstacles), tuple(notes)


def _judge_pair(obstacles: list[str], source: Member, target: Member) -> None:
    for key in _EQUAL_KEYS:
        mine, theirs = (member.config.get(key) for member in (source, target))
        if mine is not None and theirs is not None and mine.strip() != theirs.strip():
            obstacles.append(f"{key} is {mine} at {source.name} and {theirs} at {target.name}")
    if source.config.get("aclEnable") == "true" and target.config.get("aclEnable") != "true":
        obstacles.append(f"{target.name} does not have aclEnable=true: it would let everybody in")
    if target.log_end > source.log_end:
        obstacles.append(
            f"{target.name} has {target.log_end - source.log_end} bytes more than its master:"
            " it is not a copy of this log"
        )


def replica_config(move: Move, name_server: str, store: str, port: int) -> dict[str, str]:
    """The configuration file of the replica that takes over."""
    carried = {key: move.source.config[key] for key in _CARRIED_KEYS if key in move.source.config}
    carried.pop("haListenPort", None)
    return {
        **carried,
        "brokerName": move.group,
        "brokerId": str(move.free_id),
        "brokerRole": "SLAVE",
        "listenPort": str(port),
        "namesrvAddr": name_server,
        "storePathRootDir": store,
        "storePathCommitLog": f"{store}/commitlog",
    }


# Asking


async def survey(
    admin: Admin, *, broker: str | None = None, wanted: str | None = None
) -> list[Move]:
    """Every group with a master that answers, or the one that was named."""
    info = await admin.cluster()
    names = [name for name in info.names() if broker in (None, name)]
    found = [info.brokers[name] for name in names if info.brokers[name].master_address]
    return list(await asyncio.gather(*(_move(admin, each, wanted) for each in found)))


async def _move(admin: Admin, broker: BrokerData, wanted: str | None) -> Move:
    members = await asyncio.gather(
        *(ask_member(admin, address, number) for number, address in broker.broker_addrs.items())
    )
    source = next(member for member in members if member.broker_id == MASTER_ID)
    target = choose(members, source, wanted)
    obstacles, notes = judge(source, target)
    free_id = next(n for n in range(1, len(members) + 1) if n not in broker.broker_addrs)
    return Move(
        group=broker.broker_name, source=source, target=target, free_id=free_id,
        obstacles=obstacles, notes=notes,
    )  # fmt: skip


async def ask_member(admin: Admin, address: str, broker_id: int) -> Member:
    """Raises ClientError when it does not answer."""
    runtime, config = await asyncio.gather(
        broker_runtime(admin, address), broker_config(admin, address)
    )
    return Member(
        address=address,
        broker_id=broker_id,
        is_twinlog="twinlogVersion" in runtime,
        log_min=number_of(runtime.get("commitLogMinOffset", 0)),
        log_end=number_of(runtime.get("commitLogMaxOffset", 0)),
        config=config,
    )
