"""`twinlog migrate plan|run|verify|cutover`: from Apache RocketMQ to twinlog, and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.admin import migrate_cluster
from twinlog.cli.admin.options import cluster_options, once_options
from twinlog.cli.admin.session import Session, call, confirm, not_found, run, show
from twinlog.cli.admin.templates import fill, run_words
from twinlog.cli.exit_codes import FAILED, NOT_FOUND, OK, UNHEALTHY, USAGE, CommandError
from twinlog.cli.lazy import LazyGroup
from twinlog.cli.output import Column, Report, Table, show_bytes
from twinlog.cli.times import parse_duration
from twinlog.runtime.numbers import is_number

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.cutover import Steps
    from twinlog.admin.migration import Member, Move
    from twinlog.admin.migration_check import Checked

Command = Callable[..., Any]
_STEP_SECONDS = 0.3
_CAUGHT_UP_BYTES = 1 << 20  # So near that the rest is copied within a moment of standing still.
_SAMPLES = 20


def broker_options(command: Command) -> Command:
    command = click.option("--to", "wanted", metavar="ID|ADDRESS",
                           help="The replica that takes over; by default a twinlog replica of an "
                           "Apache master, or the reverse.")(command)  # fmt: skip
    return click.option("--broker", metavar="NAME", help="Only this group of brokers.")(command)


def target_option(command: Command) -> Command:
    return click.option("--target", metavar="ADDR[;ADDR]",
                        help="Name servers of another cluster, to which messages are copied."
                        )(command)  # fmt: skip


@click.group(cls=LazyGroup, short_help="Move a cluster from Apache, or back, or elsewhere.")
def migrate() -> None:
    """Move brokers from Apache RocketMQ to twinlog, or back, while clients run.

    A twinlog replica joins each Apache group, or the reverse, and copies log and tables at the same
    offsets. Then it takes the master's place, and the name servers direct clients to it. Rehearse
    the move first.

    With --target everything is moved to another cluster, with brokers and name servers of its own:
    messages are copied, and offsets translated.
    """


# plan

_COLUMNS = [
    Column("broker"),
    Column("master"),
    Column("replica"),
    Column("log_bytes", "LOG", show_bytes, is_right=True),
    Column("behind_bytes", "BEHIND", show_bytes, is_right=True),
    Column("left_behind_bytes", "LEFT BEHIND", show_bytes, is_right=True),
    Column("next_step", "NEXT STEP"),
]


@migrate.command(epilog="Example: twinlog migrate plan -n old-namesrv:9876")
@broker_options
@target_option
@cluster_options
def plan(session: Session, target: str | None, broker: str | None, wanted: str | None) -> int:
    """Show what would move, the obstacles, and the next step. Changes nothing.

    Exit code 10: there is an obstacle.
    """
    if target is not None:
        return migrate_cluster.plan(session, target)

    async def action(admin: Admin) -> Report:
        return plan_report(await _moves(admin, broker, wanted))

    return run(session, action)


def plan_report(moves: list[Move]) -> Report:
    tables = [Table(_COLUMNS, [_row(move) for move in moves], "moves")]
    obstacles = [{"obstacle": f"{m.group}: {text}"} for m in moves for text in m.obstacles]
    if obstacles:
        tables.append(Table([Column("obstacle")], obstacles, "obstacles"))
    sentence = "nothing stands in the way" if not obstacles else "fix the obstacles first"
    notes = [f"{move.group}: {text}" for move in moves for text in move.notes]
    notes += [
        f"{move.group}: an Apache master gives an empty replica its newest file only; the"
        f" {show_bytes(move.left_behind)} before it come with `run --seed STORE`"
        for move in moves
        if move.left_behind
    ]
    return Report(tables, sentence=sentence, is_healthy=not obstacles, notes=notes)


def _row(move: Move) -> dict[str, Any]:
    return {
        "broker": move.group,
        "master": move.source.name,
        "replica": "" if move.target is None else move.target.name,
        "log_bytes": move.source.log_end - move.source.log_min,
        "behind_bytes": move.behind,
        "left_behind_bytes": move.left_behind,
        "next_step": _next_step(move),
    }


def _next_step(move: Move) -> str:
    if move.obstacles:
        return "fix the obstacles below"
    if move.target is None:
        return f"twinlog migrate run --broker {move.group}"
    if (move.behind or 0) > _CAUGHT_UP_BYTES:
        return "wait until it has caught up"
    return f"twinlog migrate cutover --broker {move.group} --rehearse"


async def _moves(admin: Admin, broker: str | None, wanted: str | None) -> list[Move]:
    from twinlog.admin.migration import survey

    moves = await survey(admin, broker=broker, wanted=wanted)
    groups = [] if moves else list((await admin.cluster()).brokers)
    if not moves and broker is not None and broker not in groups:
        raise not_found("broker", broker, groups)
    if not moves:
        text = "no master answers: there is nothing to move. If a cutover was interrupted after it"
        text += " had stopped the old master: `twinlog ha promote` makes the replica the master"
        raise CommandError(text, UNHEALTHY)
    return moves


# run


@migrate.command(
    "run",
    epilog="Example: twinlog migrate run --dir /var/lib/twinlog --start 'systemctl start {name}'",
)
@click.option("--dir", "directory", type=click.Path(path_type=Path),
              help="Files of the new replicas: DIR/BROKER/broker.conf, the store, the rules."
              )  # fmt: skip
@click.option("--rules", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="With --target: plain_acl.yml of a twinlog cluster.")  # fmt: skip
@click.option("--port", default=10911, show_default=True,
              help="listenPort of the first replica; each further one is 10 higher.")  # fmt: skip
@click.option("--start", metavar="TEXT",
              help="Starts one replica; {name}, {id}, {conf} are filled in.")  # fmt: skip
@click.option("--seed", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The old broker's store, or a copy: its full log files are copied first."
              )  # fmt: skip
@click.option("--wait", default="10m", show_default=True, metavar="TIME",
              help="How long the replicas may take to catch up.")  # fmt: skip
@broker_options
@target_option
@once_options
def run_command(
    session: Session,
    target: str | None,
    rules: Path | None,
    directory: Path | None,
    port: int,
    start: str | None,
    seed: Path | None,
    wait: str,
    broker: str | None,
    wanted: str | None,
) -> int:
    """Prepare a replica for each group, start it, and wait until it has caught up.

    A file that is there already is left as it is, so that the command may be called again. With
    --target: make topics, groups and access rules there, and copy messages until all are there.
    """
    if target is not None:
        return migrate_cluster.run(session, target, rules)
    if directory is None:
        raise CommandError("--dir says where the files of the new replicas go", USAGE)
    moves = call(session, lambda admin: _moves(admin, broker, wanted))
    _check_clear(moves)
    if seed is not None and len(moves) > 1:
        raise CommandError("--seed is the store of one broker: add --broker", USAGE)
    for number, move in enumerate(moves):
        if move.target is not None:
            click.echo(f"{move.group}: {move.target.name} is its replica already")
            continue
        try:
            conf = _prepare(session, move, directory / move.group, port + 10 * number, seed)
        except OSError as error:
            text = f"{move.group}: the files of its replica are not complete: {error}"
            raise CommandError(
                text, FAILED, hint="call this again when that is repaired"
            ) from error
        click.echo(f"{move.group}: {conf}")
        if start is not None:
            run_words(fill(start, "", name=move.group, id=move.free_id, conf=conf))
    if start is None and any(move.target is None for move in moves):
        click.echo("start a broker with each file, then call this again")
        return OK
    return _wait_caught_up(session, moves, parse_duration(wait))


def _check_clear(moves: list[Move]) -> None:
    obstacles = [f"{move.group}: {text}" for move in moves for text in move.obstacles]
    if obstacles:
        raise CommandError(f"not begun: {'; '.join(obstacles)}", UNHEALTHY)


def _prepare(session: Session, move: Move, home: Path, port: int, seed: Path | None) -> Path:
    """The replica's files, unless they are there."""
    from twinlog.admin.migration import replica_config

    conf = home / "broker.conf"
    if conf.exists():
        return conf
    store = home / "store"
    (home / "conf").mkdir(parents=True, exist_ok=True)
    if seed is not None:
        _copy_log(seed / "commitlog", store / "commitlog", move.source)
    _write_queue_ends(session, move, store / "twinlog")
    values = replica_config(move, session.namesrv, str(store), port)
    if values.get("aclEnable") == "true":
        _write_rules(session, move, home / "conf" / "plain_acl.yml")
        values["rocketmqHome"] = str(home)
    # Last, and as a whole: where it is, the replica can be started.
    _write(conf, "".join(f"{key}={value}\n" for key, value in values.items()))
    return conf


