"""The guides, followed literally: every command and program of a page, in an empty folder.

A new HOME, a new environment with the wheel that `make dist` built (for Spark, with this tree's
environment, because its libraries are large). Only the ports are ours: `--free-ports` is added to
`twinlog up`, and the address in the page is replaced by the one that `up` prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

PAGES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "docs" / "zh" / "quick-start.md"]
ADDRESS = "127.0.0.1:9876"
PART = re.compile(
    r"^```(console|python|properties|yaml)\n(.*?)^```|[^\n]*\n", re.MULTILINE | re.DOTALL
)
FILE_NAME = re.compile(r"(?:[Ss]ave (?:this|it|them|these rules) as|保存为) `([^`]+)`")
# Effects that the page promises: text that must have been printed by the time it ends.
EFFECTS = {
    "run-a-pair": ["in sync", "hello", "SEND_OK"],
    "lose-a-master": ["DEGRADED", "\n200\n", "is the master of broker-a now"],
    "move-from-apache": ["10912", "sendMessageThreadPoolNums"],
    "write-a-client": ["SEND_OK", "b'order 9'"],
    "read-with-spark": ["|orders|books| 1000|", '"job": "audit", "ok": true'],
    "watch-it": ["is healthy"],
    "secure-it": ["SEND_OK", "AclException", "\n2\n"],
    "back-it-up": ["backups are sound", "restored"],
    "quick-start": ["SEND_OK", "第一条消息", "is healthy"],
}


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


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the platform wheel and what it requires."""
    wheels = list((ROOT / "dist").glob("*-cp*.whl"))
    assert len(wheels) == 1, f"{wheels}; `make dist` builds it"
    directory = tmp_path_factory.mktemp("guides") / "env"
    venv.create(directory, with_pip=True)
    command = [directory / "bin" / "python", "-m", "pip", "install", "-q", wheels[0]]
    subprocess.run(command, check=True, timeout=600)
    return directory / "bin"


@pytest.fixture
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Reader]:
    page: Path = request.param
    if page.stem == "read-with-spark":
        where = Path(sys.executable).parent
    else:
        where = request.getfixturevalue("programs")
    directory = tmp_path / page.stem
    directory.mkdir()
    reader = Reader(directory, where)
    yield reader
    # Ends what is left when a step failed; after the last step there is nothing to end.
    subprocess.run(
        [where / "twinlog", "down"], env=reader.environment(), check=False,
        capture_output=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "page"), [(page, page) for page in PAGES], ids=[page.stem for page in PAGES],
    indirect=["reader"],
)  # fmt: skip
def test_a_guide_can_be_followed_literally(reader: Reader, page: Path) -> None:
    reader.follow(page.read_text(encoding="utf-8"))
    missing = [text for text in EFFECTS[page.stem] if text not in reader.said]
    assert missing == [], reader.said
    assert "Traceback" not in reader.said
    left = reader.directory / "home" / ".twinlog"
    assert not left.exists() or list(left.iterdir()) == []
