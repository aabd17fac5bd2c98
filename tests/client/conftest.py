"""Real servers for the client's tests: one broker for most, pairs for those that kill."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.processes import ProcessGroup, process_group
from support.twinlog_servers import (
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)

QUICK = {
    # Levels of a second, so that a message that comes again does not take minutes.
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
    "enablePropertyFilter": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    # As often as RocketMQ allows: a name server that restarts knows its brokers sooner.
    "registerNameServerPeriod": 10_000,
}
_names = itertools.count(1)


class Cluster:
    """A name server and brokers, all on free ports."""

    def __init__(self, directory: Path, group: ProcessGroup) -> None:
        self._directory = directory
        self._group = group
        self.namesrv: TwinlogNamesrv = start_twinlog_namesrv(directory / "namesrv")
        group.add(self.namesrv)

    @property
    def name_server(self) -> str:
        return self.namesrv.address

    def broker(self, name: str = "broker-a", **config: object) -> TwinlogBroker:
        number = next(_names)
        broker = start_twinlog_broker(
            self._directory / f"{name}-{number}", namesrv=self.name_server,
            **{"brokerName": name, **QUICK, **config},
        )  # fmt: skip
        self._group.add(broker)
        self.namesrv.wait_registered(broker.address)
        return broker

    def restart(self, broker: TwinlogBroker, **changes: object) -> TwinlogBroker:
        before = self.namesrv.registrations(broker.address)
        again = broker.restart(**changes)
        self._group.add(again)
        self.namesrv.wait_registered(broker.address, after=before)
        return again

    def restart_namesrv(self) -> None:
        self.namesrv = self.namesrv.restart()
        self._group.add(self.namesrv)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker for all tests that kill nothing; every test takes its own topics and groups."""
    with process_group() as group:
        made = Cluster(tmp_path_factory.mktemp("cluster"), group)
        made.broker()
        yield made


@pytest.fixture
def bare_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A name server only; the test starts what it will kill."""
    with process_group() as group:
        yield Cluster(tmp_path, group)


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test uses."""

    def make(prefix: str) -> str:
        return f"{prefix}-{next(_names)}-{time.time_ns()}"

    return make
