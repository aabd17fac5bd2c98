"""One end ours, the other Apache's: name server and broker of different makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.cluster import Cluster, expected_names, names, start_cluster, unique
from support.java_driver import Driver
from support.processes import process_group, wait_until

PAIRS = [
    pytest.param(("twinlog", "apache"), id="twinlog-namesrv-apache-broker"),
    pytest.param(("apache", "twinlog"), id="apache-namesrv-twinlog-broker"),
]


@pytest.fixture(params=PAIRS)
def mixed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    namesrv_of, broker_of = request.param
    with process_group() as group:
        yield start_cluster(
            group, tmp_path, namesrv_of=namesrv_of, broker_of=broker_of,
            registerNameServerPeriod=10000,
        )  # fmt: skip


def test_clients_find_the_broker_and_the_broker_returns(
    mixed: Cluster, java: Driver, admin: Callable[..., str]
) -> None:
    topic, group = unique("mixed"), unique("group")
    send = {"namesrv": mixed.address, "topic": topic}
    assert java.run("send", **send, count=20, mode="async")["failed"] == []
    consumer = java.start("push", namesrv=mixed.address, topic=topic, group=group)
    messages = consumer.wait_for("message", 20)
    assert sorted(names(messages)) == sorted(expected_names("m", 20))
    listing = wait_until(lambda: cluster_list(admin, mixed), "a broker in clusterList")
    assert mixed.broker.address in listing
    admin(
        "updateTopic", "-n", mixed.address, "-b", mixed.broker.address,
        "-t", f"{topic}x", "-r", "3", "-w", "3",
    )  # fmt: skip
    wait_until(
        lambda: '"readQueueNums":3' in admin("topicRoute", "-n", mixed.address, "-t", f"{topic}x"),
        "the new topic in the route",
    )
    mixed.broker.kill()
    mixed.restart_broker()
    wait_until(
        lambda: java.run("send", **send, prefix="probe", retries=0)["sent"], "sends work again"
    )
    consumer.wait(lambda job: "probe-0" in names(job.of("message")), "a message after the restart")
    consumer.stop()


def cluster_list(admin: Callable[..., str], cluster: Cluster) -> str:
    try:
        return admin("clusterList", "-n", cluster.address)
    except AssertionError as error:
        # An Apache broker's statistics fail during the first second of its life.
        if "NoSuchElementException" in str(error):
            return ""
        raise


def test_brokers_register_again_after_the_name_server_was_lost(
    mixed: Cluster, java: Driver
) -> None:
    topic = unique("lost")
    send = {"namesrv": mixed.address, "topic": topic}
    assert java.run("send", **send)["failed"] == []
    mixed.namesrv.kill()
    mixed.namesrv = mixed.group.add(mixed.namesrv.restart())
    wait_until(
        lambda: java.run("send", **send, prefix="again", retries=0)["sent"], "sends work again"
    )
