"""The moment of a migration: the old master takes no more sends, its replica becomes the master.

    fence  ->  drain  ->  offsets  ->  stop the old one  ->  promote  ->  offsets  ->  route

Sends are stopped at the broker itself (`startAcceptSendRequestTimeStamp`, which both makes obey at
once and write to their file), so that whatever was acknowledged is in the log before the replica is
asked how far it is. Until the old master is stopped, every failure opens it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from twinlog.admin import promotion
from twinlog.admin.brokers import update_broker_config
from twinlog.admin.client import Admin
from twinlog.admin.groups import set_offset
from twinlog.admin.migration import FENCE_KEY, FENCED, Member, Move, ask_member
from twinlog.admin.migration_check import Offsets, read_offsets
from twinlog.client.errors import BrokerUnreachableError, ClientError
from twinlog.client.queues import MessageQueue
from twinlog.remoting.codes import RequestCode

OPEN = "0"
_POLL_SECONDS = 0.05
Action = Callable[[Member], Awaitable[None]]


def _now() -> float:
    """Seconds of a clock that is never set."""
    return asyncio.get_running_loop().time()


class CutoverError(Exception):
    """It was not done. The text says why, and what state the group is in."""


@dataclass(slots=True)
class Steps:
    """What happened, and when, in seconds since sends were stopped."""

    times: dict[str, float] = field(default_factory=dict)
    offsets_carried: int = 0
    log_end: int = 0
    _begin: float = field(default_factory=_now)

    def done(self, name: str) -> None:
        self.times[name] = _now() - self._begin

    @property
    def seconds(self) -> float:
        return max(self.times.values(), default=0.0)


async def rehearse(admin: Admin, move: Move, *, wait_seconds: float) -> Steps:
    """Everything up to the stop of the old master, which then takes sends again."""
    target = _target(move)
    steps = Steps()
    await fence(admin, move.source.address)
    try:
        await _stop_sends(admin, move.source, target, steps, wait_seconds)
        steps.done("offsets read")
    finally:
        await lift(admin, move.source.address)
    steps.done("sends taken again")
    return steps


async def cut_over(
    admin: Admin,
    move: Move,
    *,
    stop: Action,
    promote: Action | None = None,
    wait_seconds: float,
) -> Steps:
    """Make the replica the master.

    Args:
        admin: an administrator of the cluster.
        move: the group, with its replica.
        stop: ends the old master's process in the usual way (SIGTERM).
        promote: makes an Apache replica the master; a twinlog one is told by request.
        wait_seconds: for each step that waits.
    """
    target = _target(move)
    steps = Steps()
    await fence(admin, move.source.address)
    try:
        offsets = await _stop_sends(admin, move.source, target, steps, wait_seconds)
        await stop(move.source)
    except BaseException:
        await _try_to_lift(admin, move.source.address)
        raise
    await _wait_gone(admin, move.source, wait_seconds)
    steps.done("old master stopped")
    if promote is None:
        await _promote(admin, move, target, wait_seconds)
    else:
        await promote(target)
    await _wait_routed(admin, move.group, target, wait_seconds)
    steps.done("new master serves")
    steps.offsets_carried = await _carry(admin, move.group, target, offsets)
    steps.done("offsets carried")
    return steps


async def _stop_sends(
    admin: Admin, source: Member, target: Member, steps: Steps, wait_seconds: float
) -> Offsets:
    """The master is fenced: wait until the replica has it all; what groups committed there."""
    steps.done("sends stopped")
    await _drain(admin, source, target, steps, wait_seconds)
    return await read_offsets(admin, source.address)


async def fence(admin: Admin, address: str) -> None:
    await update_broker_config(admin, address, {FENCE_KEY: FENCED})


async def lift(admin: Admin, address: str) -> None:
    await update_broker_config(admin, address, {FENCE_KEY: OPEN})


async def _try_to_lift(admin: Admin, address: str) -> None:
    try:
        await lift(admin, address)
    except ClientError as error:
        text = f"{address} takes no sends and could not be opened again: set {FENCE_KEY}=0 there"
        raise CutoverError(f"{text} ({error})") from error


def _target(move: Move) -> Member:
    if move.target is None:
        raise CutoverError(f"{move.group} has no replica that could take over")
    if move.obstacles:
        raise CutoverError("; ".join(move.obstacles))
    return move.target


async def _drain(
    admin: Admin, source: Member, target: Member, steps: Steps, wait_seconds: float
) -> None:
    """Until the replica has all that the master has, and knows its group, which only the living
    master can tell it; with sends stopped that is soon."""
    deadline = _now() + wait_seconds
    while True:
        end = (await ask_member(admin, source.address, source.broker_id)).log_end
        there = (await ask_member(admin, target.address, target.broker_id)).log_end
        if there >= end and await promotion.has_heard(admin, target.address, target.broker_id):
            steps.log_end = there
            steps.done("replica has everything")
            return
        if _now() > deadline:
            what = (
                f"is {end - there} bytes behind"
                if there < end
                else f"has not asked {source.name} about its group"
            )
            raise CutoverError(
                f"{target.name} {what} after {wait_seconds:.0f} s; {source.name} takes sends again"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _wait_gone(admin: Admin, source: Member, wait_seconds: float) -> None:
    """Until nobody listens at the old address."""
    deadline = _now() + wait_seconds
    while True:
        try:
            await admin.ask(
                source.address, RequestCode.GET_BROKER_RUNTIME_INFO, action="is it gone",
                timeout_ms=1000,
            )  # fmt: skip
        except BrokerUnreachableError as error:
            if "refused" in str(error).lower():
                return
        except ClientError:
            pass
        if _now() > deadline:
            raise CutoverError(
                f"{source.name} still answers after the command that stops it; it takes no sends:"
                f" stop it and go on with `twinlog ha promote`, or set {FENCE_KEY}=0 there"
            )
        await asyncio.sleep(_POLL_SECONDS)


async def _promote(admin: Admin, move: Move, target: Member, wait_seconds: float) -> None:
    """The link to the old master is seen as closed a moment after its process is gone."""
    deadline = _now() + wait_seconds
    while True:
        broker = (await admin.cluster()).brokers.get(move.group)
        found = None if broker is None else await promotion.compare(admin, broker, target.address)
        if found is not None and not found.reasons:
            break
        if _now() > deadline:
            why = "it does not answer" if found is None else "; ".join(found.reasons)
            raise CutoverError(f"{target.name} is not promoted: {why}")
        await asyncio.sleep(_POLL_SECONDS)
    try:
        await promotion.promote(admin, found, move.source.config.get("brokerRole", "ASYNC_MASTER"))
    except TimeoutError as error:
        raise CutoverError(str(error)) from error


async def _wait_routed(admin: Admin, group: str, target: Member, wait_seconds: float) -> None:
    """Until the name server leads clients to the new master, and it answers."""
    deadline = _now() + wait_seconds
    while True:
        try:
            broker = (await admin.cluster()).brokers.get(group)
            if broker is not None and broker.master_address == target.address:
                await ask_member(admin, target.address, 0)
                return
        except ClientError:
            pass  # A broker that starts, or a name server that is busy: asked again.
        if _now() > deadline:
            raise CutoverError(f"the name server does not lead to {target.name} as the master")
        await asyncio.sleep(_POLL_SECONDS)


async def _carry(admin: Admin, group: str, target: Member, offsets: Offsets) -> int:
    """Commit what the old master knew last and the new one does not."""
    known = await read_offsets(admin, target.address)
    carried = 0
    for (topic, consumers, queue), offset in offsets.items():
        if known.get((topic, consumers, queue), -1) < offset:
            try:
                await set_offset(admin, consumers, MessageQueue(topic, group, queue), offset)
            except ClientError:
                continue  # A topic without a route; its consumers begin where the table says.
            carried += 1
    return carried
