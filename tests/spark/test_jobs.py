"""Audit, verify and archive over stores that are whole, and stores that are not."""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from storefiles import StoreFiles, unpack_vectors
from test_decode import damage

from twinlog.spark.archive.manifest import Manifest
from twinlog.spark.errors import NotFoundError, PipelineError
from twinlog.spark.jobs.analyse import lag, latency, stats
from twinlog.spark.jobs.archive import archive
from twinlog.spark.jobs.audit import audit
from twinlog.spark.jobs.audit_archive import audit_archive
from twinlog.spark.jobs.common import follow_query
from twinlog.spark.jobs.compact import compact
from twinlog.spark.jobs.find import Wanted, find
from twinlog.spark.jobs.move import decode
from twinlog.spark.jobs.report import report
from twinlog.spark.jobs.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[StoreFiles, Path, Path]:
    files = StoreFiles(tmp_path / "master", segment_size=1 << 15)
    files.fill(400)
    shutil.copytree(tmp_path / "master", tmp_path / "slave")
    return files, tmp_path / "master", tmp_path / "slave"


def edit(root: Path, physical: int, data: bytes) -> None:
    """Write bytes into a log at a physical offset."""
    path = [p for p in sorted((root / "commitlog").iterdir()) if int(p.name) <= physical][-1]
    with path.open("r+b") as file:
        file.seek(physical - int(path.name))
        file.write(data)


def raw(root: Path, row: dict[str, Any]) -> bytes:
    path = [p for p in sorted((root / "commitlog").iterdir()) if int(p.name) <= row["phys_offset"]][
        -1
    ]
    at = row["phys_offset"] - int(path.name)
    return path.read_bytes()[at : at + row["store_size"]]


def test_audit_of_a_healthy_pair_finds_nothing(spark: Any, pair: Any) -> None:
    _, master, slave = pair
    summary = audit(master, slave, spark=spark)
    assert (summary.findings, summary.exit_code) == ([], 0)


def test_audit_finds_one_flipped_bit_wherever_it_is(spark: Any, pair: Any) -> None:
    files, master, slave = pair
    for row, position in ((0, 3), (57, 88), (200, 30), (399, files.rows[399]["store_size"] - 1)):
        victim = files.rows[row]
        damage(slave, victim["phys_offset"], position, 0x10)
        summary = audit(master, slave, spark=spark, settle=0)
        damage(slave, victim["phys_offset"], position, 0x10)
        assert summary.exit_code == 1
        assert summary.findings[0]["phys_offset"] == victim["phys_offset"]
        assert summary.findings[0]["queue_offset"] == victim["queue_offset"]


def test_audit_names_removed_swapped_truncated_and_extra_records(spark: Any, pair: Any) -> None:
    files, master, slave = pair
    gone, tail = files.rows[120], files.rows[390]
    edit(slave, gone["phys_offset"], bytes(gone["store_size"]))
    found = audit(master, slave, spark=spark).findings
    assert [(f["kind"], f["phys_offset"]) for f in found] == [
        ("MISSING_ON_SLAVE", gone["phys_offset"])
    ]
    edit(slave, gone["phys_offset"], raw(master, gone))

    one, two = next(
        (a, b)
        for a, b in zip(files.rows[100:], files.rows[101:], strict=False)
        if b["phys_offset"] == a["phys_offset"] + a["store_size"]
    )
    edit(slave, one["phys_offset"], raw(master, two) + raw(master, one))
    found = audit(master, slave, spark=spark).findings
    assert {f["phys_offset"] for f in found} >= {one["phys_offset"]}
    assert {f["kind"] for f in found} <= {"RECORD_DIFFERS", "MISSING_ON_SLAVE", "EXTRA_ON_SLAVE"}
    edit(slave, one["phys_offset"], raw(master, one) + raw(master, two))

    kept = raw(master, files.rows[395])
    edit(slave, tail["phys_offset"], bytes(files.end - tail["phys_offset"]))
    shutil.rmtree(slave / "consumequeue")
    found = audit(master, slave, spark=spark, settle=0).findings
    assert found[0]["kind"] == "TRUNCATED_TAIL"
    assert found[0]["phys_offset"] == tail["phys_offset"]
    assert len(found) == 10
    assert kept

    found = audit(slave, master, spark=spark, settle=0).findings
    assert [(f["kind"], f["phys_offset"]) for f in found] == [("EXTRA_TAIL", tail["phys_offset"])]


