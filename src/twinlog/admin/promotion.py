"""Making a slave the master of its group: all replicas are compared first.

A SEND_OK of a SYNC_MASTER is a message on `inSyncReplicas - 1` slaves, not on all of them: which
slave has it is seen by comparing their logs. `judge` is that comparison, a pure function of what
the replicas say; `promote` asks them, and the chosen one to become the master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

from twinlog.admin.brokers import broker_runtime
from twinlog.admin.client import Admin, gather
from twinlog.client.errors import (
    AccessDeniedError,
    BrokerUnreachableError,
    ClientError,
    RequestCodeNotSupportedError,
)
from twinlog.client.net.answers import body_as
from twinlog.remoting.bodies.route import MASTER_ID, BrokerData
from twinlog.remoting.bodies.twinlog import ReplicaInfo
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.headers.twinlog import (
    TwinlogPromoteRequestHeader,
    TwinlogReplicaRequestHeader,
)

SLAVE = "SLAVE"
MASTER_ROLES = ("ASYNC_MASTER", "SYNC_MASTER")
_DIGEST_SIZE = 64 * 1024
_POLL_SECONDS = 0.1
_START_POLLS_MAX = 600  # A minute: a large store is loaded again.
_COUNT_TIMEOUT_MS = 60_000


class Digest(NamedTuple):
    """The checksum of [start, end) of one replica's log."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of the group, as it answered; or why it did not."""

    address: str
    broker_id: int
    role: str = ""
    store_id: str = ""
    promotion: int = 0
    log_min: int = 0
    log_end: int = 0
    confirmed: int = 0
    master_end: int = 0
    is_linked: bool = False
    is_controlled: bool = False
    damage: str = ""
    replica_ids: tuple[int, ...] = ()
    in_sync_replicas: int = 0
    master_role: str = ""
    master_address: str = ""
    digests: tuple[Digest, ...] = ()
    error: str = ""
    is_refusing: bool = False  # Nothing listens at the address: the process is not there.
    is_twinlog: bool = True

    @property
    def is_reached(self) -> bool:
        return not self.error

    @property
    def is_master(self) -> bool:
        return self.is_reached and self.role != SLAVE

    @property
    def name(self) -> str:
        return f"{self.address} (brokerId {self.broker_id})"

    @property
    def followed_sync(self) -> bool:
        """Whether its master answered SEND_OK only to what slaves had."""
        return self.master_role == "SYNC_MASTER" and self.in_sync_replicas > 1

    @property
    def is_copy(self) -> bool:
        """A slave that answers, and can be compared with others byte by byte."""
        return self.is_reached and not self.is_master and self.is_twinlog

    def differs_from(self, other: Replica) -> bool:
        """Whether the two are known to have other bytes at one place, or are of two stores."""
        if self.store_id and other.store_id and self.store_id != other.store_id:
            return True
        theirs = {(one.start, one.end): one.crc for one in other.digests}
        return any(theirs.get((one.start, one.end), one.crc) != one.crc for one in self.digests)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a promotion of `target` would mean.

    `refusals` cannot be overruled. `losses` can, by who types the group's name.
    """

    target: Replica
    refusals: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    longest: Replica | None = None  # Another replica that has all of the target, and more.
    has_diverged: bool = False  # Another one has other bytes.
    lost_to: int = 0  # Where what is known to be lost ends; below the target's end if nothing is.
    is_countable: bool = True  # All that would be lost is in the log of `longest`.

    @property
    def lost_bytes(self) -> int:
        """Known to be lost, at least."""
        return max(0, self.lost_to - self.target.log_end)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was found out, before anything is changed."""

    group: str
    replicas: tuple[Replica, ...]
    verdict: Verdict
    lost_messages: int | None = 0  # None: nobody that answers can count them.
    role: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        return self.verdict.refusals + self.verdict.losses

    @property
    def is_safe(self) -> bool:
        return not self.reasons


