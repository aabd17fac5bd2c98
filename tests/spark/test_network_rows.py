"""The network transport over stores that others wrote: every row as the files have it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from storefiles import StoreFiles, unpack_vectors
from test_decode import damage, odd_store, read
from test_planner import expire

from support.processes import Process
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.spark.decode.columns import ALL_COLUMNS
from twinlog.spark.errors import DataLossError
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.rows import plan_batch, read_window

KEPT_FOR_EVER = {"fileReservedTime": 1_000_000}  # the stores are old; retention must not take them
Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a name server and a broker over the store that lies in tmp_path; give its address."""
    started: list[Process] = []

    def start(**config: Any) -> str:
        (tmp_path / "namesrv").mkdir()
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        started.append(namesrv)
        broker = start_twinlog_broker(
            tmp_path, namesrv=namesrv.address, **{**KEPT_FOR_EVER, **config}
        )
        started.append(broker)
        namesrv.wait_for_text(f"address={broker.address}")
        return namesrv.address

    yield start
    for process in reversed(started):
        process.kill()


def pulled(name_server: str, topics: set[str], **more: str) -> dict[int, dict[str, Any]]:
    given = {"nameServer": name_server, "includeSystemTopics": "true", **more}
    options = SourceOptions.parse({**given, "subscribe": ",".join(sorted(topics))})
    rows = [
        row
        for window in plan_batch(options, Pushed())
        for batch in read_window(options, window, ALL_COLUMNS)
        for row in batch.to_pylist()
    ]
    for row in rows:
        row["properties"] = dict(row["properties"])
    return {row["phys_offset"]: row for row in rows}


def by_offset(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["phys_offset"]: row for row in rows}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("decompress", ["true", "false"])
def test_the_captured_store_over_the_network(tmp_path: Path, serve: Serve, decompress: str) -> None:
    root = unpack_vectors(tmp_path / "store")
    table = json.loads((root / "config/topics.json").read_text())["topicConfigTable"]
    rows = [row for row in read(root, decompress=decompress) if row["topic"] in table]
    wanted = by_offset(rows)
    assert any(row["sys_flag"] & 1 for row in rows)
    address = serve(
        brokerName="vec-broker", mappedFileSizeCommitLog=65536, mappedFileSizeConsumeQueue=6000,
        maxHashSlotNum=100, maxIndexNum=400,
    )  # fmt: skip
    found = pulled(address, {row["topic"] for row in rows}, decompress=decompress)
    # A master delivers what was delayed when it was captured: rows behind the ones that are there.
    assert {offset: found.get(offset) for offset in wanted} == wanted


@pytest.mark.timeout(180)
def test_every_form_of_a_record_over_the_network(tmp_path: Path, serve: Serve) -> None:
    files = odd_store(tmp_path / "store")
    declare(files)
    wanted = by_offset(read(files.root))
    assert len({row["topic"] for row in wanted.values()}) == 4
    address = serve(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)
    found = pulled(address, {row["topic"] for row in wanted.values()})
    assert found == wanted


@pytest.mark.timeout(180)
def test_damaged_records_of_a_broker_are_named_or_left_out(tmp_path: Path, serve: Serve) -> None:
    files = StoreFiles(tmp_path / "store")
    files.fill(80)
    declare(files)
    wanted = by_offset(read(files.root))
    address = serve(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=20_000)
    for victim, position, what in ((21, 4, "is damaged: magic"), (46, 14, "not the one of")):
        row = files.rows[victim]
        damage(files.root, row["phys_offset"], position, 0x40)
        place = f"{row['topic']} broker broker-a queue {row['queue_id']}"
        number = row["queue_offset"]
        words = rf"RECORD_CORRUPT\] {place}, offsets {number} to {number + 1}.*{what}"
        with pytest.raises(DataLossError, match=words):
            pulled(address, {row["topic"]})
        del wanted[row["phys_offset"]]
        assert pulled(address, {"orders", "events"}, failOnDataLoss="false") == wanted


@pytest.mark.timeout(180)
def test_an_expired_range_of_a_broker_is_named_or_left_out(tmp_path: Path, serve: Serve) -> None:
    files = StoreFiles(tmp_path / "store", segment_size=4096)
    files.fill(100)
    declare(files)
    expire(files, 1)
    wanted = by_offset(read(files.root))
    assert 0 < len(wanted) < 100
    address = serve(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=20_000)
    topics = {"orders", "events"}
    assert pulled(address, topics) == wanted
    start = '{"orders":{"broker-a":{"0":0}}}'
    with pytest.raises(DataLossError, match=r"OFFSET_EXPIRED\] orders broker broker-a queue 0"):
        pulled(address, topics, startingOffsets=start)
    assert pulled(address, topics, startingOffsets=start, failOnDataLoss="false") == wanted


def declare(files: StoreFiles) -> None:
    """Write the topics of a store into its topic table, so that a broker routes them."""
    widths: dict[str, int] = {}
    for topic, queue_id in files.heads:
        widths[topic] = max(widths.get(topic, 0), queue_id + 1)
    table = {
        topic: {
            "order": False, "perm": 6, "readQueueNums": width, "writeQueueNums": width,
            "topicFilterType": "SINGLE_TAG", "topicName": topic, "topicSysFlag": 0,
        }
        for topic, width in widths.items()
    }  # fmt: skip
    path = files.root / "config/topics.json"
    known = json.loads(path.read_text())["topicConfigTable"]
    version = {"counter": 1, "timestamp": 1}
    path.write_text(json.dumps({"topicConfigTable": {**known, **table}, "dataVersion": version}))
