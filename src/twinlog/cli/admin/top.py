"""`twinlog top`: one screen of a cluster, live. `q` quits.

The screen is made by a pure function of what was seen and of the terminal's size, again for each
round, so a window that changes its size is drawn rightly within a second. Nothing but plain control
sequences is used: it works over ssh.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from twinlog.cli.admin.options import once_options
from twinlog.cli.admin.session import Session, run_async
from twinlog.cli.exit_codes import UNHEALTHY, USAGE, CommandError
from twinlog.cli.output import (
    GAP,
    cut,
    fit,
    padded,
    show_bytes,
    show_percent,
    show_seconds,
    width_of,
)
from twinlog.cli.times import now_ms

if TYPE_CHECKING:
    from twinlog.admin.top import BrokerLine, TopView

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BOLD, _RED, _GREEN, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
_PROBLEMS_MAX = 3


@click.command("top", epilog="Example: twinlog top --once",
               short_help="Show the cluster on one screen, live.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one screen and exit with 0 or 10.")
@click.option("--every", "seconds", default=1.0, show_default=True,
              type=click.FloatRange(0.1, 60), help="Seconds between two refreshes.")  # fmt: skip
@once_options
def top(session: Session, once: bool, seconds: float) -> int:
    """Show health, brokers, lag, rates, the busiest topics and groups, disks; updated live."""
    if session.output not in ("table", "json") or (session.output == "json" and not once):
        raise CommandError("top prints a table, or JSON together with --once", USAGE)
    if once:
        return _print_once(session)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("this is not a terminal", USAGE, hint="add --once")
    return run_async(session, lambda: _live(session, seconds))


def _print_once(session: Session) -> int:
    async def seen() -> TopView:
        from twinlog.admin.top import look

        async with session.admin() as admin:
            return await look(admin, None, now_ms())

    view = run_async(session, seen)
    if session.output == "json":
        click.echo(as_json(view))
        return 0 if view.health.is_healthy else UNHEALTHY
    columns = shutil.get_terminal_size((120, 50)).columns
    width = columns if sys.stdout.isatty() else max(columns, 120)
    for line in screen(view, width, 10_000, _clock(), color=session.color, is_live=False):
        click.echo(line)
    return 0 if view.health.is_healthy else UNHEALTHY


async def _live(session: Session, seconds: float) -> int:
    """A server that does not answer in time is waited for, and `q` is not."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    with _terminal(keys):
        quitting = asyncio.ensure_future(_quit_pressed(keys))
        showing = asyncio.ensure_future(_show(session, seconds))
        try:
            await asyncio.wait({quitting, showing}, return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                showing.result()  # It never ends but by an error.
        finally:
            quitting.cancel()
            showing.cancel()
            await asyncio.wait({quitting, showing})
    return 0


async def _show(session: Session, seconds: float) -> None:
    from twinlog.admin.top import TopView, look
    from twinlog.client.errors import ClientError
    from twinlog.observe.health import Code, Finding, Health, Level

    view: TopView | None = None
    async with session.admin() as admin:
        while True:
            try:
                view = await look(admin, view, now_ms())
            except ClientError as error:
                text = f"nobody answers: {error}"
                down = Finding(Level.PROBLEM, Code.NAME_SERVER_DOWN, session.namesrv, text)
                view = TopView(Health((down,)))
            _draw(view, color=session.color)
            await asyncio.sleep(seconds)


async def _quit_pressed(keys: asyncio.Queue[str]) -> None:
    while await keys.get() not in ("q", "Q", "\x03", "\x04"):
        pass


@contextlib.contextmanager
def _terminal(keys: asyncio.Queue[str]) -> Iterator[None]:
    """A screen of its own and single keys; as it was before, whatever happens."""
    import termios
    import tty

    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()
    kept = termios.tcgetattr(descriptor)

    def read() -> None:
        data = os.read(descriptor, 64).decode("utf-8", "replace")
        for key in data or "q":  # An end of input is an end.
            keys.put_nowait(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    for number in (signal.SIGTERM, signal.SIGHUP):  # Whoever ends it gets the terminal back, too.
        loop.add_signal_handler(number, keys.put_nowait, "q")
    click.echo(_ENTER, nl=False)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        click.echo(_LEAVE, nl=False)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, kept)


def _draw(view: TopView, *, color: bool) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())  # COLUMNS does not know of a resize.
    lines = screen(view, size.columns, size.lines, _clock(), color=color)
    # Each line is cut at its end and the rest of the screen cleared: no flicker.
    click.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines[:-1]), nl=False)
    click.echo(f"{lines[-1]}\x1b[K\x1b[J", nl=False)


