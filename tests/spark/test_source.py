"""Format "twinlog" in a real Spark session: batch, stream, errors."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader
from storefiles import StoreFiles, unpack_vectors

from twinlog.spark.jobs.common import follow_query
from twinlog.spark.source import PushdownReader, TwinlogDataSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def reader(spark: Any, root: Path, **options: str) -> Any:
    chosen = {"path": str(root), "subscribe": "orders,events", **options}
    return spark.read.format("twinlog").options(**chosen)


def identities(rows: list[Any]) -> Counter[tuple[str, int, int]]:
    return Counter((row.topic, row.queue_id, row.queue_offset) for row in rows)


def wanted(files: StoreFiles) -> Counter[tuple[str, int, int]]:
    return Counter((r["topic"], r["queue_id"], r["queue_offset"]) for r in files.rows)


def test_batch_read_is_found_by_name_and_equals_a_direct_read(spark: Any, tmp_path: Path) -> None:
    from test_decode import read

    root = unpack_vectors(tmp_path / "store")
    frame = (
        spark.read.format("twinlog").option("path", str(root)).option("subscribePattern", ".*")
        .option("includeSystemTopics", "true").option("minPartitions", "3").load()
    )  # fmt: skip
    found = sorted((row.asDict() for row in frame.collect()), key=lambda row: row["phys_offset"])
    direct = sorted(read(root), key=lambda row: row["phys_offset"])
    for row in found:
        row["body"] = bytes(row["body"])
    for row in direct:
        for name in ("born_ts", "store_ts"):
            row[name] = row[name].replace(tzinfo=None)
    assert found == direct


def test_a_user_schema_prunes(spark: Any, tmp_path: Path) -> None:
    StoreFiles(tmp_path / "s").fill(400)
    rows = reader(spark, tmp_path / "s").schema("queue_offset BIGINT, tags STRING").load()
    assert rows.columns == ["queue_offset", "tags"]
    assert rows.count() == 400


def test_workers_import_the_installed_pyspark(spark: Any) -> None:
    """Not the archive that Spark brings, which every process would compile again."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.modules["pyspark"].__file__)
    assert found.collect() == [sys.modules["pyspark"].__file__]


def test_a_frame_that_is_queried_again_has_its_rows(spark: Any, tmp_path: Path) -> None:
    """Push-down is refused where Spark would keep the filters of the first query."""
    StoreFiles(tmp_path / "s").fill(400)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for more in ({}, {"filterPushdown": "true"}):
            frame = reader(spark, tmp_path / "s", **more).load()
            one = frame.where("queue_id = 1")
            if more and not IS_MENDED:
                with pytest.raises(Exception, match=r"BAD_OPTION.*filterPushdown.*the next query"):
                    one.count()
                continue
            few = one.count()
            assert 0 < few < 400
            assert frame.count() == 400
            assert one.union(frame).count() == 400 + few
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


class OneQuerySource(TwinlogDataSource):
    """The format as a Spark without the fault gets it: here each frame has one query."""

    @classmethod
    def name(cls) -> str:
        return "twinlog_one_query"

    def reader(self, schema: Any) -> DataSourceReader:
        return PushdownReader(dict(self.options), self._shape(schema, self.options))


