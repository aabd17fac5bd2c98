"""A name server and broker in one that is not twinlog: whatever it does not know is code 3."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.remoting.server import RemotingServer, ServerConnection
from twinlog.runtime.clock import SystemClock

_SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class NotTwinlog:
    """Knows a route to itself, its configuration if it has one, and nothing else."""

    def __init__(self, config: dict[str, str] | None = None, *, port: int = 0) -> None:
        self.address = ""
        self.sends = 0
        self._config = config
        self._port = port

    async def listen(self) -> RemotingServer:
        server = RemotingServer(self._handle, clock=SystemClock(), name="other")
        self.address = f"127.0.0.1:{await server.listen('127.0.0.1', self._port)}"
        return server

    def _handle(self, connection: ServerConnection, request: Request) -> None:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            broker = {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": self.address}}
            queue = {"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            route = {"brokerDatas": [broker], "queueDatas": [{**queue, "topicSysFlag": 0}]}
            connection.reply(request, body=json.dumps(route).encode())
            return
        if request.code == RequestCode.GET_BROKER_CONFIG and self._config is not None:
            text = "".join(f"{key}={value}\n" for key, value in self._config.items())
            connection.reply(request, body=text.encode())
            return
        self.sends += request.code in _SENDS
        connection.reply(request, 3, remark=f" request type {request.code} not supported")


@contextmanager
def not_twinlog() -> Iterator[NotTwinlog]:
    """One that runs in a thread of its own."""
    other = NotTwinlog()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(other.listen(), loop).result(30)
        yield other
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
