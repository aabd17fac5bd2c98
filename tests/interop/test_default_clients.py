"""Clients with their defaults ask for routes every 30 s. A controlled group serves them on: a
master that a supervisor starts again passes their sends to the new one, and a planned switch fails
no call.

`TWINLOG_SWITCHES=100` switches more often.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interop.foreign import cpp, javascript, running
from interop.java_story import JAVA_DEFAULTS
from support.failover_group import TOPIC, Group, first_send, read_all, running_group, switch
from support.java_driver import Driver
from support.processes import wait_until
from twinlog.client import Producer

SWITCHES = int(os.environ.get("TWINLOG_SWITCHES", "8"))
MANY = 1_000_000
# The clients wait 3 s for an answer, and ask for a route after 30 s at the earliest.
ROUTE_S = 25
Events = Callable[[str], list[dict[str, Any]]]


@contextmanager
def sending(client: str, address: str, java: Driver, directory: Path) -> Iterator[Events]:
    """A client that sends one message after the other; what it has reported, by event."""
    if client == "java":
        job = java.start(
            "send", namesrv=address, topic=TOPIC, count=MANY, prefix="m", pauseMs=10,
            timeoutMs=3000, **JAVA_DEFAULTS,
        )  # fmt: skip
        try:
            yield job.of
        finally:
            job.stop()
        return
    start = {"cpp": cpp, "javascript": javascript}[client]
    words = ["send", TOPIC, "sync", str(MANY), "m", "pause=10", "timeout=3000"]
    with running(start, directory / f"{client}.log", address, *words) as program:
        try:
            yield program.of
        finally:
            program.popen.kill()


def acknowledged(events: Events) -> list[bytes]:
    good = ("SEND_OK", "OK")
    return [f"m-{event['n']}:".encode() for event in events("sent") if event["status"] in good]


def go_on(events: Events, count: int = 20, *, within_s: float = 60) -> None:
    wanted = len(acknowledged(events)) + count
    wait_until(
        lambda: len(acknowledged(events)) >= wanted, f"{count} more are acknowledged",
        deadline_s=within_s,
    )  # fmt: skip


async def make_topic(group: Group) -> None:
    """ali-ons makes none itself."""
    async with Producer("first", name_server=group.namesrv.address) as producer:
        await first_send(producer)
    group.wait_in_sync()


@pytest.mark.parametrize("client", ["java", "cpp", "javascript"])
async def test_a_killed_master_that_is_started_again_passes_sends_on(
    tmp_path: Path, java: Driver, client: str
) -> None:
    with running_group(tmp_path, 2) as group:
        await make_topic(group)
        address = group.namesrv.address
        with sending(client, address, java, tmp_path) as events:
            go_on(events)
            master = group.master
            master.kill()
            group.restart(master)
            go_on(events, within_s=ROUTE_S)
            group.wait_in_sync()
            go_on(events)
            wanted = set(acknowledged(events))
        assert wanted - set(await read_all(address, wanted)) == set()


async def test_planned_switches_fail_no_call_of_a_default_client(
    tmp_path: Path, java: Driver
) -> None:
    with running_group(tmp_path, 2) as group:
        await make_topic(group)
        address = group.namesrv.address
        with sending("java", address, java, tmp_path) as events:
            go_on(events)
            for _ in range(SWITCHES):
                before = group.epoch
                await switch(group)
                assert group.epoch > before
                go_on(events)
                group.wait_in_sync()
            assert events("failed") == []
            wanted = set(acknowledged(events))
        assert {event["status"] for event in events("sent")} == {"SEND_OK"}
        assert wanted - set(await read_all(address, wanted)) == set()
