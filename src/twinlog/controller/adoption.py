"""Whether a group that its controller does not know can be rebuilt from the replicas here. Pure.

Each change of a set was led by a member of the set before it. With all members of a set here, the
newest set that any of them has stored is the newest that a member was told of. One that admits
another replica may have been committed besides, and its master may have died before it heard of
that: the replica may lead by now. So every replica that may be in a set has to be here.
"""

from __future__ import annotations

from collections.abc import Collection

from twinlog.controller.events import Heartbeat
from twinlog.controller.record import GroupRecord

# (ids of replicas that are waited for, none above zero where nobody has a name; why)
Waiting = tuple[tuple[int, ...], str]


def newest_stored(beats: Collection[Heartbeat]) -> GroupRecord | None:
    """The newest record that one of the replicas has kept."""
    stored = [beat.stored for beat in beats if beat.stored is not None]
    return max(stored, key=lambda r: (r.master_epoch, r.sync_state_set_epoch), default=None)


def unsure(record: GroupRecord, living: Collection[Heartbeat]) -> Waiting | None:
    """Why only an operator may adopt the group now. That `totalReplicas` are here is not enough:
    the file of a replica may name the wrong controller, and the key is 1 where nobody set it."""
    total = record.policy.total_replicas
    if not total or len(living) < total:
        return (-len(living),), f"adoption: {len(living)} of {total or 'all'} replicas are here"
    newest = newest_stored(living)
    if newest is not None:
        here = record.same_stores(newest, {beat.broker_id: beat for beat in living})
        absent = tuple(sorted(newest.voters - here.keys()))
        return (absent, "adoption: not all replicas of its record are here") if absent else None
    if len(living) > 1 or any(beat.was_master for beat in living):
        return None
    reason = "adoption: the only replica was no master, and may be the slave of one that serves"
    return (-total,), f"{reason}: set totalReplicas, or adopt the group by command"