def test_verify_of_the_captured_store_finds_nothing_but_the_deleted_topic(
    spark: Any, tmp_path: Path
) -> None:
    root = unpack_vectors(tmp_path / "store")
    summary = verify(root, spark=spark)
    assert summary.findings == []
    assert summary.facts["records"] == 568
    assert summary.facts["topics_without_queue"] == {"TopicGone": 3}


def test_verify_rebuild_gives_the_same_queues(spark: Any, tmp_path: Path) -> None:
    root = unpack_vectors(tmp_path / "store")
    before = {
        p.relative_to(root): p.read_bytes()
        for p in (root / "consumequeue").rglob("*")
        if p.is_file() and "SCHEDULE" not in str(p)
    }
    shutil.rmtree(root / "consumequeue" / "TopicVec")
    found = verify(root, spark=spark).findings
    assert {(f["kind"], f["topic"]) for f in found} == {("QUEUE_MISSING", "TopicVec")}
    assert verify(root, rebuild=True, spark=spark).facts["rebuilt"]
    after = {p: (root / p).read_bytes() for p in before}
    assert after == before
    assert verify(root, spark=spark).findings == []


def test_verify_finds_damage_of_log_queue_and_body(spark: Any, pair: Any) -> None:
    files, master, _ = pair
    body, place, entry = files.rows[20], files.rows[40], files.rows[60]
    damage(master, body["phys_offset"], 90)
    damage(master, place["phys_offset"], 35)
    queue = master / "consumequeue" / entry["topic"] / str(entry["queue_id"]) / f"{0:020d}"
    with queue.open("r+b") as file:
        file.seek(entry["queue_offset"] * 20 + 19)
        file.write(b"\xff")
    found = {f["kind"]: f for f in verify(master, spark=spark).findings}
    assert found["CRC_MISMATCH"]["phys_offset"] == body["phys_offset"]
    assert found["WRONG_PLACE"]["phys_offset"] == place["phys_offset"]
    assert found["ENTRY_DIFFERS"]["queue_offset"] == entry["queue_offset"]


def archived_rows(spark: Any, out: Path) -> Counter[Any]:
    reader = (
        spark.read.format("twinlog").option("archive", str(out)).option("subscribePattern", ".*")
    )
    rows = reader.load().select("topic", "queue_id", "queue_offset", "body").collect()
    return Counter((r.topic, r.queue_id, r.queue_offset, bytes(r.body)) for r in rows)


def stored_rows(files: StoreFiles) -> Counter[Any]:
    return Counter((r["topic"], r["queue_id"], r["queue_offset"], r["body"]) for r in files.rows)


