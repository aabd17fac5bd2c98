"""Sends to a broker that is not the master: passed on to the one that is.

Clients of RocketMQ 4.9 look for a new route every 30 s only, so for a while they send to the master
of before. It holds such requests until it knows who leads, passes each on in an envelope with the
client's address, and gives back the answer. Bounded in number and time; one hop: a broker that is
not the master itself refuses an envelope, and the sender tries again until the deadline.

An answer that is lost on the way back leaves the outcome unknown: code 1, which nobody takes for
"not stored". A request that never left is refused with 14.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinlog.broker.group.member_hosts import MemberHosts
from twinlog.remoting import codec
from twinlog.remoting.addresses import split_address
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.errors import ConnectError, RemotingError, TooManyRequestsError
from twinlog.remoting.headers.twinlog import TwinlogRelayRequestHeader
from twinlog.remoting.relayed import RelayedConnection
from twinlog.remoting.server import ServerConnection

if TYPE_CHECKING:
    from twinlog.broker.server import Broker
    from twinlog.controller.record import GroupRecord

_LOG = logging.getLogger("twinlog.broker")
RELAYED_CODES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.END_TRANSACTION,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    }
)
WAIT_MS_MAX = 2_500  # Below the 3 s that clients wait for the answer.
_ANSWER_MS_MAX = 3_000
_RETRY_MS = 20
_WAITING_MAX = 10_000


class _Waiting:
    __slots__ = ("connection", "deadline_ms", "request")

    def __init__(self, connection: ServerConnection, request: Request, deadline_ms: int) -> None:
        self.connection = connection
        self.request = request
        self.deadline_ms = deadline_ms


class Relay:
    """Both ends: `takes` of a broker that does not lead, `serve` of the one that does."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._waiting: list[_Waiting] = []
        self._under_way = 0
        self._is_scheduled = False
        self._hosts = MemberHosts(broker.clock)
        self._until_ms = self._clock.monotonic_ms() + broker.config.twinlog_relay_ms
        self.master_address: str | None = None
        self.is_holding = False
        """The master hands over: it leads still, and keeps new sends back."""
        self.relayed_count = 0

    # On a broker that is not the master

    @property
    def count(self) -> int:
        """Requests that have no answer yet."""
        return len(self._waiting) + self._under_way

    def lost_mastership(self) -> None:
        self.master_address = None
        self._until_ms = self._clock.monotonic_ms() + self._broker.config.twinlog_relay_ms

    def wants(self, request: Request) -> bool:
        """Whether this broker does not answer it itself now."""
        if request.code not in RELAYED_CODES:
            return False
        if self.is_holding:
            return True
        return not self._broker.role.is_master and self._clock.monotonic_ms() < self._until_ms

    def takes(self, connection: ServerConnection, request: Request) -> bool:
        """Hold this request, and pass it on; False: it must be answered here."""
        if isinstance(connection, RelayedConnection) or len(self._waiting) >= _WAITING_MAX:
            return False  # One hop.
        deadline_ms = self._clock.monotonic_ms() + WAIT_MS_MAX
        self._waiting.append(_Waiting(connection, request, deadline_ms))
        self._schedule(0)
        return True

    def master_is(self, address: str | None) -> None:
        """Who leads now; what waits goes there."""
        self.master_address = address
        self._schedule(0)

    def release(self) -> None:
        """This broker leads after all: it answers itself."""
        waiting, self._waiting = self._waiting, []
        for item in waiting:
            if not item.connection.is_closed:
                self._broker.redispatch(item.connection, item.request)

    def _schedule(self, delay_ms: int) -> None:
        if not self._is_scheduled and self._waiting:
            self._is_scheduled = True
            self._clock.call_later_ms(delay_ms, self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        # A request that was under way when this broker began to lead comes back here.
        leads = self._broker.role.is_master and not self.is_holding
        self._broker.failures.contain("relay", self.release if leads else self._pass_on)
        self._schedule(_RETRY_MS)

    def _pass_on(self) -> None:
        address = self.master_address
        can_leave = address is not None and not self.is_holding
        waiting, self._waiting = self._waiting, []
        now_ms = self._clock.monotonic_ms()
        for item in waiting:
            if item.connection.is_closed:
                continue
            if now_ms >= item.deadline_ms:
                text = "no broker of this group leads at the moment"
                self._answer(item, ResponseCode.SERVICE_NOT_AVAILABLE, text)
            elif can_leave:
                assert address is not None
                self._send(address, item)
            else:
                self._waiting.append(item)

    def _send(self, address: str, item: _Waiting) -> None:
        header = TwinlogRelayRequestHeader(client_address=item.connection.remote_text)
        command = RemotingCommand.request(
            RequestCode.TWINLOG_RELAY, header, codec.encode_command(item.request)
        )

        def answered(answer: Request | None, error: RemotingError | None) -> None:
            self._under_way -= 1
            self._answered(item, answer, error)

        self._under_way += 1
        try:
            self._broker.client.submit(address, command, _ANSWER_MS_MAX, answered)
        except TooManyRequestsError:
            self._under_way -= 1
            self._waiting.append(item)

    def _answered(
        self, item: _Waiting, answer: Request | None, error: RemotingError | None
    ) -> None:
        is_later = isinstance(error, ConnectError) or (
            answer is not None and answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        )
        if is_later:
            # Nothing was taken: it becomes the master in a moment, or another one does.
            self._waiting.append(item)
            self._schedule(_RETRY_MS)
        elif answer is None or answer.code != ResponseCode.SUCCESS:
            reason = error if answer is None else answer.remark
            text = f"passed on to the master, outcome unknown: {reason}"
            self._answer(item, ResponseCode.SYSTEM_ERROR, text)
        else:
            self.relayed_count += 1
            if answer.body and not item.connection.is_closed:
                item.connection.write(bytes(answer.body))

    def _answer(self, item: _Waiting, code: int, remark: str) -> None:
        if not item.connection.is_closed:
            item.connection.reply(item.request, code, remark=remark)

    # On the master

    def serve(self, connection: ServerConnection, request: Request) -> None:
        """TWINLOG_RELAY (10005): the inner request is checked as the client's own."""
        broker = self._broker
        if not broker.role.is_master or self.is_holding:
            code = ResponseCode.SERVICE_NOT_AVAILABLE
            connection.reply(request, code, remark="this broker is not the master")
            return
        record = None if broker.replicas is None else broker.replicas.record
        if record is not None and self._hosts.knows(record, connection.remote_address[0]):
            self._serve_member(connection, request)
        elif record is not None and self._hosts.may_look_up(record):
            broker.tasks.job(
                "relay-names", self._serve_when_known(connection, request, record),
                failed=connection.refuse(request),
            )  # fmt: skip
        else:
            _refuse_stranger(connection, request)

    async def _serve_when_known(
        self, connection: ServerConnection, request: Request, record: GroupRecord
    ) -> None:
        """Replicas with names: whether this is one of them has to be looked up."""
        await self._hosts.look_up(record)
        if not self._hosts.knows(record, connection.remote_address[0]):
            _refuse_stranger(connection, request)
        elif not connection.is_closed:
            self.serve(connection, request)

    def _serve_member(self, connection: ServerConnection, request: Request) -> None:
        broker = self._broker
        header = request.header(TwinlogRelayRequestHeader)
        pieces: list[bytes] = []

        def answered(data: bytes) -> None:
            pieces.append(data)
            if is_whole(pieces):
                connection.reply(request, body=b"".join(pieces))

        inner = RelayedConnection(
            broker.server, broker.requests.handle, _host_and_port(header.client_address), answered
        )
        if _is_oneway(request.body):
            connection.reply(request)
        inner.data_received(request.body)
        inner.flush()


def _refuse_stranger(connection: ServerConnection, request: Request) -> None:
    remark = "only replicas of this group pass requests on"
    connection.reply(request, ResponseCode.NO_PERMISSION, remark=remark)


def is_whole(pieces: list[bytes]) -> bool:
    """Whether they are one frame: four bytes of length, then as many."""
    size = sum(map(len, pieces))
    start = b"".join(pieces[:4])[:4] if size >= 4 else b""
    return len(start) == 4 and size >= 4 + int.from_bytes(start, "big")


def _is_oneway(frame: bytes) -> bool:
    header_size = int.from_bytes(frame[5:8], "big")
    try:
        return codec.decode_header(frame[4], frame[8 : 8 + header_size]).is_oneway
    except RemotingError:
        return False


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        return split_address(text)
    except ValueError:
        return "0.0.0.0", 0
