"""Commands in tests: in this process (quick) or as a process with a pipe (real).

cluster = LocalTwins(directory); cluster.up()
result = cluster.twinlog("topic", "list")
assert result.code == 0 and "orders" in result.out
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

TWINLOG = Path(sys.executable).parent / "twinlog"
MQADMIN = Path(sys.executable).parent / "mqadmin"
DEADLINE_S = 240.0


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Cells of a table; columns are at least two blanks apart."""
        lines = self.out.splitlines()
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]

    def ok(self) -> Result:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


@contextmanager
def streams(stdin: bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Standard streams that are no terminal, with bytes underneath as real ones have."""
    out, err = io.BytesIO(), io.BytesIO()
    kept = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", write_through=True)
    try:
        yield out, err
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdin, sys.stdout, sys.stderr = kept


def call(run: Callable[[list[str]], int], arguments: list[str], stdin: bytes = b"") -> Result:
    with streams(stdin) as (out, err):
        try:
            code = run(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        text, errors = out.getvalue(), err.getvalue()
    return Result(code, text.decode(), errors.decode())


def twinlog(*arguments: object, stdin: bytes = b"") -> Result:
    """A `twinlog` command in this process."""
    from twinlog.cli.lazy import run_group
    from twinlog.cli.main import cli

    words = [str(argument) for argument in arguments]
    return call(lambda args: run_group(cli, args, "twinlog"), words, stdin)


def mqadmin(*arguments: object) -> Result:
    from twinlog.cli.mqadmin.startup import run

    return call(run, [str(argument) for argument in arguments])


def process(
    *arguments: object, program: Path = TWINLOG, stdin: bytes = b"", **environment: str
) -> Result:
    """A command as a process of its own, with pipes."""
    done = subprocess.run(
        [str(program), *map(str, arguments)], input=stdin, capture_output=True,
        timeout=DEADLINE_S, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


class LocalTwins:
    """A cluster of `twinlog up` on free ports in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.is_harmed = False

    def up(self, *options: str) -> Result:
        return process("up", "--free-ports", "--no-console", "--dir", self.directory, *options)

    def down(self) -> Result:
        return process("down", "--purge", "--dir", self.directory)

    @property
    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.directory / "cluster.json").read_bytes())[
            "nodes"
        ]
        return found

    def address(self, name: str) -> str:
        return next(f"127.0.0.1:{node['port']}" for node in self.nodes if node["name"] == name)

    @property
    def namesrv(self) -> str:
        return self.address("namesrv")

    @property
    def master(self) -> str:
        return self.address("broker-a-0")

    def pid(self, name: str) -> int:
        return next(int(node["pid"]) for node in self.nodes if node["name"] == name)

    def is_alive(self, name: str) -> bool:
        try:
            return psutil.Process(self.pid(name)).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def own_health(self, name: str) -> dict[str, Any]:
        """What a process says of itself at its HTTP port."""
        (file,) = (self.directory / name).glob("*.conf")
        found = re.search(r"metricsPromExporterPort=(\d+)", file.read_text())
        assert found is not None
        url = f"http://127.0.0.1:{found[1]}/health/ready"
        health: dict[str, Any] = httpx.get(url, timeout=30).json()
        return health

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)
        self.is_harmed = True

    def mend(self) -> None:
        """Start what a test has killed, for the test after it."""
        if self.is_harmed:
            self.up().ok()
            self.twinlog("cluster", "health", "--wait", "60s", "--brokers", "2").ok()
            self.is_harmed = False

    def start(self, name: str) -> None:
        """Start a process of the cluster again that was killed. Not as a child of this one."""
        code = (
            "import pathlib, sys; from twinlog.cli.local_cluster import load_cluster;"
            "cluster = load_cluster(pathlib.Path(sys.argv[1]));"
            "cluster.start_node(cluster.node(sys.argv[2]))"
        )
        process("-c", code, self.directory, name, program=Path(sys.executable)).ok()

    def twinlog(self, *arguments: object, stdin: bytes = b"") -> Result:
        """With this cluster's name server, as NAMESRV_ADDR would say."""
        return twinlog("-n", self.namesrv, *arguments, stdin=stdin)

    def mqadmin(self, verb: str, *arguments: object) -> Result:
        return mqadmin(verb, "-n", self.namesrv, *arguments)
