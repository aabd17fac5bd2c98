"""Groups of one name at one name server: epochs of the one mean nothing to the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.failover_group import Group, first_send, running_group
from support.processes import wait_until
from support.twinlog_servers import start_twinlog_broker, start_twinlog_controller
from twinlog.client import Message, Producer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


def _begin_again(group: Group, epoch: int) -> None:
    """The only broker is killed and started until its epoch is reached."""
    while group.epoch < epoch:
        before = group.epoch
        group.brokers[0].kill()
        group.restart(group.brokers[0])
        wait_until(lambda: group.epoch > before, "the broker is elected again")  # noqa: B023


def _said(group: Group, text: str) -> bool:
    return text in group.brokers[0].output()


async def test_a_master_of_another_cluster_does_not_depose_ours(tmp_path: Path) -> None:
    """Its file names our name server, by mistake, and it has had more elections than we."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    with (
        running_group(tmp_path / "ours", 1) as ours,
        running_group(tmp_path / "theirs", 1, brokerClusterName="other") as theirs,
    ):
        _begin_again(theirs, 3)
        theirs.brokers[0].kill()
        theirs.brokers[0] = theirs.brokers[0].restart(namesrvAddr=ours.namesrv.address)
        name, id_ = "another broker has our name and id name=broker-a", "id=0"
        wait_until(lambda: _said(theirs, f"{name} {id_}"), "it hears that the place is taken")
        async with Producer("p", name_server=ours.namesrv.address) as producer:
            # Of a new topic the name server is told at once, and answers what it would later.
            assert (await producer.send(Message("Later", b"later"))).is_acknowledged
            wait_until(lambda: _said(ours, f"{name} {id_}"), "ours hears of the other one")
            assert (await producer.send(Message("Later", b"later"))).is_acknowledged
        assert _said(ours, "topic created topic=Later")
        assert not _said(ours, "found a newer epoch")
        assert "frozen" not in {event["event"] for event in ours.events()}


async def test_a_group_that_is_made_anew_leads_at_the_name_server_of_before(
    tmp_path: Path,
) -> None:
    with running_group(tmp_path, 1) as group:
        _begin_again(group, 3)
        broker = group.brokers[0]
        group.namesrv.wait_registered(broker.address)
        broker.kill()
        group.controller.kill()
        shutil.rmtree(tmp_path / "controller" / "controller")
        shutil.rmtree(broker.store)
        config = {**group.controller.config}
        group.controller = start_twinlog_controller(tmp_path / "controller", **config)
        group.brokers[0] = start_twinlog_broker(broker.directory, **broker.config)
        async with Producer("p", name_server=group.namesrv.address) as producer:
            await first_send(producer)
        assert group.epoch == 1
        assert "frozen" not in {event["event"] for event in group.events()}
