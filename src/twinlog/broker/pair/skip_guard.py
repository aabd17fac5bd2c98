"""Consumers that have read further than the log of a broker that has just become the master.

In RocketMQ's classic modes consumers see a message before a slave has it. When the slave's copy
takes over, a running consumer may stand beyond the end of its queue: in the tail that only the old
master had. The new master gives the same places to new messages, and the consumer would pass them
over. RocketMQ does nothing about that.

A promoted broker therefore remembers where each queue ended when it took over. Until a group has
asked for a place in the part that both logs share, what it asks for beyond that end belongs to the
lost tail: the pull is answered as one outside the queue, with the group's committed offset to go on
from, and what it commits beyond that end counts as that end. A group without a committed offset may
be a new one that starts at the end of the queue, or an old one whose commits were lost with the
tail. A new one has asked for its offset first, on the connection on which it pulls; so has a member
that was given the queue since. Tools (system groups) never ask and name the place that they want:
like new groups, they are corrected only beyond the end of the queue.

Members of a broadcasting group keep their offsets themselves, so each is looked at by itself, and
only for a while: later one may come back with an offset of the new log. It is sent to the end of
the shared part in a way that lets a Java client keep what it has fetched.

The ends are in `store/twinlog/promotion.json`, so that a master that is killed right after its
promotion knows them still. They are in the log, too: a copy that takes over later within the hour
must send back those who have not come since. Each such earlier end counts for groups that have
committed nothing beyond it.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable
from typing import Any

import msgspec

from twinlog.message.names import is_system_group, is_system_topic
from twinlog.runtime.clock import Clock
from twinlog.runtime.disk import Disk, make_own_directory, write_atomically
from twinlog.runtime.sealed import BrokenSealError, decode_saved, encode_saved

_LOG = logging.getLogger("twinlog.broker")

LIFE_MS = 3_600_000
BROADCAST_LIFE_MS = 600_000
# An answer may be lost. A client that insists keeps its offsets itself, and knows what it wants.
TRIES_MAX = 3
_SEEN_KEY = "twinlog.broker.pair.skip_guard"
_ASKED_KEY = "twinlog.broker.pair.skip_guard.asked"

_SAVE_MS = 60_000  # How much of the hour a reboot may give again, besides the time it takes.
EARLIER_MAX = 32  # Of one queue, within an hour; the highest are kept.

QueueEnds = dict[str, dict[int, int]]
EndLists = dict[str, dict[int, list[int]]]
_Reader = tuple[str, str, int]  # Group, topic, queue.


class Armed(msgspec.Struct, tag="guard", tag_field="kind", omit_defaults=True):
    """Where queues ended at `time_ms`; as a file, and as metadata in the log."""

    time_ms: int
    ends: QueueEnds
    earlier: QueueEnds = {}
    """Where they ended the times before within the hour: the lowest."""
    between: EndLists = {}
    """The others, of queues that ended at different places."""
    is_rest_empty: bool = False
    """Queues that are not named had nothing: a copy may not have heard of a topic."""
    seen_ms: int = 0
    """In the file only: when its broker armed it or heard of it, by its own clock. Clocks of two
    brokers may differ by more than the hour that it counts. Releases before `left_ms` count by it.
    """
    left_ms: int = -1
    """In the file only: what was left of the hour when it was saved, at `boot_ms` since that boot.
    No wall clock tells how long a machine was off, so another boot goes on with what was left."""
    boot_id: str = ""
    boot_ms: int = 0


def lower_ends(ends: QueueEnds, others: QueueEnds) -> QueueEnds:
    """The lower end of each queue of either."""
    lower = {topic: dict(queues) for topic, queues in ends.items()}
    for topic, queues in others.items():
        mine = lower.setdefault(topic, {})
        for queue_id, end in queues.items():
            mine[queue_id] = min(end, mine.get(queue_id, end))
    return lower


def _with_empty(was: Armed, ends: QueueEnds) -> QueueEnds:
    """Where queues ended at that time; those that it does not name, and that there are now, had
    nothing, if it says so."""
    if not was.is_rest_empty:
        return was.ends
    return {
        topic: {n: was.ends.get(topic, {}).get(n, 0) for n in queues} | was.ends.get(topic, {})
        for topic, queues in {**was.ends, **ends}.items()
    }


def joined_lists(lists: EndLists, others: EndLists) -> EndLists:
    """All ends of either, in order."""
    joined = {topic: dict(queues) for topic, queues in lists.items()}
    for topic, queues in others.items():
        mine = joined.setdefault(topic, {})
        for queue_id, ends in queues.items():
            mine[queue_id] = sorted({*ends, *mine.get(queue_id, ())})[-EARLIER_MAX:]
    return joined


def ends_between(was: Armed, lowest: QueueEnds) -> EndLists:
    """Where queues ended at that time and before, besides the lowest."""
    lists = was.between
    for ends in (was.ends, was.earlier):
        singles = {topic: {n: [end] for n, end in queues.items()} for topic, queues in ends.items()}
        lists = joined_lists(lists, singles)
    found: EndLists = {}
    for topic, queues in lists.items():
        for queue_id, all_ends in queues.items():
            rest = [end for end in all_ends if end != lowest.get(topic, {}).get(queue_id)]
            if rest:
                found.setdefault(topic, {})[queue_id] = rest
    return found


class SkipGuard:
    """`is_armed` is False on every broker but one that was promoted, or came back with a shorter
    log, within the last hour."""

    def __init__(self, disk: Disk, root: str, clock: Clock) -> None:
        self._disk = disk
        self._root = root
        self._path = posixpath.join(root, "twinlog", "promotion.json")
        self._clock = clock
        self._saved = Armed(0, {})
        self._promoted_ms = 0  # On the monotonic clock: the wall clock may be set meanwhile.
        self._saved_ms = 0
        self._passed: set[_Reader] = set()
        self._tries: dict[_Reader, int] = {}
        self.is_armed = False
        self.on_armed: Callable[[Armed], object] | None = None

    # Life

    def log_is_shorter(self, ends: QueueEnds) -> None:
        """A master lost the end of its log."""
        self._arm(ends, is_rest_empty=False)

    def promoted(self, ends: QueueEnds) -> None:
        """This copy becomes the master now; `ends` are those of its queues."""
        self._arm(ends, is_rest_empty=True)

    def tail_came(self, ends: QueueEnds) -> None:
        """The tail that was lost is back, as it was: who stands in it may go on there."""
        if self.is_armed:
            self._tries.clear()
            time_ms = self._next_ms()
            self._publish(
                msgspec.structs.replace(self._saved, time_ms=time_ms, ends=ends, seen_ms=0)
            )

    def _arm(self, ends: QueueEnds, *, is_rest_empty: bool) -> None:
        """Of earlier times within the hour the lower ends count on, for those who have not come
        back since."""
        was, earlier, between = self._saved, {}, {}
        if was.time_ms and self._age_ms() < LIFE_MS:
            earlier = lower_ends(_with_empty(was, ends), was.earlier)
            between = ends_between(was, earlier)
            is_rest_empty |= was.is_rest_empty
        self._passed.clear()
        self._tries.clear()
        self._promoted_ms = self._clock.monotonic_ms()
        self.is_armed = bool(ends) or is_rest_empty
        self._publish(Armed(self._next_ms(), ends, earlier, between, is_rest_empty))

    def _next_ms(self) -> int:
        """Later than what the copies have heard, also after the clock was set back."""
        return max(self._clock.now_ms(), self._saved.time_ms + 1)

    def _publish(self, armed: Armed) -> None:
        self._saved = msgspec.structs.replace(armed, seen_ms=self._clock.now_ms())
        self._save()
        if self.on_armed is not None:
            self.on_armed(armed)

    def tick(self) -> None:
        """Now and then, on slaves too: what is left of the hour, for the time after a reboot."""
        is_due = self._clock.monotonic_ms() - self._saved_ms >= _SAVE_MS
        if is_due and (self._saved.ends or self._saved.is_rest_empty):
            self._is_alive(LIFE_MS)
            self._save()

    def _save(self) -> None:
        self._saved_ms = self._clock.monotonic_ms()
        saved = msgspec.structs.replace(
            self._saved,
            left_ms=max(0, LIFE_MS - self._age_ms()),
            boot_id=self._disk.boot_id(),
            boot_ms=self._clock.boot_ms(),
        )
        try:
            make_own_directory(self._disk, self._root)
            write_atomically(self._disk, self._path, encode_saved(saved))
        except OSError as error:
            # A full disk: armed in this process; the next one cannot know of it.
            _LOG.error("promotion not saved path=%s error=%s", self._path, error)

    @property
    def armed(self) -> Armed | None:
        """For those who copy this log."""
        is_alive = self.is_armed and self._is_alive(LIFE_MS)
        return msgspec.structs.replace(self._saved, seen_ms=0) if is_alive else None

    def heard(self, armed: Armed) -> None:
        """On a slave: its master's guard was armed at this place of the log. A large one comes in
        parts, which have the same time."""
        was = self._saved
        if armed.time_ms < was.time_ms:
            return
        if armed.time_ms == was.time_ms:
            self._saved = Armed(
                was.time_ms,
                lower_ends(was.ends, armed.ends),
                lower_ends(was.earlier, armed.earlier),
                joined_lists(was.between, armed.between),
                was.is_rest_empty or armed.is_rest_empty,
                was.seen_ms,
            )
        else:
            self._saved = msgspec.structs.replace(armed, seen_ms=self._clock.now_ms())
            self._promoted_ms = self._clock.monotonic_ms()
        self._save()

    def load(self, *, was_master: bool = True) -> None:
        """A master that was one before: it may have been killed soon after its promotion. What a
        slave has heard counts when it is promoted."""
        if not self._disk.exists(self._path):
            return
        try:
            saved = decode_saved(self._disk.read_bytes(self._path), Armed)
        except BrokenSealError as error:
            _LOG.warning("promotion file unreadable path=%s error=%s", self._path, error)
            return
        if saved.time_ms < self._saved.time_ms:
            return  # Heard since, and not saved: a full disk.
        self._take(saved)
        self.is_armed = was_master and (bool(saved.ends) or saved.is_rest_empty)
        self._is_alive(LIFE_MS)

    def _take(self, saved: Armed) -> None:
        self._saved = msgspec.structs.replace(saved, left_ms=-1, boot_id="", boot_ms=0)
        self._saved_ms = self._clock.monotonic_ms()
        self._promoted_ms = self._saved_ms - self._age_of(saved)

    def _age_of(self, saved: Armed) -> int:
        if saved.left_ms < 0:
            # A clock that was set back since makes the promotion lie ahead: it counts as of now.
            return max(0, self._clock.now_ms() - (saved.seen_ms or saved.time_ms))
        age_ms = LIFE_MS - saved.left_ms
        if saved.boot_id == self._disk.boot_id():
            age_ms += max(0, self._clock.boot_ms() - saved.boot_ms)
        return age_ms

    def _age_ms(self) -> int:
        return self._clock.monotonic_ms() - self._promoted_ms

    def _is_alive(self, life_ms: int) -> bool:
        age_ms = self._age_ms()
        if age_ms >= LIFE_MS:
            # Whoever was running at the promotion has come by now, or will ask for its offset.
            self.is_armed = False
            self._saved = Armed(self._saved.time_ms, {})  # The next one is later than this, too.
            self._passed.clear()
        return self.is_armed and age_ms < life_ms

    def _end(self, topic: str, queue_id: int, committed: int = 0) -> int | None:
        """Up to where a group that has committed so much may have read what this log has. Who has
        committed beyond an end of which its offset was set back has come since."""
        end = self._saved.ends.get(topic, {}).get(queue_id)
        if end is None:
            is_empty = self._saved.is_rest_empty and not is_system_topic(topic)
            return 0 if is_empty and committed <= 0 else None
        earlier = self._saved.earlier.get(topic, {}).get(queue_id, end)
        between = self._saved.between.get(topic, {}).get(queue_id, [])
        return min([end, *(one for one in (earlier, *between) if committed <= one)])

    # What it decides; called only while it is armed

    def asked(self, group: str, topic: str, queue_id: int, attributes: dict[str, Any]) -> None:
        """Whoever has this connection asks where to begin: it goes on in this log."""
        self._askers(attributes).add((group, topic, queue_id))

    def _askers(self, attributes: dict[str, Any]) -> set[_Reader]:
        """Who has asked on this connection since the log became what it is."""
        armed, askers = attributes.get(_ASKED_KEY, (None, None))
        fresh: set[_Reader] = askers if armed is self._saved else set()
        attributes[_ASKED_KEY] = (self._saved, fresh)
        return fresh

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, committed: int = -1
    ) -> int:
        """What a commit counts as, of a group that has `committed` so far."""
        end = self._end(topic, queue_id, committed)
        if end is None or offset <= end or (group, topic, queue_id) in self._passed:
            return offset
        if not self._is_alive(LIFE_MS):
            return offset
        # All below `offset` is consumed, so all that this log shares with the lost one is.
        return end

    def pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        attributes: dict[str, Any],
        *,
        committed: int,
        queue_end: int,
    ) -> int | None:
        """Where the group must go on instead of `offset`, None when it may go on there.

        `attributes` are those of the connection.
        """
        end = self._end(topic, queue_id, committed)
        key = (group, topic, queue_id)
        if end is None or key in self._passed or not self._is_alive(LIFE_MS):
            return None
        tries = self._tries.get(key, 0)
        is_free = committed < 0 and (is_system_group(group) or key in self._askers(attributes))
        if offset <= (max(end, queue_end) if is_free else end) or tries >= TRIES_MAX:
            self._passed.add(key)
            return None
        self._tries[key] = tries + 1
        goal = end if committed < 0 else min(committed, end)
        self._say(group, topic, queue_id, offset, goal)
        return goal

    def has_passed(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether `pull` lets this group go on, wherever it asks for."""
        return (group, topic, queue_id) in self._passed

    def pull_broadcast(
        self, group: str, topic: str, queue_id: int, offset: int, attributes: dict[str, Any]
    ) -> int | None:
        """The same for one member, told by its connection, whose `attributes` are given."""
        end = self._end(topic, queue_id)
        if end is None or not self._is_alive(BROADCAST_LIFE_MS):
            return None
        seen: set[_Reader] = attributes.setdefault(_SEEN_KEY, set())
        key = (group, topic, queue_id)
        if key in seen:
            return None
        seen.add(key)
        if offset <= end:
            return None
        self._say(group, topic, queue_id, offset, end)
        return end

    def _say(self, group: str, topic: str, queue_id: int, offset: int, goal: int) -> None:
        _LOG.warning(
            "consumer was in a tail that this log never had group=%s topic=%s queue=%d"
            " offset=%d; it continues at %d", group, topic, queue_id, offset, goal,
        )  # fmt: skip
