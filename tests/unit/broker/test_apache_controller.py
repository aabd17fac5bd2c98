"""What RocketMQ's own controller says, in the terms of ours: who leads, and when to be silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.local_brokers import until
from twinlog.broker.group.apache_controller import ApacheController
from twinlog.broker.group.beat import Beat
from twinlog.controller.record import Policy
from twinlog.remoting import codec, fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers.base import Header
from twinlog.remoting.headers.controller import (
    ControllerHeartbeatRequestHeader,
    ElectMasterRequestHeader,
)
from twinlog.runtime.clock import SystemClock

NAME = "broker-a"


class Scene:
    """Answers as Apache's, and counts what arrives."""

    def __init__(self) -> None:
        self.master: int | None = 2
        self.members = [2]
        self.set_epoch = 4
        self.known = {1: "127.0.0.1:1", 2: "127.0.0.1:2"}
        self.elections: list[int] = []
        self.beats = 0

    async def ask(self, code: RequestCode, header: Header | None, body: bytes) -> Request:
        if code is RequestCode.CONTROLLER_GET_REPLICA_INFO:
            fields: dict[str, Any] = {}
            if self.master is not None:
                fields = {
                    "masterBrokerId": str(self.master), "masterEpoch": "3",
                    "masterAddress": self.known[self.master],
                }  # fmt: skip
            data = {"syncStateSet": self.members, "syncStateSetEpoch": self.set_epoch}
            return answer(fields, data)
        if code is RequestCode.CONTROLLER_ELECT_MASTER:
            assert isinstance(header, ElectMasterRequestHeader)
            self.elections.append(header.broker_id)
            return answer({}, {})
        entries = [
            {"brokerName": NAME, "brokerId": n, "brokerAddress": address, "alive": True}
            for n, address in self.known.items()
        ]
        ins = [entry for entry in entries if entry["brokerId"] in self.members]
        out = [entry for entry in entries if entry not in ins]
        info = {"masterBrokerId": self.master, "inSyncReplicas": ins, "notInSyncReplicas": out}
        return answer({}, {"replicasInfoTable": {NAME: info}})

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while size := await reader.read(4):
            frame = await reader.readexactly(int.from_bytes(size, "big"))
            command = codec.decode_command(size + frame)
            self.beats += command.code == RequestCode.BROKER_HEARTBEAT
        writer.close()


def answer(fields: dict[str, Any], body: dict[str, Any]) -> Request:
    command = RemotingCommand.request(0, fields, fastjson.dumps(body))
    return codec.decode_command(codec.encode_command(command))


@asynccontextmanager
async def played(scene: Scene) -> AsyncIterator[ApacheController]:
    server = await asyncio.start_server(scene.take, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = RemotingClient(clock=SystemClock())
    try:
        yield ApacheController(client, scene.ask, [address])
    finally:
        await client.close()
        server.close()


async def beat(controller: ApacheController, **changes: Any) -> Beat:
    fields: dict[str, Any] = {
        "cluster_name": "c", "broker_addr": "127.0.0.1:1", "broker_name": NAME, "broker_id": 1,
        "max_offset": 0, "twinlog_incarnation": "me", "twinlog_known_epoch": 0,
    }  # fmt: skip
    return await controller.heartbeat(
        ControllerHeartbeatRequestHeader(**{**fields, **changes}), Policy(), 5
    )


async def until_beats(scene: Scene, count: int) -> None:
    await until(lambda: scene.beats >= count)


async def test_the_record_names_master_set_and_replicas() -> None:
    scene = Scene()
    async with played(scene) as controller:
        record = (await beat(controller)).record
        assert record is not None
        assert (record.master_broker_id, record.master_epoch) == (2, 3)
        assert record.sync_state_set == {2}
        assert set(record.replicas) == {1, 2}
        # It does not answer what it is: behind its service port.
        assert record.replicas[2].ha_address == "127.0.0.1:3"
        assert record.master_incarnation == ""
        scene.members, scene.set_epoch = [1, 2], 5
        later = (await beat(controller)).record
        assert later is not None
        assert later.version > record.version
        scene.known[3] = "127.0.0.1:9"
        newest = (await beat(controller)).record
        assert newest is not None
        assert newest.version > later.version
        await until_beats(scene, 3)


@pytest.mark.parametrize("address", ["broker-a", "127.0.0.1:", "127.0.0.1:x", ":::", "1:99999"])
async def test_a_master_without_a_usable_address_is_an_answer_that_cannot_be_read(
    address: str,
) -> None:
    scene = Scene()
    scene.known[2] = address
    async with played(scene) as controller:
        with pytest.raises(RemotingError, match="without a port"):
            await beat(controller)


async def test_the_master_is_whatever_process_has_its_id() -> None:
    scene = Scene()
    scene.master, scene.members = 1, [1]
    async with played(scene) as controller:
        record = (await beat(controller)).record
        assert record is not None
        assert record.master_incarnation == "me"


@pytest.mark.parametrize(("members", "beats"), [([1, 2], 0), ([1], 1), ([2], 1)])
async def test_a_replica_in_doubt_is_silent_while_it_is_in_the_set_with_others(
    members: list[int], beats: int
) -> None:
    scene = Scene()
    scene.members, scene.master = members, members[-1]
    async with played(scene) as controller:
        seen = await beat(controller, twinlog_complete=False)
        assert not seen.is_admitted
        await until_beats(scene, beats)
        assert scene.beats == beats
        # Taken out by the master, it speaks again; back in the set it is as good as any.
        scene.members, scene.master = [2], 2
        await beat(controller, twinlog_complete=False)
        await until_beats(scene, beats + 1)
        scene.members = [1, 2]
        assert (await beat(controller, twinlog_complete=False)).is_admitted


@pytest.mark.parametrize(
    ("members", "changes", "asks"),
    [
        ([], {}, True),
        ([], {"max_offset": 10}, False),
        ([], {"twinlog_known_epoch": 2}, False),
        ([1, 2], {"max_offset": 10}, True),
    ],
)
async def test_only_an_empty_broker_asks_to_lead_a_group_that_is_not_known(
    members: list[int], changes: dict[str, Any], asks: bool
) -> None:
    scene = Scene()
    scene.master, scene.members = None, members
    async with played(scene) as controller:
        assert (await beat(controller, **changes)).record is None
        assert scene.elections == ([1] if asks else [])
