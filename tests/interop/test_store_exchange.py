"""A store that one make wrote is opened, served and continued by the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.cluster import (
    BROKER_CONFIG,
    START_BROKER,
    check_bodies,
    expected_names,
    names,
    start_cluster,
    unique,
    wait_for_registration,
)
from interop.stores import log_bytes, queues, repairs_in
from support.java_driver import Driver
from support.processes import process_group

# Small files, so that everything rolls over; Apache wants at least a message of the maximal size.
CONFIG = {
    **BROKER_CONFIG,
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "maxMessageSize": 256 * 1024,
}
SIZES = [20, 300, 2000, 60]


@pytest.mark.parametrize(
    ("writer", "reader"), [("twinlog", "apache"), ("apache", "twinlog")], ids=["ours", "theirs"]
)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_store_changes_hands(
    tmp_path: Path, java: Driver, writer: str, reader: str, how: str
) -> None:
    topic, consumers, count = unique("hands"), unique("group"), 2000
    with process_group() as group:
        cluster = start_cluster(group, tmp_path, namesrv_of="apache", broker_of=writer, **CONFIG)
        send = {"namesrv": cluster.address, "topic": topic, "sizes": ",".join(map(str, SIZES))}
        result = java.run(
            "send", **send, count=count, mode="async", keys="key", tags="a,b", compressOver=10**8
        )
        assert result["failed"] == []
        java.run("send", **send, mode="batch", prefix="batch", count=16)
        java.run("send", namesrv=cluster.address, topic=topic, prefix="late", delay=7)
        consumer = java.start("push", namesrv=cluster.address, topic=topic, group=consumers)
        consumer.wait_for("message", count + 16)
        consumer.stop()
        if how == "stop":
            cluster.broker.stop()
        else:
            cluster.broker.kill()
        before = log_bytes(cluster.broker.store)
        before_queues = queues(cluster.broker.store)
        config = dict(cluster.broker.config)
        new = group.add(START_BROKER[reader](tmp_path / "broker", **config))
        wait_for_registration(cluster.address)
        if how == "stop":
            assert repairs_in(new.output()) == []
        # Everything is served under its old offsets, and the log goes on behind it.
        again = java.run("pull", namesrv=cluster.address, topic=topic, group="other")["message"]
        plain = [event for event in again if event["name"].startswith("m-")]
        assert sorted(names(plain)) == sorted(expected_names("m", count))
        check_bodies(plain, SIZES)
        found = java.run("query", namesrv=cluster.address, topic=topic, key="key1234")["message"]
        assert names(found) == ["m-1234"]
        assert java.run("send", **send, prefix="new", count=50)["failed"] == []
        late = java.start("push", namesrv=cluster.address, topic=topic, group=consumers)
        late.wait(lambda job: "late-0" in names(job.of("message")), "the delayed message")
        late.wait(
            lambda job: set(expected_names("new", 50)) <= set(names(job.of("message"))), "new ones"
        )
        late.stop()
        new.stop()
    first, data = log_bytes(new.store)
    assert first == before[0]
    assert data.startswith(before[1])
    after_queues = queues(new.store)
    for queue, entries in before_queues.items():
        assert after_queues[queue][: len(entries)] == entries, queue
