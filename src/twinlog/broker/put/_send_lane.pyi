"""The send path, compiled. See `SendMessageProcessor.lane`."""

from collections.abc import Mapping
from typing import Any

from twinlog.broker.pair.offset_return import OffsetReturn
from twinlog.broker.processors.send import HalfListener
from twinlog.broker.put.replies import PutReplies
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.config import BrokerConfig
from twinlog.store.message_store import MessageStore

class SendLane:
    @property
    def is_full(self) -> bool: ...
    def __init__(
        self,
        *,
        store: MessageStore,
        replies: PutReplies,
        routes: Mapping[str, Any],
        gate: OffsetReturn,
        config: BrokerConfig,
        cluster_piece: str,
        store_host: bytes,
        delay_levels: Mapping[int, int],
        remember_half: HalfListener,
    ) -> None: ...
    def read(self, connection: ServerConnection, data: bytes, begin: int = 0) -> int: ...
