"""OFFSET_MOVED_EVENT: a record for monitoring when a consumer asked outside its queue.

Corresponds to PullMessageProcessor.generateOffsetMovedEvent.
"""

from __future__ import annotations

from twinlog.message.hashing import jhash
from twinlog.message.model import PutMessage
from twinlog.message.names import OFFSET_MOVED_TOPIC
from twinlog.message.properties import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    encode_properties,
)
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import MessageQueue
from twinlog.runtime.clock import Clock
from twinlog.runtime.config import BrokerConfig
from twinlog.store.message_store import MessageStore


class OffsetMovedEvents:
    """Writes the events of one broker."""

    def __init__(
        self, config: BrokerConfig, store: MessageStore, clock: Clock, host: bytes
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._host = host

    def record(self, group: str, topic: str, queue_id: int, requested: int, corrected: int) -> None:
        """Note that `group` asked for `requested` and was sent to `corrected`."""
        body = {
            "consumerGroup": group,
            "messageQueue": MessageQueue(topic, self._config.broker_name, queue_id),
            "offsetNew": corrected,
            "offsetRequest": requested,
        }
        properties = {
            PROPERTY_TAGS: group,
            PROPERTY_KEYS: group,
            PROPERTY_DELAY_TIME_LEVEL: "0",
        }
        # A put that is refused loses an event of monitoring, nothing else.
        self._store.put(
            PutMessage(
                topic=OFFSET_MOVED_TOPIC,
                queue_id=0,
                body=fastjson.dumps(body),
                properties=encode_properties(properties),
                born_timestamp=self._clock.now_ms(),
                born_host=self._host,
                store_host=self._host,
                tags_code=jhash(group),
                keys=(group,),
            )
        )
