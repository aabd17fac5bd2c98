"""The master dies under a C++ and a JavaScript consumer; they go on from the slave."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from interop.cluster import (
    BROKER_CONFIG,
    START_BROKER,
    START_NAMESRV,
    SUBJECT,
    expected_names,
    names,
    unique,
)
from interop.foreign import Start, cpp, javascript, running
from support.java_driver import Driver
from support.processes import process_group, wait_until


@pytest.mark.parametrize("start", [cpp, javascript], ids=["cpp", "javascript"])
def test_a_foreign_consumer_goes_on_from_the_slave(
    tmp_path: Path, java: Driver, start: Start
) -> None:
    """One that was there before, and one that comes when only the slave is left."""
    topic, backlog = unique("orphaned"), 400
    with process_group() as group:
        namesrv = START_NAMESRV[SUBJECT](tmp_path / "namesrv")
        group.add(namesrv)
        common = {**BROKER_CONFIG, "namesrv": namesrv.address}
        master = START_BROKER[SUBJECT](tmp_path / "master", **common, brokerRole="SYNC_MASTER")
        slave = START_BROKER[SUBJECT](tmp_path / "slave", **common, brokerRole="SLAVE", brokerId=1)
        group.add(master)
        group.add(slave)
        send = {"namesrv": namesrv.address, "topic": topic}

        def status() -> str:
            sent = java.run("send", **send, prefix="first")["sent"]
            return str(sent[0]["status"]) if sent else ""

        wait_until(lambda: status() == "SEND_OK", "a slave that acknowledges", interval_s=0.5)
        arguments = ["consume", topic, unique("group"), "*", "CLUSTERING"]
        log = tmp_path / "consume.log"
        with running(start, log, namesrv.address, *arguments) as consumer:
            consumer.wait_for("message", 1)
            # More than the pulls that wait at the master can answer while it cannot read.
            consumer.popen.send_signal(signal.SIGSTOP)
            sent = java.run("send", **send, count=backlog, mode="async")
            assert {event["status"] for event in sent["sent"]} == {"SEND_OK"}
            assert len(sent["sent"]) == backlog
            wait_until(
                lambda: topic in (slave.store / "config" / "topics.json").read_text(),
                "the slave knows the topic",
            )
            master.kill()
            consumer.popen.send_signal(signal.SIGCONT)
            wanted = set(expected_names("m", backlog))
            wait_until(
                lambda: set(names(consumer.of("message"))) >= wanted,
                "the backlog, from the slave", deadline_s=150, interval_s=0.5,
            )  # fmt: skip
        later = tmp_path / "later.log"
        arguments[2] = unique("group")
        with running(start, later, namesrv.address, *arguments) as newcomer:
            wait_until(
                lambda: set(names(newcomer.of("message"))) >= {"first-0", *wanted},
                "everything, from the slave", deadline_s=100, interval_s=0.5,
            )  # fmt: skip
