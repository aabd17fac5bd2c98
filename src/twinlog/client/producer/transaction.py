"""Messages that appear only if a local transaction succeeds. Corresponds to TransactionMQProducer.

    async with TransactionProducer("group", check=check, name_server=...) as producer:
        async with producer.transaction(Message("orders", b"paid")) as transaction:
            await database.commit(transaction.id)          # raise: rolled back

The message is stored first but shown to nobody; then the local transaction runs; then the broker is
told. If that last word is lost, the broker asks `check(message)` of any producer of the group.
"""

from __future__ import annotations

import enum
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, Unpack

from twinlog.client.errors import (
    ClientError,
    InvalidHandlerError,
    InvalidMessageError,
    TransactionError,
)
from twinlog.client.message import Message, ReceivedMessage, SendReceipt, SendStatus
from twinlog.client.producer.producer import Producer
from twinlog.client.settings import ClientSettings
from twinlog.message import properties as names
from twinlog.message import sysflag
from twinlog.message.ids import parse_offset_message_id
from twinlog.message.record import RecordError, decode_record
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.remoting.headers.send import EndTransactionRequestHeader
from twinlog.runtime.numbers import number_of

_LOG = logging.getLogger("twinlog.client")


class TransactionState(enum.IntEnum):
    """What became of a local transaction; the numbers are those of request 37."""

    UNKNOWN = sysflag.TRANSACTION_NOT_TYPE
    COMMIT = sysflag.TRANSACTION_COMMIT_TYPE
    ROLLBACK = sysflag.TRANSACTION_ROLLBACK_TYPE

    def __str__(self) -> str:
        return self.name


Check = Callable[[ReceivedMessage], Awaitable[TransactionState]]
Execute = Callable[[Message, str], Awaitable[TransactionState]]


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """How a transaction ended. `receipt` is that of the stored, still hidden message."""

    receipt: SendReceipt
    state: TransactionState
    error: BaseException | None = None


