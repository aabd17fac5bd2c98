"""`twinlog cluster upgrade-check` and `rolling-restart`."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import click

from twinlog.cli.admin.options import cluster_report, once_options
from twinlog.cli.admin.session import Session, call, show
from twinlog.cli.admin.templates import fill, run_words
from twinlog.cli.exit_codes import OK, UNHEALTHY, CommandError
from twinlog.cli.output import Column, Report, Table
from twinlog.cli.times import parse_duration

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.upgrade import RestartStep

_STEP_SECONDS = 0.3


@click.command("upgrade-check", epilog="Example: twinlog cluster upgrade-check")
@cluster_report
async def upgrade_check(admin: Admin) -> Report:
    """Say whether an upgrade may begin, in which order, and what to fix first. Exit 0 or 10."""
    from twinlog.admin.upgrade import upgrade_check as check

    found = await check(admin)
    rows = [
        {"step": number, "broker": f"{step.broker_name}:{step.broker_id}", "role": step.role,
         "address": step.address, "version": step.version}
        for number, step in enumerate(found.steps, 1)
    ]  # fmt: skip
    columns = [Column("step", is_right=True), Column("broker"), Column("role"), Column("address"),
               Column("version")]  # fmt: skip
    tables = [Table(columns, rows, "steps", empty="no broker has registered")]
    if found.obstacles:
        obstacles = [{"obstacle": text} for text in found.obstacles]
        tables.append(Table([Column("obstacle")], obstacles, "obstacles"))
    sentence = "fit for an upgrade, in this order" if found.is_fit else "not fit for an upgrade"
    return Report(tables, sentence=sentence, is_healthy=found.is_fit, notes=list(found.notes))


@click.command(
    "rolling-restart",
    epilog="Example: twinlog cluster rolling-restart --command 'ssh {host} systemctl restart mq'",
)
@click.option("--command", "template", metavar="TEXT", required=True,
              help="Restarts one broker; {name}, {id}, {host}, {port}, {role} are filled in."
              )  # fmt: skip
@click.option("--wait", default="120s", show_default=True, metavar="TIME",
              help="How long to wait after each restart until all are in sync.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only print the commands.")
@once_options
def rolling_restart(session: Session, template: str, wait: str, dry_run: bool) -> int:
    """Restart all brokers, slaves first; wait after each until all are in sync.

    The master of a group with a controller hands over first. Begins only on a healthy cluster and
    stops at the first broker that does not come back, or that the command has not restarted. Exit
    code 10: the cluster is not healthy, 1: a command failed.
    """
    from twinlog.admin.upgrade import hand_over
    from twinlog.admin.upgrade import upgrade_check as check

    seconds = parse_duration(wait)  # A wrong one is said before anything is restarted.
    found = call(session, check)
    if not found.is_fit:
        raise CommandError(f"not begun: {'; '.join(found.obstacles)}", UNHEALTHY)
    done: list[dict[str, object]] = []
    for step in found.steps:
        words = fill(
            template, step.address, name=step.broker_name, id=step.broker_id, role=step.role
        )
        _say(session, words)
        name = f"{step.broker_name}:{step.broker_id}"
        done.append({"broker": name, "command": words, "seconds": None})
        if dry_run:
            continue
        if successor := call(session, functools.partial(hand_over, step=step)):
            _say(session, f"replica {successor} is the master of {step.broker_name} now")
        began = time.monotonic()
        run_words(words, is_quiet=not _is_for_people(session))
        _wait_in_sync(session, step, len(found.steps), seconds)
        done[-1]["seconds"] = round(time.monotonic() - began, 1)
        _say(session, f"{name} in sync after {done[-1]['seconds']} s")
    return OK if _is_for_people(session) else show(session, Report([Table(_DONE, done, "steps")]))


_DONE = [Column("broker"), Column("command"), Column("seconds", is_right=True)]


def _is_for_people(session: Session) -> bool:
    return session.output in ("table", "wide")


def _say(session: Session, text: str) -> None:
    """Each step as it happens; a program that reads the output gets all of them at the end."""
    click.echo(text, err=not _is_for_people(session))


def _wait_in_sync(session: Session, step: RestartStep, count: int, seconds: float) -> None:
    """Until it was restarted, all brokers are there and every slave is in sync, twice in a row."""
    from twinlog.admin.upgrade import is_restarted
    from twinlog.cli.admin.cluster import health_report

    deadline = time.monotonic() + seconds
    in_a_row, problem = 0, ""
    while in_a_row < 2:
        if time.monotonic() > deadline:
            text = (
                f"{step.broker_name}:{step.broker_id} is not back after {seconds:.0f} s: {problem}"
            )
            raise CommandError(text, UNHEALTHY)
        time.sleep(_STEP_SECONDS)
        try:
            report = call(session, lambda admin: health_report(admin, count))
        except CommandError as error:
            in_a_row, problem = 0, error.text
        else:
            in_a_row = in_a_row + 1 if report.is_healthy else 0
            problem = report.sentence
            # A command may return before the broker has even begun to stop.
            if report.is_healthy and not call(session, functools.partial(is_restarted, step=step)):
                in_a_row, problem = 0, "the command has not restarted it"
