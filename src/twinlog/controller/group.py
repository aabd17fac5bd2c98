"""One group as its controller sees it: the committed record, who is alive, what is being written.

Pure: every method takes the time and returns effects. Corresponds to what RocketMQ 5 spreads over
ReplicasInfoManager, DefaultBrokerHeartbeatManager and the scanners of ControllerManager.

One commit at a time. While one is on its way, or its outcome is unknown, no lease is granted and no
set is changed: whatever is written may already count. An outcome that stays unknown is settled by
reading the store and, if the write is not there, by committing the present record again: a late
copy then finds a stale version.
"""

from __future__ import annotations

from typing import Any

import msgspec

from twinlog.controller import membership, refusals
from twinlog.controller.adoption import newest_stored, unsure
from twinlog.controller.clocks import Clocks
from twinlog.controller.elect import (
    Ballot,
    Standing,
    designate_refusal,
    elect,
    elect_first,
    elect_unclean,
    kind_of,
)
from twinlog.controller.events import (
    AlterSyncStateSet,
    Commit,
    Effect,
    ElectMaster,
    Happened,
    Heartbeat,
    Hint,
    RegisterReplica,
    Reload,
    RemoveReplica,
    Reply,
    SetLearner,
    Timing,
    Token,
)
from twinlog.controller.former import former_set, unless_former_have_more
from twinlog.controller.liveness import Liveness
from twinlog.controller.pending import HandOver, Pending
from twinlog.controller.record import Election, GroupRecord, Replica, changed
from twinlog.controller.refusals import NO_REFUSAL, Refusal, RefusalKind
from twinlog.controller.strangers import Strangers, identity_refusal, other_cluster

REPLICAS_MAX = 100
CANNOT_WRITE = "cannot write"


