"""When the master wants its sync-state set changed. Pure.

Corresponds to `checkSyncStateSet` and `maybeExpandInSyncStateSet` of RocketMQ 5. A member that
acknowledges nothing while bytes wait for it delays every synchronous send, so it is let go after a
second and a half, and at once when its link is closed. A replica is taken (back) when it has kept
up for a second; each fall within ten minutes doubles that, so that a link that flaps does not. A
process that began again has not flapped: it begins with one second. One that the controller does
not take, because it does not hear it, is proposed again after a pause that grows: each refusal
costs the controller a write.
"""

from __future__ import annotations

from dataclasses import dataclass

FALL_MEMORY_MS = 600_000
ADMISSION_MAX_MS = 60_000
REFUSED_MS = 200
REFUSED_MAX_MS = 5_000


@dataclass(slots=True)
class _Progress:
    acked: int = -1
    moved_ms: int = 0
    keeping_up_since_ms: int | None = None
    mark: int = 0
    mark_ms: int = 0
    falls: int = 0
    fell_ms: int = 0
    incarnation: str = ""
    refused_ms: int = 0
    pause_ms: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """The replica to remove or to admit."""

    replica_id: int
    is_admission: bool
    reason: str


class InSync:
    """Watches acknowledgements. `observe` is called every 100 ms or so for each replica."""

    def __init__(self, *, not_caught_up_ms: int = 1_500, admission_ms: int = 1_000) -> None:
        assert not_caught_up_ms > 0
        self.not_caught_up_ms = not_caught_up_ms
        self._admission_ms = admission_ms
        self._progress: dict[int, _Progress] = {}

    def observe(
        self, now_ms: int, replica_id: int, acked: int | None, end: int, incarnation: str = ""
    ) -> None:
        """`acked` is None without a proved connection. Keeping up means to have what there was a
        second and a half ago: under load nobody ever has everything."""
        progress = self._progress.setdefault(replica_id, _Progress(moved_ms=now_ms))
        if incarnation and incarnation != progress.incarnation:
            progress.incarnation, progress.falls, progress.pause_ms = incarnation, 0, 0
        if acked is None:
            progress.acked, progress.keeping_up_since_ms = -1, None
            return
        if acked > progress.acked or acked >= end:
            progress.acked, progress.moved_ms = acked, now_ms
        if acked >= progress.mark:
            if progress.keeping_up_since_ms is None:
                progress.keeping_up_since_ms = now_ms
            progress.mark, progress.mark_ms = end, now_ms
        elif now_ms - progress.mark_ms >= self.not_caught_up_ms:
            progress.keeping_up_since_ms = None

    def wish(
        self, now_ms: int, members: frozenset[int], own_id: int, learners: frozenset[int]
    ) -> Wish | None:
        """The next change that is due: removals first, they delay sends."""
        for replica_id in sorted(members - {own_id}):
            reason = self._why_out(now_ms, replica_id)
            if reason:
                return Wish(replica_id, False, reason)
        for replica_id in sorted(self._progress.keys() - members - learners):
            if self._is_due(now_ms, self._progress[replica_id]):
                return Wish(replica_id, True, "it has caught up")
        return None

    def _why_out(self, now_ms: int, replica_id: int) -> str:
        progress = self._progress.get(replica_id)
        if progress is None:
            return ""
        if progress.acked < 0:
            # A master that has just been promoted gives its members the time to dial.
            if now_ms - progress.moved_ms >= self.not_caught_up_ms or progress.mark:
                return "its connection closed"
            return ""
        waited_ms = now_ms - progress.moved_ms
        if waited_ms >= self.not_caught_up_ms:
            return f"it acknowledged nothing for {waited_ms} ms while bytes were waiting"
        return ""

    def fell(self, now_ms: int, replica_id: int) -> None:
        """It left the set."""
        progress = self._progress.setdefault(replica_id, _Progress())
        is_recent = progress.falls and now_ms - progress.fell_ms < FALL_MEMORY_MS
        progress.falls = progress.falls + 1 if is_recent else 1
        progress.fell_ms = now_ms
        progress.pause_ms = 0
        progress.keeping_up_since_ms = None

    def refused(self, now_ms: int, replica_id: int) -> None:
        """The controller did not take it into the set."""
        progress = self._progress.setdefault(replica_id, _Progress())
        progress.refused_ms = now_ms
        progress.pause_ms = min(2 * progress.pause_ms or REFUSED_MS, REFUSED_MAX_MS)

    def _is_due(self, now_ms: int, progress: _Progress) -> bool:
        if progress.keeping_up_since_ms is None or progress.acked < 0:
            return False
        if progress.pause_ms and now_ms - progress.refused_ms < progress.pause_ms:
            return False
        wanted_ms = self._admission_ms
        if progress.falls and now_ms - progress.fell_ms < FALL_MEMORY_MS:
            wanted_ms = min(self._admission_ms << (progress.falls - 1), ADMISSION_MAX_MS)
        return now_ms - progress.keeping_up_since_ms >= wanted_ms
