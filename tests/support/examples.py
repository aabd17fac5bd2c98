"""The programs of `examples/` as processes against a cluster of any make, and what they must do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from support.command_line import Result
from support.processes import free_broker_port, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEADLINE_S = 90.0


class Program:
    """One of the programs, with what it has printed so far."""

    def __init__(self, name: str, words: list[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLES / name), *words], stdout=output,
                stderr=subprocess.STDOUT, env={**os.environ, **environment},
            )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def wait_for(self, *wanted: str) -> None:
        wait_until(
            lambda: set(wanted) <= set(self.lines) or self.process.poll() is not None,
            f"{wanted} is printed", deadline_s=DEADLINE_S,
        )  # fmt: skip
        assert set(wanted) <= set(self.lines), self._log.read_text()

    def end(self, code: int = 0) -> None:
        """As an orchestrator does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == code, self._log.read_text()


Start = Callable[..., Program]


class Place(Protocol):
    """A cluster, of whatever make: where it is, and our command line for it."""

    @property
    def namesrv(self) -> str: ...

    def twinlog(self, *arguments: object) -> Result: ...


@contextmanager
def starter(place: Place, directory: Path) -> Iterator[Start]:
    started: list[Program] = []

    def begin(name: str, *words: str, **environment: str) -> Program:
        log = directory / f"{len(started)}.log"
        where = {"NAMESRV_ADDR": place.namesrv, **environment}
        started.append(Program(name, list(words), log, where))
        return started[-1]

    try:
        yield begin
    finally:
        for program in started:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()


def post(port: int, body: bytes) -> tuple[int, dict[str, str]]:
    url = f"http://127.0.0.1:{port}/orders"
    try:
        with urllib.request.urlopen(url, data=body, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def health(port: int) -> tuple[int, str]:
    """Status and reason; 0 when nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            return answer.status, json.loads(answer.read())["reason"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["reason"]
    except OSError:
        return 0, ""


def is_up(port: int) -> bool:
    return health(port)[0] == 200


def make_topic(place: Place, topic: str, queues: int = 1) -> None:
    """Unless another test has made it: the examples share theirs, and tests come in any order."""
    made = place.twinlog("topic", "create", topic, "-q", queues)
    assert made.code == 0 or f"topic '{topic}' exists" in made.err, made.err


def orders_over_the_web_are_billed(place: Place, start: Start) -> None:
    make_topic(place, "example-orders", 2)
    port = free_broker_port()
    service = start("web_service.py", "--port", str(port))
    wait_until(lambda: is_up(port) or service.process.poll() is not None, "the service serves",
               deadline_s=DEADLINE_S)  # fmt: skip
    assert service.process.poll() is None, service.lines
    consumer = start("order_consumer.py")
    code, answer = post(port, b'{"order": "o-1", "amount": 42}')
    assert (code, answer["status"]) == (202, "SEND_OK")
    assert post(port, b'{"order": "o-2", "amount": 7, "bank": "closed"}')[0] == 202
    code, bad = post(port, b'{"order": "o-3"}')  # Nobody can ever bill it.
    assert code == 202
    assert post(port, b"no json")[0] == 400
    consumer.wait_for("billed o-1 42.00 after 0 retries", "later o-2")
    consumer.wait_for("billed o-2 7.00 after 1 retries")
    assert any(line.startswith(f"never {bad['id']}") for line in consumer.lines)
    wait_until(
        lambda: "example-billing" in place.twinlog("dlq", "list").out,
        "the dead letter is there", deadline_s=DEADLINE_S,
    )  # fmt: skip
    assert "o-3" in place.twinlog("dlq", "show", "example-billing").ok().out
    consumer.end()
    assert consumer.lines[-1] == "ended cleanly"
    # Offsets were committed: the next one sees nothing again.
    again = start("order_consumer.py")
    assert post(port, b'{"order": "o-4", "amount": 1}')[0] == 202
    again.wait_for("billed o-4 1.00 after 0 retries")
    assert not any("o-1" in line for line in again.lines)
    again.end()
    service.end(-signal.SIGTERM)  # uvicorn closes everything and then ends by the signal.
    assert service.lines == []


def messages_and_database_agree(place: Place, start: Start, directory: Path) -> None:
    make_topic(place, "example-paid", 1)
    database = str(directory / "orders.sqlite")
    program = start("transactional_producer.py", "p-1", "p-2", "p-1", ORDERS_DATABASE=database)
    assert program.process.wait(DEADLINE_S) == 0, program.lines
    assert program.lines == ["paid p-1", "paid p-2", "rolled back p-1: it was paid before"]
    consumed = place.twinlog("topic", "consume", "example-paid", "-e", "-o", "json").ok().out
    bodies = [json.loads(line)["body"] for line in consumed.splitlines()]
    assert bodies == ["p-1", "p-2"]


def steps_stay_in_order(place: Place, start: Start) -> None:
    make_topic(place, "example-steps", 4)
    orders = ["a", "b", "c"]
    program = start("ordered_consumer.py", "--produce", *orders)
    program.wait_for(*(f"{order} shipped" for order in orders))
    for order in orders:
        seen = [line.split()[1] for line in program.lines if line.startswith(f"{order} ")]
        assert seen == ["created", "paid", "waits", "packed", "shipped"]
    program.end()
    assert program.lines[-1] == "ended cleanly"


def questions_are_answered(place: Place, start: Start) -> None:
    make_topic(place, "example-rates", 1)
    nobody = start("request_reply.py", "ask", "EUR", "--timeout-ms", "300")
    assert nobody.process.wait(DEADLINE_S) == 1
    server = start("request_reply.py", "serve")
    server.wait_for("serving")
    wait_until(
        lambda: "python" in place.twinlog("group", "clients", "example-rates").out.lower(),
        "the server is a member", deadline_s=DEADLINE_S,
    )  # fmt: skip
    client = start("request_reply.py", "ask", "USD", "XXX", "--timeout-ms", "60000")
    assert client.process.wait(DEADLINE_S) == 0, client.lines
    assert client.lines == ["USD 1.09", "XXX unknown"]
    server.end()
    assert server.lines[-1] == "ended cleanly"
