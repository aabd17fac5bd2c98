"""The walk over everything that is stored, again and again, slowly. Has no counterpart in RocketMQ.

Goes over the log range by range: the digest of the range, each record in it, the entries that their
queues must have, and the same range of a replica. What is wrong is healed (`heal.py`) or named
(`damage.py`). `store/twinlog/scrub.json` says where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twinlog.message.record import ScanStop
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.errors import OffsetOutOfRangeError
from twinlog.store.integrity.damage import Damage, place_of
from twinlog.store.integrity.digests import RANGE_SIZE, RangeDigests, digest_of
from twinlog.store.integrity.heal import Healer, range_of
from twinlog.store.integrity.index_check import IndexCheck
from twinlog.store.integrity.pace import Pace
from twinlog.store.integrity.resume import behind_damage, next_record
from twinlog.store.integrity.walk import Walked, walk

if TYPE_CHECKING:
    from twinlog.store.message_store import MessageStore

_LOG = logging.getLogger("twinlog.store")
_STEP: Final = 128 << 10  # Walked in one turn of the loop, in about a millisecond.
_IDLE_MS: Final = 1_000
_SAVE_MS: Final = 10_000
_RETRY_MS: Final = 5_000  # A place that could not be healed is tried again for its readers.
_HOUR_MS: Final = 3_600_000
_URGENT_MAX: Final = 1_000
_SEALED_AT_ONCE: Final = 16
_TAIL_RANGES: Final = 16
_FINDING_MS: Final = 15_000
_STATE_VERSION: Final = 2


class ScrubState(msgspec.Struct, rename="camel"):
    """Where the walk is; the file of it."""

    position: int = 0
    started_ms: int = 0  # 0: the pass is over.
    begun_ms: int = 0  # When the last pass began; the next one begins an interval later.
    passes: int = 0
    checked_bytes: int = 0
    version: int = 1  # 2: with a checksum.
    crc: int = 0

    def encode(self) -> bytes:
        self.version = _STATE_VERSION
        self.crc = self._crc()
        return msgspec.json.encode(self)

    @property
    def is_sound(self) -> bool:
        """A flipped bit in a number would let a pass leave something out."""
        return self.crc == self._crc()

    def _crc(self) -> int:
        return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(self, crc=0)))


class Scrubber:
    """One contained task."""

    def __init__(self, store: MessageStore, disk: Disk, clock: Clock, own: str) -> None:
        config = store.config
        self._store = store
        self._disk = disk
        self._clock = clock
        self._own = own
        self._path = posixpath.join(own, "scrub.json")
        self.digests = RangeDigests(disk, own, store.commit_log.segment_size)
        self.healer = Healer(store, self.digests, disk, clock, own)
        self.index_check = IndexCheck(store, disk, clock, own, self._between)
        self._pace = Pace(
            rate=config.twinlog_scrub_rate_max,
            cpu=config.twinlog_scrub_cpu_percent,
            interval_ms=config.twinlog_scrub_interval_hours * _HOUR_MS,
        )
        self.state = ScrubState()
        self.is_hurried = False  # Somebody waits for the end of this pass.
        self._must_begin = False  # He has just asked: what was seen before he did does not count.
        self.differing_ranges = 0
        self._differing: dict[int, str] = {}  # Ranges that a replica has otherwise, and which one.
        self._range_begin = -1
        self._is_range_sound = False
        self._busy_ms = 0
        self._saved_ms = 0
        self._urgent: deque[Damage] = deque(maxlen=_URGENT_MAX)
        self._wake = asyncio.Event()
        self._healed_at = -1
        self._started_ms = 0
        self._known_end = 0
        self._seal_at = 0
        self._bounds = (0, 0, 0)
        # What else is looked at, after a start and at the end of each pass.
        self.at_start: list[Callable[[], Awaitable[None]]] = []
        self.at_end: list[Callable[[], Awaitable[None]]] = [self.index_check.run]
        store.damage.on_found = self._found
        store.damage.may_heal = self._may_heal
        self._after_cut = store.commit_log.on_truncate
        store.commit_log.on_truncate = self._log_cut

    # Life

    def start(self, tasks: TaskOwner, *, has_point: bool) -> None:
        """After the store has recovered. Without a point of recovery another broker may have
        written since: what was digested before says nothing then."""
        self._load()
        end = self._store.commit_log.max_offset
        self.truncated(end if has_point else 0)
        self._seal_at = self._begin_behind(end)
        self._started_ms = self._clock.monotonic_ms()
        self._known_end = end
        tasks.contained("scrub", self.run)
        self._store.damage.heals_entries = True

    def _begin_behind(self, offset: int) -> int:
        """The first range that begins at or behind `offset`."""
        begin, size = range_of(offset, self._store.commit_log.segment_size)
        return begin if begin == offset else begin + size

    def _load(self) -> None:
        if not self._disk.exists(self._path):
            return
        reason = "its checksum is wrong"
        try:
            state = decode_saved(self._disk.read_bytes(self._path), ScrubState)
            if state.is_sound:
                self.state = state
                return
            if state.version < _STATE_VERSION:
                return  # Of an older release: a pass begins.
        except (BrokenSealError, OSError) as error:
            reason = str(error)
        _LOG.warning("position of the scrub not readable, starting over reason=%s", reason)

    def _log_cut(self, offset: int) -> None:
        if self._after_cut is not None:
            self._after_cut(offset)
        self.truncated(offset)

    def truncated(self, offset: int) -> None:
        """The log was cut back."""
        self.state.position = min(self.state.position, offset)
        self._range_begin = -1
        self._differing = {at: name for at, name in self._differing.items() if at < offset}
        self._seal_at = min(self._seal_at, self._begin_behind(offset))
        try:
            self.digests.truncate(offset)
        except OSError as error:
            _LOG.warning("digests not saved error=%s", error)

    def _may_heal(self) -> bool:
        """Whether a replica may have a good copy; they are found in the first seconds."""
        if self.healer.replicas():
            return True
        is_new = self._clock.monotonic_ms() - self._started_ms < _FINDING_MS
        return is_new and self._has_known_replicas()

    def _has_known_replicas(self) -> bool:
        """A master that no twin has followed waits for none."""
        marks = (posixpath.join(self._own, name) for name in ("twin_slave", "group.json"))
        return not self._store.is_master or any(map(self._disk.exists, marks))

    async def check_digests(self) -> None:
        """After a start: what was full when the store was opened, by digest alone, and the end of
        the log, which has no digest yet, by its records. A replica whose end differs is refused
        until that is healed, and the next pass may be a week away."""
        at = self._store.commit_log.min_offset
        while at < self._known_end:
            begin, size = range_of(at, self._store.commit_log.segment_size)
            at = begin + size
            if begin < self._store.commit_log.min_offset or self.digests.find(begin) is None:
                continue
            await self._check_range(begin, size)
            pause = self._pace.pause_ms(size, 0, 1, is_hurried=True)
            await self._heal_urgent()
            await self._clock.sleep_ms(pause)
        try:
            await self._check_tail(self._known_end)
        except (OffsetOutOfRangeError, OSError) as error:
            _LOG.info("end of the log not checked, the next pass does that reason=%s", error)
        self._known_end = 0

    async def _check_tail(self, end: int) -> None:
        passed = self.state.position
        self.state.position = await self._tail_begin(end)
        try:
            while self.state.position < min(end, self._limit):
                self._busy_ms = 0
                size = await self._step(self.state.position)
                await self._between(size, self._busy_ms)
        finally:
            self.state.position = min(passed, self._store.commit_log.max_offset)
            self._range_begin = -1

    async def _tail_begin(self, end: int) -> int:
        """A record not behind the first of the last ranges that have no digest."""
        log = self._store.commit_log
        begin = end
        for _ in range(_TAIL_RANGES):
            if begin <= log.min_offset:
                return log.min_offset
            begin, _ = range_of(begin - 1, log.segment_size)
            if self.digests.find(begin) is not None:
                break
        segment = log.segments.find(begin)
        if begin <= log.min_offset or segment is None or begin == segment.start:
            return max(begin, log.min_offset)
        return await next_record(log, self._disk, begin, self._limit)

    async def run(self) -> None:
        """Until cancelled."""
        await self.check_digests()
        await self._look_at(self.at_start)
        while True:
            self._forget_gone()
            await self._heal_urgent()
            if not self._store.config.twinlog_scrub_enable and not self.is_hurried:
                await self._rest(_IDLE_MS)
                continue
            await self._seal()
            self._busy_ms = 0
            size = await self.step()
            await self._rest(_IDLE_MS if size == 0 else self._pause(size))

    async def _look_at(self, others: list[Callable[[], Awaitable[None]]]) -> None:
        """Index and tables. What cannot be read, or has no room, must not stop the walk."""
        for look in others:
            try:
                await look()
            except OSError as error:
                _LOG.error(
                    "index or tables not checked, tried again by the next pass error=%s", error
                )

    async def _between(self, size: int, busy_ms: int) -> None:
        """Within the limits of rate and CPU; what readers have met comes first."""
        await self._heal_urgent()
        await self._seal()
        await self._rest(self._pace.pause_ms(size, busy_ms, 1, is_hurried=True))

    def _pause(self, size: int) -> float:
        log = self._store.commit_log
        store_size = log.max_offset - log.min_offset
        return self._pace.pause_ms(size, self._busy_ms, store_size, is_hurried=self.is_hurried)

    async def _seal(self) -> None:
        """Digest ranges that were filled since the start, soon after: they are as they were put."""
        for _ in range(_SEALED_AT_ONCE):
            begin, size = range_of(self._seal_at, self._store.commit_log.segment_size)
            if begin + size > self._limit:
                return
            if begin >= self._store.commit_log.min_offset and self.digests.find(begin) is None:
                try:
                    digest = await self._digest(begin, size)
                except OffsetOutOfRangeError:
                    return  # Cut or expired meanwhile.
                self.digests.add(begin, digest)
            self._seal_at = begin + size

    async def _rest(self, pause_ms: float) -> None:
        """Pause; cut short by damage that a reader has met, or by somebody in a hurry."""
        asked = self._clock.monotonic_ms()
        timer = self._clock.call_later_ms(pause_ms, self._wake.set)
        await self._wake.wait()
        timer.cancel()
        is_woken = self._clock.monotonic_ms() - asked < pause_ms - 1
        self._wake.clear()
        if not is_woken:
            self._pace.paused(pause_ms, self._clock.monotonic_ms() - asked)

    def hurry(self) -> None:
        """Begin a pass now, from the start, as fast as the limits allow. What is being looked at
        ends first: it would go on from where it is."""
        self._must_begin = self.is_hurried = True
        self._wake.set()

    def _begin(self) -> None:
        self._must_begin = False
        self.state.position = self._store.commit_log.min_offset
        self.state.started_ms = self.state.begun_ms = self._clock.now_ms()
        self._range_begin = -1

    # What readers met

    def _found(self, damage: Damage) -> None:
        self.healer.on_event("damage-found", text=damage.text)
        self._urgent.append(damage)
        self._wake.set()

    def replicas_changed(self) -> None:
        """There are others than before: what had no good copy may have one now."""
        if self.healer.replicas():
            self._urgent.extend(self._store.damage.places.values())
            self._wake.set()

    async def _heal_urgent(self) -> None:
        while self._urgent:
            await self._heal_one(self._urgent.popleft())

    def _forget_gone(self) -> None:
        """Places that retention, a cut or a deleted topic took away."""
        log = self._store.commit_log
        bounds = (log.min_offset, log.cut_count, len(self._store.queue_table))
        if bounds != self._bounds:
            self._bounds = bounds
            for damage in list(self._store.damage.places.values()):
                if self.healer.is_gone(damage):
                    self._store.damage.gone(damage)

    async def _heal_one(self, damage: Damage) -> None:
        damages = self._store.damage
        if damage.key not in damages.places:
            return
        if await self._heal(damage):
            damages.healed(damage)
            return
        damage.is_tried = True
        if damages.is_waited_for(damage):
            # Its replica may be away for a moment.
            self._clock.call_later_ms(_RETRY_MS, self._again, damage)
        else:
            self._lose(damage)

    async def _heal(self, damage: Damage) -> bool:
        begin, size = damage.physical_offset, damage.size
        try:
            if not damage.is_range:
                return await self.healer.heal(damage)
            if await self._digest(begin, size) == self.digests.find(begin):
                return True
            return await self.healer.heal_range(begin, size)
        except OffsetOutOfRangeError:
            return True  # Cut or expired meanwhile: nothing is wrong there any more.

    def _again(self, damage: Damage) -> None:
        self._urgent.append(damage)
        self._wake.set()

    def _lose(self, damage: Damage) -> None:
        if not damage.is_lost:
            damage.is_lost = True
            _LOG.error("no good copy: %s", damage.text)
            self.healer.on_event("damage-lost", text=damage.text)

    # The walk

    @property
    def _limit(self) -> int:
        """Up to here everything is written, synced and dispatched."""
        return min(self._store.flushed.value, self._store.dispatched.value)

    async def step(self) -> int:
        """Look at the next piece; its size, 0 when the pass is over."""
        log, state = self._store.commit_log, self.state
        if self._must_begin:
            self._begin()
        if state.position < log.min_offset:
            state.position, self._range_begin = log.min_offset, -1
        if state.position >= self._limit:
            return await self._end_pass()
        if state.position == log.min_offset and not state.started_ms:
            state.started_ms = state.begun_ms = self._clock.now_ms()
        try:
            size = await self._step(state.position)
        except OffsetOutOfRangeError:
            return 0  # Cut or expired meanwhile.
        state.checked_bytes += size
        await self._save_sometimes()
        return size

    async def _end_pass(self) -> int:
        """The end is reached; the next pass begins when its time has come."""
        state, now = self.state, self._clock.now_ms()
        if state.started_ms:
            self._forget_gone()
            for damage in list(self._store.damage.places.values()):
                await self._heal_one(damage)
            await self._look_at(self.at_end)
            if self._must_begin:
                return 1
            state.started_ms = 0
            state.passes += 1
            self.is_hurried = False
            with contextlib.suppress(OSError):  # The disk that cannot be read is named elsewhere.
                self.digests.mend_files()
            await self._save()
            _LOG.info("scrub finished pass=%d end=%d", state.passes, state.position)
        interval = self._store.config.twinlog_scrub_interval_hours * _HOUR_MS
        # By its begin, since a pass over a large store takes all of the interval. One that has yet
        # to come is that of a clock that was ahead.
        if not 0 <= now - state.begun_ms < interval:
            self._begin()
            return 1
        return 0

    async def _step(self, at: int) -> int:
        log = self._store.commit_log
        cut_count = log.cut_count
        begin, size = range_of(at, log.segment_size)
        if begin != self._range_begin:
            await self._begin_range(begin, size)
        self._need_uncut(cut_count)
        limit = min(self._limit, log.segments.segments[-1].end)
        data = await self._disk.run(log.read_to_check, at, min(_STEP, limit - at))
        self._need_uncut(cut_count)
        found = self._walk(data, at)
        if found.end == at and found.stop is ScanStop.INCOMPLETE and found.size > len(data):
            data = await self._disk.run(log.read_to_check, at, min(found.size, limit - at))
            self._need_uncut(cut_count)
            found = self._walk(data, at)
        self._mend_queues(found)
        next_at = found.end
        if found.stop is ScanStop.BLANK:
            next_at = at - at % log.segment_size + log.segment_size
        elif found.stop in (ScanStop.DAMAGED, ScanStop.EMPTY) or found.end == at:
            next_at = await self._damaged(found.end, found.reason, limit)
            self._need_uncut(cut_count)
        self.state.position = max(next_at, at)
        while self._range_begin >= 0 and self.state.position >= self._range_begin + size and size:
            await self._end_range(self._range_begin, size)
            begin, size = range_of(self._range_begin + size, log.segment_size)
            if begin >= limit or begin > self.state.position:
                break
            await self._begin_range(begin, size)
        return max(self.state.position - at, 1)

    def _need_uncut(self, cut_count: int) -> None:
        """What was read before a cut of the log says nothing of what is there now: other records
        may have come in its place."""
        if self._store.commit_log.cut_count != cut_count:
            raise OffsetOutOfRangeError("the log was cut while it was looked at")

    def _walk(self, data: bytes, at: int) -> Walked:
        began = self._clock.monotonic_ms()
        found = walk(data, at, self._store.config.delay_levels)
        self._busy_ms += self._clock.monotonic_ms() - began
        return found

    def _mend_queues(self, found: Walked) -> None:
        began = self._clock.monotonic_ms()
        for run in found.runs:
            self.healer.mend_run(run, is_proved=self._is_range_sound)
        self._busy_ms += self._clock.monotonic_ms() - began

    async def _damaged(self, at: int, reason: str, limit: int) -> int:
        """No sound record begins at `at`: heal it, or name it and find where to go on."""
        log = self._store.commit_log
        cut_count = log.cut_count
        begin, size = range_of(at, log.segment_size)
        self._is_range_sound = False
        is_new, self._healed_at = at != self._healed_at, at
        is_whole = begin + size <= limit
        if is_new and (
            (is_whole and await self.healer.heal_range(begin, size))
            or await self.healer.heal_record(at)
        ):
            self._store.damage.count_healed()
            self._range_begin = -1  # Begin the range again: it may be sound now.
            return at
        end = await behind_damage(log, self._disk, at, self._limit)
        self._need_uncut(cut_count)
        self._name(place_of(at, end - at, reason or "no record begins there"))
        return end

    def _name(self, damage: Damage) -> None:
        """It was not healed at once: tried again if that makes sense, else lost."""
        self._store.damage.found(damage)
        known = self._store.damage.places.get(damage.key, damage)
        if not self._store.damage.is_waited_for(known):
            self._lose(known)

    # Ranges

    async def _begin_range(self, begin: int, size: int) -> None:
        """Compare a whole range with its digest before its records are believed."""
        self._range_begin = begin
        self._is_range_sound = True
        if self.digests.find(begin) is not None and begin + size <= self._limit:
            self._is_range_sound = await self._check_range(begin, size)

    async def _check_range(self, begin: int, size: int) -> bool:
        """Whether a range is what its digest says, at the end: healed or named if not."""
        cut_count = self._store.commit_log.cut_count
        try:
            if await self._digest(begin, size) == self.digests.find(begin):
                return True
            if await self.healer.heal_range(begin, size):
                self._store.damage.count_healed()
                return True
            self._need_uncut(cut_count)
        except OffsetOutOfRangeError:
            return False  # Cut or expired meanwhile.
        self._name(_range_damage(begin, size))
        return False

    def suspect(self, begin: int, size: int) -> None:
        """Somebody else has seen that a range is not what its digest says."""
        self._store.damage.found(_range_damage(begin, size))

    async def _end_range(self, begin: int, size: int) -> None:
        """All records of the range are sound: it gets its digest, and a replica is asked."""
        if begin + size > self._limit or not self._is_range_sound:
            return
        mine = self.digests.find(begin)  # If there is one, it was compared when the range began.
        if mine is None:
            mine = await self._digest(begin, size)
            self.digests.add(begin, mine)
        await self._compare(begin, mine)

    async def _digest(self, begin: int, size: int) -> bytes:
        cut_count = self._store.commit_log.cut_count
        data = await self._disk.run(self._store.commit_log.read_to_check, begin, size)
        digest, took_ms = await self._disk.run(self._timed_digest, data)
        self._busy_ms += took_ms
        self._need_uncut(cut_count)
        return digest

    def _timed_digest(self, data: bytes) -> tuple[bytes, int]:
        """In a thread; what it takes counts as the loop's time does."""
        began = self._clock.monotonic_ms()
        return digest_of(data), self._clock.monotonic_ms() - began

    async def _compare(self, begin: int, mine: bytes) -> None:
        """Both are sound by themselves and differ: nobody can say which is right. Named."""
        cut_count = self._store.commit_log.cut_count
        for replica in self.healer.replicas():
            its = await replica.digests(begin, 1)
            self._need_uncut(cut_count)
            if its and its[0] == mine:
                if self._differing.get(begin) == replica.name:
                    del self._differing[begin]
            elif its:
                self.differing_ranges += 1
                self._differing[begin] = replica.name
                _LOG.error("range differs from replica offset=%d replica=%s", begin, replica.name)
                self.healer.on_event("range-differs", offset=begin, replica=replica.name)

    # Saving

    async def _save_sometimes(self) -> None:
        now = self._clock.monotonic_ms()
        if now - self._saved_ms >= _SAVE_MS:
            self._saved_ms = now
            await self._save()

    async def _save(self) -> None:
        data = self.state.encode()
        try:
            self.digests.remove_before(self._store.commit_log.min_offset)
            self.digests.save()
            await self._disk.run(write_atomically, self._disk, self._path, data)
        except OSError as error:
            _LOG.warning("position of the scrub not saved error=%s", error)

    def status(self) -> dict[str, Any]:
        """For whoever asks how far it is."""
        log, damage = self._store.commit_log, self._store.damage
        return {
            "position": self.state.position,
            "start": log.min_offset,
            "end": self._limit,
            "passes": self.state.passes,
            "isRunning": bool(self.state.started_ms),
            "checkedBytes": self.state.checked_bytes,
            "rangeSize": RANGE_SIZE,
            "replicas": [replica.name for replica in self.healer.replicas()],
            "differingRanges": self.differing_ranges,
            "healedBytes": self.healer.healed_bytes,
            "healedEntries": self.healer.healed_entries,
            "healedIndex": self.index_check.healed_count,
            "indexUnchecked": self.index_check.unchecked,
            "damageFound": damage.found_count,
            "damageHealed": damage.healed_count,
            "damageLost": damage.lost_count,
            "places": [place.text for place in list(damage.places.values())[:100]],
            "differing": [
                f"the range at offset {begin} of the log differs from that of {name}, and no "
                "digest says which one is right"
                for begin, name in sorted(self._differing.items())[:100]
                if begin >= log.min_offset
            ],
        }


def _range_damage(begin: int, size: int) -> Damage:
    damage = place_of(begin, size, "the range is not what its digest says")
    damage.is_range = True
    return damage
