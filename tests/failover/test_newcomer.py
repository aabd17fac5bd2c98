"""A replica that has just registered dials before the master has heard of it. That is no refusal
that anybody must know of; a store that nobody registered is one. And one whose words come late."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import until
from support.local_group import GROUP, local_group
from twinlog.broker.group.beat import Beat
from twinlog.controller.events import ConnectionClosed
from twinlog.controller.processor import _numbers
from twinlog.controller.server import build_controller
from twinlog.remoting.codes import ResponseCode
from twinlog.runtime.config import ControllerConfig


async def test_a_newcomer_leaves_no_refusal_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_group(tmp_path) as group:
        # Hints may be lost: then the master hears of it by its next heartbeat only.
        monkeypatch.setattr(group.controller, "_hint", lambda hint: None)
        first, _ = await group.pair()
        await group.start("third")
        await group.in_sync(3)
        assert [departed.reason for departed in first.ha.status().departed] == []


@dataclass
class Dialled:
    replica_id: int
    replica_uid: str = "somebody"
    epoch: int = 1


async def test_a_stranger_is_told_of_once_the_controller_has_been_asked(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        master, _ = await group.pair()
        replication = master.ha.group
        assert replication is not None
        hello = Dialled(7, epoch=replication.epoch)
        for awaited in (True, False):
            refusal = replication.hello_refusal(hello)  # type: ignore[arg-type]
            assert refusal is not None
            assert "replica 7 is not registered" in refusal[1]
            assert replication.is_for_a_moment(hello) is awaited  # type: ignore[arg-type]
            replication.controller_answered(replication.awaited)


async def test_late_words_of_an_older_connection_do_not_shut_a_replica_out(tmp_path: Path) -> None:
    """They come over a connection that the controller hears of last, and takes for the newest."""
    async with local_group(tmp_path) as group:
        await group.pair()
        controller = group.controller
        assert controller.core is not None
        known = controller.core.groups[GROUP]
        for number in (1, 2):
            report = known.liveness.get(number)
            assert report is not None
            late = replace(report.heartbeat, connection=next(_numbers), token=None)
            controller.handle(late)
            controller.handle(ConnectionClosed(late.connection))
            assert not known.is_alive(number, controller.now_ms)
        await until(lambda: len(known.living(controller.now_ms)) == 2)
        assert known.record.master_epoch == 1


async def test_a_set_that_the_controller_took_is_not_proposed_again(tmp_path: Path) -> None:
    """Until the next heartbeat brings it, which may take a while."""
    async with local_group(tmp_path) as group:
        first = await group.start("first")
        await until(lambda: group.is_known and first.role.is_master)
        manager = first.replicas
        assert manager is not None
        link, asked = manager._link, []
        beat, propose = link.heartbeat, link.propose

        async def slow_beat(*arguments: Any) -> Beat:
            await asyncio.sleep(0.5)
            return await beat(*arguments)

        async def noted(*arguments: Any) -> None:
            asked.append(arguments[-1])
            await propose(*arguments)

        link.heartbeat, link.propose = slow_beat, noted  # type: ignore[method-assign]
        await group.start("second")
        await group.in_sync(2)
        await until(lambda: manager.authority is not None and not manager.authority.is_changing)
        assert len(asked) == 1


async def test_a_controller_that_knows_nothing_makes_no_second_master(tmp_path: Path) -> None:
    """The file of a slave names the wrong one, and nobody has set totalReplicas."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        await group.brokers.end(second)
        await group.in_sync(1)
        path = str(tmp_path / "other")
        other = build_controller(ControllerConfig(controller_store_path=path, listen_port=0))
        await other.start()
        try:
            again = await group.start("second", controller_addr=other.address)
            core = other.core
            assert core is not None
            await until(lambda: GROUP in core.groups and core.groups[GROUP].waiting)
            assert "waiting for replica 1" in core.groups[GROUP].waiting
            assert not again.role.is_master
            answer = await group.brokers.send(first)
            assert answer.code == ResponseCode.SUCCESS
            assert first.role.is_master
        finally:
            await other.stop()


async def test_the_copy_of_a_store_does_not_acknowledge_for_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Turned away is not the same as unanswered: the copy follows nobody, or its place in the log
    would count as that of the replica in the set, which the master would put out besides."""
    monkeypatch.setattr("twinlog.broker.group.replicas._ALONE_MS", 0)
    async with local_group(tmp_path) as group:
        _, second = await group.pair()
        shutil.copytree(tmp_path / "second", tmp_path / "copy")
        copy = await group.start("copy")
        await until(lambda: "is taken" in caplog.text)
        assert "this slave follows the master that it knows" not in caplog.text
        assert not copy.ha.is_linked
        assert second.ha.is_linked
