"""RocketMQ's Java client in a JVM of its own, steered from Python (tests/interop/java/src).

driver = Driver(tmp_path / "driver")
sent = driver.run("send", namesrv=address, topic="T", count=10)["sent"]
consumer = driver.start("push", namesrv=address, topic="T", group="g")
consumer.wait_for("message", 10)
consumer.stop(); driver.close()
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.apache import APACHE, QUICK_JVM, write_home
from support.processes import wait_until
from support.toolchain import driver_class_path, tool

Event = dict[str, Any]
CLIENT_5 = "client-5.3"
JOB_DEADLINE_S = float(os.environ.get("INTEROP_DEADLINE_S", "90"))
# By itself a consumer looks at its group only every 20 s; a test has no such time.
QUICK_REBALANCE = (
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.minInterval=200",
)


class Events(dict[str, list[Event]]):
    """Events by their name; a name that never occurred is an empty list."""

    def __missing__(self, name: str) -> list[Event]:
        return []


class Job:
    """One command inside the driver, and what it has reported so far."""

    def __init__(self, driver: Driver, identity: str, command: str) -> None:
        self._driver = driver
        self.id = identity
        self.command = command
        self.events: list[Event] = []

    def of(self, name: str) -> list[Event]:
        return [event for event in list(self.events) if event["event"] == name]

    def wait(
        self, condition: Callable[[Job], object], what: str, *, deadline_s: float = JOB_DEADLINE_S
    ) -> None:
        def met_or_broken() -> object:
            return condition(self) or self.of("error") or not self._driver.is_alive

        wait_until(met_or_broken, f"{self.command}: {what}", deadline_s=deadline_s)
        if not condition(self):
            raise AssertionError(
                f"{self.command}: {what}: {self.of('error')}\n{self._driver.tail()}"
            )

    def wait_for(
        self, name: str, count: int = 1, *, deadline_s: float = JOB_DEADLINE_S
    ) -> list[Event]:
        """Wait until `count` events of that name came; all of them (there may be more)."""
        try:
            self.wait(
                lambda job: len(job.of(name)) >= count, f"{count} x {name}", deadline_s=deadline_s
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; {len(self.of(name))} came") from None
        return self.of(name)

    def tell(self, command: str, **arguments: object) -> None:
        self._driver.write(self.id, command, arguments)

    def stop(self) -> Events:
        """Close what the command opened; all events."""
        self._driver.write(self.id, "stop", {})
        self.wait_for("stopped")
        return self.by_name()

    def by_name(self) -> Events:
        found = Events()
        for event in self.events:
            found.setdefault(event["event"], []).append(event)
        return found


class Driver:
    """A JVM with the Java client; commands run side by side in it."""

    def __init__(self, directory: Path, project: str = APACHE, options: Sequence[str] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        write_home(directory, level="ERROR")
        self.directory = directory
        self.project = project
        self._numbers = itertools.count(1)
        self._jobs: dict[str, Job] = {"driver": Job(self, "driver", "driver")}
        self._log = directory / "driver.log"
        argv = [
            tool("java"), *QUICK_JVM, "-Xmx512m", f"-Duser.home={directory}", "-Duser.timezone=UTC",
            f"-Drocketmq.home.dir={directory}", f"-Drocketmq.client.logRoot={directory}",
            "-Drocketmq.client.logUseSlf4j=false",
            *QUICK_REBALANCE, *options, "-cp", driver_class_path(project), "interop.Driver",
        ]  # fmt: skip
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=directory,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._jobs["driver"].wait_for("ready")

    @property
    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def start(self, command: str, **arguments: object) -> Job:
        job = Job(self, f"{command}{next(self._numbers)}", command)
        self._jobs[job.id] = job
        self.write(job.id, command, arguments)
        return job

    def run(self, command: str, **arguments: object) -> Events:
        """Run a command to its end, close it, and return what it reported."""
        job = self.start(command, **arguments)
        job.wait_for("done", deadline_s=JOB_DEADLINE_S)
        return job.stop()

    def mqadmin(
        self, *arguments: str, fails: bool | None = False, ak: str = "", sk: str = ""
    ) -> str:
        """A verb of Apache's mqadmin 4.9.7; what it printed. `fails=None`: it may fail or not."""
        # An account without a key is none; that is how the tool reads its file of credentials.
        account = f"accessKey: {ak}\nsecretKey: '{sk}'\n"
        (self.directory / "conf" / "tools.yml").write_text(account)
        events = self.run("mqadmin", arguments="\n".join(arguments))
        text = "".join(str(event["text"]) for event in events["printed"] + events["error"])
        failed = bool(events["error"]) or "SubCommandException" in text or "command failed" in text
        assert fails is None or failed == fails, f"mqadmin {' '.join(arguments)}:\n{text}"
        return text

    def write(self, identity: str, command: str, arguments: dict[str, object]) -> None:
        words = [f"{key}={quote(str(value), safe='')}" for key, value in arguments.items()]
        assert self.popen.stdin is not None
        self.popen.stdin.write((" ".join([identity, command, *words]) + "\n").encode())
        self.popen.stdin.flush()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            event = json.loads(line)
            event["at"] = time.monotonic()
            self._jobs[event["id"]].events.append(event)

    def kill(self) -> None:
        self.popen.kill()
        self._end()

    def close(self) -> None:
        """End the JVM without closing its clients: as a crash, but orderly for us."""
        self._end()

    def _end(self) -> None:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        self.popen.wait(30)
        self._reader.join(10)
        self.popen.stdout.close()
