"""A change that meets another one of its group: the command asks again by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.processes import free_port
from twinlog.admin import Admin
from twinlog.admin.failover import Controllers
from twinlog.client.errors import ClientError
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock


class Busy:
    """Answers as a controller that writes an admission, so often."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0

    def __call__(self, connection: ServerConnection, request: Request) -> None:
        self.asked += 1
        if self.asked <= self.times:
            connection.reply(request, ResponseCode.SYSTEM_BUSY, remark="is being written")
        else:
            connection.reply(request)


@asynccontextmanager
async def asking(busy: Busy) -> AsyncIterator[Controllers]:
    server = RemotingServer(busy, clock=SystemClock())
    address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    try:
        async with Admin(f"127.0.0.1:{free_port()}") as admin:
            yield Controllers(admin, [address], address)
    finally:
        await server.close()


async def test_a_change_that_meets_another_is_asked_for_again() -> None:
    busy = Busy(3)
    async with asking(busy) as controllers:
        await controllers.set_learner("broker-a", 2, is_learner=True)
    assert busy.asked == 4


async def test_a_controller_that_stays_busy_is_not_asked_for_ever() -> None:
    async with asking(Busy(1_000_000)) as controllers:
        with pytest.raises(ClientError, match=r"refused by .* is being written"):
            await controllers.set_learner("broker-a", 2, is_learner=True)