def _write(path: Path, text: str, *, is_secret: bool = False) -> None:
    from twinlog.runtime.disk import PosixDisk, write_atomically

    disk = PosixDisk()
    try:
        write_atomically(disk, str(path), text.encode(), is_secret=is_secret)
    finally:
        disk.close()


def _write_queue_ends(session: Session, move: Move, own: Path) -> None:
    """The log does not say how far a queue went whose messages have all expired. An Apache replica
    does not read this, and begins such a queue at 0."""
    from twinlog.admin.migration_check import ends_without_messages
    from twinlog.runtime.disk import PosixDisk
    from twinlog.store.queue.queue_manifest import QueueManifest

    ends = call(session, lambda admin: ends_without_messages(admin, move.source.address))
    if not ends:
        return
    own.mkdir(parents=True, exist_ok=True)
    disk = PosixDisk()
    try:
        QueueManifest(disk, str(own)).write(ends, 0)
    finally:
        disk.close()


def _copy_log(source: Path, target: Path, master: Member) -> None:
    """The full files, which do not change any more; the rest comes by replication."""
    size = master.segment_size
    files = sorted(path for path in source.iterdir() if is_number(path.name))
    full = [path for path in files if int(path.name) + size <= master.log_end]
    if not files:
        raise CommandError(f"{source} does not contain a log", NOT_FOUND)
    target.mkdir(parents=True, exist_ok=True)
    for path in full:
        if path.stat().st_size != size:
            raise CommandError(f"{path} is not {size} bytes long: not a file of this log", FAILED)
        if (target / path.name).exists():
            continue  # By an earlier call, as a whole.
        _copy_whole(path, target / path.name)
        click.echo(f"copied {path}")


