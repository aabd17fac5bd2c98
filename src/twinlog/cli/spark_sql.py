"""`twinlog spark sql`: Spark's own language over topics."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from twinlog.cli.spark import progress_of, run, taken, with_session_options, with_source_options


@click.command("sql")
@click.argument("place", required=False)
@click.option("-e", "--execute", "script", help="Statements, separated by semicolons.")
@click.option("-f", "--file", "file", type=click.File(), help="A file of statements.")
@click.option("--rows-max", default=1000, show_default=True,
              help="Show at most this many rows of each statement.")  # fmt: skip
@with_session_options
@with_source_options
def sql_command(
    place: str | None, script: str | None, file: Any, rows_max: int, master: str, quiet: bool,
    **values: Any,
) -> None:  # fmt: skip
    """Run SQL over the topics of PLACE (a store or an archive) or of --name-server.

    Each topic is a view with its name; `messages` has all of them. Statements come from -e, from -f
    or from standard input; rows go to standard output as JSON, one per line.
    """
    from twinlog.spark.jobs.common import kind_of
    from twinlog.spark.jobs.sql import sql

    options = taken(values)
    if place is not None:
        options["archive" if kind_of(place) == "archive" else "path"] = place
    if script is not None and file is not None:
        raise click.UsageError("Give -e or -f, not both.")
    text = script if script is not None else (file or sys.stdin).read()

    def show(row: dict[str, Any]) -> None:
        click.echo(json.dumps(row, default=str, ensure_ascii=False))

    run(
        lambda: sql(
            text, options, show=show, rows_max=rows_max, spark_master=master,
            progress=progress_of(quiet),
        )
    )  # fmt: skip
