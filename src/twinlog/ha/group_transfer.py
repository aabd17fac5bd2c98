"""Synchronous replication: who may be waited for, and for how long.

Corresponds to RocketMQ's GroupTransferService and to `isSlaveOK`. There is no thread and no request
list: a put waits on the watermark `confirmed`, which is the offset that enough replicas have
acknowledged. Deadlines are absolute, one timer serves all of them.

Invariants: `confirmed` never goes back (what enough replicas had, they had); it never exceeds an
acknowledgement of a connected replica at the moment it moves; every refusal and every time-out has
a reason that names the slave, how far it is behind, since when, and the limit.

Where `confirmed` passes over bytes that too few replicas have, because they begin behind them, the
bytes are remembered: a repeat of a message in there is not answered as if a slave had it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinlog.ha.acks import AckTable, ReplicaAck
from twinlog.ha.status import DepartedStatus, time_text
from twinlog.runtime.clock import Clock, TimerHandle
from twinlog.runtime.watermark import Outcome, WaiterCallback, Watermark
from twinlog.store.status import PutMessageStatus


class GroupTransferService:
    """Decides about puts of a SYNC_MASTER. `ack_count` slaves must have each."""

    def __init__(
        self, acks: AckTable, clock: Clock, *, ack_count: int, fall_behind_max: int, timeout_ms: int
    ) -> None:
        assert ack_count >= 0
        assert fall_behind_max > 0
        self.confirmed = Watermark("confirmed")
        self.ack_count = ack_count
        self._acks = acks
        self._clock = clock
        self.fall_behind_max = fall_behind_max
        self.timeout_ms = timeout_ms
        self._alone_since_ms = clock.now_ms()
        self._departed: DepartedStatus | None = None
        self._timer: TimerHandle | None = None
        self._passed_over: list[tuple[int, int]] = []

    def acks_changed(self) -> None:
        """An acknowledgement arrived or a replica joined."""
        if self.ack_count == 0:
            return
        if partial := self._acks.partial:
            self._count_partial(partial)
        acked = self._acks.acked_by(self.ack_count)
        if acked is not None and acked > self.confirmed.value:
            if self._acks.latest_start > self.confirmed.value:
                self._pass_over(self.confirmed.value, acked)
            self.confirmed.advance(acked)
        if self._passed_over:
            self._passed_over = [
                (start, end)
                for start, end in self._passed_over
                if not self._acks.has_range(self.ack_count, start, end)
            ]

    def _pass_over(self, confirmed: int, acked: int) -> None:
        """*confirmed* moves on from here to `acked`."""
        start = self._acks.latest_start_of(self.ack_count, acked)
        if start > confirmed:
            self._passed_over.append((confirmed, start))

    def passed_over(self, start: int, end: int) -> str:
        """Why enough replicas may lack some of this part of the log, although it is below
        *confirmed*; empty when they had it."""
        for begin, stop in self._passed_over:
            if begin < end and start < stop:
                # A repeat whose place is forgotten asks for all of the log that it may be in.
                is_sure = begin <= start and end <= stop
                without = "without" if is_sure else "perhaps without"
                return f"slaves began empty and copy the log from {stop} on, {without} this message"
        return ""

    def _count_partial(self, partial: list[ReplicaAck]) -> None:
        """Slaves that lack what lies between *confirmed* and where they begin.

        While others can confirm that, they are waited for. When there are not enough others, those
        who wait for it are told now that it takes too long.
        """
        late_ms = self._clock.monotonic_ms() - 2 * self.timeout_ms
        missing = self.ack_count - (len(self._acks) - len(partial))
        if 0 < missing <= len(partial):
            at = partial[missing - 1].start_offset
            if at > self.confirmed.value:
                who = partial[missing - 1].name
                self.confirmed.skip(at, f"slave {who} was empty and copies the log from {at} on")
            for replica in partial[:missing]:
                replica.is_partial = False
        for replica in partial:
            # Later whoever waited for what it lacks has had an answer.
            if replica.start_offset <= self.confirmed.value or replica.joined_ms < late_ms:
                replica.is_partial = False

    def replica_left(self, departed: DepartedStatus) -> None:
        """Remember who left and why: it is the reason of the refusals that follow."""
        self._departed = departed
        self._alone_since_ms = departed.until_ms

    def replica_refused(self, departed: DepartedStatus) -> None:
        """A slave that could not join is a better reason than one that left before it."""
        if len(self._acks) == 0:
            self._departed = departed

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        """Whether a put that ended at `end_offset` may wait: (None, "") if so.

        PUT_OK when no slave is needed, SLAVE_NOT_AVAILABLE with its reason when waiting is vain.
        """
        if self.ack_count == 0:
            return PutMessageStatus.PUT_OK, ""
        replica = self._acks.nearest(self.ack_count)
        if replica is None:
            return PutMessageStatus.SLAVE_NOT_AVAILABLE, self._too_few_reason()
        if end_offset - replica.ack_offset < self.fall_behind_max:
            return None, ""
        reason = f"{self._behind_text(replica, end_offset)}, limit {self.fall_behind_max} bytes"
        return PutMessageStatus.SLAVE_NOT_AVAILABLE, reason + " (haSlaveFallbehindMax)"

    def timeout_reason(self, end_offset: int) -> str:
        """Why a put that ended at `end_offset` was not confirmed in time."""
        limit = f"limit {self.timeout_ms} ms (slaveTimeout)"
        replica = self._acks.nearest(self.ack_count) if self.ack_count else None
        if replica is None:
            return f"{self._too_few_reason()}, {limit}"
        return f"{self._behind_text(replica, end_offset)}, {limit}"

    def wait(
        self,
        end_offset: int,
        callback: WaiterCallback,
        argument: Any = None,
        *,
        explain: Callable[[int], str] | None = None,
    ) -> None:
        """Call `callback(argument, outcome, reason)` when confirmed, or at `slaveTimeout`.

        `explain` says why it took too long; who confirms, if not so many slaves, knows that.
        """
        deadline_ms = self._clock.monotonic_ms() + self.timeout_ms
        late_reason = explain or self.timeout_reason

        def decided(argument: Any, outcome: Outcome, reason: str) -> None:
            if outcome is Outcome.TIMEOUT:
                reason = late_reason(end_offset)
            callback(argument, outcome, reason)

        self.confirmed.wait(end_offset, deadline_ms, decided, argument)
        if self._timer is None:
            self._arm()

    def give_up(self, reason: str) -> None:
        """This master is none any more: what others confirm from now on, at the same offsets, may
        be another record."""
        self.confirmed.fail_above(self.confirmed.value, reason)

    def stop(self) -> None:
        """No put is confirmed any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.confirmed.fail_above(-1, "the broker is stopping")

    def _expire(self) -> None:
        self._timer = None
        self.confirmed.expire(self._clock.monotonic_ms())
        self._arm()

    def _arm(self) -> None:
        if (deadline_ms := self.confirmed.deadline_ms) is not None:
            delay_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            self._timer = self._clock.call_later_ms(delay_ms, self._expire)

    def _too_few_reason(self) -> str:
        count = len(self._acks)
        who = (
            "no slave connected" if count == 0 else f"{count} of {self.ack_count} slaves connected"
        )
        text = f"{who} since {time_text(self._alone_since_ms)}"
        if self._departed is not None:
            text += f", last {self._departed.address}: {self._departed.reason}"
        return text

    def _behind_text(self, replica: ReplicaAck, end_offset: int) -> str:
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        since_ms = wall_ms - (now_ms - replica.caught_up_ms)
        behind = max(0, end_offset - replica.ack_offset)
        return f"slave {replica.name} behind by {behind} bytes since {time_text(since_ms)}"