def _copy_whole(source: Path, target: Path) -> None:
    """A durable copy, or none: half of a segment would be taken for a damaged one."""
    from twinlog.runtime.disk import copy_file

    part = target.with_name(f"{target.name}.tmp")
    try:
        copy_file(str(source), str(part))
        part.rename(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _write_rules(session: Session, move: Move, path: Path) -> None:
    import yaml

    from twinlog.admin.rules import read_rules

    if move.source.is_twinlog:
        raise CommandError(
            f"{move.source.name} does not show its rules", FAILED,
            hint=f"copy its plain_acl.yml to {path} and call this again",
        )  # fmt: skip
    rules = call(session, lambda admin: read_rules(admin, move.source.address))
    _write(path, yaml.safe_dump(rules, sort_keys=False), is_secret=True)


def _wait_caught_up(session: Session, moves: list[Move], seconds: float) -> int:
    deadline = time.monotonic() + seconds
    names = [move.group for move in moves]

    async def look(admin: Admin) -> list[Move]:
        return [move for move in await _moves(admin, None, None) if move.group in names]

    while True:
        found = call(session, look)
        behind = {m.group: m.behind for m in found if m.behind is None or m.behind > 0}
        if not behind:
            return show(session, plan_report(found))
        if time.monotonic() > deadline:
            text = ", ".join(
                f"{name}: {'not registered' if lag is None else show_bytes(lag) + ' behind'}"
                for name, lag in behind.items()
            )
            raise CommandError(f"not caught up after {seconds:.0f} s: {text}", UNHEALTHY)
        time.sleep(_STEP_SECONDS)


# verify

_CHECK_COLUMNS = [
    Column("broker"),
    Column("topics", is_right=True),
    Column("groups", is_right=True),
    Column("offsets", is_right=True),
    Column("offsets_behind", "NOT YET THERE", is_right=True),
    Column("queues", is_right=True),
    Column("messages", is_right=True),
    Column("findings", is_right=True),
]


@migrate.command(epilog="Example: twinlog migrate verify --deep")
@click.option("--deep", is_flag=True, help="Compare every message, not only some of each queue.")
@broker_options
@target_option
@once_options
def verify(
    session: Session, deep: bool, target: str | None, broker: str | None, wanted: str | None
) -> int:
    """Compare the replicas with their masters. Exit code 0: equal; 1: they differ, and where.

    It compares topics, groups, committed offsets, the ends of all queues, and messages byte for
    byte.
    """
    if target is not None:
        return migrate_cluster.verify(session, target, deep=deep)

    async def action(admin: Admin) -> list[tuple[Move, Checked]]:
        moves = await _moves(admin, broker, wanted)
        return [(move, await check(admin, move, deep=deep)) for move in moves]

    return _shown(session, call(session, action))


async def check(admin: Admin, move: Move, *, deep: bool = False) -> Checked:
    from twinlog.admin.migration_check import Checked, compare_logs, compare_tables, read_tables

    checked = Checked()
    if move.target is None:
        checked.findings.append(f"{move.group} has no replica")
        return checked
    mine, theirs = move.source.address, move.target.address
    source, target = await asyncio.gather(read_tables(admin, mine), read_tables(admin, theirs))
    compare_tables(source, target, checked)
    both = sorted(source.topics.keys() & target.topics.keys())
    await compare_logs(admin, mine, theirs, both, checked, samples=None if deep else _SAMPLES)
    return checked


def _shown(session: Session, checks: list[tuple[Move, Checked]]) -> int:
    rows = [
        {"broker": move.group, "topics": c.topics, "groups": c.groups, "offsets": c.offsets,
         "offsets_behind": c.offsets_behind, "queues": c.queues, "messages": c.messages,
         "findings": len(c.findings)}
        for move, c in checks
    ]  # fmt: skip
    tables = [Table(_CHECK_COLUMNS, rows, "checks")]
    found = [{"broker": m.group, "finding": text} for m, c in checks for text in c.findings]
    if found:
        tables.append(Table([Column("broker"), Column("finding")], found, "findings"))
    sentence = f"{len(found)} differences" if found else "the replicas have what their masters have"
    show(session, Report(tables, sentence=sentence, is_healthy=not found))
    return FAILED if found else OK


# cutover

_STEP_COLUMNS = [Column("broker"), Column("step"), Column("seconds", is_right=True)]


@migrate.command(epilog="Example: twinlog migrate cutover --stop 'ssh {host} mqshutdown broker'")
@click.option("--stop", metavar="TEXT", help="Stops the old master (SIGTERM); {name}, {id}, {host},"
              " {port} are filled in.")  # fmt: skip
@click.option("--promote", metavar="TEXT",
              help="Makes an Apache replica the master: brokerId=0, and a restart.")  # fmt: skip
@click.option("--rehearse", is_flag=True,
              help="Stop sends, wait for the replica, measure, and take sends again.")  # fmt: skip
@click.option("--wait", default="60s", show_default=True, metavar="TIME",
              help="How long each step may take.")  # fmt: skip
@click.option("--register", metavar="TEXT",
              help="With --target: restarts a new broker with {namesrv} added to namesrvAddr in its"
              " file.")  # fmt: skip
@click.option("--settle", default="6s", show_default=True, metavar="TIME",
              help="With --target: how long consumers must be quiet before offsets are translated."
              )  # fmt: skip
@click.option("--leave-waiting", is_flag=True,
              help="With --target: leave delayed messages and open transactions behind."
              )  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@broker_options
@target_option
@once_options
def cutover(
    session: Session,
    target: str | None,
    register: str | None,
    settle: str,
    leave_waiting: bool,
    stop: str | None,
    promote: str | None,
    rehearse: bool,
    wait: str,
    yes: bool,
    broker: str | None,
    wanted: str | None,
) -> int:
    """Make the replicas the masters, one group after the other.

    The old master refuses sends, its replica copies the rest of the log, the old master is stopped,
    and the replica is promoted. If a step before the stop fails, the old master serves sends again.
    """
    if target is not None:
        return migrate_cluster.cutover(
            session, target, stop=stop, register=register, is_rehearsal=rehearse,
            leaves_waiting=leave_waiting,
            settle=parse_duration(settle), wait=parse_duration(wait), yes=yes,
        )  # fmt: skip
    moves = call(session, lambda admin: _moves(admin, broker, wanted))
    _check_ready(session, moves, stop, promote, rehearse)
    if not rehearse:
        confirm(f"stop the masters of {', '.join(move.group for move in moves)}?", yes)
    seconds = parse_duration(wait)
    done = [(move, _cut_over(session, move, stop, promote, rehearse, seconds)) for move in moves]
    return show(session, _cutover_report(done, rehearse))


def _check_ready(
    session: Session, moves: list[Move], stop: str | None, promote: str | None, rehearse: bool
) -> None:
    _check_clear(moves)
    for move in moves:
        if move.target is None:
            raise CommandError(f"{move.group} has no replica", UNHEALTHY, hint=_next_step(move))
        if not rehearse and not move.target.is_twinlog and promote is None:
            raise CommandError(f"{move.target.name} cannot be promoted by request", USAGE,
                               hint="add --promote")  # fmt: skip
        checked = call(session, partial(check, move=move))
        if checked.findings and (move.behind or 0) <= _CAUGHT_UP_BYTES:
            raise CommandError(f"not begun: {checked.findings[0]}", UNHEALTHY,
                               hint="see: twinlog migrate verify")  # fmt: skip
        if (move.behind or 0) > _CAUGHT_UP_BYTES:
            raise CommandError(f"{move.target.name} is {show_bytes(move.behind)} behind", UNHEALTHY)
    if not rehearse and stop is None:
        raise CommandError("--stop says how the old master is stopped", USAGE,
                           hint="--rehearse does everything but that")  # fmt: skip


def _cut_over(
    session: Session,
    move: Move,
    stop: str | None,
    promote: str | None,
    rehearse: bool,
    seconds: float,
) -> Steps:
    from twinlog.admin import cutover as core

    def runner(template: str | None) -> Callable[[Member], Any]:
        async def act(member: Member) -> None:
            words = fill(template or "", member.address, name=move.group, id=member.broker_id)
            await asyncio.to_thread(run_words, words)

        return act

    async def action(admin: Admin) -> Steps:
        if rehearse:
            return await core.rehearse(admin, move, wait_seconds=seconds)
        return await core.cut_over(
            admin, move, stop=runner(stop), promote=runner(promote) if promote else None,
            wait_seconds=seconds,
        )  # fmt: skip

    try:
        return call(session, action)
    except core.CutoverError as error:
        raise CommandError(str(error), FAILED) from error


def _cutover_report(done: list[tuple[Move, Steps]], rehearse: bool) -> Report:
    rows = [
        {"broker": move.group, "step": name, "seconds": round(seconds, 3)}
        for move, steps in done
        for name, seconds in steps.times.items()
    ]
    longest = max(steps.seconds for _, steps in done)
    if rehearse:
        sentence = f"rehearsed: no sends were taken for {longest:.2f} s, and they are taken again"
    else:
        names = ", ".join(f"{m.group}: {m.target.address if m.target else ''}" for m, _ in done)
        sentence = f"moved to {names}; no sends were taken for {longest:.2f} s at most"
    notes = [
        f"{move.group}: {steps.offsets_carried} committed offsets were carried over"
        for move, steps in done
        if steps.offsets_carried
    ]
    return Report([Table(_STEP_COLUMNS, rows, "steps")], sentence=sentence, notes=notes)
