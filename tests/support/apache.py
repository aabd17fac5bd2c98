"""Apache RocketMQ 4.9.7 as processes: name server, broker, mqadmin.

    namesrv = start_apache_namesrv(tmp_path / "namesrv")
    master = start_apache_broker(tmp_path / "master", namesrv=namesrv.address)
    master.stop(); master = master.restart(brokerRole="SYNC_MASTER")
    text = mqadmin("clusterList", "-n", namesrv.address)

Small heaps and the first compiler tier only: a test wants a JVM that starts soon, not one that
runs fast. A benchmark passes its own `java_options`.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from support.processes import Process
from support.properties import write_properties
from support.toolchain import jars, tool
from support.twinlog_servers import broker_values, namesrv_values

APACHE = "apache-4.9"
APACHE_5 = "apache-5.3"
READY_DEADLINE_S = 120.0
# Its three seconds for an answer include the start of its client, which takes longer on a machine
# with other work. A question changes nothing and is asked again.
UNANSWERED = re.compile(r"RemotingTimeoutException(?s:.*?)MQClientAPIImpl\.get")
TRIES = 3
QUICK_JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# What 4.9.7 reaches into by reflection, closed since JDK 16.
OPEN_MODULES = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
LOGBACK = """<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="LEVEL"><appender-ref ref="OUT"/></root>
</configuration>
"""


def java(
    main: str, *arguments: str, home: Path, options: Sequence[str], project: str = APACHE
) -> list[str]:
    """Command line of a class of Apache's; `home` is made to be what ROCKETMQ_HOME must be."""
    return [
        tool("java"), *options, *OPEN_MODULES, "-Duser.timezone=UTC", f"-Duser.home={home}",
        f"-Drocketmq.home.dir={home}", "-cp", jars(project), main, *arguments,
    ]  # fmt: skip


def write_home(home: Path, level: str = "INFO") -> None:
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("broker", "namesrv", "tools"):
        (conf / f"logback_{name}.xml").write_text(LOGBACK.replace("LEVEL", level))


class ApacheServer(Process):
    """A name server or a broker: one main class with one properties file."""

    kind: ClassVar[str]
    main: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        config: dict[str, object],
        java_options: Sequence[str],
        project: str = APACHE,
    ) -> None:
        self.directory = directory
        self.config = config
        self.java_options = java_options
        self.project = project
        self.port = int(str(config["listenPort"]))
        self.address = f"127.0.0.1:{self.port}"
        write_home(directory)
        file = write_properties(directory / f"{self.kind}.conf", config)
        argv = java(
            self.main, "-c", str(file), home=directory, options=java_options, project=project
        )
        super().__init__(
            f"apache {self.kind}", argv, log=directory / f"{self.kind}.log", cwd=directory
        )

    def restart(self, **changes: object) -> Self:
        """A new process on the same directory, ports and configuration, with `changes` to it."""
        config = {**self.config, **changes}
        server = type(self)(self.directory, config, self.java_options, self.project)
        server.wait_for_text("boot success", deadline_s=READY_DEADLINE_S)
        return server


class ApacheNamesrv(ApacheServer):
    kind = "namesrv"
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"


class ApacheBroker(ApacheServer):
    kind = "broker"
    main = "org.apache.rocketmq.broker.BrokerStartup"

    @property
    def ha_port(self) -> int:
        return self.port + 1

    @property
    def store(self) -> Path:
        return Path(str(self.config["storePathRootDir"]))


class ApacheController(Process):
    """RocketMQ 5's controller, alone."""

    def __init__(self, directory: Path, port: int, host: str = "127.0.0.1") -> None:
        self.directory, self.host, self.port = directory, host, port
        self.address = f"{host}:{port}"
        write_home(directory)
        values = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{host}:{port}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": directory / "records",
        }
        file = write_properties(directory / "controller.conf", values)
        main = "org.apache.rocketmq.controller.ControllerStartup"
        argv = java(main, "-c", str(file), home=directory, options=QUICK_JVM, project=APACHE_5)
        super().__init__("apache controller", argv, log=directory / "c.log", cwd=directory)

    def restart(self) -> ApacheController:
        return ApacheController(self.directory, self.port, self.host)


def start_apache_namesrv(
    directory: Path,
    *,
    java_options: Sequence[str] = QUICK_JVM,
    project: str = APACHE,
    **config: object,
) -> ApacheNamesrv:
    namesrv = ApacheNamesrv(directory, namesrv_values(directory, config), java_options, project)
    namesrv.wait_for_text("boot success", deadline_s=READY_DEADLINE_S)
    return namesrv


def start_apache_broker(
    directory: Path,
    *,
    namesrv: str | None = None,
    wait: bool = True,
    java_options: Sequence[str] = QUICK_JVM,
    project: str = APACHE,
    **config: object,
) -> ApacheBroker:
    """Start a broker; keys of `config` are those of broker.conf. Ports are chosen unless given."""
    values = broker_values(directory, namesrv, config)
    values.pop("bindAddress", None)
    broker = ApacheBroker(directory, values, java_options, project)
    if wait:
        broker.wait_for_text("boot success", deadline_s=READY_DEADLINE_S)
    return broker


def mqadmin_line(*arguments: str, home: Path, level: str, project: str = APACHE) -> list[str]:
    """Command line of mqadmin (4.9.7 unless said otherwise) that logs from `level` on."""
    write_home(home, level)
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    return java(main, *arguments, home=home, options=QUICK_JVM, project=project)


def start_mqadmin(*arguments: str, home: Path) -> Process:
    """Start a verb that runs until it is ended; what its client logs goes to its output as well."""
    argv = mqadmin_line(*arguments, home=home, level="INFO")
    argv.insert(1, "-Drocketmq.client.logUseSlf4j=true")
    return Process(f"mqadmin {arguments[0]}", argv, log=home / "output.log", cwd=home)


def mqadmin(*arguments: str, home: Path, deadline_s: float = 120.0, project: str = APACHE) -> str:
    """Run a verb of Apache's mqadmin; standard output, or AssertionError with all of it.

    Apache's tool exits with 0 when it failed, so a stack trace or the word of a failure counts.
    """
    argv = mqadmin_line(*arguments, home=home, level="ERROR", project=project)
    for _ in range(TRIES):
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, cwd=home, timeout=deadline_s
        )
        output = done.stdout + done.stderr
        if not UNANSWERED.search(output):
            break
    failed = done.returncode != 0 or "Exception" in output or "command failed" in output
    assert not failed, f"mqadmin {' '.join(arguments)}: exit {done.returncode}\n{output}"
    return done.stdout