@dataclass(slots=True)
class _Findings:
    refusals: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    lost_to: int = 0
    is_countable: bool = True

    def lose_unseen(self, text: str) -> None:
        """A loss of which no replica that answers can tell how many messages it is."""
        self.losses.append(text)
        self.is_countable = False


# The comparison, pure


def choose(replicas: Sequence[Replica]) -> Replica | None:
    """The slave with the most; of several the one that begins first, then that of the lowest id.

    Of logs that have diverged the longer one is not the better one: a replaced master that went on
    alone may have the longest of all. There the latest history decides, and then the most of it.
    """
    slaves = [r for r in replicas if r.is_copy]
    diverged = [r for r in slaves if any(r.differs_from(other) for other in slaves)]
    if diverged:
        leader = max(diverged, key=_seniority)
        slaves = [r for r in slaves if not r.differs_from(leader)]
    return max(slaves, key=lambda r: (r.log_end, -r.log_min, -r.broker_id), default=None)


def _seniority(replica: Replica) -> tuple[int, int, int, int]:
    """Which of two diverged logs clients were answered from last: that of the later promotion,
    then that of which more is confirmed, and only then the longer one."""
    return replica.promotion, replica.confirmed, replica.log_end, -replica.broker_id


def judge(replicas: Sequence[Replica], target: Replica) -> Verdict:
    """What speaks against `target` as the master of its group."""
    if any(replica.is_controlled for replica in replicas):
        # The rest is about fixed pairs, and not true of a group with epochs.
        return Verdict(target, ("a controller decides who is the master of this group",))
    found = _Findings()
    others = [r for r in replicas if r.address != target.address]
    _judge_master(found, replicas, target)
    if target.damage:
        found.refusals.append(f"{target.name}: {target.damage}")
    longest = _judge_copies(found, others, target)
    _judge_marks(found, replicas, target, longest)
    _judge_absent(found, replicas, target)
    return Verdict(
        target,
        tuple(found.refusals),
        tuple(found.losses),
        tuple(found.warnings),
        longest,
        any(r.differs_from(target) for r in others if r.is_copy),
        found.lost_to,
        found.is_countable,
    )


def _judge_master(found: _Findings, replicas: Sequence[Replica], target: Replica) -> None:
    for replica in replicas:
        if replica.is_master:
            found.refusals.append(
                f"the master {replica.name} lives: a second one would accept sends into another log"
            )
        elif replica.is_linked:
            found.refusals.append(
                f"{replica.name} is connected to the master {replica.master_address}, which lives"
            )
    absent = next((r for r in replicas if r.broker_id == MASTER_ID and not r.is_reached), None)
    if absent is not None and not absent.is_refusing:
        found.lose_unseen(
            f"the master {absent.name} is registered and may live, though it does not answer"
            f" here ({absent.error}): make sure that it is stopped"
        )
    if not target.followed_sync and not any(r.is_master for r in replicas):
        role = {
            "SYNC_MASTER": "a SYNC_MASTER that waited for no slave (inSyncReplicas=1)",
            "ASYNC_MASTER": "an ASYNC_MASTER",
        }.get(target.master_role, "a master of a role that is not known")
        found.warnings.append(
            f"the lost master was {role}: what it acknowledged and had not replicated yet is not"
            " on any slave, and nothing here knows how much that is"
        )


def _judge_copies(found: _Findings, others: Sequence[Replica], target: Replica) -> Replica | None:
    """The other copies: longer, of another log, or with other bytes."""
    copies = [r for r in others if r.is_reached and not r.is_master]
    same = [r for r in copies if not r.differs_from(target)]
    longer = max(same, key=lambda r: r.log_end, default=None)
    if longer is None or longer.log_end <= target.log_end:
        longer = None
    else:
        found.losses.append(
            f"{longer.name} has {longer.log_end - target.log_end} bytes more, up to"
            f" {longer.log_end}: promote that one"
        )
        found.lost_to = longer.log_end
    _judge_beginnings(found, same, target)
    for copy in copies:
        if copy.differs_from(target):
            found.lose_unseen(_divergence(copy, target))
        elif copy.promotion > target.promotion:
            found.warnings.append(f"{copy.name} has followed a newer master than {target.name}")
    return longer


