"""A replica before and at its promotion: 10003 and 10004, both of ours.

10003 says how far a replica is, so that all of a group can be compared. 10004 makes a slave the
master: the role is written into its configuration file, which stays the one place where a role is
read from, and the broker starts again in its own process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from twinlog.broker.errors import BrokerError
from twinlog.broker.pair.dispatch_damage import damage_advice
from twinlog.broker.processors.admin_config import write_values
from twinlog.message.crc import crc32
from twinlog.message.layout import MAGIC_BLANK, MESSAGE_MAGICS, SIZE_MAGIC
from twinlog.message.names import METADATA_TOPIC
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.twinlog import ReplicaInfo
from twinlog.remoting.codes import ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.twinlog import (
    TwinlogPromoteRequestHeader,
    TwinlogReplicaRequestHeader,
)
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.config import BrokerRole
from twinlog.store.errors import StoreError
from twinlog.store.log.commit_log import CommitLog

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOG = logging.getLogger("twinlog.broker")

DIGEST_SIZE_MAX = 1024 * 1024
COUNT_SIZE_MAX = 1024 * 1024 * 1024  # Of log that is read to count its messages.
COUNTS_WAITING_MAX = 4  # Each may read COUNT_SIZE_MAX: whoever compares replicas asks once.
_READ_SIZE = 64 * 1024  # Read and counted in one turn of the loop, in a few milliseconds.
_MASTER_ROLES = (BrokerRole.ASYNC_MASTER.value, BrokerRole.SYNC_MASTER.value)


class PromoteProcessor:
    """Handlers of the codes above."""

    def __init__(
        self, broker: Broker, *, config_path: str | None, restart: Callable[[str], None]
    ) -> None:
        self._config = broker.config
        self._role = broker.role
        self._log = broker.store.commit_log
        self._reput = broker.store.reput
        self._ha = broker.ha
        self._identity = broker.identity
        self._succession = broker.succession
        self._disk = broker.disk
        self._tasks = broker.tasks
        self._config_path = config_path
        self._restart = restart
        self._counting = asyncio.Lock()
        self._counts_waiting = 0

    # 10003

    def replica(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_REPLICA: who this replica is, how far it is, what it knows of its group."""
        header = request.header(TwinlogReplicaRequestHeader)
        self._note_peer(header)
        if header.address:
            self._succession.greeted(header.cluster_name, header.broker_name, header.address)
        if header.count_from is not None or header.digest_end is not None:
            if self._counts_waiting >= COUNTS_WAITING_MAX:
                remark = "[REJECTREQUEST]system busy, others have their messages counted"
                raise BrokerError(ResponseCode.SYSTEM_BUSY, remark)
            self._counts_waiting += 1
            self._tasks.job(
                "replica-facts", self._measure(connection, request, header),
                failed=connection.refuse(request),
            )  # fmt: skip
        else:
            connection.reply(request, body=fastjson.dumps(self._facts()))

    def _note_peer(self, header: TwinlogReplicaRequestHeader) -> None:
        """A master of this group with a newer promotion: is it true that we are replaced?"""
        config = self._config
        ours = (config.broker_cluster_name, config.broker_name, "0")
        if (header.cluster_name, header.broker_name, header.broker_id) != ours:
            return
        if header.address and self._succession.is_later(header.promotion, header.address):
            self._succession.met_rival(header.address)

    def _facts(self) -> ReplicaInfo:
        config, memory = self._config, self._succession.memory
        replica_ids, in_sync_replicas = memory.replica_ids, memory.in_sync_replicas
        if self._role.is_master:
            replica_ids = sorted(self._ha.joined_replica_ids)
            in_sync_replicas = config.in_sync_replicas
        return ReplicaInfo(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=self._role.broker_id,
            broker_role=self._role.broker_role.value,
            store_id=self._identity.store_id,
            replica_uid=self._identity.replica_uid,
            promotion=self._identity.promotion,
            log_min=self._log.min_offset,
            log_end=self._log.max_offset,
            confirmed=self._ha.known_confirmed,
            master_end=self._ha.known_master_end,
            is_linked=self._ha.is_linked,
            damage=damage_advice(self._reput.damage_offset),
            is_controlled=self._role.is_controlled,
            replica_ids=replica_ids,
            in_sync_replicas=in_sync_replicas,
            master_role=memory.master_role,
            master_address=memory.master_address,
            heard_ms=memory.heard_ms,
        )

    async def _measure(
        self, connection: ServerConnection, request: Request, header: TwinlogReplicaRequestHeader
    ) -> None:
        """The same with what must be read from the log for it. One after the other."""
        try:
            async with self._counting:
                await self._measure_alone(connection, request, header)
        finally:
            self._counts_waiting -= 1

    async def _measure_alone(
        self, connection: ServerConnection, request: Request, header: TwinlogReplicaRequestHeader
    ) -> None:
        facts = self._facts()
        try:
            if header.digest_end is not None:
                facts.digest = digest(self._log, header.digest_start, header.digest_end)
            if header.count_from is not None:
                found = await count_messages(self._log, header.count_from)
                facts.message_count, facts.count_end = found
        except (StoreError, ValueError) as error:
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=str(error))
        else:
            connection.reply(request, body=fastjson.dumps(facts))

    # 10004

    def promote(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_PROMOTE: become the master. All was compared by who asks; here is checked what
        only this broker can know, and what may have changed since."""
        header, config = request.header(TwinlogPromoteRequestHeader), self._config
        role, log_end = header.broker_role, header.log_end
        if header.broker_name != config.broker_name:
            _refuse(f"this is a broker of {config.broker_name}, not of {header.broker_name}")
        if self._role.is_controlled:
            name = config.broker_name
            how = f"twinlog ha elect {name} --unclean {name}"
            _refuse(f"a controller decides who is the master of {name}; to overrule it: {how}")
        if self._role.is_master:
            _refuse(f"this broker is the master of {config.broker_name} already")
        if role not in _MASTER_ROLES:
            _refuse(f"brokerRole={role}: {' or '.join(_MASTER_ROLES)} is expected")
        if self._ha.is_linked:
            _refuse("this slave is connected to its master, which is alive: stop the master first")
        if self._log.max_offset < log_end:
            _refuse(f"the log ends at {self._log.max_offset} now, not at {log_end}: compare again")
        if damage := damage_advice(self._reput.damage_offset):
            _refuse(damage)
        self._grant(header)
        self._write_role(role)
        _LOG.warning("promoted role=%s peer=%s", role, connection.remote_text)
        connection.reply(request)
        self._restart(f"promoted to {role}")

    def _grant(self, header: TwinlogPromoteRequestHeader) -> None:
        """Before the role is in the file: a full disk must not leave half a promotion there."""
        try:
            self._identity.grant(header.promotion, max(header.compared_end, header.log_end))
        except OSError as error:
            self._identity.revoke()
            _refuse(f"the promotion cannot be saved in the store ({error}): nothing was changed")

    def _write_role(self, role: str) -> None:
        """Into the configuration file: the next start, whoever causes it, has the new role."""
        path, values = self._config_path, {"brokerRole": role, "brokerId": "0"}
        if path is None:
            self._identity.revoke()
            _refuse("this broker was started without a configuration file that could keep its role")
        assert path is not None
        try:
            write_values(self._disk, path, values)
        except (OSError, UnicodeDecodeError) as error:
            self._identity.revoke()
            wanted = ", ".join(f"{key}={value}" for key, value in values.items())
            _refuse(f"{path} cannot be written ({error}): set {wanted} there and restart it")


def _refuse(reason: str) -> None:
    raise BrokerError(ResponseCode.NO_PERMISSION, reason)


def digest(log: CommitLog, start: int, end: int) -> int:
    """The CRC of [start, end) of the log: replicas of one log have the same."""
    if not log.min_offset <= start <= end <= log.max_offset or end - start > DIGEST_SIZE_MAX:
        raise ValueError(f"[{start}, {end}) is not {DIGEST_SIZE_MAX} bytes of this log at most")
    pieces = []
    while start < end:
        pieces.append(log.read(start, end - start))
        start += len(pieces[-1])
    return crc32(b"".join(pieces))


async def count_messages(log: CommitLog, start: int) -> tuple[int, int]:
    """(messages in the log from the record at `start` on, where counting ended).

    Records by which replicas tell each other metadata are no messages of anybody.
    """
    count, offset = 0, start
    end = min(log.max_offset, start + COUNT_SIZE_MAX)
    while offset < end:
        data = log.read(offset, _READ_SIZE)
        position = 0
        while position + SIZE_MAGIC.size <= len(data):
            size, magic = SIZE_MAGIC.unpack_from(data, position)
            if magic == MAGIC_BLANK:
                position += size
                break
            if magic not in MESSAGE_MAGICS or size <= 0:
                raise ValueError(f"no record at {offset + position}")
            if position + size > len(data):
                break
            count += decode_record(data, position).topic != METADATA_TOPIC
            position += size
        if position == 0:
            if len(data) < _READ_SIZE:
                break
            # A record that is larger than what was read at once.
            position = size
            count += 1
        offset += position
        await asyncio.sleep(0)
    return count, offset
