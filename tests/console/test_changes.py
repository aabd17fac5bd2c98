"""A change changes what was asked for and nothing else, and never what nobody has seen."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from support.console import ConsolePair
from twinlog.console.app import operations
from twinlog.console.operations import Operation

State = dict[str, Any]


class Kept(NamedTuple):
    """Something that has settings: how it is addressed, made, read, and given other values."""

    path: str
    thing: dict[str, str]
    made_with: dict[str, Any]
    other: dict[str, Any]
    read: Callable[[httpx.Client], State]


def topic_state(http: httpx.Client) -> State:
    found = http.get("/api/topics/kept").json()
    return {key: found[key] for key in ("configs", "version")}


def group_state(http: httpx.Client) -> State:
    found = http.get("/api/groups/kept").json()
    return {key: found[key] for key in ("settings", "version")}


def account_state(http: httpx.Client) -> State:
    rows = http.get("/api/rules").json()["accounts"]
    return {"rows": [row for row in rows if row["access_key"] == "kept-account"]}


KEPT = {
    "topic.create": Kept(
        "/api/topics", {"topic": "kept"},
        {"read_queues": 3, "write_queues": 2, "perm": 4, "order": True},
        {"read_queues": 5, "write_queues": 4, "perm": 6, "order": False}, topic_state,
    ),
    "group.create": Kept(
        "/api/groups", {"group": "kept"}, {"retry_max": 3, "consume_enable": False},
        {"retry_max": 4, "consume_enable": True}, group_state,
    ),
    "rules.put": Kept(
        "/api/rules", {"access_key": "kept-account"},
        {
            "secret_key": "kept-secret", "admin": True, "white_remote_address": "10.0.0.1",
            "default_topic_perm": "SUB", "default_group_perm": "PUB", "topic_perms": "a=PUB",
            "group_perms": "b=SUB",
        },
        {
            "secret_key": "other-secret", "admin": False, "white_remote_address": "10.0.0.2",
            "default_topic_perm": "DENY", "default_group_perm": "DENY", "topic_perms": "c=SUB",
            "group_perms": "d=PUB",
        },
        account_state,
    ),
}  # fmt: skip
# Operations with optional values that change no setting of anything.
NOT_KEPT = {
    "configuration.set": "one key, named with its value",
    "group.reset": "an action: where to, and a time only with `to=time`",
    "ha.switch": "an action: `to` is the one that has most unless given",
    "ha.drain": "an action on one replica",
    "ha.undrain": "an action on one replica",
    "letters.resend": "an action on letters that are named, or on all",
    "message.resend": "a new message",
    "topic.send": "a new message",
}


def optional(row: Operation) -> list[str]:
    fields = msgspec.structs.fields(row.params)
    return [field.name for field in fields if not field.required]


def test_every_change_with_optional_values_is_looked_at() -> None:
    rows = operations().rows.values()
    found = {row.name for row in rows if row.is_change and optional(row)}
    assert found == KEPT.keys() | NOT_KEPT.keys()
    for name, kept in KEPT.items():
        expected = {*optional(operations().rows[name])} - {"version"}
        assert kept.made_with.keys() == kept.other.keys() == expected


CASES = [(name, field) for name, kept in KEPT.items() for field in ("", *kept.made_with)]


@pytest.mark.parametrize(("name", "field"), CASES)
def test_what_is_left_out_stays(guarded: httpx.Client, name: str, field: str) -> None:
    """All values are set, then one of them is changed, and the others are not mentioned."""
    kept = KEPT[name]
    made = guarded.post(kept.path, json={**kept.thing, **kept.made_with})
    assert made.status_code == 200, made.text
    before = kept.read(guarded)
    given = {field: kept.other[field]} if field else {}
    changed = guarded.post(kept.path, json={**kept.thing, **given})
    assert changed.status_code == 200, changed.text
    after = kept.read(guarded)
    if field in ("", "secret_key"):
        assert after == before
        return
    mentioned = guarded.post(kept.path, json={**kept.thing, **kept.made_with, **given})
    assert mentioned.status_code == 200, mentioned.text
    assert after == kept.read(guarded)
    if field != "order":  # The page does not show it, but its version has it.
        assert after != before


def test_a_list_of_permissions_is_emptied_only_when_asked(guarded: httpx.Client) -> None:
    kept = KEPT["rules.put"]
    guarded.post(kept.path, json={**kept.thing, **kept.made_with})
    guarded.post(kept.path, json={**kept.thing, "topic_perms": "-", "white_remote_address": "-"})
    row = account_state(guarded)["rows"][0]
    assert (row["topics"], row["white_address"], row["groups"]) == ({}, "", {"b": "SUB"})


# Two operators


VERSION = re.compile(r'name="version" value="([^"]+)"')
ONCE = re.compile(r'name="once" value="([^"]+)"')


def seen(text: str, form: str) -> tuple[str, str]:
    """The version and the number of one form of a page."""
    part = text.partition(f'action="/do/{form}"')[2].partition("</form>")[0]
    version, once = VERSION.search(part), ONCE.search(part)
    assert version is not None
    assert once is not None
    return version[1], once[1]


def settings(pair: ConsolePair, topic: str) -> tuple[int, int]:
    row = pair.script().get(f"/api/topics/{topic}").json()["configs"][0]
    return row["read_queues"], row["write_queues"]


def test_a_stale_page_of_a_topic_undoes_nothing(pair: ConsolePair) -> None:
    pair.script().post("/api/topics", json={"topic": "shared"}).raise_for_status()
    ann, ben = pair.browser(), pair.browser()
    version, _ = seen(ann.get("/topics/shared").text, "topic.create")
    late, _ = seen(ben.get("/topics/shared").text, "topic.create")
    assert late == version
    first = ann.post("topic.create", topic="shared", read_queues=4, write_queues=4, version=version)
    assert first.status_code == 303, first.text
    second = ben.post("topic.create", topic="shared", read_queues=8, write_queues=2, version=late)
    assert second.status_code == 409
    assert "was changed after this page was loaded" in second.text
    assert "4 read and 4 write queues" in second.text
    assert settings(pair, "shared") == (4, 4)
    again, _ = seen(ben.get("/topics/shared").text, "topic.create")
    done = ben.post("topic.create", topic="shared", read_queues=8, write_queues=2, version=again)
    assert done.status_code == 303
    assert settings(pair, "shared") == (8, 2)


def test_of_many_at_the_same_time_one_wins(pair: ConsolePair) -> None:
    http = pair.script()
    http.post("/api/groups", json={"group": "raced"}).raise_for_status()
    version = http.get("/api/groups/raced").json()["version"]
    answers: dict[int, int] = {}

    def change(number: int) -> None:
        body = {"group": "raced", "retry_max": number, "version": version}
        answers[number] = pair.script().post("/api/groups", json=body).status_code

    threads = [threading.Thread(target=change, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, status in answers.items() if status == 200]
    assert sorted(answers.values()) == [200] + [409] * 7
    assert http.get("/api/groups/raced").json()["settings"][0]["retry_max"] == winners[0]


def test_what_exists_is_not_created_over(pair: ConsolePair) -> None:
    visitor = pair.browser()
    version, _ = seen(visitor.get("/topics").text, "topic.create")
    fields = {"topic": "made-once", "read_queues": 4, "write_queues": 4, "version": version}
    assert visitor.post("topic.create", **fields).status_code == 303
    other = pair.browser().post("topic.create", **{**fields, "read_queues": 16})
    assert other.status_code == 409
    assert "exists already" in other.text
    assert settings(pair, "made-once") == (4, 4)


def test_what_was_deleted_does_not_return(pair: ConsolePair) -> None:
    pair.script().post("/api/topics", json={"topic": "removed"}).raise_for_status()
    visitor = pair.browser()
    version, _ = seen(visitor.get("/topics/removed").text, "topic.create")
    pair.script().delete("/api/topics/removed").raise_for_status()
    late = visitor.post("topic.create", topic="removed", read_queues=4, version=version)
    assert late.status_code == 409
    assert "was deleted after this page was loaded" in late.text


def test_a_stale_value_of_a_key_is_refused(pair: ConsolePair) -> None:
    http = pair.script()
    found = http.get("/api/configuration", params={"search": "longPollingEnable"}).json()
    row = next(row for row in found["rows"] if row["key"] == "longPollingEnable")
    body = {"broker": found["broker"], "key": row["key"], "version": row["version"]}
    try:
        assert http.post("/api/configuration", json={**body, "value": "false"}).status_code == 200
        late = http.post("/api/configuration", json={**body, "value": "false"})
        assert late.status_code == 409
        assert "It is now: 'false'" in late.json()["error"]
    finally:
        del body["version"]
        http.post("/api/configuration", json={**body, "value": "true"}).raise_for_status()


def test_a_stale_account_is_refused(guarded: httpx.Client) -> None:
    kept = KEPT["rules.put"]
    guarded.post(kept.path, json={**kept.thing, **kept.made_with})
    version = account_state(guarded)["rows"][0]["version"]
    change = {**kept.thing, "version": version, "default_topic_perm": "PUB"}
    assert guarded.post(kept.path, json=change).status_code == 200
    late = guarded.post(kept.path, json={**change, "default_topic_perm": "DENY"})
    assert late.status_code == 409
    assert account_state(guarded)["rows"][0]["default_topic"] == "PUB"
    new = {**kept.thing, "version": "new", "secret_key": "another-secret"}
    assert guarded.post(kept.path, json=new).status_code == 409


def test_the_page_changes_an_account_and_keeps_what_it_does_not_show(guarded: httpx.Client) -> None:
    """The secret is not in the page, and yet it is kept; the form knows everything else."""
    kept = KEPT["rules.put"]
    guarded.post(kept.path, json={**kept.thing, **kept.made_with})
    text = guarded.get("/rules", params={"edit": "kept-account"}).text
    form = text.partition('action="/do/rules.put"')[2].partition("</form>")[0]
    assert 'value="kept-account"' in form
    assert 'value="a=PUB"' in form
    assert re.search(r'<option value="true" selected>', form)
    assert "kept-secret" not in text


def test_a_double_click_sends_once(pair: ConsolePair) -> None:
    pair.script().post("/api/topics", json={"topic": "clicked"}).raise_for_status()
    visitor = pair.browser()
    text = visitor.get("/topics/clicked").text
    part = text.partition('action="/do/topic.send"')[2].partition("</form>")[0]
    once = ONCE.search(part)
    assert once is not None
    csrf = visitor.csrf
    data = {"csrf": csrf, "next": "/audit", "once": once[1], "topic": "clicked", "body": "x"}
    statuses: list[int] = []

    def click() -> None:
        with httpx.Client(base_url=pair.url, cookies=visitor.http.cookies, timeout=30) as client:
            statuses.append(client.post("/do/topic.send", data=data).status_code)

    threads = [threading.Thread(target=click) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [303] * 3
    assert pair.script().get("/api/topics/clicked").json()["total"] == 1
    assert "The form was sent twice; it was carried out once." in visitor.get("/audit").text
    assert visitor.http.post("/do/topic.send", data={**data, "body": "y"}).status_code == 303
    assert pair.script().get("/api/topics/clicked").json()["total"] == 2
