"""twinlog's servers as forks of a process that has imported them: a start without the imports.

What a start costs is nearly all imports (0.4 s of CPU), and tests start servers by the hundred. The
fork runs the console script's function in a process of its own, with its own log, directory and
signals; what differs from a program that was executed is its command line.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

TWINLOG = str(Path(sys.executable).parent / "twinlog")
VERBS = ("broker", "controller", "namesrv")
# Also what those import when they first need it.
IMPORTED = [
    *(f"twinlog.cli.{name}" for name in ("main", "serve", *VERBS)),
    "twinlog.cli.admin.broker",
    "twinlog.broker.pull._pull_lane",
    "twinlog.broker.put._send_lane",
    "twinlog.broker.transaction._end_lane",
    "encodings.idna",
    "uvloop",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.h11_impl",
]


def is_forked(argv: Sequence[str]) -> bool:
    """A server of ours in a test: benchmarks measure programs as their users start them."""
    is_test = "PYTEST_CURRENT_TEST" in os.environ
    return is_test and argv[0] == TWINLOG and argv[1] in VERBS


class Forked:
    """As much of `subprocess.Popen` as tests use."""

    stdin: IO[bytes] | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, argv: Sequence[str], *, log: Path, cwd: Path | None) -> None:
        self.args = argv
        self._process: BaseProcess = _context().Process(
            target=_run, args=(list(argv), str(log), str(cwd or Path.cwd()), dict(os.environ)),
            daemon=True,
        )  # fmt: skip
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _run(argv: list[str], log: str, cwd: str, environment: dict[str, str]) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, output, output)):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = argv
    from twinlog.cli.entry import twinlog

    try:
        twinlog()
    finally:
        # A fork of multiprocessing ends without them.
        atexit._run_exitfuncs()
