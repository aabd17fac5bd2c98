"""A reader of a page who types what it says, in an empty folder and with a new HOME.

Only the ports are ours: `--free-ports` is added to `twinlog up`, and the address in the page is
replaced by the one that `up` prints.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

ADDRESS = "127.0.0.1:9876"
PART = re.compile(
    r"^```(console|python|properties|yaml)\n(.*?)^```|[^\n]*\n", re.MULTILINE | re.DOTALL
)
FILE_NAME = re.compile(r"(?:[Ss]ave (?:this|it|them|these rules) as|保存为) `([^`]+)`")


@dataclass(slots=True)
class Reader:
    """Types what a page says; remembers exports and the address of the cluster."""

    directory: Path
    programs: Path
    exports: list[str] = field(default_factory=list)
    address: str = ADDRESS
    said: str = ""

    def follow(self, page: str) -> None:
        file_name = ""
        for match in PART.finditer(page):
            kind, text = match.groups()
            if kind is None:
                found = FILE_NAME.search(match.group())
                file_name = found.group(1) if found else file_name
            elif kind == "console":
                for line in text.splitlines():
                    self.type(line.removeprefix("$ "))
            else:
                self.save(file_name, text)

    def save(self, name: str, text: str) -> None:
        assert name, f"the page does not say where to save:\n{text}"
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(ADDRESS, self.address), encoding="utf-8")

    def type(self, line: str) -> None:
        if line.startswith("make "):  # Of a clone; the wheel is installed here.
            return
        command, _, code = line.partition("   # exit ")
        command = command.replace(ADDRESS, self.address)
        command = command.replace("twinlog up", "twinlog up --free-ports --no-console")
        done = subprocess.run(
            ["bash", "-c", "\n".join([*self.exports, "set -o pipefail", command])],
            cwd=self.directory, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == int(code or 0), f"{line}\n{done.stdout}"
        self.said += done.stdout
        if command.startswith("export "):
            self.exports.append(command)
        if found := re.search(r"NAMESRV_ADDR=(\S+)", done.stdout):
            self.address = found.group(1)

    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        return {**kept, "PATH": path, "HOME": str(home), "LC_ALL": "C.UTF-8"}

    def clean_up(self) -> None:
        """Ends what is left when a step failed; after the last step there is nothing to end."""
        subprocess.run(
            [self.programs / "twinlog", "down"], env=self.environment(), check=False,
            capture_output=True, timeout=60,
        )  # fmt: skip

    def check(self, page: Path, effects: list[str]) -> None:
        """Follow it; all of `effects` was printed, and nothing is left."""
        self.follow(page.read_text(encoding="utf-8"))
        missing = [text for text in effects if text not in self.said]
        assert missing == [], self.said
        assert "Traceback" not in self.said
        left = self.directory / "home" / ".twinlog"
        assert not left.exists() or list(left.iterdir()) == []
