"""The pull path, compiled. See `PullMessageProcessor.lane`."""

from collections.abc import Callable
from typing import Any

from twinlog.broker.filter.consumer_filter import ConsumerFilterManager
from twinlog.broker.pair.offset_return import OffsetReturn
from twinlog.broker.pair.skip_guard import SkipGuard
from twinlog.broker.role import Role
from twinlog.broker.tables.clients import ConsumerManager
from twinlog.broker.tables.subscription_group import SubscriptionGroupManager
from twinlog.broker.tables.topic_config import TopicConfigManager
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.config import BrokerConfig
from twinlog.store.message_store import MessageStore

class PullLane:
    @property
    def is_full(self) -> bool: ...
    def __init__(
        self,
        *,
        store: MessageStore,
        config: BrokerConfig,
        role: Role,
        gate: OffsetReturn,
        skip_guard: SkipGuard,
        groups: SubscriptionGroupManager,
        topics: TopicConfigManager,
        consumers: ConsumerManager,
        filters: ConsumerFilterManager,
        posted: Callable[[str, str | None, str | None], tuple[bool, Any] | None],
        answered: Callable[[str, str, int, int, int, int], None],
        commit: Callable[[str, str, int, int], bool],
    ) -> None: ...
    def read(self, connection: ServerConnection, data: bytes, begin: int = 0) -> int: ...
