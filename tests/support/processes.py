"""Real processes in tests: start them, wait for a fact with a deadline, end them by their pid.

Nothing here sleeps for synchronisation: a test says what it waits for, and a wait that runs out
says what it was waiting for and shows the end of the process's log.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from support.forked import Forked, is_forked

T = TypeVar("T")

DEADLINE_S = 60.0
# Below the range from which Linux takes the local ports of outgoing connections: a port that was
# found free is then not taken by somebody's connect() before the server binds it.
PORTS: Sequence[int] = range(15000, 32000)
# Not given again soon: a server that was stopped wants to start on its ports again.
_given: deque[int] = deque(maxlen=3000)


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    deadline_s: float = DEADLINE_S,
    interval_s: float = 0.05,
) -> T:
    """The first true value of `condition`; at the deadline an error that names `what`."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s in vain: {what}; last seen: {value!r}")
        time.sleep(interval_s)


def free_port(*, also: Sequence[int] = ()) -> int:
    """A port that is free on 127.0.0.1, and so are the ports at the distances in `also`.

    No other process of this user is given them while this one lives: a JVM takes seconds from here
    to its bind, and tests of several clones may run side by side.
    """
    numbers = random.Random(os.urandom(8))
    for _ in range(1000):
        port = numbers.choice(PORTS)
        ports = [port + distance for distance in (0, *also)]
        if all(_claim(each) and port_is_free(each) for each in ports):
            _given.extend(ports)
            return port
    raise AssertionError("no free port found")


def _claim(port: int) -> bool:
    """Whether the port is ours: a lock on the byte of its number, until this process ends."""
    if port in _given:
        return False
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _claims() -> int:
    """One file for all clones, also for those whose TMPDIR is another."""
    shared = Path("/tmp")
    directory = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    return os.open(directory / f"twinlog-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def free_broker_port() -> int:
    """A service port P such that P - 2 (VIP) and P + 1 (HA) are free too."""
    return free_port(also=(-2, 1))


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


class Process:
    """A started program with its log file. Ended by pid, never by name."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._start_of_log = log.stat().st_size if log.exists() else 0
        self.popen: subprocess.Popen[bytes] | Forked
        with log.open("ab") as output:
            if is_forked(self.argv) and not env and stdin == subprocess.DEVNULL:
                self.popen = Forked(self.argv, log=log, cwd=cwd)
                return
            self.popen = subprocess.Popen(
                self.argv,
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        """What this run of the program has written so far."""
        with self.log.open("rb") as stream:
            stream.seek(self._start_of_log)
            return stream.read().decode("utf-8", "replace")

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def wait_ready(
        self, condition: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S
    ) -> None:
        """Wait for `condition`; a process that ends first is an error that shows its log."""

        def ready_or_dead() -> object:
            return condition() or not self.is_alive

        try:
            wait_until(ready_or_dead, what, deadline_s=deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}\n{self.tail()}") from None
        if not self.is_alive:
            code = self.popen.returncode
            raise AssertionError(f"{self.name} ended with {code} before: {what}\n{self.tail()}")

    def wait_for_text(self, text: str, *, deadline_s: float = DEADLINE_S) -> None:
        what = f"{text!r} in its log"
        self.wait_ready(lambda: text in self.output(), what, deadline_s=deadline_s)

    def kill(self) -> None:
        """SIGKILL and reap."""
        if self.is_alive:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self, *, deadline_s: float = DEADLINE_S) -> int:
        """SIGTERM, wait for the exit code; a process that does not end is killed and reported."""
        if self.is_alive:
            self.popen.terminate()
        try:
            return self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"{self.name} did not stop within {deadline_s:g} s of SIGTERM\n{self.tail()}"
            ) from None

    def wait(self, *, deadline_s: float = DEADLINE_S) -> int:
        """The exit code of a process that ends by itself."""
        try:
            return self.popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end\n{self.tail()}") from None

    def suspend(self) -> None:
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.popen.send_signal(signal.SIGCONT)


P = TypeVar("P", bound=Process)


class ProcessGroup:
    """Everything one test started; what is still alive at the end is killed by pid."""

    def __init__(self) -> None:
        self._members: list[Process] = []

    def add(self, process: P) -> P:
        self._members.append(process)
        return process

    def kill_all(self) -> None:
        for process in reversed(self._members):
            process.kill()
        self._members.clear()


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    group = ProcessGroup()
    try:
        yield group
    finally:
        group.kill_all()
