"""Changing a controller's configuration while it runs: live keys have their effect, others not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.local_brokers import until
from support.runtime_stage import Recorder
from twinlog.controller.server import ControllerServer, build_controller
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.config_key import declarations, live_keys
from twinlog.runtime.controller_config import ControllerConfig


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[ControllerServer]:
    config = ControllerConfig(listen_port=0, controller_store_path=str(tmp_path / "records"))
    server = build_controller(config)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock())
    yield client
    await client.close()


async def _ask(
    client: RemotingClient, server: ControllerServer, code: int, body: bytes = b"", **fields: object
) -> Request:
    command = RemotingCommand.request(code, body=body)
    command.ext_fields = {key: str(value) for key, value in fields.items()}
    return await client.invoke(server.address, command, 30_000)


async def _elect(
    client: RemotingClient, server: ControllerServer, group: str, address: str
) -> None:
    """A broker of a new group comes and is made its master."""
    await _ask(
        client, server, RequestCode.CONTROLLER_APPLY_BROKER_ID, clusterName="c", brokerName=group,
        appliedBrokerId=1, registerCheckCode=f"{address};1", twinlogUid=f"u-{group}",
    )  # fmt: skip
    async with asyncio.timeout(60):
        while True:
            answer = await _ask(
                client, server, RequestCode.BROKER_HEARTBEAT, clusterName="c", brokerName=group,
                brokerId=1, brokerAddr=address, epoch=0, maxOffset=0, twinlogIncarnation="i",
            )  # fmt: skip
            if json.loads(answer.body)["masterBrokerId"] == 1:
                return
            await asyncio.sleep(0.02)


async def _change(client: RemotingClient, server: ControllerServer, text: str) -> Request:
    return await _ask(client, server, RequestCode.UPDATE_CONTROLLER_CONFIG, text.encode())


async def test_brokers_are_told_of_an_election_or_not(
    controller: ControllerServer, client: RemotingClient
) -> None:
    assert live_keys(ControllerConfig) == {"notifyBrokerRoleChanged"}, "observe a new one here"
    broker = Recorder(answers=True)
    await broker.start()
    try:
        assert (await _change(client, controller, "notifyBrokerRoleChanged=false\n")).code == 0
        await _elect(client, controller, "quiet", broker.address)
        told = broker.count(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
        assert (await _change(client, controller, "notifyBrokerRoleChanged=true\n")).code == 0
        await _elect(client, controller, "told", broker.address)
        await until(lambda: broker.count(RequestCode.NOTIFY_BROKER_ROLE_CHANGED) > 0)
        assert told == 0
    finally:
        await broker.close()


async def test_every_other_key_is_refused_with_its_reason(
    controller: ControllerServer, client: RemotingClient
) -> None:
    keys = {declared.key for declared in declarations(ControllerConfig).values()}
    for key in sorted(keys - live_keys(ControllerConfig)):
        answer = await _change(client, controller, f"notifyBrokerRoleChanged=false\n{key}=1\n")
        assert answer.code == ResponseCode.NO_PERMISSION, key
        assert answer.remark is not None
        assert answer.remark.startswith(
            tuple(f"{key} {why}" for why in ("is read when", "has no effect here", "is refused"))
        )
        assert controller.config.notify_broker_role_changed, "all of a request or nothing"
    answer = await _change(client, controller, "notifyBrokerRoleChanged=perhaps\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "expected true or false" in (answer.remark or "")


async def test_a_controller_with_use_tls_connects_over_tls(tmp_path: Path) -> None:
    """It was read by nobody: the controller dialled brokers in plain text."""
    config = ControllerConfig(
        listen_port=0, controller_store_path=str(tmp_path / "records"), use_tls=True
    )
    server = build_controller(config)
    await server.start()
    try:
        assert server._client is not None
        assert server._client._tls is not None
    finally:
        await server.stop()
