"""Consumer offsets that come back to a master from its slave, before it answers pulls.

While the master was away consumers committed to the slave. A plain RocketMQ master starts from its
own old file, and groups that restart consume everything again. Here a master that starts asks the
name server who its slaves are and takes from each twinlog among them what is further than its own,
never backwards, and never beyond its own log. Requests that depend on offsets wait for that, at
most three seconds; sends do not. What clients commit to the slave after that comes by the same
rules (late_commits.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from twinlog.broker.errors import BrokerError
from twinlog.broker.pair.metadata_log import OffsetTable
from twinlog.broker.role import Role
from twinlog.broker.tables import offset_json
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager, offset_table
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.route import MASTER_ID, ClusterInfo
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers.twinlog import TwinlogOffsetsRequestHeader
from twinlog.remoting.server import ON_LOOP_SIZE_MAX, ServerConnection
from twinlog.runtime.config import BrokerConfig

_LOG = logging.getLogger("twinlog.broker")

WAIT_SECONDS_MAX = 3.0
_TIMEOUT_MS = 1_000
# Pulls and offset queries: what they answer rests on the offsets.
GATED_CODES = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
    }
)
_WAITING_MAX = 10_000
_PART_QUEUES = 1000
_OFFSETS = RequestCode.GET_ALL_CONSUMER_OFFSET


class OffsetReturn:
    """The gate of a starting master, and what opens it."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        client: RemotingClient,
        offsets: ConsumerOffsetManager,
        queue_end: Callable[[str, int], int],
        role: Role,
    ) -> None:
        self._config = config
        self._role = role
        self._client = client
        self._offsets = offsets
        self._queue_end = queue_end
        self._waiting: list[tuple[ServerConnection, Request]] = []
        self.is_open = True

    def close_gate(self) -> None:
        self.is_open = False

    def hold(self, connection: ServerConnection, request: Request) -> bool:
        """Keep a request until the gate opens. False when it must be answered now."""
        if self.is_open or request.code not in GATED_CODES or len(self._waiting) >= _WAITING_MAX:
            return False
        self._waiting.append((connection, request))
        return True

    def open_gate(self) -> list[tuple[ServerConnection, Request]]:
        """The requests that waited, in their order."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        return [pair for pair in waiting if not pair[0].is_closed]

    def take(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_OFFSETS (10002): late commits, from a slave of this group."""
        config, header = self._config, request.header(TwinlogOffsetsRequestHeader)
        ours = (config.broker_cluster_name, config.broker_name)
        if not self._role.is_master or (header.cluster_name, header.broker_name) != ours:
            remark = "only the master of the group takes its slave's offsets"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if len(request.body) > ON_LOOP_SIZE_MAX:
            connection.read_elsewhere(
                request,
                lambda: _read_table(request.body),
                lambda table: self._taken(connection, request, table),
            )
        else:
            connection.in_steps(
                request, self._taken(connection, request, _read_table(request.body))
            )

    def _taken(
        self, connection: ServerConnection, request: Request, table: OffsetTable
    ) -> Iterator[None]:
        for part in _parts(table):
            self._offsets.take_forward(part, self._queue_end, are_own_taken=False)
            yield
        connection.reply(request)

    async def fetch(self, name_servers: list[str], identity: dict[str, str]) -> int:
        """Take offsets from every twinlog slave that answers; returns how many were asked.

        `identity` says who asks: a slave that hears from its master dials it at once.
        """
        asked = 0
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                for address in await self._slaves(name_servers):
                    asked += await self._fetch_from(address, identity)
        except TimeoutError:
            _LOG.warning("offsets of the slave did not come within %.0f s", WAIT_SECONDS_MAX)
        return asked

    async def _slaves(self, name_servers: list[str]) -> list[str]:
        for name_server in name_servers:
            answer = await self._answer(name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
            if answer is None:
                continue
            try:
                cluster = fastjson.loads_as(answer.body, ClusterInfo)
            except ValueError as error:
                _LOG.warning("offset return: bad answer address=%s reason=%s", name_server, error)
                continue
            addresses = cluster.addresses_of(self._config.broker_name)
            if found := [address for number, address in addresses.items() if number != MASTER_ID]:
                return found
        return []

    async def _fetch_from(self, address: str, identity: dict[str, str]) -> int:
        # Only between twinlogs: an Apache slave's offsets stay where they are.
        info = await self._ask(address, RequestCode.TWINLOG_INFO, identity)
        if info is None:
            return 0
        if info.get("clusterName") != self._config.broker_cluster_name:
            _LOG.warning("offset return: another cluster's broker address=%s", address)
            return 0
        data = await self._ask(address, _OFFSETS)
        if data is None:
            return 0
        try:
            table = offset_table(data)
        except (AttributeError, TypeError, ValueError) as error:
            _LOG.warning("offset return: bad table address=%s reason=%s", address, error)
            return 0
        moved = self._offsets.take_forward(table, self._queue_end, are_own_taken=False)
        _LOG.info("offsets taken from the slave address=%s moved=%d", address, moved)
        return 1

    async def _ask(
        self, address: str, code: RequestCode, header: dict[str, str] | None = None
    ) -> dict[str, Any] | None:
        answer = await self._answer(address, code, header)
        if answer is None:
            return None
        loads = offset_json.loads if code == _OFFSETS else fastjson.loads
        try:
            value = loads(bytes(answer.body)) if answer.body else {}
        except ValueError as error:
            _LOG.warning("offset return: bad answer address=%s reason=%s", address, error)
            return None
        return value if isinstance(value, dict) else None

    async def _answer(
        self, address: str, code: RequestCode, header: dict[str, str] | None = None
    ) -> Request | None:
        command = RemotingCommand.request(code, header)
        try:
            answer = await self._client.invoke(address, command, _TIMEOUT_MS)
        except (RemotingError, OSError, ValueError) as error:
            _LOG.info("offset return: no answer address=%s reason=%s", address, error)
            return None
        return answer if answer.code == ResponseCode.SUCCESS else None


def _parts(table: OffsetTable) -> Iterator[OffsetTable]:
    """The table in pieces that are taken in a turn."""
    for key, queues in table.items():
        left = iter(queues.items())
        while some := dict(islice(left, _PART_QUEUES)):
            yield {key: some}


def _read_table(body: bytes) -> OffsetTable:
    try:
        return offset_table(offset_json.loads(body, lenient_max=fastjson.LENIENT_SIZE_MAX))
    except (AttributeError, TypeError, ValueError) as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"not an offset table: {error}") from None
