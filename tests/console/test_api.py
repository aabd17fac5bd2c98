"""The API keeps to its own description: answers fit it, and what it forbids is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.console import ConsolePair
from support.doc_blocks import blocks_run_by
from support.json_schema import faults

Described = dict[str, Any]


@pytest.fixture(scope="module")
def http(pair: ConsolePair) -> httpx.Client:
    return pair.script()


@pytest.fixture(scope="module")
def described(http: httpx.Client) -> Described:
    found: Described = http.get("/api/openapi.json").json()
    return found


@pytest.fixture(scope="module")
def orders(http: httpx.Client) -> Iterator[str]:
    http.post("/api/topics", json={"topic": "described", "read_queues": 2, "write_queues": 2})
    http.post("/api/groups", json={"group": "readers"})
    http.post("/api/topics/described/messages", json={"body": "x", "keys": "k"})
    yield "described"
    http.delete("/api/topics/described")
    http.delete("/api/groups/readers")


def operations(described: Described) -> Iterator[tuple[str, str, Described]]:
    for path, methods in described["paths"].items():
        for method, said in methods.items():
            yield method.upper(), path, said


def parameters_in(said: Described, place: str) -> list[Described]:
    return [parameter for parameter in said["parameters"] if parameter["in"] == place]


def answer_schema(said: Described, status: int) -> Described:
    responses = said["responses"]
    found: Described = responses.get(str(status), responses["default"])
    schema: Described = found["content"]["application/json"]["schema"]
    return schema


def test_the_commands_of_the_page(pair: ConsolePair, http: httpx.Client) -> None:
    """A group of the page's name that has read a topic of the page's name."""
    http.post("/api/topics", json={"topic": "orders", "read_queues": 1, "write_queues": 1})
    http.post("/api/topics/orders/messages", json={"body": "x"})
    pair.twinlog("topic", "consume", "orders", "--group", "billing", "-c", 1).ok()
    before = pair.twinlog("group", "progress", "billing", "-o", "json").json
    (block,) = blocks_run_by("tests/console/test_api.py", "docs/CONSOLE.md")
    answers = []
    for line in block.lines:
        done = subprocess.run(
            ["bash", "-c", line.replace("http://127.0.0.1:8082", pair.url)], timeout=60,
            env={**os.environ, "TOKEN": pair.tokens["admin"]}, capture_output=True, check=True,
        )  # fmt: skip
        answers.append(json.loads(done.stdout))
    replication, reset = answers
    assert (replication["is_healthy"], replication["error"]) == (True, "")
    assert reset.get("error", "") == "", reset
    # A dry run changes nothing. Other tests may have put messages into the topic before.
    after = pair.twinlog("group", "progress", "billing", "-o", "json").json
    assert (after["lag"], after["queues"]) == (before["lag"], before["queues"])


def test_every_answer_fits_its_schema(
    http: httpx.Client, described: Described, orders: str
) -> None:
    given = {"topic": orders, "group": "readers"}
    found = http.get("/api/messages", params={"by": "key", "topic": orders, "key": "k"}).json()
    given["id"] = found["messages"][0]["offset_message_id"]
    seen = 0
    for method, path, said in operations(described):
        if method != "GET":
            continue
        queries: list[dict[str, str]] = [{}]
        if path == "/api/messages":
            queries = [{"by": "key", "topic": orders, "key": "k"}, {"by": "time", "topic": orders}]
        for query in queries:
            answer = http.get(path.format(**given), params=query)
            schema = answer_schema(said, answer.status_code)
            assert list(faults(schema, answer.json(), described)) == [], f"{path}: {answer.text}"
            seen += answer.status_code == 200
    assert seen >= 15


def test_a_dry_run_fits_its_schema(http: httpx.Client, described: Described, orders: str) -> None:
    for method, path, body in (
        ("DELETE", f"/api/topics/{orders}", None),
        ("POST", "/api/groups/readers/reset", {"topic": orders, "to": "end"}),
        ("DELETE", "/api/groups/readers", None),
    ):
        answer = http.request(method, path, params={"dry_run": "true"}, json=body)
        assert answer.status_code == 200, answer.text
        generic = re.sub(r"/(described|readers)", r"/{\1}", path)
        generic = generic.replace("{described}", "{topic}").replace("{readers}", "{group}")
        schema = answer_schema(described["paths"][generic][method.lower()], 200)
        assert list(faults(schema, answer.json(), described)) == []
        assert "lines" in answer.json()


@pytest.mark.parametrize("value", ["1", "True", "yes", "0", ""])
def test_a_dry_run_is_not_done_by_mistake(http: httpx.Client, orders: str, value: str) -> None:
    answer = http.delete(f"/api/topics/{orders}", params={"dry_run": value})
    assert answer.status_code == 400
    assert "dry_run" in answer.json()["error"]
    assert http.get(f"/api/topics/{orders}").status_code == 200


def wrong_values(schema: Described) -> Iterator[object]:
    """Values that a schema forbids, as far as it says what it forbids."""
    options = schema.get("anyOf", [schema])
    kinds = {option.get("type") for option in options}
    if "string" not in kinds:
        yield "not-a-number"
    for option in options:
        if "minimum" in option:
            yield option["minimum"] - 1
        if "maximum" in option:
            yield option["maximum"] + 1
        if "enum" in option and "string" not in kinds - {option.get("type")}:
            yield "neither-of-them"


def test_what_the_description_forbids_is_refused(http: httpx.Client, described: Described) -> None:
    tried = 0
    for method, path, said in operations(described):
        if method != "GET" or "lab" in path:
            continue
        where = re.sub(r"\{\w+\}", "x", path)
        for parameter in parameters_in(said, "query"):
            for value in wrong_values(parameter["schema"]):
                answer = http.get(where, params={parameter["name"]: str(value)})
                assert answer.status_code == 400, f"{path} {parameter['name']}={value}"
                tried += 1
        assert http.get(where, params={"no_such": "1"}).status_code == 400
    assert tried > 20


def test_bodies_that_the_description_forbids_are_refused(
    http: httpx.Client, described: Described
) -> None:
    for method, path, said in operations(described):
        if "requestBody" not in said:
            continue
        schema = said["requestBody"]["content"]["application/json"]["schema"]
        where = re.sub(r"\{\w+\}", "x", path)
        assert http.request(method, where, json={"no_such": 1}).status_code == 400, path
        if schema["required"]:
            answer = http.request(method, where, json={})
            assert answer.status_code == 400, path
            assert answer.json()["error"] == f"{schema['required'][0]} is missing"
        for name, kind in schema["properties"].items():
            for value in wrong_values(kind):
                answer = http.request(method, where, json={name: value})
                assert answer.status_code == 400, f"{path} {name}={value}"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/topics", "GET, HEAD, POST"),
        ("PATCH", "/api/topics/x", "DELETE, GET, HEAD"),
        ("TRACE", "/api/overview", "GET, HEAD"),
        ("GET", "/api/groups/x/reset", "POST"),
        ("DELETE", "/topics", "GET, HEAD"),
    ],
)
def test_a_wrong_method_says_which_are_right(
    http: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"] == allowed
    if path.startswith("/api"):
        assert answer.json()["error"]


def test_what_does_not_exist_is_not_changed(http: httpx.Client, orders: str) -> None:
    """A slip of the pen makes no group, and deletes nothing as if it had."""
    for method, path, body in (
        ("POST", "/api/groups/nobody/reset", {"topic": orders, "to": "end"}),
        ("POST", "/api/groups/nobody/skip", {"topic": orders}),
        ("DELETE", "/api/groups/nobody", None),
        ("DELETE", "/api/topics/nothing", None),
        ("GET", "/api/groups/nobody", None),
    ):
        answer = http.request(method, path, json=body)
        assert answer.status_code == 404, f"{path}: {answer.text}"
    names = [row["name"] for row in http.get("/api/groups?kind=all").json()["groups"]]
    assert "nobody" not in names


def test_what_a_broker_refuses_is_a_refusal(http: httpx.Client) -> None:
    answer = http.post("/api/topics", json={"topic": "SCHEDULE_TOPIC_XXXX"})
    assert answer.status_code == 409, answer.text
    assert "SCHEDULE_TOPIC_XXXX" in answer.json()["error"]
