"""Rules of a controlled group, each broken on purpose: the model must notice.

A mutant is a function that patches the production cores or the model for one run and returns a
seed at which the model was seen to notice. `tests/sim` replays that seed, so the check is quick;
`make mutants` searches for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from twinlog.controller import group as controller_group
from twinlog.controller import membership
from twinlog.controller.events import Timing
from twinlog.controller.liveness import Liveness
from twinlog.controller.record import changed
from twinlog.controller.refusals import NO_REFUSAL, Refusal, RefusalKind
from twinlog.ha import authority as authority_module
from twinlog.ha.authority import Authority
from twinlog.ha.group_view import GroupView, StepKind
from twinlog.testing.model.truth import Violation
from twinlog.testing.model.world import GroupModel

Patch = tuple[Any, str, Any]
MUTANTS: dict[str, Callable[[], list[Patch]]] = {}


def mutant(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
    MUTANTS[make.__name__] = make
    return make


@contextmanager
def applied(name: str) -> Iterator[None]:
    """The code with one rule broken."""
    patches = MUTANTS[name]()
    saved = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    try:
        for owner, attribute, value in patches:
            setattr(owner, attribute, value)
        yield
    finally:
        for owner, attribute, value in saved:
            setattr(owner, attribute, value)


def notices(name: str, seed: int) -> str:
    """What the model says about the mutant at this seed; empty when it says nothing."""
    with applied(name):
        try:
            GroupModel(seed).run()
        except (Violation, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


# R1


@mutant
def any_acknowledgement_confirms() -> list[Patch]:
    def advance(self: Authority) -> None:
        acks = [self._links[n].acked for n in self.required if n in self._links]
        if acks or not self.required:
            self.confirmed = max(self.confirmed, min([self._own_end, max(acks, default=2**62)]))

    return [(Authority, "_advance", advance)]


@mutant
def stale_connection_is_counted() -> list[Patch]:
    def acknowledged(self: Authority, replica_id: int, connection: int, offset: int) -> None:
        if (link := self._links.get(replica_id)) is not None:
            link.acked = max(link.acked, offset)
            self._advance()

    return [(Authority, "acknowledged", acknowledged)]


@mutant
def own_flush_is_ignored() -> list[Patch]:
    return [(GroupModel, "own_end", lambda self, host: len(host.log))]


@mutant
def acknowledges_before_flush() -> list[Patch]:
    def acknowledge(self: GroupModel, host: Any) -> None:
        connection = host.link.connection
        self.send(host.id, host.link.master, kind="ack", connection=connection, end=len(host.log))

    return [(GroupModel, "acknowledge", acknowledge)]


@mutant
def acknowledgements_outlive_a_promotion() -> list[Patch]:
    promote = GroupModel.promote

    def with_old(self: GroupModel, host: Any, state: Any) -> None:
        promote(self, host, state)
        for n in state.members - {host.id}:
            host.authority.connected(n, -1, "?", len(host.log))

    return [(GroupModel, "promote", with_old)]


# R2


@mutant
def proposed_set_is_not_counted() -> list[Patch]:
    return [(Authority, "required", property(lambda self: self.members - {self.own_id}))]


@mutant
def shrinks_before_the_answer() -> list[Patch]:
    def required(self: Authority) -> frozenset[int]:
        return (self._sent[-1].members if self._sent else self.members) - {self.own_id}

    return [(Authority, "required", property(required))]


@mutant
def rejected_proposal_is_dropped() -> list[Patch]:
    def rejected(self: Authority, set_epoch: int) -> None:
        self._sent.clear()

    return [(Authority, "rejected", rejected)]


@mutant
def no_compare_and_set() -> list[Patch]:
    def refusal(record: Any, proposal: Any, living: Any) -> Refusal:
        is_whole = record.master_broker_id in proposal.members
        return NO_REFUSAL if is_whole else Refusal(RefusalKind.INVALID, "no")

    def commit(record: Any, proposal: Any, confirmed: int) -> Any:
        members = proposal.members & record.voters
        following = record.sync_state_set_epoch + 1
        return changed(record, sync_state_set=members, sync_state_set_epoch=following)

    return [(membership, "refusal", refusal), (membership, "commit", commit)]


# R3


@mutant
def admits_before_it_has_caught_up() -> list[Patch]:
    return [(Authority, "_is_caught_up", lambda self, joining: True)]


@mutant
def incarnation_is_not_checked() -> list[Patch]:
    """Whoever is there now is admitted, whoever it was that had caught up."""

    def refusal(record: Any, proposal: Any, living: Any) -> Refusal:
        proposal.incarnations.update(living)
        return real(record, proposal, living)

    real = membership.refusal
    return [(membership, "refusal", refusal)]


@mutant
def incarnation_is_refreshed() -> list[Patch]:
    def proposal(self: Authority) -> Any:
        asked = real(self)
        if asked is None:
            return None
        now = {n: self._links[n].incarnation for n in asked.incarnations if n in self._links}
        return authority_module.SetProposal(
            asked.epoch, asked.set_epoch, asked.members, {**asked.incarnations, **now}
        )

    real = Authority.proposal
    return [(Authority, "proposal", proposal)]


# R4


@mutant
def slaves_do_not_fence() -> list[Patch]:
    """A link outlives the epoch in which it was made, and what comes over it is acknowledged."""

    def demote(self: GroupModel, host: Any) -> None:
        link = host.link
        real(self, host)
        host.link = link

    real = GroupModel.demote
    return [
        (GroupModel, "demote", demote),
        (GroupModel, "refuses", lambda self, host, epoch: False),
    ]


@mutant
def epoch_is_not_durable() -> list[Patch]:
    real = GroupModel.carry_out

    def carry_out(self: GroupModel, host: Any, steps: Any) -> None:
        real(self, host, [step for step in steps if step.kind is not StepKind.STORE])

    return [(GroupModel, "carry_out", carry_out)]


@mutant
def promoted_replica_keeps_its_link() -> list[Patch]:
    real = GroupModel.promote

    def promote(self: GroupModel, host: Any, state: Any) -> None:
        link = host.link
        real(self, host, state)
        host.link = link

    return [
        (GroupModel, "promote", promote),
        (GroupModel, "refuses", lambda self, host, epoch: False),
    ]


# R5, R6


@mutant
def no_lease_is_needed() -> list[Patch]:
    return [(Authority, "may_answer_early", lambda self, now_ms: True)]


@mutant
def lease_counts_from_the_answer() -> list[Patch]:
    def take(
        self: GroupModel, host: Any, authority: Any, sent: int, lease: int, *rest: Any
    ) -> None:
        authority.granted(self.now(host), lease, *rest)

    return [(GroupModel, "take_lease", take)]


@mutant
def election_waits_too_short() -> list[Patch]:
    return [(Timing, "lease_wait_ms", property(lambda self: self.lease_ms * 6 // 10))]


@mutant
def controller_forgets_leases() -> list[Patch]:
    def are_over(self: Any, now_ms: int) -> bool:
        if self._granted_ms is None:
            return True
        return bool(now_ms - self._granted_ms >= self._timing.lease_wait_ms)

    return [(controller_group.Group, "_are_leases_over", are_over)]


@mutant
def lease_is_granted_while_an_election_is_written() -> list[Patch]:
    def loaded(self: Any, now_ms: int, stored: Any) -> list[Any]:
        """The write is not there, so it did not happen: or so one thinks."""
        pending, self._pending = self._pending, None
        if pending is not None and stored == pending.record:
            self._pending = pending
            return list(self.commit_done(pending.record.version))
        if stored is not None:
            self._settle(stored)
        return []

    return [(controller_group.Group, "loaded", loaded)]


@mutant
def lease_is_kept_during_a_hand_over() -> list[Patch]:
    return [(Authority, "surrender", lambda self: None)]


# R7


@mutant
def anyone_is_elected() -> list[Patch]:
    real: Any = vars(controller_group)["elect"]

    def elect(members: Any, standings: Any, preferred: Any = None) -> Any:
        return real(standings.keys(), standings, preferred)

    return [(controller_group, "elect", elect)]


@mutant
def restart_keeps_mastership() -> list[Patch]:
    def learn(self: GroupView, state: Any) -> Any:
        own = self.incarnation
        if state.master_id == self.own_id:
            self.incarnation = state.master_incarnation
        try:
            return real(self, state)
        finally:
            self.incarnation = own

    def why(self: Any, now_ms: int) -> str:
        reason = real_why(self, now_ms)
        return "" if "started again" in reason else str(reason)

    real, real_why = GroupView.learn, controller_group.Group._why_replace
    return [(GroupView, "learn", learn), (controller_group.Group, "_why_replace", why)]


@mutant
def old_reports_are_believed() -> list[Patch]:
    def note(self: Liveness, now_ms: int, beat: Any, **facts: Any) -> bool:
        known = self._reports.get(beat.broker_id)
        if known is not None and beat.connection < known.heartbeat.connection:
            self.forget(beat.broker_id)
        return real(self, now_ms, beat, **facts)

    real = Liveness.note
    return [(Liveness, "note", note)]


# R8


@mutant
def nobody_is_in_doubt() -> list[Patch]:
    return [(GroupModel, "mark_doubt", lambda self, host: None)]


@mutant
def doubt_is_forgotten_by_a_second_restart() -> list[Patch]:
    real = GroupModel.boot

    def boot(self: GroupModel, host: Any) -> None:
        seen = getattr(host, "_doubted_boot", None)
        if host.is_in_doubt and seen is not None:
            host.is_in_doubt = False
            host._doubted_boot = None
        elif host.is_in_doubt:
            host._doubted_boot = host.boots
        real(self, host)

    return [(GroupModel, "boot", boot)]


# Section 10


@mutant
def logs_are_compared_by_length() -> list[Patch]:
    def common_end(self: GroupModel, host: Any, peer: Any) -> int:
        return min(len(host.log), len(peer.log))

    return [(GroupModel, "common_end", common_end)]
