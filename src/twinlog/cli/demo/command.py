"""`twinlog demo`: runs the story, prints the verdict, writes the page."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from twinlog.cli.demo.sabotage import KINDS
from twinlog.cli.demo.verdict import Verdict

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
REPORT_NAME = "twinlog-demo.html"


@click.command(epilog="Example: twinlog demo --seconds 5 --report report.html")
@click.option("--seconds", default=8.0, show_default=True, type=click.FloatRange(2, 600),
              help="Seconds of traffic before the kill, and again after the return.")  # fmt: skip
@click.option("--rate", default=0, show_default="as fast as possible", type=click.IntRange(0),
              help="Sends per second.")  # fmt: skip
@click.option("--size", default=256, show_default=True, type=click.IntRange(16, 1 << 20),
              help="Size of a message in bytes.")  # fmt: skip
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path),
              show_default=REPORT_NAME, help="The HTML page to write.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print only the verdict, as JSON.")
@click.option("--keep", is_flag=True, help="Keep stores, logs and the archive.")
@click.option("--sabotage", type=click.Choice(KINDS),
              help="Damage the slave on purpose, with --fixed; exit code 1.")  # fmt: skip
@click.option("--apache-client", is_flag=True,
              help="Use RocketMQ's Java client; needs mvn and a JDK.")  # fmt: skip
@click.option("--fixed", is_flag=True,
              help="Fixed roles: no slave takes over, and writes wait for the master.")  # fmt: skip
@click.option("--no-spark", is_flag=True, help="Leave out the archive and the audit.")
def demo(
    seconds: float, rate: int, size: int, report: Path | None, as_json: bool, keep: bool,
    sabotage: str | None, apache_client: bool, fixed: bool, no_spark: bool,
) -> None:  # fmt: skip
    """Kill the master of a pair under load and prove that nothing acknowledged was lost."""
    # Imported here: the help text must not cost the price of a client and a table library.
    from twinlog.cli.demo.scenario import DemoOptions
    from twinlog.cli.demo.traffic import Load

    load = Load(size, rate)
    page = _writable(report)
    directory = Path(tempfile.mkdtemp(prefix="twinlog-demo-"))
    try:
        options = DemoOptions(
            directory, seconds, load, sabotage, not no_spark, apache_client, fixed
        )
        code = asyncio.run(_run(options, page, as_json=as_json))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("twinlog: interrupted; everything that was started is stopped", err=True)
        code = EXIT_INTERRUPTED
    finally:
        # What is left takes no time: an impatient second Ctrl-C must not leave the files behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    if keep:
        click.echo(f"kept: {directory}", err=True)
    sys.exit(code)


def _writable(report: Path | None) -> Path | None:
    """Where the page goes. Known before the run: two minutes of work must not end without it.

    None: a temporary file, for the directory is somebody else's (a clone that another user made).
    """
    path = report or Path(REPORT_NAME)
    try:
        # Tried, not asked: access(2) knows neither capabilities nor file systems for reading only.
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        if report is not None:
            raise click.UsageError(f"--report {report}: cannot write: {error.strerror}") from error
        return None
    return path


def _write_page(path: Path | None, text: str) -> Path:
    if path is None:
        descriptor, name = tempfile.mkstemp(prefix="twinlog-demo-", suffix=".html")
        os.close(descriptor)
        path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


async def _run(options: Any, report: Path | None, *, as_json: bool) -> int:
    from twinlog.cli.demo.circumstances import circumstances
    from twinlog.cli.demo.java_tools import JavaClientError
    from twinlog.cli.demo.report import page
    from twinlog.cli.demo.scenario import DemoFailure, story
    from twinlog.cli.demo.view import watching
    from twinlog.cli.local_cluster import ClusterError
    from twinlog.client import ClientError

    _clean_up_at_signals()

    def say(text: str) -> None:
        if not as_json:
            click.echo(f"\r\x1b[K> {text}" if sys.stderr.isatty() else f"> {text}", err=True)

    run = story(options, say)
    try:
        async with watching(run, is_quiet=as_json):
            verdict = await run.run()
    except (DemoFailure, ClusterError, ClientError, JavaClientError, TimeoutError) as error:
        click.echo(f"twinlog: the demo stopped: {str(error) or 'a step took too long'}", err=True)
        return EXIT_FAILED
    facts = circumstances() | {
        "Client": "RocketMQ Java 4.9.7" if options.with_apache_client else "twinlog.client",
        "Message size": f"{options.load.size} bytes",
        "Sabotage": options.sabotage or "none",
    }
    written = _write_page(report, page(verdict, run.ledger, run.moments, run.lag, facts))
    if as_json:
        click.echo(json.dumps(verdict.to_json()))
    else:
        _print(verdict, written)
    return 0 if verdict.is_good else EXIT_FAILED


def _clean_up_at_signals() -> None:
    """Ctrl-C and SIGTERM end the run once. Later ones are heard but do not break the cleaning up,
    which would leave servers behind."""
    task = asyncio.current_task()
    assert task is not None
    is_ending = False

    def end() -> None:
        nonlocal is_ending
        if is_ending:
            click.echo("twinlog: stopping what was started; a moment", err=True)
            return
        is_ending = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Ignored by whom started us (nohup, a script's background): left so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, end)


def _print(verdict: Verdict, report: Path) -> None:
    rows = [
        ("acknowledged", f"{verdict.acknowledged:,}"),
        ("consumed", f"{verdict.consumed:,}"),
        ("lost", f"{verdict.lost:,}"),
        ("missing on the slave", f"{verdict.missing_on_slave:,}"),
        ("duplicates", f"{verdict.duplicates:,}"),
        ("order violations", f"{verdict.order_violations:,}"),
        ("seconds without reads", f"{verdict.seconds_without_reads}"),
        ("seconds without writes", f"{verdict.seconds_without_writes}"
         + (", until the slave had taken over" if verdict.has_switched else "")),
        ("sends per second", f"{verdict.rate_before:,.0f} before, {verdict.rate_after:,.0f} after"),
        ("p99 of a send", f"{verdict.latency_ms_before['p99']:.1f} ms before,"
         f" {verdict.latency_ms_after['p99']:.1f} ms after"),
        ("audit", verdict.audit),
        ("rows archived", verdict.rows_archived_text),
    ]  # fmt: skip
    click.echo()
    for name, value in rows:
        click.echo(f"  {name:<23} {value}")
    click.echo()
    if verdict.is_good:
        compared = (
            "and the replicas are equal" if verdict.audit == "equal" else "replicas not compared"
        )
        click.echo(f"VERDICT: nothing acknowledged was lost, {compared}.")
    else:
        click.echo("VERDICT: failed.")
        for reason in verdict.reasons:
            click.echo(f"  - {reason}")
    click.echo(f"report: {report}")
