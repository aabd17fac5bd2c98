"""Clients that are not Java, each a program that reports JSON lines and ends with its input."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.java_driver import Event
from support.processes import wait_until
from support.toolchain import cpp_client_python, node_project, tool

HERE = Path(__file__).parent


class ForeignClient:
    """A running client program and what it has reported."""

    def __init__(self, argv: list[str], log: Path, env: dict[str, str]) -> None:
        self._output = log.with_suffix(".jsonl")
        self._log = log
        self._read = 0
        self._program = Path(argv[1]).name
        with self._output.open("wb") as output, log.open("wb") as errors:
            self.popen = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=log.parent,
                env={**os.environ, **env},
            )

    def of(self, name: str) -> list[Event]:
        lines = self._output.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n") and line[0] == "{"]
        return [event for event in events if event["event"] == name]

    def news(self) -> list[Event]:
        """What it has reported since this was asked last."""
        with self._output.open("rb") as output:
            output.seek(self._read)
            whole = output.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines() if line[:1] == b"{"]

    def wait_for(self, name: str, count: int = 1, deadline_s: float = 90) -> list[Event]:
        def enough() -> object:
            return len(self.of(name)) >= count or self.popen.poll() is not None

        what = f"{count} x {name} from {self._program}"
        try:
            wait_until(enough, what, deadline_s=deadline_s)
            assert len(self.of(name)) >= count, f"ended with {self.popen.poll()}"
        except AssertionError as error:
            text = self._output.read_text()[-2000:] + self._log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"{what}: {error}\n{text}") from None
        return self.of(name)

    def close(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        try:
            self.popen.wait(20)
        except subprocess.TimeoutExpired:
            # The C++ client now and then hangs in its own shutdown; what it consumed is known.
            self.popen.kill()
            self.popen.wait()


def cpp(arguments: list[str], log: Path, env: dict[str, str]) -> ForeignClient:
    # Its log goes to HOME and would grow without end there.
    argv = [str(cpp_client_python()), str(HERE / "cpp_client.py"), *arguments]
    own = {"HOME": str(log.parent), "ROCKETMQ_CLIENT_LOG_LEVEL": "4"}
    return ForeignClient(argv, log, {**own, **env})


def javascript(arguments: list[str], log: Path, env: dict[str, str]) -> ForeignClient:
    argv = [tool("node"), str(HERE / "node" / "client.js"), *arguments]
    return ForeignClient(argv, log, {"NODE_PATH": str(node_project() / "node_modules"), **env})


Start = Callable[[list[str], Path, dict[str, str]], ForeignClient]


@contextmanager
def running(start: Start, log: Path, *arguments: str, **env: str) -> Iterator[ForeignClient]:
    """The client with these arguments; ACCESS_KEY and SECRET_KEY in `env` are its account."""
    client = start(list(arguments), log, env)
    try:
        yield client
    finally:
        client.close()
