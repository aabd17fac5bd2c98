"""What the pages and the API say and do, on a real pair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import httpx
import psutil
import pytest

from support.command_line import twinlog
from support.console import ConsolePair
from support.processes import wait_until
from twinlog.client import Message, TransactionProducer, TransactionState
from twinlog.console.app import operations
from twinlog.console.live import STREAMS_MAX
from twinlog.console.pages import PAGES

DEADLINE_S = 60.0


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.fixture(scope="module")
def http(pair: ConsolePair) -> httpx.Client:
    return pair.script()


@pytest.fixture(scope="module")
def orders(pair: ConsolePair, http: httpx.Client) -> str:
    http.post("/api/topics", json={"topic": "orders", "read_queues": 2, "write_queues": 2})
    for number in range(10):
        sent = http.post(
            "/api/topics/orders/messages",
            json={"body": json.dumps({"order": number}), "keys": f"o-{number}", "tags": "new"},
        )
        assert sent.json()["details"][0]["status"] == "SEND_OK", sent.text
    return "orders"


@pytest.mark.parametrize("path", [path for path in PAGES if "{" not in path])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_renders(pair: ConsolePair, path: str, language: str) -> None:
    visitor = pair.browser()
    visitor.http.headers["Accept-Language"] = language
    answer = visitor.get(path)
    assert answer.status_code == 200, answer.text
    assert f'<html lang="{"zh-CN" if language == "zh" else "en"}"' in answer.text
    assert answer.text.count("<h1") == 1


def test_looking_is_no_event(pair: ConsolePair, http: httpx.Client, orders: str) -> None:
    """RocketMQ's answer to many a question is an error: nobody is online, there are no rules."""
    http.post("/api/groups", json={"group": "idle"}).raise_for_status()
    visitor = pair.browser()
    for path in (*(path for path in PAGES if "{" not in path), "/groups/idle", "/topics/orders"):
        assert visitor.get(path).status_code == 200
    # What was refused until then is written before this.
    broker = http.get("/api/configuration").json()["broker"]
    for value in ("11000", "10000"):
        change = {"broker": broker, "key": "flushDelayOffsetInterval", "value": value}
        http.post("/api/configuration", json=change).raise_for_status()
        changed = f"changed={{'flushDelayOffsetInterval': '{value}'}}"
        until(lambda said=changed: said in pair.twinlog("events").out)
    refused = [line for line in pair.twinlog("events").out.splitlines() if "-refused" in line]
    assert not [line for line in refused if "CONNECTION_LIST" in line or "ACL" in line]


def test_the_description_has_every_operation(http: httpx.Client) -> None:
    description = http.get("/api/openapi.json").json()
    assert description["openapi"].startswith("3.1")
    for row in operations().rows.values():
        said = description["paths"][f"/api{row.path}"][row.method.lower()]
        assert said["operationId"] == row.name
        names = {parameter["name"] for parameter in said["parameters"]}
        assert {part[1:-1] for part in row.path.split("/") if part.startswith("{")} <= names
    text = json.dumps(description)
    for part in text.split('"$ref": "')[1:]:
        name = part.split('"')[0].rpartition("/")[2]
        assert name in description["components"]["schemas"]


def test_topics_and_groups_are_those_of_the_command_line(
    pair: ConsolePair, http: httpx.Client, orders: str
) -> None:
    said = http.get("/api/topics").json()
    listed = twinlog("topic", "list", "-n", pair.namesrv, "-o", "json").json
    assert {row["name"] for row in said["topics"]} == {row["topic"] for row in listed}
    shown = twinlog("topic", "show", orders, "-n", pair.namesrv, "-o", "json").json
    assert http.get("/api/topics/orders").json()["total"] == shown["messages"] >= 10


def test_a_time_is_milliseconds_or_iso(http: httpx.Client, orders: str) -> None:
    """Without a zone it is in UTC, as a page without JavaScript sends it."""
    far = {"by": "time", "topic": orders, "limit": 500}
    total = http.get(f"/api/topics/{orders}").json()["total"]
    for begin in ("2020-01-01T00:00", "2020-01-01T08:00:00+08:00", "2020-01-01T00:00:00.000Z"):
        found = http.get("/api/messages", params={**far, "begin": begin}).json()["messages"]
        assert len(found) == total >= 10, begin
        found = http.get("/api/messages", params={**far, "end": begin}).json()["messages"]
        assert found == [], begin
    assert http.get("/api/messages", params={**far, "begin": "noon"}).status_code == 400
    reset = {"topic": orders, "to": "time"}
    http.post("/api/groups", json={"group": "by-time"})
    plans = [
        http.post("/api/groups/by-time/reset?dry_run=true", json=reset | given).json()
        for given in ({"time": "2020-01-01T00:00:00Z"}, {"time_ms": 1_577_836_800_000})
    ]
    assert plans[0]["rows"] == plans[1]["rows"] != []
    assert http.post("/api/groups/by-time/reset", json=reset).status_code == 400


