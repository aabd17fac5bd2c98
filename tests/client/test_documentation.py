"""Every program in docs/CLIENT.md runs, and every public name is in it."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import twinlog.client
from twinlog.admin import Admin, topics
from twinlog.client import MessageQueue, blocking, errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "CLIENT.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROGRAMS = PROGRAM.findall(PAGE.read_text())


# What each program leaves in which topic, told by its first topic; and what it prints. None: it
# sends nothing.
NUMBERS = [b"%d" % n for n in range(5000)]
ARRIVES: list[tuple[str, list[bytes], str] | None] = [
    ("orders", [b"one book"], r"SEND_OK [0-9A-F]{32} .*orders.* \d+\n"),
    ("clicks", NUMBERS, ""),
    ("order-steps", [b"created", b"paid", b"shipped"], ""),
    ("orders", [b"order %d" % n for n in range(100)], ""),
    ("orders", [b"one book"], ""),
    ("invoices", [b"invoice %d" % n for n in range(20)], ""),
    None,
    ("events", NUMBERS[:10], ""),
    ("ledger", [b"entry %d" % n for n in range(10)], ""),
    ("carts", [b'{"id":7,"items":["tea"]}'], ""),
    ("payments", [b"42 EUR"], ""),
    ("rpc", [b"hello"], ""),
    ("blocking", [b"one", *[b"more"] * 100], ""),
    ("inventory", [], r"\[.*'inventory'.*\]\nbroker-a \S+ \S+ [\d.]+\n\{\}\n"),
]


def ends(name_server: str, topic: str) -> dict[MessageQueue, int]:
    """The next offset of each queue; none of a topic that is not there yet."""

    async def ask() -> dict[MessageQueue, int]:
        async with Admin(name_server) as admin:
            found = (await topics.topic_stats(admin, topic)).all_or_raise()
        return {entry.queue: entry.max_offset for rows in found.values() for entry in rows}

    try:
        return asyncio.run(ask())
    except errors.TopicNotFoundError:
        return {}


def arrived(
    name_server: str, topic: str, before: dict[MessageQueue, int]
) -> list[tuple[MessageQueue, bytes]]:
    """What stands in the topic's queues from `before` on, as another client reads it."""
    after = ends(name_server, topic)
    found: list[tuple[MessageQueue, bytes]] = []
    wanted = sum(end - before.get(queue, 0) for queue, end in after.items())
    with blocking.PullConsumer("documentation-reader", name_server=name_server) as reader:
        reader.assign(after)
        for queue in after:
            reader.seek(queue, before.get(queue, 0))
        deadline = time.monotonic() + 60
        while len(found) < wanted and time.monotonic() < deadline:
            messages = reader.poll(timeout_ms=5000, max_count=1000)
            found += [(message.queue, message.body) for message in messages]
    return found


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_program_runs(cluster: Any, tmp_path: Path, number: int) -> None:
    """It ends well, prints what it says, and what it sent stands in the log, once, as it was."""
    expected = ARRIVES[number]
    before = ends(cluster.name_server, expected[0]) if expected is not None else {}
    program = tmp_path / "example.py"
    program.write_text(PROGRAMS[number].replace("127.0.0.1:9876", cluster.name_server))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if expected is None:
        assert done.stdout == ""
        return
    topic, bodies, printed = expected
    assert re.fullmatch(printed, done.stdout), done.stdout
    found = arrived(cluster.name_server, topic, before)
    assert sorted(body for _, body in found) == sorted(bodies)
    if topic == "order-steps":  # One sharding key: one queue, in the order of the sends.
        assert [body for _, body in found] == bodies
        assert len({queue for queue, _ in found}) == 1


def test_what_each_program_leaves_is_said() -> None:
    assert len(ARRIVES) == len(PROGRAMS)


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


# What the short pieces of docs/SPARK.md take for granted.
SPARK_NAMES = """\
from pyspark.sql import DataFrame, SparkSession
frame: DataFrame
stream: DataFrame
spark: SparkSession
"""


def test_every_program_is_typed(tmp_path: Path) -> None:
    """What a user copies, from whichever page, passes the strictest check that users run."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    programs = [program for page in pages for program in PROGRAM.findall(page.read_text())]
    assert len(programs) > len(PROGRAMS) + 5
    for number, program in enumerate(programs):
        names = "" if "SparkSession" in program else SPARK_NAMES
        (tmp_path / f"sample_{number}.py").write_text(names + program)
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir",
         str(tmp_path / "cache"), *map(str, sorted(tmp_path.glob("sample_*.py")))],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_every_public_name_is_explained() -> None:
    text = PAGE.read_text()
    missing = [name for name in twinlog.client.__all__ if not re.search(rf"\b{name}\b", text)]
    assert set(missing) <= {"ReceivedMessage", "SendReceipt", "SendStatus", "MessageQueue"}
