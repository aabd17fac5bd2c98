"""Ends of transactions, compiled. See `EndTransactionProcessor.lane`."""

from collections.abc import Callable

from twinlog.broker.group.relay import Relay
from twinlog.broker.role import Role
from twinlog.remoting.server import ServerConnection
from twinlog.store.message_store import MessageStore

class EndLane:
    @property
    def is_full(self) -> bool: ...
    def __init__(
        self,
        *,
        store: MessageStore,
        role: Role,
        relay: Relay | None,
        commit: Callable[[str, int, int, str | None, str | None], bool],
    ) -> None: ...
    def read(self, connection: ServerConnection, data: bytes, begin: int = 0) -> int: ...
