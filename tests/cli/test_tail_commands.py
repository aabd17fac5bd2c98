"""`twinlog ha tail`: what a cut moved aside, shown and sent again, by a real store and cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.command_line import LocalTwins, Result
from support.processes import wait_until
from support.stores import message, running_store, small_config
from twinlog.cli.exit_codes import NOT_FOUND, USAGE
from twinlog.message.names import METADATA_TOPIC

TOPIC = "cut-topic"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store from which five records were cut, over the end of a segment."""

    async def make() -> None:
        async with running_store(small_config(tmp_path)) as store:
            ends = [
                store.put(message(n, topic=topic, size=size)).end_offset
                for n, topic, size in [
                    (0, TOPIC, 100), (1, TOPIC, 100), (2, TOPIC, 30_000), (3, METADATA_TOPIC, 100),
                    (4, TOPIC, 50_000), (5, TOPIC, 10),
                ]
            ]  # fmt: skip
            store.write_pending()
            store.commit_log.truncate_to(ends[0], reason="test")

    asyncio.run(make())
    return tmp_path


def listed(cluster: LocalTwins, store: Path) -> list[dict[str, object]]:
    found = cluster.twinlog("ha", "tail", "list", "--store", store, "-o", "json").ok().json
    assert isinstance(found, list)
    return found


def test_a_cut_is_listed_shown_and_sent_again_once(cluster: LocalTwins, store: Path) -> None:
    [row] = listed(cluster, store)
    assert row["messages"] == 5
    assert row["unreadable_bytes"] == 0
    assert row["topics"] == sorted([TOPIC, METADATA_TOPIC])
    name = str(row["tail"])
    shown = cluster.twinlog("ha", "tail", "show", name, "--store", store, "-o", "json").ok().json
    assert [one["message_id"] for one in shown] == [f"{n:032X}" for n in range(1, 6)]
    assert cluster.twinlog("ha", "tail", "show", name, "--store", store, "--limit", 2).out.endswith(
        "2 of 5 are shown: raise --limit.\n"
    )
    refused = cluster.twinlog("ha", "tail", "resend", name, "--store", store)
    assert (refused.code, "add --yes" in refused.err) == (USAGE, True)
    cluster.twinlog("topic", "create", TOPIC).ok()

    def resend(*words: str) -> Result:
        return cluster.twinlog("ha", "tail", "resend", name, "--store", store, "--yes", *words)

    sent = resend("-o", "json").ok().json
    assert sent["sentence"] == "4 of 5 messages were sent again"
    statuses = [one["status"] for one in sent["rows"]]
    assert statuses == [
        "SEND_OK", "SEND_OK", "not sent: topics, groups and offsets of the broker", "SEND_OK",
        "SEND_OK",
    ]  # fmt: skip
    there = cluster.twinlog("message", "get", f"{4:032X}", "--topic", TOPIC, "-o", "json").ok()
    assert "00000004" in there.out

    def all_are_found() -> bool:
        return resend("-o", "json").json["sentence"] == "0 of 5 messages were sent again"

    wait_until(all_are_found, "the index knows all of them")


def test_what_is_no_record_is_counted_and_the_rest_is_shown(
    cluster: LocalTwins, store: Path
) -> None:
    [row] = listed(cluster, store)
    last = sorted((store / "twinlog" / str(row["tail"])).iterdir())[-1]
    whole = last.read_bytes()
    last.write_bytes(whole[:-3])
    [cut] = listed(cluster, store)
    assert cut["messages"] == 4
    assert int(str(cut["unreadable_bytes"])) > 0
    last.write_bytes(b"\xff" * 1000)
    [damaged] = listed(cluster, store)
    assert (damaged["unreadable_bytes"], int(str(damaged["messages"])) < 4) == (1000, True)


def test_a_store_without_cuts_and_a_name_that_is_none(cluster: LocalTwins, tmp_path: Path) -> None:
    no_store = cluster.twinlog("ha", "tail", "list", "--store", tmp_path)
    assert (no_store.code, no_store.out) == (NOT_FOUND, ""), "not: nothing was cut"
    assert f"{tmp_path}: no store is here" in no_store.err
    (tmp_path / "commitlog").mkdir()
    empty = cluster.twinlog("ha", "tail", "list", "--store", tmp_path)
    assert (empty.code, empty.out) == (0, "nothing was cut\n")
    found = cluster.twinlog("ha", "tail", "show", "cut-1-2", "--store", tmp_path)
    assert (found.code, "no tail 'cut-1-2'" in found.err) == (NOT_FOUND, True)