class TransactionProducer(Producer):
    """A producer whose messages depend on local transactions.

    Args:
        group: Producers of one group answer each other's checks: give each kind of transaction
            a group of its own.
        check: `async def check(message) -> TransactionState`, asked when the outcome got lost.
        Others: as for Producer.
    """

    def __init__(
        self,
        group: str,
        *,
        check: Check,
        name_server: str | Sequence[str],
        send_timeout_ms: int = 3000,
        **settings: Unpack[ClientSettings],
    ) -> None:
        if not inspect.iscoroutinefunction(check):
            raise InvalidHandlerError("check must be an async function that takes one message")
        super().__init__(
            group, name_server=name_server, send_timeout_ms=send_timeout_ms, **settings
        )
        self._check = check

    async def start(self) -> Self:
        self._instance.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._asked)
        await super().start()
        return self

    def transaction(self, message: Message) -> Transaction:
        """The local transaction as a block: it commits unless an exception leaves it."""
        return Transaction(self, message)

    async def send_in_transaction(self, message: Message, execute: Execute) -> TransactionReceipt:
        """Store the message hidden, run `execute(message, transaction id)`, tell the broker.

        `execute` returns a TransactionState; UNKNOWN leaves the decision to a later check, and so
        does an exception, as RocketMQ has it.
        """
        receipt = await self.prepare(message)
        if receipt.status is not SendStatus.SEND_OK:
            await self.end(receipt, TransactionState.ROLLBACK)
            return TransactionReceipt(receipt, TransactionState.ROLLBACK)
        error: Exception | None = None
        try:
            state = TransactionState(await execute(message, receipt.message_id))
        except Exception as failure:
            # The caller's own error: the broker will ask, because we do not know.
            state, error = TransactionState.UNKNOWN, failure
        await self.end(receipt, state, remark=None if error is None else repr(error))
        return TransactionReceipt(receipt, state, error)

    async def prepare(self, message: Message) -> SendReceipt:
        """Store the message, hidden from consumers until `end` says COMMIT."""
        if message.delay_level:
            raise InvalidMessageError("a message cannot be both delayed and transactional")
        properties = {
            names.PROPERTY_TRANSACTION_PREPARED: "true",
            names.PROPERTY_PRODUCER_GROUP: self.group,
        }
        return await self._send_special(
            message, properties=properties, sys_flag=sysflag.TRANSACTION_PREPARED_TYPE
        )

    async def end(
        self, receipt: SendReceipt, state: TransactionState, *, remark: str | None = None
    ) -> None:
        """Tell the broker how it ended. Lost words do no harm: the broker asks `check`."""
        address = self._instance.master_address(receipt.queue.broker_name)
        if address is None:
            _LOG.warning("end of transaction not sent, no master message=%s", receipt.message_id)
            return
        offset = parse_offset_message_id(receipt.offset_message_id).physical_offset
        await self._tell_end(
            address, state, message_id=receipt.message_id, half_offset=receipt.queue_offset,
            physical_offset=offset, transaction_id=receipt.transaction_id or receipt.message_id,
            remark=remark, is_from_check=False, broker_name=receipt.queue.broker_name,
        )  # fmt: skip

    async def _tell_end(
        self,
        address: str,
        state: TransactionState,
        *,
        message_id: str,
        half_offset: int,
        physical_offset: int,
        transaction_id: str,
        remark: str | None,
        is_from_check: bool,
        broker_name: str | None = None,
    ) -> None:
        header = EndTransactionRequestHeader(
            producer_group=self.group,
            tran_state_table_offset=half_offset,
            commit_log_offset=physical_offset,
            commit_or_rollback=int(state),
            from_transaction_check=is_from_check,
            msg_id=message_id,
            transaction_id=transaction_id,
            broker_name=broker_name,
        )
        command = RemotingCommand.request(
            RequestCode.END_TRANSACTION, header, remark=remark, is_oneway=True
        )
        try:
            await self._instance.transport.oneway(address, command)
        except ClientError as error:
            _LOG.warning("end of transaction not sent message=%s reason=%s", message_id, error)

    # Checks

    def _asked(self, connection: Any, request: Request) -> None:
        # Whatever goes wrong: the broker asks again.
        self._instance.tasks.job("transaction check", self._answer_check(connection, request))

    async def _answer_check(self, connection: Any, request: Request) -> None:
        ext = request.ext()
        try:
            record = decode_record(request.body, check_crc=False)
        except RecordError as error:
            _LOG.warning("transaction check without a message reason=%s", error)
            return
        message = ReceivedMessage(record, ext.get("bname", ""))
        remark = None
        try:
            state = TransactionState(await self._check(message))
        except Exception as error:
            # The caller's own error: the broker asks again.
            _LOG.exception("transaction check failed message=%s", message.message_id)
            state, remark = TransactionState.UNKNOWN, repr(error)
        await self._tell_end(
            connection.address, state, message_id=ext.get("msgId", message.message_id),
            half_offset=number_of(ext["tranStateTableOffset"]),
            physical_offset=number_of(ext["commitLogOffset"]),
            transaction_id=ext.get("transactionId", ""), remark=remark, is_from_check=True,
            broker_name=ext.get("bname"),
        )  # fmt: skip


class Transaction:
    """One transaction as a block."""

    def __init__(self, producer: TransactionProducer, message: Message) -> None:
        self._producer = producer
        self._message = message
        self._receipt: SendReceipt | None = None

    @property
    def receipt(self) -> SendReceipt:
        if self._receipt is None:
            raise TransactionError("the transaction has not begun: open it with 'async with'")
        return self._receipt

    @property
    def id(self) -> str:
        """What `check` will see as `message.transaction_id`: store it with your own changes."""
        return self.receipt.message_id

    async def __aenter__(self) -> Self:
        self._receipt = await self._producer.prepare(self._message)
        if self._receipt.status is not SendStatus.SEND_OK:
            await self._producer.end(self._receipt, TransactionState.ROLLBACK)
            raise TransactionError(
                f"the message was not stored as required ({self._receipt.status.name}), so the "
                "transaction was rolled back"
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        state = TransactionState.COMMIT if error is None else TransactionState.ROLLBACK
        await self._producer.end(self.receipt, state, remark=None if error is None else repr(error))