def _judge_beginnings(found: _Findings, same: Sequence[Replica], target: Replica) -> None:
    """A slave of RocketMQ's dialect begins with its master's last file: what is before that is
    there to be read only while another copy leads. Retention may differ by a file as well, so a
    copy that begins first but ends earlier is no reason to refuse the longer one."""
    earlier = [r for r in same if r.log_min < min(r.log_end, target.log_min)]
    better = [r for r in earlier if r.log_end >= target.log_end]
    first = min(better or earlier, key=lambda r: (r.log_min, -r.log_end), default=None)
    if first is None:
        return
    size = min(first.log_end, target.log_min) - first.log_min
    text = (
        f"{first.name} begins at {first.log_min}, {target.name} at {target.log_min}: nobody could"
        f" read {size} bytes that only the former has"
    )
    if better:
        found.lose_unseen(f"{text}. Promote {first.name}")
    else:
        found.warnings.append(text)


def _divergence(copy: Replica, target: Replica) -> str:
    """That two logs differ, and which of them to take."""
    if copy.store_id and target.store_id and copy.store_id != target.store_id:
        text = f"{copy.name} is a copy of another log: its store id differs"
    else:
        end = min(copy.log_end, target.log_end)
        text = f"{copy.name} has other bytes before {end}: the logs have diverged"
    if _seniority(copy) < _seniority(target):
        return f"{text}, and what only {copy.name} has would be lost"
    if copy.promotion > target.promotion:
        reason = "it has followed the later promotion"
    elif copy.confirmed > target.confirmed:
        reason = f"its log is known to be confirmed up to {copy.confirmed}"
    else:
        reason = "it has more"
    return f"{text}. Promote {copy.name}: {reason}"


def _judge_marks(
    found: _Findings, replicas: Sequence[Replica], target: Replica, longest: Replica | None
) -> None:
    """What the master had said about its log before it went."""
    reached = [r for r in replicas if r.is_reached and not r.is_master]
    confirmed = max((r.confirmed for r in reached), default=0)
    if confirmed > target.log_end:
        found.losses.append(
            f"the log was confirmed up to {confirmed} and {target.name} ends at {target.log_end}:"
            f" {confirmed - target.log_end} bytes were acknowledged that it does not have"
        )
        found.lost_to = max(found.lost_to, confirmed)
    end = max((r.master_end for r in reached), default=0)
    if end > max(target.log_end, confirmed):
        text = (
            f"the master's log was known to reach {end}, {end - target.log_end} bytes beyond"
            f" {target.name}"
        )
        if target.followed_sync:
            found.warnings.append(f"{text}; they were not acknowledged with SEND_OK")
        else:
            found.losses.append(text)
            found.lost_to = max(found.lost_to, end)
    if found.lost_to > max(target.log_end, 0 if longest is None else longest.log_end):
        found.is_countable = False


def _judge_absent(found: _Findings, replicas: Sequence[Replica], target: Replica) -> None:
    """Slaves that do not answer. An acknowledged message is on `inSyncReplicas - 1` of all slaves:
    the longest of those that answer has it unless so many are missing."""
    reached = [r for r in replicas if r.is_reached and not r.is_master]
    known = {number for r in reached for number in r.replica_ids} - {MASTER_ID}
    known |= {r.broker_id for r in replicas if r.broker_id != MASTER_ID}
    absent = sorted(known - {r.broker_id for r in reached})
    needed = max((r.in_sync_replicas for r in reached), default=0) or 2
    if len(absent) >= needed - 1 and absent:
        names = ", ".join(map(str, absent))
        found.lose_unseen(
            f"slaves of this group do not answer (brokerId {names}): what was acknowledged by them"
            " alone cannot be seen. Start them as slaves and try again"
        )
    if not any(r.in_sync_replicas for r in reached):
        _judge_unheard(found, target)