@pytest.mark.parametrize(
    ("condition", "pushed", "left"),
    [
        ("tags = 'a' AND queue_id IN (1, 2)", ["EqualTo(tags,a)", "In(queue_id, [1,2])"], []),
        ("keys LIKE 'k1%' AND tags <=> 'b'", ["StringStartsWith(keys,k1)", "tags,b"], []),
        ("queue_offset >= 5 AND NOT tags = 'c'", ["GreaterThanOrEqual(queue_offset,5)"], []),
        ("(tags = 'a' OR queue_id = 3) AND topic = 'orders'", ["topic,orders"], ["tags", "OR"]),
    ],
)
def test_what_is_pushed_shows_in_explain_and_gives_the_same_rows(
    spark: Any, tmp_path: Path, capsys: Any, condition: str, pushed: list[str], left: list[str]
) -> None:
    StoreFiles(tmp_path / "s").fill(400)
    wanted = reader(spark, tmp_path / "s").load().where(condition).collect()
    spark.dataSource.register(OneQuerySource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        chosen = {"path": str(tmp_path / "s"), "subscribe": "orders,events"}
        frame = spark.read.format("twinlog_one_query").options(**chosen).load().where(condition)
        found = frame.collect()
        frame.explain("formatted")
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    plan = capsys.readouterr().out
    shown = next(line for line in plan.splitlines() if "PushedFilters" in line)
    assert [text for text in pushed if text not in shown] == []
    again = "".join(line for line in plan.splitlines() if line.startswith("Condition"))
    assert [text for text in left if text not in again] == []
    assert bool(again) == bool(left)
    assert found
    assert sorted(found, key=lambda row: row.phys_offset) == sorted(
        wanted, key=lambda row: row.phys_offset
    )


IS_MENDED = hasattr(DataSourceReader, "pushLimit")  # by SPARK-58551


@pytest.mark.skipif(IS_MENDED, reason="this Spark keeps filters with the query")
def test_why_push_down_is_refused(spark: Any, tmp_path: Path) -> None:
    """Spark's own fault, as a source without the refusal meets it: what one query pushes is what
    every other query of the frame reads, so no source can push correctly."""
    StoreFiles(tmp_path / "s").fill(400)
    spark.dataSource.register(OneQuerySource)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    chosen = {"path": str(tmp_path / "s"), "subscribe": "orders,events"}

    def load() -> Any:
        return spark.read.format("twinlog_one_query").options(**chosen).load()

    try:
        frame = load()
        few = frame.where("queue_id = 1").count()
        assert 0 < few < 400
        assert frame.count() == few, "a query without a filter reads with that of the one before"
        frame = load()
        both = frame.where("queue_id = 1").union(frame.where("queue_id = 2"))
        read = {row.queue_id for row in both.select("queue_id").collect()}
        assert len(read) == 1, "both halves of one query read with the filter of one of them"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.skipif(IS_MENDED, reason="a newer interface may have more")
def test_spark_tells_a_source_nothing_of_the_wanted_columns() -> None:
    """What prunes is the schema of the frame, see `test_a_user_schema_prunes`."""
    told = {name for name in vars(DataSourceReader) if not name.startswith("_")}
    assert told == {"pushFilters", "partitions", "read"}


def test_columns_that_every_message_has_are_not_null(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s")
    files.fill(9)
    files.put("orders", 0, b"neither key nor tag")
    frame = reader(spark, files.root).load()
    assert {f.name for f in frame.schema if f.nullable} == {"msg_id", "keys", "tags"}
    assert sorted(row.tags or "" for row in frame.collect()) == ["", *"aaabbbccc"]
    user = reader(spark, files.root).schema("tags STRING, body BINARY, topic STRING NOT NULL")
    assert [f.nullable for f in user.load().schema] == [True, True, False]
    assert sum(row.tags is None for row in user.load().collect()) == 1
    with pytest.raises(Exception, match="schema says that tags is NOT NULL, but 1 of"):
        reader(spark, files.root).schema("tags STRING NOT NULL").load().collect()


def run_stream(
    spark: Any, root: Path, work: Path, *, trigger: str = "availableNow", **options: str
) -> list[list[Any]]:
    """Run a stream over what is there; return the rows of each batch."""
    batches: list[list[Any]] = []
    chosen = {"path": str(root), "subscribe": "orders,events", **options}
    writer = (
        spark.readStream.format("twinlog").options(**chosen)
        .schema("topic STRING, queue_id INT, queue_offset BIGINT, store_size INT").load()
        .writeStream.foreachBatch(lambda frame, number: batches.append(frame.collect()))
        .option("checkpointLocation", str(work)).trigger(**{trigger: True})
    )  # fmt: skip
    follow_query(writer.start, lambda _: None)
    return batches


def test_stream_goes_on_from_its_checkpoint_with_limits(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s")
    files.fill(300)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "120"}
    first = run_stream(spark, tmp_path / "s", tmp_path / "check", **options)
    sizes = [len(batch) for batch in first if batch]
    assert len(sizes) == 3
    assert max(sizes) <= 120
    files.fill(100)
    files.put("orders", 7, b"a new queue")
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": "9000"}
    second = run_stream(spark, tmp_path / "s", tmp_path / "check", **options)
    assert all(sum(row.store_size for row in batch) <= 9000 for batch in second)
    assert len([batch for batch in second if batch]) > 2
    rows = [row for batch in first + second for row in batch]
    assert identities(rows) == wanted(files)


def test_a_stream_at_latest_is_pinned_by_an_empty_first_batch(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s")
    files.fill(50)
    assert run_stream(spark, tmp_path / "s", tmp_path / "check") == [[]]
    files.fill(30)
    rows = [row for b in run_stream(spark, tmp_path / "s", tmp_path / "check") for row in b]
    assert identities(rows) == wanted(files) - Counter(
        (r["topic"], r["queue_id"], r["queue_offset"]) for r in files.rows[:50]
    )
    offset = json.loads(
        max((tmp_path / "check/offsets").glob("[0-9]*")).read_text().splitlines()[-1]
    )
    assert offset["offsets"]["orders"]["broker-a"]["0"] == 10
    assert offset["marks"]["broker-a"]["phys"] == files.end


def test_one_batch_on_a_fresh_checkpoint_reads_all(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s")
    files.fill(50)
    options = {"trigger": "once", "startingOffsets": "earliest"}
    first = run_stream(spark, files.root, tmp_path / "check", **options)
    assert identities(first[0]) == wanted(files)
    files.fill(20)
    second = run_stream(spark, files.root, tmp_path / "check", **options)
    assert identities(first[0] + second[0]) == wanted(files)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxOffsetPerTrigger": "5"}, "maxOffsetsPerTrigger"),
        ({"subscribe": "order"}, "did you mean 'orders'"),
        ({"startingOffsets": '{"orders":{"broker-a":{"0":999}}}'}, "OFFSET_AHEAD"),
        ({"endingOffsets": '{"orders":{"broker-a":{"0":999}}}'}, "OFFSET_AHEAD"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
    ],
)
def test_bad_input_is_a_spark_error_with_a_clear_text(
    spark: Any, tmp_path: Path, options: dict[str, str], text: str
) -> None:
    StoreFiles(tmp_path / "s").fill(20)
    with pytest.raises(Exception, match=text):
        reader(spark, tmp_path / "s", **options).load().count()


def test_an_unknown_column_names_the_nearest(spark: Any, tmp_path: Path) -> None:
    StoreFiles(tmp_path / "s").fill(4)
    with pytest.raises(Exception, match="queue_offset"):
        reader(spark, tmp_path / "s").schema("queue_ofset BIGINT").load().count()


def test_a_corrupt_record_and_an_expired_range_are_told_by_spark(
    spark: Any, tmp_path: Path
) -> None:
    from test_decode import damage
    from test_planner import expire

    files = StoreFiles(tmp_path / "s", segment_size=4096)
    files.fill(100)
    victim = files.rows[50]["phys_offset"]
    damage(files.root, victim, 33, 0x40)
    with pytest.raises(Exception, match=rf"RECORD_CORRUPT.*physical offset {victim}.*bytes there"):
        reader(spark, files.root).load().count()
    damage(files.root, victim, 33, 0x40)
    expire(files, 1)
    start = '{"orders":{"broker-a":{"0":0}}}'
    with pytest.raises(Exception, match=r"OFFSET_EXPIRED.*orders broker broker-a queue 0"):
        reader(spark, files.root, startingOffsets=start).load().count()


def test_a_checkpoint_of_another_cluster_is_told_by_spark(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s")
    files.fill(40)
    check = tmp_path / "check"
    options = {"startingOffsets": "earliest"}
    assert sum(len(batch) for batch in run_stream(spark, files.root, check, **options)) == 40
    files.write_topics("broker-b")
    with pytest.raises(Exception, match="broker-a, but this store belongs to 'broker-b'"):
        run_stream(spark, files.root, check, **options)
    other = StoreFiles(tmp_path / "other")
    other.put("orders", 3, b"another history")
    other.fill(80)
    with pytest.raises(Exception, match="LOG_DIVERGED"):
        run_stream(spark, other.root, check, **options)
