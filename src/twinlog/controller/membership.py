"""Rules R2 and R3 as the controller sees them: whether a proposed set is committed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twinlog.controller.record import GroupRecord, changed
from twinlog.controller.refusals import NO_REFUSAL, Refusal, RefusalKind

SHOWN_MAX = 10  # A proposal may name thousands; an answer need not.


@dataclass(frozen=True, slots=True)
class Proposal:
    """A set that the master wants, and for which incarnations it saw that they are caught up;
    `reason` is why a replica leaves."""

    broker_id: int
    incarnation: str
    master_epoch: int
    set_epoch: int
    members: frozenset[int]
    incarnations: Mapping[int, str]
    reason: str = ""


def refusal(record: GroupRecord, proposal: Proposal, living: Mapping[int, str]) -> Refusal:
    """Why `proposal` is not committed, if it is not. `living` maps id to incarnation."""
    master = (record.master_broker_id, record.master_incarnation)
    if (proposal.broker_id, proposal.incarnation) != master:
        text = f"broker {proposal.broker_id} is not the master, {record.master_broker_id} is"
        return Refusal(RefusalKind.NOT_MASTER, text)
    if proposal.master_epoch != record.master_epoch:
        text = f"epoch {proposal.master_epoch}, the group is in epoch {record.master_epoch}"
        return Refusal(RefusalKind.MASTER_EPOCH, text)
    if proposal.set_epoch != record.sync_state_set_epoch:
        given, present = proposal.set_epoch, record.sync_state_set_epoch
        text = f"sync-state set epoch {given}, the group's is {present}"
        return Refusal(RefusalKind.SET_EPOCH, text)
    if proposal.broker_id not in proposal.members:
        return Refusal(RefusalKind.INVALID, "the master is not in its own sync-state set")
    strangers = proposal.members - record.voters
    if strangers:
        some = sorted(strangers)[:SHOWN_MAX]
        text = f"replicas {some} are not registered or are learners"
        return Refusal(RefusalKind.REPLICAS, text)
    return _admission_refusal(record, proposal, living)


def _admission_refusal(
    record: GroupRecord, proposal: Proposal, living: Mapping[int, str]
) -> Refusal:
    """A process that ended and came back since the check may have lost what was checked (R3)."""
    for member in sorted(proposal.members - record.sync_state_set):
        checked, present = proposal.incarnations.get(member), living.get(member)
        if present is None:
            return Refusal(RefusalKind.NOT_ALIVE, f"replica {member} sends no heartbeats")
        if checked != present:
            text = f"replica {member} has started again since it was checked"
            return Refusal(RefusalKind.NOT_ALIVE, text)
    return NO_REFUSAL


def commit(record: GroupRecord, proposal: Proposal, confirmed: int = 0) -> GroupRecord:
    """The record with the proposed set, also when it is the present one: a new set epoch makes
    every copy of an earlier proposal that is still on its way stale (R2). `confirmed` is how far
    the members are known to have the log."""
    added = proposal.members - record.sync_state_set
    admitted = {**record.admitted, **{n: proposal.incarnations[n] for n in added}}
    return changed(
        record,
        sync_state_set=proposal.members,
        sync_state_set_epoch=record.sync_state_set_epoch + 1,
        admitted=admitted,
        confirmed=max(confirmed, record.confirmed),
    )


def drain_refusal(record: GroupRecord, broker_id: int, *, is_led: bool) -> Refusal:
    """Why a replica cannot leave the set by command: nobody, or too few, would be left."""
    members, least = record.sync_state_set, record.policy.min_in_sync_replicas
    if broker_id == record.master_broker_id:
        text = f"replica {broker_id} is the master: switch to another one first"
        text = text if is_led else _last_master(broker_id)
        return Refusal(RefusalKind.INVALID, text)
    if broker_id in members and not is_led:
        return _not_led(record, broker_id)
    left = len(members - {broker_id})
    if left < least <= len(members):
        text = (
            f"without replica {broker_id} the set has {left} of minInSyncReplicas {least}: every"
            " send would be refused"
        )
        return Refusal(RefusalKind.INVALID, text)
    return NO_REFUSAL


def removal_refusal(
    record: GroupRecord, broker_id: int, *, is_alive: bool, is_led: bool, is_meant: bool
) -> Refusal:
    """Why a replica is not forgotten. One that lives registers again at once, and is no learner
    any more: only if that is meant."""
    text = ""
    if broker_id == record.master_broker_id:
        text = f"replica {broker_id} is the master" if is_led else _last_master(broker_id)
    elif broker_id in record.sync_state_set:
        if not is_led:
            return _not_led(record, broker_id)
        if is_alive:
            text = f"replica {broker_id} is a living member of the sync-state set: drain it first"
    elif is_alive and not is_meant:
        text = f"replica {broker_id} is alive: stop it first, or it registers again"
    return Refusal(RefusalKind.NOT_REMOVED, text) if text else NO_REFUSAL


def _last_master(broker_id: int) -> str:
    return f"replica {broker_id} was the master and is not heard: wait until another one is elected"


def _not_led(record: GroupRecord, broker_id: int) -> Refusal:
    """Without a master the set is who may be elected: nobody is taken out of it by command."""
    text = (
        f"master {record.master_broker_id} is not heard, and replica {broker_id} may be needed to"
        " replace it: ask again when the group has a master"
    )
    return Refusal(RefusalKind.NOT_ELECTED, text)
