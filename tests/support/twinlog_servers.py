"""twinlog's own servers as processes, from the same configuration files as Apache's.

namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
broker = start_twinlog_broker(tmp_path / "m", namesrv=namesrv.address, brokerId=0)
broker.kill(); broker = broker.restart()
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from support.processes import Process, ProcessGroup, free_broker_port, free_port, wait_until
from support.properties import write_properties

TWINLOG = Path(sys.executable).parent / "twinlog"
READY_DEADLINE_S = 60.0
ANY_HTTP_PORT = {"metricsPromExporterPort": 0}
_HTTP_LINE = re.compile(r"HTTP port for metrics and health address=(\S+)")


def http_address(server: Process) -> str:
    """Where /metrics and /health of a server are."""
    found = wait_until(lambda: _HTTP_LINE.findall(server.output()), "the HTTP port is open")
    return str(found[-1])


class TwinlogNamesrv(Process):
    def __init__(self, directory: Path, config: dict[str, object]) -> None:
        self.directory = directory
        self.config = config
        self.port = int(str(config["listenPort"]))
        self.address = f"127.0.0.1:{self.port}"
        file = write_properties(directory / "namesrv.conf", {**ANY_HTTP_PORT, **config})
        argv = [str(TWINLOG), "namesrv", "-c", str(file)]
        super().__init__("twinlog namesrv", argv, log=directory / "namesrv.log", cwd=directory)

    def registrations(self, address: str) -> int:
        """How often a broker of this address came."""
        return sum(
            "broker registered" in line and line.endswith(f"address={address}")
            for line in self.output().splitlines()
        )

    def wait_registered(self, address: str, *, after: int = 0) -> None:
        """Ready means that a broker serves; clients find it when it has registered."""
        self.wait_ready(lambda: self.registrations(address) > after, f"{address} registers")

    def restart(self, **changes: object) -> TwinlogNamesrv:
        namesrv = TwinlogNamesrv(self.directory, {**self.config, **changes})
        namesrv.wait_for_text("twinlog namesrv ready", deadline_s=READY_DEADLINE_S)
        return namesrv


class TwinlogBroker(Process):
    def __init__(
        self,
        directory: Path,
        config: dict[str, object],
        *,
        writes_file: bool = True,
        arguments: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.config = config
        self.port = int(str(config["listenPort"]))
        self.address = f"127.0.0.1:{self.port}"
        self.ha_port = int(str(config.get("haListenPort", self.port + 1)))
        self.store = Path(str(config["storePathRootDir"]))
        file = directory / "broker.conf"
        if writes_file:
            write_properties(file, {**ANY_HTTP_PORT, **config})
        argv = [str(TWINLOG), "broker", "-c", str(file), *arguments]
        super().__init__("twinlog broker", argv, log=directory / "broker.log", cwd=directory)

    @classmethod
    def start_as_it_is(
        cls, broker: TwinlogBroker, *, wait: bool = True, arguments: Sequence[str] = ()
    ) -> TwinlogBroker:
        """A new process with the configuration file as the broker left it."""
        again = cls(broker.directory, broker.config, writes_file=False, arguments=arguments)
        if wait:
            again.wait_for_text("twinlog broker ready", deadline_s=READY_DEADLINE_S)
        return again

    def restart(self, **changes: object) -> TwinlogBroker:
        """A new process on the same directory, ports and configuration, with `changes` to it."""
        broker = TwinlogBroker(self.directory, {**self.config, **changes})
        broker.wait_for_text("twinlog broker ready", deadline_s=READY_DEADLINE_S)
        return broker


def start_twinlog_namesrv(directory: Path, **config: object) -> TwinlogNamesrv:
    values = namesrv_values(directory, config)
    namesrv = TwinlogNamesrv(directory, values)
    namesrv.wait_for_text("twinlog namesrv ready", deadline_s=READY_DEADLINE_S)
    return namesrv


def namesrv_values(directory: Path, config: dict[str, object]) -> dict[str, object]:
    values: dict[str, object] = {
        "listenPort": free_port(),
        "kvConfigPath": directory / "kvConfig.json",
        "rocketmqHome": directory,
    }
    return {**values, **config}


def start_twinlog_broker(
    directory: Path, *, namesrv: str | None = None, wait: bool = True, **config: object
) -> TwinlogBroker:
    """Start a broker; keys of `config` are those of broker.conf. Ports are chosen unless given."""
    values = broker_values(directory, namesrv, config)
    broker = TwinlogBroker(directory, values)
    if wait:
        broker.wait_for_text("twinlog broker ready", deadline_s=READY_DEADLINE_S)
    return broker


def start_guarded_broker(
    group: ProcessGroup, directory: Path, rules: Mapping[str, object]
) -> tuple[TwinlogNamesrv, TwinlogBroker]:
    """A broker that enforces `rules`, registered; they stand in `home/conf/plain_acl.yml`."""
    file = directory / "home" / "conf" / "plain_acl.yml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(rules))
    namesrv = start_twinlog_namesrv(directory / "namesrv")
    group.add(namesrv)
    broker = start_twinlog_broker(
        directory / "broker", namesrv=namesrv.address, mappedFileSizeCommitLog=1 << 20,
        maxHashSlotNum=1000, aclEnable="true", rocketmqHome=directory / "home",
    )  # fmt: skip
    group.add(broker)
    namesrv.wait_for_text(f"address={broker.address}")
    return namesrv, broker


def broker_values(
    directory: Path, namesrv: str | None, config: dict[str, object]
) -> dict[str, object]:
    """The keys that every broker in a test gets, Apache's and ours alike."""
    store = directory / "store"
    port = config.get("listenPort") or free_broker_port()
    values: dict[str, object] = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "listenPort": port,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
    }
    if namesrv:
        values["namesrvAddr"] = namesrv
    values.update(config)
    values["listenPort"] = port
    return values


class TwinlogController(Process):
    def __init__(self, directory: Path, config: dict[str, object]) -> None:
        self.directory = directory
        self.config = config
        self.port = int(str(config["listenPort"]))
        self.address = f"127.0.0.1:{self.port}"
        file = write_properties(directory / "controller.conf", {**ANY_HTTP_PORT, **config})
        argv = [str(TWINLOG), "controller", "-c", str(file)]
        super().__init__("twinlog controller", argv, log=directory / "c.log", cwd=directory)

    def restart(self) -> TwinlogController:
        return start_twinlog_controller(self.directory, **dict[str, Any](self.config))


def start_twinlog_controller(
    directory: Path, *, wait: bool = True, **config: object
) -> TwinlogController:
    values = {"listenPort": free_port(), "controllerStorePath": directory / "controller"}
    controller = TwinlogController(directory, {**values, **config})
    if wait:
        controller.wait_for_text("twinlog controller ready", deadline_s=READY_DEADLINE_S)
    return controller