class Group:
    """State machine of one group. `since_ms` is when this controller began to decide about it."""

    def __init__(self, record: GroupRecord, timing: Timing, since_ms: int) -> None:
        self.record = record
        self.frozen = ""
        self._timing = timing
        self._since_ms = since_ms
        self.liveness = Liveness(timing, record.confirmed)
        self._granted_ms: int | None = None
        self._pending: Pending | None = None
        self._hand_over: HandOver | None = None
        self._switched_ms: int | None = None
        self._waiting_said: object = None
        self.waiting = ""
        self._is_adopted = False
        self._strangers = Strangers(self.liveness)
        self.clocks = Clocks()

    # What is known of the replicas

    @property
    def is_settled(self) -> bool:
        """Whether the record is known to be what the store holds."""
        return self._pending is None

    def is_alive(self, broker_id: int, now_ms: int) -> bool:
        return self.liveness.is_alive(broker_id, now_ms)

    def living(self, now_ms: int) -> dict[int, str]:
        return self.liveness.living(now_ms)

    @property
    def hand_over_to(self) -> int | None:
        return None if self._hand_over is None else self._hand_over.target

    def lease_left_ms(self, now_ms: int) -> int:
        """How long the master may still answer early, as far as this controller granted it."""
        if self._granted_ms is None:
            return 0
        return max(0, self._granted_ms + self._timing.lease_ms - now_ms)

    def heartbeat(self, now_ms: int, beat: Heartbeat) -> list[Effect]:
        if not self.record.knows(beat.broker_id, beat.stored):
            return [self._refuse(beat.token, self._not_registered(beat.broker_id))]
        stranger = self._strangers.why(self.record, now_ms, beat)
        if stranger:
            return self._turn_away(beat, Refusal(RefusalKind.INVALID, stranger), beat.token)
        is_member = beat.broker_id in self.record.sync_state_set
        if not self.liveness.note(now_ms, beat, is_member=is_member):
            return [self._refuse(beat.token, refusals.REPLACED)]
        if self._is_master(beat) and not self.frozen:
            confirmed = min(beat.confirmed or 0, beat.end)
            self.liveness.confirmed = max(self.liveness.confirmed, confirmed)
        effects = [*self.clocks.heard(now_ms, beat), *self._freeze_if_newer(beat)]
        effects += self._remove_if_doubtful(beat)
        effects += self._hand_over_if_drained(now_ms, beat)
        effects += self.consider(now_ms)
        return [*effects, self._answer(now_ms, beat)]

    def closed(self, now_ms: int, connection: int) -> list[Effect]:
        self.liveness.closed(now_ms, connection)
        return self.consider(now_ms)

    def _answer(self, now_ms: int, beat: Heartbeat) -> Reply:
        record = self.record
        is_master = self._is_master(beat)
        may_lease = is_master and self.is_settled and not self.frozen and self._hand_over is None
        if may_lease:
            self._granted_ms = now_ms
        if is_master and self._hand_over is not None:
            self._hand_over.told = beat.connection
        return Reply(
            beat.token,
            record,
            lease_ms=self.clocks.lease_ms(beat.broker_id, self._timing) if may_lease else 0,
            is_admitted=beat.has_what(record.admitted.get(beat.broker_id)),
            hand_over_to=self.hand_over_to if is_master else None,
            frozen=self.frozen,
        )

    def _is_master(self, beat: Heartbeat) -> bool:
        record = self.record
        return (beat.broker_id, beat.incarnation) == (
            record.master_broker_id,
            record.master_incarnation,
        )

    # Rules that a heartbeat brings about

    def _freeze_if_newer(self, beat: Heartbeat) -> list[Effect]:
        """R12: the record was restored from a backup. Deciding by it could elect a stale copy."""
        record = self.record
        newer = record.what_is_newer(beat.known_epoch, beat.stored)
        if self.frozen or not record.master_epoch or not newer:
            return []
        self.frozen = (
            f"replica {beat.broker_id} knows {newer}, this controller's record is of epoch"
            f" {record.master_epoch}, sync-state set epoch {record.sync_state_set_epoch}: it is"
            " older than the group, adopt the group again"
        )
        return [self._happened("frozen", reason=self.frozen)]

    def _remove_if_doubtful(self, beat: Heartbeat) -> list[Effect]:
        """R8: a member that may have lost what it acknowledged leaves the set, unless none would
        be left that is not in doubt. A master that started again is left to the election."""
        record, n = self.record, beat.broker_id
        if n not in record.sync_state_set or n == record.master_broker_id or not self._may_change:
            return []
        if not self.liveness.is_doubtful(record, n):
            return []
        others = record.sync_state_set - {n}
        if all(self.liveness.is_doubtful(record, other) for other in others):
            return []
        following = self._changed(
            sync_state_set=others, sync_state_set_epoch=record.sync_state_set_epoch + 1
        )
        reason = self.liveness.why_doubtful(n)
        return self._commit(following, self._happened("removed", replica=n, reason=reason))

    @property
    def _may_change(self) -> bool:
        return self.is_settled and not self.frozen

    # Elections

    def consider(self, now_ms: int) -> list[Effect]:
        """Whether the group needs another master, and who that is. While nobody can be elected,
        what the one that is waited for must have is kept over a restart of this controller."""
        effects = self._consider(now_ms)
        is_news = self.liveness.confirmed > self.record.confirmed
        if is_news and self._waiting_said is not None and self._may_change:
            effects += self._commit(self._changed())
        return effects

    def _consider(self, now_ms: int) -> list[Effect]:
        if not self._may_change:
            return []
        effects = self._end_hand_over(now_ms)
        if self.record.master_epoch == 0:
            return [*effects, *self._first_master(now_ms)]
        reason = self._why_replace(now_ms)
        if reason and not self.liveness.has_settled(self.record, now_ms, self._since_ms):
            return effects
        if not reason:
            self._waiting_said, self.waiting = None, ""
            return effects
        if self.record.policy.needs_lease and not self._are_leases_over(now_ms):
            return effects
        return [*effects, *self._elect(now_ms, reason)]

    def _why_replace(self, now_ms: int) -> str:
        """Why the master of the record cannot go on; empty when it can, as far as is known."""
        record, timing = self.record, self._timing
        assert record.master_broker_id is not None
        report = self.liveness.get(record.master_broker_id)
        if report is None:
            silent_ms = now_ms - self._since_ms
            if silent_ms >= timing.settle_ms and self.liveness.is_master_lost_by_all(
                record, now_ms
            ):
                return f"nobody hears master {record.master_broker_id}"
        elif report.heartbeat.incarnation != record.master_incarnation:
            return f"master {record.master_broker_id} started again"
        else:
            silent_ms = now_ms - report.at_ms
        if report is not None and report.closed_ms is not None:
            if not self.liveness.is_master_heard(record, now_ms) and (
                self.liveness.is_master_lost_by_all(record, now_ms)
                or now_ms - report.closed_ms >= timing.close_grace_ms
            ):
                return f"the connection of master {record.master_broker_id} closed"
        elif report is not None and report.unwritable_since_ms is not None:
            return self._why_unwritable(now_ms, report.unwritable_since_ms)
        if silent_ms < timing.silence_ms:
            return ""
        is_heard = self.liveness.is_master_heard(record, now_ms)
        if is_heard and silent_ms < timing.heard_by_slaves_ms:
            return ""
        return f"master {record.master_broker_id} has been silent for {silent_ms} ms"

    def _why_unwritable(self, now_ms: int, since_ms: int) -> str:
        """A full disk: worth a switch if another member can write, but not back and forth. What
        was switched for another reason does not count."""
        timing, record = self._timing, self.record
        if now_ms - since_ms < timing.unwritable_ms:
            return ""
        if self._switched_ms is not None and now_ms - self._switched_ms < timing.switch_pause_ms:
            return ""
        others = record.sync_state_set - {record.master_broker_id}
        if not any(s.is_candidate for n, s in self._standings(now_ms).items() if n in others):
            return ""
        return f"master {record.master_broker_id} {CANNOT_WRITE}"

    def _are_leases_over(self, now_ms: int) -> bool:
        """R6: counted from the last grant, and from the moment this controller began: the one
        before it may have granted just then."""
        since = max(self._since_ms, -(2**62) if self._granted_ms is None else self._granted_ms)
        return now_ms - since >= self._timing.lease_wait_ms

    def _standings(self, now_ms: int) -> dict[int, Standing]:
        return self.liveness.standings(self.record, now_ms)

    def _elect(self, now_ms: int, reason: str, preferred: int | None = None) -> list[Effect]:
        standings = self._standings(now_ms)
        ballot = elect(self.record.sync_state_set, standings, preferred)
        ballot = unless_former_have_more(ballot, self.record, standings)
        if ballot.winner is None:
            return self._say_waiting(ballot.waiting_for, reason)
        # A master is replaced when it is silent, gone or cannot write: it is no candidate then.
        present = (self.record.master_broker_id, self.record.master_incarnation)
        assert (ballot.winner.broker_id, ballot.winner.incarnation) != present
        return self._install(now_ms, ballot, reason)

    def _say_waiting(self, waiting_for: tuple[int, ...], reason: str) -> list[Effect]:
        """Once for each change of who is waited for."""
        if waiting_for == self._waiting_said:
            return []
        self._waiting_said = waiting_for
        absent = [n for n in waiting_for if n > 0]
        who = " and ".join(f"replica {n}" for n in absent)
        self.waiting = f"{reason}; waiting for {who}" if who else reason
        return [self._happened("not-elected", reason=reason, waiting_for=absent)]

    def _install(self, now_ms: int, ballot: Ballot, reason: str, epoch: int = 0) -> list[Effect]:
        record, winner = self.record, ballot.winner
        assert winner is not None
        election = kind_of(ballot.election, winner, record)
        admitted = dict(record.admitted)
        if election is not Election.CLEAN or epoch:
            self.liveness.confirmed = 0  # What is lost is lost.
        if election is not Election.CLEAN:
            admitted[winner.broker_id] = winner.incarnation  # Its log is the truth from now on.
        following = self._changed(
            lineage=record.lineage or winner.incarnation,
            master_epoch=max(record.master_epoch, epoch) + 1,
            master_broker_id=winner.broker_id,
            master_incarnation=winner.incarnation,
            election=election,
            sync_state_set=ballot.members,
            sync_state_set_epoch=record.sync_state_set_epoch + 1,
            former_set=frozenset() if epoch else former_set(record, winner, election),
            admitted=admitted,
        )
        if reason.endswith(CANNOT_WRITE):
            self._switched_ms = now_ms
        self._waiting_said = None
        self.waiting = ""
        kind = "elected" if election is Election.CLEAN else f"{election}-elected"
        happened = self._happened(
            kind,
            master=winner.broker_id,
            epoch=following.master_epoch,
            members=sorted(ballot.members),
            reason=reason,
            **self.liveness.gap(self.record),
        )
        hints = [Hint(record.group, n) for n in sorted(record.replicas)]
        return self._commit(following, happened, *self._overtaken(following, reason), *hints)

    def _overtaken(self, following: GroupRecord, reason: str) -> list[Effect]:
        """An election ends a planned switch: whoever asked for it hears how."""
        switch, self._hand_over = self._hand_over, None
        if switch is None:
            return []
        if following.master_broker_id == switch.target:
            return [Reply(switch.token, following)]
        text = f"no switch: {reason}, and replica {following.master_broker_id} was elected"
        return [self._refuse(switch.token, Refusal(RefusalKind.NOT_ELECTED, text))]

    def _first_master(self, now_ms: int) -> list[Effect]:
        """A group without a record of its own: new, or of a controller that lost its state."""
        standings = self._standings(now_ms)
        living = [s for s in standings.values() if s.is_alive]
        if not living:
            return []
        if all(s.end == 0 and self._beat(s).known_epoch == 0 for s in living):
            winner = max(living, key=lambda s: (-s.priority, -s.broker_id))
            ballot = Ballot(winner, frozenset([winner.broker_id]))
            return self._install(now_ms, ballot, "the first master of a new group")
        if not self._is_adopted:
            waiting = unsure(self.record, [self._beat(s) for s in living])
            if waiting is not None:
                return self._say_waiting(*waiting)
        if self.record.policy.needs_lease and not self._are_leases_over(now_ms):
            return []  # The controller whose state is lost may have granted one just then.
        return self._adopt_group(now_ms, standings)

    def _beat(self, standing: Standing) -> Heartbeat:
        report = self.liveness.get(standing.broker_id)
        assert report is not None
        return report.heartbeat

    def _adopt_group(self, now_ms: int, standings: dict[int, Standing]) -> list[Effect]:
        """Rebuild the record from what the replicas have stored: the newest set that any of them
        knows holds everything that was confirmed."""
        beats = [self._beat(s) for s in standings.values()]
        epoch = max((beat.known_epoch for beat in beats), default=0)
        newest = newest_stored(beats)
        if newest is not None:
            self._keep_stored(newest)
        if newest is not None and newest.master_epoch == epoch:
            same = self.record.same_stores(newest, standings)
            ballot, reason = elect(newest.sync_state_set, same), "adoption"
        else:
            masters = {n for n, s in standings.items() if s.is_alive and self._beat(s).was_master}
            ballot, reason = elect_first(standings, masters)
        if ballot.winner is None:
            return self._say_waiting(ballot.waiting_for, reason)
        # A restored log may know epochs that no record of the group tells of any more.
        epoch = max(epoch, *(s.last_epoch for s in standings.values()))
        return self._install(now_ms, ballot, "the group was adopted", epoch)

    def _keep_stored(self, newest: GroupRecord) -> None:
        """An adopted group stays the group it was, and numbers of its set go on."""
        set_epoch = max(self.record.sync_state_set_epoch, newest.sync_state_set_epoch)
        self.record = msgspec.structs.replace(
            self.record, sync_state_set_epoch=set_epoch, lineage=newest.lineage
        )

    # Planned switches

    def elect_by_request(self, now_ms: int, request: ElectMaster) -> list[Effect]:
        """An operator's election; without a wish the present state is the answer."""
        token, record = request.token, self.record
        if self.frozen or not self.is_settled:
            return [self._refuse(token, self._unsettled())]
        if request.is_unclean:
            return self._elect_unclean(now_ms, request)
        wanted = request.designate
        if wanted in (None, record.master_broker_id):
            return self._elect_now(now_ms, request)
        assert wanted is not None
        refusal = designate_refusal(record, self._standings(now_ms), wanted)
        if refusal.text:
            return [self._refuse(token, refusal)]
        assert record.master_broker_id is not None
        if self.is_alive(record.master_broker_id, now_ms):
            return self._begin_hand_over(now_ms, wanted, token)
        if record.policy.needs_lease and not self._are_leases_over(now_ms):
            return [self._refuse(token, refusals.LEASE_LEFT)]
        if self.liveness.may_master_speak_soon(record, now_ms, self._since_ms):
            return [self._refuse(token, refusals.NOT_HEARD_YET)]
        effects = self._elect(now_ms, "an operator's request", wanted)
        return self._reply_if_elected(effects, request)

    def _elect_now(self, now_ms: int, request: ElectMaster) -> list[Effect]:
        """Who leads, or is elected now; a master that is dead is not an answer."""
        effects = self._consider(now_ms)
        if self.liveness.does_master_live(self.record, now_ms):
            return self._then_reply(effects, request.token)
        return self._reply_if_elected(effects, request)

    def _reply_if_elected(self, effects: list[Effect], request: ElectMaster) -> list[Effect]:
        if self._pending is not None:
            self._pending = self._pending.answered(request.token, request.designate)
            return effects
        master = self.record.master_broker_id
        silent = "no replica sends heartbeats" if master is None else f"master {master} is silent"
        refusal = Refusal(RefusalKind.NOT_ELECTED, f"nobody is elected: {self.waiting or silent}")
        return [*effects, self._refuse(request.token, refusal)]

    def _begin_hand_over(self, now_ms: int, target: int, token: Token) -> list[Effect]:
        if self._hand_over is not None:
            text = f"a switch to replica {self._hand_over.target} is under way"
            return [self._refuse(token, Refusal(RefusalKind.BUSY, text))]
        self._hand_over = HandOver(target, now_ms + self._timing.hand_over_ms, token)
        assert self.record.master_broker_id is not None
        return [
            Hint(self.record.group, self.record.master_broker_id),
            self._happened("hand-over", to=target),
        ]

    def _hand_over_if_drained(self, now_ms: int, beat: Heartbeat) -> list[Effect]:
        """The master holds its sends and gave up its lease: the set stays as it is."""
        switch = self._hand_over
        if switch is None or beat.drained_end is None or not self._is_master(beat):
            return []
        if switch.told != beat.connection or not self._may_change:
            return []
        standing = self._standings(now_ms).get(switch.target)
        is_member = switch.target in self.record.sync_state_set
        if standing is None or not standing.is_candidate or not is_member:
            return self._cancel_hand_over(f"replica {switch.target} is not a candidate any more")
        self._hand_over = None
        ballot = Ballot(standing, self.record.sync_state_set)
        effects = self._install(now_ms, ballot, f"switched by request from {beat.broker_id}")
        return self._then_reply(effects, switch.token)

    def _then_reply(self, effects: list[Effect], token: Token) -> list[Effect]:
        """Answer `token` when what is being written is written, or now if nothing is."""
        if self._pending is None:
            return [*effects, Reply(token, self.record)]
        self._pending = self._pending.answered(token)
        return effects

    def _end_hand_over(self, now_ms: int) -> list[Effect]:
        switch = self._hand_over
        if switch is None or now_ms < switch.until_ms:
            return []
        return self._cancel_hand_over(self.liveness.why_not_drained(self.record, now_ms))

    def _cancel_hand_over(self, reason: str) -> list[Effect]:
        switch, self._hand_over = self._hand_over, None
        assert switch is not None
        return [
            self._refuse(switch.token, Refusal(RefusalKind.NOT_ELECTED, f"no switch: {reason}")),
            self._happened("hand-over-cancelled", to=switch.target, reason=reason),
        ]

    def _elect_unclean(self, now_ms: int, request: ElectMaster) -> list[Effect]:
        """May lose what was acknowledged: only with the group's name typed, and never while a
        lease may be believed."""
        token, record = request.token, self.record
        if request.typed_group != record.group:
            text = f"an unclean election may lose messages: type the group's name {record.group}"
            return [self._refuse(token, Refusal(RefusalKind.INVALID, text))]
        if self.liveness.does_master_live(record, now_ms):
            text = (
                f"master {record.master_broker_id} is alive: an unclean election is for a group"
                " without a master; switch to another replica, or stop the master first"
            )
            return [self._refuse(token, Refusal(RefusalKind.NOT_ELECTED, text))]
        if not self._are_leases_over(now_ms):
            return [self._refuse(token, refusals.LEASE_LEFT)]
        standings, wanted = self._standings(now_ms), request.designate
        if wanted is not None:
            refusal = designate_refusal(record, standings, wanted, is_unclean=True)
            if refusal.text:
                return [self._refuse(token, refusal)]
        ballot = elect_unclean(standings.values(), wanted)
        if ballot.winner is None:
            text = "no replica sends heartbeats"
            return [self._refuse(token, Refusal(RefusalKind.NOT_ALIVE, text))]
        effects = self._install(now_ms, ballot, "an operator's command")
        return self._reply_if_elected(effects, request)

    # Replicas and the set

    def alter(self, now_ms: int, request: AlterSyncStateSet) -> list[Effect]:
        refusal = self._unsettled()
        if not refusal.text:
            living = self.liveness.living(now_ms)
            refusal = membership.refusal(self.record, request.proposal, living)
        if refusal.text:
            return [self._refuse(request.token, refusal)]
        following = membership.commit(self.record, request.proposal, self.liveness.confirmed)
        before, after = self.record.sync_state_set, following.sync_state_set
        said = [self._happened("admitted", replica=n) for n in sorted(after - before)]
        said += [
            self._happened("removed", replica=n, reason=request.proposal.reason)
            for n in sorted(before - after)
        ]
        return self._commit(following, *said, Reply(request.token, following))

    def register(self, now_ms: int, request: RegisterReplica) -> list[Effect]:
        record, replica = self.record, request.replica
        other = other_cluster(record, request.cluster)
        if other:
            return self._turn_away(replica, Refusal(RefusalKind.INVALID, other), request.token)
        known = record.replicas.get(replica.broker_id)
        if known is None and len(record.replicas) >= REPLICAS_MAX:
            text = f"{record.group} has {REPLICAS_MAX} replicas: remove those that are gone"
            return [self._refuse(request.token, Refusal(RefusalKind.INVALID, text))]
        if known is not None:
            error = identity_refusal(known, replica)
            if error:  # Of two that apply at once, one: it applies for the next id.
                return [self._refuse(request.token, Refusal(RefusalKind.ID_TAKEN, error))]
            error = self._strangers.holder(record.group, now_ms, replica.broker_id, replica.address)
            if error:
                return self._turn_away(replica, Refusal(RefusalKind.ID_TAKEN, error), request.token)
            replica = msgspec.structs.replace(
                replica,
                learner=known.learner or replica.learner,
                uid=replica.uid or known.uid,
                check_code=replica.check_code or known.check_code,
            )
            if replica == known:
                return [Reply(request.token, record)]
        if not self.is_settled:
            return [self._refuse(request.token, refusals.BUSY)]
        if replica.learner and replica.broker_id in record.sync_state_set:
            text = f"replica {replica.broker_id} is a member of the sync-state set: drain it first"
            return [self._refuse(request.token, Refusal(RefusalKind.INVALID, text))]
        following = self._changed(replicas={**record.replicas, replica.broker_id: replica})
        return self._commit(
            following,
            self._happened("registered", replica=replica.broker_id, address=replica.address),
            *(Hint(record.group, n) for n in (record.master_broker_id,) if n),  # It dials soon.
            Reply(request.token, following),
        )

    def set_learner(self, now_ms: int, request: SetLearner) -> list[Effect]:
        """A drained replica may stop unnoticed. A smaller set is safe at any time: the master
        counts the larger one until it hears of it."""
        record, n = self.record, request.broker_id
        refusal = self._change_refusal(n)
        if not refusal.text and request.is_learner:
            is_led = self.liveness.does_master_live(record, now_ms)
            refusal = membership.drain_refusal(record, n, is_led=is_led)
        if refusal.text:
            return [self._refuse(request.token, refusal)]
        replica = msgspec.structs.replace(record.replicas[n], learner=request.is_learner)
        if replica == record.replicas[n]:
            return [Reply(request.token, record)]  # It is so already: nothing happens.
        members = record.sync_state_set - {n} if request.is_learner else record.sync_state_set
        is_smaller = members != record.sync_state_set
        following = self._changed(
            replicas={**record.replicas, n: replica},
            sync_state_set=members,
            sync_state_set_epoch=record.sync_state_set_epoch + is_smaller,
        )
        kind = "drained" if request.is_learner else "undrained"
        return self._commit(
            following, self._happened(kind, replica=n), Reply(request.token, following)
        )

    def remove(self, now_ms: int, request: RemoveReplica) -> list[Effect]:
        record, n = self.record, request.broker_id
        refusal = self._change_refusal(n)
        if not refusal.text:
            is_led = self.liveness.does_master_live(record, now_ms)
            is_alive, is_meant = self.is_alive(n, now_ms), request.is_living
            refusal = membership.removal_refusal(
                record, n, is_alive=is_alive, is_led=is_led, is_meant=is_meant
            )
        if refusal.text:
            return [self._refuse(request.token, refusal)]
        following = self._changed(
            replicas={m: replica for m, replica in record.replicas.items() if m != n},
            sync_state_set=record.sync_state_set - {n},
            sync_state_set_epoch=record.sync_state_set_epoch + (n in record.sync_state_set),
            former_set=record.former_set - {n},  # The next store with this id was not in it.
        )
        self.liveness.forget(n)
        return self._commit(
            following, self._happened("forgotten", replica=n), Reply(request.token, following)
        )

    def _change_refusal(self, broker_id: int) -> Refusal:
        refusal = self._unsettled()
        if not refusal.text and broker_id not in self.record.replicas:
            return self._not_registered(broker_id)
        return refusal

    def _unsettled(self) -> Refusal:
        """Why nothing of this group can be changed now."""
        if self.frozen:
            return Refusal(RefusalKind.FROZEN, self.frozen)
        return NO_REFUSAL if self.is_settled else refusals.BUSY

    def _not_registered(self, broker_id: int) -> Refusal:
        text = f"replica {broker_id} is not registered in {self.record.group}"
        return Refusal(RefusalKind.NOT_REGISTERED, text)

    def _turn_away(self, who: Heartbeat | Replica, refusal: Refusal, token: Token) -> list[Effect]:
        """One that cannot be of this group: an event says so, once for each reason."""
        refused = self._refuse(token, refusal)
        if not self._strangers.is_news(who.broker_id, refusal.text):
            return [refused]
        said = {"replica": who.broker_id, "address": who.address, "reason": refusal.text}
        return [self._happened("refused", **said), refused]

    def _refuse(self, token: Token, refusal: Refusal) -> Reply:
        return Reply(token, self.record, error=refusal.text, kind=refusal.kind)

    def adopt(self, now_ms: int, typed_group: str, token: Token) -> list[Effect]:
        """The operator answers for replicas that are missing, or for a record that is too old."""
        record = self.record
        if typed_group != record.group:
            text = f"adoption decides which replicas count: type the group's name {record.group}"
            return [self._refuse(token, Refusal(RefusalKind.INVALID, text))]
        if not self.is_settled:
            return [self._refuse(token, refusals.BUSY)]
        if not self.frozen and record.master_epoch:
            text = "the group has a record, nothing is to be adopted"
            return [self._refuse(token, Refusal(RefusalKind.INVALID, text))]
        if record.policy.needs_lease and not self._are_leases_over(now_ms):
            return [self._refuse(token, refusals.LEASE_LEFT)]
        self._is_adopted = True
        effects = self._adopt_group(now_ms, self._standings(now_ms))
        return self._reply_if_elected(effects, ElectMaster(record.group, token=token))

    # Writing

    def _changed(self, **fields: object) -> GroupRecord:
        """The next version of the record."""
        return changed(self.record, confirmed=self.liveness.confirmed, **fields)

    def _commit(self, following: GroupRecord, *after: Effect) -> list[Effect]:
        assert self._pending is None
        assert following.version == self.record.version + 1
        self._pending = Pending(following, after)
        return [Commit(following)]

    def commit_done(self, version: int) -> list[Effect]:
        pending = self._pending
        if pending is None or pending.record.version != version:
            return []
        self._settle(pending.record)
        return list(pending.after)

    def commit_unknown(self, version: int) -> list[Effect]:
        if self._pending is None or self._pending.record.version != version:
            return []
        return [Reload(self.record.group)]

    def loaded(self, now_ms: int, stored: GroupRecord | None) -> list[Effect]:
        """The outcome is known now; one that did not happen is kept from happening later."""
        pending = self._pending
        if pending is None:
            return []
        if stored == pending.record:
            return self.commit_done(pending.record.version)
        refused: list[Effect] = [
            Reply(
                effect.token,
                stored,
                error=refusals.NOT_WRITTEN.text,
                kind=refusals.NOT_WRITTEN.kind,
            )
            for effect in pending.after
            if isinstance(effect, Reply)
        ]
        self._pending = None
        self._since_ms = now_ms  # Whoever wrote instead may have granted a lease.
        if stored is not None:
            if self._hand_over is not None and stored.master_epoch != self.record.master_epoch:
                refused += self._cancel_hand_over("another controller elected meanwhile")
            self._settle(stored)
        return [*refused, *self._commit(self._changed())]

    def _settle(self, record: GroupRecord) -> None:
        if record.master_epoch != self.record.master_epoch:
            self._granted_ms = None  # Nobody holds a lease of an epoch that begins now.
            self.frozen = ""  # Adopted, and written: until then the old record decides nothing.
        known = 0 if record.confirmed < self.record.confirmed else self.liveness.confirmed
        self.liveness.confirmed = max(known, record.confirmed)  # Less: an election gave it up.
        self.record = record
        self._pending = None

    def _happened(self, kind: str, **details: Any) -> Happened:
        return Happened(kind, self.record.group, details)