def test_a_message_is_found_by_key_id_place_and_time(http: httpx.Client, orders: str) -> None:
    by_key = http.get("/api/messages?by=key&topic=orders&key=o-3").json()["messages"]
    assert [row["short"] for row in by_key] == ['{"order": 3}']
    row = by_key[0]
    for query in (
        {"by": "id", "topic": orders, "id": row["message_id"]},
        {"by": "id", "id": row["offset_message_id"]},
        {"by": "offset", "topic": orders, "broker": row["broker"], "queue": row["queue"],
         "offset": row["offset"]},
        {"by": "time", "topic": orders, "begin_ms": row["store_ms"], "end_ms": row["store_ms"]},
    ):  # fmt: skip
        found = http.get("/api/messages", params=query).json()["messages"]
        assert row["message_id"] in [entry["message_id"] for entry in found], query


def test_a_message_shows_its_body_and_its_copies(http: httpx.Client, orders: str) -> None:
    row = http.get("/api/messages?by=key&topic=orders&key=o-4").json()["messages"][0]
    path = f"/api/messages/{row['offset_message_id']}"

    def copies() -> bool:
        return http.get(path).json()["copies"] == {"broker-a:0": True, "broker-a:1": True}

    until(copies)
    assert http.get(path, params={"view": "json"}).json()["shown"] == '{\n  "order": 4\n}'
    assert http.get(path, params={"view": "hex"}).json()["shown"].startswith("00000000  7b 22 6f")
    assert http.get(f"/messages/{row['offset_message_id']}/body").content == b'{"order": 4}'


def test_a_message_is_sent_again(http: httpx.Client, orders: str) -> None:
    row = http.get("/api/messages?by=key&topic=orders&key=o-5").json()["messages"][0]
    path = f"/api/messages/{row['offset_message_id']}/resend"
    assert "orders" in http.post(path, params={"dry_run": "true"}).json()["lines"][0]
    assert len(http.get("/api/messages?by=key&topic=orders&key=o-5").json()["messages"]) == 1
    assert http.post(path).json()["is_complete"]
    found = http.get("/api/messages?by=key&topic=orders&key=o-5").json()["messages"]
    assert [entry["short"] for entry in found] == ['{"order": 5}'] * 2


def test_a_group_is_moved_after_a_dry_run(
    pair: ConsolePair, http: httpx.Client, orders: str
) -> None:
    http.post("/api/groups", json={"group": "movers"})
    body = {"topic": orders, "to": "end"}
    plan = http.post("/api/groups/movers/reset?dry_run=true", json=body).json()
    ends = {(row["broker"], row["queue"]): row["after"] for row in plan["rows"]}
    assert sum(ends.values()) >= 10
    assert http.post("/api/groups/movers/reset", json=body).json()["is_complete"]
    queues = http.get("/api/groups/movers").json()["queues"]
    assert {(q["broker"], q["queue"]): q["consumer_offset"] for q in queues} == ends
    http.post("/api/groups/movers/reset", json={"topic": orders, "to": "start"})
    details = http.get("/api/groups/movers").json()
    assert details["lag"] == sum(ends.values())
    assert http.post("/api/groups/movers/skip", json={"topic": orders}).status_code == 200
    assert http.get("/api/groups/movers").json()["lag"] == 0
    bad = http.post("/api/groups/movers/reset", json={"topic": orders, "to": "elsewhere"})
    assert bad.status_code == 400


def test_what_destroys_asks_first(pair: ConsolePair, http: httpx.Client) -> None:
    http.post("/api/topics", json={"topic": "doomed"})
    visitor = pair.browser()
    asked = visitor.post("topic.delete", topic="doomed")
    assert asked.status_code == 200
    assert 'name="confirmed" value="yes"' in asked.text
    assert http.get("/api/topics/doomed").status_code == 200
    assert visitor.confirmed("topic.delete", topic="doomed").status_code == 303
    assert "topic doomed is deleted" in visitor.get("/topics").text
    assert http.get("/api/topics/doomed").status_code == 404

    def deletions() -> list[dict[str, str]]:
        lines = [line for line in pair.audit if line["resource"] == "topic=doomed"]
        return [line for line in lines if line["request"] == "console topic.delete"]

    wait_until(lambda: bool(deletions()), "the deletion is noted")  # A thread writes it.
    line = deletions()[-1]
    assert line["outcome"] == "done"
    assert line["account"] == "token (admin)"


