"""Groups with a controller: planned switch, drain and undrain, each with what it will do."""

from __future__ import annotations

from msgspec import Struct

from twinlog.admin.failover import Controllers, choose_target
from twinlog.client.errors import UsageError
from twinlog.console.access import Role
from twinlog.console.operations import Context, Done, Operation, Preview, Refused
from twinlog.console.replication import decided_of
from twinlog.console.versions import Version, check_version
from twinlog.remoting.bodies.controller import GroupFacts, ReplicaFacts


class SwitchParams(Struct, frozen=True):
    """`to`: the number of the new master; the member with the most unless given."""

    group: str
    to: int | None = None
    version: Version | None = None


class ReplicaParams(Struct, frozen=True):
    group: str
    replica: int
    version: Version | None = None


async def _group(context: Context, name: str, seen: str | None) -> tuple[Controllers, GroupFacts]:
    """The group as it is now; raises Refused when it is not what the caller has seen."""
    try:
        controllers = await Controllers.find(context.admin)
        group = await controllers.group(name)
    except UsageError as error:
        raise Refused(str(error), 404) from error
    decided = decided_of(group)
    check_version(
        seen, decided, f"group {name}",
        f"master {group.master_broker_id}, epoch {group.master_epoch}, in sync"
        f" {decided['members']}",
    )  # fmt: skip
    return controllers, group


def _replica(group: GroupFacts, number: int) -> ReplicaFacts:
    for replica in group.replicas:
        if replica.broker_id == number:
            return replica
    raise Refused(f"{group.broker_name} has no replica {number}", 404)


async def preview_switch(context: Context, params: SwitchParams) -> Preview:
    _, group = await _group(context, params.group, params.version)
    try:
        target = _replica(group, params.to if params.to is not None else choose_target(group))
    except UsageError as error:
        return Preview(refusal=str(error))
    if target.broker_id == group.master_broker_id:
        return Preview(refusal=f"replica {target.broker_id} is the master already")
    if not target.is_member or not target.is_alive:
        return Preview(refusal=f"replica {target.broker_id} is not in sync and alive")
    return Preview(
        [
            f"Replica {group.master_broker_id} holds new sends and waits until the others have"
            " everything.",
            f"Replica {target.broker_id} at {target.address} becomes the master of"
            f" {group.broker_name} with epoch {group.master_epoch + 1}.",
            "The sends that were held are passed on: no call fails.",
            "If it is not ready within a second, nothing changes.",
        ]
    )


async def switch(context: Context, params: SwitchParams) -> Done:
    controllers, group = await _group(context, params.group, params.version)
    preview = await preview_switch(context, params)
    if preview.refusal:
        raise Refused(preview.refusal)
    target = params.to if params.to is not None else choose_target(group)
    master = await controllers.switch(group, target)
    return Done(
        f"replica {master.broker_id} at {master.address} is the master of {params.group} now",
        [{"master": master.broker_id, "address": master.address, "epoch": master.epoch,
          "in_sync": list(master.members)}],
    )  # fmt: skip


async def preview_drain(context: Context, params: ReplicaParams) -> Preview:
    _, group = await _group(context, params.group, params.version)
    replica = _replica(group, params.replica)
    if replica.broker_id == group.master_broker_id:
        return Preview(refusal="it is the master: switch to another replica first")
    members = sum(r.is_member for r in group.replicas) - replica.is_member
    lines = [
        f"Replica {params.replica} leaves the in-sync set and keeps copying as a learner:"
        " no send waits for it, and it is not elected.",
        f"{members} cop{'y' if members == 1 else 'ies'} stay in sync.",
    ]
    if members < group.min_in_sync_replicas:
        lines.append(
            f"That is below minInSyncReplicas={group.min_in_sync_replicas}: sends are refused."
        )
    return Preview(lines)


async def drain(context: Context, params: ReplicaParams) -> Done:
    controllers, group = await _group(context, params.group, params.version)
    _replica(group, params.replica)
    await controllers.set_learner(params.group, params.replica, is_learner=True)
    return Done(f"replica {params.replica} of {params.group} is drained")


async def undrain(context: Context, params: ReplicaParams) -> Done:
    controllers, group = await _group(context, params.group, params.version)
    _replica(group, params.replica)
    await controllers.set_learner(params.group, params.replica, is_learner=False)
    return Done(f"replica {params.replica} of {params.group} may be in sync again")


OPERATIONS = [
    Operation(
        name="ha.switch", method="POST", path="/replication/{group}/switch", run=switch,
        params=SwitchParams, role=Role.ADMIN, preview=preview_switch, asks=True,
        summary="Make another replica the master of its group.",
    ),
    Operation(
        name="ha.drain", method="POST", path="/replication/{group}/drain", run=drain,
        params=ReplicaParams, role=Role.ADMIN, preview=preview_drain, asks=True,
        summary="Take a replica out of the in-sync set.",
    ),
    Operation(
        name="ha.undrain", method="POST", path="/replication/{group}/undrain", run=undrain,
        params=ReplicaParams, role=Role.ADMIN, summary="Let a replica be in sync again.",
    ),
]  # fmt: skip
