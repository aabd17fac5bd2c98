"""The two contenders as processes: name server, master and slave, each as its users would run it.

Apache: 2 GB heap and the collector flags of its own start script, defaults otherwise. twinlog: its
defaults. Both keep 1 GiB log files and run on loopback. Pairs of both makes stay up side by side
while rows of one kind are measured, because a JVM needs a long warm-up; the one that is not
measured is stopped (SIGSTOP) meanwhile, since the timers of an idle JVM cost the other a part of
the machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))

from support.apache import start_apache_broker, start_apache_namesrv
from support.processes import ProcessGroup, wait_until
from support.toolchain import INTEROP, made_once, tool
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv

MAKES = ("twinlog", "apache")
LOAD_SOURCES = harness.ROOT / "tools" / "load"
APACHE_JVM = (
    "-server", "-Xms2g", "-Xmx2g", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25", "-XX:InitiatingHeapOccupancyPercent=30", "-XX:+AlwaysPreTouch",
    "-XX:MaxDirectMemorySize=15g", "-XX:-OmitStackTraceInFastThrow",
)  # fmt: skip
NAMESRV_JVM = ("-Xms256m", "-Xmx256m")
WARM_UP_S = 20.0
QUEUES = 4
_RECORD_SIZE_MIN = 91
_READY = {"twinlog": "twinlog broker ready", "apache": "boot success"}


def load_generator() -> str:
    """Path of our load generator, tested and built when its source changed."""
    sources = sorted([*LOAD_SOURCES.glob("*.go"), LOAD_SOURCES / "go.mod"])

    def build(target: Path) -> None:
        for arguments in (["test", "."], ["build", "-o", str(target / "load"), "."]):
            subprocess.run([tool("go"), *arguments], cwd=LOAD_SOURCES, check=True)

    recipe = b"".join(source.read_bytes() for source in sources)
    return str(made_once("load", recipe, build) / "load")


def run_load(mode: str, **flags: object) -> dict[str, Any]:
    """One measurement; flags are those of tools/load."""
    arguments = [f"-{key}={text(value)}" for key, value in flags.items()]
    done = subprocess.run(
        [load_generator(), mode, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"load {mode} {arguments}: {done.stdout}{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def start_broker(make: str, directory: Path, **config: object) -> Any:
    if make == "apache":
        return start_apache_broker(directory, java_options=APACHE_JVM, **config)
    return start_twinlog_broker(directory, **config)


def start_namesrv(make: str, directory: Path) -> Any:
    if make == "apache":
        return start_apache_namesrv(directory, java_options=NAMESRV_JVM)
    return start_twinlog_namesrv(directory)


def versions() -> dict[str, str]:
    """What is compared with twinlog in the tables, and what measures it."""
    java = subprocess.run([tool("java"), "-version"], capture_output=True, text=True, check=True)
    go = subprocess.run([tool("go"), "version"], capture_output=True, text=True, check=True)
    return {
        "Apache RocketMQ": version_in_pom("apache-4.9"),
        "Apache Kafka": version_in_pom("kafka-4.1"),
        "Java": java.stderr.splitlines()[0],
        "load generator": go.stdout.strip(),
    }


def version_in_pom(project: str) -> str:
    """The version of the first dependency: what is fetched is what is named."""
    pom = (INTEROP / "java" / project / "pom.xml").read_text()
    return re.findall(r"<dependency>.*?<version>(.*?)</version>", pom, re.DOTALL)[0]


@dataclass(frozen=True)
class Usage:
    """Of a process, from /proc: CPU and bytes written since it started, memory now."""

    cpu_s: float
    anonymous_mb: float
    written_mb: float


def usages(pids: Iterable[int]) -> dict[int, Usage]:
    return {pid: _usage(pid) for pid in pids}


def usage_since(before: Mapping[int, Usage]) -> dict[int, Usage]:
    """What each process has used since then."""
    now = usages(before)
    return {
        pid: Usage(
            now[pid].cpu_s - then.cpu_s,
            now[pid].anonymous_mb,
            now[pid].written_mb - then.written_mb,
        )
        for pid, then in before.items()
    }


def _usage(pid: int) -> Usage:
    place = Path(f"/proc/{pid}")
    ticks = place.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    facts = dict(
        line.split(":", 1)
        for name in ("status", "io")
        for line in place.joinpath(name).read_text().splitlines()
    )
    return Usage(
        sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
        int(facts["RssAnon"].split()[0]) / 1e3,
        int(facts["write_bytes"]) / 1e6,
    )


class Pair:
    """Name server, master and slave of one make."""

    def __init__(self, make: str, role: str, directory: Path, **config: object) -> None:
        self._group = ProcessGroup()
        self.make = make
        self.is_frozen = False
        try:
            self._start_all(role, directory, config)
        except BaseException:  # Nothing stays behind, whatever ended it.
            self.stop()
            subprocess.run(["rm", "-rf", str(directory)], check=True)
            raise

    def _start_all(self, role: str, directory: Path, config: Mapping[str, object]) -> None:
        self.namesrv = self._group.add(start_namesrv(self.make, directory / "namesrv"))
        common = {"namesrv": self.namesrv.address, **config}
        self.master = self._start(directory / "master", brokerRole=role, **common)
        self.slave = self._start(
            directory / "slave", brokerRole="SLAVE", brokerId=1,
            haMasterAddress=f"127.0.0.1:{self.master.ha_port}", **common,
        )  # fmt: skip
        wait_until(self.accepts_sends, f"{self.make}: sends are acknowledged", deadline_s=120)

    def _start(self, directory: Path, **config: object) -> Any:
        broker = self._group.add(start_broker(self.make, directory, wait=False, **config))
        broker.wait_for_text(_READY[self.make], deadline_s=120)
        return broker

    def accepts_sends(self) -> bool:
        return try_send(self.master.port) == 0

    def warm_up(self, seconds: float) -> None:
        run_load(
            "send", addr=self.master.address, topic="warmup", seconds=seconds, depth=16, size=128
        )

    @property
    def pids(self) -> str:
        return f"master={self.master.pid},slave={self.slave.pid}"

    def freeze(self) -> None:
        for process in (self.namesrv, self.master, self.slave):
            os.kill(process.pid, signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        if not self.is_frozen:
            return
        for process in (self.namesrv, self.master, self.slave):
            os.kill(process.pid, signal.SIGCONT)
        self.is_frozen = False
        wait_until(self.accepts_sends, f"{self.make}: sends are acknowledged", deadline_s=60)

    def stop(self) -> None:
        self._group.kill_all()


def warm_up_seconds(make: str, scale: float) -> float:
    """Under load before the first sample: a JVM compiles for long, twinlog only fills caches."""
    return max(3.0, WARM_UP_S * min(1.0, scale)) if make == "apache" else 3.0


class Pairs:
    """The pairs that are up: both makes in one role. Another role ends them and starts again."""

    def __init__(self) -> None:
        self._role = ""
        self._pairs: dict[str, Pair] = {}

    def get(self, make: str, role: str, directory: Path, *, scale: float) -> Pair:
        if role != self._role:
            self.stop()
            self._role = role
        if make not in self._pairs:
            base = Path(os.environ.get("BENCH_DIR", directory.parent.parent))
            place = base / f"pair-{make}-{role}-{os.getpid()}"
            place.mkdir(parents=True)
            plain, _, flush = role.partition("+")  # As in "SYNC_MASTER+SYNC_FLUSH".
            config = {"flushDiskType": flush} if flush else {}
            pair = self._pairs[make] = Pair(make, plain, place, **config)
            pair.warm_up(warm_up_seconds(make, scale))
        for other in self._pairs.values():
            if other.make != make and not other.is_frozen:
                other.freeze()
        self._pairs[make].thaw()
        return self._pairs[make]

    def stop(self) -> None:
        for pair in self._pairs.values():
            pair.stop()
            subprocess.run(["rm", "-rf", str(pair.master.directory.parent)], check=True)
        self._pairs.clear()
        self._role = ""


PAIRS = Pairs()


def try_send(port: int, topic: str = "probe") -> int | None:
    """The code that answers one send on a connection of its own; None when nobody answers."""
    fields = {"a": "bench", "b": topic, "c": "TBW102", "d": str(QUEUES), "e": "0", "f": "0"}
    fields |= {"g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0", "k": "false"}
    answer = ask(port, 310, fields, b"probe")
    return None if answer is None else int(answer["code"])


def ask(port: int, code: int, fields: Mapping[str, str], body: bytes) -> dict[str, Any] | None:
    header = json.dumps({
        "code": code, "language": "PYTHON", "version": 399, "opaque": 1, "flag": 0,
        "serializeTypeCurrentRPC": "JSON", "extFields": dict(fields),
    }).encode()  # fmt: skip
    frame = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(frame)
            stream = connection.makefile("rb")
            total, size = struct.unpack(">ii", stream.read(8))
            answer: dict[str, Any] = json.loads(stream.read(total - 4)[: size & 0xFFFFFF])
            return answer
    except (OSError, struct.error, ValueError):
        return None


def timed(condition: Callable[[], object], started: float, *, deadline_s: float = 180) -> float:
    """Seconds from `started` until the condition holds, looked at every few milliseconds."""
    end = started + deadline_s
    while not condition():
        if time.perf_counter() > end:
            raise RuntimeError(f"not reached within {deadline_s:g} s")
        time.sleep(0.005)
    return time.perf_counter() - started


def last_record(file: Path, start: int) -> int:
    """Offset of the last record, found by following the sizes from `start` on."""
    last = position = start
    with file.open("rb") as stream:
        while True:
            stream.seek(position)
            head = stream.read(8)
            size = struct.unpack(">i", head[:4])[0] if len(head) == 8 else 0
            if size < _RECORD_SIZE_MIN:
                return last
            last, position = position, position + size


def size_at(file: Path, offset: int) -> int:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            head = stream.read(4)
    except FileNotFoundError:
        return 0
    return struct.unpack(">i", head)[0] if len(head) == 4 else 0
