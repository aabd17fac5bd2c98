"""A stream over a pair that is under full load while its master is killed and comes back."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.pair_story import Pair, running_pair
from support.processes import wait_until
from twinlog.client import ClientError, Message, SendStatus, blocking
from twinlog.spark.jobs.audit import audit
from twinlog.spark.jobs.common import NO_WORKER
from twinlog.spark.options import SourceOptions
from twinlog.spark.plan.pushdown import Pushed
from twinlog.spark.read.rows import plan_batch, read_window
from twinlog.spark.read.store_view import StoreView

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
GROUP = "spark-progress"
AT_ONCE = 200
LEAST = 4000  # acknowledged before the kill, and again after the return


class Load:
    """Producers at full speed: what was acknowledged, and what nobody knows."""

    def __init__(self, name_server: str) -> None:
        self.name_server = name_server
        self.acknowledged: set[bytes] = set()
        self.doubtful: set[bytes] = set()
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self._produce, args=(n,)) for n in range(2)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def _produce(self, producer_number: int) -> None:
        # Without retries each body is sent once: a copy in the output is the pipeline's.
        with blocking.Producer(
            f"load-{producer_number}", name_server=self.name_server, retry_count=0
        ) as producer:
            count = 0
            while not self.is_over.is_set():
                bodies = [b"%d-%d" % (producer_number, count + n) for n in range(AT_ONCE)]
                count += AT_ONCE
                self._send(producer, bodies)

    def _send(self, producer: Any, bodies: list[bytes]) -> None:
        futures = [producer.send_nowait(Message("orders", body)) for body in bodies]
        for body, future in zip(bodies, futures, strict=True):
            try:
                is_ok = future.result().status is SendStatus.SEND_OK
            except ClientError:
                is_ok = False
            (self.acknowledged if is_ok else self.doubtful).add(body)


def written(spark: Any, out: Path) -> Counter[bytes]:
    if not (out / "_spark_metadata").exists():
        return Counter()
    rows = spark.read.schema("body BINARY").parquet(str(out)).collect()
    return Counter(bytes(row.body) for row in rows)


def start_stream(spark: Any, pair: Pair, work: Path) -> Any:
    options = {
        "nameServer": pair.name_server, "subscribe": "orders", "startingOffsets": "earliest",
        "fetchRetries": "20", "maxOffsetsPerTrigger": "20000", "commitGroup": GROUP,
    }  # fmt: skip
    stream = spark.readStream.format("twinlog").options(**options).load().select("body")
    return (
        stream.writeStream.format("parquet").option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "check")).start()
    )  # fmt: skip


@pytest.mark.chaos
def test_what_the_stream_wrote_is_what_was_acknowledged(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running_pair(tmp_path, mappedFileSizeCommitLog=1 << 24) as pair:
        with blocking.Producer("first", name_server=pair.name_server) as producer:
            producer.send(Message("orders", b"first"))
        with Load(pair.name_server) as load:
            query = start_stream(spark, pair, tmp_path)

            def has(bodies: set[bytes]) -> bool:
                nonlocal query
                if not query.isActive:
                    # Spark gives a worker ten seconds to start: on a busy machine that is no
                    # failure of the stream, and jobs go on from the checkpoint as well.
                    assert NO_WORKER in str(query.exception()), query.exception()
                    query = start_stream(spark, pair, tmp_path)
                return bodies <= written(spark, out).keys()

            wait_until(lambda: len(load.acknowledged) > LEAST, "load", deadline_s=120)
            pair.master.kill()
            before = set(load.acknowledged)
            wait_until(lambda: has(before), "the stream goes on from the replica", deadline_s=240)
            assert not pair.master.is_alive
            pair.master = pair.restart(pair.master)
            wait_until(
                lambda: len(load.acknowledged) > len(before) + LEAST, "load again", deadline_s=120
            )
        pair.wait_in_sync()
        wait_until(lambda: has(load.acknowledged), "all is written", deadline_s=240)
        query.stop()
        found = written(spark, out)
        wanted = Counter(load.acknowledged | {b"first"})
        assert set((wanted - found).elements()) == set()
        extra = found - wanted
        assert set(extra) <= load.doubtful
        assert set(extra.values()) <= {1}


def bodies_of(**options: str) -> Counter[bytes]:
    """What a batch read of the topic gives, without Spark."""
    parsed = SourceOptions.parse({"subscribe": "orders", **options})
    return Counter(
        body
        for window in plan_batch(parsed, Pushed())
        for batch in read_window(parsed, window, ("body",))
        for body in batch.column("body").to_pylist()
    )


def check_isolation(pair: Pair, load: Load) -> None:
    """A SYNC_MASTER says what its replica has; both transports read that far, and no further."""
    wanted = Counter(load.acknowledged | {b"first"})

    def published() -> int:
        return StoreView(pair.master.store).confirmed() or 0

    end = StoreView(pair.master.store).log_end()
    wait_until(lambda: published() >= end, "the confirmed offset is published")
    assert StoreView(pair.slave.store).confirmed() is None
    for options in ({"path": str(pair.master.store)}, {"nameServer": pair.name_server}):
        # A broker writes queue entries a moment after it has acknowledged.
        wait_until(
            lambda options=options: not wanted - bodies_of(**options), f"all is read of {options}"
        )
        assert set(bodies_of(**options) - wanted) <= load.doubtful
    pair.slave.kill()
    with blocking.Producer("alone", name_server=pair.name_server) as producer:
        receipt = producer.send(Message("orders", b"on one machine only"))
    assert receipt.status is not SendStatus.SEND_OK
    for options in ({"path": str(pair.master.store)}, {"nameServer": pair.name_server}):
        assert b"on one machine only" not in bodies_of(**options)
        wait_until(
            lambda options=options: (
                b"on one machine only" in bodies_of(isolation="dispatched", **options)
            ),
            "isolation=dispatched reads it",
        )


def test_an_audit_of_a_pair_that_is_written_to_finds_nothing(spark: Any, tmp_path: Path) -> None:
    with running_pair(tmp_path, mappedFileSizeCommitLog=1 << 22) as pair:
        with blocking.Producer("first", name_server=pair.name_server) as producer:
            producer.send(Message("orders", b"first"))
        with Load(pair.name_server) as load:
            ends = []
            for _ in range(3):
                known = len(load.acknowledged)
                wait_until(lambda known=known: len(load.acknowledged) > known + 500, "load")
                summary = audit(pair.master.store, pair.slave.store, spark=spark, settle=60)
                assert summary.findings == []
                ends.append(summary.facts["master_end"])
            assert sorted(set(ends)) == ends  # it was written to all the time
        pair.wait_in_sync()
        check_isolation(pair, load)
