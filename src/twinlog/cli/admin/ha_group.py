"""`twinlog ha switch|elect|drain|undrain|remove` and the status of groups with a controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, call, confirm, show
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.output import Column, Report, Table, show_bytes, show_seconds, show_time

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.failover import Controllers, Master
    from twinlog.controller.group_status import ControlledGroup
    from twinlog.remoting.bodies.controller import GroupFacts

T = TypeVar("T")
Command = Callable[..., Any]


def controller_option(command: Command) -> Command:
    return click.option(
        "--controller",
        metavar="ADDR[;ADDR]",
        help="Address of the controller, if no name server or broker knows it.",
    )(command)


# The status of groups with a controller

_COLUMNS = [
    Column("broker"),
    Column("id", is_right=True),
    Column("role"),
    Column("in_sync", "IN SYNC"),
    Column("why"),
    Column("end", is_right=True),
    Column("behind", "BEHIND", show_bytes, is_right=True),
    Column("unconfirmed", "UNCONFIRMED", show_bytes, is_right=True),
    Column("lease_ms", "LEASE", show_seconds, is_right=True),
    Column("doubt"),
    Column("address", is_wide=True),
]


async def controlled_report(
    admin: Admin, cluster: str | None, given: str | None
) -> tuple[Report | None, dict[str, str]]:
    """The groups that a controller decides about, and what it finds wrong with each by its name;
    None without a controller."""
    from twinlog.admin import failover
    from twinlog.client.errors import ClientError
    from twinlog.controller.group_status import controlled_group

    addresses = await failover.find_controllers(admin, given)
    if not addresses:
        return None, {}
    try:
        controllers = failover.Controllers(
            admin, addresses, await failover.leader(admin, addresses)
        )
        seen = await controllers.observe()
    except ClientError as error:
        missing = f"the controller does not answer, so no master can be elected: {error}"
        return Report(sentence=missing, is_healthy=False), {}
    fixed = await _fixed_masters(admin)
    groups = [
        controlled_group(
            f,
            [e for e in seen.events if e.get("group") == f.broker_name],
            silent=seen.silent,
            fixed_master=fixed.get(f.broker_name, ""),
            elsewhere=seen.elsewhere,
        )
        for f in seen.groups
        if cluster in (None, f.cluster)
    ]
    if not groups:
        return None, {}
    return _report(groups), {group.name: group.problem for group in groups}


async def _fixed_masters(admin: Admin) -> dict[str, str]:
    """Who serves under a group's name, as name servers know it."""
    from twinlog.client.errors import ClientError

    try:
        brokers = (await admin.cluster()).brokers
    except ClientError:
        return {}
    return {name: broker.master_address or "" for name, broker in brokers.items()}


def _report(groups: list[ControlledGroup]) -> Report:
    rows = [row for group in groups for row in _rows(group)]
    return Report(
        [Table([], [_group_row(group) for group in groups], "groups"),
         Table(_COLUMNS, rows, "controlled")],
        sentence="; ".join(sentence_of(group) for group in groups),
        explanation=[_how(group) for group in groups if group.master_id is not None],
        is_healthy=all(group.is_healthy for group in groups),
    )  # fmt: skip


def sentence_of(group: ControlledGroup) -> str:
    """`broker-a is DEGRADED: 1 copy since 12:01:07 (minInSyncReplicas 1); replica 1 is down`."""
    from twinlog.controller.group_status import GroupState

    copies = "1 copy" if group.copies == 1 else f"{group.copies} copies"
    if group.state is GroupState.HEALTHY:
        return (
            f"{group.name} is healthy: {copies}, master {group.master_id} at {group.master_address}"
        )
    if group.state is GroupState.NO_MASTER:
        return f"{group.name} has NO MASTER: {group.reason}"
    if group.state in (GroupState.FROZEN, GroupState.NOT_ADOPTED):
        return f"{group.name} is {group.state}: {group.reason}"
    since = f" since {_clock(group.since_ms)}" if group.since_ms else ""
    text = f"{group.name} is {group.state}: {copies}{since}"
    return f"{text} (minInSyncReplicas {group.min_copies}); {group.reason}"


