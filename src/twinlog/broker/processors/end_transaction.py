"""Ends of transactions: 37, 323. Corresponds to RocketMQ's EndTransactionProcessor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.broker.errors import BrokerError
from twinlog.broker.processors.admin_topics import UNSET_REMARK
from twinlog.broker.put.replies import RESPONSE_CODES, PutCallback
from twinlog.message import sysflag
from twinlog.message.ids import parse_offset_message_id
from twinlog.message.model import Record
from twinlog.message.names import CHECK_MAX_TIME_TOPIC
from twinlog.message.record import RecordError, decode_record
from twinlog.remoting.codes import FLAG_ONEWAY, ResponseCode
from twinlog.remoting.command import Request
from twinlog.remoting.headers.admin import ResumeCheckHalfMessageRequestHeader
from twinlog.remoting.headers.send import EndTransactionRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.remoting.traffic import Lane
from twinlog.runtime.compiled import load
from twinlog.store.errors import RecordDamagedError
from twinlog.store.status import PutMessageStatus

if TYPE_CHECKING:
    from twinlog.broker.group.relay import Relay
    from twinlog.broker.server import Broker


class EndTransactionProcessor:
    """Handlers of END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE."""

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._clock = broker.clock
        self._role = broker.role
        self._store = broker.store
        self._transactions = broker.transactions

    def lane(self, relay: Relay | None) -> Lane | None:
        """The compiled form of this path, where there is one."""
        compiled = load("twinlog.broker.transaction._end_lane")
        if compiled is None:
            return None
        lane: Lane = compiled.EndLane(
            store=self._store,
            config=self._config,
            role=self._role,
            relay=relay,
            transactions=self._transactions,
            clock=self._clock,
        )
        return lane

    def end(self, connection: ServerConnection, request: Request) -> None:
        """END_TRANSACTION (37), mostly one-way. "Unknown" is not answered, as in Apache."""
        header = request.header(EndTransactionRequestHeader)
        if not self._role.is_master:
            connection.reply(request, ResponseCode.SLAVE_NOT_AVAILABLE, remark=UNSET_REMARK)
            return
        if header.commit_or_rollback == sysflag.TRANSACTION_COMMIT_TYPE:
            is_oneway = request.flag & FLAG_ONEWAY
            answered = None if is_oneway else _answer_when_stored(connection, request)
            self._transactions.commit(header, answered)
        elif header.commit_or_rollback == sysflag.TRANSACTION_ROLLBACK_TYPE:
            self._transactions.rollback(header)
            connection.reply(request, remark=UNSET_REMARK)
        elif header.commit_or_rollback != sysflag.TRANSACTION_NOT_TYPE:
            remark = f"commitOrRollback is {header.commit_or_rollback}, not 8, 12 or 0"
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)

    def resume_check(self, connection: ServerConnection, request: Request) -> None:
        """RESUME_CHECK_HALF_MESSAGE (323). The id must name a message that was given up."""
        text = request.header(ResumeCheckHalfMessageRequestHeader).msg_id
        record = self._read(text)
        if record is None or record.topic != CHECK_MAX_TIME_TOPIC:
            remark = (
                "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed. "
                f"{text} does not name a message of {CHECK_MAX_TIME_TOPIC}"
            )
            raise BrokerError(ResponseCode.SYSTEM_ERROR, remark)
        result = self._transactions.resume(record)
        if result.status is not PutMessageStatus.PUT_OK:
            remark = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"{remark} {result.reason}")
        connection.reply(request)

    def _read(self, message_id: str) -> Record | None:
        try:
            offset = parse_offset_message_id(message_id).physical_offset
            data = self._store.message_by_offset(offset)
            return None if data is None else decode_record(data)
        except (ValueError, RecordError, RecordDamagedError):
            return None


def _answer_when_stored(connection: ServerConnection, request: Request) -> PutCallback:
    def stored(status: PutMessageStatus, reason: str) -> None:
        # Stored on this broker is committed; what replicas know is another matter.
        is_stored = status in RESPONSE_CODES
        code = ResponseCode.SUCCESS if is_stored else ResponseCode.SYSTEM_ERROR
        connection.reply(request, code, remark=reason or None)

    return stored
