"""The address that records and message ids of this broker carry."""

from __future__ import annotations

from twinlog.message.ids import pack_host
from twinlog.runtime.addresses import resolve
from twinlog.runtime.config import BrokerConfig


def store_host(config: BrokerConfig) -> bytes:
    """The address that records and message ids carry, packed."""
    return pack_host(resolve(config.broker_ip1), config.listen_port)
