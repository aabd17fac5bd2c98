"""The Spark sink into Apache 4.9.7: at least once, and not what that broker cannot keep."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from interop.cluster import unique
from support.apache import ApacheBroker, ApacheNamesrv
from support.raw_log import raw_bodies, raw_origins, raw_records
from support.twinlog_servers import TwinlogBroker, TwinlogNamesrv
from twinlog.spark.jobs.mirror import mirror
from twinlog.spark.write.sending import SinkError, Task, send_rows
from twinlog.spark.write.sink import SinkOptions

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))
from storefiles import StoreFiles

COUNT = 500


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from twinlog.spark.run.session import local_session

    session = local_session("interop")
    yield session
    session.stop()


@pytest.fixture
def apache(
    apache_namesrv: Callable[..., ApacheNamesrv], apache_broker: Callable[..., ApacheBroker]
) -> tuple[str, ApacheBroker]:
    namesrv = apache_namesrv()
    broker = apache_broker(namesrv=namesrv.address, mappedFileSizeCommitLog=1 << 24)
    return namesrv.address, broker


def batches() -> Iterator[pa.RecordBatch]:
    for start in range(0, COUNT, 100):
        rows = [
            {"body": b"%d" % n, "keys": f"k{n}", "tags": "t", "flag": 7}
            for n in range(start, start + 100)
        ]
        yield pa.RecordBatch.from_pylist(rows)


def test_at_least_once_works_and_exactly_once_is_refused_before_anything_is_sent(
    apache: tuple[str, ApacheBroker], spark: Any, tmp_path: Path
) -> None:
    namesrv, broker = apache
    topic, refused = unique("sink"), unique("refused")
    options = {"nameServer": namesrv, "topic": topic}
    assert send_rows(SinkOptions.parse(options), batches(), Task()) == COUNT
    assert raw_bodies(broker.store, topic) == Counter(b"%d" % n for n in range(COUNT))
    first = next(r for r in raw_records(broker.store, topic) if r.body == b"0")
    assert (first.property_map["KEYS"], first.property_map["TAGS"], first.flag) == ("k0", "t", 7)

    options = {"nameServer": namesrv, "topic": refused, "exactlyOnce": "true"}
    words = r"exactlyOnce=true: broker .* is not twinlog .*leave it out to write at least once"
    with pytest.raises(SinkError, match=words):
        send_rows(SinkOptions.parse(options), batches(), Task(0, "query", 0))
    assert raw_bodies(broker.store, refused) == Counter()

    files = StoreFiles(tmp_path / "store")
    files.fill(100)
    source = {"path": str(tmp_path / "store"), "subscribe": "orders"}
    target, check = unique("copy"), tmp_path / "check"
    summary = mirror(source, namesrv, check, to_topic=target, verify=True, spark=spark)
    assert (summary.findings, summary.facts["in_target"]) == ([], 50)
    wanted = Counter(row["msg_id"] for row in files.rows if row["topic"] == "orders")
    assert raw_origins(broker.store, target) == wanted
    with pytest.raises(Exception, match="is not twinlog"):
        mirror(
            source, namesrv, tmp_path / "other", to_topic=refused, exactly_once=True, spark=spark
        )
    assert raw_bodies(broker.store, refused) == Counter()


def test_a_cluster_with_one_broker_of_each_make(
    twinlog_namesrv: Callable[..., TwinlogNamesrv],
    twinlog_broker: Callable[..., TwinlogBroker],
    apache_broker: Callable[..., ApacheBroker],
) -> None:
    namesrv = twinlog_namesrv()
    small = {"namesrv": namesrv.address, "mappedFileSizeCommitLog": 1 << 24}
    brokers: list[TwinlogBroker | ApacheBroker] = [
        twinlog_broker(brokerName="broker-a", **small),
        apache_broker(brokerName="broker-b", **small),
    ]
    for broker in brokers:
        namesrv.wait_for_text(f"address={broker.address}")
    topic, refused = unique("sink"), unique("refused")
    options = {"nameServer": namesrv.address, "topic": refused, "exactlyOnce": "true"}
    words = rf"broker {brokers[1].address} does not support idempotent sends"
    with pytest.raises(SinkError, match=words):
        send_rows(SinkOptions.parse(options), batches(), Task(0, "query", 0))
    assert [raw_bodies(broker.store, refused) for broker in brokers] == [Counter(), Counter()]
    options = {"nameServer": namesrv.address, "topic": topic}
    assert send_rows(SinkOptions.parse(options), batches(), Task()) == COUNT
    found = [raw_bodies(broker.store, topic) for broker in brokers]
    assert all(found)
    assert found[0] + found[1] == Counter(b"%d" % n for n in range(COUNT))
