"""Follows the controller: heartbeats, what they bring, and what the broker does about it.

Corresponds to RocketMQ 5's ReplicasManager. The rules are elsewhere and pure: `ha/group_view.py`
(R4, R11), `ha/authority.py`, `ha/in_sync.py`; the steps of a change are in `role_change.py`. Here
is the order in which things happen:

    heartbeat answered -> the view learns -> an epoch that is over ends at once
                       -> the record is stored -> the change is carried out

A record that is learnt while an older one is being carried out interrupts it: the change that is
wanted is asked for again after each wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from twinlog.broker.group.beat import Beat
from twinlog.broker.group.controller_link import (
    BUSY_CODES,
    ControllerError,
    ControllerLink,
    policy_of,
)
from twinlog.broker.group.resignation import Resignation
from twinlog.broker.group.role_change import RoleChange
from twinlog.broker.group.stored import Application, StoredGroup
from twinlog.controller.record import Election, GroupRecord, Policy
from twinlog.ha.authority import Authority, SetProposal
from twinlog.ha.group_view import GroupState, GroupView, ReplicaRole
from twinlog.ha.in_sync import InSync, Wish
from twinlog.ha.twin.mark import ConfirmedMark
from twinlog.remoting.addresses import replica_address
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.errors import RemotingError
from twinlog.remoting.headers.controller import ControllerHeartbeatRequestHeader
from twinlog.runtime.config import FlushDiskType
from twinlog.runtime.failures import error_text

if TYPE_CHECKING:
    from twinlog.broker.server import Broker

_LOG = logging.getLogger("twinlog.broker")
HEARTBEAT_MS = 400
_HEARTBEAT_MS_MIN = 5  # However often something asks for one.
_REDIAL_MS = 100  # A controller that comes back decides when it has heard all who live.
_TICK_MS = 100
_NOT_CAUGHT_UP_MS_MAX = 1_500
_JOINING_MS_MAX = 3_000  # One that has not caught up by then holds back everybody's sends.
_RETRY_MS = 200
_SUSPECT_MS = 1_500
_LEAVING_MS_MAX = 500
_ALONE_MS = 1_000  # Without a word from the controller a slave follows whom it followed.
_HAND_OVER_MS_MAX = 2_000  # The controller gives up after one second.
_NEVER_MS = 1 << 62


def state_of(record: GroupRecord) -> GroupState:
    """The part of a record that a replica acts by."""
    master = record.replicas.get(record.master_broker_id or 0)
    return GroupState(
        epoch=record.master_epoch,
        set_epoch=record.sync_state_set_epoch,
        master_id=record.master_broker_id,
        master_incarnation=record.master_incarnation,
        master_ha_address="" if master is None else master.ha_address,
        members=record.sync_state_set,
        is_clean=record.election is Election.CLEAN,
    )


class ReplicasManager:
    """One broker of a controlled group."""

    def __init__(
        self, broker: Broker, stored: StoredGroup, link: ControllerLink, token: Callable[[], str]
    ) -> None:
        self._broker = broker
        self._clock = broker.clock
        self._stored = stored
        self._link = link
        self._token = token
        self.incarnation = token()
        self.change = RoleChange(broker)
        self._view: GroupView | None = None
        self._record: GroupRecord | None = None
        self._in_sync = InSync()
        self._joining_since_ms = 0
        self._is_registered = self._is_turned_away = False
        self._is_proposing = False
        self._accepted: SetProposal | None = None
        self._hand_over_to: int | None = None
        self._hand_over_ms = 0
        self._suspect = ""
        self._wake = asyncio.Event()
        self._settling = asyncio.Event()
        self._said: dict[str, str] = {}
        self._is_heard = False
        self._started_ms = 0
        self.frozen = ""
        self._is_leaving = False
        self._left = asyncio.Event()

    # Life

    def load(self) -> None:
        """After the store has its lock. Raises StoreError."""
        self._stored.load()

    def start(self) -> None:
        """Ports are open: ask who leads."""
        broker = self._broker
        group = broker.ha.group
        assert group is not None
        group.incarnation = self.incarnation
        self._mark.began(self.incarnation)
        group.is_learner = broker.config.async_learner
        broker.role.subscribe(self._note_role)
        group.on_newer_epoch = broker.registration.on_newer_epoch = self.met
        group.on_links_changed = self._links_changed
        group.on_unknown_replica = self.hint
        group.on_too_few = self._too_few
        if self._stored.broker_id is not None:
            self._known_id(self._stored.broker_id)
        self._started_ms = self._clock.monotonic_ms()
        broker.tasks.contained("controller", self._follow_controller)
        broker.tasks.contained("role", self._keep_settled)
        broker.tasks.round("in-sync", lambda: _TICK_MS, self._tick)

    async def resign(self) -> None:
        """Before a clean stop: see Resignation. Nobody chooses this broker from now on."""
        self._is_leaving = True
        self._wake.set()
        await self._say_leaving()
        await Resignation(self._broker, self._link, self.change, self._wake.set).run()
        await self._write_role()

    async def _say_leaving(self) -> None:
        """Until the controller has heard of it: it may be about to choose this broker."""
        if self._link.leader is None:
            return
        try:
            async with asyncio.timeout(_LEAVING_MS_MAX / 1000):
                await self._left.wait()
        except TimeoutError:
            _LOG.warning("the controller was not told of this stop")

    def _note_role(self) -> None:
        """Not in the way of what follows from the change."""
        self._broker.tasks.job("identity", self._write_role())

    async def _write_role(self) -> None:
        await self._broker.disk.run(self._broker.identity.note_role)

    def _known_id(self, broker_id: int) -> None:
        stored, group = self._stored, self._broker.ha.group
        assert group is not None
        group.own_id = broker_id
        group.epoch = stored.known_epoch
        state = GroupState() if stored.record is None else state_of(stored.record)
        self._view = GroupView(broker_id, self.incarnation, state, stored.known_epoch)
        self._record = stored.record

    # What others ask

    def hint(self) -> None:
        """Somebody says that there is news: only the controller's answer counts (R11)."""
        self._wake.set()

    def met(self, epoch: int) -> None:
        """A peer or a name server knows this epoch; a newer one ends what ours allows (R4)."""
        view = self._view
        if view is None or epoch <= view.known_epoch:
            return
        _LOG.warning("found a newer epoch epoch=%d known=%d", epoch, view.known_epoch)
        if view.met(epoch):
            self._stand_down(f"epoch {epoch} has begun")
            self._settling.set()
        self._wake.set()

    def _stand_down(self, reason: str) -> None:
        assert self._broker.relay is not None
        self._suspect = ""
        self.change.stand_down(reason)
        self._hand_over_to = None
        self._broker.relay.is_holding = False  # Whoever leads now gets what was held.

    @property
    def _mark(self) -> ConfirmedMark:
        """What of this store is in doubt (R8)."""
        assert self._broker.ha.twin is not None
        return self._broker.ha.twin.mark

    @property
    def authority(self) -> Authority | None:
        group = self._broker.ha.group
        return None if group is None else group.authority

    @property
    def record(self) -> GroupRecord | None:
        return self._record

    def _links_changed(self) -> None:
        """A link came or went: the controller wants to know, and perhaps the set changes."""
        self._wake.set()
        if self.authority is not None:
            asyncio.get_running_loop().call_soon(self._tick_safely)
        elif self._broker.ha.is_linked:
            self._broker.registration.resume()

    def _check_registration(self) -> None:
        """Whether name servers are told follows from what this broker is, looked at with every
        heartbeat: an event that was missed makes it later, not never."""
        registration = self._broker.registration
        is_serving = bool(self.change.leading_epoch) and not self._suspect
        if registration.is_paused and (is_serving or self._broker.ha.is_linked):
            registration.resume()

    # The controller

    async def _follow_controller(self) -> None:
        while True:
            started_ms = self._clock.monotonic_ms()
            self._wake.clear()
            try:
                if not self._is_registered:
                    await self._register()
                await self._beat()
            except RemotingError as error:
                self._not_answered(error)
            except OSError as error:
                self._say("controller", f"the identity cannot be written: {error}")
            self._go_on_alone()
            self._check_registration()
            await self._pause(started_ms)

    def _go_on_alone(self) -> None:
        """The controller is away since before this process began. One that it turned away is the
        copy of another's store: it would acknowledge in the name of the replica that it is not."""
        if self._is_heard or self._is_turned_away or self._view is None:
            return
        if self._clock.monotonic_ms() - self._started_ms >= _ALONE_MS and self._view.go_on():
            _LOG.warning("no controller decides yet: this slave follows the master that it knows")
            self._settling.set()

    async def _pause(self, started_ms: int) -> None:
        await self._clock.sleep_ms(_HEARTBEAT_MS_MIN)
        pause_ms = HEARTBEAT_MS if self._link.leader is not None else _REDIAL_MS
        left_ms = started_ms + pause_ms - self._clock.monotonic_ms()
        if left_ms <= 0 or self._wake.is_set():
            return
        try:
            async with asyncio.timeout(left_ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            return

    def _not_answered(self, error: RemotingError) -> None:
        code = error.code if isinstance(error, ControllerError) else None
        if code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self._is_registered = False
        elif code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._is_turned_away = True
        elif code in (None, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE):
            # The latter: words of an older connection of ours came late, and the controller takes
            # them for the newer ones. It believes a connection that is newer still.
            self._link.lost()
        self._say("controller", error_text(error))

    def _say(self, what: str, problem: str) -> None:
        """Once for each change; no problem: it is over."""
        before = self._said.pop(what, "")
        if problem:
            self._said[what] = problem
        if problem != before:
            level = logging.WARNING if problem else logging.INFO
            _LOG.log(level, "%s: %s", what, problem or "well again")

    async def _register(self) -> None:
        """Have an id, and say where this broker is."""
        broker, config = self._broker, self._broker.config
        if self._stored.broker_id is None:
            await self._apply_for_id()
        number = self._stored.broker_id
        assert number is not None
        fields = {
            "cluster_name": config.broker_cluster_name,
            "broker_name": config.broker_name,
            "broker_id": number,
            "broker_address": broker.address,
            "twinlog_ha_addr": broker.ha_address,
            "twinlog_uid": broker.identity.replica_uid,
            "twinlog_learner": config.async_learner,
            "twinlog_priority": config.broker_election_priority,
            "twinlog_policy": self._policy_text(),
        }
        try:
            await self._link.register(RequestCode.CONTROLLER_REGISTER_BROKER, **fields)
        except ControllerError as error:
            if error.code != ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
                raise
            # It lost its state, or an operator cleaned this replica: the same id again.
            await self._apply(number, f"{broker.address};{self._token()}")
            await self._link.register(RequestCode.CONTROLLER_REGISTER_BROKER, **fields)
        self._is_registered, self._is_turned_away = True, False
        _LOG.info("registered with the controller id=%d", number)

    async def _apply_for_id(self) -> None:
        stored, config = self._stored, self._broker.config
        if stored.application is None:
            number = await self._link.next_id(config.broker_cluster_name, config.broker_name)
            stored.apply(Application(number, f"{self._broker.address};{self._token()}"))
        application = stored.application
        assert application is not None
        try:
            await self._apply(application.broker_id, application.check_code)
        except ControllerError as error:
            if error.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                stored.withdraw()  # Another replica was faster: ask for the next one.
            raise
        stored.applied()
        assert stored.broker_id is not None
        self._known_id(stored.broker_id)

    async def _apply(self, number: int, check_code: str) -> None:
        config = self._broker.config
        await self._link.register(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            applied_broker_id=number,
            register_check_code=check_code,
            twinlog_uid=self._broker.identity.replica_uid,
            twinlog_policy=self._policy_text(),
        )

    def _policy_text(self) -> str:
        return msgspec.json.encode(policy_of(self._broker.config)).decode()

    async def _beat(self) -> None:
        broker, view = self._broker, self._view
        group = broker.ha.group
        assert view is not None
        assert group is not None
        config = broker.config
        sent_ms = self._clock.boot_ms()
        client = broker.ha.client
        link_ms = None if client is None else client.heard_ms_ago()
        header = ControllerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=broker.address,
            broker_name=config.broker_name,
            broker_id=view.own_id,
            epoch=group.last_epoch,
            max_offset=broker.store.commit_log.max_offset,
            confirm_offset=broker.ha.confirmed.value,
            heartbeat_timeout_mills=config.controller_heart_beat_timeout_mills,
            election_priority=config.broker_election_priority,
            twinlog_incarnation=self.incarnation,
            twinlog_known_epoch=self._stored.known_epoch,
            twinlog_complete=not self._mark.is_in_doubt,
            twinlog_processes=";".join(self._mark.processes) or None,
            twinlog_writable=self._may_lead,
            twinlog_link=link_ms,
            twinlog_drained=self._drained_end(),
            twinlog_was_master=broker.identity.was_master,
            twinlog_clock=sent_ms,
        )
        asked, accepted, is_leaving = group.awaited, self._accepted, self._is_leaving
        beat = await self._link.heartbeat(header, self._stored.record, sent_ms)
        self._say("controller", "")
        self._is_heard = True
        if is_leaving:
            self._left.set()
        self._answered(beat)
        if accepted is not None and beat.record is not None:
            self._propose_again(accepted, beat.record)
        if self._stored.record is self._record:  # Else it is stored first, and then counts.
            group.controller_answered(asked)

    @property
    def _may_lead(self) -> bool:
        """Whether it could take sends as the master: not for long, if it is about to stop."""
        store = self._broker.store
        return store.is_writeable and not store.commit_log.lacks_room and not self._is_leaving

    def _answered(self, beat: Beat) -> None:
        if beat.frozen != self.frozen:
            self.frozen = beat.frozen
            _LOG.error("the controller decides nothing: %s", beat.frozen or "it does again")
        if beat.is_admitted:
            self._mark.complete()
        if beat.record is not None and not beat.frozen:
            self._learn(beat.record)
        self._switch_asked(beat)
        record, authority = beat.record, self.authority
        if authority is not None and record is not None and self._hand_over_to is None:
            authority.granted(
                beat.sent_ms, beat.lease_ms, record.master_epoch, record.master_incarnation
            )

    def _learn(self, record: GroupRecord) -> None:
        view = self._view
        assert view is not None
        before = (view.role, view.state.epoch)
        steps = view.learn(state_of(record))
        if not steps and (self._record is None or record.version <= self._record.version):
            return
        if (record.master_epoch, record.sync_state_set_epoch) < (
            view.state.epoch, view.state.set_epoch,
        ):  # fmt: skip
            return
        if self._record is None or self._record.policy != record.policy:
            self._check_policy(record.policy)
        self._record = record
        if before != (view.role, view.state.epoch):
            self._stand_down(f"epoch {view.state.epoch} has begun, {_who(record)} leads")
            if view.role is ReplicaRole.SLAVE:
                # Before it is stored, which a full disk refuses: to pass on is no act of ours.
                assert self._broker.relay is not None
                self._broker.relay.master_is(_serves_at(record))
        self._settling.set()

    def _check_policy(self, policy: Policy) -> None:
        """The promise is the group's: a file that says something else is not followed, and a disk
        that promises less ends the process before its acknowledgements count."""
        config = self._broker.config
        if policy.broker_role != config.broker_role.value:
            _LOG.warning(
                "the file has brokerRole=%s, but the group answers as %s: that of the group counts",
                config.broker_role.value, policy.broker_role,
            )  # fmt: skip
        if policy.is_durable and config.flush_disk_type is not FlushDiskType.SYNC_FLUSH:
            self._broker.on_end(
                f"flushDiskType={config.flush_disk_type.value} here, and group"
                f" {config.broker_name} promises SYNC_FLUSH: set it in this file too"
            )

    # Planned switches

    def _switch_asked(self, beat: Beat) -> None:
        """What a heartbeat's answer says of a switch. Without a word of it and without a lease the
        election is being written: then the answer is on its way."""
        target = beat.hand_over_to
        if self.authority is None or not self.change.leading_epoch:
            return
        if target is not None and self._hand_over_to is None:
            self._hand_over(target, self.authority)
        elif target is None and self._hand_over_to is not None and beat.lease_ms:
            self._end_hand_over("the controller has given it up")

    def _hand_over(self, target: int, authority: Authority) -> None:
        """The controller wants `target` to lead: hold new sends, let the set have the log."""
        broker = self._broker
        assert broker.relay is not None
        _LOG.info("handing over to replica %d", target)
        broker.pair.writer.tick()
        broker.store.write_pending()
        self._hand_over_to, self._hand_over_ms = target, self._clock.monotonic_ms()
        broker.relay.is_holding = True
        authority.surrender()
        self._update_door()
        end = broker.store.commit_log.max_offset
        broker.ha.confirmed.wait(end, _NEVER_MS, lambda *_: self._wake.set())

    def _end_hand_over(self, reason: str) -> None:
        """This broker leads on, and answers what it held back. Safe at any time: what it takes is
        confirmed by the set, or not at all."""
        relay = self._broker.relay
        assert relay is not None
        _LOG.warning("no switch to replica %s: %s", self._hand_over_to, reason)
        self._hand_over_to = None
        relay.is_holding = False
        self._update_door()
        relay.release()

    def _drained_end(self) -> int | None:
        """Where the log ends, once all of it is confirmed and nothing more is taken."""
        end = self._broker.store.commit_log.max_offset
        is_drained = self._hand_over_to is not None and self._broker.ha.confirmed.value >= end
        return end if is_drained else None

    # Carrying out

    async def _keep_settled(self) -> None:
        if self._record is not None:
            self._settling.set()  # After an error this begins again: nothing is forgotten.
        while True:
            await self._settling.wait()
            self._settling.clear()
            try:
                await self._settle()
            except OSError as error:
                self._say("change of role", f"waits, and is tried again: {error}")
                self._settling.set()
                await self._clock.sleep_ms(_RETRY_MS)
            else:
                self._say("change of role", "")

    async def _settle(self) -> None:
        """Store what is known, then be what it says."""
        view, record, group = self._view, self._record, self._broker.ha.group
        assert view is not None
        assert group is not None
        known_epoch, stored = view.known_epoch, self._stored
        if stored.record != record or stored.known_epoch != known_epoch:
            await stored.save(record, known_epoch)
            if self._settling.is_set():
                return  # Something newer: it is stored before anything is done.
        group.epoch = known_epoch
        if record is None or view.state.epoch != known_epoch:
            return  # Of the epoch that was met nothing else is known yet.
        group.uids = {n: replica.uid for n, replica in record.replicas.items()}
        state = view.state
        if view.role is ReplicaRole.MASTER:
            await self._lead(state, record)
        elif view.role is ReplicaRole.SLAVE:
            self.change.follow(state, _serves_at(record))

    async def _lead(self, state: GroupState, record: GroupRecord) -> None:
        if self.change.leading_epoch != state.epoch:
            self._in_sync = InSync(
                not_caught_up_ms=min(
                    _NOT_CAUGHT_UP_MS_MAX, self._broker.config.ha_max_time_slave_not_catchup
                )
            )
            is_done = await self.change.promote(state, record, lambda: not self._settling.is_set())
            if not is_done:
                return
            self._wake.set()
        group, relay = self._broker.ha.group, self._broker.relay
        assert group is not None
        assert relay is not None
        group.take_set(state.set_epoch, state.members, record.policy.min_in_sync_replicas)
        self._update_door()
        if not relay.is_holding:
            relay.release()  # What was held for the master of this epoch; not past a closed door.
        self._tick()

    # The sync-state set

    def _update_door(self) -> None:
        """Why a master takes no sends, if it does not: looked at before the append."""
        group = self._broker.ha.group
        if group is None or group.authority is None or not self.change.leading_epoch:
            return
        reason = group.too_few or self._suspect
        if self._hand_over_to is not None:
            reason = f"replica {self._hand_over_to} becomes the master of this group"
        self._broker.store.close_for_puts(reason)

    def _too_few(self, reason: str) -> None:
        """Sends that wait were taken while the set was large enough: stored, and unknown (12)."""
        self._broker.store.write_pending()
        self._broker.replies.not_replicated(reason)

    def _look_around(self, authority: Authority) -> None:
        """A master that neither its controller nor its slaves answer may have been replaced: it
        takes no more sends, and says nothing to name servers, until one of them is back."""
        waited_ms = self._broker.replies.waits_for_replicas_ms()
        is_switching = self._hand_over_to is not None  # Then it has given its lease back.
        has_lease = is_switching or authority.may_answer_early(self._clock.boot_ms())
        end = self._broker.store.commit_log.max_offset
        if not self._suspect and not has_lease and waited_ms >= _SUSPECT_MS:
            self._suspect = (
                f"no word from the controller, and nothing confirmed for {waited_ms} ms:"
                " this broker may no longer be the master"
            )
            _LOG.error("suspect: %s", self._suspect)
            self._broker.registration.pause()
            self._broker.replies.give_up(self._suspect)  # Stored here, and perhaps elsewhere: 12.
        elif self._suspect and (has_lease or authority.confirmed >= end):
            _LOG.warning("no longer suspect")
            self._suspect = ""
            self._check_registration()
        else:
            return
        self._update_door()

    def _tick_safely(self) -> None:
        self._broker.failures.contain("sync-state set", self._tick)

    def _tick(self) -> None:
        authority, record = self.authority, self._record
        if authority is None or record is None or not self.change.leading_epoch:
            return
        self._look_around(authority)
        now_ms = self._clock.monotonic_ms()
        if self._hand_over_to is not None and now_ms - self._hand_over_ms > _HAND_OVER_MS_MAX:
            self._end_hand_over("the controller did not decide")
        end = self._broker.store.commit_log.max_offset
        for number in record.replicas.keys() - {authority.own_id}:
            process = authority.process_of(number)
            self._in_sync.observe(now_ms, number, authority.acked_by(number), end, process)
        if not authority.is_changing:
            self._wish(now_ms, authority, record)
        elif authority.is_joining and now_ms - self._joining_since_ms > _JOINING_MS_MAX:
            authority.give_up_joining()
        proposal = authority.proposal()
        is_news = proposal is not self._accepted  # Else the next heartbeat brings it.
        if proposal is not None and is_news and not self._is_proposing:
            self._is_proposing = True
            self._broker.tasks.job("sync-state-set", self._propose(authority, proposal))

    def _wish(self, now_ms: int, authority: Authority, record: GroupRecord) -> None:
        learners = frozenset(record.replicas) - record.voters
        wish = self._in_sync.wish(now_ms, authority.members, authority.own_id, learners)
        if wish is None:
            return
        if wish.is_admission:
            self._admit(now_ms, authority, wish)
        else:
            self._say_wish("leaves", wish)
            self._in_sync.fell(now_ms, wish.replica_id)
            authority.shrink(wish.replica_id, wish.reason)

    def _say_wish(self, verb: str, wish: Wish) -> None:
        _LOG.info("replica %d %s the sync-state set: %s", wish.replica_id, verb, wish.reason)

    def _admit(self, now_ms: int, authority: Authority, wish: Wish) -> None:
        """Who is in the set may lead at any time: it has the tables in its log (R3)."""
        if self._hand_over_to is not None or self._suspect:
            return  # Nothing is appended now: the next master decides, or this one later.
        tables_end = self._tables_for(authority.log_start_of(wish.replica_id))
        if tables_end is None:
            reason = self._broker.store.refusal_reason
            problem = f"replica {wish.replica_id} waits: no room for the tables: {reason}"
            self._say("admission", problem)
            self._in_sync.refused(now_ms, wish.replica_id)
            return
        self._say("admission", "")
        self._say_wish("joins", wish)
        self._joining_since_ms = now_ms
        authority.join(wish.replica_id, tables_end)

    def _tables_for(self, log_start: int) -> int | None:
        """Where a snapshot of the tables ends that is in a log which begins at `log_start`: of one
        that began later the older records are expired, or were never copied. None: no room.

        It is written also while sends are refused: they wait for the replica that is to join."""
        writer, store = self._broker.pair.writer, self._broker.store
        if writer.snapshot is None or writer.snapshot.start < log_start:
            store.close_for_puts("")
            writer.write_tables()
            self._update_door()
        snapshot = writer.snapshot
        return None if snapshot is None or snapshot.start < log_start else snapshot.stop

    async def _propose(self, authority: Authority, proposal: SetProposal) -> None:
        """One at a time; what became of it the next heartbeat says (R2)."""
        config = self._broker.config
        try:
            await self._link.propose(
                config.broker_name, authority.own_id, self.incarnation, proposal
            )
        except ControllerError as error:
            if error.code is not None and error.code not in BUSY_CODES:
                self._say("sync-state set", f"refused: {error}")
                self._refused(authority, proposal)
                for number in proposal.incarnations:
                    self._in_sync.refused(self._clock.monotonic_ms(), number)
        except RemotingError as error:
            self._say("sync-state set", f"not answered: {error_text(error)}")
        else:
            self._accepted = proposal
            if proposal.members != authority.members:  # Else it only withdraws another one.
                self._say("sync-state set", "")
        finally:
            self._is_proposing = False
            self._wake.set()

    def _propose_again(self, accepted: SetProposal, record: GroupRecord) -> None:
        """A controller that was restored from a backup knows nothing of the set that it took. What
        RocketMQ's says may be older than its answer."""
        is_lost = record.sync_state_set_epoch <= accepted.set_epoch and not self._link.is_apache
        if is_lost and accepted is self._accepted:
            self._accepted = None

    def _refused(self, authority: Authority, proposal: SetProposal) -> None:
        """RocketMQ's controller cannot be asked to commit the present set again: there a refusal
        counts only when no other copy can be on its way; until then it is asked again."""
        if not self._link.is_apache:
            authority.rejected(proposal.set_epoch)
        elif self._link.is_only_copy(proposal):
            authority.withdrawn(proposal)


def _serves_at(record: GroupRecord) -> str:
    master = record.replicas[record.master_broker_id or 0]
    return replica_address(master.address, master.ha_address)


def _who(record: GroupRecord) -> str:
    number = record.master_broker_id
    return "nobody" if number is None else f"replica {number}"
