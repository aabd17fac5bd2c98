"""A broker's words with its controller: 904, 1001, 1003, 1005, 1012, 1013.

Corresponds to the controller's part of RocketMQ 5's BrokerOuterAPI. One connection, to the
controller that leads; whichever answers at all says who that is. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from twinlog.broker.group.apache_controller import ApacheController
from twinlog.broker.group.beat import Beat
from twinlog.controller.record import GroupRecord, Policy
from twinlog.ha.authority import SetProposal
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.controller import SyncStateSet
from twinlog.remoting.client import RemotingClient
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import DECODE_ERRORS, RemotingError
from twinlog.remoting.headers import controller as headers
from twinlog.remoting.headers.base import Header
from twinlog.runtime.config import BrokerConfig

_LOG = logging.getLogger("twinlog.broker")
_TIMEOUT_MS = 1_000
_SWITCH_MS = 3_000
BUSY_CODES = (ResponseCode.SYSTEM_BUSY,)  # Something else is being decided: ask again.


class ControllerError(RemotingError):
    """No controller answered, or not with what was asked for."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


def policy_of(config: BrokerConfig) -> Policy:
    """What a broker's file says of the promises of its group."""
    return Policy(
        broker_role=config.broker_role.value,
        flush_disk_type=config.flush_disk_type.value,
        min_in_sync_replicas=config.min_in_sync_replicas,
        total_replicas=config.total_replicas,
    )


