"""Replicas that cannot be of the group whose name and id they use. Pure."""

from __future__ import annotations

from twinlog.controller.events import Heartbeat
from twinlog.controller.liveness import Liveness
from twinlog.controller.record import GroupRecord, Replica

_SAID_MAX = 100


def other_cluster(record: GroupRecord, cluster: str) -> str:
    if cluster == record.cluster:
        return ""
    return f"{record.group} belongs to cluster {record.cluster}, not to {cluster[:80]}"


class Strangers:
    """Why one is refused, and whether that was said already."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._said: set[tuple[int, str]] = set()

    def why(self, record: GroupRecord, now_ms: int, beat: Heartbeat) -> str:
        """It is of another cluster, or another process has its id, or it follows a controller with
        another record: its log may hold anything."""
        other = other_cluster(record, beat.cluster) if beat.cluster else ""
        if other:
            return other
        holder = self.holder(record.group, now_ms, beat.broker_id, beat.address)
        if holder:
            return holder
        stored = beat.stored
        if stored is None or not stored.lineage or not record.lineage:
            return ""
        if stored.lineage == record.lineage:
            return ""
        return (
            f"replica {beat.broker_id} follows another controller (lineage {stored.lineage[:40]},"
            f" here {record.lineage}): name the same controllers in all files of the group"
        )

    def holder(self, group: str, now_ms: int, broker_id: int, address: str) -> str:
        """Why an id cannot be taken: who has it lives at another address. A copy of a store would
        otherwise replace the process that it was copied from."""
        report = self._liveness.get(broker_id)
        if report is None or not self._liveness.is_alive(broker_id, now_ms):
            return ""
        known = report.heartbeat.address
        if not known or not address or known == address:
            return ""
        return f"id {broker_id} of {group} is taken: {known} has it and is alive"

    def is_news(self, broker_id: int, reason: str) -> bool:
        if (broker_id, reason) in self._said:
            return False
        if len(self._said) >= _SAID_MAX:
            self._said.clear()
        self._said.add((broker_id, reason))
        return True


def identity_refusal(known: Replica, given: Replica) -> str:
    """Whether an id belongs to another check code or another store."""
    pairs = ((known.check_code, given.check_code, "check code"), (known.uid, given.uid, "store"))
    for before, now, what in pairs:
        if before and now and before != now:
            return f"id {given.broker_id} is taken: it belongs to another {what}"
    return ""
