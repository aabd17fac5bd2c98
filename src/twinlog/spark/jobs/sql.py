"""Statements of SQL over the topics of a cluster, a store or an archive: each topic is a view.

The view `messages` has them all. A topic that the script names is a source of its own, so that a
statement reads only what it names; the views of the others are filters on `messages`, because each
source takes Spark a process to make. Filters are not pushed into a source that several statements
share: Spark would keep those of the first (see docs/SPARK.md, `filterPushdown`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twinlog.message.names import is_user_topic
from twinlog.spark.errors import OptionError
from twinlog.spark.jobs.common import Progress, Summary, session_of, source_options
from twinlog.spark.options import SourceOptions
from twinlog.spark.read.rows import open_transport
from twinlog.spark.read.transport import select_queues

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL = "messages"
CHOOSERS = ("subscribe", "subscribepattern", "topic")
Show = Callable[[dict[str, Any]], None]


def topics_of(given: Mapping[str, str]) -> list[str]:
    """Return the topics that the options mean, by name."""
    options = SourceOptions.parse(given)
    if options.path is None and options.name_server is None:
        from pathlib import Path

        from twinlog.spark.archive.manifest import Manifest

        assert options.archive is not None
        queues = select_queues(options, Manifest(Path(options.archive)).require().spans())
    else:
        transport = open_transport(options)
        try:
            queues = select_queues(options, transport.queues())
        finally:
            transport.close()
    names = {topic for topic, _, _ in queues}
    return sorted(name for name in names if options.include_system_topics or is_user_topic(name))


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def make_views(spark: SparkSession, given: Mapping[str, str], script: str) -> list[str]:
    """Make a view of each topic, and one of all messages; return the names of the topics."""
    topics = topics_of(given)
    everything = spark.read.format("twinlog").options(**given).load()
    everything.createOrReplaceTempView(ALL)
    plain = {name: value for name, value in given.items() if name.lower() not in CHOOSERS}
    for topic in topics:
        if topic == ALL:
            continue
        if topic in script or quoted(topic) in script:
            own = {**plain, "subscribe": topic}
            rows = spark.read.format("twinlog").options(**own).load()
        else:
            rows = everything.where(everything.topic == topic)
        rows.createOrReplaceTempView(quoted(topic))
    return topics


def statements(text: str) -> Iterator[str]:
    """Cut a script at its semicolons, but not within quotation marks or comments."""
    at, begin, mark = 0, 0, ""
    while at < len(text):
        here = text[at]
        if mark:
            at += here == "\\" and mark != "`"  # what is escaped ends nothing
            mark = "" if here == mark else mark
        elif here in "'\"`":
            mark = here
        elif text.startswith("--", at):
            at = (text.find("\n", at) + 1 or len(text)) - 1
        elif here == ";":
            yield text[begin:at].strip()
            begin = at + 1
        at += 1
    yield text[begin:].strip()


def sql(
    script: str,
    options: Mapping[str, str],
    *,
    show: Show | None = None,
    rows_max: int = 1000,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Run the statements of a script; rows go to `show`, at most `rows_max` of each statement.

    Raises:
        OptionError: there is no statement.
    """
    work = [text for text in statements(script) if _without_comments(text)]
    if not work:
        raise OptionError(
            "BAD_OPTION", "no statement was given; SHOW VIEWS, for example, lists the views"
        )
    given, began = source_options(options), time.monotonic()
    SourceOptions.parse(given)
    progress = progress or Progress()
    with session_of(spark, "sql", master=spark_master) as session:
        progress.show("sql: views of the topics")
        topics = make_views(session, given, script)
        counts = []
        for number, text in enumerate(work):
            progress.show("sql: statements", number, len(work))
            counts.append(_run(session, text, rows_max, show))
        progress.show("sql: statements", len(work), len(work))
        progress.end()
    facts = {"topics": len(topics), "statements": len(work), "rows": sum(counts)}
    return Summary("sql", facts, seconds=time.monotonic() - began)


def _without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()


def _run(session: SparkSession, text: str, rows_max: int, show: Show | None) -> int:
    rows: Sequence[Any] = session.sql(text).limit(rows_max).collect()
    for row in rows:
        if show is not None:
            show({name: _plain(value) for name, value in row.asDict(recursive=True).items()})
    return len(rows)


def _plain(value: Any) -> Any:
    """Show bytes as the text that they mostly are."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytearray) else value
