"""A standalone cluster of Spark whose machines see nothing of the driver's environment."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import Process, free_port

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 240  # a JVM on a machine that is busy with others
DEPLOY = "org.apache.spark.deploy"
# Executors may be killed as often as a test likes; starts are dearer than speed here.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.deploy.maxExecutorRetries=-1"

# Spark's own files are seen elsewhere, the driver's environment and the checkout are hidden.
ALONE = """
mount --make-rprivate / 2>/dev/null || true
mkdir -p "$1/spark"
mount --bind "$2" "$1/spark"
for hidden in $3; do mount -t tmpfs none "$hidden"; done
export SPARK_HOME="$1/spark"
shift 3
exec "$SPARK_HOME/bin/spark-class" "$@"
"""


def hidden_places() -> list[str]:
    """What a worker on another machine does not have: this environment and this checkout."""
    import pyspark

    site = Path(pyspark.__file__).parents[1]
    return sorted({str(site), str(ROOT / "src"), sysconfig.get_paths()["purelib"]})


def alone(directory: Path, name: str, *arguments: str) -> Process:
    """A process of Spark that sees nothing of the driver's environment."""
    import pyspark

    home = directory / name
    home.mkdir(exist_ok=True)
    path = os.pathsep.join([f"{sys.base_prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin"])
    java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    argv = [
        "env", "-i", f"PATH={path}", f"HOME={home}", "SPARK_LOCAL_IP=127.0.0.1",
        f"SPARK_DAEMON_JAVA_OPTS={QUICK}", "SPARK_DAEMON_MEMORY=256m",
        *(f"{key}={value}" for key, value in java.items()),
        "unshare", "-rm", "sh", "-euc", ALONE, "sh", str(home), str(Path(pyspark.__file__).parent),
        " ".join(hidden_places()), *arguments,
    ]  # fmt: skip
    return Process(name, argv, log=directory / f"{name}.log", cwd=home)


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        new = [child for each in new for child in parents.get(each, [])]
        found += new
    return found


def kill_tree(process: Process) -> None:
    """What the loss of a machine is: all of it at once, whatever groups the parts are in."""
    for pid in [process.pid, *descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.kill()


def runs(pid: int, text: str) -> bool:
    """Whether the command line of a process has the text in it."""
    with suppress(OSError):
        return text in Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    return False


@dataclass
class Standalone:
    """A master and its workers."""

    directory: Path
    cores: int
    port: int = field(default_factory=free_port)
    workers: list[Process] = field(default_factory=list)
    master: Process | None = None

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @property
    def settings(self) -> list[str]:
        """What a driver on this machine needs."""
        return [
            "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
            f"spark.local.dir={self.directory}",
        ]  # fmt: skip

    def start(self, workers: int) -> None:
        self.master = alone(
            self.directory, "master", f"{DEPLOY}.master.Master", "--host", "127.0.0.1", "--port",
            str(self.port), "--webui-port", "0",
        )  # fmt: skip
        self.master.wait_for_text("New state: ALIVE", deadline_s=START_DEADLINE_S)
        self.workers = [self._worker(number) for number in range(workers)]
        for worker in self.workers:
            self._wait(worker)

    def _worker(self, number: int) -> Process:
        return alone(
            self.directory, f"worker-{number}", f"{DEPLOY}.worker.Worker", "--cores",
            str(self.cores), "--memory", "1g", "--webui-port", "0", "--work-dir",
            str(self.directory / f"work-{number}"), self.address,
        )  # fmt: skip

    def _wait(self, worker: Process) -> None:
        worker.wait_for_text("Successfully registered with master", deadline_s=START_DEADLINE_S)

    def restart_worker(self, number: int) -> None:
        self.workers[number] = self._worker(number)
        self._wait(self.workers[number])

    def executors(self, number: int) -> list[int]:
        """The processes in which a worker's tasks run."""
        pids = descendants(self.workers[number].pid)
        return [pid for pid in pids if runs(pid, "CoarseGrainedExecutorBackend")]

    def close(self) -> None:
        for process in [*self.workers, *([self.master] if self.master else [])]:
            kill_tree(process)


@contextmanager
def standalone(directory: Path, *, workers: int, cores: int = 1) -> Iterator[Standalone]:
    """A cluster of so many workers; a network namespace is not needed to lack an environment."""
    cluster = Standalone(directory, cores)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.close()
