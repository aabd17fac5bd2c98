"""`twinlog spark find`: messages by key, id, offset, tag, time or a value inside a JSON body.

A key, an id or an offset is answered from the store's own index, or by a scan of two columns of the
archive's files, without starting Spark; everything else is a Spark query.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from twinlog.message.ids import parse_offset_message_id
from twinlog.message.record import RecordError
from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.decode.columns import ALL_COLUMNS, ddl
from twinlog.spark.decode.records import Decoder, LogSlice, lay_out
from twinlog.spark.errors import NotFoundError, OptionError, RecordCorruptError
from twinlog.spark.jobs.analyse import table_of
from twinlog.spark.jobs.common import Progress, Summary, kind_of, session_of
from twinlog.spark.options import SourceOptions
from twinlog.spark.places import local_path
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.key_index import index_offsets
from twinlog.spark.read.rows import plan_batch, read_window
from twinlog.spark.read.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_LIMIT = 32
BODY_SHOWN = 200


@dataclass(frozen=True)
class Wanted:
    """What to look for."""

    topic: str | None = None
    key: str | None = None
    message_id: str | None = None
    offset: int | None = None
    tag: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    json_path: str | None = None  # "$.order.id=17"
    limit: int = DEFAULT_LIMIT

    @property
    def is_small(self) -> bool:
        """Say whether the index answers it."""
        return self.offset is not None or self.key is not None or self.message_id is not None


def find(
    places: Sequence[str | Path],
    wanted: Wanted,
    options: Mapping[str, str] | None = None,
    *,
    spark: SparkSession | None = None,
    spark_master: str = "local[2]",
    progress: Progress | None = None,
) -> Summary:
    """Look for messages in stores and archives.

    Raises:
        NotFoundError: nothing was found, or a place is neither store nor archive.
    """
    begin = time.monotonic()
    for place in places:
        if kind_of(place) == "nothing":
            raise NotFoundError("STORE_NOT_FOUND", f"{place} is neither a store nor an archive")
    if wanted.is_small:
        rows = [row for place in places for row in _look_up(local_path(place, "the place"), wanted)]
    else:
        with session_of(spark, "find", master=spark_master) as session:
            rows = [
                row for place in places for row in _query(session, place, wanted, options or {})
            ]
    unique = {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in rows}
    found = [show_row(row) for row in list(unique.values())[: wanted.limit]]
    if not found:
        raise NotFoundError(
            "MESSAGE_NOT_FOUND", f"no message in {', '.join(map(str, places))} matches"
        )
    return Summary(
        "find", {"found": len(found), "messages": found}, seconds=time.monotonic() - begin
    )


def show_row(row: dict[str, Any]) -> dict[str, Any]:
    """Make a row readable: bodies as text where they are text, times in ISO form."""
    shown = {name: row[name] for name in ALL_COLUMNS if name in row and name != "body"}
    body = bytes(row.get("body") or b"")
    try:
        shown["body"] = body[:BODY_SHOWN].decode()
    except UnicodeDecodeError:
        shown["body_hex"] = body[:BODY_SHOWN].hex()
    shown["body_size"] = len(body)
    shown["properties"] = dict(row.get("properties") or {})
    for name in ("born_ts", "store_ts"):
        if shown.get(name) is not None:
            shown[name] = shown[name].isoformat()
    return shown


def _look_up(place: Path, wanted: Wanted) -> Iterator[dict[str, Any]]:
    if kind_of(place) == "archive":
        yield from _scan_archive(place, wanted)
        return
    store = StoreView(place)
    for offset in sorted(_offsets(store, wanted)):
        row = record_at(store, offset)
        if row is not None and _matches(row, wanted):
            yield row


def record_at(store: StoreView, offset: int) -> dict[str, Any] | None:
    """Decode the record at a physical offset; None if there is none."""
    home = store.log.segment_of(offset)
    if home < 0:
        return None
    segment: LogSlice = store.log.segment(home)
    try:
        layout = lay_out(segment, np.array([offset - segment.base], np.int64))
        rows: list[dict[str, Any]] = (
            Decoder(ALL_COLUMNS, store.broker_name()).batch(layout).to_pylist()
        )
    except RecordCorruptError:
        return None
    return rows[0]


def _offsets(store: StoreView, wanted: Wanted) -> set[int]:
    if wanted.offset is not None:
        return {wanted.offset}
    found: set[int] = set()
    topics = [wanted.topic] if wanted.topic else list(store.queues())
    has_index = any((store.root / "index").glob("[0-9]*"))
    for key in filter(None, (wanted.key, wanted.message_id)):
        if not has_index:
            found |= set(_scan_log(store, topics, key))
            continue
        for topic in topics:
            found |= set(index_offsets(store.root / "index", topic, key))
    if wanted.message_id is not None:
        try:
            found.add(parse_offset_message_id(wanted.message_id).physical_offset)
        except (ValueError, RecordError):
            return found
    return found


def _scan_log(store: StoreView, topics: Sequence[str], key: str) -> Iterator[int]:
    """Look through two columns of the log: a broker may run without an index."""
    present = store.queues()
    known = [topic for topic in topics if present.get(topic)]
    if not known:
        return
    options = SourceOptions.parse({"path": str(store.root), "subscribe": ",".join(known)})
    for window in plan_batch(options, Pushed()):
        for batch in read_window(options, window, ("keys", "msg_id", "phys_offset")):
            by_key = pc.match_substring(batch.column("keys"), key).fill_null(False)
            hits = pc.or_(by_key, pc.equal(batch.column("msg_id"), key).fill_null(False))
            yield from batch.filter(hits).column("phys_offset").to_pylist()


def _matches(row: dict[str, Any], wanted: Wanted) -> bool:
    if wanted.topic is not None and row["topic"] != wanted.topic:
        return False
    if wanted.offset is not None:
        return True
    if wanted.key is not None:
        return wanted.key in (row["keys"] or "").split(" ") or wanted.key == row["msg_id"]
    assert wanted.message_id is not None
    if row["msg_id"] == wanted.message_id:
        return True
    try:
        at = parse_offset_message_id(wanted.message_id).physical_offset
    except (ValueError, RecordError):
        return False
    return bool(at == row["phys_offset"])


def _scan_archive(place: Path, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Read two columns of each file, and whole rows only where they match."""
    for file in Manifest(place).require().files():
        if wanted.topic is not None and file.topic != wanted.topic:
            continue
        path = file.path(place)
        marks = pq.read_table(path, columns=["keys", "msg_id", "phys_offset"])
        hits = _archive_hits(marks, wanted)
        if pc.any(hits).as_py():
            rows = pq.read_table(path).filter(hits).to_pylist()
            yield from (row for row in rows if _matches(row, wanted))