def test_a_stream_reads_the_archive_and_then_the_log(spark: Any, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s", segment_size=4096, queue_entries=50)
    files.fill(300)
    out = tmp_path / "archive"
    archive(out, {"path": str(files.root), "maxOffsetsPerTrigger": "100"}, spark=spark)
    files.fill(60)
    for path in sorted((files.root / "commitlog").iterdir())[:6]:
        path.unlink()
    options = {
        "path": str(files.root), "archive": str(out), "subscribe": "orders,events",
        "startingOffsets": "earliest", "maxOffsetsPerTrigger": "90", "tags": "a || b",
    }  # fmt: skip
    found: list[Any] = []
    writer = (
        spark.readStream.format("twinlog").options(**options).load()
        .select("topic", "queue_id", "queue_offset", "body")
        .writeStream.foreachBatch(lambda frame, _: found.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True)
    )  # fmt: skip
    follow_query(writer.start, lambda _: None)
    tagged = [row for row in files.rows if row["tags"] in ("a", "b")]
    wanted = Counter((r["topic"], r["queue_id"], r["queue_offset"], r["body"]) for r in tagged)
    assert Counter((r.topic, r.queue_id, r.queue_offset, bytes(r.body)) for r in found) == wanted


def test_archive_goes_on_and_survives_the_loss_of_its_checkpoint(
    spark: Any, pair: Any, tmp_path: Path
) -> None:
    files, master, _ = pair
    out = tmp_path / "archive"
    options = {"path": str(master), "maxOffsetsPerTrigger": "150"}
    assert archive(out, options, spark=spark).facts["rows"] == 400
    files.fill(50)
    shutil.rmtree(out / "_checkpoint")
    assert archive(out, options, spark=spark).facts["rows"] == 50
    assert archived_rows(spark, out) == stored_rows(files)
    assert audit_archive(master, out, spark=spark).findings == []
    files.fill(30)
    both = {"archive": str(out), "path": str(master), "subscribe": "orders,events"}
    assert spark.read.format("twinlog").options(**both).load().count() == 480

    victim = Manifest(out).files()[0]
    data = bytearray(victim.path(out).read_bytes())
    data[len(data) // 2] ^= 1
    victim.path(out).write_bytes(bytes(data))
    found = audit_archive(master, out, spark=spark).findings
    assert [f["kind"] for f in found] == ["FILE_DAMAGED"]


def test_stats_latency_lag_and_report_of_a_store(spark: Any, tmp_path: Path) -> None:
    root = unpack_vectors(tmp_path / "store")
    numbers = stats(root, spark=spark).facts
    assert numbers["topics"]["TopicVec"]["messages"] == 194  # queue entries that were captured
    assert "%DLQ%GID_retry" not in numbers["topics"]
    delays = latency(root, spark=spark).facts["born_to_store_ms"]["TopicVec"]
    assert 0 <= delays["p50"] <= delays["p99"] <= delays["max"]
    behind = {
        (r["group"], r["topic"], r["queue_id"]): r["behind"] for r in lag(root).facts["queues"]
    }
    assert behind["GID_order", "TopicOrder", 1] == 9
    out = tmp_path / "report.html"
    summary = report(root, out, replica=root, spark=spark)
    page = out.read_text()
    assert summary.exit_code == 0
    assert page.count("<svg") >= 5
    assert "replicas are equal" in page
    assert not re.search(r"(src|href)=|https?://", page)


def test_find_by_key_id_and_offset_needs_no_spark(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    root = unpack_vectors(tmp_path / "store")
    by_key = find([root], Wanted(key="key1")).facts["messages"]
    assert [row["phys_offset"] for row in by_key] == [189]
    by_id = find([root], Wanted(message_id=by_key[0]["msg_id"], topic="TopicVec")).facts["messages"]
    by_offset = find([root], Wanted(offset=189)).facts["messages"]
    by_old_id = find([root], Wanted(message_id="7F00000100009FCF00000000000000BD")).facts[
        "messages"
    ]
    assert by_key == by_id == by_offset == by_old_id
    with pytest.raises(NotFoundError, match="MESSAGE_NOT_FOUND"):
        find([root], Wanted(key="no such key"))
    shutil.rmtree(root / "index")
    assert find([root], Wanted(key="key1")).facts["messages"] == by_key


def test_find_by_tag_time_and_json_in_store_and_archive(
    spark: Any, pair: Any, tmp_path: Path
) -> None:
    files, master, _ = pair
    archive(tmp_path / "archive", {"path": str(master)}, spark=spark)
    places = [master, tmp_path / "archive"]
    found = find(places, Wanted(json_path="$.id=123"), spark=spark).facts["messages"]
    assert [row["keys"] for row in found] == ["k123"]
    since = files.rows[396]["store_ms"]
    found = find(places, Wanted(since_ms=since, tag="a || b"), spark=spark).facts["messages"]
    wanted = [r["keys"] for r in files.rows[396:] if r["tags"] in "ab"]
    assert sorted(row["keys"] for row in found) == sorted(wanted)
    assert find([tmp_path / "archive"], Wanted(key="k7")).facts["found"] == 1


def test_compaction_keeps_the_rows_and_the_place_to_go_on(
    spark: Any, pair: Any, tmp_path: Path
) -> None:
    files, master, _ = pair
    out = tmp_path / "archive"
    options = {"path": str(master), "maxOffsetsPerTrigger": "150"}
    archive(out, options, spark=spark)
    facts = compact(out, grace_seconds=0).facts
    assert (facts["files_after"], facts["rows"]) == (2, 400)
    assert facts["removed"] == facts["files_before"]
    assert len(list((out / "_manifest").iterdir())) == 1
    assert archived_rows(spark, out) == stored_rows(files)
    (out / "topic=orders" / "date=2023-11-14" / "orphan.parquet").write_bytes(b"left by a crash")
    files.fill(20)
    assert archive(out, options, spark=spark).facts["rows"] == 20
    assert compact(out, grace_seconds=3600).facts["removed"] == 0
    assert archived_rows(spark, out) == stored_rows(files)
    assert audit_archive(master, out, spark=spark).findings == []


def test_old_rows_expire_and_the_archive_goes_on(spark: Any, pair: Any, tmp_path: Path) -> None:
    files, master, _ = pair
    out = tmp_path / "archive"
    options = {"path": str(master)}
    archive(out, options, spark=spark)
    old = len(files.rows)
    files.now += 10 * 86_400_000
    files.fill(60)
    archive(out, options, spark=spark)
    days = (time.time() * 1000 - files.rows[old]["store_ms"]) / 86_400_000
    assert compact(out, grace_seconds=0, expire_days=days + 20).facts["expired_rows"] == 0
    facts = compact(out, grace_seconds=0, expire_days=days + 5).facts
    assert (facts["expired_rows"], facts["rows"]) == (old, 60)
    kept = Counter(
        (r["topic"], r["queue_id"], r["queue_offset"], r["body"]) for r in files.rows[old:]
    )
    assert archived_rows(spark, out) == kept
    assert audit_archive(master, out, spark=spark).findings == []
    assert compact(out, grace_seconds=0, expire_days=days - 1).facts["rows"] == 0
    assert archived_rows(spark, out) == Counter()
    files.fill(20)
    assert archive(out, options, spark=spark).facts["rows"] == 20


def test_decode_writes_typed_rows_and_dead_letters(spark: Any, pair: Any, tmp_path: Path) -> None:
    files, master, _ = pair
    files.put("orders", 0, b"no json", {"KEYS": "bad"})
    files.put("orders", 0, b'{"id": "no number"}')
    options = {
        "subscribe": "orders", "decodeBody": "json", "bodySchema": "id INT, amount INT",
    }  # fmt: skip
    facts = decode(master, tmp_path / "out", options, spark=spark).facts
    assert (facts["rows"], facts["dead_letters"]) == (200, 2)
    total = spark.read.parquet(str(tmp_path / "out" / "rows")).selectExpr("sum(body.id)").first()[0]
    assert total == sum(range(0, 400, 2))
    dead = spark.read.parquet(str(tmp_path / "out" / "dead")).select("keys", "body", "reason")
    assert {(row["keys"], bytes(row["body"])) for row in dead.collect()} == {
        ("bad", b"no json"),
        (None, b'{"id": "no number"}'),
    }


def test_an_archive_refuses_a_gap(spark: Any, pair: Any, tmp_path: Path) -> None:
    files, master, _ = pair
    out = tmp_path / "archive"
    archive(out, {"path": str(master)}, spark=spark)
    shutil.rmtree(out / "_checkpoint")
    files.fill(40)
    (out / "_manifest").rename(out / "_aside")
    archive(out, {"path": str(master), "startingOffsets": '{"orders":{"0":52}}'}, spark=spark)
    newest = next(iter((out / "_manifest").iterdir()))
    (out / "_aside" / newest.name.replace("000000000001", "000000000002")).write_bytes(
        newest.read_bytes()
    )
    shutil.rmtree(out / "_manifest")
    (out / "_aside").rename(out / "_manifest")
    with pytest.raises(PipelineError, match="ARCHIVE_"):
        Manifest(out).batches()
