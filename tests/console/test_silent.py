"""Servers that hang (SIGSTOP): pages come soon, with what is known and why it is not all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.command_line import process
from support.console import bearer, running_console
from support.failover_group import Group, running_group
from support.processes import Process, free_port, wait_until
from support.twinlog_servers import start_twinlog_broker
from twinlog.client import Message, blocking
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.headers.namesrv import RegisterBrokerRequestHeader
from twinlog.runtime.clock import SystemClock

SOON_S = 3.5
"""Less than any server is waited for elsewhere (5 s), with room for a busy machine."""
PAGES = ["/overview", "/topics", "/topics/known", "/groups", "/groups/readers", "/configuration",
         "/connections", "/dead-letters", "/delayed", "/transactions", "/rules"]  # fmt: skip


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("silent"), 2) as found:
        found.wait_in_sync()
        yield found


@pytest.fixture(scope="module")
def http(group: Group, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory = tmp_path_factory.mktemp("console")
    address = group.namesrv.address
    with blocking.Producer("makers", name_server=address) as producer:
        assert producer.send(Message("known", b"x")).is_acknowledged
    with running_console(directory, address) as (url, token), bearer(url, token) as client:
        client.post("/api/groups", json={"group": "readers"}).raise_for_status()
        wait_until(
            lambda: client.get("/api/replication").json()["groups"][0]["epoch"],
            "the console knows what was decided", deadline_s=60,
        )  # fmt: skip
        yield client


@contextmanager
def stopped(process: Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def comes_soon(http: httpx.Client, path: str) -> str:
    """The page, once it has come soon; a page that always waits for somebody never does."""
    texts: list[str] = []

    def is_soon() -> bool:
        started = time.monotonic()
        texts.append(http.get(path).text)
        return time.monotonic() - started < SOON_S

    wait_until(is_soon, f"{path} comes soon", deadline_s=60)
    return texts[-1]


def when_healthy(http: httpx.Client) -> dict[str, Any]:
    """The picture once all is well: another test may have stopped a server a moment ago."""
    pictures: list[dict[str, Any]] = []

    def is_healthy() -> bool:
        pictures.append(http.get("/api/replication").json())
        return bool(pictures[-1]["is_healthy"])

    wait_until(is_healthy, "all is well", deadline_s=60)
    return pictures[-1]


def test_a_silent_controller_is_said_and_takes_nothing_from_the_page(
    group: Group, http: httpx.Client
) -> None:
    before = when_healthy(http)
    assert before["controller_error"] == ""
    with stopped(group.controller):
        wait_until(
            lambda: http.get("/api/replication").json()["controller_error"], "it is said",
            deadline_s=60,
        )  # fmt: skip
        now = http.get("/api/replication").json()
        assert group.controller.address in now["controller_error"]
        assert not now["is_healthy"]
        assert now["groups"][0]["epoch"] == before["groups"][0]["epoch"]
        assert now["groups"][0]["is_controlled"]
        text = comes_soon(http, "/")
        assert "The controller does not answer: epoch" in text
        assert '<button class="small" disabled' in text
        assert 'action="/do/ha.switch"' not in text
        started = time.monotonic()
        refused = http.post("/api/replication/broker-a/switch", json={})
        assert refused.status_code == 503, refused.text
        assert group.controller.address in refused.json()["error"]
        assert time.monotonic() - started < 30
        doctor = process("doctor", "-n", group.namesrv.address)
        assert f"controller {group.controller.address} does not answer" in doctor.out
        assert "its clock differs" not in doctor.out, "waiting for one is not another's clock"
    wait_until(
        lambda: not http.get("/api/replication").json()["controller_error"], "it answers again",
        deadline_s=60,
    )  # fmt: skip
    assert 'action="/do/ha.switch"' in http.get("/").text


def test_a_silent_name_server_delays_no_page(group: Group, http: httpx.Client) -> None:
    for path in PAGES:  # What is asked once is known afterwards.
        assert http.get(path).status_code == 200, path
    with stopped(group.namesrv):
        wait_until(
            lambda: http.get("/api/replication").json()["error"], "it is said", deadline_s=60
        )
        for path in PAGES:
            text = comes_soon(http, path)
            assert "The name server does not answer" in text, path
            assert group.namesrv.address in text, path
        assert "known" in http.get("/topics").text
        assert http.get("/api/topics/known").json()["total"] == 1
        assert http.get("/api/overview").json()["brokers"] != []
        assert http.get("/api/groups/readers").json()["settings"][0]["retry_max"] == 16
    wait_until(
        lambda: not http.get("/api/replication").json()["error"], "it answers again", deadline_s=60
    )
    assert "The name server does not answer" not in http.get("/topics").text


def test_a_silent_replica_delays_no_page(group: Group, http: httpx.Client) -> None:
    slave = next(broker for broker in group.brokers if broker is not group.master)
    with stopped(slave):
        wait_until(
            lambda: any(
                replica["state"] in ("silent", "gone")
                for replica in http.get("/api/replication").json()["groups"][0]["replicas"]
            ),
            "it is said", deadline_s=60,
        )  # fmt: skip
        for path in PAGES:
            comes_soon(http, path)


def test_a_stale_switch_is_refused(group: Group, http: httpx.Client) -> None:
    """Two operators look at the same master; the second one decides by an old picture."""
    group.wait_in_sync()
    pictures = []

    def is_whole() -> bool:
        """Those who were silent before have come back to the console and to the controller: a
        member that is silent stays in the set for a while, and is none to switch to."""
        picture = http.get("/api/replication").json()
        found = picture["groups"][0]
        pictures.append(found)
        is_known = found["master"] and found["version"] and len(found["in_sync"]) == 2
        return bool(picture["is_healthy"] and is_known)

    wait_until(is_whole, "the console knows the whole group", deadline_s=60)
    old = pictures[-1]
    body = {"version": old["version"]}
    done = http.post("/api/replication/broker-a/switch", json=body)
    assert done.status_code == 200, done.text
    late = http.post("/api/replication/broker-a/switch", json=body)
    assert late.status_code == 409, late.text
    assert "was changed after this page was loaded" in late.json()["error"]
    dry = http.post("/api/replication/broker-a/switch?dry_run=true", json=body)
    assert dry.status_code == 409


def test_a_member_that_is_not_registered_is_shown_and_missed(tmp_path: Path) -> None:
    """The controller hears it, no name server lists it: the page has it, alive and silent."""
    with running_group(tmp_path, 1) as found:
        (tmp_path / "b1").mkdir()
        slave = start_twinlog_broker(
            tmp_path / "b1", namesrv=f"127.0.0.1:{free_port()}", enableControllerMode="true",
            controllerAddr=found.controller.address, brokerId=-1, brokerRole="SYNC_MASTER",
            mappedFileSizeCommitLog=1 << 24,
        )  # fmt: skip
        found.brokers.append(slave)
        found.wait_in_sync()
        address = found.namesrv.address
        with running_console(tmp_path, address) as (url, token), bearer(url, token) as client:

            def states() -> dict[str, str]:
                groups = client.get("/api/replication").json()["groups"]
                return {r["address"]: r["state"] for g in groups for r in g["replicas"]}

            wait_until(lambda: states().get(slave.address) == "ok", "it is shown", deadline_s=60)
            with stopped(slave):
                wait_until(
                    lambda: states().get(slave.address) in ("silent", "gone"), "it is missed",
                    deadline_s=60,
                )  # fmt: skip


async def announced(namesrv: str, broker: str, look: Callable[[], None]) -> None:
    """While `look` looks, a broker that does not exist stands in the route."""
    client = RemotingClient(clock=SystemClock())
    header = RegisterBrokerRequestHeader("a-first", broker, "DefaultCluster", broker, 0, False, 0)
    command = RemotingCommand.request(RequestCode.REGISTER_BROKER, header, b"")
    try:
        assert (await client.invoke(namesrv, command, 30_000)).code == 0
        await asyncio.to_thread(look)
    finally:
        await client.close()


def test_beside_a_dead_broker_the_settings_of_others_are_seen(
    group: Group, http: httpx.Client
) -> None:
    """Last in this module: the console remembers the broker."""
    dead = f"127.0.0.1:{free_port()}"

    def page() -> str:
        answer = http.get("/configuration", params={"broker": dead})
        assert answer.status_code == 200, answer.text
        return answer.text

    def look() -> None:
        # A broker that has just handed over leaves the route for a moment.
        wait_until(
            lambda: all(broker.address in page() for broker in group.brokers), "all are offered",
        )  # fmt: skip
        assert "Not everybody answered" in page()
        wait_until(
            lambda: http.get("/api/configuration").json().get("rows"), "another one is shown",
            deadline_s=60,
        )  # fmt: skip

    asyncio.run(announced(group.namesrv.address, dead, look))