def _clock() -> str:
    return datetime.now().strftime("%H:%M:%S")


def as_json(view: TopView) -> str:
    """What is on the screen as one object, with all lines and figures that are not rounded."""
    import dataclasses
    import json

    import msgspec

    # The totals are of the broker's whole life, under keys of our own.
    data = msgspec.to_builtins(dataclasses.replace(view, totals={}))
    del data["totals"]
    health = {"healthy": view.health.is_healthy, **data.pop("health")}
    return json.dumps({**health, **data}, indent=2)


# The screen: pure


def screen(
    view: TopView,
    width: int,
    height: int,
    clock: str,
    *,
    color: bool = False,
    is_live: bool = True,
) -> list[str]:
    """At most `height` lines of at most `width` columns."""
    count = len(view.brokers)
    brokers = "1 broker" if count == 1 else f"{count} brokers"
    keys = "  q quits" if is_live else ""
    lines = [_paint(cut(f"twinlog top  {clock}  {brokers}{keys}", width), _BOLD, color)]
    lines.append(_paint(cut(view.health.sentence("the cluster"), width),
                        _GREEN if view.health.is_healthy else _RED, color))  # fmt: skip
    steps = [f"{f.level.value}: {f.text} -> {f.next_step}" for f in view.health.findings]
    lines += (cut(f"  {step}", width) for step in steps[:_PROBLEMS_MAX])
    lines.append("")
    lines += _table(_BROKER_HEADS, [_broker_cells(line) for line in view.brokers], width, color)
    left = max(0, height - len(lines) - 4)
    topics = [(t.topic, _rate(t.rate), f"{show_bytes(t.bytes_rate)}/s") for t in view.topics]
    groups = [(g.group, g.topic, _rate(g.rate), str(g.lag)) for g in view.groups]
    shown = _shares(left, len(topics), len(groups))
    lines += ["", *_table(_TOPIC_HEADS, topics[: shown[0]], width, color)]
    lines += ["", *_table(_GROUP_HEADS, groups[: shown[1]], width, color)]
    return lines[: max(1, height)]


_BROKER_HEADS = ("BROKER", "ROLE", "STATE", "IN/S", "OUT/S", "LAG", "LAG TIME", "DISK", "LOOP")
_TOPIC_HEADS = ("TOPIC", "IN/S", "BYTES/S")
_GROUP_HEADS = ("GROUP", "CONSUMES", "OUT/S", "BEHIND")
_TEXT = {"BROKER", "ROLE", "STATE", "TOPIC", "GROUP", "CONSUMES"}


def _broker_cells(line: BrokerLine) -> tuple[str, ...]:
    return (
        f"{line.name}:{line.broker_id}",
        line.role,
        line.state,
        _rate(line.in_rate),
        _rate(line.out_rate),
        show_bytes(line.lag_bytes),
        show_seconds(line.lag_ms),
        show_percent(line.disk_ratio),
        "-" if line.loop_lag_ms is None else f"{line.loop_lag_ms} ms",
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _shares(room: int, *counts: int) -> tuple[int, ...]:
    """Lines for each table: what one does not need, the others have."""
    shares, left = [0] * len(counts), room
    while left > 0:
        wanting = [index for index, count in enumerate(counts) if shares[index] < count]
        if not wanting:
            break
        for index in wanting[:left]:
            shares[index] += 1
        left -= len(wanting[:left])
    return tuple(shares)


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, color: bool
) -> list[str]:
    """Numbers keep their width; names give way."""
    widths = [max(map(width_of, column)) for column in zip(heads, *rows, strict=True)]
    widths = fit(widths, [index for index, head in enumerate(heads) if head in _TEXT], width)
    lines = []
    for row in (heads, *rows):
        cells = [
            padded(cell, size) if head in _TEXT else cell.rjust(size)
            for cell, head, size in zip(row, heads, widths, strict=True)
        ]
        lines.append(cut(GAP.join(cells).rstrip(), width))
    lines[0] = _paint(lines[0], _BOLD, color)
    return lines


def _paint(text: str, code: str, color: bool) -> str:
    return f"{code}{text}{_PLAIN}" if color else text
