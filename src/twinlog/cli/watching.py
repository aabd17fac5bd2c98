"""`--watch`: the same report again and again, without flicker.

On a terminal each picture is drawn over the one before: every line is cleared behind its end and
the rest of the screen below the last one, so nothing is ever blank in between. Elsewhere, pictures
follow each other; as JSON each is one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator

import click

from twinlog.cli.exit_codes import UNHEALTHY
from twinlog.cli.lazy import complain
from twinlog.cli.output import Report, cut, render, uses_color

# The cursor hides, long lines do not wrap, and the screen is cleared once.
_ENTER, _LEAVE = "\x1b[?25l\x1b[?7l\x1b[H\x1b[2J", "\x1b[?7h\x1b[?25h"


@contextlib.contextmanager
def painter(output: str, *, color: bool) -> Iterator[Callable[[Report], None]]:
    """What shows one report after the other."""
    is_screen = output in ("table", "wide", "name") and sys.stdout.isatty()
    if not is_screen:
        yield lambda report: _print(report, output)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_and_end)
    click.echo(_ENTER, nl=False)
    try:
        yield lambda report: _draw(report, output, color=color)
    finally:
        click.echo(_LEAVE, nl=False)


def _leave_and_end(number: int, frame: object) -> None:
    """The shell that goes on in this terminal wants its cursor back."""
    os.write(sys.stdout.fileno(), _LEAVE.encode())
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _print(report: Report, output: str) -> None:
    is_empty = not (report.tables or report.fields or report.sentence)  # Nobody answered.
    text = "" if is_empty else render(report, output, color=uses_color(), compact=True)
    if text and output not in ("json", "yaml"):
        text += "\n"
    click.echo(text, nl=False)
    sys.stdout.flush()
    for line in report.missing:
        complain(line, UNHEALTHY)


def _draw(report: Report, output: str, *, color: bool) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    width, height = size.columns or 80, size.lines or 24
    text = render(report, output, color=color, width=width)
    lines = [*text.splitlines(), *(cut(line, width) for line in report.missing)]
    if len(lines) > height - 1:
        hidden = len(lines) - (height - 2)
        lines = [*lines[: height - 2], cut(f"… {hidden} more lines", width)]
    click.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", nl=False)
    sys.stdout.flush()