def test_fewer_read_queues_are_asked_for_when_messages_are_in_the_others(
    pair: ConsolePair, http: httpx.Client
) -> None:
    """Nobody would pull them any more. A change that hides nothing is not asked for."""
    http.post("/api/topics", json={"topic": "shrinking", "read_queues": 4, "write_queues": 4})
    visitor = pair.browser()
    assert visitor.post("topic.create", topic="shrinking", read_queues=3).status_code == 303
    visitor.post("topic.create", topic="shrinking", read_queues=4)

    def counts_of_the_others() -> list[int]:
        """A message goes to any queue; those above the first two are looked at."""
        http.post("/api/topics/shrinking/messages", json={"body": "x"}).raise_for_status()
        queues = http.get("/api/topics/shrinking").json()["queues"]
        counts = [q["max_offset"] - q["min_offset"] for q in queues if q["queue"] >= 2]
        return counts if all(counts) else []

    counts = until(counts_of_the_others)
    asked = visitor.post("topic.create", topic="shrinking", read_queues=2)
    assert asked.status_code == 200
    assert f"{sum(counts)} messages in 2 queues can no longer be read." in asked.text
    shape = http.get("/api/topics/shrinking").json()["configs"]
    assert {row["read_queues"] for row in shape} == {4}
    body = {"topic": "shrinking", "read_queues": 2}
    dry = http.post("/api/topics", json=body, params={"dry_run": "true"}).json()
    assert len(dry["lines"]) == 2
    done = visitor.confirmed("topic.create", topic="shrinking", read_queues=2)
    assert done.status_code == 303
    shape = http.get("/api/topics/shrinking").json()["configs"]
    assert {row["read_queues"] for row in shape} == {2}


def test_the_origin_of_each_key_is_said(pair: ConsolePair, http: httpx.Client) -> None:
    def origins(only: str = "") -> dict[str, str]:
        rows = http.get("/api/configuration", params={"only": only}).json()["rows"]
        return {row["key"]: row["origin"] for row in rows}

    broker = http.get("/api/configuration").json()["broker"]
    assert origins()["brokerName"] == "file"
    assert origins()["deleteWhen"] == "default"
    change = {"broker": broker, "key": "deleteWhen", "value": "05"}
    assert http.post("/api/configuration", json=change).status_code == 200
    assert origins("set")["deleteWhen"] == "run time"
    assert "default" not in origins("set").values()
    assert "changed at run time" in pair.browser().get("/configuration", only="set").text


def test_only_live_keys_are_changed(pair: ConsolePair, http: httpx.Client) -> None:
    rows = {row["key"]: row for row in http.get("/api/configuration").json()["rows"]}
    assert rows["fileReservedTime"]["effect"] == "live"
    assert rows["storePathRootDir"]["effect"] == "restart"
    assert rows["storePathRootDir"]["origin"] == "file"
    assert rows["fileReservedTime"]["origin"] == "default"
    change = {"broker": pair.master, "key": "fileReservedTime", "value": "36"}
    assert http.post("/api/configuration", json=change).status_code == 200
    after = http.get("/api/configuration", params={"search": "fileReservedTime"}).json()["rows"]
    assert [(row["value"], row["origin"]) for row in after] == [("36", "run time")]
    path = {**change, "key": "storePathRootDir", "value": "/tmp/elsewhere"}
    assert http.post("/api/configuration", json=path).status_code == 409
    assert http.post("/api/configuration", json={**change, "value": "x"}).status_code == 400


def test_an_event_stream_tells_of_a_stopped_slave_and_why(
    pair: ConsolePair, http: httpx.Client
) -> None:
    """Within two seconds of the stop, and again when it goes on."""
    slave = psutil.Process(pair.pid("broker-a-1"))
    with http.stream("GET", "/live/replication") as stream:
        lines = stream.iter_lines()

        def wait_for(text: str) -> float:
            started = time.monotonic()
            for line in lines:
                if text in line:
                    return time.monotonic() - started
                assert time.monotonic() - started < DEADLINE_S, text
            raise AssertionError("the stream ended")

        wait_for('data-state="ok"')
        slave.send_signal(signal.SIGSTOP)
        try:
            took = wait_for('data-state="silent"')
            wait_for('class="finding problem" data-code=')
        finally:
            slave.send_signal(signal.SIGCONT)
        assert took < 2.0 * 5  # Two seconds on a machine of one's own; see make browser.
    until(lambda: http.get("/api/replication").json()["is_healthy"])
    texts = [event["text"] for event in http.get("/api/replication").json()["events"]]
    assert any("broker-a:1" in text for text in texts)


