"""A controlled group of either make as processes, asked and steered over RocketMQ's own requests.

Both makes get the same files, the same requests and the same signals: who leads and who is in sync
is what the controller answers to GET_SYNC_STATE_DATA, a planned switch is its ELECT_MASTER.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.apache import (
    APACHE_5,
    ApacheBroker,
    ApacheController,
    start_apache_namesrv,
)
from support.ha_load import Connection
from support.processes import Process, free_port, wait_until
from support.twinlog_servers import (
    TwinlogBroker,
    broker_values,
    start_twinlog_controller,
    start_twinlog_namesrv,
)
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

NAME, CLUSTER = "broker-a", "DefaultCluster"
BROKER_JVM = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
READY = {"twinlog": "twinlog broker ready", "apache": "boot success"}
LIVES_S = 120.0
TOPIC, QUEUES = "Failover", 4


@dataclass(frozen=True)
class Facts:
    """What the controller says."""

    master: str
    epoch: int
    in_sync: int
    ids: dict[str, int]


def ask(address: str, code: int, header: dict[str, Any] | None = None, body: bytes = b"") -> Any:
    connection = Connection(address, timeout_s=5)
    try:
        return connection.call(code, header, body)
    finally:
        connection.close()


class Group:
    """Name server, controller and replicas. `hosts` are network namespaces, one for a broker."""

    def __init__(
        self,
        make: str,
        directory: Path,
        replicas: int,
        *,
        hosts: Sequence[Any] = (),
        **config: object,
    ) -> None:
        self.make = make
        self.directory = directory
        self._hosts = hosts
        # On the bridge the servers that everybody asks are found at its own address.
        self._own = hosts[0].outside if hosts else "127.0.0.1"
        self._config: dict[str, object] = {
            "enableControllerMode": "true",
            "brokerId": -1,
            "brokerName": NAME,
            "brokerRole": "SYNC_MASTER",
            "defaultTopicQueueNums": 4,
            "mappedFileSizeCommitLog": 1 << 26,
            "totalReplicas": replicas,
            "allAckInSyncStateSet": "true",
            **config,
        }
        self.brokers: list[Any] = []
        self.namesrv: Any = None
        self.controller: Any = None
        self.address = ""
        """Of the name server."""
        try:
            self._start(replicas)
        except BaseException:
            self.end()
            raise

    def _start(self, replicas: int) -> None:
        bind: dict[str, object] = {"bindAddress": self._own}
        place = self.directory
        if self.make == "apache":
            self.namesrv = start_apache_namesrv(place / "ns", project=APACHE_5)
            (place / "controller").mkdir()
            self.controller = ApacheController(place / "controller", free_port(), self._own)
        else:
            (place / "ns").mkdir()
            (place / "controller").mkdir()
            self.namesrv = start_twinlog_namesrv(place / "ns", **bind)
            self.controller = start_twinlog_controller(place / "controller", **bind)
        self.address = f"{self._own}:{self.namesrv.port}"
        self._controller_address = f"{self._own}:{self.controller.port}"
        wait_until(self._leads, "the controller leads", deadline_s=LIVES_S)
        for number in range(replicas):
            self.brokers.append(self._first_start(number))
            self.brokers[-1].wait_for_text(READY[self.make], deadline_s=LIVES_S)
            wait_until(self._has_master, "a master", deadline_s=LIVES_S)
        self.wait_in_sync(replicas)
        wait_until(self._has_topic, "the topic is in the route", deadline_s=LIVES_S)

    def _has_topic(self) -> bool:
        """Made by an operator, as clients that make none themselves expect."""
        header = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
            "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        ask(self.facts().master, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        route = ask(self.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        return bool(route.code == 0)

    def _leads(self) -> bool:
        try:
            answer = ask(self._controller_address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        except OSError:
            return False
        return bool(answer.code == 0 and answer.ext().get("controllerLeaderAddress"))

    def _has_master(self) -> bool:
        return bool(self.facts().master)

    def _first_start(self, number: int) -> Any:
        config: dict[str, object] = {**self._config, "controllerAddr": self._controller_address}
        if self._hosts:
            config |= dict.fromkeys(("brokerIP1", "brokerIP2"), self._hosts[number].inside)
            config |= {"bindAddress": "0.0.0.0", "twinlogHASecret": "only-for-measurements"}
        directory = self.directory / f"b{number}"
        directory.mkdir()
        values = broker_values(directory, self.address, config)
        return self._process(number, directory, values)

    def _process(self, number: int, directory: Path, values: dict[str, object]) -> Any:
        wrap = self._hosts[number].wrap if self._hosts else list
        kind: Any = _TwinlogBroker if self.make == "twinlog" else _ApacheBroker
        broker = kind(directory, values, wrap)
        broker.address = f"{values['brokerIP1']}:{values['listenPort']}"
        broker.number = number
        return broker

    # Who is what

    def facts(self) -> Facts:
        body = fastjson.dumps([NAME])
        try:
            answer = ask(
                self._controller_address, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body
            )
            table = fastjson.loads(answer.body)["replicasInfoTable"]
        except (OSError, KeyError, TypeError, ValueError):
            return Facts("", 0, 0, {})
        found = table.get(NAME, {})
        members = found.get("inSyncReplicas") or []
        known = [*members, *(found.get("notInSyncReplicas") or [])]
        return Facts(
            found.get("masterAddress") or "",
            found.get("masterEpoch") or 0,
            len(members),
            {entry["brokerAddress"]: entry["brokerId"] for entry in known},
        )

    @property
    def master(self) -> Any:
        address = self.facts().master
        return next(broker for broker in self.brokers if broker.address == address)

    @property
    def slaves(self) -> list[Any]:
        address = self.facts().master
        return [broker for broker in self.brokers if broker.address != address]

    def wait_in_sync(self, count: int | None = None, *, deadline_s: float = LIVES_S) -> float:
        """Seconds until so many replicas are in sync, and the master is one of ours."""
        wanted = len(self.brokers) if count is None else count
        started = time.monotonic()
        wait_until(
            lambda: self.facts().in_sync == wanted, f"{self.make}: {wanted} in sync",
            deadline_s=deadline_s, interval_s=0.02,
        )  # fmt: skip
        return time.monotonic() - started

    # What is done to it

    def restart(self, broker: Any) -> Any:
        """As a supervisor does: at once, and nobody waits for it here."""
        again = self._process(broker.number, broker.directory, broker.config)
        self.brokers[broker.number] = again
        return again

    def restart_controller(self) -> None:
        self.controller = self.controller.restart()

    def restart_namesrv(self) -> None:
        self.namesrv = self.namesrv.restart()

    def switch(self) -> None:
        """ELECT_MASTER with a wish: to the first replica that does not lead."""
        facts = self.facts()
        target = next(n for address, n in sorted(facts.ids.items()) if address != facts.master)
        header = {
            "clusterName": CLUSTER, "brokerName": NAME, "brokerId": target,
            "designateElect": "true",
        }  # fmt: skip
        answer = ask(self._controller_address, RequestCode.CONTROLLER_ELECT_MASTER, header)
        assert answer.code == 0, f"{answer.code} {answer.remark}"

    def end(self) -> None:
        for process in (*self.brokers, self.controller, self.namesrv):
            if process is not None:
                process.kill()


class _Wrapped(Process):
    """A broker whose command is run by another one, as in a network namespace."""

    wrap: Callable[[list[str]], list[str]] = list

    def __init__(self, name: str, argv: Sequence[str], **more: Any) -> None:
        super().__init__(name, self.wrap(list(argv)), **more)


class _TwinlogBroker(TwinlogBroker, _Wrapped):
    def __init__(self, directory: Path, config: dict[str, object], wrap: Any) -> None:
        self.wrap = wrap
        TwinlogBroker.__init__(self, directory, config)


class _ApacheBroker(ApacheBroker, _Wrapped):
    def __init__(self, directory: Path, config: dict[str, object], wrap: Any) -> None:
        self.wrap = wrap
        values = {key: value for key, value in config.items() if key != "bindAddress"}
        ApacheBroker.__init__(self, directory, values, BROKER_JVM, APACHE_5)
        self.config = config


class Host:
    """A network namespace on a bridge of its own; `cut` takes its cable out."""

    outside = "10.77.0.1"
    _bridge = "fobridge"

    def __init__(self, number: int) -> None:
        self.inside = f"10.77.0.{number + 2}"
        self._name, self._cable, far = f"fohost{number}", f"focable{number}", f"fofar{number}"
        _run("ip", "netns", "add", self._name)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", far, "netns", self._name)
        _run("ip", "link", "set", self._cable, "master", self._bridge, "up")
        for words in (("addr", "add", f"{self.inside}/24", "dev", far), ("link", "set", far, "up")):
            _run("ip", "-n", self._name, *words)
        _run("ip", "-n", self._name, "link", "set", "lo", "up")

    def wrap(self, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._name, *argv]

    def cut(self) -> None:
        _run("ip", "link", "set", self._cable, "down")

    def mend(self) -> None:
        _run("ip", "link", "set", self._cable, "up")

    def remove(self) -> None:
        _run("ip", "link", "del", self._cable)  # A namespace goes later than its name.
        _run("ip", "netns", "del", self._name)

    @classmethod
    @contextmanager
    def several(cls, count: int) -> Iterator[list[Host]]:
        _run("ip", "link", "add", cls._bridge, "type", "bridge")
        hosts: list[Host] = []
        try:
            _run("ip", "addr", "add", f"{cls.outside}/24", "dev", cls._bridge)
            _run("ip", "link", "set", cls._bridge, "up")
            for number in range(count):
                hosts.append(cls(number))  # noqa: PERF401 - those that were made are removed
            yield hosts
        finally:
            for host in hosts:
                host.remove()
            _run("ip", "link", "del", cls._bridge)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
