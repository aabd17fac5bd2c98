"""The jobs of `twinlog spark` that move data: replay, export, import, decode, mirror, compact."""

from __future__ import annotations

from typing import Any

import click

from twinlog.cli.spark import progress_of, run, taken, with_session_options, with_source_options


@click.command("replay")
@click.argument("place")
@click.option("--to", "target", required=True, help="Name server of the cluster to send to.")
@click.option("--to-topic", help="Topic to send to; by default each message's own.")
@click.option("--rate", type=int, help="At most this many rows per second in each task.")
@click.option("--dry-run", is_flag=True, help="Count the messages, but send none.")
@click.option("--keep-queue", is_flag=True, help="Send to the queue that the message had.")
@with_session_options
@with_source_options
def replay_command(
    place: str, target: str, to_topic: str | None, rate: int | None, dry_run: bool,
    keep_queue: bool, master: str, quiet: bool, **values: Any,
) -> None:  # fmt: skip
    """Send the messages of PLACE (a store or an archive) to topics again."""
    from twinlog.spark.jobs.move import replay

    options, show = taken(values), progress_of(quiet)
    run(
        lambda: replay(
            place, target, options, to_topic=to_topic, rate=rate, dry_run=dry_run,
            keep_queue=keep_queue, spark_master=master, progress=show,
        )
    )  # fmt: skip


@click.command("export")
@click.argument("place")
@click.option("--out", required=True, help="Directory to write; it must not exist.")
@click.option("--form", default="json", show_default=True, help="json or parquet.")
@with_session_options
@with_source_options
def export_command(
    place: str, out: str, form: str, master: str, quiet: bool, **values: Any
) -> None:
    """Write the messages of PLACE as JSON lines (bodies in base64) or Parquet."""
    from twinlog.spark.jobs.move import export

    options = taken(values)
    run(lambda: export(place, out, options, form=form, spark_master=master))


@click.command("import")
@click.argument("source")
@click.option("--to", "target", required=True, help="Name server of the cluster to send to.")
@click.option("--to-topic", help="Topic to send to; by default each message's own.")
@click.option("--rate", type=int, help="At most this many rows per second in each task.")
@click.option("--form", help="json or parquet; by default according to the names of the files.")
@with_session_options
def import_command(
    source: str, target: str, to_topic: str | None, rate: int | None, form: str | None,
    master: str, quiet: bool,
) -> None:  # fmt: skip
    """Send what export wrote to topics."""
    from twinlog.spark.jobs.move import import_rows

    run(
        lambda: import_rows(
            source, target, to_topic=to_topic, rate=rate, form=form, spark_master=master
        )
    )


@click.command("decode")
@click.argument("place")
@click.option("--out", required=True, help="Directory to write; it gets the folders rows and dead.")
@with_session_options
@with_source_options
def decode_command(place: str, out: str, master: str, quiet: bool, **values: Any) -> None:
    """Write the messages of PLACE with typed bodies to Parquet, the others to dead letters."""
    from twinlog.spark.jobs.move import decode

    options = taken(values)
    run(lambda: decode(place, out, options, spark_master=master))


@click.command("mirror")
@click.argument("store", required=False)
@click.option("--to", "target", required=True, help="Name server of the cluster to send to.")
@click.option("--to-topic", help="Topic to send to; by default each message's own.")
@click.option("--checkpoint", required=True, help="Directory that stores the progress.")
@click.option("--once/--continuous", default=True, help="Stop when everything is copied, or go on.")
@click.option("--trigger", default="5 seconds", show_default=True, help="How often a batch starts.")
@click.option("--exactly-once", is_flag=True, help="The target drops repeats (twinlog only).")
@click.option("--verify", is_flag=True, help="Compare both sides afterwards, including the order.")
@click.option(
    "--keep-queue/--spread", default=True, help="Send each message to the queue that it had."
)
@click.option("--group", "groups", multiple=True, help="Group whose offsets are copied too.")
@with_session_options
@with_source_options
def mirror_command(
    store: str | None, target: str, to_topic: str | None, checkpoint: str, once: bool,
    trigger: str, exactly_once: bool, verify: bool, keep_queue: bool, groups: tuple[str, ...],
    master: str, quiet: bool, **values: Any,
) -> None:  # fmt: skip
    """Copy topics of STORE (or of --name-server) to another cluster, at least or exactly once."""
    from twinlog.spark.jobs.mirror import mirror

    options, show = taken(values), progress_of(quiet)
    if store is not None:
        options["path"] = store
    run(
        lambda: mirror(
            options, target, checkpoint, to_topic=to_topic, once=once, trigger=trigger,
            exactly_once=exactly_once, verify=verify, keep_queue=keep_queue, groups=groups,
            spark_master=master, progress=show,
        )
    )  # fmt: skip


@click.command("compact")
@click.argument("archive")
@click.option(
    "--target-bytes", default=256 << 20, show_default=True, help="Size of the merged files."
)
@click.option(
    "--grace-seconds", default=3600.0, show_default=True, help="Keep replaced files for this time."
)
@click.option("--expire-days", type=float, help="Remove rows that are older than this.")
@click.option(
    "--catalog",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the Iceberg catalog; `table` names the table.",
)
@click.option("--quiet", is_flag=True, help="Print no progress.")
def compact_command(
    archive: str, target_bytes: int, grace_seconds: float, expire_days: float | None,
    catalog: tuple[str, ...], quiet: bool,
) -> None:  # fmt: skip
    """Merge small files of ARCHIVE, and remove files that no manifest names."""
    from twinlog.spark.jobs.compact import compact

    show = progress_of(quiet)
    run(
        lambda: compact(
            archive, target_bytes=target_bytes, grace_seconds=grace_seconds,
            expire_days=expire_days, table=dict(item.split("=", 1) for item in catalog),
            progress=show,
        )
    )  # fmt: skip


@click.command("pack")
@click.option("--out", default=".", show_default=True, help="Directory to write to.")
def pack_command(out: str) -> None:
    """Write an archive with all that workers need, for spark-submit --archives."""
    from twinlog.spark.jobs.common import Summary
    from twinlog.spark.places import local_path
    from twinlog.spark.run.pack import packed, settings_of

    def pack() -> Summary:
        made = packed(local_path(out, "the directory of the archive").absolute())
        facts = {"archive": str(made), "bytes": made.stat().st_size, "conf": settings_of(made)}
        return Summary("pack", facts)

    run(pack)
