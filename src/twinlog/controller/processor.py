"""What a controller answers to each request: RocketMQ 5.3's ControllerRequestProcessor.

Shell over the pure core: a request becomes an event, the core's reply becomes an answer. Codes are
RocketMQ's; fields that begin with `twinlog` are left out for Apache's brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from twinlog.controller import events
from twinlog.controller.events import Reply
from twinlog.controller.group import Group
from twinlog.controller.membership import Proposal
from twinlog.controller.operators import KnowsGroups, OperatorRequests
from twinlog.controller.record import GroupRecord, Policy, Replica, next_broker_id
from twinlog.controller.refusals import RESPONSE_CODES
from twinlog.controller.strangers import other_cluster
from twinlog.remoting import fastjson
from twinlog.remoting.bodies import controller as bodies
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.errors import DECODE_ERRORS, CommandError
from twinlog.remoting.headers import controller as headers
from twinlog.remoting.request_table import (
    ADMIN,
    ANY_ACCOUNT,
    SMALL_BODY,
    UNUSED_BODY,
    NoHeader,
    RequestTable,
    Row,
)
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.numbers import number_or_none

_ID_MAX = 2**31 - 1
TEXT_MAX = 255
_T = TypeVar("_T")


class Decides(KnowsGroups, Protocol):
    """The shell that owns the core while this process leads."""

    @property
    def why_nobody_leads(self) -> str: ...

    def metadata(self) -> headers.ControllerMetadataResponseHeader: ...

    def config_text(self) -> str: ...

    def update_config(self, text: str) -> None: ...


class ControllerProcessor:
    """One row for each request code."""

    def __init__(self, shell: Decides) -> None:
        self._shell = shell
        operators = OperatorRequests(shell, self._leading)
        self.table = RequestTable([*self._rows(), *operators.rows()])

    def _rows(self) -> list[Row[Any]]:
        code, leads = RequestCode, self._leading
        return [
            Row(code.BROKER_HEARTBEAT, headers.ControllerHeartbeatRequestHeader,
                leads(self._heartbeat), ADMIN, SMALL_BODY),
            Row(code.CONTROLLER_ALTER_SYNC_STATE_SET, headers.AlterSyncStateSetRequestHeader,
                leads(self._alter), ADMIN, SMALL_BODY),
            Row(code.CONTROLLER_ELECT_MASTER, headers.ElectMasterRequestHeader,
                leads(self._elect), ADMIN, UNUSED_BODY,
                lambda header, _: f"elect {header.broker_name} {header.broker_id}"),
            Row(code.CONTROLLER_REGISTER_BROKER, headers.RegisterBrokerToControllerRequestHeader,
                leads(self._register), ADMIN, UNUSED_BODY),
            Row(code.CONTROLLER_GET_REPLICA_INFO, headers.ReplicaInfoRequestHeader,
                leads(self._replica_info), ANY_ACCOUNT, UNUSED_BODY),
            Row(code.CONTROLLER_GET_METADATA_INFO, NoHeader,
                self._metadata, ANY_ACCOUNT, UNUSED_BODY),
            Row(code.CONTROLLER_GET_SYNC_STATE_DATA, NoHeader,
                leads(self._sync_state_data), ANY_ACCOUNT, SMALL_BODY),
            Row(code.UPDATE_CONTROLLER_CONFIG, NoHeader, self._update_config, ADMIN, SMALL_BODY),
            Row(code.GET_CONTROLLER_CONFIG, NoHeader, self._get_config, ADMIN, UNUSED_BODY),
            Row(code.CLEAN_BROKER_DATA, headers.CleanBrokerDataRequestHeader,
                leads(self._clean), ADMIN, UNUSED_BODY,
                lambda header, _: f"forget replicas of {header.broker_name}"),
            Row(code.CONTROLLER_GET_NEXT_BROKER_ID, headers.BrokerSetRequestHeader,
                leads(self._next_id), ADMIN, UNUSED_BODY),
            Row(code.CONTROLLER_APPLY_BROKER_ID, headers.ApplyBrokerIdRequestHeader,
                leads(self._apply_id), ADMIN, UNUSED_BODY),
        ]  # fmt: skip

    def _leading(
        self, answer: Callable[[ServerConnection, Request], None]
    ) -> Callable[[ServerConnection, Request], None]:
        """Only the leader decides; the others say who that is (1005)."""

        def checked(connection: ServerConnection, request: Request) -> None:
            if self._shell.core is None:
                leader = self._shell.metadata().controller_leader_address
                problem = self._shell.why_nobody_leads
                remark = f"this controller is not the leader, {leader or 'nobody'} is"
                if problem and not leader:
                    remark += f": {problem}"
                connection.reply(request, ResponseCode.CONTROLLER_NOT_LEADER, remark=remark)
            else:
                answer(connection, request)

        return checked

    # Brokers

    def _heartbeat(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.ControllerHeartbeatRequestHeader)
        if header.broker_id is None:
            raise CommandError("a heartbeat without brokerId")
        is_twinlog = header.twinlog_incarnation is not None
        known = header.epoch or 0
        if header.twinlog_known_epoch is not None:
            known = header.twinlog_known_epoch

        def answer(reply: Reply) -> None:
            if request.is_oneway:
                return
            if not is_twinlog:
                connection.reply(request, RESPONSE_CODES[reply.kind], remark=reply.error or _BEAT)
                return
            connection.reply(
                request,
                RESPONSE_CODES[reply.kind],
                header=headers.ControllerHeartbeatResponseHeader(
                    twinlog_lease_ms=reply.lease_ms,
                    twinlog_admitted=reply.is_admitted,
                    twinlog_hand_over=reply.hand_over_to,
                    twinlog_frozen=reply.frozen or None,
                ),
                body=b"" if reply.record is None else msgspec.json.encode(reply.record),
                remark=reply.error or None,
            )

        self._shell.handle(
            events.Heartbeat(
                group=header.broker_name,
                broker_id=header.broker_id,
                connection=connection_number(connection),
                incarnation=header.twinlog_incarnation or "",
                cluster=header.cluster_name,
                address=header.broker_addr,
                known_epoch=known,
                last_epoch=header.epoch or 0,
                end=header.max_offset or 0,
                confirmed=header.confirm_offset,
                is_complete=header.twinlog_complete,
                processes=tuple(filter(None, (header.twinlog_processes or "").split(";"))),
                is_writable=header.twinlog_writable,
                link_ms=header.twinlog_link,
                drained_end=header.twinlog_drained,
                stored=_stored(request.body) if is_twinlog else None,
                was_master=header.twinlog_was_master,
                clock_ms=header.twinlog_clock,
                token=answer,
            )
        )

    def _alter(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.AlterSyncStateSetRequestHeader)
        wanted = _body(request, bodies.SyncStateSet)
        group = self._known(header.broker_name)
        living = {} if group is None else group.living(self._shell.now_ms)
        # Apache's master does not say whom it has seen; then whoever lives now is meant.
        given = header.twinlog_incarnations
        incarnations = living if given is None else parse_incarnations(given)
        proposal = Proposal(
            broker_id=header.master_broker_id,
            incarnation=header.twinlog_incarnation or "",
            master_epoch=header.master_epoch,
            set_epoch=wanted.sync_state_set_epoch,
            members=frozenset(wanted.sync_state_set),
            incarnations=incarnations,
            reason=(header.twinlog_reason or "the master proposed it")[:TEXT_MAX],
        )

        def answer(reply: Reply) -> None:
            if reply.error or reply.record is None:
                self._answer_record(connection, request, reply)
                return
            record = reply.record
            connection.reply(
                request,
                ResponseCode.SUCCESS,
                header=headers.AlterSyncStateSetResponseHeader(record.sync_state_set_epoch),
                body=fastjson.dumps(set_body(record)),
            )

        self._shell.handle(events.AlterSyncStateSet(header.broker_name, proposal, answer))

    def _register(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.RegisterBrokerToControllerRequestHeader)
        group = self._known(header.broker_name)
        if group is None or header.broker_id not in group.record.replicas:
            remark = f"id {header.broker_id} of {header.broker_name} was never applied for (1013)"
            code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
            connection.reply(request, code, remark=remark)
            return
        priority = header.twinlog_priority
        replica = Replica(
            broker_id=header.broker_id,
            uid=header.twinlog_uid or "",
            address=header.broker_address,
            ha_address=header.twinlog_ha_addr or "",
            learner=header.twinlog_learner,
            priority=2**31 - 1 if priority is None else priority,
        )
        _check_texts(header.cluster_name, header.broker_name, replica)
        self._send_registration(connection, request, header.cluster_name, header.broker_name,
                                replica, _policy(header.twinlog_policy))  # fmt: skip

    def _apply_id(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.ApplyBrokerIdRequestHeader)
        if not 0 < header.applied_broker_id <= _ID_MAX:
            raise CommandError(f"appliedBrokerId={header.applied_broker_id}: ids begin with 1")
        replica = Replica(
            broker_id=header.applied_broker_id,
            uid=header.twinlog_uid or "",
            check_code=header.register_check_code,
            address=header.register_check_code.partition(";")[0],
        )
        policy = _policy(header.twinlog_policy)  # The first of a name brings it.
        _check_texts(header.cluster_name, header.broker_name, replica)
        self._send_registration(
            connection, request, header.cluster_name, header.broker_name, replica, policy
        )

    def _send_registration(
        self,
        connection: ServerConnection,
        request: Request,
        cluster: str,
        name: str,
        replica: Replica,
        policy: Policy,
    ) -> None:
        def answer(reply: Reply) -> None:
            self._answer_record(connection, request, reply)

        self._shell.handle(events.RegisterReplica(cluster, name, replica, policy, answer))

    def _next_id(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.BrokerSetRequestHeader)
        group = self._known(header.broker_name)
        number = 1 if group is None else next_broker_id(group.record)
        answer = headers.NextBrokerIdResponseHeader(header.cluster_name, header.broker_name, number)
        connection.reply(request, ResponseCode.SUCCESS, header=answer)

    # Operators

    def _elect(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.ElectMasterRequestHeader)
        if self._is_of_another_cluster(connection, request, header):
            return
        wanted = header.broker_id if header.designate_elect and header.broker_id > 0 else None

        def answer(reply: Reply) -> None:
            self._answer_election(connection, request, reply)

        self._shell.handle(
            events.ElectMaster(
                header.broker_name,
                designate=wanted,
                is_unclean=header.twinlog_unclean is not None,
                typed_group=header.twinlog_unclean or "",
                token=answer,
            )
        )

    def _clean(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.CleanBrokerDataRequestHeader)
        group = self._known(header.broker_name)
        code = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        if group is None:
            remark = f"Broker {header.broker_name} is not existed,clean broker data failure."
            connection.reply(request, code, remark=remark)
            return
        if self._is_of_another_cluster(connection, request, header):
            return
        text = header.broker_controller_ids_to_clean or ""
        ids = [number_or_none(part, 1, _ID_MAX) for part in text.split(";") if part]
        if not ids or any(n is None for n in ids):
            remark = "brokerControllerIdsToClean: name the replicas, for instance 1;2"
            connection.reply(request, code, remark=remark)
            return
        found = [n for n in ids if n]
        is_living = header.is_clean_living_broker
        self._remove_next(connection, request, header.broker_name, found, is_living)

    def _is_of_another_cluster(
        self,
        connection: ServerConnection,
        request: Request,
        header: headers.ElectMasterRequestHeader | headers.CleanBrokerDataRequestHeader,
    ) -> bool:
        """Whoever names another cluster means another group: refused."""
        group, cluster = self._known(header.broker_name), header.cluster_name
        if group is None or not cluster or not (why := other_cluster(group.record, cluster)):
            return False
        connection.reply(request, ResponseCode.CONTROLLER_INVALID_REQUEST, remark=why)
        return True

    def _remove_next(
        self,
        connection: ServerConnection,
        request: Request,
        name: str,
        ids: list[int],
        is_living: bool,
    ) -> None:
        """One after the other, up to the first that is refused."""

        def answer(reply: Reply) -> None:
            if reply.error or len(ids) == 1:
                connection.reply(request, RESPONSE_CODES[reply.kind], remark=reply.error or None)
            else:
                self._remove_next(connection, request, name, ids[1:], is_living)

        self._shell.handle(events.RemoveReplica(name, ids[0], is_living, answer))

    # Questions

    def _metadata(self, connection: ServerConnection, request: Request) -> None:
        connection.reply(request, ResponseCode.SUCCESS, header=self._shell.metadata())

    def _replica_info(self, connection: ServerConnection, request: Request) -> None:
        header = request.header(headers.ReplicaInfoRequestHeader)
        group = self._known(header.broker_name)
        if group is None:
            code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
            connection.reply(request, code, remark="Broker metadata is not existed")
            return
        self._answer_record(connection, request, Reply(None, group.record), names_group=False)

    def _sync_state_data(self, connection: ServerConnection, request: Request) -> None:
        names = _body(request, list[str]) if request.body else []
        now_ms = self._shell.now_ms
        table = {
            name: _replicas_info(group, now_ms)
            for name in names
            if (group := self._known(name)) is not None
        }
        body = fastjson.dumps(bodies.BrokerReplicasInfo(table))
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    def _get_config(self, connection: ServerConnection, request: Request) -> None:
        body = self._shell.config_text().encode()
        connection.reply(request, ResponseCode.SUCCESS, body=body)

    def _update_config(self, connection: ServerConnection, request: Request) -> None:
        try:
            text = request.body.decode()
        except UnicodeDecodeError as error:
            raise CommandError(f"the body is not UTF-8: {error}") from error
        self._shell.update_config(text)
        connection.reply(request, ResponseCode.SUCCESS)

    def _known(self, name: str) -> Group | None:
        core = self._shell.core
        return None if core is None else core.groups.get(name)

    # Answers

    def _answer_record(
        self,
        connection: ServerConnection,
        request: Request,
        reply: Reply,
        *,
        names_group: bool = True,
    ) -> None:
        record = reply.record
        if record is None or reply.error:
            connection.reply(request, RESPONSE_CODES[reply.kind], remark=reply.error or None)
            return
        header = master_header(record)
        if names_group:
            header.cluster_name, header.broker_name = record.cluster, record.group
        else:
            header.sync_state_set_epoch = None
        body = fastjson.dumps(set_body(record))
        connection.reply(request, ResponseCode.SUCCESS, header=header, body=body)

    def _answer_election(
        self, connection: ServerConnection, request: Request, reply: Reply
    ) -> None:
        record = reply.record
        if record is None or reply.error:
            connection.reply(request, RESPONSE_CODES[reply.kind], remark=reply.error or None)
            return
        addresses = {n: replica.address for n, replica in record.replicas.items()}
        group = bodies.BrokerMemberGroup(record.cluster, record.group, addresses)
        body = bodies.ElectMasterResponseBody(group, sorted(record.sync_state_set))
        code = ResponseCode.SUCCESS
        if record.master_broker_id is None:
            code = ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE
        connection.reply(request, code, header=master_header(record), body=fastjson.dumps(body))


def _check_texts(cluster: str, name: str, replica: Replica) -> None:
    """What is written for good has a length that is sane.

    Raises:
        CommandError: it has not.
    """
    if not cluster or not name:
        raise CommandError("clusterName and brokerName must not be empty")
    texts = (cluster, name, replica.uid, replica.check_code, replica.address, replica.ha_address)
    if any(len(text) > TEXT_MAX for text in texts):
        raise CommandError(f"a name, address or code is longer than {TEXT_MAX} characters")


def _body(request: Request, wanted: type[_T]) -> _T:
    try:
        return fastjson.loads_as(request.body, wanted, lenient_max=fastjson.LENIENT_SIZE_MAX)
    except ValueError as error:
        raise CommandError(f"the body of request {request.code}: {error}") from error


_BEAT = "Heart beat success"
_NUMBER = "controller-connection"
_numbers = iter(range(1, 2**62))


def connection_number(connection: ServerConnection) -> int:
    """Numbers in the order in which connections are first heard of; a later one is newer."""
    number = connection.attributes.get(_NUMBER)
    if number is None:
        number = connection.attributes[_NUMBER] = next(_numbers)
    return int(number)


def master_header(record: GroupRecord) -> headers.MasterResponseHeader:
    master = record.replicas.get(record.master_broker_id or 0)
    return headers.MasterResponseHeader(
        master_broker_id=record.master_broker_id,
        master_address=None if master is None else master.address,
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
    )


def set_body(record: GroupRecord) -> bodies.SyncStateSet:
    return bodies.SyncStateSet(sorted(record.sync_state_set), record.sync_state_set_epoch)


def _replicas_info(group: Group, now_ms: int) -> bodies.ReplicasInfo:
    record = group.record
    header = master_header(record)
    info = bodies.ReplicasInfo(
        master_broker_id=record.master_broker_id,
        master_address=header.master_address,
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
    )
    for n, replica in sorted(record.replicas.items()):
        is_alive = group.is_alive(n, now_ms)
        identity = bodies.ReplicaIdentity(record.group, n, replica.address, is_alive)
        is_member = n in record.sync_state_set
        (info.in_sync_replicas if is_member else info.not_in_sync_replicas).append(identity)
    return info


_INCARNATIONS_MAX = 16 * 1024  # More than a group has replicas.


def parse_incarnations(text: str) -> dict[int, str]:
    """`2=abc;3=def`.

    Raises:
        CommandError: it has another form.
    """
    if len(text) > _INCARNATIONS_MAX:
        raise CommandError(f"twinlogIncarnations is longer than {_INCARNATIONS_MAX} characters")
    pairs = [part.partition("=") for part in text.split(";") if part]
    found = {number_or_none(number, 1, _ID_MAX): token for number, _, token in pairs}
    if None in found or not all(found.values()):
        raise CommandError(f"twinlogIncarnations={text[:80]}: expected id=incarnation;...")
    return {number: token for number, token in found.items() if number is not None}


def _stored(body: bytes) -> GroupRecord | None:
    if not body:
        return None
    try:
        return msgspec.json.decode(body, type=GroupRecord)
    except DECODE_ERRORS as error:
        raise CommandError(f"the record in a heartbeat cannot be read: {error}") from error


def _policy(text: str | None) -> Policy:
    if not text:
        return Policy()
    try:
        return msgspec.json.decode(text, type=Policy)
    except DECODE_ERRORS as error:
        raise CommandError(f"twinlogPolicy cannot be read: {error}") from error
