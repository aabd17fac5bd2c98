"""A pair with its console, as `twinlog up` leaves them running, and a browser's manners in HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.command_line import LocalTwins, Result, process
from support.processes import wait_until

CSRF = re.compile(r'name="csrf" value="([^"]+)"')


class ConsolePair(LocalTwins):
    """`twinlog up` with the console. Clients that it hands out are closed with it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._clients: list[httpx.Client] = []

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.down()

    def up(self, *options: str) -> Result:
        return process("up", "--free-ports", "--dir", self.directory, *options)

    @property
    def url(self) -> str:
        return f"http://{self.address('console')}"

    @property
    def tokens(self) -> dict[str, str]:
        path = self.directory / "console" / "tokens.json"
        found: dict[str, str] = json.loads(path.read_bytes())
        return found

    @property
    def audit(self) -> list[dict[str, str]]:
        path = self.directory / "console" / "audit.log"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # A thread of the console writes it meanwhile.
        return [json.loads(line) for line in whole.splitlines()]

    def script(self, role: str = "admin") -> httpx.Client:
        """A program with a token."""
        headers = {"Authorization": f"Bearer {self.tokens[role]}"}
        client = httpx.Client(base_url=self.url, headers=headers, timeout=30)
        self._clients.append(client)
        return client

    def browser(self, role: str = "admin") -> Visitor:
        visitor = Visitor(self.url, self.tokens[role])
        self._clients.append(visitor.http)
        return visitor

    def stranger(self) -> Visitor:
        visitor = Visitor(self.url)
        self._clients.append(visitor.http)
        return visitor


class Visitor:
    """Somebody with a browser: a session cookie, and forms that carry the page's secret."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, follow_redirects=False)
        if token is not None:
            answer = self.http.get("/", params={"token": token})
            assert answer.status_code == 303, answer.text
            assert "token" not in answer.headers["location"]

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.http.get(path, params=params or None)

    @property
    def csrf(self) -> str:
        found = CSRF.search(self.get("/audit").text)
        assert found is not None
        return found.group(1)

    def post(self, operation: str, **fields: Any) -> httpx.Response:
        """A form of ours, as the page would send it."""
        data = {"csrf": self.csrf, "next": "/audit", **fields}
        return self.http.post(f"/do/{operation}", data=data)

    def confirmed(self, operation: str, **fields: Any) -> httpx.Response:
        return self.post(operation, confirmed="yes", **fields)

    def close(self) -> None:
        self.http.close()


def console_pair(directory: Path) -> ConsolePair:
    pair = ConsolePair(directory)
    pair.up().ok()
    return pair


@contextmanager
def running_console(
    directory: Path, name_server: str, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """A console of its own, not one of `twinlog up`: its address and the administrator's token."""
    log = directory / "console.log"
    command = [
        sys.executable, "-m", "twinlog.cli.main", "console", "-n", name_server, "--port", "0",
        "--audit", str(directory / "audit.log"),
    ]  # fmt: skip
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, stderr=output, env={**os.environ, **(environment or {})}
        )
    try:
        wait_until(lambda: "to look only" in log.read_text(), "the console is ready", deadline_s=60)
        found = re.search(r"ready (http\S+)/\?token=(\S+)", log.read_text())
        assert found is not None
        yield found[1], found[2]
    finally:
        running.terminate()
        running.wait(60)


def bearer(url: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=30)
