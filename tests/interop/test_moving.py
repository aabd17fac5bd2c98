"""From Apache to twinlog through replication, and back on the same store, as README says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interop.cluster import BROKER_CONFIG, expected_names, names, unique
from interop.stores import log_bytes
from support.apache import start_apache_broker, start_apache_namesrv
from support.java_driver import Driver, Job
from support.processes import process_group, wait_until
from support.twinlog_servers import start_twinlog_broker
from twinlog.remoting import fastjson

CONFIG = {**BROKER_CONFIG, "flushConsumerOffsetInterval": 500, "registerNameServerPeriod": 10000}


def test_there_through_a_slave_and_back_on_its_store(tmp_path: Path, java: Driver) -> None:
    topic, consumers = unique("moving"), unique("group")
    with process_group() as group:
        namesrv = start_apache_namesrv(tmp_path / "namesrv")
        group.add(namesrv)
        common = {**CONFIG, "namesrv": namesrv.address}
        send = {"namesrv": namesrv.address, "topic": topic}
        read = {"namesrv": namesrv.address, "topic": topic, "group": consumers}

        old = start_apache_broker(tmp_path / "old", **common)
        group.add(old)
        slave = start_twinlog_broker(tmp_path / "new", **common, brokerRole="SLAVE", brokerId=1)
        group.add(slave)
        assert java.run("send", **send, count=60)["failed"] == []
        consume(java.start("push", **read), expected_names("m", 60))
        wait_until(lambda: has_everything(old.store, slave.store, topic, consumers), "caught up")
        old.stop()
        slave.stop()

        new = slave.restart(brokerRole="ASYNC_MASTER", brokerId=0)
        group.add(new)
        carry_on(java, send, read, "ours")
        new.stop()

        config: dict[str, Any] = {**new.config, "namesrv": namesrv.address}
        back = start_apache_broker(tmp_path / "new", **config)
        group.add(back)
        carry_on(java, send, read, "theirs")
        everything = java.run("pull", **{**read, "group": "other"})["message"]
        wanted = [
            *expected_names("m", 60), *expected_names("ours", 40), *expected_names("theirs", 40)
        ]  # fmt: skip
        assert sorted(names(everything)) == sorted([*wanted, "probe-ours-0", "probe-theirs-0"])


def has_everything(master: Path, slave: Path, topic: str, group: str) -> bool:
    """The log, and the tables, which a slave asks for every 10 s."""
    if log_bytes(master) != log_bytes(slave):
        return False
    mine, theirs = (offsets(store, f"{topic}@{group}") for store in (master, slave))
    return mine == theirs != {}


def offsets(store: Path, key: str) -> dict[int, int]:
    path = store / "config" / "consumerOffset.json"
    if not path.exists():
        return {}
    table: dict[int, int] = fastjson.loads(path.read_bytes())["offsetTable"].get(key, {})
    return table


def carry_on(java: Driver, send: dict[str, str], read: dict[str, str], name: str) -> None:
    """Clients find the new broker by themselves; the group gets what is new and nothing twice."""
    probe = f"probe-{name}"
    wait_until(lambda: java.run("send", **send, prefix=probe, retries=0)["sent"], "sends work")
    assert java.run("send", **send, prefix=name, count=40, mode="async")["failed"] == []
    consume(java.start("push", **read), [f"{probe}-0", *expected_names(name, 40)])


def consume(consumer: Job, wanted: list[str]) -> None:
    messages = consumer.wait_for("message", len(wanted))
    consumer.stop()
    assert sorted(names(messages)) == sorted(wanted)
