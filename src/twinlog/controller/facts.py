"""What an operator is told about a group: the record, and what is known besides. Pure."""

from __future__ import annotations

from twinlog.controller.group import Group
from twinlog.controller.liveness import Report
from twinlog.controller.record import Replica
from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts


def group_facts(group: Group, now_ms: int) -> GroupFacts:
    record, policy = group.record, group.record.policy
    return GroupFacts(
        cluster=record.cluster,
        broker_name=record.group,
        master_broker_id=record.master_broker_id,
        master_epoch=record.master_epoch,
        sync_state_set_epoch=record.sync_state_set_epoch,
        election=record.election,
        broker_role=policy.broker_role,
        flush_disk_type=policy.flush_disk_type,
        min_in_sync_replicas=policy.min_in_sync_replicas,
        total_replicas=policy.total_replicas,
        frozen=group.frozen,
        waiting=group.waiting,
        hand_over_to=group.hand_over_to,
        lease_left_ms=group.lease_left_ms(now_ms),
        replicas=[
            _replica(group, replica, now_ms) for _, replica in sorted(record.replicas.items())
        ],
    )


def _replica(group: Group, replica: Replica, now_ms: int) -> ReplicaFacts:
    record, n = group.record, replica.broker_id
    facts = ReplicaFacts(
        broker_id=n,
        address=replica.address,
        ha_address=replica.ha_address,
        is_member=n in record.sync_state_set,
        is_learner=replica.learner,
        is_alive=group.is_alive(n, now_ms),
        priority=replica.priority,
    )
    report = group.liveness.get(n)
    if report is not None:
        _add_report(facts, report, now_ms)
        facts.is_doubtful = group.liveness.is_doubtful(record, n)
        facts.clock = group.clocks.why_wrong(n)
    return facts


def _add_report(facts: ReplicaFacts, report: Report, now_ms: int) -> None:
    beat = report.heartbeat
    facts.heard_ms = now_ms - report.at_ms
    facts.is_closed = report.closed_ms is not None
    facts.is_writable = beat.is_writable
    facts.last_epoch = beat.last_epoch
    facts.end = beat.end
    facts.confirmed = beat.confirmed
    facts.link_ms = beat.link_ms
