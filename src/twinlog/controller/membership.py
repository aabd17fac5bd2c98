"""Rules R2 and R3 as the controller sees them: whether a proposed set is committed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twinlog.controller.record import GroupRecord, changed


@dataclass(frozen=True, slots=True)
class Proposal:
    """A set that the master wants, and for which incarnations it saw that they are caught up."""

    broker_id: int
    incarnation: str
    master_epoch: int
    set_epoch: int
    members: frozenset[int]
    incarnations: Mapping[int, str]


def refusal(record: GroupRecord, proposal: Proposal, living: Mapping[int, str]) -> str:
    """Why `proposal` is not committed; empty when it is. `living` maps id to incarnation."""
    if (proposal.broker_id, proposal.incarnation) != (
        record.master_broker_id,
        record.master_incarnation,
    ):
        return f"broker {proposal.broker_id} is not the master, {record.master_broker_id} is"
    if proposal.master_epoch != record.master_epoch:
        return f"epoch {proposal.master_epoch}, the group is in epoch {record.master_epoch}"
    if proposal.set_epoch != record.sync_state_set_epoch:
        return (
            f"sync-state set epoch {proposal.set_epoch}, the group's is"
            f" {record.sync_state_set_epoch}"
        )
    if proposal.broker_id not in proposal.members:
        return "the master is not in its own sync-state set"
    strangers = proposal.members - record.voters
    if strangers:
        return f"replicas {sorted(strangers)} are not registered or are learners"
    return _admission_refusal(record, proposal, living)


def _admission_refusal(record: GroupRecord, proposal: Proposal, living: Mapping[int, str]) -> str:
    """A process that ended and came back since the check may have lost what was checked (R3)."""
    for member in sorted(proposal.members - record.sync_state_set):
        checked, present = proposal.incarnations.get(member), living.get(member)
        if present is None:
            return f"replica {member} sends no heartbeats"
        if checked != present:
            return f"replica {member} has started again since it was checked"
    return ""


def commit(record: GroupRecord, proposal: Proposal) -> GroupRecord:
    """The record with the proposed set, also when it is the present one: a new set epoch makes
    every copy of an earlier proposal that is still on its way stale (R2)."""
    added = proposal.members - record.sync_state_set
    admitted = {**record.admitted, **{n: proposal.incarnations[n] for n in added}}
    return changed(
        record,
        sync_state_set=proposal.members,
        sync_state_set_epoch=record.sync_state_set_epoch + 1,
        admitted=admitted,
    )