def _how(group: ControlledGroup) -> str:
    last = "" if any(line.role == "MASTER" for line in group.replicas) else "last "
    text = f"{group.name}: epoch {group.epoch}, {last}master {group.master_id}"
    if group.elected_ms:
        text += f" since {show_time(group.elected_ms)}: {group.elected_why}"
    members = ",".join(map(str, group.members))
    return f"{text}; in sync {{{members}}}"


def _clock(milliseconds: int | None) -> str:
    return show_time(milliseconds)[11:19]


def _group_row(group: ControlledGroup) -> dict[str, Any]:
    return {
        "broker": group.name,
        "state": str(group.state),
        "reason": group.reason,
        "copies": group.copies,
        "min_in_sync_replicas": group.min_copies,
        "since_ms": group.since_ms,
        "epoch": group.epoch,
        "master": group.master_id,
        "elected_ms": group.elected_ms,
        "elected_why": group.elected_why,
        "sync_state_set": list(group.members),
    }


def _rows(group: ControlledGroup) -> list[dict[str, Any]]:
    return [
        {
            "broker": group.name,
            "id": line.broker_id,
            "role": line.role,
            "in_sync": line.is_in_sync,
            "why": line.why,
            "end": line.end,
            "behind": line.behind,
            "unconfirmed": line.unconfirmed,
            "lease_ms": line.lease_ms,
            "doubt": line.is_doubtful,
            "address": line.address,
        }
        for line in group.replicas
    ]


# Changes


def _with_group(
    session: Session,
    name: str,
    controller: str | None,
    action: Callable[[Controllers, GroupFacts], Awaitable[T]],
) -> T:
    """Find the controller and the group, then act; a name that is not known is not found."""

    async def main(admin: Admin) -> T:
        from twinlog.admin.failover import NO_CONTROLLER, Controllers, find_controllers, leader

        addresses = await find_controllers(admin, controller)
        if not addresses:
            hint = "give its address with --controller HOST:PORT"
            await admin.cluster()  # Nobody may have answered: that is another sentence.
            raise CommandError(NO_CONTROLLER, NOT_FOUND, hint=hint)
        controllers = Controllers(admin, addresses, await leader(admin, addresses))
        groups = {group.broker_name: group for group in await controllers.groups()}
        if name not in groups:
            known = ", ".join(groups) or "none"
            text = f"the controller knows no group {name!r}"
            raise CommandError(text, NOT_FOUND, hint=f"there is: {known}")
        return await action(controllers, groups[name])

    return call(session, main)


def _replica_id(group: GroupFacts, wanted: str) -> int:
    for replica in group.replicas:
        if wanted in (str(replica.broker_id), replica.address):
            return replica.broker_id
    known = ", ".join(f"{r.broker_id} at {r.address}" for r in group.replicas) or "none"
    text = f"no replica {wanted!r} of {group.broker_name}"
    raise CommandError(text, NOT_FOUND, hint=f"there is: {known}")


def _done(session: Session, name: str, master: Master, how: str) -> int:
    sentence = f"replica {master.broker_id} at {master.address} is the master of {name}{how}"
    fields = {
        "broker": name,
        "master": master.broker_id,
        "address": master.address,
        "epoch": master.epoch,
        "sync_state_set": list(master.members),
    }
    return show(session, Report(fields=fields, sentence=sentence))


@click.command("switch", epilog="Example: twinlog ha switch broker-a --to 2")
@click.argument("name", metavar="BROKER")
@click.option("--to", "wanted", metavar="ID|ADDRESS",
              help="The new master; by default the member with the longest log.")  # fmt: skip
@controller_option
@once_options
def switch(session: Session, name: str, wanted: str | None, controller: str | None) -> int:
    """Make another replica of BROKER its master.

    The master holds new sends, waits until the others have everything, and hands over; what it held
    is passed on. No send fails. If the master is not ready within a second, nothing changes.
    """

    async def act(controllers: Controllers, group: GroupFacts) -> tuple[Master, str]:
        from twinlog.admin.failover import choose_target, present_master

        target = choose_target(group) if wanted is None else _replica_id(group, wanted)
        present = present_master(group)
        if present is not None and present.broker_id == target:
            return present, " already"
        return await controllers.switch(group, target), " now"

    master, how = _with_group(session, name, controller, act)
    return _done(session, name, master, how)


