"""`twinlog migrate ... --target NAMESRV`: to another cluster, which stays a cluster of its own."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from twinlog.cli.admin.session import Session, confirm, run_async, show
from twinlog.cli.admin.templates import fill, run_words
from twinlog.cli.exit_codes import FAILED, OK, UNHEALTHY, USAGE, CommandError
from twinlog.cli.output import Column, Report, Table

if TYPE_CHECKING:
    from twinlog.admin.client import Admin
    from twinlog.admin.cutover import Steps
    from twinlog.admin.migration import Member
    from twinlog.admin.relocation import Relocation

T = TypeVar("T")
_SAMPLES = 20
_TELL_SECONDS = 5.0
Work = Callable[["Admin", "Admin", "Relocation"], Awaitable[T]]


def _between(session: Session, target: str, work: Work[T]) -> T:
    """Survey both clusters, and work on what was found."""
    from twinlog.admin import relocation
    from twinlog.admin.copying import CopyError
    from twinlog.admin.cutover import CutoverError

    async def main() -> T:
        async with session.admin() as source, replace(session, namesrv=target).admin() as other:
            move = await relocation.survey(source, other)
            return await work(source, other, move)

    try:
        return run_async(session, main)
    except (CopyError, CutoverError) as error:
        raise CommandError(str(error), FAILED) from error


@contextlib.contextmanager
def alone(target: str) -> Iterator[None]:
    """One migration to a cluster at a time, of this user on this machine: two would copy each
    message twice. The kernel releases the lock of one that is killed."""
    name = hashlib.sha256(target.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"twinlog-migrate-{os.getuid()}-{name}"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        text = f"another `twinlog migrate` copies to {target}; wait until it has ended"
        raise CommandError(text, FAILED) from error
    finally:
        os.close(lock)


def _clear(move: Relocation) -> None:
    if move.obstacles:
        raise CommandError(f"not begun: {'; '.join(move.obstacles)}", UNHEALTHY)


_COLUMNS = [
    Column("topic"),
    Column("queues", is_right=True),
    Column("not_copied", "NOT COPIED", is_right=True),
]


def plan(session: Session, target: str) -> int:
    return show(session, _between(session, target, _look))


async def _look(source: Admin, target: Admin, move: Relocation) -> Report:
    from twinlog.admin import relocation

    if move.obstacles:
        obstacles = [{"obstacle": text} for text in move.obstacles]
        table = Table([Column("obstacle")], obstacles, "obstacles")
        return Report([table], sentence="fix the obstacles first", is_healthy=False)
    found = await relocation.lags(source, target, move)
    rows = [
        {
            "topic": topic,
            "queues": sum(pair.source.topic == topic for pair in found),
            "not_copied": sum(n for pair, n in found.items() if pair.source.topic == topic),
        }
        for topic in sorted(move.topics)
    ]
    left = sum(found.values())
    sentence = f"{left} messages have no copy yet" if left else "every message has its copy"
    return Report(
        [Table(_COLUMNS, rows, "topics")], sentence=sentence, notes=await relocation.waiting(source)
    )


def run(session: Session, target: str, rules: Path | None) -> int:
    async def work(source: Admin, other: Admin, move: Relocation) -> Report:
        from twinlog.admin import relocation
        from twinlog.admin.copying import copy_all

        _clear(move)
        await relocation.make_tables(other, move)
        if await relocation.has_rules(source, move.sources):
            await relocation.make_rules(other, move, await _rules(source, move, rules))
        await copy_all(source, other, move.pairs, _Teller())
        return await _look(source, other, move)

    with alone(target):
        report = _between(session, target, work)
    return show(session, report)


async def _rules(source: Admin, move: Relocation, file: Path | None) -> dict[str, Any]:
    import yaml

    from twinlog.admin.migration import ask_member
    from twinlog.admin.rules import read_rules
    from twinlog.runtime.small_file import MIB, read_small_file

    if file is not None:
        return dict(yaml.safe_load(read_small_file(file, 16 * MIB)) or {})
    master = next(iter(move.sources.values())).master_address or ""
    if (await ask_member(source, master, 0)).is_twinlog:
        raise CommandError(
            f"{master} does not show the secrets of its accounts", USAGE,
            hint="--rules FILE is a copy of its plain_acl.yml",
        )  # fmt: skip
    return await read_rules(source, master)


class _Teller:
    """Says now and then how much was copied."""

    def __init__(self) -> None:
        self._count = 0
        self._said = time.monotonic()

    def __call__(self, count: int) -> None:
        self._count += count
        if time.monotonic() - self._said > _TELL_SECONDS:
            self._said = time.monotonic()
            click.echo(f"twinlog: {self._count} messages copied", err=True)


_CHECK_COLUMNS = [
    Column(name, is_right=True) for name in ("topics", "groups", "queues", "messages", "findings")
]


def verify(session: Session, target: str, *, deep: bool) -> int:
    async def work(source: Admin, other: Admin, move: Relocation) -> Any:
        from twinlog.admin import relocation

        _clear(move)
        return await relocation.compare(source, other, move, samples=None if deep else _SAMPLES)

    checked = _between(session, target, work)
    row = {"topics": checked.topics, "groups": checked.groups, "queues": checked.queues,
           "messages": checked.messages, "findings": len(checked.findings)}  # fmt: skip
    tables = [Table(_CHECK_COLUMNS, [row], "checks")]
    if checked.findings:
        rows = [{"finding": text} for text in checked.findings]
        tables.append(Table([Column("finding")], rows, "findings"))
    is_equal = not checked.findings
    sentence = "the other cluster has everything" if is_equal else f"{len(rows)} differences"
    show(session, Report(tables, sentence=sentence, is_healthy=is_equal))
    return OK if is_equal else FAILED


def cutover(
    session: Session,
    target: str,
    *,
    stop: str | None,
    register: str | None,
    is_rehearsal: bool,
    leaves_waiting: bool,
    settle: float,
    wait: float,
    yes: bool,
) -> int:
    if not is_rehearsal and (stop is None or register is None):
        raise CommandError(
            "--stop says how an old broker is stopped, --register how a new one is restarted with"
            " the old name servers in its file", USAGE, hint="--rehearse does everything but that",
        )  # fmt: skip
    if not is_rehearsal:
        confirm(f"stop the old brokers and move their clients to {target}?", yes)

    def runner(template: str | None) -> Callable[[str, Member], Awaitable[None]]:
        async def act(name: str, member: Member) -> None:
            import asyncio

            words = fill(template or "", member.address, name=name, id=member.broker_id,
                         namesrv=session.namesrv)  # fmt: skip
            await asyncio.to_thread(run_words, words)

        return act

    async def work(source: Admin, other: Admin, move: Relocation) -> Steps:
        from twinlog.admin import relocation

        _clear(move)
        left = [] if is_rehearsal or leaves_waiting else await relocation.waiting(source)
        if left:
            raise CommandError(
                f"not begun: {'; '.join(left)}", UNHEALTHY,
                hint="wait for them, or leave them behind with --leave-waiting",
            )  # fmt: skip
        await relocation.make_tables(other, move)
        if is_rehearsal:
            return await relocation.rehearse(source, other, move, wait_seconds=wait)
        return await relocation.cut_over(
            source, other, move, stop=runner(stop), register=runner(register),
            settle_seconds=settle, wait_seconds=wait,
        )  # fmt: skip

    with alone(target):
        steps = _between(session, target, work)
    return show(session, _steps(steps, target, is_rehearsal))


def _steps(steps: Steps, target: str, is_rehearsal: bool) -> Report:
    columns = [Column("step"), Column("seconds", is_right=True)]
    rows = [{"step": name, "seconds": round(at, 3)} for name, at in steps.times.items()]
    if is_rehearsal:
        sentence = f"rehearsed: no sends were taken for {steps.seconds:.2f} s"
    else:
        sentence = f"moved to {target}; no sends were taken for {steps.seconds:.2f} s"
    offsets = f"{steps.offsets_carried} committed offsets were translated"
    return Report([Table(columns, rows, "steps")], sentence=sentence, notes=[offsets])
