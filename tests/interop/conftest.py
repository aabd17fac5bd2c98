"""Servers of both makes as fixtures. What a test starts is killed by pid when it ends.

    def test_x(apache_namesrv, twinlog_broker, java): ...

Each server fixture is a function, so that a test may start several: `broker = twinlog_broker(
namesrv=..., brokerRole="SLAVE", brokerId=1)`; the keys are those of broker.conf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from interop.cluster import Cluster, start_cluster
from support.apache import (
    ApacheBroker,
    ApacheNamesrv,
    mqadmin,
    start_apache_broker,
    start_apache_namesrv,
)
from support.java_driver import CLIENT_5, Driver
from support.processes import Process, ProcessGroup, process_group
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)

Starter = Callable[..., Process]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this directory needs foreign software: `make interop`, not `make test`."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.interop)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    with process_group() as group:
        yield group


def started(group: ProcessGroup, start: Starter, base: Path, name: str) -> Starter:
    """`start` with a directory of its own for each call and an owner who kills it."""
    count = 0

    def call(directory: Path | None = None, **config: object) -> Process:
        nonlocal count
        count += 1
        process = start(directory or base / f"{name}-{count}", **config)
        return group.add(process)

    return call


@pytest.fixture
def apache_namesrv(group: ProcessGroup, tmp_path: Path) -> Callable[..., ApacheNamesrv]:
    return started(group, start_apache_namesrv, tmp_path, "apache-namesrv")  # type: ignore[return-value]


@pytest.fixture
def apache_broker(group: ProcessGroup, tmp_path: Path) -> Callable[..., ApacheBroker]:
    return started(group, start_apache_broker, tmp_path, "apache-broker")  # type: ignore[return-value]


@pytest.fixture
def twinlog_namesrv(group: ProcessGroup, tmp_path: Path) -> Callable[..., TwinlogNamesrv]:
    return started(group, start_twinlog_namesrv, tmp_path, "twinlog-namesrv")  # type: ignore[return-value]


@pytest.fixture
def twinlog_broker(group: ProcessGroup, tmp_path: Path) -> Callable[..., TwinlogBroker]:
    return started(group, start_twinlog_broker, tmp_path, "twinlog-broker")  # type: ignore[return-value]


@pytest.fixture
def admin(tmp_path: Path) -> Callable[..., str]:
    """Apache's mqadmin: `admin("clusterList", "-n", address)`."""
    return partial(mqadmin, home=tmp_path / "mqadmin")


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """One JVM with the 4.9.7 client for the whole session: a JVM a test would cost minutes."""
    driver = Driver(tmp_path_factory.mktemp("java"))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def java_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The remoting client of RocketMQ 5.3."""
    driver = Driver(tmp_path_factory.mktemp("java5"), CLIENT_5)
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def java_binary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The 4.9.7 client with headers in RocketMQ's own binary form instead of JSON."""
    options = ["-Drocketmq.serialize.type=ROCKETMQ"]
    driver = Driver(tmp_path_factory.mktemp("javabinary"), options=options)
    yield driver
    driver.close()


@pytest.fixture(params=["java", "java_binary", "java_5"])
def client(request: pytest.FixtureRequest) -> Driver:
    """Each Java client in turn."""
    driver: Driver = request.getfixturevalue(request.param)
    return driver


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster of the subject for a module; tests use topics and groups of their own."""
    with process_group() as group:
        yield start_cluster(group, tmp_path_factory.mktemp("cluster"))
