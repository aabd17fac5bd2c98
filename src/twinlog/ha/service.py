"""Replication of one broker: the HA port, its connections, the acks, and the slave's client.

Corresponds to RocketMQ's HAService with its AcceptSocketService. On a master it feeds slaves and
turns their reports into the watermark `confirmed`; on a slave it dials the master, and holds
whoever dials it: a slave of a slave is refused with a reason.

Invariants: only a connection in TRANSFER is a replica; a replica that is gone acknowledges nothing;
strangers cost at most HA_SUSPENDED_PER_HOST_MAX silent connections per address.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from twinlog.ha.acks import AckTable
from twinlog.ha.authority import Authority
from twinlog.ha.client import AskDialect, HAClient
from twinlog.ha.connection import HAConnection, crowded_out
from twinlog.ha.drain import drain
from twinlog.ha.epoch_file import EpochFile
from twinlog.ha.epochs import EpochEntry
from twinlog.ha.followers import Followers
from twinlog.ha.front import HAFront
from twinlog.ha.group_replication import GroupReplication
from twinlog.ha.group_transfer import GroupTransferService
from twinlog.ha.redial import GROUP_DELAYS_MS, RedialPolicy
from twinlog.ha.replica_log import ReplicaStore
from twinlog.ha.sender import HASender
from twinlog.ha.service_status import ack_of, status_of
from twinlog.ha.settings import HASettings
from twinlog.ha.starts import ClassicStarts, twin_start
from twinlog.ha.status import DepartedStatus, HAStatus
from twinlog.ha.twin.admission import hello_refusal, with_same_id
from twinlog.ha.twin.catch_up import MasterCatchUp
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.ha.twin.mark import SYNC_INTERVAL_MS, ConfirmedMark
from twinlog.ha.twin.receiver import TwinReceiver
from twinlog.ha.twin.sender import TwinSender
from twinlog.ha.twin.wire import EpochEntry as WireEpoch
from twinlog.ha.twin.wire import ErrorCode
from twinlog.ha.wire import HAConnectionState, tick_period_ms
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.failures import error_text
from twinlog.runtime.limits import (
    HA_CONNECTION_COUNT_MAX,
    HA_DEPARTED_COUNT_MAX,
    HA_SUSPENDED_PER_HOST_MAX,
    HA_UNPROVED_PER_HOST_MAX,
)
from twinlog.runtime.tasks import TaskOwner
from twinlog.runtime.turn import Turn
from twinlog.runtime.watermark import WaiterCallback, Watermark
from twinlog.store.status import PutMessageStatus

# Members that are asked for in hot paths: by their class they cost ten times as much.
_TRANSFER: Final = HAConnectionState.TRANSFER

_LOG = logging.getLogger("twinlog.ha")

# Bursts are gathered so long: one frame a millisecond costs both ends a fraction of one for each
# turn of the loop, and an asynchronous replica is behind by that much at most.
_GATHER_MS = 1
# An idle slave would hear of what is confirmed with the next heartbeat, seconds later.
_TELL_MS = 10


class HAService:
    """Owns everything of replication; lives on the loop."""

    def __init__(
        self,
        settings: HASettings,
        store: ReplicaStore,
        clock: Clock,
        tasks: TaskOwner,
        *,
        twin: TwinIdentity | None = None,
        ask_dialect: AskDialect | None = None,
        reseed_all: Callable[[str], None] | None = None,
        epochs: EpochFile | None = None,
        turn: Turn | None = None,
    ) -> None:
        """`epochs`: this broker belongs to a controlled group."""
        self._turn = turn if turn is not None else Turn()
        self.settings = settings
        self.twin = twin
        self.acks = AckTable()
        self.group_transfer = GroupTransferService(
            self.acks,
            clock,
            ack_count=max(0, settings.in_sync_replicas - 1),
            fall_behind_max=settings.slave_fall_behind_max,
            timeout_ms=settings.slave_timeout_ms,
        )
        self.confirmed: Watermark = self.group_transfer.confirmed
        """The offset that `inSyncReplicas` replicas have, the master included."""
        self.confirmed.failures = tasks.failures
        self.on_twin_joined: Callable[[], None] = lambda: None
        self.on_linked: Callable[[], None] = lambda: None
        self.joined_replica_ids: set[int] = set()
        """Twin slaves that have joined since the start: they may have what others have not."""
        self.catch_up: MasterCatchUp | None = None
        """Of a master in the twin dialect: whether its log has all that was confirmed."""
        self.listen_port = 0
        self.client: HAClient | None = None
        self.connections: list[HAConnection] = []
        self._store = store
        self._log = store.commit_log
        self._clock = clock
        self._tasks = tasks
        self._sender_settings = settings.sender(self._log.segment_size)
        self.departed: deque[DepartedStatus] = deque(maxlen=HA_DEPARTED_COUNT_MAX)
        self.followers = Followers()
        self._classic_starts = ClassicStarts()
        self._server: asyncio.Server | None = None
        self._timer: TimerHandle | None = None
        self._woken_ms = 0
        self._seen_end = store.commit_log.max_offset
        self._gathering: TimerHandle | None = None
        self._telling: TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._is_stopping = False
        self._is_prepared = False
        self.began_in_doubt = False
        """Whether a power loss may have taken the end of the log before this start."""
        self._ask_dialect = ask_dialect
        self._reseed_all = reseed_all
        self.group: GroupReplication | None = None
        """Of a controlled group: whoever leads or follows does so by its rules."""
        if epochs is not None and twin is not None:
            self.group = GroupReplication(store, self.confirmed, epochs, twin.is_durable)
            self.group_transfer.ack_count = 0  # The group confirms, not a number of slaves.
        elif twin is not None and not settings.is_slave:
            self.catch_up = MasterCatchUp(self, twin.mark, store, clock, tasks)
        if settings.is_slave and self.group is None:
            self.client = self._new_client(settings.master_address)

    def _new_client(self, address: str | None) -> HAClient:
        twin, settings, group = self.twin, self.settings, self.group
        return HAClient(
            self._log,
            self._store.flushed,
            self._clock,
            settings.receiver(self._log.segment_size),
            fixed_address=address,
            ask_dialect=self._ask_dialect if twin is not None else None,
            twin=self if twin is not None else None,
            reseed_all=self._reseed_all if twin is not None and twin.reseed == "all" else None,
            has_confirmed=self._has_confirmed,
            tls=settings.dial_tls or settings.tls,
            redial=RedialPolicy() if group is None else RedialPolicy(GROUP_DELAYS_MS),
            on_link=lambda: None if group is None else group.on_links_changed(),
        )

    # Controlled groups.

    def begin_confirmed(self, rebuild: Callable[[], list[EpochEntry]]) -> None:
        """After `prepare`: confirmed begins with what is known of this log, in whole records."""
        assert self.twin is not None
        assert self.group is not None
        self.group.load_epochs(rebuild)
        self.confirmed.advance(self.twin.confirmed_in(self._log))

    def stand_down(self, reason: str) -> None:
        """Neither lead nor follow: no acknowledgement of before counts any more."""
        assert self.group is not None
        self.group.stand_down()
        self.group_transfer.give_up(reason)
        self.settings = replace(self.settings, role="SLAVE")
        client, self.client = self.client, None
        if client is not None:
            client.stop(reason)
        for connection in tuple(self.connections):
            connection.is_notable &= connection.hello is not None  # Before HELLO none is refused.
            connection.close(reason)

    def lead(self, authority: Authority, role: str) -> None:
        """Be the master of `authority.epoch`. Nobody else is connected: `stand_down` was before."""
        assert self.group is not None
        assert self.client is None
        self.settings = replace(self.settings, role=role)
        self.group.lead(authority)

    def follow(self, address: str) -> None:
        """Be the slave of the master at `address`, in the epoch that is known."""
        assert self.group is not None
        assert self.group.authority is None
        if self.client is not None:
            if self.client.master_address == address:
                return
            self.client.stop("the master has another address")
        self.client = self._new_client(address)
        self._tasks.contained("ha-client", self.client.run)

    # Life.

    def prepare(self, *, is_log_accepted: bool = False) -> None:
        """Before anything is served: what this replica knows, and whether its log has it.

        `is_log_accepted`: whoever promoted this copy knows what it lacks.
        """
        if self.twin is None or self._is_prepared:
            return
        self._is_prepared = True
        mark = self.twin.mark
        mark.load(was_clean=self._store.was_clean, is_durable=self.twin.is_durable)
        self.began_in_doubt = mark.is_in_doubt or mark.has_lost_power
        if is_log_accepted:
            mark.rebase(self._log.max_offset)
            mark.complete()
        if self.catch_up is not None:
            self.catch_up.begin()

    def when_complete(self, action: Callable[[], None]) -> None:
        """Call `action` when this master's log has all that was confirmed: now, or later."""
        if self.catch_up is None:
            action()
        else:
            self.catch_up.when_complete(action)

    @property
    def is_in_doubt(self) -> bool:
        """Whether this store may lack what it acknowledged before a power loss (R8)."""
        return self.twin is not None and self.twin.mark.is_in_doubt

    async def start(self) -> int:
        """Listen, then dial; returns the bound port."""
        self.prepare()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._accept, self.settings.bind_address, self.settings.listen_port
        )
        self.listen_port = self._server.sockets[0].getsockname()[1]
        self._unsubscribe = self._store.appended.subscribe(self._log_extended, is_first=True)
        if self.group is not None or self.catch_up is not None:
            # Behind whoever answers sends, which comes before slaves hear of it.
            self.confirmed.subscribe(self._confirmed_moved)
        self._tick()
        mark = self.twin.mark if self.twin is not None else ConfirmedMark()
        self._tasks.round("confirmed-mark", lambda: SYNC_INTERVAL_MS, mark.sync)
        if self.client is not None and self.group is None:
            self._tasks.contained("ha-client", self.client.run)
        if self.group is not None:
            self._store.flushed.subscribe(self._flush_moved)
        return self.listen_port

    async def stop(self) -> None:
        """Client first, then the acceptor, the connections, the waiters."""
        self._is_stopping = True
        for timer in (self._timer, self._gathering, self._telling):
            if timer is not None:
                timer.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self.client is not None:
            self.client.stop()
        if self._server is not None:
            self._server.close()
        self._note_confirmed()  # As long as those who have acknowledged are connected.
        for connection in tuple(self.connections):
            connection.close("the broker is stopping")
        self.group_transfer.stop()
        if self.twin is not None:
            self.twin.mark.close()

    def _flush_moved(self, _: int) -> None:
        if self.group is not None and self.group.is_durable:
            self.group.own_end_moved()

    def configure(self, settings: HASettings) -> None:
        """Other limits and intervals while running; connections that are open follow too."""
        self.settings = settings
        self.group_transfer.fall_behind_max = settings.slave_fall_behind_max
        self.group_transfer.timeout_ms = settings.slave_timeout_ms
        self._sender_settings = settings.sender(self._log.segment_size)
        for connection in self.connections:
            connection.configure(self._sender_settings, settings.transfer_bytes_per_second_max)
        if self.client is not None:
            self.client.configure(settings.receiver(self._log.segment_size))
        if self._timer is not None:
            self._timer.cancel()
            self._tick()

    def reload_tls(self, fresh: HASettings) -> None:
        """New certificates, for connections from now on."""
        self.settings = replace(self.settings, tls=fresh.tls, dial_tls=fresh.dial_tls)
        if self.client is not None:
            self.client.tls = fresh.dial_tls or fresh.tls

    def update_master_address(self, address: str | None) -> None:
        """What the registration answered as haServerAddr."""
        if self.client is not None:
            self.client.update_master_address(address)

    def master_is_back(self, address: str) -> None:
        """The master told us itself where it is."""
        if self.client is not None:
            self.client.update_master_address(address)
            self.client.redial_now()

    def dialect_heard(self, *, is_other: bool) -> None:
        """The master has said what it is; `is_other`: not what it was until now."""
        if self.client is not None:
            self.client.dialect_heard(is_other=is_other)

    async def drain(self) -> None:
        """Before a clean stop: let the replicas have the end of the log."""
        await drain(self.acks, self._log.max_offset, self._clock)

    def damage_found(self, offset: int, reason: str) -> None:
        """The dispatcher found a record that is not one. Only a slave can ask for it again."""
        if self.client is not None:
            self.client.damage_found(offset, reason)
        elif self.catch_up is not None:
            self.catch_up.damage_found(offset, reason)

    # Synchronous replication.

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        """Whether a put may wait for its replicas; see GroupTransferService."""
        if self.group is not None:
            return None, ""
        return self.group_transfer.check_sync(end_offset)

    def passed_over(self, start: int, end: int) -> str:
        """Why too few may have this part of the log, which is confirmed; empty when they do."""
        if self.group is not None:
            return self.group.passed_over(start, end)
        return self.group_transfer.passed_over(start, end)

    def wait_confirmed(self, end_offset: int, callback: WaiterCallback) -> None:
        """Call `callback` when the log is confirmed up to here, or with the reason why not."""
        self.group_transfer.wait(end_offset, callback, explain=self.timeout_reason)

    def may_answer_early(self) -> bool:
        """R5: a reply may leave before its record is confirmed, by the clock of this moment."""
        authority = None if self.group is None else self.group.authority
        return authority is not None and authority.may_answer_early(self._clock.boot_ms())

    def timeout_reason(self, end_offset: int) -> str:
        """The remark of a FLUSH_SLAVE_TIMEOUT."""
        if self.group is not None:
            return self.group.timeout_reason(end_offset)
        return self.group_transfer.timeout_reason(end_offset)

    # What connections tell.

    @property
    def confirmed_offset(self) -> int:
        """What slaves are told: with SYNC_FLUSH it is on the master's disk as well."""
        confirmed = self.confirmed.value
        if self.twin is None or self.group is not None:
            return confirmed
        if self.twin.is_durable:
            confirmed = min(confirmed, self._store.flushed.value)
        return max(confirmed, min(self.twin.mark.value, self._log.max_offset))

    @property
    def is_linked(self) -> bool:
        """On a slave: whether its master is there."""
        return self.client is not None and self.client.is_linked

    @property
    def known_confirmed(self) -> int:
        """How far the log is on enough replicas, as far as this one knows."""
        known = self.confirmed.value if self.client is None else self.client.confirmed
        if self.twin is None:
            return known
        return max(known, self.twin.mark.value)  # Also what this one has lost.

    @property
    def known_master_end(self) -> int:
        """Where the master's log ends, as far as this replica knows."""
        return self._log.max_offset if self.client is None else self.client.master_end

    def classic_refusal(self, host: str, *, is_local: bool) -> str:
        """Why a classic connection from `host` is not served; empty when it is."""
        if self.twin is None:
            return ""
        return self.twin.classic_refusal(host, is_local=is_local)

    def twin_detected(self, connection: HAConnection) -> HAConnection | None:
        """The first bytes were the twin dialect's: one of that dialect takes its place."""
        if self.twin is None:
            connection.close("the twin dialect is not spoken here")
            return None
        core = TwinSender(
            self.twin.master_facts(self.settings, self._log.segment_size, self.group),
            self._log.min_offset,
            self._log.max_offset,
            self._clock.monotonic_ms(),
            self.twin.new_nonce(),
        )
        twin = self._new_connection(core)
        self.connections.remove(connection)
        self.connections.append(twin)
        return twin

    def tls_detected(self, connection: HAConnection) -> ssl.SSLContext | None:
        """The first byte was TLS: with what to answer, or None when it is not offered."""
        if self.settings.tls is not None and not self.settings.is_slave:
            return self.settings.tls
        connection.close_reason = "this is a TLS connection, but twinlogHATLS is off here"
        if self.settings.is_slave:
            connection.close_reason = "this broker is a slave: replicate from its master"
        return None

    def twin_hello(self, connection: HAConnection) -> tuple[ErrorCode, str] | None:
        """Whether this slave may join: one connection for each replica."""
        hello = connection.hello
        assert hello is not None
        assert self.twin is not None
        if refusal := hello_refusal(connection, self.settings, self.twin, self.group):
            return refusal
        for other, theirs in with_same_id(connection, self.connections):
            if theirs.replica_uid != hello.replica_uid:
                return ErrorCode.REPLICA_ID_IN_USE, (
                    f"brokerId {hello.replica_id} is used by another slave at {other.address}"
                )
            other.close("the same slave has connected again")
            self.connection_closed(other)
        connection.address = f"{connection.address}/{hello.replica_id}"
        return None

    def connection_opened(self, connection: HAConnection) -> None:
        self.connections.append(connection)
        if self._is_stopping:
            connection.close("the broker is stopping")
        elif len(self.connections) > HA_CONNECTION_COUNT_MAX:
            self._turn_away(connection, f"more than {HA_CONNECTION_COUNT_MAX} HA connections")
        else:
            if (oldest := crowded_out(self.connections, connection)) is not None:
                reason = f"already {HA_UNPROVED_PER_HOST_MAX} connections of {oldest.host} wait"
                self._turn_away(oldest, f"{reason} that have not said who they are")
            if self.settings.is_slave:
                connection.hold("this broker is a slave: replicate from its master")
            else:
                _LOG.info("HA connection from %s", connection.address)

    def _turn_away(self, connection: HAConnection, reason: str) -> None:
        connection.is_notable = True
        connection.close(reason)

    def slave_is_longer(self, connection: HAConnection, common: int) -> None:
        if self.group is not None:
            connection.twin.truncate_slave(common)  # An elected master's log is the group's.
            return
        assert self.catch_up is not None
        self.catch_up.slave_is_longer(connection, common)

    def tail_received(self, connection: HAConnection, body: bytes) -> None:
        assert self.catch_up is not None
        self.catch_up.tail_received(connection, body)

    def slave_joined(self, connection: HAConnection) -> None:
        core = connection.core
        self._doubt_others(connection)
        now_ms = self._clock.monotonic_ms()
        if (hello := connection.hello) is not None:
            start_offset = twin_start(hello, core.request_offset, self._log.min_offset)
        else:
            is_empty = core.ack_offset == 0 < core.next_offset
            start_offset = self._classic_starts.joined(
                connection.host, core.next_offset if is_empty else None, now_ms,
                keep_ms=2 * self.group_transfer.timeout_ms,
            )  # fmt: skip
        self.acks.join(connection.address, core.ack_offset, now_ms, start_offset=start_offset)
        if hello is not None:
            self.joined_replica_ids.add(hello.replica_id)
            self.on_twin_joined()
            if self.group is not None:
                self.group.joined(hello, connection.number, core.ack_offset, core.request_offset)
            else:
                assert self.catch_up is not None
                self.catch_up.slave_joined(connection)
        self.group_transfer.acks_changed()

    def _doubt_others(self, connection: HAConnection) -> None:
        """The classic dialect has no identity: another of this host may be the same slave's, also
        when the slave has changed its dialect. Two twin slaves are told apart by their ids."""
        for other in self.connections:
            if other is connection or other.host != connection.host:
                continue
            if not (other.is_twin and connection.is_twin):
                self.acks.doubt(other.address, sent_offset=other.core.next_offset)

    def slave_acked(self, connection: HAConnection) -> None:
        core, now_ms = connection.core, self._clock.monotonic_ms()
        ack_offset = core.ack_offset
        self.acks.ack(
            connection.address, ack_offset, sent_offset=core.next_offset, end_offset=core.log_end,
            now_ms=now_ms,
        )  # fmt: skip
        self.group_transfer.acks_changed()
        if self.group is not None and (hello := connection.hello) is not None:
            self.group.acked(hello, connection.number, ack_offset)
        connection.pipeline.acked(ack_offset, now_ms)
        if self._gathering is not None and self.settings.is_sync and not self._is_pipeline_full():
            self._gathered()

    def slave_refused(self, connection: HAConnection, reason: str) -> None:
        _LOG.warning("HA connection refused address=%s reason=%s", connection.address, reason)
        suspended = [
            other
            for other in self.connections
            if other.host == connection.host and other.state is HAConnectionState.SUSPEND
        ]
        if len(suspended) > HA_SUSPENDED_PER_HOST_MAX:
            connection.close(f"{reason}; already {HA_SUSPENDED_PER_HOST_MAX} like it")

    def connection_closed(self, connection: HAConnection) -> None:
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        if self.catch_up is not None:
            self.catch_up.connection_closed(connection)
        if self.group is not None:
            self.group.left(connection.hello, connection.number)
        was_replica = ack_of(self, connection) is not None
        self.acks.leave(connection.address)
        departed = DepartedStatus(
            address=connection.address,
            since_ms=connection.since_ms,
            until_ms=self._clock.now_ms(),
            ack_offset=connection.core.ack_offset,
            reason=connection.close_reason or connection.core.reason,
            was_slave=was_replica,
        )
        is_momentary = self.group is not None and self.group.is_for_a_moment(connection.hello)
        if connection.is_notable and (was_replica or not is_momentary):
            self.departed.append(departed)
        if was_replica:
            self.group_transfer.replica_left(departed)
            self.followers.left(departed, [replica.name for replica in self.acks.replicas])
        elif connection.core.is_proved:
            self.group_transfer.replica_refused(departed)
        _LOG.info("HA connection closed address=%s reason=%s", departed.address, departed.reason)

    def connection_failed(self, connection: HAConnection, error: BaseException) -> None:
        """A bug costs this connection: the slave dials again, and the handshake finds its place."""
        self._tasks.failures.note("HA connection", error, connection.address)
        reason = f"internal error: {error_text(error)}"
        if not self._tasks.failures.contain("HA connection", connection.close, reason):
            self.connection_closed(connection)

    def status(self) -> HAStatus:
        """The truth of this moment."""
        return status_of(self, self._log, self._clock, self.departed, self._tasks.count)

    # What the client asks of the twin dialect, and tells.

    def new_receiver(self) -> TwinReceiver:
        assert self.twin is not None
        facts = self.twin.slave_facts(self.settings, self._log, self.group)
        return TwinReceiver(facts, self._clock.monotonic_ms())

    def master_refusal(self, host: str) -> str:
        return "" if self.twin is None else self.twin.master_refusal(host)

    def epochs_learnt(self, epochs: tuple[WireEpoch, ...]) -> None:
        if self.group is not None:
            self.group.follow_epochs(epochs)

    def link_started(self, store_id: str) -> None:
        assert self.twin is not None
        self.twin.adopt_store_id(store_id)
        self.twin.mark.follow(self._log.max_offset)
        if self.group is not None:
            self.group.link_started()
        self.on_linked()

    def confirmed_heard(self, confirmed: int) -> None:
        """A slave has what its master calls confirmed, up to here: a kill must not take that."""
        assert self.twin is not None
        self.twin.mark.note(confirmed)
        self.twin.mark.save()
        if self.group is not None:
            self.group.told_confirmed(confirmed)
            return  # It is complete when the controller says that it was admitted (R8).
        link = self.client.link if self.client is not None else None
        core = None if link is None else link.twin
        has_all = core is not None and core.log_end >= core.master_end
        if has_all and self.twin.mark.is_in_doubt:
            self.twin.mark.complete()

    # Work.

    def _has_confirmed(self) -> bool:
        log_min, log_end = self._log.min_offset, self._log.max_offset
        return self.twin is not None and self.twin.mark.covers(log_min, log_end)

    def _note_confirmed(self) -> None:
        """On a master: what is confirmed and on a slave that could give it back."""
        if self.twin is not None and self.group is not None:
            self.twin.mark.note(self.confirmed.value)
        if self.twin is None or self.catch_up is None:
            return
        twins = [c.core for c in self.connections if c.is_twin]
        acked = [c.ack_offset for c in twins if c.state is _TRANSFER]
        if acked:
            self.twin.mark.note(min(self.confirmed_offset, max(acked)))

    def _confirmed_moved(self, _: int) -> None:
        if self._telling is None:
            self._telling = self._clock.call_later_ms(_TELL_MS, self._tell_confirmed)

    def _tell_confirmed(self) -> None:
        """Under load the next frame says it."""
        self._telling = None
        for connection in self.connections:
            if connection.is_twin:
                connection.tell_confirmed()

    def _accept(self) -> HAFront:
        core = HASender(
            self._sender_settings,
            log_min=self._log.min_offset,
            log_end=self._log.max_offset,
            now_ms=self._clock.monotonic_ms(),
        )
        return HAFront(self, self._new_connection(core))

    def _new_connection(self, core: HASender | TwinSender) -> HAConnection:
        return HAConnection(
            self,
            self._log,
            self._clock,
            core,
            bytes_per_second_max=self.settings.transfer_bytes_per_second_max,
            turn=self._turn,
        )

    def _log_extended(self, end_offset: int) -> None:
        """Every append wakes every writer: at once after a pause, gathered in a burst.

        While a synchronous replica has as many unacknowledged frames as its distance demands, the
        sends that follow are gathered for the next one, as a group commit does with the disk.
        """
        if self.group is not None and not self.group.is_durable:
            self.group.own_end_moved()
        if not self.connections:
            self._seen_end = end_offset
            return
        now_ms = self._clock.monotonic_ms()
        self.acks.log_extended(self._seen_end, now_ms)
        self._seen_end = end_offset
        is_pause = now_ms - self._woken_ms >= _GATHER_MS
        if is_pause or (self.settings.is_sync and not self._is_pipeline_full()):
            self._woken_ms = now_ms
            self._wake_writers()
        elif self._gathering is None:
            self._gathering = self._clock.call_later_ms(_GATHER_MS, self._gathered)

    def _is_pipeline_full(self) -> bool:
        for connection in self.connections:
            if connection.pipeline.is_full and connection.core.state is _TRANSFER:
                return True
        return False

    def _gathered(self) -> None:
        self._woken_ms = self._clock.monotonic_ms()
        self._wake_writers()

    def _wake_writers(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        log_min, log_end = self._log.min_offset, self._log.max_offset
        for connection in tuple(self.connections):
            try:
                connection.log_moved(log_min, log_end)
            except Exception as error:
                self.connection_failed(connection, error)

    def _tick(self) -> None:
        period_ms = tick_period_ms(
            self.settings.send_heartbeat_interval_ms, self.settings.housekeeping_interval_ms
        )
        self._timer = self._clock.call_later_ms(period_ms, self._tick)
        log_min, log_end = self._log.min_offset, self._log.max_offset
        for connection in tuple(self.connections):
            try:
                connection.log_moved(log_min, log_end)
                connection.tick()
            except Exception as error:
                self.connection_failed(connection, error)
        self._tasks.failures.contain("HA tick", self._look_after_marks)

    def _look_after_marks(self) -> None:
        self._note_confirmed()
        if self.catch_up is not None:
            self.catch_up.tick()
