"""A request that is on its way to the old master when this broker begins to lead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from support.local_brokers import until
from support.local_group import GROUP, local_group
from twinlog.remoting import codec
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand
from twinlog.remoting.headers.controller import ElectMasterRequestHeader


async def test_what_comes_back_to_the_new_master_is_answered_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master gives it back, "not the master" (it hands over). Whoever passed it on leads by
    now, and answers at once: not after the relay's time is over."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        under_way: list[Any] = []
        submit = second.client.submit

        def held(address: str, command: Any, timeout_ms: float, callback: Any) -> None:
            if command.code == RequestCode.TWINLOG_RELAY:
                under_way.append(callback)
            else:
                submit(address, command, timeout_ms, callback)

        monkeypatch.setattr(second.client, "submit", held)
        sending = asyncio.create_task(group.brokers.send(second, b"under way"))
        await until(lambda: under_way)
        header = ElectMasterRequestHeader("DefaultCluster", GROUP, 2, designate_elect=True)
        command = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        answer = await group.brokers.client.invoke(group.controller.address, command, 10_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await until(lambda: second.role.is_master)
        refused = RemotingCommand.request(ResponseCode.SERVICE_NOT_AVAILABLE, None)
        under_way.pop()(codec.decode_command(codec.encode_command(refused)), None)
        assert (await sending).code == ResponseCode.SUCCESS
        assert under_way == []
        assert not first.role.is_master
