"""Messages by key and by id: 12, 33. Corresponds to RocketMQ's QueryMessageProcessor.

Answers in JSON also to a binary request, because Apache's do. What a controlled group has not
confirmed is not found, as it is not consumed (R10): a switch may take it back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinlog.remoting.codes import ResponseCode, SerializeType
from twinlog.remoting.command import Request
from twinlog.remoting.headers.pull import QueryMessageRequestHeader, ViewMessageRequestHeader
from twinlog.remoting.server import ServerConnection
from twinlog.store.errors import RecordDamagedError

if TYPE_CHECKING:
    from twinlog.broker.server import Broker


class QueryMessageProcessor:
    """Handlers of QUERY_MESSAGE and VIEW_MESSAGE_BY_ID."""

    def __init__(self, broker: Broker) -> None:
        self._config = broker.config
        self._store = broker.store

    def query(self, connection: ServerConnection, request: Request) -> None:
        """QUERY_MESSAGE (12)."""
        header = request.header(QueryMessageRequestHeader)
        count = header.max_num
        if header.unique_key_query:
            count = self._config.default_query_max_num
        result = self._store.query_message(
            header.topic, header.key, count, header.begin_timestamp, header.end_timestamp
        )
        places = zip(result.buffers, result.physical_offsets, strict=True)
        shown = [b for b, offset in places if self._store.is_shown(offset + len(b))]
        if not shown:
            connection.reply(
                request,
                ResponseCode.QUERY_NOT_FOUND,
                remark="can not find message, maybe time range not correct",
                header={"indexLastUpdatePhyoffset": 0, "indexLastUpdateTimestamp": 0},
            )
            return
        ext = {
            "indexLastUpdatePhyoffset": result.index_last_update_offset,
            "indexLastUpdateTimestamp": result.index_last_update_timestamp,
        }
        connection.reply(request, header=ext, body=shown, serialize_type=SerializeType.JSON)

    def view(self, connection: ServerConnection, request: Request) -> None:
        """VIEW_MESSAGE_BY_ID (33)."""
        offset = request.header(ViewMessageRequestHeader).offset
        try:
            record = self._store.message_by_offset(offset)
        except RecordDamagedError as error:
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=str(error))
            return
        if record is None or not self._store.is_shown(offset + len(record)):
            remark = f"can not find message by the offset, {offset}"
            connection.reply(request, ResponseCode.SYSTEM_ERROR, remark=remark)
            return
        connection.reply(request, body=record, serialize_type=SerializeType.JSON)