class ControllerLink:
    """Requests to whoever leads."""

    def __init__(self, client: RemotingClient, config: BrokerConfig) -> None:
        self._client = client
        self._config = config
        self._addresses = config.controller_addresses
        self._next = 0
        self.leader: str | None = None
        self._apache: ApacheController | None = None
        self._unanswered: SetProposal | None = None

    async def find(self) -> str:
        """The address of the leading controller; asks the next one each time it is not known."""
        if self.leader is not None:
            return self.leader
        address = self._addresses[self._next % len(self._addresses)]
        self._next += 1
        header = await self._metadata(address)
        leader = address if header.is_leader else header.controller_leader_address
        if not leader:
            raise ControllerError(f"{address}: no controller leads at the moment")
        await self._check_one_leads()
        self._take_kind(is_apache=header.twinlog is None)
        kind = "RocketMQ" if self._apache else "twinlog"
        _LOG.info("controller found leader=%s kind=%s", leader, kind)
        self.leader = leader
        return leader

    def _take_kind(self, *, is_apache: bool) -> None:
        """One that does not say that it is twinlog is RocketMQ's."""
        if not is_apache:
            self._apache = None
        elif self._apache is None:
            self._apache = ApacheController(self._client, self.ask, self._addresses)

    async def _metadata(self, address: str) -> headers.ControllerMetadataResponseHeader:
        answer = await self._invoke(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        if answer.code != ResponseCode.SUCCESS:
            raise ControllerError(f"{address}: code {answer.code} {answer.remark or ''}")
        return answer.header(headers.ControllerMetadataResponseHeader)

    async def _check_one_leads(self) -> None:
        """Controllers that share no etcd all lead: each would elect a master of its own.

        Raises:
            ControllerError: two of those that answer do.
        """
        if len(self._addresses) < 2:
            return
        asked = (self._metadata(address) for address in self._addresses)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        leaders = {
            answer.controller_leader_address or ""
            for answer in answers
            if isinstance(answer, headers.ControllerMetadataResponseHeader) and answer.is_leader
        }
        if len(leaders) > 1:
            raise ControllerError(
                f"controllers {' and '.join(sorted(leaders))} both lead: they have records of their"
                " own; name one in controllerAddr, or let them share an etcd"
            )

    def lost(self) -> None:
        """It does not answer, or does not lead any more: look for the leader again."""
        if self.leader is not None:
            self._client.close_connection(self.leader, "another controller is looked for")
        self.leader = None

    async def ask(
        self,
        code: RequestCode,
        header: Header | None,
        body: bytes = b"",
        *,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> Request:
        """
        Raises:
            ControllerError: the answer is a refusal, with its code.
            RemotingError: there is no answer.
        """
        address = await self.find()
        answer = await self._invoke(address, code, header, body, timeout_ms)
        if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.lost()
        if answer.code != ResponseCode.SUCCESS:
            text = f"{address}: code {answer.code} {answer.remark or ''}"
            raise ControllerError(text, answer.code)
        return answer

    async def _invoke(
        self,
        address: str,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        timeout_ms: int = _TIMEOUT_MS,
    ) -> Request:
        command = RemotingCommand.request(code, header, body)
        try:
            return await self._client.invoke(address, command, timeout_ms)
        except OSError as error:
            raise ControllerError(f"{address}: {error}") from error

    # What is asked

    async def heartbeat(
        self,
        header: headers.ControllerHeartbeatRequestHeader,
        stored: GroupRecord | None,
        sent_ms: int,
    ) -> Beat:
        await self.find()
        if self._apache is not None:
            policy = policy_of(self._config) if stored is None else stored.policy
            return await self._apache.heartbeat(header, policy, sent_ms)
        body = b"" if stored is None else msgspec.json.encode(stored)
        answer = await self.ask(RequestCode.BROKER_HEARTBEAT, header, body)
        says = answer.header(headers.ControllerHeartbeatResponseHeader)
        return Beat(
            sent_ms,
            decode_record(answer.body) if answer.body else None,
            says.twinlog_lease_ms or 0,
            bool(says.twinlog_admitted),
            says.twinlog_hand_over,
            says.twinlog_frozen or "",
        )

    async def propose(
        self, name: str, own_id: int, incarnation: str, proposal: SetProposal
    ) -> None:
        """Ask for a set; it counts when the next heartbeat brings it."""
        told = ";".join(f"{n}={token}" for n, token in sorted(proposal.incarnations.items()))
        header = headers.AlterSyncStateSetRequestHeader(
            broker_name=name,
            master_broker_id=own_id,
            master_epoch=proposal.epoch,
            twinlog_incarnation=incarnation,
            twinlog_incarnations=told,
            twinlog_reason=proposal.reason or None,
        )
        body = SyncStateSet(sorted(proposal.members), proposal.set_epoch)
        code = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET
        try:
            await self.ask(code, header, fastjson.dumps(body))
        except RemotingError as error:
            if not isinstance(error, ControllerError) or error.code is None:
                self._unanswered = proposal
            raise

    @property
    def is_apache(self) -> bool:
        return self._apache is not None

    def is_only_copy(self, proposal: SetProposal) -> bool:
        """Whether no copy of a proposal that was answered can be on its way."""
        return self._unanswered != proposal

    async def next_id(self, cluster: str, name: str) -> int:
        header = headers.BrokerSetRequestHeader(cluster, name)
        answer = await self.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, header)
        return answer.header(headers.NextBrokerIdResponseHeader).next_broker_id

    async def elect(self, config: BrokerConfig, target: int) -> None:
        """A planned switch to `target`; returns when it is decided."""
        header = headers.ElectMasterRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=target,
            designate_elect=True,
        )
        await self.ask(RequestCode.CONTROLLER_ELECT_MASTER, header, timeout_ms=_SWITCH_MS)

    async def register(self, code: RequestCode, **fields: Any) -> None:
        """1013 and 1003."""
        kind: Any = headers.RegisterBrokerToControllerRequestHeader
        if code == RequestCode.CONTROLLER_APPLY_BROKER_ID:
            kind = headers.ApplyBrokerIdRequestHeader
        await self.ask(code, kind(**fields))


def decode_record(body: bytes) -> GroupRecord:
    """
    Raises:
        ControllerError: it is no record.
    """
    try:
        record = msgspec.json.decode(body, type=GroupRecord)
        record.check()
    except (*DECODE_ERRORS, AssertionError) as error:
        raise ControllerError(f"the controller's record cannot be read: {error}") from error
    return record