def _archive_hits(marks: pa.Table, wanted: Wanted) -> Any:
    if wanted.offset is not None:
        return pc.equal(marks["phys_offset"], wanted.offset)
    text = wanted.key if wanted.key is not None else wanted.message_id
    by_key = pc.match_substring(marks["keys"], text).fill_null(False)
    return pc.or_(by_key, pc.equal(marks["msg_id"], text).fill_null(False))


def _query(
    spark: SparkSession, place: str | Path, wanted: Wanted, options: Mapping[str, str]
) -> list[dict[str, Any]]:
    from pyspark.sql import functions as F  # noqa: N812

    given = dict(options)
    if wanted.topic is not None:
        given["subscribe"] = wanted.topic
    if wanted.tag is not None:
        given["tags"] = wanted.tag
    if wanted.since_ms is not None:
        given["startingTimestamp"] = str(wanted.since_ms)
        given["startingOffsetsByTimestampStrategy"] = "latest"
    if wanted.until_ms is not None:
        given["endingTimestamp"] = str(wanted.until_ms)
    rows = table_of(spark, place, ddl(), given)
    if wanted.json_path is not None:
        path, sep, value = wanted.json_path.partition("=")
        if not sep or not path.startswith("$"):
            raise OptionError("BAD_OPTION", "--json must be PATH=VALUE, such as '$.order.id=17'")
        rows = rows.where(F.get_json_object(F.col("body").cast("string"), path) == value)
    return [row.asDict() for row in rows.limit(wanted.limit).collect()]
