"""Rows into topics exactly once: tasks and batches are run again, nothing is lost or there twice.

Each with its control: without the option the same runs are seen to repeat.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from storefiles import StoreFiles
from test_sink import namesrv, rows_of

from support.not_twinlog import not_twinlog
from support.processes import process_group
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv
from twinlog.spark.jobs.common import Summary
from twinlog.spark.jobs.mirror import finding_of, mirror
from twinlog.spark.write.sending import SinkError, Task, send_rows
from twinlog.spark.write.sink import SinkOptions

__all__ = ["namesrv"]
pytestmark = pytest.mark.timeout(300)
ROWS = [{"body": b"%d" % number} for number in range(200)]


def send(server: str, topic: str, rows: list[dict[str, Any]], task: Task, **options: str) -> int:
    given = SinkOptions.parse({"nameServer": server, "topic": topic, **options})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), 50):
            yield pa.RecordBatch.from_pylist(rows[start : start + 50])

    return send_rows(given, batches(), task)


def bodies(server: str, topic: str) -> Counter[bytes]:
    return Counter(row["body"] for row in rows_of(server, topic))


@pytest.mark.parametrize("is_once", [True, False])
def test_a_task_that_is_run_again_sends_the_same_numbers(
    namesrv: str,
    control: Path,
    is_once: bool,
) -> None:
    topic = f"tasks-{is_once}-{time.time_ns()}"
    options = {"exactlyOnce": "true", "maxInFlight": "30"} if is_once else {}
    for fault in ("rows-sending raise", "rows-sent raise"):
        control.write_text(fault)
        with pytest.raises(RuntimeError, match="injected"):
            send(namesrv, topic, ROWS, Task(3, "query", 7), **options)
        assert not control.exists()
    assert send(namesrv, topic, ROWS, Task(3, "query", 7), **options) == 200
    # The next batch, and another partition of the same one, are rows of their own.
    assert send(namesrv, topic, ROWS[:20], Task(3, "query", 8), **options) == 20
    assert send(namesrv, topic, ROWS[:20], Task(4, "query", 8), **options) == 20
    wanted = Counter(row["body"] for row in [*ROWS, *ROWS[:20], *ROWS[:20]])
    found = bodies(namesrv, topic)
    assert found == wanted if is_once else found > wanted


def test_rows_in_another_order_are_refused_not_dropped(namesrv: str) -> None:
    topic, task = f"order-{time.time_ns()}", Task(0, "query", 0)
    send(namesrv, topic, ROWS, task, exactlyOnce="true")
    with pytest.raises(SinkError, match="with another body"):
        send(namesrv, topic, ROWS[1:], task, exactlyOnce="true")
    assert bodies(namesrv, topic) == Counter(row["body"] for row in ROWS)


def test_a_batch_write_is_known_again_by_its_producer_id(namesrv: str) -> None:
    topic = f"named-{time.time_ns()}"
    for name in ("monday", "monday", "tuesday"):
        send(namesrv, topic, ROWS[:10], Task(), exactlyOnce="true", producerId=name)
    assert set(bodies(namesrv, topic).values()) == {2}


def test_a_target_that_is_not_twinlog_is_refused_by_name() -> None:
    with not_twinlog() as other:
        with pytest.raises(SinkError, match=r"exactlyOnce=true.*not twinlog.*at least once"):
            send(other.address, "T", ROWS[:3], Task(0, "query", 0), exactlyOnce="true")
        assert other.sends == 0


@pytest.mark.spark
@pytest.mark.parametrize("is_once", [True, False])
def test_a_stream_whose_tasks_die_neither_loses_nor_repeats(
    spark: Any,
    control: Path,
    namesrv: str,
    tmp_path: Path,
    is_once: bool,
) -> None:
    files = StoreFiles(tmp_path / "store")
    topic = f"stream-{is_once}-{time.time_ns()}"
    source = {"path": str(tmp_path / "store"), "subscribe": "orders"}

    def copy(rows: int, *, verify: bool = False) -> Summary:
        source["maxRecordsPerPartition"] = str(rows)
        return mirror(
            source, namesrv, tmp_path / "check", to_topic=topic, exactly_once=is_once,
            verify=verify, spark=spark,
        )  # fmt: skip

    # The control needs one fault only: a repeat is a repeat.
    for fault in ("rows-sent raise", "rows-sending kill")[: 1 + is_once]:
        files.fill(100)
        control.write_text(fault)
        with pytest.raises(Exception, match=r"."):
            copy(25)
        assert not control.exists(), f"the fault {fault} did not happen"
        copy(11)  # another layout: a batch that is done again keeps the one it had
    summary = copy(25, verify=True)
    wanted = Counter(row["msg_id"] for row in files.rows if row["topic"] == "orders")
    found = Counter(dict(r["properties"])["ORIGIN_UNIQ_KEY"] for r in rows_of(namesrv, topic))
    assert set(found) == set(wanted)
    assert found == wanted if is_once else found > wanted
    assert (summary.facts["compared"], summary.facts["in_target"]) == (len(wanted), found.total())
    kinds = {finding["kind"] for finding in summary.findings}
    # What is sent again goes back in its queue: with repeats the order has steps back, too.
    assert kinds - {"OUT_OF_ORDER"} == (set() if is_once else {"REPEATED_IN_TARGET"})
    assert not (is_once and kinds)
    assert summary.exit_code == (0 if is_once else 1)


def test_what_a_mirror_finds_has_a_name() -> None:
    row = {"topic": "T", "msg_id": "1", "keys": None, "tags": "a", "digest": "x"}
    kinds = {
        (here, there): finding_of({**row, "here": here, "there": there})["kind"]
        for here, there in ((1, 0), (2, 1), (1, 2), (0, 1))
    }
    assert kinds == {
        (1, 0): "MISSING_IN_TARGET",
        (2, 1): "MISSING_IN_TARGET",
        (1, 2): "REPEATED_IN_TARGET",
        (0, 1): "ONLY_IN_TARGET",
    }


def test_rows_wait_for_a_broker_that_is_started_again(tmp_path: Path) -> None:
    with process_group() as group:
        server = start_twinlog_namesrv(tmp_path / "n")
        group.add(server)
        broker = start_twinlog_broker(tmp_path / "b", namesrv=server.address)
        group.add(broker)
        server.wait_for_text(f"address={broker.address}")
        send(server.address, "T", ROWS[:1], Task(0, "query", 0), exactlyOnce="true")
        broker.kill()
        sent: list[int] = []
        task = threading.Thread(
            target=lambda: sent.append(
                send(server.address, "T", ROWS, Task(0, "query", 1), exactlyOnce="true")
            )
        )
        task.start()
        # Longer than an ordinary send may take.
        task.join(4)
        assert task.is_alive()
        group.add(broker.restart())
        task.join(60)
        assert sent == [len(ROWS)]
        wanted = Counter(row["body"] for row in [*ROWS[:1], *ROWS])
        assert bodies(server.address, "T") == wanted
