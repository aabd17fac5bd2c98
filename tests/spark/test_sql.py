"""SQL over topics: a view for each of them; what works of CREATE TABLE; rows into a Delta table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from storefiles import StoreFiles

from twinlog.spark.errors import OptionError
from twinlog.spark.jobs.common import follow_query
from twinlog.spark.jobs.sql import sql, statements
from twinlog.spark.write.delta import DeltaSink, DeltaWriter, Part


def run(script: str, files: StoreFiles, spark: Any, **options: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    sql(script, {"path": str(files.root), **options}, show=rows.append, spark=spark)
    return rows


@pytest.fixture
def files(tmp_path: Path) -> StoreFiles:
    made = StoreFiles(tmp_path / "store")
    made.fill(120, topics=("orders", "odd-name.with `marks` and 'quotes'"))
    made.put("%RETRY%group", 0, b"again")
    return made


def test_a_script_is_cut_at_its_own_semicolons() -> None:
    script = "SELECT ';' -- one; two\n; SELECT `a;b`, \"c;\\\";\";;SELECT 'it''s;' "
    found = [text for text in statements(script) if text]
    assert found == ["SELECT ';' -- one; two", 'SELECT `a;b`, "c;\\";"', "SELECT 'it''s;'"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_each_topic_is_a_view_that_reads_itself_only(files: StoreFiles, spark: Any) -> None:
    script = """
        -- how many; by queue
        SELECT queue_id, count(*) AS n FROM orders GROUP BY queue_id ORDER BY queue_id;
        SELECT count(*) AS n FROM `odd-name.with ``marks`` and 'quotes'`;
        SELECT count(*) AS n, count(DISTINCT topic) AS topics FROM messages;
        EXPLAIN FORMATTED SELECT keys FROM orders WHERE queue_id = 2;
        SELECT count(*) AS n FROM orders o JOIN messages m USING (keys) WHERE o.queue_id = 1;
        SELECT CAST(body AS STRING) AS body FROM orders ORDER BY phys_offset LIMIT 1;
        SHOW VIEWS
    """
    rows = run(script, files, spark)
    assert rows[:4] == [{"queue_id": queue, "n": 15} for queue in range(4)]
    assert rows[4:6] == [{"n": 60}, {"n": 120, "topics": 2}]
    condition = rows[6]["plan"].split("Condition")[1].splitlines()[0]
    assert "queue_id" in condition
    assert "topic" not in condition  # the view is a source of that topic only
    assert rows[7] == {"n": 15}
    assert rows[8]["body"].startswith('{"id": 0')
    names = {row["viewName"] for row in rows[9:]}
    assert {"orders", "messages", "odd-name.with `marks` and 'quotes'"} <= names
    with pytest.raises(OptionError, match="no statement was given"):
        run(" -- nothing\n;", files, spark)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_topics_that_differ_only_in_case_are_never_taken_for_each_other(
    tmp_path: Path, spark: Any
) -> None:
    files = StoreFiles(tmp_path / "store")
    for topic, count in (("orders", 3), ("Orders", 5), ("Messages", 7), ("Other", 11)):
        for number in range(count):
            files.put(topic, 0, b"%d" % number)
    script = """
        SELECT count(*) AS n FROM messages;
        SELECT count(*) AS n FROM messages WHERE topic = 'orders';
        SELECT count(*) AS n FROM other
    """
    assert run(script, files, spark) == [{"n": 26}, {"n": 3}, {"n": 11}]
    for name in ("orders", "Orders", "`ORDERS`"):
        with pytest.raises(OptionError, match="WHERE topic = 'Orders'"):
            run(f"SELECT * FROM {name}", files, spark)
    queues = '{"orders":{"broker-a":[0]},"Other":{"broker-a":[0]}}'
    assert run("SELECT count(*) AS n FROM orders", files, spark, assign=queues) == [{"n": 3}]
    start = '{"Other":{"broker-a":{"0":9}}}'
    script = "SELECT count(*) AS n FROM Other; SELECT count(*) AS n FROM messages"
    found = run(script, files, spark, startingOffsets=start)
    assert found == [{"n": 2}, {"n": 17}]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_works_of_create_table(files: StoreFiles, spark: Any) -> None:
    given = f"path '{files.root}', subscribe 'orders'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING twinlog OPTIONS ({given})")
    assert spark.sql("SELECT count(*) FROM seen").first()[0] == 60
    with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW name USING twinlog"):
        spark.sql(f"CREATE TABLE all_columns USING twinlog OPTIONS ({given})")
    spark.sql("CREATE TABLE some (keys STRING, queue_id INT) USING twinlog")
    try:
        with pytest.raises(Exception, match="use CREATE TEMPORARY VIEW name USING twinlog"):
            spark.sql("SELECT count(*) FROM some").collect()
        text = f"`path` = '{files.root}', `subscribe` = 'orders'"
        rows = spark.sql(f"SELECT * FROM some WITH ({text}) WHERE queue_id = 1").collect()
        assert len(rows) == 15
    finally:
        spark.sql("DROP TABLE some")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stream_of_any_rows_becomes_a_delta_table(
    files: StoreFiles, spark: Any, tmp_path: Path
) -> None:
    spark.dataSource.register(DeltaSink)
    source = {"path": str(files.root), "subscribe": "orders", "startingOffsets": "earliest"}
    table = tmp_path / "table"

    def one_run() -> None:
        rows = spark.readStream.format("twinlog").options(**source).load()
        writer = (
            rows.selectExpr("keys", "store_ts", "from_json(string(body), 'id INT') AS typed")
            .writeStream.format("twinlog_delta").option("path", str(table))
            .option("checkpointLocation", str(tmp_path / "check"))
            .queryName("to delta").trigger(availableNow=True)
        )  # fmt: skip
        follow_query(writer.start, lambda _: None)

    one_run()
    files.fill(40, topics=("orders",))
    one_run()
    found = DeltaTable(str(table)).to_pyarrow_table()
    wanted = [row["keys"] for row in files.rows if row["topic"] == "orders"]
    assert sorted(found["keys"].to_pylist()) == sorted(wanted)
    assert found["typed"].type == pa.struct([("id", pa.int32())])


def test_a_batch_of_a_delta_table_is_committed_once_and_columns_are_added(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    shape = pa.schema([("a", pa.int64())])

    def written(name: str, rows: pa.Table) -> Part:
        pq.write_table(rows, tmp_path / name)
        return Part("query", name, (tmp_path / name).stat().st_size, rows.num_rows)

    writer = DeltaWriter({"path": str(tmp_path)}, shape)
    first = written("1.parquet", pa.table({"a": [1, 2]}, shape))
    writer.commit([first, None], 1)
    writer.commit([written("2.parquet", pa.table({"a": [1, 2]}, shape))], 1)  # done again
    writer.abort([first], 1)  # told after the commit: the file stays
    assert not (tmp_path / "2.parquet").exists()
    wide = shape.append(pa.field("b", pa.string()))
    wider = DeltaWriter({"path": str(tmp_path)}, wide)
    wider.commit([written("3.parquet", pa.table({"a": [3], "b": ["x"]}, wide))], 2)
    lost = written("4.parquet", pa.table({"a": [3], "b": ["x"]}, wide))
    wider.abort([lost], 3)  # all tasks were done: a commit of it may be on its way
    assert (tmp_path / "4.parquet").exists()
    wider.abort([lost, None], 3)
    assert not (tmp_path / "4.parquet").exists()
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("a").to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]


@pytest.mark.parametrize(
    ("kind", "text"),
    [(pa.string(), "string"), (pa.int32(), "integer"), (pa.list_(pa.int64()), "array")],
)
def test_rows_that_do_not_fit_a_delta_table_are_refused(
    tmp_path: Path, kind: pa.DataType, text: str
) -> None:
    """Delta would take the file, and nobody could read the table any more."""
    import pyarrow.parquet as pq

    def commit(rows: pa.Table, batch: int, place: Path) -> None:
        pq.write_table(rows, place / f"{batch}.parquet")
        size = (place / f"{batch}.parquet").stat().st_size
        part = Part("query", f"{batch}.parquet", size, rows.num_rows)
        DeltaWriter({"path": str(place)}, rows.schema).commit([part], batch)

    commit(pa.table({"a": [1], "b": ["x"]}), 1, tmp_path)
    with pytest.raises(OptionError, match=rf"BAD_COLUMN.*column a is long .*{text}"):
        commit(pa.table({"a": pa.array([None], kind), "b": ["y"]}), 2, tmp_path)
    commit(pa.table({"a": [3]}), 3, tmp_path)
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("a").to_pylist()
    assert rows == [{"a": 1, "b": "x"}, {"a": 3, "b": None}]
    other = tmp_path / "other"
    write_deltalake(str(other), pa.table({"a": [1], "b": ["x"]}), partition_by=["b"])
    with pytest.raises(
        OptionError, match=r"BAD_OPTION.*partitioned by b and these rows by nothing"
    ):
        commit(pa.table({"a": [2], "b": ["y"]}), 1, other)
    assert DeltaTable(str(other)).to_pyarrow_table().num_rows == 1
