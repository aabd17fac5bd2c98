"""A real etcd (Debian's etcd-server) as a process, on free ports, in a directory of its own."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from pathlib import Path

from support.processes import Process, free_port


class Etcd(Process):
    """One member. The same directory is the same cluster."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        program = shutil.which("etcd")
        assert program, "etcd is missing: make setup installs it as root on Debian (etcd-server)"
        self.directory = directory
        self.port = port or free_port()
        peer = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [
            program, "--name", "one", "--data-dir", str(directory / "data"),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"one=http://127.0.0.1:{peer}", "--logger", "zap",
            "--log-level", "error",
        ]  # fmt: skip
        super().__init__("etcd", argv, log=directory / "etcd.log", cwd=directory)
        self.wait_ready(self._is_healthy, "etcd is healthy")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:
            return False

    def restart(self) -> Etcd:
        return Etcd(self.directory, self.port)


def put(etcd: Etcd, key: str, value: str) -> None:
    """As somebody else who uses the same etcd."""
    fields = {"key": key, "value": value}
    body = {name: base64.b64encode(text.encode()).decode() for name, text in fields.items()}
    request = urllib.request.Request(f"{etcd.url}/v3/kv/put", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200
