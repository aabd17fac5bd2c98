"""`twinlog spark replay`, `export`, `import`, `decode`: rows from place to place.

Writing into topics is at least once, where `exactlyOnce` is not asked for. What a message was
before travels with it: keys, tags, its own properties and flag as they were, its birth time and
unique id as properties ORIGIN_BORN_TIME and ORIGIN_UNIQ_KEY.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType

from twinlog.spark.decode.columns import ddl
from twinlog.spark.errors import NotFoundError, OptionError
from twinlog.spark.jobs.analyse import place_options, table_of
from twinlog.spark.jobs.common import Progress, Summary, kind_of, session_of, source_options
from twinlog.spark.options import SourceOptions
from twinlog.spark.places import is_local, open_place
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.rows import plan_batch, read_window
from twinlog.spark.run.tasks import task_frame
from twinlog.spark.write.sending import Task, send_rows
from twinlog.spark.write.sink import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SENT_COLUMNS = ("topic", "body", "keys", "tags", "properties", "flag", "born_ts", "msg_id")
FORMATS = ("json", "parquet")


def replay(
    place: str | Path,
    name_server: str,
    options: Mapping[str, str] | None = None,
    *,
    to_topic: str | None = None,
    rate: int | None = None,
    dry_run: bool = False,
    keep_queue: bool = False,
    sink: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Send the messages of a store or an archive to topics again.

    Args:
        place: the store or archive.
        name_server: of the cluster to send to.
        options: options of the format "twinlog" that choose the messages.
        to_topic: the topic to send to; else each message's own.
        rate: rows a second and task, at most.
        dry_run: count what would be sent, send nothing.
        keep_queue: send to the queue that the message had.
        sink: further options of the sink.
        spark: a session to use.
        spark_master: Spark master of a session that this starts.
        progress: where to show progress.
    """
    begin = time.monotonic()
    show = progress or Progress()
    given = place_options(place, options)
    with session_of(spark, "replay", master=spark_master) as session:
        if dry_run:
            show.show("replay: counting")
            rows = session.read.format("twinlog").options(**given).schema("topic STRING").load()
            counts = {r["topic"]: r["count"] for r in rows.groupBy("topic").count().collect()}
        else:
            show.show("replay: sending")
            target = sink_options(name_server, to_topic, rate, sink)
            counts = _send_windows(session, given, target, keep_queue)
    show.end()
    facts = {"source": str(place), "rows": sum(counts.values()), "topics": counts}
    facts |= {"to_topic": to_topic, "dry_run": dry_run}
    return Summary("replay", facts, seconds=time.monotonic() - begin)


def _send_windows(
    session: SparkSession, source: Mapping[str, str], sink: Mapping[str, str], keep_queue: bool
) -> dict[str, int]:
    """Send rows from where they are read: they need not pass through the JVM and back."""
    SinkOptions.parse(sink)
    columns = (*SENT_COLUMNS, *(["queue_id"] if keep_queue else []))
    parts = plan_batch(SourceOptions.parse(source), Pushed())
    tasks = [(dict(source), dict(sink), columns, number, part) for number, part in enumerate(parts)]
    counts: Counter[str] = Counter()
    if tasks:
        for row in task_frame(session, send_window, tasks, "topic STRING, rows BIGINT").collect():
            counts[row["topic"]] += row["rows"]
    return dict(counts)


def send_window(task: Any) -> list[dict[str, Any]]:
    """Send the rows of one window or archived file; how many of each topic. Runs on a worker."""
    source, sink, columns, number, part = task
    counts: Counter[str] = Counter()

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in read_window(SourceOptions.parse(source), part, columns):
            for found in batch.column("topic").value_counts().to_pylist():
                counts[found["values"]] += found["counts"]
            yield batch

    send_rows(SinkOptions.parse(sink), batches(), Task(number))
    return [{"topic": topic, "rows": rows} for topic, rows in counts.items()]


