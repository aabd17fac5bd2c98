"""The guides, followed literally: every command and program of a page, in an empty folder.

A new HOME, a new environment with the wheel that `make dist` built (for Spark, with this tree's
environment, because its libraries are large).
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.page_reader import Reader

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

PAGES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "docs" / "zh" / "quick-start.md"]
# Effects that the page promises: text that must have been printed by the time it ends.
EFFECTS = {
    "run-a-pair": ["in sync", "hello", "SEND_OK"],
    "lose-a-master": ["DEGRADED", "\n200\n", "is the master of broker-a now"],
    "move-from-apache": ["10912", "sendMessageThreadPoolNums"],
    "write-a-client": ["SEND_OK", "b'order 9'"],
    "read-with-spark": ["|orders|books| 1000|", '"job": "audit", "ok": true'],
    "watch-it": ["is healthy"],
    "secure-it": ["SEND_OK", "AclException", "\n2\n"],
    "back-it-up": [
        "backups are sound",
        "restored",
        ": sound",
        "fit for an upgrade",
        "in sync after",
    ],
    "quick-start": ["SEND_OK", "第一条消息", "is healthy"],
}


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
    reader.clean_up()


@pytest.mark.parametrize(
    ("reader", "page"), [(page, page) for page in PAGES], ids=[page.stem for page in PAGES],
    indirect=["reader"],
)  # fmt: skip
def test_a_guide_can_be_followed_literally(reader: Reader, page: Path) -> None:
    reader.check(page, EFFECTS[page.stem])
