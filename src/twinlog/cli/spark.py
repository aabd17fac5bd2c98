"""`twinlog spark ...`: the pipeline's jobs as commands.

Stores and archives are positional, output goes to `--out`, every option of the format "twinlog" is
a flag in kebab case. Progress goes to standard error, results to standard output, and the last line
is the job's summary as JSON. Exit codes: 0 ok, 1 differences found, 2 usage, 3 not found,
4 unreachable.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.spark_options import SOURCE_OPTIONS

if TYPE_CHECKING:
    from twinlog.spark.jobs.common import Summary

# name -> (module, attribute, one line)
JOBS: dict[str, tuple[str, str, str]] = {
    "archive": ("twinlog.cli.spark", "archive_command", "Archive topics to Parquet, exactly once."),
    "audit": (
        "twinlog.cli.spark",
        "audit_command",
        "Compare two replicas, or a store and an archive.",
    ),
    "verify": ("twinlog.cli.spark", "verify_command", "Check log, queues and checksums."),
    "lag": (
        "twinlog.cli.spark_queries",
        "lag_command",
        "Compare consumer groups with the ends of their queues.",
    ),
    "latency": (
        "twinlog.cli.spark_queries",
        "latency_command",
        "Measure the time from birth to store to archive.",
    ),
    "stats": (
        "twinlog.cli.spark_queries",
        "stats_command",
        "Count topics, tags, sizes, skew and hot keys.",
    ),
    "find": (
        "twinlog.cli.spark_queries",
        "find_command",
        "Find messages by key, id, tag, time or JSON.",
    ),
    "replay": (
        "twinlog.cli.spark_moves",
        "replay_command",
        "Send a store or an archive to topics again.",
    ),
    "export": (
        "twinlog.cli.spark_moves",
        "export_command",
        "Write messages as JSON lines or Parquet.",
    ),
    "import": ("twinlog.cli.spark_moves", "import_command", "Send what export wrote to topics."),
    "mirror": ("twinlog.cli.spark_moves", "mirror_command", "Copy topics to another cluster."),
    "compact": ("twinlog.cli.spark_moves", "compact_command", "Merge small files of an archive."),
    "decode": ("twinlog.cli.spark_moves", "decode_command", "Write bodies to typed tables."),
    "pack": (
        "twinlog.cli.spark_moves",
        "pack_command",
        "Write the archive that workers elsewhere need.",
    ),
    "report": ("twinlog.cli.spark_queries", "report_command", "Write one HTML page about a store."),
    "sql": ("twinlog.cli.spark_sql", "sql_command", "Run SQL over topics; each one is a view."),
}


class JobGroup(click.Group):
    """Finds jobs in a table, so that help imports neither Spark nor Arrow."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in JOBS:
            return None
        module, attribute, _ = JOBS[name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl([(name, text) for name, (_, _, text) in JOBS.items()])


@click.group(cls=JobGroup)
def spark() -> None:
    """Archive, audit and query topics with Spark."""


def kebab(name: str) -> str:
    """maxOffsetsPerTrigger -> max-offsets-per-trigger."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()


def with_source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add one flag per option of the format; `path` is positional instead."""
    for name, (form, text) in reversed(SOURCE_OPTIONS.items()):
        command = click.option(f"--{kebab(name)}", f"opt_{name}", metavar=form, help=text)(command)
    return command


def _use_conf(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> None:
    _use(conf=given)


def _use_py_files(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> None:
    _use(py_files=given)


def _use(**given: tuple[str, ...]) -> None:
    from twinlog.spark.errors import PipelineError
    from twinlog.spark.run.session import use

    try:
        use(**given)
    except PipelineError as error:
        raise click.BadParameter(error.message) from error


def with_session_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags about Spark itself and the output."""
    command = click.option("--quiet", is_flag=True, help="Print no progress.")(command)
    command = click.option(
        "--conf", multiple=True, expose_value=False, callback=_use_conf, metavar="KEY=VALUE",
        help="A setting of Spark. Repeatable.",
    )(command)  # fmt: skip
    command = click.option(
        "--py-files", multiple=True, expose_value=False, callback=_use_py_files, metavar="FILE",
        help="A wheel or zip for workers on other machines, such as twinlog's. Repeatable.",
    )(command)  # fmt: skip
    return click.option(
        "--master",
        default="local[2]",
        show_default=True,
        help="Spark master, such as spark://host:7077; sc://host:15002 for Spark Connect.",
    )(command)


def taken(values: dict[str, Any]) -> dict[str, str]:
    """Take the source options out of a command's arguments."""
    names = [name for name in values if name.startswith("opt_")]
    found = {name[4:]: values.pop(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def progress_of(quiet: bool) -> Any:
    """Return where progress goes."""
    from twinlog.spark.jobs.common import Progress

    return Progress(None if quiet else sys.stderr)


def run(job: Callable[[], Summary], *, show: Callable[[Summary], None] | None = None) -> None:
    """Run a job, print its result and leave with its exit code."""
    from twinlog.spark.errors import PipelineError, condition_of

    try:
        summary = job()
    except PipelineError as error:
        fail(error.condition, error.message, error.exit_code)
    except KeyboardInterrupt:
        fail("INTERRUPTED", "stopped before the end", 1)
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        fail(*condition_of(str(error)))
    if show is not None:
        show(summary)
    else:
        for item in summary.findings[:20]:
            click.echo(json.dumps(item, default=str))
    click.echo(summary.line())
    raise SystemExit(summary.exit_code)


def fail(condition: str, message: str, code: int) -> Any:
    """Print one line to standard error and the summary, then leave."""
    click.echo(f"twinlog spark: [{condition}] {message}", err=True)
    click.echo(json.dumps({"ok": False, "error": condition, "message": message}))
    raise SystemExit(code)


@click.command("archive")
@click.argument("store", required=False)
@click.option("--out", required=True, help="Directory of the archive; for a table also a URI.")
@click.option(
    "--format",
    "form",
    default="parquet",
    show_default=True,
    type=click.Choice(["parquet", "delta", "iceberg"]),
    help="Form of the archive.",
)
@click.option(
    "--catalog",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the Iceberg catalog; `table` names the table.",
)
@click.option("--checkpoint", help="Directory that stores the progress; by default in --out.")
@click.option(
    "--once/--continuous", default=True, help="Stop when everything is archived, or continue."
)
@click.option(
    "--trigger", default="10 seconds", show_default=True, help="How often a batch starts."
)
@click.option(
    "--compression", default="zstd", show_default=True, help="Compression of the Parquet files."
)
@with_session_options
@with_source_options
def archive_command(
    store: str | None, out: str, form: str, catalog: tuple[str, ...], checkpoint: str | None,
    once: bool, trigger: str, compression: str, master: str, quiet: bool, **values: Any,
) -> None:  # fmt: skip
    """Archive the topics of STORE (or of --name-server) into Parquet, Delta or Iceberg."""
    from twinlog.spark.jobs.archive import archive

    options = taken(values)
    if store is not None:
        options["path"] = store
    run(
        lambda: archive(
            out, options, form=form, table=dict(item.split("=", 1) for item in catalog),
            checkpoint=checkpoint, once=once, trigger=trigger, compression=compression,
            master=master, progress=progress_of(quiet),
        )
    )  # fmt: skip


@click.command("audit")
@click.argument("master_store")
@click.argument("slave_store")
@click.option(
    "--settle", default=10.0, show_default=True, help="Seconds that a slave has to catch up."
)
@with_session_options
def audit_command(
    master_store: str, slave_store: str, settle: float, master: str, quiet: bool
) -> None:
    """Compare MASTER_STORE with SLAVE_STORE, or a store with an archive."""
    from twinlog.spark.jobs.audit import audit
    from twinlog.spark.jobs.audit_archive import audit_archive
    from twinlog.spark.jobs.common import kind_of

    show = progress_of(quiet)
    if kind_of(slave_store) == "archive":
        run(lambda: audit_archive(master_store, slave_store, spark_master=master, progress=show))
    run(lambda: audit(master_store, slave_store, settle=settle, spark_master=master, progress=show))


@click.command("verify")
@click.argument("store")
@click.option("--rebuild", is_flag=True, help="Rebuild the consume queues; stop the broker first.")
@with_session_options
def verify_command(store: str, rebuild: bool, master: str, quiet: bool) -> None:
    """Check the records, queues and checksums of STORE."""
    from twinlog.spark.jobs.verify import verify

    show = progress_of(quiet)
    run(lambda: verify(store, rebuild=rebuild, spark_master=master, progress=show))
