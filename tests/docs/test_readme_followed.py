"""The README's first ten minutes, followed to the letter by a newcomer.

A clean clone in an empty directory, a fresh HOME, no cache of ours; every command and program of
the section comes out of the README and runs in the order in which it stands there. Only the ports
are ours: `--free-ports` is added, and the address is replaced by the one that `up` prints.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^## The first ten minutes\n(.*?)^## ", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:9876"
# What a shell of ours would pass on and a newcomer's does not have.
OURS = ("VIRTUAL_ENV", "PYTHONPATH", "NAMESRV_ADDR", "JAVA_TOOL_OPTIONS", "XDG_CACHE_HOME")


@dataclass(slots=True)
class Newcomer:
    """A shell that remembers: commands run one by one, exports and address stay."""

    directory: Path
    home: Path
    exports: list[str] = field(default_factory=list)
    address: str = ADDRESS

    def type(self, command: str) -> str:
        command = command.replace(ADDRESS, self.address)
        script = "\n".join(["set -e", *self.exports, command])
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.directory, env=self._environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        export = re.search(r"\bexport .*", re.sub(r"\s+#.*", "", command))
        if export:
            self.exports.append(export.group())
        return done.stdout

    def run_program(self, source: str) -> str:
        path = self.home / "first.py"
        path.write_text(source.replace(ADDRESS, self.address))
        return self.type(f"python {path}")

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in OURS}
        paths = [path for path in kept["PATH"].split(os.pathsep) if ".venv" not in path]
        return {**kept, "PATH": os.pathsep.join(paths), "HOME": str(self.home)}


def blocks() -> list[tuple[str, str]]:
    section = SECTION.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert section is not None, "the README has no section of that name"
    return BLOCK.findall(section.group(1))


def console_commands(block: str) -> list[str]:
    return [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]


def test_the_section_can_be_followed() -> None:
    kinds = [kind for kind, _ in blocks()]
    commands = [
        line for kind, text in blocks() if kind == "console" for line in console_commands(text)
    ]
    assert "python" in kinds
    assert commands[0].startswith("make setup")
    assert any(line.startswith("twinlog up") for line in commands)
    assert commands[-1].startswith("twinlog down --purge")


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_a_newcomer_gets_through_the_first_ten_minutes(tmp_path: Path) -> None:
    home, clone = tmp_path / "home", tmp_path / "twinlog"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    newcomer = Newcomer(clone, home)
    said = ""
    try:
        for kind, text in blocks():
            if kind == "python":
                said += newcomer.run_program(text)
                continue
            for command in console_commands(text):
                said += follow(newcomer, command)
    finally:
        # Ends what is left if a step failed; after the last step there is nothing to end.
        newcomer.type("twinlog down || true")
    assert "SEND_OK" in said
    assert "b'hello'" in said
    assert '"messages": 1' in said
    assert list((home / ".twinlog").iterdir()) == []
    changed = subprocess.run(
        ["git", "status", "--short"], cwd=clone, check=True, capture_output=True, text=True
    ).stdout
    assert changed == ""


def follow(newcomer: Newcomer, command: str) -> str:
    if not command.startswith("twinlog up"):
        return newcomer.type(command)
    said = newcomer.type(command.replace("twinlog up", "twinlog up --free-ports"))
    match = re.search(r"NAMESRV_ADDR=(\S+)", said)
    assert match is not None, said
    newcomer.address = match.group(1)
    return said
