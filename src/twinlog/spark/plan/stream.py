"""How far each micro-batch goes: the planner of a stream, without Spark.

One object lives as long as the query (Spark keeps its process), so head caches, the timer of the
minimum and the target of AvailableNow live here. After a restart everything follows from Spark's
own log of offsets.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from twinlog.spark.errors import DataLossError, NotFoundError, UnreachableError
from twinlog.spark.options import LATEST, SourceOptions
from twinlog.spark.plan.offsets import (
    Offsets,
    QueueKey,
    from_json,
    is_symbol,
    limit_rows,
    rows_between,
    smaller,
    symbol,
    to_json,
)
from twinlog.spark.plan.positions import ahead, describe_start, ranges_between, resolve_start
from twinlog.spark.read.transport import (
    ADVICE,
    VANISHED,
    Heads,
    LossPolicy,
    Skip,
    Transport,
    Window,
    log,
    wants,
)

# A slave that took over has the records of its master, but its queues may be a moment behind them.
BEHIND_TRIES = 25
BEHIND_SECONDS = 0.2
OUTAGE_SECONDS = 0.5
FIRST_OUTAGE_MS = 10_000
NAMES_MAX = 5
REMADE = (
    "QUEUE_REMADE the topic was deleted and created again, so these offsets have other messages"
)
T = TypeVar("T")


class StreamPlanner:
    """Answers Spark's questions about a stream."""

    def __init__(
        self,
        options: SourceOptions,
        transport: Transport,
        *,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options, self.transport, self.now, self.pause = options, transport, now, pause
        self.policy = LossPolicy(options.fail_on_data_loss)
        self.target: Offsets | None = None
        self.seen: Offsets = {}  # the newest ends that a look has found
        self.reached: Offsets = {}  # where the newest batch ends
        self.checked: set[str] = set()  # brokers whose queues are those of the checkpoint
        self.lasts: dict[QueueKey, int] = {}  # of the queues that are: what `Heads.lasts` said
        self.waiting_since: float | None = None
        self.outage_since: float | None = None
        self.reported: Offsets | None = None

    def initial(self) -> dict[str, Any]:
        """Return a symbol: the same at every call, whatever the log does meanwhile."""
        return symbol(describe_start(self.options, "latest"))

    # Looking at the queues

    def _look(self, known: Offsets) -> Heads:
        """Look at all queues, and note how far they go."""
        found = self.transport.heads(known)
        self.seen |= {key: end for key, (_, end) in found.bounds.items()}
        return found

    def _look_reaching(self, offsets: Offsets) -> Heads:
        """Look, again for some seconds while a queue ends before what was read of it."""
        found = self._look(offsets)
        for _ in range(BEHIND_TRIES):
            bounds = found.bounds
            if all(bounds[key][1] >= end for key, end in offsets.items() if key in bounds):
                break
            self.pause(BEHIND_SECONDS)
            found = self._look(offsets)
        return found

    def _through_outages(self, work: Callable[[], T], longest_ms: int) -> T:
        """Do the work, again while the cluster cannot be reached and the time lasts."""
        while True:
            try:
                return work()
            except UnreachableError as error:
                self._wait_out(error, longest_ms)

    def _wait_out(self, error: UnreachableError, longest_ms: int) -> None:
        """Note that somebody is missing and wait a little.

        Raises:
            UnreachableError: it has lasted too long.
        """
        if error.condition != "BROKER_UNREACHABLE":
            raise error
        now = self.now()
        if self.outage_since is None:
            self.outage_since = now
            log.warning("not every part of the cluster can be reached, waiting: %s", error)
        if (now - self.outage_since) * 1000 >= longest_ms:
            lasted = f"{now - self.outage_since:.0f} s"
            detail = f"{error.message}; this has lasted {lasted}, longer than outageTimeout"
            raise UnreachableError(error.condition, detail) from error
        self.pause(OUTAGE_SECONDS)

    def _all_answer(self, found: Heads, needed: Collection[QueueKey]) -> bool:
        """Say whether everybody answered and every queue that is needed is found or gone."""
        return not found.silent and all(k in found.bounds or k in found.gone for k in needed)

    def _demand(self, found: Heads, needed: Collection[QueueKey]) -> None:
        """Raise UnreachableError unless everybody answered about the queues that are needed."""
        if self._all_answer(found, needed):
            self.outage_since = None
            return
        raise _outage(found, needed)

    def fix_target(self) -> None:
        """AvailableNow: what is there now is all that this run reads."""

        def look() -> Heads:
            found = self._look({})
            self._demand(found, ())
            return found

        found = self._through_outages(look, self.options.outage_ms)
        self.target = {key: end for key, (_, end) in found.bounds.items()}

    # Batches

    def latest(self, start: Mapping[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself when there is nothing to do."""
        if is_symbol(start):
            # Where nothing was ever read a wrong address is likelier than an outage.
            longest_ms = min(self.options.outage_ms, FIRST_OUTAGE_MS)
            return self._through_outages(self._pin if limited else self._pin_all, longest_ms)
        self._report(start)
        work = functools.partial(self._latest, start, limited=limited)
        end = self._through_outages(work, self.options.outage_ms)
        self.reached = from_json(end)[0]
        return end

    def report(self) -> dict[str, Any]:
        """Return the newest ends, the rows that are behind them, and those that were skipped."""
        behind = rows_between(self.reached, self.seen)
        skipped = sum(skip.high - skip.low for skip in self.policy.skipped)
        return {**to_json(self.seen, {}), "behind": behind, "skipped": skipped}

    def _pin(self) -> dict[str, Any]:
        found = self._look({})
        self._demand(found, ())
        pinned = resolve_start(self.options, self.transport, found.bounds, LATEST)
        return to_json(pinned, self.transport.marks(pinned))

    def _pin_all(self) -> dict[str, Any]:
        """Trigger.Once has one batch, which pins the start in its own end and reads all."""
        pinned = self._pin()
        end = self._latest(pinned, limited=False)
        return {**end, "from": pinned["offsets"]}

    def _report(self, done: Mapping[str, Any]) -> None:
        """Report progress to `commitGroup`: where a batch begins, the one before it is done.

        Spark's own call comes with the next batch, so never after the last one.
        """
        group = self.options.raw.get("commitGroup")
        offsets = from_json(done)[0]
        if not group or offsets == self.reported:
            return
        try:
            self.transport.commit_group(group, offsets)
            self.reported = offsets
        except (UnreachableError, NotFoundError) as error:
            # Lag tools see it later; the checkpoint has it. A topic that is missing is gone or its
            # brokers are away: the look at the queues finds out.
            log.warning("progress was not reported to group %s: %s", group, error)

    def _latest(self, start: Mapping[str, Any], *, limited: bool) -> dict[str, Any]:
        offsets, marks = from_json(start)
        # A user may have changed what is read; nothing else takes a queue out of the offsets.
        begin = {key: number for key, number in offsets.items() if wants(self.options, key)}
        self._check_marks(marks)
        found = self._look_reaching(begin)
        if not self._all_answer(found, begin):
            if self.target is not None or not found.bounds:
                raise _outage(found, begin)
            # Brokers that answer are read on; the others keep their place.
            self._wait_out(_outage(found, begin), self.options.outage_ms)
        else:
            self.outage_since = None
        end = self._ends(begin, found, marks)
        fresh = {key: number for key, number in end.items() if key not in begin}
        if limited:
            end = self._limited(begin, end)
        if end == begin or (limited and not fresh and self._must_wait(begin, end)):
            return dict(start)
        self.waiting_since = None
        known = {name: mark for name, mark in marks.items() if any(k[1] == name for k in end)}
        cuts = self._cuts(begin, end, found)
        return to_json(end, self._marks(known, begin, end, found), cuts)

    def _marks(
        self, known: dict[str, Any], begin: Offsets, end: Offsets, found: Heads
    ) -> dict[str, Any]:
        """Mark the furthest records: of the queues that have moved, for the others are marked."""
        moved = {
            key: number
            for key, number in end.items()
            if key in found.bounds and number > begin.get(key, -1)
        }
        for name, mark in self.transport.marks(moved).items():
            if name not in known or int(mark["last"]) >= int(known[name]["last"]):
                known[name] = mark
        return known

    def _cuts(self, begin: Offsets, end: Offsets, found: Heads) -> dict[str, Any]:
        """Choose how the batch is cut, as `partitions` will see it."""
        moved = {k: number for k, number in end.items() if number > begin.get(k, number)}
        ranges = ranges_between(begin, moved, found.bounds, LossPolicy(False))
        return self.transport.cuts(ranges)

    def _check_marks(self, marks: Mapping[str, Any]) -> None:
        try:
            self.transport.check_marks(marks)
        except DataLossError as error:
            if self.policy.fail:
                raise
            log.warning("continuing in spite of: %s", error)

    def _remade(self, offsets: Offsets, marks: Mapping[str, Any]) -> set[QueueKey]:
        """Return the queues that were made again since these offsets were marked.

        What stands before an offset of theirs was written later than all that was read of their
        broker by then.
        """
        known = {key: number for key, number in offsets.items() if key[1] in marks and number > 0}
        places = self.transport.places(known) if known else {}
        return {key for key, place in places.items() if place > int(marks[key[1]]["last"])}

    def _all_remade(self, begin: Offsets, found: Heads, marks: Mapping[str, Any]) -> set[QueueKey]:
        """Return the queues that were made again, at the cost of few requests.

        Looked at are queues that moved or end with another record than they did; all of them at the
        first look, because a topic that was made again while no query ran may end where it did
        before; and the others of a topic that is found to be another, before the marks go on.
        """
        ends = {key: bound[1] for key, bound in found.bounds.items()}
        there = {key: min(number, ends[key]) for key, number in begin.items() if key in ends}
        moved = {
            k: n
            for k, n in there.items()
            if ends[k] != begin[k]
            or k[1] not in self.checked
            or self.lasts.get(k) != found.lasts.get(k)
        }
        remade = self._remade(moved, marks)
        self.checked |= {key[1] for key in there}
        others = {key[:2] for key in there if key in remade or ends[key] < begin[key]}
        rest = {k: n for k, n in there.items() if k[:2] in others and k not in moved}
        remade |= self._remade(rest, marks)
        self.lasts |= {key: last for key, last in found.lasts.items() if key not in remade}
        return remade

    def _ends(self, begin: Offsets, found: Heads, marks: Mapping[str, Any]) -> Offsets:
        end: Offsets = {}
        remade = self._all_remade(begin, found, marks)
        for key, number in begin.items():
            if key in remade:
                end[key] = found.bounds[key][0]
                self.policy.lost(Skip(*key, end[key], number, REMADE), ADVICE)
                continue
            if key in found.gone:
                self.policy.lost(Skip(*key, number, number, VANISHED), ADVICE)
                continue
            if key not in found.bounds:
                end[key] = number  # its broker does not answer now
                continue
            end[key] = self._end(key, number, found.bounds[key][1])
        topics = {topic for topic, _, _ in begin}
        for key, (first, _) in found.bounds.items():
            if key not in begin:
                # A new queue is entered at its first offset in a batch of its own, which pins
                # that start in Spark's log before any row of it is read.
                if key[0] in topics and first > 0:
                    reason = f"OFFSET_EXPIRED the queue is new but begins at {first}"
                    self.policy.lost(Skip(*key, 0, first, reason), ADVICE)
                end[key] = first
        return end

    def _end(self, key: QueueKey, number: int, head: int) -> int:
        if head < number:
            self.policy.lost(Skip(*key, head, number, ahead(head)), ADVICE)
        if self.target is not None:
            head = min(head, self.target.setdefault(key, head))
        return max(head, number) if self.policy.fail else head

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets:
        options = self.options
        limited = end
        if options.max_rows_per_trigger:
            limited = limit_rows(begin, end, options.max_rows_per_trigger)
        if options.max_bytes_per_trigger:
            by_bytes = self.transport.limit_bytes(begin, end, options.max_bytes_per_trigger)
            limited = smaller(limited, by_bytes)
        return limited

    def _must_wait(self, begin: Offsets, end: Offsets) -> bool:
        least = self.options.min_rows_per_trigger
        if not least or self.target is not None or rows_between(begin, end) >= least:
            return False
        now = self.now()
        if self.waiting_since is None:
            self.waiting_since = now
        return (now - self.waiting_since) * 1000 < self.options.max_trigger_delay_ms

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Window]:
        """Plan a batch. Also called for a batch of an earlier run that must be done again."""
        if is_symbol(end) or (is_symbol(start) and "from" not in end):
            return []
        low, _ = from_json({**end, "offsets": end["from"]} if is_symbol(start) else start)
        high, marks = from_json(end)
        moved = {key: number for key, number in high.items() if number > low.get(key, number)}

        def plan() -> list[Window]:
            self._check_marks(marks)
            found = self._look_reaching(high)
            missing = [k for k in moved if k not in found.bounds and k not in found.gone]
            if missing:
                raise _outage(found, missing)
            for key in self._remade({k: n for k, n in moved.items() if k in found.bounds}, marks):
                self.policy.lost(Skip(*key, low[key], moved.pop(key), REMADE), ADVICE)
            ranges = ranges_between(low, moved, found.bounds, self.policy)
            return self.transport.plan(ranges, end.get("plan") or self.transport.cuts(ranges))

        return self._through_outages(plan, self.options.outage_ms)


def _outage(found: Heads, needed: Collection[QueueKey]) -> UnreachableError:
    reasons = [f"{name}: {reason}" for name, reason in sorted(found.silent.items())]
    lost = sorted({k[:2] for k in needed if k not in found.bounds and k not in found.gone})
    names = [f"{topic} on {broker}" for topic, broker in lost]
    if names:
        more = ", ..." if len(names) > NAMES_MAX else ""
        reasons.append(f"no broker answered about {', '.join(names[:NAMES_MAX])}{more}")
    return UnreachableError("BROKER_UNREACHABLE", "; ".join(reasons))
