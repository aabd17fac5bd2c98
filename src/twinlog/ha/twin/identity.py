"""Who this broker is to a twinlog peer, and what it may do about a log that does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from twinlog.ha.replica_log import ReplicaLog
from twinlog.ha.settings import HASettings
from twinlog.ha.twin import wire
from twinlog.ha.twin.digests import record_ends, run_steps
from twinlog.ha.twin.mark import ConfirmedMark
from twinlog.ha.twin.receiver import SlaveFacts
from twinlog.ha.twin.sender import MasterFacts
from twinlog.runtime.address_set import AddressSet, address_or_none

if TYPE_CHECKING:
    from twinlog.ha.group_replication import GroupReplication


@dataclass(slots=True, kw_only=True)
class TwinIdentity:
    """`store_id` names the lineage of the log: a master draws it, a slave takes its master's over.
    `replica_uid` is drawn once for a store directory."""

    cluster: str
    group: str
    replica_id: int
    store_id: str
    replica_uid: str
    new_nonce: Callable[[], str]
    adopt_store_id: Callable[[str], None]
    secret: str = field(default="", repr=False)
    reseed: str = "tail"
    is_durable: bool = False
    wants_last_file_only: bool = False
    mark: ConfirmedMark = field(default_factory=ConfirmedMark)
    has_tls: bool = False
    classic_peers: AddressSet = field(default_factory=AddressSet)

    def master_facts(
        self, settings: HASettings, segment_size: int, group: GroupReplication | None = None
    ) -> MasterFacts:
        facts = MasterFacts(
            cluster=self.cluster,
            group=self.group,
            store_id=self.store_id,
            segment_size=segment_size,
            secret=self.secret,
            heartbeat_interval_ms=wire.twin_heartbeat_ms(settings.send_heartbeat_interval_ms),
            housekeeping_interval_ms=settings.housekeeping_interval_ms,
        )
        if group is None:
            return facts
        return replace(facts, epochs=group.wire_epochs(), is_controlled=True)

    def slave_facts(
        self, settings: HASettings, log: ReplicaLog, group: GroupReplication | None = None
    ) -> SlaveFacts:
        is_empty = log.max_offset == log.min_offset
        hello = wire.Hello(
            version=wire.VERSION,
            version_min=wire.VERSION_MIN,
            cluster=self.cluster,
            group=self.group,
            replica_id=self.replica_id,
            replica_uid=self.replica_uid,
            store_id="" if is_empty else self.store_id,
            segment_size=log.segment_size,
            log_min=log.min_offset,
            log_end=log.max_offset,
            nonce=self.new_nonce(),
            has_secret=bool(self.secret),
            is_durable=self.is_durable,
            wants_last_file_only=self.wants_last_file_only,
            confirmed=self.confirmed_in(log),
            is_in_doubt=self.mark.is_in_doubt,
            report_ms=wire.twin_heartbeat_ms(settings.send_heartbeat_interval_ms),
        )
        if group is not None:
            hello = msgspec.structs.replace(
                hello,
                replica_id=group.own_id,
                epoch=group.epoch,
                epochs=list(group.wire_epochs()),
                incarnation=group.incarnation,
                is_learner=group.is_learner,
                is_durable=group.is_durable,
            )
        return SlaveFacts(
            hello=hello,
            secret=self.secret,
            reseed=self.reseed,
            heartbeat_interval_ms=hello.report_ms,
            housekeeping_interval_ms=settings.housekeeping_interval_ms,
        )

    def confirmed_in(self, log: ReplicaLog) -> int:
        """What the log has of that which is confirmed, in whole records: a frame that carried a
        part of one may have moved the mark into it, and half a record is nobody's message."""
        confirmed = min(self.mark.value, log.max_offset)
        if not log.min_offset < confirmed < log.max_offset:
            return max(0, confirmed)
        return run_steps(record_ends(log, confirmed, confirmed))[0]

    @property
    def has_credentials(self) -> bool:
        """Peers can and must prove themselves, wherever they are."""
        return bool(self.secret) or self.has_tls

    def classic_refusal(self, host: str, *, is_local: bool = False) -> str:
        """Why a connection without credentials from `host` is not served; empty when it is."""
        if host in self.classic_peers:
            return ""
        if self.has_credentials:
            return (
                f"a classic HA connection from {host}: it cannot prove itself, twinlogHASecret or"
                f" twinlogHATLS is set here, and {host} is not in twinlogHAClassicPeers"
            )
        if is_local or _is_loopback(host):
            return ""
        return (
            f"a classic HA connection from {host}: it carries no credentials and {host} is not in"
            " twinlogHAClassicPeers"
        )

    def open_refusal(self, host: str) -> str:
        """The same for the twin dialect, which can do better."""
        if self.secret or _is_loopback(host) or host in self.classic_peers:
            return ""
        return (
            f"the slave at {host} has shown no credentials: set twinlogHASecret on both ends, or"
            " twinlogHATLS, or name the address in the master's twinlogHAClassicPeers"
        )

    def master_refusal(self, host: str) -> str:
        """Why nothing is taken from a classic master at `host`; empty when it is."""
        if not self.has_credentials or host in self.classic_peers:
            return ""
        return (
            f"the master at {host} cannot prove itself in the classic dialect: twinlogHASecret or"
            f" twinlogHATLS is set here, and {host} is not in twinlogHAClassicPeers"
        )


def _is_loopback(host: str) -> bool:
    address = address_or_none(host)
    return host == "?" or (address is not None and address.is_loopback)