def _is_copy_of_apache(replica: Replica) -> bool:
    return not replica.store_id and replica.log_end > 0


def _judge_unheard(found: _Findings, target: Replica) -> None:
    """Nobody that answers has followed a twinlog master: a new disk, or a replaced master that has
    not met its successor yet. What the group has acknowledged since is then not seen at all."""
    if not _is_copy_of_apache(target):
        found.lose_unseen(
            f"{target.name} has not been connected to a master of this group since it has this"
            " store or was the master itself: what others have that it lacks cannot be seen. Start"
            " the replica that was the master last, or a slave that followed it"
        )
    found.warnings.append("which slaves the lost master had is not known")


# Asking


async def compare(
    admin: Admin, broker: BrokerData, wanted: str | None, also: Sequence[str] = ()
) -> Comparison | None:
    """Ask every replica; None when no slave answers, or `wanted` (id or address) is none."""
    addresses = {address: number for number, address in broker.broker_addrs.items()}
    addresses |= {address: -1 for address in also if address not in addresses}
    asked = await asyncio.gather(*(_ask(admin, a, number) for a, number in addresses.items()))
    replicas = await _with_digests(admin, asked)
    target = choose(replicas) if wanted is None else _named(replicas, wanted)
    if target is None:
        return None
    verdict = judge(replicas, target)
    lost: int | None = 0 if verdict.is_countable else None
    if verdict.longest is not None and verdict.is_countable:
        lost = await _count(admin, verdict.longest, target.log_end)
    role = target.master_role or _last_role(replicas)
    return Comparison(broker.broker_name, tuple(replicas), verdict, lost, role)


def _last_role(replicas: Sequence[Replica]) -> str:
    """What others say of the lost master when the chosen one has never heard it."""
    told = [r for r in replicas if r.is_reached and r.master_role]
    return max(told, key=_seniority).master_role if told else ""


def _named(replicas: Sequence[Replica], wanted: str) -> Replica | None:
    return next((r for r in replicas if wanted in (r.address, str(r.broker_id))), None)


async def has_heard(admin: Admin, address: str, broker_id: int) -> bool:
    """Whether this replica could be judged without its master. A slave asks its master what the
    group looks like half a second after it is connected, at the latest."""
    replica = await _ask(admin, address, broker_id)
    is_apache = not replica.is_twinlog or _is_copy_of_apache(replica)
    return is_apache or replica.in_sync_replicas > 0


async def _ask(admin: Admin, address: str, broker_id: int) -> Replica:
    try:
        answer = await admin.ask(address, RequestCode.TWINLOG_REPLICA, action="replica")
    except RequestCodeNotSupportedError:
        return await _ask_apache(admin, address, broker_id)
    except AccessDeniedError:
        raise  # Not a replica that is gone: an account that may not ask.
    except ClientError as error:
        return _unreached(address, broker_id, error)
    return _replica(body_as(answer, ReplicaInfo), address)


async def _ask_apache(admin: Admin, address: str, broker_id: int) -> Replica:
    """An Apache broker tells where its log ends; it can be compared, not promoted."""
    try:
        runtime = await broker_runtime(admin, address)
    except ClientError as error:
        return _unreached(address, broker_id, error)
    role = SLAVE if broker_id != MASTER_ID else "ASYNC_MASTER"
    end = int(runtime.get("commitLogMaxOffset", 0) or 0)
    return Replica(address=address, broker_id=broker_id, role=role, log_end=end, is_twinlog=False)


def _unreached(address: str, broker_id: int, error: ClientError) -> Replica:
    is_refusing = isinstance(error, BrokerUnreachableError) and "refused" in str(error).lower()
    return Replica(address=address, broker_id=broker_id, error=str(error), is_refusing=is_refusing)


