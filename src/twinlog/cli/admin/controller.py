"""`twinlog controller`: without a verb it runs one; with a verb it looks after running ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin.ha_group import controller_option, sentence_of
from twinlog.cli.admin.options import cluster_options, once_options
from twinlog.cli.admin.session import Session, call, missing_of, run, show
from twinlog.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table

if TYPE_CHECKING:
    from twinlog.admin.client import Admin


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    short_help="Run a controller; or look after running ones.",
    epilog="Examples: twinlog controller -c controller.conf; twinlog controller status",
)
@click.option("-c", "--configFile", "path", help="A RocketMQ properties file.")
@click.option("-p", "--printConfigItem", "is_print", is_flag=True, help="Print all keys and exit.")
@click.pass_context
def controller(context: click.Context, path: str | None, is_print: bool) -> None:
    """Run a controller in the foreground: it decides which replica is the master of each group.

    With a command, it shows or changes running controllers instead.
    """
    if context.invoked_subcommand is not None:
        return
    from twinlog.cli.controller import run_controller

    run_controller(path, is_print=is_print)


_COLUMNS = [
    Column("id"),
    Column("address"),
    Column("leads"),
    Column("state"),
]
_GROUP_COLUMNS = [
    Column("broker"),
    Column("state"),
    Column("epoch", is_right=True),
    Column("master", is_right=True),
    Column("sync_state_set", "IN SYNC"),
    Column("policy"),
]


@controller.command("status", epilog="Example: twinlog controller status")
@controller_option
@cluster_options
def status(session: Session, controller: str | None) -> int:
    """Show the controllers, which one leads, and the groups that it decides about."""
    return run(session, lambda admin: _status(admin, controller))


async def _status(admin: Admin, given: str | None) -> Report:
    from twinlog.admin import failover
    from twinlog.admin.client import gather
    from twinlog.controller.group_status import controlled_group

    addresses = await failover.find_controllers(admin, given)
    if not addresses:
        await admin.cluster()  # Nobody may have answered: that is another sentence.
        hint = "give its address with --controller HOST:PORT"
        raise CommandError(failover.NO_CONTROLLER, NOT_FOUND, hint=hint)
    controllers = failover.Controllers(admin, addresses, await failover.leader(admin, addresses))
    leading = await failover.metadata(admin, controllers.leader)
    peers = {peer.partition("-")[2]: peer.partition("-")[0] for peer in leading.peers}
    asked = await gather([*peers, *addresses], lambda a: failover.metadata(admin, a))
    facts = await controllers.groups()
    groups = [controlled_group(group, []) for group in facts]
    bad = [sentence_of(group) for group in groups if not group.is_healthy]
    rows = [
        {
            "broker": group.name, "state": str(group.state), "epoch": group.epoch,
            "master": group.master_id, "sync_state_set": list(group.members),
            "policy": f"{fact.broker_role} {fact.flush_disk_type}",
        }
        for group, fact in zip(groups, facts, strict=True)
    ]  # fmt: skip
    count = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    return Report(
        [Table(_COLUMNS, _controller_rows(peers, asked), "controllers"),
         Table(_GROUP_COLUMNS, rows, "groups")],
        sentence="; ".join(bad) or f"{controllers.leader} leads and decides about {count}",
        is_healthy=not bad,
        missing=missing_of(asked),
    )  # fmt: skip


def _controller_rows(peers: dict[str, str], asked: Any) -> list[dict[str, Any]]:
    rows = []
    for address in {**peers, **asked.values, **asked.failures}:
        found = asked.values.get(address)
        rows.append(
            {
                "id": peers.get(address, ""),
                "address": address,
                "leads": bool(found and found.is_leader),
                "state": "up" if found else str(asked.failures[address]),
            }
        )
    return rows


@controller.command("adopt", epilog="Example: twinlog controller adopt broker-a --group broker-a")
@click.argument("name", metavar="BROKER")
@click.option("--group", "typed", metavar="BROKER", default="",
              help="Type the name of the group: it decides which replicas count.")  # fmt: skip
@controller_option
@once_options
def adopt(session: Session, name: str, typed: str, controller: str | None) -> int:
    """Declare that only the present replicas exist, and elect a master among them.

    Use this if the controller lost its state, or has an old copy of it, while replicas are missing.
    Messages that only a missing replica has are lost.
    """
    if typed != name:
        text = f"adoption decides which replicas count: type --group {name}"
        raise CommandError(text, USAGE)

    async def act(admin: Admin) -> int | None:
        from twinlog.admin.failover import Controllers

        controllers = await Controllers.find(admin, controller)
        await controllers.adopt(name, typed)
        return (await controllers.group(name)).master_broker_id

    master = call(session, act)
    fields = {"broker": name, "master": master}
    return show(session, Report(fields=fields, sentence=f"{name} is adopted, master {master}"))