def test_a_tail_shows_what_comes(http: httpx.Client, orders: str) -> None:
    with http.stream("GET", f"/live/tail/{orders}") as stream:
        lines = stream.iter_lines()
        next(line for line in lines if "o-9" in line)
        http.post("/api/topics/orders/messages", json={"body": "fresh", "keys": "fresh-key"})
        next(line for line in lines if "fresh-key" in line)


def test_a_tail_of_nothing_is_not_asked_for_again(pair: ConsolePair, http: httpx.Client) -> None:
    answer = http.get("/live/tail/no-such-topic")
    assert answer.status_code == 404
    assert "no-such-topic" in answer.text


def test_streams_are_bounded_and_given_back(pair: ConsolePair, http: httpx.Client) -> None:
    """Asked for at the same time, before any of them has sent a word."""
    address = urllib.parse.urlsplit(pair.url)
    heads = {"Host": address.netloc, "Authorization": http.headers["Authorization"]}
    lines = ["GET /live/overview HTTP/1.1", *(f"{key}: {text}" for key, text in heads.items())]
    with contextlib.ExitStack() as stack:
        place = (str(address.hostname), int(address.port or 0))
        peers = [stack.enter_context(socket.create_connection(place)) for _ in range(90)]
        for peer in peers:
            peer.settimeout(DEADLINE_S)
            peer.sendall("\r\n".join([*lines, "", ""]).encode())
        codes = [peer.recv(12).split()[1] for peer in peers]
        assert 0 < codes.count(b"200") <= STREAMS_MAX
        assert codes.count(b"503") == 90 - codes.count(b"200")
        assert http.get("/topics").status_code == 200, "pages are served meanwhile"

    def opens() -> bool:
        with http.stream("GET", "/live/overview") as stream:
            return stream.status_code == 200

    until(opens)


def test_transactions_and_delayed_messages_that_wait(
    pair: ConsolePair, http: httpx.Client, orders: str
) -> None:
    async def prepare() -> None:
        async def check(message: Any) -> TransactionState:
            return TransactionState.UNKNOWN

        async with TransactionProducer("bank", check=check, name_server=pair.namesrv) as producer:
            await producer.prepare(Message(orders, b"undecided"))
            done = await producer.prepare(Message(orders, b"decided"))
            await producer.end(done, TransactionState.COMMIT)

    asyncio.run(prepare())
    until(
        lambda: (
            [row["message"]["short"] for row in http.get("/api/transactions").json()["messages"]]
            == ["undecided"]
        )
    )
    row = http.get("/api/transactions").json()["messages"][0]
    assert (row["message"]["topic"], row["producer_group"]) == (orders, "bank")
    http.post("/api/topics/orders/messages", json={"body": "later", "delay_level": 17})
    found = http.get("/api/delayed").json()
    assert [(r["level"], r["delay"], r["waiting"]) for r in found["levels"]] == [(17, "1h", 1)]
    assert [row["short"] for row in found["messages"]] == ["later"]


def test_events_of_the_servers_are_on_the_time_line(http: httpx.Client) -> None:
    def told() -> bool:
        events = http.get("/api/replication").json()["events"]
        return any(event["source"] and "broker-started" in event["text"] for event in events)

    until(told)


def test_the_lab_touches_only_its_own(pair: ConsolePair, http: httpx.Client) -> None:
    names = {node["name"]: node for node in http.get("/api/lab").json()["nodes"]}
    assert set(names) == {"namesrv", "broker-a-0", "broker-a-1"}
    assert http.post("/api/lab/console/kill").status_code == 404
    assert http.post("/api/lab/other/kill").status_code == 404
    assert http.post("/api/lab/broker-a-1/start").status_code == 409


def test_a_killed_master_is_said_and_returns(pair: ConsolePair, http: httpx.Client) -> None:
    """Last in this module."""
    assert http.post("/api/lab/broker-a-0/kill").status_code == 200

    def codes() -> set[str]:
        groups = http.get("/api/replication").json()["groups"]
        return {finding["code"] for group in groups for finding in group["findings"]}

    until(lambda: codes() & {"no_master", "master_down"})
    group = http.get("/api/replication").json()["groups"][0]
    states = {replica["name"]: replica["state"] for replica in group["replicas"]}
    assert states["broker-a:0"] in ("gone", "silent")
    assert all(finding["next_step"] for finding in group["findings"])
    assert pair.browser().get("/overview").status_code == 200
    assert http.post("/api/lab/broker-a-0/start").status_code == 200
    until(lambda: http.get("/api/replication").json()["is_healthy"])
