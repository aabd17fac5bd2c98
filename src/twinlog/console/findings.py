"""What is wrong with a group: the common judgement, and what only somebody who watched knows. Pure.

Codes and sentences are those of `observe/health.py`; a replica that left is remembered here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twinlog.admin.ha_groups import group_of
from twinlog.admin.replicas import ReplicaFacts
from twinlog.console.replication import FindingView, GroupView
from twinlog.observe.health import Code, Level


def findings(group: GroupView, members: Sequence[ReplicaFacts]) -> list[FindingView]:
    """Everything that stands between this group and safety."""
    is_decided = group.state and group.state != "healthy"
    decided = f"{group.state}: {group.state_reason}" if is_decided else ""
    status = group_of(group.name, members).with_decided(decided)
    judged = [
        FindingView(
            level=finding.level.value,
            code=finding.code.value,
            about=finding.about,
            text=finding.text,
            next_step=finding.next_step,
        )
        for finding in status.health.findings
    ]
    told = {missing.name.rpartition("/")[2] for missing in status.facts.missing}
    return [*judged, *(f for f in _gone(group) if f.about.rpartition(":")[2] not in told)]


def _gone(group: GroupView) -> Iterator[FindingView]:
    """Members that were registered and are not any more; a master's absence is judged already."""
    for replica in group.replicas:
        if replica.state == "gone" and not replica.is_master:
            yield FindingView(
                level=Level.PROBLEM.value,
                code=Code.SLAVE_MISSING.value,
                about=replica.name,
                text=f"slave {replica.name} at {replica.address} is not registered any more",
                next_step="start it again: it catches up by itself",
            )
