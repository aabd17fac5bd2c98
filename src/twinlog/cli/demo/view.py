"""What a person sees while the demo runs: a live panel on a terminal, plain lines in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator

import click

from twinlog.cli.demo.scenario import Demo

LINE_SECONDS = 2.0
FRAME_SECONDS = 0.25


def _figures(demo: Demo, last: tuple[float, int, int]) -> tuple[str, tuple[float, int, int]]:
    now = demo.now()
    acknowledged, consumed = len(demo.ledger.acknowledged), len(demo.ledger.consumed_at)
    seconds = max(now - last[0], FRAME_SECONDS)
    lag = f"{demo.lag[-1][1]:,.0f} bytes" if demo.lag else "-"
    sent, read = (acknowledged - last[1]) / seconds, (consumed - last[2]) / seconds
    text = (
        f"{demo.phase:<13} acknowledged {acknowledged:>9,} ({sent:>7,.0f}/s)"
        f"  consumed {consumed:>9,} ({read:>7,.0f}/s)"
        f"  open {demo.ledger.in_flight:>3}  slave behind {lag}"
    )
    return text, (now, acknowledged, consumed)


@contextlib.asynccontextmanager
async def watching(demo: Demo, *, is_quiet: bool) -> AsyncIterator[None]:
    """Show progress until the block ends."""
    if is_quiet:
        yield
        return
    is_terminal = sys.stderr.isatty()
    task = asyncio.ensure_future(_show(demo, FRAME_SECONDS if is_terminal else LINE_SECONDS,
                                       is_terminal=is_terminal))  # fmt: skip
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if is_terminal:
            click.echo("\r\x1b[K", nl=False, err=True)


async def _show(demo: Demo, seconds: float, *, is_terminal: bool) -> None:
    last = (demo.now(), 0, 0)
    while True:
        await asyncio.sleep(seconds)
        text, last = _figures(demo, last)
        if is_terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            click.echo("\r\x1b[K" + text[:width], nl=False, err=True)
        elif demo.phase != "Spark":
            click.echo(text, err=True)
