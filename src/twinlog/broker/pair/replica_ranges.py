"""The other copies of this log, for who compares and heals: both ends of 10006 and 10007.

A copy is a broker of the same group whose store has the same id. Where they are is known from name
servers, from the master's address and from those who asked us. All of it needs the account of an
administrator where there are accounts: these requests read the log past the rules of its topics.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Final

from twinlog.broker.errors import BrokerError
from twinlog.broker.pair.identity import StoreIdentity
from twinlog.broker.pair.succession import Succession
from twinlog.remoting import fastjson
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers.twinlog import TwinlogLogRangeRequestHeader, TwinlogScrubRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.integrity.digests import DIGEST_SIZE, RANGE_SIZE, digest_of
from twinlog.store.integrity.heal import Replica, range_of
from twinlog.store.integrity.scrub import Scrubber
from twinlog.store.log.commit_log import CommitLog

_LOG = logging.getLogger("twinlog.broker")
_TIMEOUT_MS: Final = 5_000
_LOOK_MS: Final = 5_000
_FIRST_LOOK_MS: Final = 1_000  # While readers still wait for copies to be found.
_FIRST_LOOKS: Final = 15
RANGES_MAX: Final = 16
READ_SIZE_MAX: Final = RANGE_SIZE
_PIECE_MIN: Final = 4096  # An answer with less of what was asked for is the end of that log.
WAITING_MAX: Final = 4  # Requests of replicas that are being answered at a time.


class RemoteReplica:
    """One other copy, asked over its service port."""

    def __init__(self, client: RemotingClient, address: str, store_id: str) -> None:
        self._client = client
        self._store_id = store_id
        self.name = address

    async def digests(self, offset: int, count: int) -> list[bytes] | None:
        data = await self._ask(RequestCode.TWINLOG_LOG_DIGESTS, offset, count * RANGE_SIZE)
        if data is None:
            return None
        return [data[at : at + DIGEST_SIZE] for at in range(0, len(data), DIGEST_SIZE)]

    async def read(self, offset: int, size: int) -> bytes | None:
        pieces = []
        while size > 0:
            code = RequestCode.TWINLOG_LOG_RANGE
            wanted = min(size, READ_SIZE_MAX)
            data = await self._ask(code, offset, wanted)
            if data is None or len(data) > wanted:
                return None
            pieces.append(data)
            if len(data) < min(wanted, _PIECE_MIN):
                break
            offset += len(data)
            size -= len(data)
        return b"".join(pieces)

    async def _ask(self, code: RequestCode, offset: int, size: int) -> bytes | None:
        header = TwinlogLogRangeRequestHeader(self._store_id, offset, size)
        try:
            command = RemotingCommand.request(code, header)
            answer = await self._client.invoke(self.name, command, _TIMEOUT_MS)
        except (RemotingError, OSError) as error:
            _LOG.debug("replica not asked address=%s reason=%s", self.name, error)
            return None
        return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None


class ReplicaRanges:
    """Finds the copies, and answers them."""

    def __init__(
        self,
        *,
        client: RemotingClient,
        identity: StoreIdentity,
        succession: Succession,
        log: CommitLog,
        scrubber: Scrubber,
        disk: Disk,
        clock: Clock,
        tasks: TaskOwner,
        name_servers: Callable[[], list[str]],
    ) -> None:
        self._client = client
        self._identity = identity
        self._succession = succession
        self._log = log
        self._scrubber = scrubber
        self._disk = disk
        self._clock = clock
        self._tasks = tasks
        self._name_servers = name_servers
        self._copies: list[Replica] = []
        self._waiting = 0
        scrubber.healer.replicas = lambda: self._copies

    async def look(self) -> None:
        """Until cancelled: keep the list of copies that answer."""
        for number in itertools.count():
            addresses = await self._succession.copies(self._name_servers())
            store_id = self._identity.store_id
            if addresses != [copy.name for copy in self._copies]:
                self._copies = [RemoteReplica(self._client, name, store_id) for name in addresses]
                self._scrubber.replicas_changed()
            is_first = number < _FIRST_LOOKS and not self._copies
            await self._clock.sleep_ms(_FIRST_LOOK_MS if is_first else _LOOK_MS)

    # 10006, 10007

    def log_digests(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_LOG_DIGESTS: of the ranges that lie in [offset, offset + size), one by one."""
        self._answer(
            connection, request, self._digest_ranges, RANGES_MAX * RANGE_SIZE, self._proved
        )

    def log_range(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_LOG_RANGE: bytes from `offset` on, `size` at most."""
        self._answer(connection, request, self._log.read, READ_SIZE_MAX)

    def _answer(
        self,
        connection: ServerConnection,
        request: Request,
        read: Callable[[int, int], bytes],
        size_max: int,
        judge: Callable[[int, bytes], bytes] = lambda offset, body: body,
    ) -> None:
        header = request.header(TwinlogLogRangeRequestHeader)
        self._check(header, size_max)
        if self._waiting >= WAITING_MAX:
            remark = "[REJECTREQUEST]system busy, other replicas compare their logs"
            raise BrokerError(ResponseCode.SYSTEM_BUSY, remark)
        self._waiting += 1

        async def answer() -> None:
            try:
                body = await self._disk.run(read, header.offset, header.size)
                connection.reply(request, body=judge(header.offset, body))
            except OffsetOutOfRangeError as error:  # Expired or cut since it was checked.
                connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=str(error))
            finally:
                self._waiting -= 1

        self._tasks.job("log-range", answer(), failed=connection.refuse(request))

    def _check(self, header: TwinlogLogRangeRequestHeader, size_max: int) -> None:
        log = self._log
        if header.store_id != self._identity.store_id:
            raise BrokerError(ResponseCode.NO_PERMISSION, "this is another store")
        end = header.offset + header.size
        if not 0 < header.size <= size_max or header.offset < log.min_offset:
            remark = f"[{header.offset}, {end}) is not {size_max} bytes of this log at most"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        if header.offset >= log.max_offset:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"the log ends at {log.max_offset}")

    def _digest_ranges(self, offset: int, size: int) -> bytes:
        """In a thread. Ranges that are not complete here are left out."""
        found, end = [], offset + size
        while offset < end:
            begin, length = range_of(offset, self._log.segment_size)
            if begin != offset or begin + length > self._log.flushed.value:
                break
            found.append(digest_of(self._log.read(begin, length)))
            offset += length
        return b"".join(found)

    def _proved(self, offset: int, digests: bytes) -> bytes:
        """Those before the first that this store knows better: what has decayed here is healed
        here, and is no difference between two logs."""
        for at in range(0, len(digests), DIGEST_SIZE):
            begin, size = range_of(offset, self._log.segment_size)
            if self._scrubber.digests.find(begin) not in (None, digests[at : at + DIGEST_SIZE]):
                self._scrubber.suspect(begin, size)
                return digests[:at]
            offset = begin + size
        return digests

    # 10008

    def scrub(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_SCRUB: how far the walk is; with `begin` it starts now, as fast as it may."""
        if request.header(TwinlogScrubRequestHeader).begin:
            self._scrubber.hurry()
        connection.reply(request, body=fastjson.dumps(self._scrubber.status()))
