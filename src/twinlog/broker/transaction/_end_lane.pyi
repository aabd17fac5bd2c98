"""Ends of transactions, compiled. See `EndTransactionProcessor.lane`."""

from twinlog.broker.group.relay import Relay
from twinlog.broker.role import Role
from twinlog.broker.transaction.service import TransactionalMessageService
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.store.message_store import MessageStore

class EndLane:
    @property
    def is_full(self) -> bool: ...
    def __init__(
        self,
        *,
        store: MessageStore,
        config: BrokerConfig,
        role: Role,
        relay: Relay | None,
        transactions: TransactionalMessageService,
        clock: Clock,
    ) -> None: ...
    def read(self, connection: ServerConnection, data: bytes, begin: int = 0) -> int: ...
