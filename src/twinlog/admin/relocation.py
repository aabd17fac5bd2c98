"""Moving to another cluster, with brokers and name servers of its own, while clients run.

Tables are made there and messages are copied (`copying.py`). At the cutover the old brokers take no
sends, the rest is copied, reads are closed until the consumers have committed, their offsets are
translated, the old brokers are stopped, and the new ones register with the old name servers too:
clients find them in the routes that they ask for anyway. A broker takes addresses of name servers
from its file only, never by request, so that a command of the operator's restarts it for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from twinlog.admin import acl
from twinlog.admin.brokers import broker_config, update_broker_config
from twinlog.admin.client import Admin
from twinlog.admin.copying import (
    QueuePair,
    copy_all,
    next_offset,
    origin_of,
    pair_queues,
    queue_text,
    translate,
)
from twinlog.admin.cutover import CutoverError, Steps, fence, lift
from twinlog.admin.groups import put_group_config, set_offset
from twinlog.admin.messages import read_queue
from twinlog.admin.migration import Member, ask_member
from twinlog.admin.migration_check import (
    FINDINGS_MAX,
    Checked,
    Offsets,
    Tables,
    read_offsets,
    read_tables,
)
from twinlog.admin.pending import delay_levels, pending_transactions
from twinlog.admin.topics import put_topic_config
from twinlog.client.errors import ClientError, TopicNotFoundError
from twinlog.client.message import ReceivedMessage
from twinlog.client.net import calls
from twinlog.client.queues import MessageQueue
from twinlog.message.properties import PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX as _UNIQUE_ID
from twinlog.remoting.bodies.route import BrokerData
from twinlog.remoting.bodies.subscription_group import SubscriptionGroupConfig
from twinlog.remoting.bodies.topic import TopicConfig

_POLL_SECONDS: Final = 0.2
_PERMISSION: Final = "brokerPermission"
_CLOSED: Final = "0"
Action = Callable[[str, Member], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Relocation:
    """What goes where."""

    sources: Mapping[str, BrokerData]
    targets: Mapping[str, BrokerData]
    tables: Mapping[str, Tables]  # Of the masters of the source, by the names of their groups.
    pairs: Sequence[QueuePair]
    obstacles: Sequence[str] = ()

    @property
    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        return {name: each for table in self.tables.values() for name, each in table.groups.items()}

    @property
    def topics(self) -> dict[str, TopicConfig]:
        return {name: each for table in self.tables.values() for name, each in table.topics.items()}

    def masters(self) -> list[str]:
        """Of the target."""
        return [address for each in self.targets.values() if (address := each.master_address)]


# Looking


async def survey(source: Admin, target: Admin) -> Relocation:
    """Everything that is to be moved, and what speaks against it."""
    old, new = (await source.cluster()).brokers, (await target.cluster()).brokers
    obstacles = [
        f"the broker name {name} is in both clusters: clients could not tell them apart"
        for name in sorted(old.keys() & new.keys())
    ]
    obstacles += [
        f"{name} has no master" for name, each in {**old, **new}.items() if not each.master_address
    ]
    if not new:
        obstacles.append("the other cluster has no broker")
    if obstacles:
        return Relocation(old, new, {}, [], obstacles)
    obstacles = await _rules_obstacles(source, target, old, new)
    tables = {name: await read_tables(source, each.master_address or "")
              for name, each in old.items()}  # fmt: skip
    counts: dict[str, dict[str, int]] = {}
    for broker, table in tables.items():
        for topic, config in table.topics.items():
            count = max(config.read_queue_nums, config.write_queue_nums)
            counts.setdefault(topic, {})[broker] = count
    pairs = [
        QueuePair(*each)
        for topic, numbers in sorted(counts.items())
        for each in pair_queues(topic, numbers, sorted(new)).items()
    ]
    return Relocation(old, new, tables, pairs, obstacles)


async def _rules_obstacles(
    source: Admin, target: Admin, old: Mapping[str, BrokerData], new: Mapping[str, BrokerData]
) -> list[str]:
    if not await has_rules(source, old):
        return []
    return [
        f"{name} does not have aclEnable=true: it would let everybody in"
        for name, broker in new.items()
        if not await has_rules(target, {name: broker})
    ]


async def has_rules(admin: Admin, brokers: Mapping[str, BrokerData]) -> bool:
    """Whether one of these groups enforces access rules."""
    for broker in brokers.values():
        config = await broker_config(admin, broker.master_address or "")
        if config.get("aclEnable", "false") == "true":
            return True
    return False


async def lags(source: Admin, target: Admin, move: Relocation) -> dict[QueuePair, int]:
    """Messages that have no copy yet. Raises CopyError when others write to the copies."""

    async def one(pair: QueuePair) -> int:
        await source.instance.route(pair.source.topic)
        end = await calls.max_offset(source.instance, pair.source)
        try:
            begin = await next_offset(target, pair)
        except TopicNotFoundError:
            begin = 0
        begin = max(begin, await calls.min_offset(source.instance, pair.source))
        return max(0, end - begin)

    found = await asyncio.gather(*map(one, move.pairs))
    return dict(zip(move.pairs, found, strict=True))


async def waiting(source: Admin) -> list[str]:
    """What a broker keeps to itself and nobody can copy, as sentences."""
    found = []
    levels = await delay_levels(source)
    delayed = sum(level.waiting for each in levels.values.values() for level in each)
    if delayed:
        found.append(f"{delayed} delayed messages wait for their time")
    try:
        halves = sum(len(each.messages) for each in await pending_transactions(source))
    except TopicNotFoundError:
        halves = 0
    if halves:
        found.append(f"{halves} transactions have no decision yet")
    return found


# Tables


async def make_tables(target: Admin, move: Relocation) -> None:
    """Topics with as many queues as are copied to each broker, and all groups."""
    wanted: dict[tuple[str, str], int] = {}
    for pair in move.pairs:
        key = (pair.target.broker_name, pair.target.topic)
        wanted[key] = max(wanted.get(key, 0), pair.target.queue_id + 1)
    configs = move.topics
    for (broker, topic), count in sorted(wanted.items()):
        await put_topic_config(
            target, move.targets[broker].master_address or "",
            _with_queues(configs[topic], count),
        )  # fmt: skip
    for address in move.masters():
        for group in move.groups.values():
            await put_group_config(target, address, group)


def _with_queues(config: TopicConfig, count: int) -> TopicConfig:
    return TopicConfig(
        config.topic_name, count, count, config.perm, config.topic_filter_type,
        config.topic_sys_flag, config.order,
    )  # fmt: skip


async def make_rules(target: Admin, move: Relocation, rules: Mapping[str, Any]) -> int:
    """Accounts and white addresses of a `plain_acl.yml`, on every broker of the target."""
    accounts = [acl.account_of(each) for each in rules.get("accounts") or ()]
    white = ",".join(rules.get("globalWhiteRemoteAddresses") or ())
    for broker in move.targets.values():
        for address in broker.broker_addrs.values():
            for account, entry in zip(accounts, rules.get("accounts") or (), strict=True):
                await acl.put_account(target, address, account, str(entry["secretKey"]))
            if white:
                await acl.put_white_addresses(target, address, white)
    return len(accounts)


# Comparing


async def compare(
    source: Admin, target: Admin, move: Relocation, *, samples: int | None
) -> Checked:
    """Groups, numbers of messages, and messages themselves: `samples` of a queue, or all (None)."""
    checked = Checked(topics=len(move.topics), groups=len(move.groups))
    for name, broker in move.targets.items():
        there = await read_tables(target, broker.master_address or "")
        missing = sorted(move.groups.keys() - there.groups.keys())
        checked.findings += [f"group {group} is missing at {name}" for group in missing]
        own = {pair.target.topic for pair in move.pairs if pair.target.broker_name == name}
        missing = sorted(own - there.topics.keys())
        checked.findings += [f"topic {topic} is missing at {name}" for topic in missing]
    checked.findings += await _missing_rules(source, target, move)
    if not checked.findings:
        for pair in move.pairs:
            await _compare_queue(source, target, pair, samples, checked)
            if len(checked.findings) >= FINDINGS_MAX:
                break
    return checked


async def _missing_rules(source: Admin, target: Admin, move: Relocation) -> list[str]:
    """Accounts of the source that a broker of the target lacks or has otherwise; not secrets."""
    if not await has_rules(source, move.sources):
        return []
    first = next(iter(move.sources.values())).master_address or ""
    wanted = await acl.acl_table(source, first)
    found = []
    for broker in move.targets.values():
        for address in broker.broker_addrs.values():
            there = await acl.acl_table(target, address)
            found += [
                f"account {account.access_key} is missing at {address}, or has other permissions"
                for account in wanted.accounts
                if there.find(account.access_key) != account
            ]
    return found


async def _compare_queue(
    source: Admin, target: Admin, pair: QueuePair, samples: int | None, checked: Checked
) -> None:
    """From the source's side: each message must have its copy, at the place that follows."""
    checked.queues += 1
    await source.instance.route(pair.source.topic)
    begin = await calls.min_offset(source.instance, pair.source)
    end = await calls.max_offset(source.instance, pair.source)
    if begin == end:
        return
    step = 1 if samples is None else max(1, (end - begin) // samples)
    at = begin
    while at < end:
        messages = await read_queue(source, pair.source, at, max_count=32 if step == 1 else 1)
        last = messages[-1].queue_offset if messages else at
        copies = await _copies(target, pair, at, last)
        for message in messages:
            checked.messages += 1
            fault = difference(message, copies.get(message.queue_offset, []))
            if fault:
                place = f"{queue_text(pair.source)}, {message.queue_offset}"
                checked.findings.append(f"{place}: {fault}")
        at = max(at + 1, last + step)


async def _copies(
    target: Admin, pair: QueuePair, first: int, last: int
) -> dict[int, list[ReceivedMessage]]:
    """Copies of what is at `first` to `last` of the source, by the offsets there."""
    found: dict[int, list[ReceivedMessage]] = {}
    place = await translate(target, pair, first)
    while messages := await read_queue(target, pair.target, place):
        for message in messages:
            origin = origin_of(message, pair)
            if origin is None or origin > last:
                return found
            found.setdefault(origin, []).append(message)
        place = messages[-1].queue_offset + 1
    return found


def difference(message: ReceivedMessage, copies: Sequence[ReceivedMessage]) -> str:
    """What is wrong with the copies of a message; empty: nothing."""
    if len(copies) != 1:
        return "has two copies" if copies else "has no copy"
    for name in ("body", "tags", "keys", "flag", "born_timestamp"):
        if getattr(message, name) != getattr(copies[0], name):
            return f"the copy has another {name}"
    # Without an id of the client's, the id says where a message is: a copy is elsewhere.
    mine, its = (m.properties.get(_UNIQUE_ID) for m in (message, copies[0]))
    return "" if mine == its else "the copy has another message_id"


# Offsets


async def carry_offsets(
    source: Admin, target: Admin, move: Relocation, *, is_rehearsal: bool = False
) -> int:
    """Translate what every group has committed; how many offsets there are."""
    pairs = {pair.source: pair for pair in move.pairs}
    carried = 0
    for broker, committed in (await _offsets(source, move)).items():
        for (topic, group, queue), offset in sorted(committed.items()):
            pair = pairs.get(MessageQueue(topic, broker, queue))
            if pair is None:
                continue
            place = await translate(target, pair, offset)
            if not is_rehearsal:
                await set_offset(target, group, pair.target, place)
            carried += 1
    return carried


async def _offsets(source: Admin, move: Relocation) -> dict[str, Offsets]:
    return {
        name: await read_offsets(source, broker.master_address or "")
        for name, broker in move.sources.items()
    }


# The cutover


@dataclass(slots=True)
class _Gates:
    """What was closed at the old brokers, so that it can be opened again."""

    source: Admin
    move: Relocation
    permissions: dict[str, str] = field(default_factory=dict)

    async def stop_sends(self) -> None:
        for broker in self.move.sources.values():
            await fence(self.source, broker.master_address or "")

    async def close_reads(self) -> None:
        for broker in self.move.sources.values():
            for address in broker.broker_addrs.values():
                config = await broker_config(self.source, address)
                self.permissions.setdefault(address, config.get(_PERMISSION, "6"))
                await update_broker_config(self.source, address, {_PERMISSION: _CLOSED})

    async def open_reads(self) -> None:
        for address, permission in self.permissions.items():
            await update_broker_config(self.source, address, {_PERMISSION: permission})
        self.permissions.clear()

    async def open_all(self) -> None:
        """Sends last: what is acknowledged again is read again."""
        try:
            await self.open_reads()
            for broker in self.move.sources.values():
                await lift(self.source, broker.master_address or "")
        except ClientError as error:
            raise CutoverError(
                "the old brokers could not be opened again: set startAcceptSendRequestTimeStamp=0"
                f" and brokerPermission=6 there ({error})"
            ) from error


async def rehearse(source: Admin, target: Admin, move: Relocation, *, wait_seconds: float) -> Steps:
    """Stop sends, copy the rest, translate offsets without committing them, and open again."""
    gates, steps = _Gates(source, move), Steps()
    try:
        await gates.stop_sends()
        steps.done("sends stopped")
        await _drain(source, target, move, wait_seconds)
        steps.done("everything copied")
        steps.offsets_carried = await carry_offsets(source, target, move, is_rehearsal=True)
        steps.done("offsets translated")
    finally:
        await gates.open_all()
    steps.done("sends taken again")
    return steps


async def cut_over(
    source: Admin,
    target: Admin,
    move: Relocation,
    *,
    stop: Action,
    register: Action,
    settle_seconds: float,
    wait_seconds: float,
) -> Steps:
    """Move the clients.

    Args:
        source: an administrator of the old cluster.
        target: an administrator of the new one.
        move: what `survey` found.
        stop: ends one old broker in the usual way (SIGTERM).
        register: restarts one new broker with the old name servers in its file as well.
        settle_seconds: how long no group commits before its offsets are final; a Java client
            commits every 5 s.
        wait_seconds: for each step that waits.
    """
    gates, steps = _Gates(source, move), Steps()
    try:
        await gates.stop_sends()
        steps.done("sends stopped")
        await _close(source, target, move, gates, wait_seconds)
        steps.done("everything copied, reads closed")
        await _wait_settled(source, move, settle_seconds, wait_seconds)
        steps.offsets_carried = await carry_offsets(source, target, move)
        steps.done("offsets carried")
        for name, broker in move.sources.items():
            for number, address in sorted(broker.broker_addrs.items(), reverse=True):
                await stop(name, await ask_member(source, address, number))
    except BaseException:
        await gates.open_all()
        raise
    steps.done("old brokers stopped")
    await _move_clients(source, target, move, register, wait_seconds)
    steps.done("clients find the new brokers")
    return steps


async def _drain(source: Admin, target: Admin, move: Relocation, wait_seconds: float) -> None:
    try:
        async with asyncio.timeout(wait_seconds):
            while any((await lags(source, target, move)).values()):
                await copy_all(source, target, move.pairs)
    except TimeoutError as error:
        raise CutoverError(
            f"not everything was copied within {wait_seconds:.0f} s; sends are accepted again"
        ) from error


async def _close(
    source: Admin, target: Admin, move: Relocation, gates: _Gates, wait_seconds: float
) -> None:
    """Copy the rest and close reads; again when a broker itself has put something in between."""
    for _ in range(3):
        await _drain(source, target, move, wait_seconds)
        await gates.close_reads()
        if not any((await lags(source, target, move)).values()):
            return
        await gates.open_reads()
    raise CutoverError(
        "the old brokers still store messages (delays, retries): wait until they are delivered"
    )


async def _wait_settled(
    source: Admin, move: Relocation, settle_seconds: float, wait_seconds: float
) -> None:
    """Until no committed offset has changed for a while: consumers say what they have done."""
    loop = asyncio.get_running_loop()
    known, since, begin = await _offsets(source, move), loop.time(), loop.time()
    while loop.time() - since < settle_seconds:
        await asyncio.sleep(_POLL_SECONDS)
        now = await _offsets(source, move)
        if now != known:
            known, since = now, loop.time()
        if loop.time() - begin > wait_seconds + settle_seconds:
            raise CutoverError("consumers still commit offsets although no messages are delivered")


async def _move_clients(
    source: Admin, target: Admin, move: Relocation, register: Action, wait: float
) -> None:
    """The new brokers register with the old name servers too."""
    for name, broker in move.targets.items():
        for number, address in sorted(broker.broker_addrs.items(), reverse=True):
            await register(name, await ask_member(target, address, number))
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        found = (await source.cluster()).brokers
        if move.targets.keys() <= found.keys() and not move.sources.keys() & found.keys():
            return
        if asyncio.get_running_loop().time() > deadline:
            raise CutoverError(
                f"the old name servers have {', '.join(sorted(found))}; the brokers of the new"
                " cluster hold everything: give clients its name servers"
            )
        await asyncio.sleep(_POLL_SECONDS)
