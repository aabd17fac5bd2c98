"""The programs of `examples/` as processes against a cluster: what arrives is what is asserted."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import examples
from support.command_line import LocalTwins
from support.doc_blocks import blocks_run_by
from support.examples import DEADLINE_S, Start, health, is_up, post, starter
from support.processes import wait_until
from support.twinlog_servers import free_broker_port


@pytest.fixture
def start(cluster: LocalTwins, tmp_path: Path) -> Iterator[Start]:
    with starter(cluster, tmp_path) as begin:
        yield begin


def test_orders_over_the_web_are_billed(cluster: LocalTwins, start: Start) -> None:
    examples.orders_over_the_web_are_billed(cluster, start)


def test_the_commands_of_the_page(cluster: LocalTwins, start: Start) -> None:
    (block,) = blocks_run_by("tests/cli/test_examples.py", "examples/README.md")
    examples.make_topic(cluster, "example-orders", 2)
    port = free_broker_port()
    *programs, ask = (line.replace("8000", str(port)) for line in block.lines)
    words = [shlex.split(line) for line in programs]
    assert [(line[0], line[-1]) for line in words] == [("python", "&")] * 2
    consumer, service = (start(Path(line[1]).name, *line[2:-1]) for line in words)
    wait_until(lambda: is_up(port) or service.process.poll() is not None, "the service serves",
               deadline_s=DEADLINE_S)  # fmt: skip
    done = subprocess.run(["bash", "-c", ask], capture_output=True, check=True, timeout=60)
    assert b"SEND_OK" in done.stdout
    consumer.wait_for("billed o-1 42.00 after 0 retries")
    consumer.end()
    service.end(-signal.SIGTERM)


def test_messages_and_database_agree(cluster: LocalTwins, start: Start, tmp_path: Path) -> None:
    examples.messages_and_database_agree(cluster, start, tmp_path)


def test_steps_stay_in_order(cluster: LocalTwins, start: Start) -> None:
    examples.steps_stay_in_order(cluster, start)


def test_questions_are_answered(cluster: LocalTwins, start: Start) -> None:
    examples.questions_are_answered(cluster, start)


def test_without_a_master_programs_say_so(
    cluster: LocalTwins, start: Start, tmp_path: Path
) -> None:
    """In one line and with an exit code, not with a traceback; and the web service is not well."""
    for topic in ("example-orders", "example-paid", "example-steps", "example-rates"):
        examples.make_topic(cluster, topic)
    port = free_broker_port()
    service = start("web_service.py", "--port", str(port))
    wait_until(lambda: is_up(port) or service.process.poll() is not None, "the service serves",
               deadline_s=DEADLINE_S)  # fmt: skip
    assert post(port, b'{"order": "o-1"}')[0] == 202
    cluster.kill("broker-a-0")
    wait_until(lambda: health(port)[0] == 503, "the service misses its master",
               deadline_s=DEADLINE_S)  # fmt: skip
    assert health(port)[1] == "no master takes messages for topic 'example-orders'"
    code, answer = post(port, b'{"order": "o-2"}')
    assert (code, answer["stored"]) == (503, "no")
    database = str(tmp_path / "orders.sqlite")
    programs = [
        start("transactional_producer.py", "p-9", ORDERS_DATABASE=database),
        start("ordered_consumer.py", "--produce", "z"),
        start("request_reply.py", "ask", "USD", "--timeout-ms", "2000"),
    ]
    for program in programs:
        assert program.process.wait(DEADLINE_S) == 1
        (line,) = program.lines
        assert "master" in line, line
    cluster.mend()
    wait_until(lambda: health(port) == (200, ""), "the service is well again",
               deadline_s=DEADLINE_S)  # fmt: skip
    service.end(-signal.SIGTERM)
