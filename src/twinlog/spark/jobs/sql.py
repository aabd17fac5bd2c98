"""Statements of SQL over the topics of a cluster, a store or an archive: each topic is a view.

The view `messages` has them all. A topic that the script names is a source of its own, so that a
statement reads only what it names; the views of the others are filters on `messages`, because each
source takes Spark a process to make. Filters are not pushed into a source that several statements
share: Spark would keep those of the first (see docs/SPARK.md, `filterPushdown`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """Make a view of each topic, and one of all messages; return the names of the topics.

    Spark's names have no case, so topics that differ by it only get none.
    """
    topics = topics_of(given)
    everything = spark.read.format("twinlog").options(**given).load()
    everything.createOrReplaceTempView(ALL)
    plain = {name: value for name, value in given.items() if name.lower() not in CHOOSERS}
    shared = without_view(topics)
    for name in shared:
        if name != ALL:  # an earlier call with other topics may have left one
            spark.catalog.dropTempView(name)
    is_free, text = not _names_queues(given), script.lower()
    for topic in topics:
        if topic.lower() in shared:
            continue
        if is_free and (topic.lower() in text or quoted(topic).lower() in text):
            own = {**plain, "subscribe": topic}
            rows = spark.read.format("twinlog").options(**own).load()
        else:
            rows = everything.where(everything.topic == topic)
        rows.createOrReplaceTempView(quoted(topic))
    return topics


def without_view(topics: Sequence[str]) -> dict[str, list[str]]:
    """Return the names, without case, that no single topic can have as a view."""
    found: dict[str, list[str]] = {}
    for topic in topics:
        found.setdefault(topic.lower(), []).append(topic)
    return {name: same for name, same in found.items() if len(same) > 1 or name == ALL}


def _names_queues(given: Mapping[str, str]) -> bool:
    """Say whether the options name queues, which a source of one topic must not find wrong."""
    options = SourceOptions.parse(given)
    kinds = {options.position(side)[0] for side in ("starting", "ending")}
    return bool(options.assign) or bool(kinds & {"table", "times"})


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
            with _explained(topics):
                counts.append(_run(session, text, rows_max, show))
        progress.show("sql: statements", len(work), len(work))
        progress.end()
    facts = {"topics": len(topics), "statements": len(work), "rows": sum(counts)}
    return Summary("sql", facts, seconds=time.monotonic() - began)


def _without_comments(text: str) -> str:
    return "".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()


@contextmanager
def _explained(topics: Sequence[str]) -> Iterator[None]:
    """Say why there is no view of a topic that a statement names."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        name = str((error.getMessageParameters() or {}).get("relationName", "")).strip("`").lower()
        same = without_view(topics).get(name)
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND" or not same:
            raise
        names = " and ".join(map(repr, same))
        raise OptionError(
            "BAD_STATEMENT",
            f"there is no view {name}: topics {names} differ only in case, which names in Spark do "
            f"not have; read FROM {ALL} WHERE topic = '{same[0]}'",
        ) from error


def _run(session: SparkSession, text: str, rows_max: int, show: Show | None) -> int:
    rows: Sequence[Any] = session.sql(text).limit(rows_max).collect()
    for row in rows:
        if show is not None:
            show({name: _plain(value) for name, value in row.asDict(recursive=True).items()})
    return len(rows)


def _plain(value: Any) -> Any:
    """Show bytes as the text that they mostly are."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytearray) else value
