"""What is wrong with a group, for its page. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from twinlog.console.replication import FindingView, GroupView, ReplicaView

PROBLEM = "problem"
WARNING = "warning"


def findings(group: GroupView) -> list[FindingView]:
    """Everything that stands between this group and safety."""
    return [*_master(group), *_replicas(group), *_alone(group)]


def _master(group: GroupView) -> Iterator[FindingView]:
    master = next((r for r in group.replicas if r.is_master and r.state != "gone"), None)
    count = sum(not r.is_master and r.state not in ("gone", "silent") for r in group.replicas)
    step = f"start the master again; if it is lost for good: twinlog ha promote {group.name}"
    if master is None:
        serving = f", {count} slave(s) serve reads" if count else ""
        yield _problem("no_master", group.name, f"no master is registered{serving}", step)
    elif master.state == "silent":
        text = f"the master {master.name} does not answer: {master.reason}"
        yield _problem("master_down", group.name, text, step)


def _replicas(group: GroupView) -> Iterator[FindingView]:
    for replica in group.replicas:
        if not replica.is_master:
            yield from _slave(replica)


def _slave(replica: ReplicaView) -> Iterator[FindingView]:
    if replica.state == "gone":
        text = f"slave {replica.name} at {replica.address} is not registered any more"
        yield _problem("slave_missing", replica.name, text, "start it again: it catches up")
    elif replica.state == "silent":
        text = f"slave {replica.name} does not answer: {replica.reason}"
        step = "look at the slave's process, its disk and the network between the two"
        yield _problem("slave_not_in_sync", replica.name, text, step)
    elif replica.state == "behind" and replica.is_in_sync is not None:
        why = replica.reason or f"is {replica.lag_bytes} bytes behind"
        step = "look at the slave's process, its disk and the network between the two"
        yield _problem("slave_not_in_sync", replica.name, f"slave {replica.name} {why}", step)


def _alone(group: GroupView) -> Iterator[FindingView]:
    if group.master and not any(not r.is_master for r in group.replicas):
        text = f"{group.name} has no slave: nothing is replicated"
        step = "start a slave with this brokerName"
        level = PROBLEM if group.policy == "SYNC_MASTER" else WARNING
        yield FindingView(level=level, code="not_replicated", about=group.name, text=text,
                          next_step=step)  # fmt: skip


def _problem(code: str, about: str, text: str, step: str) -> FindingView:
    return FindingView(level=PROBLEM, code=code, about=about, text=text, next_step=step)
