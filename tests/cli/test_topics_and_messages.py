"""`twinlog topic|message|dlq|context` against a real cluster, in every form of output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from support.command_line import LocalTwins, Result, twinlog
from support.processes import wait_until


@pytest.fixture(scope="module")
def orders(cluster: LocalTwins) -> str:
    """A topic with two messages."""
    cluster.twinlog("topic", "create", "orders", "-q", "4").ok()
    cluster.twinlog("topic", "produce", "orders", "--tag", "TagA", "--key", "o-1", stdin=b"hi\n")
    cluster.twinlog("topic", "produce", "orders", "two", "--tag", "TagB", "-p", "colour=red").ok()
    return "orders"


def test_create_says_where_and_how(cluster: LocalTwins) -> None:
    made = cluster.twinlog("topic", "create", "made", "-q", "3", "--perm", "r").ok()
    assert made.rows[0] == ["TOPIC", "BROKER", "READ QUEUES", "WRITE QUEUES", "PERM"]
    assert made.rows[1] == ["made", cluster.master, "3", "3", "r"]
    again = cluster.twinlog("topic", "create", "made")
    assert (again.code, again.out) == (1, "")
    assert "exists; change it with: twinlog topic update made" in again.err
    assert cluster.twinlog("topic", "create", "made", "--if-not-exists").code == 0


def test_update_changes_what_is_given_and_keeps_the_rest(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "changed", "-q", "4").ok()
    cluster.twinlog("topic", "update", "changed", "--perm", "r").ok()
    shown = cluster.twinlog("topic", "show", "changed", "-o", "json").ok().json
    assert (shown["perm"], shown["read_queues"], shown["write_queues"]) == ("r", 4, 4)
    nothing = cluster.twinlog("topic", "update", "changed")
    assert nothing.code == 2
    assert "nothing to change" in nothing.err


def test_list_in_every_form(cluster: LocalTwins, orders: str) -> None:
    table = cluster.twinlog("topic", "list").ok()
    assert table.out.splitlines()[0] == "TOPIC"
    assert orders in table.out.splitlines()
    assert "TBW102" not in table.out
    wide = cluster.twinlog("topic", "list", "-o", "wide").ok()
    assert wide.rows[0] == ["TOPIC", "KIND", "READ QUEUES", "WRITE QUEUES", "PERM", "BROKERS"]
    assert [orders, "user", "4", "4", "rw", "broker-a"] in wide.rows
    assert orders in cluster.twinlog("topic", "list", "-o", "name").ok().out.split()
    rows = cluster.twinlog("topic", "list", "-o", "json").ok().json
    expected = {"topic": orders, "kind": "user", "read_queues": 4, "write_queues": 4, "perm": "rw",
                "brokers": ["broker-a"]}  # fmt: skip
    assert expected in rows
    assert yaml.safe_load(cluster.twinlog("topic", "list", "-o", "yaml").ok().out) == rows
    assert "TBW102" in cluster.twinlog("topic", "list", "--all").ok().out


def test_show_has_settings_then_queues(cluster: LocalTwins, orders: str) -> None:
    shown = cluster.twinlog("topic", "show", orders).ok()
    assert shown.rows[0] == ["topic", "orders"]
    heads = ["BROKER", "QUEUE", "MIN OFFSET", "MAX OFFSET", "MESSAGES", "LAST UPDATE"]
    assert heads in shown.rows
    data = cluster.twinlog("topic", "show", orders, "-o", "json").ok().json
    assert data["messages"] == 2
    assert [queue["queue"] for queue in data["queues"]] == [0, 1, 2, 3]


def test_route(cluster: LocalTwins, orders: str) -> None:
    def routes() -> list[dict[str, object]]:
        found: list[dict[str, object]] = (
            cluster.twinlog("topic", "route", orders, "-o", "json").ok().json
        )
        return found

    (route,) = routes()
    assert route["master"] == cluster.master
    assert route["slaves"] == [cluster.address("broker-a-1")]


def test_produce_reports_each_message(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "lines", "-q", "1").ok()
    sent = cluster.twinlog("topic", "produce", "lines", stdin=b"a\n\nb\r\nc").ok()
    assert sent.rows[0] == ["STATUS", "MESSAGE ID", "BROKER", "QUEUE", "OFFSET"]
    assert [row[0] for row in sent.rows[1:]] == ["SEND_OK"] * 3
    assert [row[-1] for row in sent.rows[1:]] == ["0", "1", "2"]
    whole = cluster.twinlog("topic", "produce", "lines", "--whole", "-q", stdin=b"d\ne")
    assert (whole.code, whole.out) == (0, "")
    bodies = cluster.twinlog("topic", "consume", "lines", "-e", "--body").ok().out
    assert bodies == "a\nb\nc\nd\ne\n"


def test_json_lines_go_out_and_in_again(cluster: LocalTwins, orders: str, tmp_path: Path) -> None:
    lines = cluster.twinlog("topic", "consume", orders, "-o", "start", "-e", "--json").ok().out
    messages = [json.loads(line) for line in lines.splitlines()]
    assert sorted(message["body"] for message in messages) == ["hi", "two"]
    first = next(message for message in messages if message["body"] == "hi")
    assert (first["tags"], first["keys"]) == ("TagA", ["o-1"])
    file = tmp_path / "messages.jsonl"
    file.write_text(lines)
    cluster.twinlog("topic", "create", "copies", "-q", "1").ok()
    cluster.twinlog("topic", "produce", "copies", "-f", file, "--json").ok()
    copies = cluster.twinlog("topic", "consume", "copies", "-e", "-o", "json").ok().out
    again = [json.loads(line) for line in copies.splitlines()]
    assert sorted(m["body"] for m in again) == ["hi", "two"]
    red = next(message for message in again if message["body"] == "two")
    assert red["properties"]["colour"] == "red"


def test_consume_from_places_and_with_filters(cluster: LocalTwins, orders: str) -> None:
    def bodies(*options: str) -> list[str]:
        text = cluster.twinlog("topic", "consume", orders, "-e", "--body", *options).ok().out
        return sorted(text.split())

    assert bodies("--tag", "TagA") == ["hi"]
    assert bodies("-o", "end") == []
    assert bodies("-o", "10m") == ["hi", "two"]
    assert bodies("-o", "-5") == ["hi", "two"]
    assert bodies("-c", "1") in (["hi"], ["two"])
    shown = cluster.twinlog("topic", "consume", orders, "-e", "-f", "{tags}:{body}").ok().out
    assert sorted(shown.split()) == ["TagA:hi", "TagB:two"]
    assert "the fields are: " in cluster.twinlog("topic", "consume", orders, "-e", "-f", "{x}").err


def test_message_by_id_key_place_and_time(cluster: LocalTwins, orders: str) -> None:
    found = cluster.twinlog("message", "query", orders, "--key", "o-1").ok()
    assert found.rows[0] == ["STORED", "BROKER", "QUEUE", "OFFSET", "MESSAGE ID", "TAGS", "KEYS",
                             "BODY"]  # fmt: skip
    (row,) = cluster.twinlog("message", "query", orders, "--key", "o-1", "-o", "json").ok().json
    by_id = cluster.twinlog("message", "get", row["message_id"], "--topic", orders, "-o", "json")
    assert by_id.ok().json["body"] == "hi"
    by_offset_id = cluster.twinlog("message", "get", row["offset_message_id"]).ok()
    assert ["topic", "orders"] in by_offset_id.rows
    assert ["body", "hi"] in by_offset_id.rows
    queue = f"{row['broker']}/{row['queue']}"
    at = cluster.twinlog("message", "query", orders, "--queue", queue, "--offset", row["offset"])
    assert row["message_id"] in at.ok().out
    recent = cluster.twinlog("message", "query", orders, "--since", "10m", "-o", "name").ok()
    assert row["message_id"] in recent.out.split()
    old = cluster.twinlog("message", "query", orders, "--since", "20m", "--until", "15m")
    assert old.code == 3


def test_resend_to_the_same_topic(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "twice", "-q", "1").ok()
    cluster.twinlog("topic", "produce", "twice", "again", "--key", "k").ok()
    (row,) = cluster.twinlog("message", "query", "twice", "--key", "k", "-o", "json").ok().json
    refused = cluster.twinlog("message", "resend", row["message_id"], "--topic", "twice")
    assert refused.code == 2
    assert "add --yes" in refused.err
    sent = cluster.twinlog("message", "resend", row["message_id"], "--topic", "twice", "--yes")
    assert "SEND_OK" in sent.ok().out
    bodies = cluster.twinlog("topic", "consume", "twice", "-e", "-f", "{keys} {body}").ok().out
    assert bodies == "k again\nk again\n"


def test_dead_letters_are_listed_and_given_back(cluster: LocalTwins) -> None:
    """A letter is put where a broker would put it: after the last retry."""
    cluster.twinlog("group", "create", "givers").ok()
    for name in ("%DLQ%givers", "%RETRY%givers"):
        cluster.twinlog("topic", "create", name, "-q", "1").ok()
    cluster.twinlog("topic", "produce", "%DLQ%givers", "lost").ok()
    listed = cluster.twinlog("dlq", "list").ok()
    assert listed.rows[0] == ["GROUP", "MESSAGES", "LAST"]
    assert listed.rows[1][:2] == ["givers", "1"]
    (row,) = cluster.twinlog("dlq", "show", "givers", "-o", "json").ok().json
    assert row["body"] == "lost"
    assert json.loads(cluster.twinlog("dlq", "export", "givers").ok().out)["body"] == "lost"
    resent = cluster.twinlog("dlq", "resend", "givers", "--id", row["message_id"], "--yes").ok()
    assert "SEND_OK" in resent.out
    bodies = cluster.twinlog("topic", "consume", "%RETRY%givers", "-e", "--body").ok().out
    assert bodies == "lost\n"
    assert cluster.twinlog("dlq", "resend", "givers", "--id", "0" * 32, "--yes").code == 3


def test_delete_needs_a_yes_and_a_name_that_exists(cluster: LocalTwins) -> None:
    cluster.twinlog("topic", "create", "doomed").ok()
    asked = cluster.twinlog("topic", "delete", "doomed")
    assert asked.code == 2
    assert "add --yes" in asked.err
    gone = cluster.twinlog("topic", "delete", "doomed", "-y").ok()
    assert gone.rows[1] == ["doomed", cluster.master]
    wait_until(lambda: "doomed" not in cluster.twinlog("topic", "list").out, "the topic is gone")
    assert cluster.twinlog("topic", "delete", "doomed", "-y").code == 3


def test_contexts_say_where_the_cluster_is(cluster: LocalTwins, own_environment: Path) -> None:
    assert "no contexts" in twinlog("context", "list").ok().out
    twinlog("context", "add", "here", "--namesrv", cluster.namesrv, "--access-key", "me",
            "--secret-key", "hidden", "--use").ok()  # fmt: skip
    shown = twinlog("context", "list").ok()
    assert shown.rows[1] == ["here", "yes", cluster.namesrv, "me", "no"]
    assert "hidden" not in shown.out
    assert (own_environment / "contexts.json").stat().st_mode & 0o077 == 0
    assert twinlog("topic", "list", "-o", "name").code == 0
    assert twinlog("--namesrv", "127.0.0.1:1", "topic", "list").code == 4
    wrong: Result = twinlog("topic", "list", "--context", "hare")
    assert (wrong.code, wrong.err) == (3, "twinlog: no context 'hare'; did you mean 'here'?\n")
    twinlog("context", "delete", "here").ok()
    assert twinlog("context", "use", "here").code == 3
