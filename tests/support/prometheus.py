"""A real Prometheus with our rules, one scrape a second."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from support.command_line import process
from support.processes import Process, free_port, wait_until

FIRES_S = 90.0


def promtool(*words: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["promtool", *words], input=stdin, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


def get(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
        return bytes(answer.read())


class Prometheus(Process):
    """In a directory of its own, on a free port, one scrape a second."""

    def __init__(self, directory: Path, targets: list[str]) -> None:
        directory.mkdir()
        rules = process("generate", "alert-rules", "--for", "0s", "--window", "10s").ok().out
        (directory / "twinlog.rules.yml").write_text(rules)
        exporter = process("generate", "recording-rules").ok().out
        (directory / "exporter.rules.yml").write_text(exporter)
        words = [word for target in targets for word in ("--target", target)]
        config = process("generate", "prometheus", "--interval", "1s", *words).ok().out
        file = directory / "prometheus.yml"
        file.write_text(config)
        promtool("check", "config", str(file))
        self.address = f"127.0.0.1:{free_port()}"
        argv = [
            str(shutil.which("prometheus")), f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={self.address}",
        ]  # fmt: skip
        super().__init__("prometheus", argv, log=directory / "log", cwd=directory)

    def query(self, expression: str) -> list[dict[str, Any]]:
        words = urllib.parse.urlencode({"query": expression})
        data = json.loads(get(self.address, f"/api/v1/query?{words}"))
        found: list[dict[str, Any]] = data["data"]["result"]
        return found

    def firing(self) -> set[str]:
        alerts = json.loads(get(self.address, "/api/v1/alerts"))["data"]["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def wait_firing(self, name: str) -> None:
        wait_until(lambda: name in self.firing(), f"{name} fires", deadline_s=FIRES_S)

    def wait_resolved(self, name: str) -> None:
        wait_until(lambda: name not in self.firing(), f"{name} resolves", deadline_s=FIRES_S)

    def wait_scraped(self, count: int) -> None:
        def all_up() -> bool:
            try:
                return len(self.query('up{job="twinlog"} == 1')) == count
            except OSError:
                return False

        wait_until(all_up, f"Prometheus scrapes all {count}", deadline_s=FIRES_S)

    def wait_quiet(self) -> None:
        wait_until(lambda: not self.firing(), "every alert is resolved", deadline_s=FIRES_S)
