"""A broker's numbers for a scrape: RocketMQ 5's names first, then ours.

Nothing here is called while messages are handled. What a scrape reads are the integers that the
broker keeps anyway; tables are walked over in pieces, so that the loop goes on in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric

from twinlog.broker.stats import broker_stats
from twinlog.broker.stats.consumer_lag import ConsumerLag, consumer_labels, truth
from twinlog.ha.status import HAStatus
from twinlog.message.names import is_system_group, is_system_topic
from twinlog.observe import families as f
from twinlog.observe.collect import Row, Samples
from twinlog.observe.observer import Observed
from twinlog.remoting.codes import refusal_labels, version_description
from twinlog.runtime.numbers import number_of

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOCAL_DISK = ("local", "disk")
_REMOTING = "remoting"
_NOT_OK = ("FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")


class BrokerMetrics:
    """Reads a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self, out: Samples) -> Iterator[Metric]:
        yield from self._traffic(out)
        yield from ConsumerLag(self._broker).collect(out)
        yield from self._clients(out)
        yield from self._storage(out)
        status = self._broker.ha.status()
        yield from self._replication(out, status)
        if status.client is not None:
            yield from self._slave(out, status)
        yield from self._disks(out)
        yield from self._integrity(out)

    def _integrity(self, out: Samples) -> Iterator[Metric]:
        damage, scrub = self._broker.store.damage, self._broker.scrubber
        for family, value in (
            (f.DAMAGE_FOUND, damage.found_count),
            (f.DAMAGE_HEALED, damage.healed_count + scrub.healer.healed_entries),
            (f.DAMAGE_OPEN, len(damage.places)),
            (f.SCRUBBED_BYTES, scrub.state.checked_bytes),
            (f.SCRUB_PASSES, scrub.state.passes),
        ):
            yield out.one(family, value)

    # RocketMQ 5's

    def _traffic(self, out: Samples) -> Iterator[Metric]:
        stats = self._broker.stats
        for family, name in (
            (f.MESSAGES_IN, broker_stats.TOPIC_PUT_NUMS),
            (f.THROUGHPUT_IN, broker_stats.TOPIC_PUT_SIZE),
        ):
            yield from out.many(family, self._topics(stats.values(name)))
        for family, name in (
            (f.MESSAGES_OUT, broker_stats.GROUP_GET_NUMS),
            (f.THROUGHPUT_OUT, broker_stats.GROUP_GET_SIZE),
            (f.SEND_TO_DLQ, broker_stats.DLQ_PUT_NUMS),
        ):
            yield from out.many(family, self._consumed(stats.values(name)))

    def _topics(self, values: Collection[tuple[str, int]]) -> Iterator[Row]:
        for topic, value in values:
            yield (topic, "unspecified", truth(is_system_topic(topic))), value

    def _consumed(self, values: Collection[tuple[str, int]]) -> Iterator[Row]:
        for key, value in values:
            topic, _, group = key.partition("@")
            yield consumer_labels(topic, group), value

    def _clients(self, out: Samples) -> Iterator[Metric]:
        producers: dict[tuple[str, ...], int] = {}
        for channels in self._broker.producers.groups.values():
            for info in channels.values():
                key = (info.language, version_description(info.version), _REMOTING)
                producers[key] = producers.get(key, 0) + 1
        yield from out.many(f.PRODUCER_CONNECTIONS, producers.items())
        yield from out.many(f.CONSUMER_CONNECTIONS, self._consumer_connections().items())

    def _consumer_connections(self) -> dict[tuple[str, ...], int]:
        found: dict[tuple[str, ...], int] = {}
        for group, info in self._broker.consumers.groups.items():
            mode = "push" if info.consume_type == "CONSUME_PASSIVELY" else "pull"
            is_system = truth(is_system_group(group))
            for client in info.channels.values():
                version = version_description(client.version)
                key = (group, client.language, version, mode, _REMOTING, is_system)
                found[key] = found.get(key, 0) + 1
        return found

    def _storage(self, out: Samples) -> Iterator[Metric]:
        broker = self._broker
        store, log = broker.store, broker.store.commit_log
        end = log.max_offset
        yield out.one(f.BROKER_PERMISSION, broker.config.broker_permission)
        yield out.one(f.TOPIC_NUMBER, len(broker.topics.table))
        yield out.one(f.GROUP_NUMBER, len(broker.groups.table))
        waiting = [(("send",), broker.replies.waiting_count), (("pull",), len(broker.hold))]
        yield from out.many(f.PROCESSOR_WATERMARK, waiting)
        earliest = store.earliest_message_time()
        age = max(0, broker.clock.now_ms() - earliest) if earliest > 0 else 0
        for family, value in (
            (f.STORAGE_SIZE, end - log.min_offset),
            (f.FLUSH_BEHIND, max(0, end - store.flushed.value)),
            (f.DISPATCH_BEHIND, max(0, end - store.dispatched.value)),
            (f.RESERVE_TIME, age),
        ):
            yield from out.many(family, [(_LOCAL_DISK, value)])
        yield out.one(f.HALF_MESSAGES, broker.transactions.pending_count)
        yield out.one(f.COMMIT_MESSAGES, broker.transactions.commit_count)
        yield out.one(f.ROLLBACK_MESSAGES, broker.transactions.rollback_count)

    # Ours

    def _replication(self, out: Samples, status: HAStatus) -> Iterator[Metric]:
        store = self._broker.store
        yield from out.many(f.ROLE, [((status.role,), 1)])
        marks = {
            "min": store.commit_log.min_offset,
            "appended": store.appended.value,
            "flushed": store.flushed.value,
            "dispatched": store.dispatched.value,
            "confirmed": self._broker.ha.known_confirmed,
        }
        yield from out.many(f.LOG_OFFSET, [((mark,), v) for mark, v in marks.items()])
        yield out.one(f.EPOCH, self._broker.role.epoch)
        replicas = self._broker.replicas
        if replicas is not None and replicas.authority is not None:
            yield out.one(f.IN_SYNC_SET, len(replicas.authority.members))
        yield out.one(f.REPLICAS, sum(replica.is_slave for replica in status.replicas))
        yield out.one(f.REPLICAS_IN_SYNC, status.in_sync_count)
        yield out.one(f.REPLICAS_NEEDED, status.needed_slaves)
        yield out.one(
            f.RIVALS, len({rival.address for rival in self._broker.registration.rivals()})
        )
        names = replica_names([replica.address for replica in status.replicas])
        named = list(zip(names, status.replicas, strict=True))
        states = [((name, replica.state), 1.0) for name, replica in named]
        yield from out.many(f.REPLICA_STATE, states)
        slaves = [(name, replica) for name, replica in named if replica.is_slave]
        yield from out.many(f.REPLICA_LAG_BYTES, [((n,), r.lag_bytes) for n, r in slaves])
        yield from out.many(f.REPLICA_LAG_SECONDS, [((n,), r.lag_ms / 1000) for n, r in slaves])
        yield from out.many(f.REPLICA_ACK_AGE, [((n,), r.ack_age_ms / 1000) for n, r in slaves])
        yield from out.many(f.REPLICA_IN_SYNC, [((n,), int(r.is_in_sync)) for n, r in slaves])

    def _slave(self, out: Samples, status: HAStatus) -> Iterator[Metric]:
        client = status.client
        assert client is not None
        yield out.one(f.SLAVE_LINKED, int(client.state == "TRANSFER"))
        yield out.one(f.SLAVE_STOPPED, int(bool(client.damage)))
        yield out.one(f.SLAVE_BEHIND, max(0, client.known_master_end - client.max_offset))
        table = self._broker.pair.status()
        yield out.one(f.METADATA_BEHIND, number_of(table.get("metadataBehindRecords", 0)))
        if (age := table.get("metadataSyncAgeMs")) is not None:
            yield out.one(f.METADATA_AGE, number_of(age) / 1000)

    def _disks(self, out: Samples) -> Iterator[Metric]:
        broker = self._broker
        facts = broker.facts.server()
        yield out.one(f.SENDS_REFUSED, int(bool(facts.refusal)))
        yield out.one(f.UNSAVED, len(facts.unsaved))
        # All from the start: a series that begins with 1 has not grown, for Prometheus.
        refused = {**dict.fromkeys(_NOT_OK, 0), **broker.store_stats.not_ok}
        yield from out.many(f.PUTS_NOT_OK, [((status,), n) for status, n in refused.items()])
        yield out.histogram(f.PUT_SECONDS, broker.store_stats.put_histogram)
        yield out.histogram(f.FSYNC_SECONDS, broker.store.flush_service.histogram)
        disks = facts.disks
        yield from out.many(f.DISK_USED, [((d.path,), d.used_ratio) for d in disks])
        free = [((d.path,), broker.disk.space(d.path).usable) for d in disks]
        yield from out.many(f.DISK_FREE, free)
        yield from out.many(f.DISK_REFUSE, [((d.path,), d.refuse_ratio) for d in disks])
        schedule = broker.schedule
        waiting = [
            ((str(level),), max(0, schedule.max_offset(level) - offset))
            for level, offset in sorted(schedule.offsets.items())
        ]
        yield from out.many(f.DELAY_MESSAGES, waiting)


def observed_broker(broker: Broker) -> Observed:
    """What a broker shows of itself."""
    config = broker.config
    return Observed(
        facts=broker.facts.all,
        metrics=BrokerMetrics(broker),
        labels=lambda: {
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
            "broker_id": str(broker.role.broker_id),
        },
        connections=lambda: {
            "service": len(broker.server.connections),
            "vip": len(broker.vip_server.connections),
            "ha": len(broker.ha.connections),
        },
        refusal_labels=refusal_labels,
        measure_loop=broker.facts.measure_loop,
        watch=broker.watch,
    )


def replica_names(addresses: Collection[str]) -> list[str]:
    """Names that stay when a slave connects again: its host and id, in the classic dialect its
    host and a number."""
    names: list[str] = []
    for address in addresses:
        place, _, replica_id = address.partition("/")
        host = place.rpartition(":")[0]
        name = f"{host}/{replica_id}" if replica_id else host
        same = sum(other.partition("#")[0] == name for other in names)
        names.append(f"{name}#{same + 1}" if same else name)
    return names