def _replica(info: ReplicaInfo, address: str) -> Replica:
    return Replica(
        address=address,
        broker_id=info.broker_id,
        role=info.broker_role,
        store_id=info.store_id,
        promotion=info.promotion,
        log_min=info.log_min,
        log_end=info.log_end,
        confirmed=info.confirmed,
        master_end=info.master_end,
        is_linked=info.is_linked,
        is_controlled=info.is_controlled,
        damage=info.damage,
        replica_ids=tuple(info.replica_ids),
        in_sync_replicas=info.in_sync_replicas,
        master_role=info.master_role,
        master_address=info.master_address,
    )


def digest_ranges(replicas: Sequence[Replica]) -> dict[str, set[tuple[int, int]]]:
    """By address: the ends of what any two copies both have. Compared in pairs: the shortest copy
    of three says nothing about whether the two others are the same."""
    wanted: dict[str, set[tuple[int, int]]] = {}
    for one, other in combinations([r for r in replicas if r.is_copy], 2):
        end = min(one.log_end, other.log_end)
        start = max(end - _DIGEST_SIZE, one.log_min, other.log_min)
        if start < end:
            wanted.setdefault(one.address, set()).add((start, end))
            wanted.setdefault(other.address, set()).add((start, end))
    return wanted


async def _with_digests(admin: Admin, replicas: Sequence[Replica]) -> list[Replica]:
    wanted = digest_ranges(replicas)

    async def ask(address: str) -> tuple[Digest, ...]:
        found = []
        for start, end in sorted(wanted[address]):
            header = TwinlogReplicaRequestHeader(digest_start=start, digest_end=end)
            answer = await admin.ask(
                address, RequestCode.TWINLOG_REPLICA, header, action="comparison of logs"
            )
            digest = body_as(answer, ReplicaInfo).digest
            if digest is not None:
                found.append(Digest(start, end, digest))
        return tuple(found)

    digests = await gather(wanted, ask)
    return [replace(r, digests=digests.values.get(r.address, ())) for r in replicas]


async def _count(admin: Admin, replica: Replica, offset: int) -> int | None:
    """Messages that `replica` has from `offset` on."""
    try:
        answer = await admin.ask(
            replica.address, RequestCode.TWINLOG_REPLICA,
            TwinlogReplicaRequestHeader(count_from=offset), action="count of messages",
            timeout_ms=_COUNT_TIMEOUT_MS,
        )  # fmt: skip
    except ClientError:
        return None
    info = body_as(answer, ReplicaInfo)
    is_whole = info.count_end is not None and info.count_end >= replica.log_end
    return info.message_count if is_whole else None


# Doing it


async def promote(admin: Admin, comparison: Comparison, role: str) -> None:
    """Ask the chosen slave to become the master, and wait until it serves as such.

    Raises ClientError when it refuses, TimeoutError when it was told and did not come back.
    """
    target = comparison.verdict.target
    newest = max(r.promotion for r in comparison.replicas)
    longest = max(r.log_end for r in comparison.replicas)
    header = TwinlogPromoteRequestHeader(comparison.group, role, target.log_end, newest, longest)
    await admin.ask(target.address, RequestCode.TWINLOG_PROMOTE, header, action="promotion")
    for _ in range(_START_POLLS_MAX):
        if await _is_serving(admin, comparison.group, target.address):
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise TimeoutError(
        f"{target.name} was told to become the master and does not serve as the master after"
        f" {_START_POLLS_MAX * _POLL_SECONDS:.0f} s: see its log"
    )


async def _is_serving(admin: Admin, group: str, address: str) -> bool:
    """It answers as the master, and clients are sent to it."""
    try:
        answer = await admin.ask(address, RequestCode.TWINLOG_REPLICA, action="replica")
        broker = (await admin.cluster()).brokers.get(group)
    except ClientError:
        return False
    is_master = body_as(answer, ReplicaInfo).broker_role in MASTER_ROLES
    return is_master and broker is not None and broker.master_address == address
