"""How a producer is, as data."""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.client.errors import ClientError
from twinlog.client.net.instance import ClientInstance


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """How a producer is, as data: for health endpoints and logs."""

    is_ok: bool
    """Running, and each topic that it knows has a master that takes messages."""
    reason: str
    """Why it is not, in one sentence; empty when it is."""
    in_flight: int
    """Requests on their way: sent, or waiting to be sent again."""
    buffered_size: int
    """Bytes of the messages that have no outcome yet."""
    topics_without_master: tuple[str, ...]
    """Topics that nobody takes messages for now."""


def health_of(instance: ClientInstance, in_flight: int, buffered_size: int) -> ProducerHealth:
    """From what is known here.

    A topic is known once it was sent to, or asked for. That a master is gone is noticed when its
    connection breaks, and its successor within a second of its registration.
    """
    topics = instance.routed_topics()
    lost = tuple(topic for topic in topics if not _has_master(instance, topic))
    reason = _ill_because(instance, lost)
    return ProducerHealth(not reason, reason, in_flight, buffered_size, lost)


def _has_master(instance: ClientInstance, topic: str) -> bool:
    route = instance.cached_route(topic)
    assert route is not None
    masters = {
        route.brokers[queue.broker_name].master_address for queue in route.write_queues(topic)
    }
    return any(address is not None and instance.is_reachable(address) for address in masters)


def _ill_because(instance: ClientInstance, lost: tuple[str, ...]) -> str:
    """The reason in one sentence, or nothing."""
    try:
        instance.check_usable()
    except ClientError as error:
        return str(error)
    if lost:
        return f"no master takes messages for topic {', '.join(map(repr, lost))}"
    return ""
