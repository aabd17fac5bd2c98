"""Two brokers with one name and id: the route stays with the first, and everybody says so."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.ha_load import ask
from support.processes import process_group, wait_until
from support.twinlog_servers import (
    TWINLOG,
    TwinlogBroker,
    TwinlogNamesrv,
    start_twinlog_broker,
    start_twinlog_namesrv,
)
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode

CONFIG = {"registerNameServerPeriod": 10_000}


def places(namesrv: str) -> dict[int, str]:
    """Id to address of the only broker name."""
    body = ask(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO).body
    table = fastjson.loads(body)["brokerAddrTable"].get("broker-a", {})
    return {int(key): value for key, value in table.get("brokerAddrs", {}).items()}


def command(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(TWINLOG), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@contextmanager
def two_masters(
    directory: Path,
) -> Iterator[tuple[TwinlogNamesrv, TwinlogBroker, TwinlogBroker]]:
    """A name server, the master that has the place, and one that came later and knows it."""
    with process_group() as group:
        namesrv = start_twinlog_namesrv(directory / "namesrv")
        group.add(namesrv)
        first = start_twinlog_broker(directory / "first", namesrv=namesrv.address, **CONFIG)
        group.add(first)
        namesrv.wait_registered(first.address)
        second = start_twinlog_broker(directory / "second", namesrv=namesrv.address, **CONFIG)
        group.add(second)
        second.wait_for_text("another broker has our name and id")
        yield namesrv, first, second


def test_a_second_master_is_reported_and_never_in_the_route(tmp_path: Path) -> None:
    with two_masters(tmp_path) as (namesrv, first, second):
        assert "two brokers with one name and id" in namesrv.output()
        # The holder hears of it with its next registration.
        first.wait_for_text("another broker has our name and id")
        assert places(namesrv.address) == {0: first.address}
        for arguments in (["ha", "status"], ["cluster", "health"], ["doctor"]):
            code, output = command(*arguments, "-n", namesrv.address)
            assert code == 10, (arguments, output)
            assert "two masters" in output, (arguments, output)
            assert second.address in output, (arguments, output)
        # A stale one that stops takes nobody with it.
        assert second.stop() == 0
        assert places(namesrv.address) == {0: first.address}
        wait_until(
            lambda: "two masters" not in command("ha", "status", "-n", namesrv.address)[1],
            "the holder hears that it is alone again",
        )


def test_one_that_is_gone_is_not_told_of_until_the_holder_registers_again(tmp_path: Path) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        group.add(namesrv)
        seldom = {"registerNameServerPeriod": 60_000}
        first = start_twinlog_broker(tmp_path / "first", namesrv=namesrv.address, **seldom)
        group.add(first)
        namesrv.wait_registered(first.address)
        second = start_twinlog_broker(tmp_path / "second", namesrv=namesrv.address, **seldom)
        group.add(second)
        second.wait_for_text("another broker has our name and id")
        topic = {
            "topic": "news", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        assert ask(first.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
        first.wait_for_text("another broker has our name and id")
        assert "two masters" in command("ha", "status", "-n", namesrv.address)[1]
        second.kill()
        wait_until(
            lambda: "two masters" not in command("ha", "status", "-n", namesrv.address)[1],
            "the name server has seen the connection close",
            deadline_s=20,
        )


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_second_has_the_place_at_once_when_the_first_is_gone(tmp_path: Path, end: str) -> None:
    """Also a master that was started again on a new address before the old one was gone."""
    with two_masters(tmp_path) as (namesrv, first, second):
        if end == "stop":
            assert first.stop() == 0
        else:
            first.kill()
        wait_until(lambda: places(namesrv.address) == {0: second.address}, "the second is there")
        topic = {
            "topic": "late", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        assert ask(second.address, RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
        wait_until(
            lambda: ask(
                namesrv.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "late"}
            ).code == 0,
            "its topics count",
        )  # fmt: skip


def test_a_second_slave_with_the_same_id_that_stops_leaves_the_first_in_the_route(
    tmp_path: Path,
) -> None:
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv")
        group.add(namesrv)
        master = start_twinlog_broker(tmp_path / "master", namesrv=namesrv.address, **CONFIG)
        group.add(master)
        namesrv.wait_registered(master.address)
        slaves = []
        for name in ("one", "two"):
            slave = start_twinlog_broker(
                tmp_path / name, namesrv=namesrv.address, brokerId=1, brokerRole="SLAVE", **CONFIG
            )
            group.add(slave)
            namesrv.wait_registered(slave.address)
            slaves.append(slave)
        assert places(namesrv.address) == {0: master.address, 1: slaves[0].address}
        assert slaves[1].stop() == 0
        assert places(namesrv.address) == {0: master.address, 1: slaves[0].address}
