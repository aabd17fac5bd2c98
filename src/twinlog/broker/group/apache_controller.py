"""A group under RocketMQ 5's own controller: what it says, in the terms of ours.

It answers heartbeats with nothing, so who leads is asked for (1004, and 1006 for the addresses). It
knows no incarnations and no leases, and makes the set of a new epoch the new master alone. What
follows from that:

- No lease: no reply leaves before all of the set has the record.
- The master is an id. A master that began again is the master still, of the same epoch; its log has
  all that it confirmed, unless it is in doubt.
- A replica in doubt sends no heartbeats as long as it is in the set with others: without them it is
  not elected, and the master takes it out. When it has been out, it is like a new one.
- A proposal over an older set epoch is refused, but the present set cannot be committed again. A
  refusal ends a proposal only if no other copy of it can be on its way.
- It makes the first replica that asks the master of a group that it does not know. So only a broker
  with an empty log asks; one with messages waits for an operator (`mqadmin electMaster`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twinlog.broker.group.beat import Beat
from twinlog.controller.record import GroupRecord, Policy, Replica
from twinlog.remoting import fastjson
from twinlog.remoting.addresses import join_address, split_address
from twinlog.remoting.bodies.controller import BrokerReplicasInfo, SyncStateSet
from twinlog.remoting.bodies.twinlog import BrokerInfo
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers import controller as headers
from twinlog.remoting.headers.base import Header

_LOG = logging.getLogger("twinlog.broker")
_INFO_MS = 1_000
_REPLICAS_MAX = 1 << 10
_Body = TypeVar("_Body", SyncStateSet, BrokerReplicasInfo)
Ask = Callable[[RequestCode, Header | None, bytes], Awaitable[Request]]


class ApacheController:
    """One group. `ask` puts a request to the controller that leads."""

    def __init__(self, client: RemotingClient, ask: Ask, addresses: list[str]) -> None:
        self._client = client
        self._ask = ask
        self._addresses = addresses
        self._was_out = False
        self._ha_addresses: dict[str, str] = {}
        self._is_complained = False

    async def heartbeat(
        self, header: headers.ControllerHeartbeatRequestHeader, policy: Policy, sent_ms: int
    ) -> Beat:
        """What a controller of ours would have answered."""
        own = header.broker_id
        assert own is not None
        info = headers.ReplicaInfoRequestHeader(header.broker_name)
        answer = await self._ask(RequestCode.CONTROLLER_GET_REPLICA_INFO, info, b"")
        master = answer.header(headers.MasterResponseHeader)
        known = _decoded(answer.body, SyncStateSet) if answer.body else SyncStateSet()
        members = frozenset(known.sync_state_set)
        self._was_out = self._was_out or own not in members
        if header.twinlog_complete or self._was_out or members == {own}:
            await self._beat(header)
            if master.master_broker_id is None:
                await self._elect(header, members)
        if master.master_broker_id is None or not master.master_epoch:
            return Beat(sent_ms, None)
        record = await self._record(header, policy, master, known)
        return Beat(sent_ms, record, is_admitted=self._was_out and own in members)

    async def _beat(self, header: headers.ControllerHeartbeatRequestHeader) -> None:
        """One-way to all of them, as Apache's brokers do: the next leader must know who lives."""
        for address in self._addresses:
            command = RemotingCommand.request(RequestCode.BROKER_HEARTBEAT, header)
            try:
                await self._client.oneway(address, command)
            except RemotingError as error:
                _LOG.debug("no heartbeat address=%s error=%s", address, error)

    async def _elect(
        self, header: headers.ControllerHeartbeatRequestHeader, members: frozenset[int]
    ) -> None:
        """Nobody leads: it elects when it is asked to."""
        if not members and (header.max_offset or header.twinlog_known_epoch):
            if not self._is_complained:
                self._is_complained = True
                _LOG.error(
                    "the controller does not know group %s, and this broker has messages: an"
                    " operator must choose the master (mqadmin electMaster)", header.broker_name,
                )  # fmt: skip
            return
        assert header.broker_id is not None
        wish = headers.ElectMasterRequestHeader(
            header.cluster_name, header.broker_name, header.broker_id
        )
        try:
            await self._ask(RequestCode.CONTROLLER_ELECT_MASTER, wish, b"")
        except RemotingError as error:
            _LOG.debug("no election: %s", error)

    async def _record(
        self,
        header: headers.ControllerHeartbeatRequestHeader,
        policy: Policy,
        master: headers.MasterResponseHeader,
        known: SyncStateSet,
    ) -> GroupRecord:
        own, leads = header.broker_id, master.master_broker_id
        replicas = await self._replicas(header.broker_name)
        address = master.master_address or ""
        if leads is not None:
            ha_address = "" if leads == own else await self._ha_address(address)
            replicas[leads] = Replica(broker_id=leads, address=address, ha_address=ha_address)
        members = frozenset(known.sync_state_set)
        epoch = master.master_epoch or 0
        record = GroupRecord(
            cluster=header.cluster_name,
            group=header.broker_name,
            # Grows with each of the three; replicas are never forgotten while they live.
            version=(epoch + known.sync_state_set_epoch) * _REPLICAS_MAX + len(replicas),
            master_epoch=epoch,
            master_broker_id=leads,
            master_incarnation=header.twinlog_incarnation or "" if leads == own else "",
            sync_state_set=members,
            sync_state_set_epoch=known.sync_state_set_epoch,
            policy=policy,
            replicas=replicas | {n: Replica(broker_id=n) for n in members - replicas.keys()},
        )
        record.check()
        return record

    async def _replicas(self, name: str) -> dict[int, Replica]:
        body = fastjson.dumps([name])
        answer = await self._ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body)
        found = _decoded(answer.body, BrokerReplicasInfo).replicas_info_table.get(name)
        if found is None:
            return {}
        entries = [*found.in_sync_replicas, *found.not_in_sync_replicas]
        return {
            entry.broker_id: Replica(broker_id=entry.broker_id, address=entry.broker_address)
            for entry in entries[:_REPLICAS_MAX]
        }

    async def _ha_address(self, address: str) -> str:
        """Of the master, which alone knows it; behind its service port unless it says otherwise."""
        if address in self._ha_addresses:
            return self._ha_addresses[address]
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise RemotingError(f"the controller names a master without a port: {error}") from error
        try:
            command = RemotingCommand.request(RequestCode.TWINLOG_INFO)
            answer = await self._client.invoke(address, command, _INFO_MS)
            is_answer = answer.code == ResponseCode.SUCCESS
            info = fastjson.loads_as(answer.body if is_answer else b"{}", BrokerInfo)
        except (fastjson.FastjsonError, RemotingError, OSError) as error:
            _LOG.debug("master not asked address=%s error=%s", address, error)
            return join_address(host, port + 1)
        if not info.ha_address:
            return join_address(host, port + 1)
        self._ha_addresses = {address: info.ha_address}
        return info.ha_address


def _decoded(body: bytes, kind: type[_Body]) -> _Body:
    """
    Raises:
        RemotingError: it is something else.
    """
    try:
        return fastjson.loads_as(body, kind, is_forgiving=True)
    except fastjson.FastjsonError as error:
        raise RemotingError(f"the controller's answer cannot be read: {error}") from error
