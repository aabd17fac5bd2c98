"""A mirror keeps queues and their order, carries the offsets of groups over, and says if not."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from storefiles import StoreFiles
from test_sink import namesrv, rows_of

from twinlog.spark.errors import OptionError
from twinlog.spark.jobs.mirror import mirror
from twinlog.spark.jobs.mirror_queues import (
    check_order,
    copies,
    prepare_topics,
    source_queues,
)
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.windows import Range, by_queue
from twinlog.spark.read.rows import open_transport

__all__ = ["namesrv"]
QUEUES = 8


def test_whole_queues_are_shared_among_tasks() -> None:
    ranges = [Range("t", "b", queue, queue, queue + 10 * (queue + 1)) for queue in range(7)]
    tasks = by_queue(ranges, 3)
    assert sorted(r for task in tasks for r in task) == ranges
    sizes = [sum(r.rows for r in task) for task in tasks]
    assert len(tasks) == 3
    assert max(sizes) - min(sizes) <= 20
    assert by_queue(ranges, 3) == tasks
    assert len(by_queue(ranges, 99)) == 7
    assert by_queue([], 4) == []


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_queues_order_and_groups_are_as_they_were(spark: Any, namesrv: str, tmp_path: Path) -> None:
    files = StoreFiles(tmp_path / "s")
    topic = f"keyed-{time.time_ns()}"
    for number in range(600):
        queue = (number * 7) % 3  # three of eight queues are used
        files.put(topic, queue, b"%d" % number, {"UNIQ_KEY": f"{number:032X}"})
    for queue in range(3, QUEUES):
        files.put(topic, queue, b"last", {"UNIQ_KEY": f"F{queue:031X}"})
    table = {f"{topic}@readers": {"0": 17, "1": 200, "5": 1}}
    (files.root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    source = {"path": str(files.root), "subscribe": topic, "maxRecordsPerPartition": "40"}
    summary = mirror(
        source, namesrv, tmp_path / "check", verify=True, groups=["readers"], spark=spark
    )
    assert summary.findings == []
    found = defaultdict(list)
    for row in sorted(rows_of(namesrv, topic), key=lambda row: row["queue_offset"]):
        found[row["queue_id"]].append(row["body"])
    wanted = defaultdict(list)
    for row in files.rows:
        wanted[row["queue_id"]].append(row["body"])
    assert found == wanted
    target = open_transport(SourceOptions.parse({"nameServer": namesrv, "subscribe": topic}))
    offsets = {key[2]: number for key, number in target.group_offsets("readers").items()}
    target.close()
    # A broker answers 0 where nothing is committed.
    assert {queue: n for queue, n in offsets.items() if n} == {0: 17, 1: 200, 5: 1}

    with pytest.raises(OptionError, match="has 8 queues in the target and 9 in its source"):
        prepare_topics({topic: QUEUES + 1}, namesrv, None)
    prepare_topics({topic: QUEUES + 1, f"{topic}-new": 3}, namesrv, None, is_spread=True)
    assert source_queues({"nameServer": namesrv, "subscribe": f"{topic}-new"}) == {
        f"{topic}-new": 3
    }
    # The control: what is spread is seen to be.
    other = f"{topic}-spread"
    spread = mirror(
        source, namesrv, tmp_path / "other", to_topic=other, keep_queue=False, spark=spark
    )
    assert spread.findings == []
    kinds = {finding["kind"] for finding in check_order(copies(spark, namesrv, other))}
    assert "QUEUE_SPREAD" in kinds


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_two_topics_in_one_keep_their_order_and_places(
    spark: Any, namesrv: str, tmp_path: Path
) -> None:
    files = StoreFiles(tmp_path / "s")
    first, second = (f"{name}-{time.time_ns()}" for name in ("first", "second"))
    for number in range(90):
        for topic in (first, second)[: 1 + (number % 3 == 0)]:
            key = f"{len(files.rows):032X}"
            files.put(topic, 0, f"{topic} {number}".encode(), {"UNIQ_KEY": key})
    counts = {first: 90, second: 30}
    done = {first: 60, second: 12}
    table = {f"{topic}@readers": {"0": at} for topic, at in done.items()}
    (files.root / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    source = {"path": str(files.root), "subscribe": f"{first},{second}"}
    summary = mirror(
        source, namesrv, tmp_path / "check", to_topic=f"{first}-both", verify=True,
        groups=["readers"], spark=spark,
    )  # fmt: skip
    assert summary.findings == []
    rows = sorted(rows_of(namesrv, f"{first}-both"), key=lambda row: row["queue_offset"])
    assert len(rows) == sum(counts.values())
    seen = dict.fromkeys(counts, 0)
    unread = []
    for row in rows:
        topic = row["body"].decode().split()[0]
        if seen[topic] >= done[topic]:
            unread.append(row["queue_offset"])
        seen[topic] += 1
    options = SourceOptions.parse({"nameServer": namesrv, "subscribe": f"{first}-both"})
    target = open_transport(options)
    offsets = {key[2]: number for key, number in target.group_offsets("readers").items()}
    target.close()
    assert {queue: n for queue, n in offsets.items() if n} == {0: unread[0]}
