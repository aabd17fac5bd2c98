"""docs/PAIR.md, "Manual switch", under Java clients: a slave takes its master's place.

Unmodified Java clients run through all of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.cluster import names, unique
from interop.java_story import Pair, Story, committed
from interop.stores import common_log
from support.java_driver import Driver, Job
from support.processes import process_group, wait_until

COUNT = 200


@pytest.mark.timeout(600)
def test_a_twinlog_slave_takes_over_from_an_apache_master(tmp_path: Path, java: Driver) -> None:
    topic, group = unique("adopted"), unique("group")
    with process_group() as processes:
        pair = Pair(processes, tmp_path, master_of="apache", slave_of="twinlog")
        story = Story(pair, java, 1)
        story.create(topic)
        pair.wait_in_sync(java, topic)
        client = {"namesrv": pair.namesrv.address, "topic": topic}
        consumer = java.start("push", **client, group=group)
        send(java, client, 0)
        wait_names(consumer, expected(0, COUNT))
        # What Apache's slave would have too: tables are asked for every 10 s.
        wait_until(
            lambda: sum(committed(pair.slave, group, topic).values()) >= COUNT,
            "the group's offsets at the slave",
        )
        send(java, client, COUNT)
        mine, theirs = common_log(pair.slave.store, pair.master.store)
        assert mine == theirs
        # The switch: Apache's master goes first, so that the slave has everything.
        pair.master.stop()
        assert pair.slave.stop() == 0, pair.slave.tail()
        pair.restart("slave", brokerRole="ASYNC_MASTER", brokerId=0)
        wait_until(lambda: accepts(java, client), "sends work again", deadline_s=90)
        send(java, client, 2 * COUNT)
        wait_names(consumer, expected(0, 3 * COUNT))
        counts = [names(consumer.of("message")).count(name) for name in expected(0, COUNT)]
        assert counts == [1] * COUNT, "what was committed before the switch came again"
        consumer.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_a_java_consumer_that_had_read_the_lost_tail_skips_nothing(
    tmp_path: Path, java: Driver, model: str
) -> None:
    """docs/PAIR.md, "Consumers that had read further"."""
    topic, group = unique("tail"), unique("group")
    with process_group() as processes:
        pair = Pair(processes, tmp_path, master_of="twinlog", slave_of="twinlog")
        story = Story(pair, java, 1)
        story.create(topic)
        pair.wait_in_sync(java, topic)
        client = {"namesrv": pair.namesrv.address, "topic": topic}
        consumer = java.start("push", **client, group=group, model=model)
        send(java, client, 0)
        wait_names(consumer, expected(0, COUNT))
        assert pair.slave.stop() == 0, pair.slave.tail()
        lost = java.run("send", **client, prefix="lost", count=COUNT, mode="async")["sent"]
        assert {event["status"] for event in lost} == {"SLAVE_NOT_AVAILABLE"}
        wait_names(consumer, [f"lost-{n}" for n in range(COUNT)])
        pair.master.kill()
        pair.restart("slave", brokerRole="ASYNC_MASTER", brokerId=0)
        # More than were lost: the consumer's place is soon inside the queue, and would be taken.
        wait_until(lambda: accepts(java, client), "sends work again", deadline_s=90)
        send(java, client, COUNT)
        send(java, client, 2 * COUNT)
        wait_names(consumer, expected(0, 3 * COUNT))
        assert "consumer was in a tail" in pair.slave.output()
        consumer.stop()


def expected(start: int, end: int) -> list[str]:
    return [f"m-{n}" for n in range(start, end)]


def send(java: Driver, client: dict[str, str], first: int) -> None:
    sent = java.run("send", **client, first=first, count=COUNT, mode="async")["sent"]
    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert len(sent) == COUNT


def accepts(java: Driver, client: dict[str, str]) -> bool:
    return bool(java.run("send", **client, prefix="probe", retries=0)["sent"])


def wait_names(consumer: Job, wanted: list[str]) -> None:
    goal = set(wanted)
    consumer.wait(
        lambda job: goal <= set(names(job.of("message"))), f"{len(goal)} messages", deadline_s=120
    )
