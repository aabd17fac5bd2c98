"""Every program in docs/CLIENT.md runs, and every public name is in it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import twinlog.client
from twinlog.client import errors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "CLIENT.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_program_runs(cluster: Any, tmp_path: Path, number: int) -> None:
    program = tmp_path / "example.py"
    program.write_text(PROGRAMS[number].replace("127.0.0.1:9876", cluster.name_server))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


BOTH_WAYS = """
import asyncio, sys
if sys.argv[2] == "without":
    sys.modules["uvloop"] = None  # An import fails as if it was not installed.
    factory = None
else:
    import uvloop
    factory = uvloop.new_event_loop
from twinlog.client import ConsumeFrom, Message, Producer, PushConsumer


async def main():
    seen, done = set(), asyncio.Event()

    async def handler(message):
        seen.add(message.body)
        if len(seen) == 50:
            done.set()

    topic = f"loops-{sys.argv[2]}"
    async with (
        Producer("p", name_server=sys.argv[1], linger_ms=1) as producer,
        PushConsumer(topic, name_server=sys.argv[1], consume_from=ConsumeFrom.FIRST_OFFSET) as c,
    ):
        await producer.send_many(Message(topic, b"%d" % n) for n in range(50))
        await c.subscribe(topic, "*", handler)
        await asyncio.wait_for(done.wait(), 30)
    print(type(asyncio.get_running_loop()).__module__.partition(".")[0])


with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize(("way", "loop"), [("without", "asyncio"), ("with", "uvloop")])
def test_with_and_without_uvloop(cluster: Any, way: str, loop: str) -> None:
    command = [sys.executable, "-W", "error", "-c", BOTH_WAYS, cluster.name_server, way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, loop), done.stderr


def test_the_table_of_errors_is_that_of_the_code() -> None:
    text = PAGE.read_text()
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.ClientError):
            first = (inspect.getdoc(found) or "").splitlines()[0]
            retriable = "yes" if found.retriable else "no"
            assert f"| `{name}` | {found.outcome} | {retriable} | {first} |" in text


def test_every_program_is_typed(tmp_path: Path) -> None:
    """What a user copies passes the strictest check that users run."""
    for number, program in enumerate(PROGRAMS):
        (tmp_path / f"sample_{number}.py").write_text(program)
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir",
         str(tmp_path / "cache"), *map(str, sorted(tmp_path.glob("sample_*.py")))],
        capture_output=True, text=True, timeout=300, cwd=PAGE.parents[1],
        env={**os.environ, "MYPYPATH": str(PAGE.parents[1] / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_every_public_name_is_explained() -> None:
    text = PAGE.read_text()
    missing = [name for name in twinlog.client.__all__ if not re.search(rf"\b{name}\b", text)]
    assert set(missing) <= {"ReceivedMessage", "SendReceipt", "SendStatus", "MessageQueue"}
