"""The jobs of `twinlog spark` that answer questions: lag, latency, stats, find, report."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from twinlog.cli.spark import progress_of, run, taken, with_session_options, with_source_options

if TYPE_CHECKING:
    from twinlog.spark.jobs.common import Summary


def show_rows(name: str) -> Any:
    """Print a list of the summary as JSON lines, before the summary itself."""

    def show(summary: Summary) -> None:
        for row in summary.facts.pop(name):
            click.echo(json.dumps(row, default=str))

    return show


def moment(text: str | None) -> int | None:
    """Parse a time: ms since the epoch, or ISO (UTC when it says no zone)."""
    if text is None:
        return None
    if re.fullmatch(r"\d{10,}", text):
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-15T10:00:00") from error
    return int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp() * 1000)


@click.command("lag")
@click.argument("store")
@click.option("--group", help="Only this consumer group.")
@click.option("--include-system-topics", is_flag=True, help="Include RocketMQ's own topics.")
def lag_command(store: str, group: str | None, include_system_topics: bool) -> None:
    """Compare the consumer groups of STORE with the ends of their queues."""
    from twinlog.spark.jobs.analyse import lag

    run(
        lambda: lag(store, group=group, include_system_topics=include_system_topics),
        show=show_rows("queues"),
    )


@click.command("latency")
@click.argument("place")
@click.option("--with-archive", help="Also measure how long rows waited for this archive.")
@with_session_options
@with_source_options
def latency_command(
    place: str, with_archive: str | None, master: str, quiet: bool, **values: Any
) -> None:
    """Measure how long messages of PLACE (a store or an archive) took, by topic."""
    from twinlog.spark.jobs.analyse import latency

    options, show = taken(values), progress_of(quiet)
    run(lambda: latency(place, options, archive=with_archive, spark_master=master, progress=show))


@click.command("stats")
@click.argument("place")
@with_session_options
@with_source_options
def stats_command(place: str, master: str, quiet: bool, **values: Any) -> None:
    """Count topics, tags, sizes, skew and hot keys of PLACE (a store or an archive)."""
    from twinlog.spark.jobs.analyse import stats

    options, show = taken(values), progress_of(quiet)
    run(lambda: stats(place, options, spark_master=master, progress=show))


@click.command("find")
@click.argument("places", nargs=-1, required=True)
@click.option("--topic", help="Only this topic.")
@click.option("--key", help="A key or unique id; answered by the index.")
@click.option("--id", "message_id", help="A message id, of either kind.")
@click.option("--offset", type=int, help="A physical offset.")
@click.option("--tag", help="A tag expression such as 'a || b'.")
@click.option("--since", help="Stored at or after this time.")
@click.option("--until", help="Stored before this time.")
@click.option("--json", "json_path", help="A value inside the body: '$.order.id=17'.")
@click.option("--limit", default=32, show_default=True, help="Print at most this many messages.")
@with_session_options
def find_command(
    places: tuple[str, ...], since: str | None, until: str | None, master: str, quiet: bool,
    **values: Any,
) -> None:  # fmt: skip
    """Find messages in PLACES (stores and archives)."""
    from twinlog.spark.jobs.find import Wanted, find

    wanted = Wanted(since_ms=moment(since), until_ms=moment(until), **values)
    show = progress_of(quiet)
    run(
        lambda: find(places, wanted, spark_master=master, progress=show),
        show=show_rows("messages"),
    )


@click.command("report")
@click.argument("place")
@click.argument("replica", required=False)
@click.option("--out", default="report.html", show_default=True, help="The HTML page to write.")
@with_session_options
@with_source_options
def report_command(
    place: str, replica: str | None, out: str, master: str, quiet: bool, **values: Any
) -> None:
    """Write one HTML page about PLACE, with an audit against REPLICA if it is given."""
    from twinlog.spark.jobs.report import report

    options, show = taken(values), progress_of(quiet)
    run(lambda: report(place, out, options, replica=replica, spark_master=master, progress=show))