def sink_options(
    name_server: str, topic: str | None, rate: int | None, more: Mapping[str, str] | None
) -> dict[str, str]:
    """The options of a write."""
    given = {"nameServer": name_server, **(more or {})}
    if topic is not None:
        given["topic"] = topic
    if rate is not None:
        given["ratePerSecond"] = str(rate)
    return given


def export(
    place: str | Path,
    out: str | Path,
    options: Mapping[str, str] | None = None,
    *,
    form: str = "json",
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
) -> Summary:
    """Write messages as JSON lines (bodies in base64) or Parquet into the directory `out`."""
    begin = time.monotonic()
    is_local(out)
    if form not in FORMATS:
        raise OptionError(
            "BAD_OPTION", f"the format must be one of {', '.join(FORMATS)}, not {form!r}"
        )
    with session_of(spark, "export", master=spark_master) as session:
        rows = table_of(session, place, ddl(), options)
        rows.write.format(form).mode("errorifexists").save(str(out))
        count = session.read.schema(ddl()).format(form).load(str(out)).count()
    facts = {"source": str(place), "out": str(out), "form": form, "rows": count}
    return Summary("export", facts, seconds=time.monotonic() - begin)


def decode(
    place: str | Path,
    out: str | Path,
    options: Mapping[str, str],
    *,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
) -> Summary:
    """Write messages with typed bodies to Parquet in `out`; undecodable ones to dead letters.

    Args:
        place: the store or archive.
        out: directory to write: `rows` and `dead` are made in it.
        options: options of the format "twinlog", with decodeBody and bodySchema.
        spark: a session to use.
        spark_master: Spark master of a session that this starts.
    """
    begin = time.monotonic()
    folded = {name.lower() for name in options}
    if "decodebody" not in folded:
        raise OptionError(
            "BAD_OPTION", "decode needs the option decodeBody: json, avro or protobuf"
        )
    is_local(out)
    dead = f"{out}/dead"
    given = source_options(options)
    if "decodemode" not in folded:
        given |= {"decodeMode": "deadletter", "deadLetterPath": dead}
    given["path" if kind_of(place) == "store" else "archive"] = str(place)
    with session_of(spark, "decode", master=spark_master) as session:
        rows = session.read.format("twinlog").options(**given).load()
        rows.where("body_error IS NULL").drop("body_error").write.parquet(f"{out}/rows")
        good = session.read.parquet(f"{out}/rows").count()
        system, path = open_place(dead)
        is_there = system.get_file_info(path).type != FileType.NotFound
        bad = session.read.parquet(dead).count() if is_there else 0
    facts = {"source": str(place), "out": str(out), "rows": good, "dead_letters": bad}
    return Summary("decode", facts, seconds=time.monotonic() - begin)


def _form_of(source: str | Path) -> str:
    """See by the names of files what they are.

    Raises:
        NotFoundError: there is nothing.
    """
    system, path = open_place(source)
    info = system.get_file_info(path)
    if info.type == FileType.NotFound:
        raise NotFoundError("SOURCE_NOT_FOUND", f"{source} does not exist")
    files = [info] if info.type == FileType.File else system.get_file_info(FileSelector(path))
    return "parquet" if any(file.extension == "parquet" for file in files) else "json"


def import_rows(
    source: str | Path,
    name_server: str,
    *,
    to_topic: str | None = None,
    rate: int | None = None,
    form: str | None = None,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
) -> Summary:
    """Send what `export` wrote to topics."""
    begin = time.monotonic()
    chosen = form or _form_of(source)
    with session_of(spark, "import", master=spark_master) as session:
        rows = session.read.schema(ddl()).format(chosen).load(str(source))
        count = rows.count()
        target = sink_options(name_server, to_topic, rate, None)
        writer = rows.select(*SENT_COLUMNS).write.format("twinlog").options(**target)
        writer.mode("append").save()
    facts = {"source": str(source), "form": chosen, "rows": count, "to_topic": to_topic}
    return Summary("import", facts, seconds=time.monotonic() - begin)
