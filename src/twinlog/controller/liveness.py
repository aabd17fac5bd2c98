"""Who is alive, who is in doubt, who still hears the master: the last report of each replica. Pure.

Corresponds to RocketMQ 5's RaftBrokerHeartBeatManager. Of this only `confirmed` is stored, in the
record: a controller that starts again hears all else again within a heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.controller.elect import Standing
from twinlog.controller.events import Heartbeat, Timing
from twinlog.controller.record import GroupRecord


@dataclass(slots=True)
class Report:
    """The last heartbeat of a replica, and what became of its connection."""

    heartbeat: Heartbeat
    at_ms: int
    closed_ms: int | None = None
    unwritable_since_ms: int | None = None
    lacks: int = 0
    """Of a member that started again: bytes of what was confirmed that it began without."""


class Liveness:
    """The reports of one group. `confirmed` is how far its masters have said that all of the set
    has the log: the next process of a member begins with it."""

    def __init__(self, timing: Timing, confirmed: int = 0) -> None:
        self._timing = timing
        self._reports: dict[int, Report] = {}
        self.confirmed = self._confirmed_before = confirmed

    def get(self, broker_id: int | None) -> Report | None:
        return None if broker_id is None else self._reports.get(broker_id)

    def note(self, now_ms: int, beat: Heartbeat, *, is_member: bool = False) -> bool:
        """Take a report; False for the last words of a process that has been replaced since."""
        known = self._reports.get(beat.broker_id)
        if known is not None and beat.connection < known.heartbeat.connection:
            return False
        report = Report(beat, now_ms)
        lacks = max(0, self.confirmed - beat.end)
        if known is None:
            # It may be older than this controller, and its words older than those of the master.
            lacks = min(lacks, max(0, self._confirmed_before - beat.end))
        if known is not None and known.heartbeat.incarnation == beat.incarnation:
            report.lacks = min(known.lacks, lacks)  # Less when it has it from its master since.
        elif is_member:
            report.lacks = lacks
        if not beat.is_writable:
            since = None if known is None else known.unwritable_since_ms
            report.unwritable_since_ms = now_ms if since is None else since
        self._reports[beat.broker_id] = report
        return True

    def closed(self, now_ms: int, connection: int) -> None:
        for report in self._reports.values():
            if report.heartbeat.connection == connection and report.closed_ms is None:
                report.closed_ms = now_ms

    def forget(self, broker_id: int) -> None:
        self._reports.pop(broker_id, None)

    def is_alive(self, broker_id: int, now_ms: int) -> bool:
        report = self._reports.get(broker_id)
        if report is None or report.closed_ms is not None:
            return False
        return now_ms - report.at_ms < self._timing.silence_ms

    def living(self, now_ms: int) -> dict[int, str]:
        """Incarnation by id."""
        return {
            n: report.heartbeat.incarnation
            for n, report in self._reports.items()
            if self.is_alive(n, now_ms)
        }

    def is_doubtful(self, record: GroupRecord, broker_id: int) -> bool:
        """Whether a replica may have lost what it acknowledged: it says so, and no process of it
        has been admitted since (R8). One that is silent is not in doubt as long as it is silent."""
        report = self._reports.get(broker_id)
        if report is None:
            return False
        admitted = record.admitted.get(broker_id)
        if report.lacks and admitted != report.heartbeat.incarnation:
            return True
        return not report.heartbeat.is_complete and not report.heartbeat.has_what(admitted)

    def why_doubtful(self, broker_id: int) -> str:
        report = self._reports[broker_id]
        if not report.lacks:
            return "it lost power and is in doubt"
        return (
            f"it began {report.lacks} bytes before what the group had confirmed: its store is an"
            " older copy, or has lost the end of its log"
        )

    def standings(self, record: GroupRecord, now_ms: int) -> dict[int, Standing]:
        """What an election needs to know of the replicas that may win it."""
        return {
            n: self._standing(record, n, report, now_ms)
            for n, report in self._reports.items()
            if n in record.voters
        }

    def _standing(self, record: GroupRecord, n: int, report: Report, now_ms: int) -> Standing:
        beat = report.heartbeat
        return Standing(
            broker_id=n,
            incarnation=beat.incarnation,
            last_epoch=beat.last_epoch,
            end=beat.end,
            priority=record.replicas[n].priority,
            is_alive=self.is_alive(n, now_ms),
            is_complete=not self.is_doubtful(record, n),
            is_writable=beat.is_writable,
        )

    def does_master_live(self, record: GroupRecord, now_ms: int) -> bool:
        """Whether the process that was elected sends heartbeats."""
        report = self.get(record.master_broker_id)
        if report is None or report.heartbeat.incarnation != record.master_incarnation:
            return False
        return self.is_alive(report.heartbeat.broker_id, now_ms)

    def has_settled(self, record: GroupRecord, now_ms: int, since_ms: int) -> bool:
        """Whether everybody who lives has had time to speak since this controller began: one of
        them may know of an epoch that this record does not (R12)."""
        if now_ms - since_ms >= self._timing.settle_ms:
            return True
        return all(n in self._reports for n in record.replicas)

    def may_master_speak_soon(self, record: GroupRecord, now_ms: int, since_ms: int) -> bool:
        """Of one that is not heard: to a controller that has just begun, and whose record may be
        old, or over its next connection. Until then it is not replaced because somebody asks."""
        report = self.get(record.master_broker_id)
        if report is None or report.closed_ms is None or self.is_master_lost_by_all(record, now_ms):
            return not self.has_settled(record, now_ms, since_ms)
        return now_ms - report.closed_ms < self._timing.close_grace_ms

    def why_not_drained(self, record: GroupRecord, now_ms: int) -> str:
        """Of a planned switch whose time is over: whom the master waited for."""
        number = record.master_broker_id
        master = self.get(number)
        if master is None or not self.does_master_live(record, now_ms):
            return f"master {number} is not heard any more"
        late = [
            self._lateness(n, master.heartbeat.end, now_ms)
            for n in sorted(record.sync_state_set - {number})
        ]
        who = " and ".join(text for text in late if text)
        text = f"master {number} did not drain within a second"
        return f"{text}: {who}" if who else text

    def gap(self, record: GroupRecord) -> dict[str, int]:
        """What a master that answers early last had alone: at most this may be lost."""
        report = self.get(record.master_broker_id)
        confirmed = None if report is None else report.heartbeat.confirmed
        if report is None or confirmed is None or not record.policy.answers_early:
            return {}
        return {"unconfirmed_bytes": max(0, report.heartbeat.end - confirmed)}

    def _lateness(self, n: int, end: int, now_ms: int) -> str:
        report = self.get(n)
        if report is None or not self.is_alive(n, now_ms):
            return f"replica {n} sends no heartbeats"
        behind = end - report.heartbeat.end
        return f"replica {n} is {behind} bytes behind" if behind > 0 else ""

    def is_master_heard(self, record: GroupRecord, now_ms: int) -> bool:
        """Whether a living member still hears the master: then only our own link to it is cut."""
        return any(ms < self._timing.link_lost_ms for ms in self._links(record, now_ms))

    def is_master_lost_by_all(self, record: GroupRecord, now_ms: int) -> bool:
        """Whether every living member says that its link to the master is gone."""
        links = self._links(record, now_ms)
        return bool(links) and all(ms >= self._timing.link_lost_ms for ms in links)

    def _links(self, record: GroupRecord, now_ms: int) -> list[int]:
        """How long ago each living member heard the master."""
        others = record.sync_state_set - {record.master_broker_id}
        reports = [self._reports[n] for n in others if self.is_alive(n, now_ms)]
        return [
            2**62 if (ms := report.heartbeat.link_ms) is None else ms + now_ms - report.at_ms
            for report in reports
        ]