@click.command("elect", epilog="Example: twinlog ha elect broker-a --unclean broker-a --to 2")
@click.argument("name", metavar="BROKER")
@click.option("--unclean", metavar="BROKER",
              help="Take a replica that may lack messages: type the group's name.")  # fmt: skip
@click.option("--to", "wanted", metavar="ID|ADDRESS", help="The replica to take; with --unclean.")
@controller_option
@once_options
def elect(
    session: Session, name: str, unclean: str | None, wanted: str | None, controller: str | None
) -> int:
    """Ask the controller for a master of BROKER, or with --unclean force one.

    An unclean election loses acknowledged messages that the chosen replica lacks. A master that
    cannot be reached and is alone in its set answers sends until it hears of the election, so make
    sure that it is stopped.
    """
    if unclean is not None and unclean != name:
        raise CommandError(f"--unclean {unclean}: the name of the group is {name}", USAGE)
    if wanted is not None and unclean is None:
        raise CommandError("--to needs --unclean", USAGE, hint="or: twinlog ha switch --to")

    async def act(controllers: Controllers, group: GroupFacts) -> Master:
        if unclean is None:
            return await controllers.elect(group)
        target = None if wanted is None else _replica_id(group, wanted)
        return await controllers.elect_unclean(group, unclean, target)

    return _done(session, name, _with_group(session, name, controller, act), "")


def _change_replica(
    session: Session,
    name: str,
    wanted: str,
    controller: str | None,
    change: Callable[[Controllers, GroupFacts, int], Awaitable[str]],
) -> int:
    """`change` tells how the replica is afterwards."""

    async def act(controllers: Controllers, group: GroupFacts) -> tuple[int, str]:
        target = _replica_id(group, wanted)
        return target, await change(controllers, group, target)

    target, done = _with_group(session, name, controller, act)
    fields = {"broker": name, "replica": target}
    return show(session, Report(fields=fields, sentence=f"replica {target} of {name} {done}"))


@click.command("drain", epilog="Example: twinlog ha drain broker-a 2")
@click.argument("name", metavar="BROKER")
@click.argument("replica", metavar="ID|ADDRESS")
@controller_option
@once_options
def drain(session: Session, name: str, replica: str, controller: str | None) -> int:
    """Take a replica out of the in-sync set, so that no send waits for it.

    It still copies the log and serves reads, but it cannot become the master.
    """

    async def change(controllers: Controllers, group: GroupFacts, target: int) -> str:
        await controllers.set_learner(group.broker_name, target, is_learner=True)
        return "is drained: it may be stopped"

    return _change_replica(session, name, replica, controller, change)


@click.command("undrain", epilog="Example: twinlog ha undrain broker-a 2")
@click.argument("name", metavar="BROKER")
@click.argument("replica", metavar="ID|ADDRESS")
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), default=10.0, metavar="SECONDS",
              show_default=True, help="How long to wait until it is in the set.")  # fmt: skip
@controller_option
@once_options
def undrain(
    session: Session, name: str, replica: str, wait_s: float, controller: str | None
) -> int:
    """Let a drained replica be counted again; it is admitted when it has caught up."""

    async def change(controllers: Controllers, group: GroupFacts, target: int) -> str:
        if not next(r for r in group.replicas if r.broker_id == target).is_learner:
            return "is not drained"
        await controllers.set_learner(group.broker_name, target, is_learner=False)
        if await controllers.wait_until_in_sync(group.broker_name, target, wait_s):
            return "is in the set again"
        return "is admitted when it has caught up"

    return _change_replica(session, name, replica, controller, change)


@click.command("remove", epilog="Example: twinlog ha remove broker-a 2 --yes")
@click.argument("name", metavar="BROKER")
@click.argument("replica", metavar="ID|ADDRESS")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@controller_option
@once_options
def remove(session: Session, name: str, replica: str, yes: bool, controller: str | None) -> int:
    """Forget a replica that was stopped for good.

    The command refuses to remove the master or a replica that is alive. It also refuses while the
    group has no master, because this replica may then be the one that is needed.
    """
    confirm(f"forget replica {replica} of {name}?", yes)

    async def change(controllers: Controllers, group: GroupFacts, target: int) -> str:
        await controllers.remove(group, target)
        return "is forgotten"

    return _change_replica(session, name, replica, controller, change)
