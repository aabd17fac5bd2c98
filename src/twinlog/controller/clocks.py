"""How fast the clocks of replicas run, as their heartbeats tell. Pure.

Leases are safe while clock rates differ by less than 5 % (rule R6). A master whose clock runs
slower would believe in its lease for longer than an election waits, so its leases are shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.controller.events import Effect, Happened, Heartbeat, Timing

TOLERANCE = 0.05
WINDOW_MS = 20_000
APART_MS_MIN = WINDOW_MS // 2
CLOCK_RATE = "clock-rate"


@dataclass(frozen=True, slots=True)
class _Sample:
    """A heartbeat: when it came, and what the clock of its sender said when it left."""

    here_ms: int
    there_ms: int

    @property
    def lag_ms(self) -> int:
        return self.here_ms - self.there_ms


class _Clock:
    """That of one process. Of each window the heartbeat that was under way for the shortest time
    is compared with that of the window before, so that delays are not taken for a wrong rate."""

    def __init__(self, incarnation: str, first: _Sample) -> None:
        self.incarnation = incarnation
        self.rate = 1.0
        self._until_ms = first.here_ms + WINDOW_MS
        self._best = first
        self._before: _Sample | None = None

    def note(self, sample: _Sample) -> None:
        if sample.here_ms >= self._until_ms:
            self._measure()
            self._before, self._best = self._best, sample
            self._until_ms = sample.here_ms + WINDOW_MS
        elif sample.lag_ms < self._best.lag_ms:
            self._best = sample

    def _measure(self) -> None:
        if self._before is None:
            return
        here_ms = self._best.here_ms - self._before.here_ms
        if here_ms >= APART_MS_MIN:
            self.rate = (self._best.there_ms - self._before.there_ms) / here_ms

    @property
    def is_slow(self) -> bool:
        return self.rate < 1 - TOLERANCE

    @property
    def is_wrong(self) -> bool:
        return self.is_slow or self.rate > 1 + TOLERANCE


class Clocks:
    """The clocks of one group's replicas. Brokers that do not tell theirs are believed."""

    def __init__(self) -> None:
        self._clocks: dict[int, _Clock] = {}

    def heard(self, now_ms: int, beat: Heartbeat) -> list[Effect]:
        """Take a heartbeat; what is said when a clock becomes wrong, or right again."""
        if beat.clock_ms is None:
            return []
        sample, known = _Sample(now_ms, beat.clock_ms), self._clocks.get(beat.broker_id)
        was_wrong = known is not None and known.is_wrong
        if known is None or known.incarnation != beat.incarnation:
            self._clocks[beat.broker_id] = _Clock(beat.incarnation, sample)
            return []
        known.note(sample)
        if known.is_wrong == was_wrong:
            return []
        reason = self.why_wrong(beat.broker_id) or "it is as fast as the controller's again"
        return [Happened(CLOCK_RATE, beat.group, {"replica": beat.broker_id, "reason": reason})]

    def lease_ms(self, broker_id: int, timing: Timing) -> int:
        """As the clock of this replica counts. Never 0: that tells a master something else."""
        clock = self._clocks.get(broker_id)
        if clock is None or not clock.is_slow:
            return timing.lease_ms
        return max(1, int(timing.lease_ms * clock.rate))

    def why_wrong(self, broker_id: int) -> str:
        clock = self._clocks.get(broker_id)
        if clock is None or not clock.is_wrong:
            return ""
        text = f"its clock runs at {clock.rate:.2f} of the rate of the controller's clock"
        return f"{text}: its leases are shorter" if clock.is_slow else text
