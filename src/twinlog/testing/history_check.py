"""What clients of a replicated log saw, judged without asking the log's servers. Pure.

In the manner of Jepsen's checker for queues that are logs: from what was sent and answered, from
what every poll returned and from the log as it is in the end, it finds

- lost-write: answered well, and not there in the end;
- inconsistent-offsets: two values at one place, whoever saw them, or one that is elsewhere;
- duplicate: one value at two places, although it was sent once;
- phantom: a value that nobody sent, or that was refused;
- poll-skip: a consumer went over a place that has a value;
- nonmonotonic-poll: a consumer went back, although nobody asked it to;
- unseen: answered well, and given to no consumer in the end.

An answer that did not come, and one of the codes 10 to 12, says nothing: UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Value = bytes
Queue = int


class Outcome(Enum):
    """What a producer was told."""

    OK = "ok"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Send(NamedTuple):
    """One message; `offset` is its place in the queue if the answer named it."""

    value: Value
    queue: Queue
    outcome: Outcome
    offset: int = -1
    may_be_twice: bool = False
    """Its producer sent it again."""


class Poll(NamedTuple):
    """What one consumer was given when it asked for `begin`. A consumer that starts again at what
    was committed begins a new session."""

    session: str
    queue: Queue
    begin: int
    records: tuple[tuple[int, Value], ...]
    following: int


class Anomaly(NamedTuple):
    kind: str
    text: str


@dataclass
class History:
    """Everything that clients saw, in the order in which they saw it."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)


def check(
    history: History,
    final: Mapping[Queue, Mapping[int, Value]],
    excused: Collection[Value] = (),
    *,
    is_drained: bool = True,
    expired: Collection[Value] = (),
) -> list[Anomaly]:
    """`final` is each queue as a reader finds it after everything; `excused` are answers that the
    mode does not promise to keep; `is_drained` says that consumers have read to the end; `expired`
    is what retention had taken where consumers read: kept elsewhere, but not seen."""
    found = [
        *_places(history, final, excused),
        *_lost(history, final, excused),
        *_strangers(history, final),
        *_twice(history, final),
        *_sessions(history.polls, final),
    ]
    if is_drained:
        found += _unseen(history, final, {*excused, *expired})
    return found


def _places(
    history: History, final: Mapping[Queue, Mapping[int, Value]], excused: Collection[Value]
) -> Iterable[Anomaly]:
    seen: dict[tuple[Queue, int], tuple[Value, str]] = {}

    def note(queue: Queue, offset: int, value: Value, who: str) -> Iterable[Anomaly]:
        known = seen.setdefault((queue, offset), (value, who))
        if known[0] != value:
            text = f"place {offset} of {queue}: {known[0]!r} by {known[1]}, {value!r} by {who}"
            yield Anomaly("inconsistent-offsets", text)

    for queue, entries in final.items():
        for offset, value in entries.items():
            yield from note(queue, offset, value, "the log")
    for poll in history.polls:
        for offset, value in poll.records:
            yield from note(poll.queue, offset, value, f"a poll of {poll.session}")
    for send in history.sends:
        if send.outcome is not Outcome.OK or send.offset < 0 or send.value in excused:
            continue
        yield from note(send.queue, send.offset, send.value, "an answer")
        entries = final.get(send.queue, {})
        if entries.get(send.offset) != send.value and send.value in entries.values():
            text = f"{send.value!r} of {send.queue} is not at {send.offset}, as was answered"
            yield Anomaly("inconsistent-offsets", text)


def _lost(
    history: History, final: Mapping[Queue, Mapping[int, Value]], excused: Collection[Value]
) -> Iterable[Anomaly]:
    there = {queue: set(entries.values()) for queue, entries in final.items()}
    for send in history.sends:
        if send.outcome is not Outcome.OK or send.value in excused:
            continue
        if send.value not in there.get(send.queue, ()):
            yield Anomaly("lost-write", f"{send.value!r} of {send.queue} at {send.offset}")


def _strangers(history: History, final: Mapping[Queue, Mapping[int, Value]]) -> Iterable[Anomaly]:
    outcomes = {(send.queue, send.value): send.outcome for send in history.sends}
    given = [(queue, value) for queue, entries in final.items() for value in entries.values()]
    given += [(poll.queue, value) for poll in history.polls for _, value in poll.records]
    for key in dict.fromkeys(given):
        outcome = outcomes.get(key)
        if outcome is None or outcome is Outcome.REFUSED:
            what = "nobody sent" if outcome is None else "refused"
            yield Anomaly("phantom", f"{key[1]!r} of {key[0]}: {what}")


def _twice(history: History, final: Mapping[Queue, Mapping[int, Value]]) -> Iterable[Anomaly]:
    repeated = {send.value for send in history.sends if send.may_be_twice}
    for queue, entries in final.items():
        places: dict[Value, int] = {}
        for offset, value in sorted(entries.items()):
            if places.setdefault(value, offset) != offset and value not in repeated:
                text = f"{value!r} of {queue} at {places[value]} and {offset}"
                yield Anomaly("duplicate", text)


def _sessions(
    polls: Iterable[Poll], final: Mapping[Queue, Mapping[int, Value]]
) -> Iterable[Anomaly]:
    positions: dict[tuple[str, Queue], int] = {}
    for poll in polls:
        key = (poll.session, poll.queue)
        expected = positions.get(key, poll.begin)
        if poll.begin < expected or any(offset < poll.begin for offset, _ in poll.records):
            yield Anomaly("nonmonotonic-poll", f"{poll.session} at {expected}: {poll[:3]}")
        given = {offset for offset, _ in poll.records}
        passed = range(min(expected, poll.begin), poll.following)
        entries = final.get(poll.queue, {})
        skipped = [offset for offset in passed if offset in entries and offset not in given]
        if skipped:
            yield Anomaly("poll-skip", f"{poll.session} of {poll.queue} went over {skipped[:3]}")
        positions[key] = max(expected, poll.following)


def _unseen(
    history: History, final: Mapping[Queue, Mapping[int, Value]], excused: Collection[Value]
) -> Iterable[Anomaly]:
    given = {value for poll in history.polls for _, value in poll.records}
    for send in history.sends:
        if send.outcome is not Outcome.OK or send.value in given or send.value in excused:
            continue
        if send.value in final.get(send.queue, {}).values():
            yield Anomaly("unseen", f"{send.value!r} of {send.queue} at {send.offset}")
