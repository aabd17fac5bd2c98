"""A batch of an archive and the live log: the rows of both as one table, or an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from storefiles import StoreFiles
from test_archive_files import publish
from test_planner import expire

from twinlog.spark.archive.table import manifest_of
from twinlog.spark.errors import DataLossError, NotFoundError, OptionError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.plan.stream import StreamPlanner
from twinlog.spark.read.rows import open_stream, plan_batch, read_window

Place = tuple[str, int, int]  # topic, queue, offset
BROKER = "broker-a"


def read(files: StoreFiles, archive: Path, **more: str) -> list[Place]:
    given = {"path": str(files.root), "archive": str(archive), **more}
    given.setdefault("subscribe", "orders,events")
    options = SourceOptions.parse(given)
    return sorted(
        (row["topic"], row["queue_id"], row["queue_offset"])
        for part in plan_batch(options, Pushed())
        for batch in read_window(options, part, ("topic", "queue_id", "queue_offset"))
        for row in batch.to_pylist()
    )


def table_of(numbers: Mapping[tuple[str, int], int]) -> str:
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, queue), number in numbers.items():
        found.setdefault(topic, {}).setdefault(BROKER, {})[str(queue)] = number
    return json.dumps(found)


@pytest.fixture
def archived(tmp_path: Path) -> tuple[StoreFiles, Path]:
    """A store of 300 rows, the first 200 of which are in the archive."""
    files = StoreFiles(tmp_path / "store", segment_size=4096, queue_entries=50)
    files.fill(200)
    publish(files, tmp_path / "archive")
    files.fill(100)
    return files, tmp_path / "archive"


def places(files: StoreFiles) -> list[Place]:
    return sorted((r["topic"], r["queue_id"], r["queue_offset"]) for r in files.rows)


def first_at(files: StoreFiles, time_ms: int) -> dict[tuple[str, int], int]:
    """The first offset of each queue that was stored at or after a time, or its end."""
    found = dict(files.heads)
    for row in reversed(files.rows):
        if row["store_ms"] >= time_ms:
            found[row["topic"], row["queue_id"]] = row["queue_offset"]
    return found


@pytest.mark.parametrize("segments", [0, 4, 8])
def test_any_start_and_end_choose_the_rows_of_both(
    archived: tuple[StoreFiles, Path], segments: int
) -> None:
    files, archive = archived
    expire(files, segments)
    numbers = Random(segments)
    for _ in range(20):
        given: dict[str, str] = {}
        chosen = {"starting": dict.fromkeys(files.heads, 0), "ending": dict(files.heads)}
        for side in chosen:
            time_ms = numbers.randint(files.rows[0]["store_ms"] - 5, files.rows[-20]["store_ms"])
            kind = numbers.choice(["none", "table", "time", "times"])
            if kind == "table":
                chosen[side] = {k: numbers.randint(0, end) for k, end in files.heads.items()}
                given[f"{side}Offsets"] = table_of(chosen[side])
            elif kind == "time":
                chosen[side] = first_at(files, time_ms)
                given[f"{side}Timestamp"] = str(time_ms)
            elif kind == "times":
                chosen[side] = first_at(files, time_ms)
                times = dict.fromkeys(files.heads, max(0, time_ms))
                given[f"{side}OffsetsByTimestamp"] = table_of(times)
        wanted = [
            place
            for place in places(files)
            if chosen["starting"][place[:2]] <= place[2] < chosen["ending"][place[:2]]
        ]
        assert read(files, archive, **given) == wanted, given


def test_a_group_is_read_on_in_the_archive(archived: tuple[StoreFiles, Path]) -> None:
    files, archive = archived
    offsets = {f"{topic}@shop": {0: 5, 1: 30} for topic in ("orders", "events")}
    (files.root / "config/consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    starts = {0: 5, 1: 30}
    wanted = [place for place in places(files) if place[2] >= starts.get(place[1], 0)]
    assert read(files, archive, startingGroup="shop") == wanted


def test_rows_between_the_archive_and_the_log_are_missed(
    archived: tuple[StoreFiles, Path],
) -> None:
    files, archive = archived
    expire(files, 14)
    live = read_live(files)
    assert live
    kept = sorted({*live, *read_only(archive)})
    assert len(kept) < len(files.rows)
    with pytest.raises(DataLossError, match=r"OFFSET_EXPIRED\] events broker broker-a queue 0"):
        read(files, archive)
    assert read(files, archive, failOnDataLoss="false") == kept
    ends = dict.fromkeys(files.heads, 10)
    wanted = [place for place in places(files) if place[2] < 10]
    assert read(files, archive, endingOffsets=table_of(ends)) == wanted
    early = files.rows[100]["store_ms"]
    wanted = [place for place in places(files) if place[2] < first_at(files, early)[place[:2]]]
    assert read(files, archive, endingTimestamp=str(early)) == wanted
    with pytest.raises(DataLossError, match=r"OFFSET_EXPIRED"):
        read(files, archive, startingTimestamp=str(early))


def read_live(files: StoreFiles) -> list[Place]:
    options = SourceOptions.parse({"path": str(files.root), "subscribe": "orders,events"})
    return [
        (r.topic, r.queue_id, offset)
        for window in plan_batch(options, Pushed())
        for r in window
        for offset in range(r.low, r.high)
    ]


def read_only(archive: Path) -> list[Place]:
    options = SourceOptions.parse({"archive": str(archive), "subscribe": "orders,events"})
    return [
        (row["topic"], row["queue_id"], row["queue_offset"])
        for part in plan_batch(options, Pushed())
        for batch in read_window(options, part, ("topic", "queue_id", "queue_offset"))
        for row in batch.to_pylist()
    ]


def test_a_topic_that_only_the_archive_has_is_read_from_it(
    archived: tuple[StoreFiles, Path],
) -> None:
    files, archive = archived
    shutil.rmtree(files.root / "consumequeue" / "events")
    wanted = [place for place in read_only(archive) if place[0] == "events"]
    assert read(files, archive, subscribe="events") == sorted(wanted)
    with pytest.raises(NotFoundError, match="nothing"):
        read(files, archive, subscribe="nothing")


def stream(files: StoreFiles, archive: Path, **more: str) -> StreamPlanner:
    given = {"path": str(files.root), "archive": str(archive), "startingOffsets": "earliest"}
    options = SourceOptions.parse({**given, **more})
    return StreamPlanner(options, open_stream(options))


def drained(
    planner: StreamPlanner, start: dict[str, Any] | None = None
) -> tuple[list[Place], dict[str, Any]]:
    """Read batches until there is nothing to do; return the rows and the last offset."""
    found: list[Place] = []
    start = start or planner.latest(planner.initial(), limited=True)
    while (end := planner.latest(start, limited=True)) != start:
        columns = ("topic", "queue_id", "queue_offset")
        for window in planner.partitions(start, end):
            for batch in read_window(planner.options, window, columns):
                found += [tuple(row.values()) for row in batch.to_pylist()]
        start = end
    return sorted(found), start


@pytest.mark.parametrize(
    "chosen", [{"subscribe": "events"}, {"subscribePattern": ".*"}, {"startingTimestamp": "1"}]
)
@pytest.mark.parametrize("is_available_now", [False, True])
def test_a_stream_reads_a_topic_that_only_the_archive_has(
    archived: tuple[StoreFiles, Path], chosen: dict[str, str], is_available_now: bool
) -> None:
    files, archive = archived
    shutil.rmtree(files.root / "consumequeue" / "events")
    given = {"subscribe": "orders,events", **chosen}
    if "subscribePattern" in chosen:
        del given["subscribe"]
    topics = ("events",) if chosen.get("subscribe") == "events" else ("events", "orders")
    kept = [place for place in places(files) if place[0] == "orders"]
    kept += [place for place in read_only(archive) if place[0] == "events"]
    planner = stream(files, archive, **given)
    if is_available_now:
        planner.fix_target()
    rows, end = drained(planner)
    assert rows == sorted(place for place in kept if place[0] in topics)
    assert drained(stream(files, archive, **given), end) == ([], end)  # started again
    with pytest.raises(NotFoundError, match="nothing"):
        drained(stream(files, archive, subscribe="nothing"))


def test_a_stream_notices_that_a_topic_is_gone_with_rows_that_no_archive_has(
    archived: tuple[StoreFiles, Path],
) -> None:
    files, archive = archived
    planner = stream(files, archive, subscribe="events")
    rows, end = drained(planner)
    assert len(rows) == 150
    only = SourceOptions.parse({"archive": str(archive), "subscribe": "events"})
    ends = manifest_of(only).spans()
    middle = {**end, "offsets": {"events": {BROKER: {}}}}
    for (topic, broker, queue), (_, high) in ends.items():
        if topic == "events":
            middle["offsets"][topic][broker][str(queue)] = high
    assert planner.latest(middle, limited=True)["offsets"] == end["offsets"]
    shutil.rmtree(files.root / "consumequeue" / "events")
    with pytest.raises(DataLossError, match="QUEUE_VANISHED"):
        stream(files, archive, subscribe="events").latest(end, limited=True)
    with pytest.raises(DataLossError, match="QUEUE_VANISHED"):
        planner.latest(middle, limited=True)


def test_an_archive_alone_knows_no_group(archived: tuple[StoreFiles, Path]) -> None:
    _, archive = archived
    given = {"archive": str(archive), "subscribe": "orders", "startingGroup": "shop"}
    with pytest.raises(OptionError, match="startingGroup"):
        plan_batch(SourceOptions.parse(given), Pushed())
