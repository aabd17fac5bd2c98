"""The Spark source over Apache 4.9.7: its files and its network give the same, right rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interop.cluster import unique
from support.apache import ApacheBroker, ApacheNamesrv
from support.raw_log import raw_records
from twinlog.client import Message, blocking

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))
from test_decode import read
from test_network_rows import by_offset, pulled

DEADLINE_S = 60
ODD = {
    "empty words": " ",
    "sign=": "a=b,c;d|e",
    "\u4e2d\u6587": "h\u00e9\U0001f600",
    "WAITED": "true",
}


def send_all(namesrv: str, topic: str) -> int:
    """Send plain, odd, compressed and batched messages, more than one pull brings; their number."""
    with blocking.Producer("spark-source", name_server=namesrv) as producer:
        for number in range(40):
            producer.send(
                Message(topic, b"%d" % number, tags="ab"[number % 2], keys=[f"k{number}", "all"])
            )
        producer.send(Message(topic, b"odd", properties=ODD, flag=-7))
        producer.send(Message(topic, b"compressible " * 2000))
        producer.send_many([Message(topic, b"member %d" % n, keys=[f"m{n}"]) for n in range(400)])
    return 442


def settled(path: Path, topic: str, count: int) -> list[dict[str, Any]]:
    """The rows of Apache's files, once its queues have caught up with its log."""
    deadline = time.monotonic() + DEADLINE_S
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{len(rows)} of {count} rows"
        time.sleep(0.1)
        rows = read(path, subscribe=topic, decompress="false")
    return rows


def test_rows_of_an_apache_broker_by_files_and_by_network(
    apache_namesrv: Callable[..., ApacheNamesrv], apache_broker: Callable[..., ApacheBroker]
) -> None:
    namesrv = apache_namesrv()
    broker = apache_broker(namesrv=namesrv.address, mappedFileSizeCommitLog=1 << 24)
    topic = unique("source")
    count = send_all(namesrv.address, topic)
    rows = settled(broker.store, topic, count)
    records = {record.physical_offset: record for record in raw_records(broker.store, topic)}
    assert set(by_offset(rows)) == set(records)
    for row in rows:
        record = records[row["phys_offset"]]
        assert row["body"] == bytes(record.body)
        assert row["properties"] == record.property_map
        assert (row["queue_id"], row["queue_offset"]) == (record.queue_id, record.queue_offset)
        assert (row["flag"], row["sys_flag"]) == (record.flag, record.sys_flag)
    assert any(row["sys_flag"] & 1 for row in rows)
    assert pulled(namesrv.address, {topic}, decompress="false") == by_offset(rows)
    plain = by_offset(read(broker.store, subscribe=topic))
    assert b"compressible " * 2000 in {row["body"] for row in plain.values()}
    assert pulled(namesrv.address, {topic}) == plain
