"""The judge of histories is fed bad ones: each kind of anomaly is found, and none in a good one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.testing.history_check import History, Outcome, Poll, Send, check

OK, UNKNOWN, REFUSED = Outcome.OK, Outcome.UNKNOWN, Outcome.REFUSED


def kinds(
    sends: list[Send], polls: list[Poll], final: dict[int, dict[int, bytes]], **options: bool
) -> set[str]:
    return {anomaly.kind for anomaly in check(History(sends, polls), final, **options)}


def whole(final: dict[int, bytes], session: str = "c") -> Poll:
    """One poll that returns all of queue 0."""
    return Poll(session, 0, 0, tuple(sorted(final.items())), max(final, default=-1) + 1)


def test_a_good_history_has_no_anomaly() -> None:
    log = {0: b"a", 1: b"b"}
    sends = [Send(b"a", 0, OK, 0), Send(b"b", 0, UNKNOWN), Send(b"c", 0, UNKNOWN)]
    assert not kinds(sends, [whole(log)], {0: log})


def test_an_answered_message_that_is_gone_is_lost() -> None:
    assert "lost-write" in kinds([Send(b"a", 0, OK, 0)], [], {0: {}})
    assert not kinds([Send(b"a", 0, UNKNOWN)], [], {0: {}})


def test_what_the_mode_does_not_promise_is_excused() -> None:
    history = History([Send(b"a", 0, OK, 0), Send(b"b", 0, OK, 0)], [whole({0: b"b"})])
    assert not check(history, {0: {0: b"b"}}, excused={b"a"})


def test_what_was_expired_where_consumers_read_is_not_seen_but_must_not_be_lost() -> None:
    history = History([Send(b"a", 0, OK, 0)], [])
    assert not check(history, {0: {0: b"a"}}, expired={b"a"})
    assert [one.kind for one in check(history, {0: {}}, expired={b"a"})] == ["lost-write"]


def test_two_values_at_one_place() -> None:
    log = {0: b"b"}
    sends = [Send(b"a", 0, UNKNOWN), Send(b"b", 0, OK, 0)]
    seen = Poll("old", 0, 0, ((0, b"a"),), 1)
    assert kinds(sends, [seen, whole(log)], {0: log}) == {"inconsistent-offsets"}


def test_an_answer_that_names_another_place() -> None:
    log = {0: b"a"}
    assert kinds([Send(b"a", 0, OK, 5)], [whole(log)], {0: log}) == {"inconsistent-offsets"}
    two = {0: b"a", 5: b"b"}
    sends = [Send(b"a", 0, OK, 5), Send(b"b", 0, OK, 5)]
    assert "inconsistent-offsets" in kinds(sends, [whole(two)], {0: two})


def test_one_value_twice() -> None:
    log = {0: b"a", 1: b"a"}
    assert kinds([Send(b"a", 0, OK, 0)], [whole(log)], {0: log}) == {"duplicate"}
    assert not kinds([Send(b"a", 0, OK, 0, may_be_twice=True)], [whole(log)], {0: log})


def test_what_was_refused_or_never_sent_is_a_phantom() -> None:
    log = {0: b"a"}
    assert kinds([Send(b"a", 0, REFUSED)], [whole(log)], {0: log}) == {"phantom"}
    assert kinds([], [whole(log)], {0: log}) == {"phantom"}
    assert "phantom" in kinds([], [Poll("c", 0, 0, ((0, b"x"),), 1)], {0: {}})


def test_a_consumer_that_goes_over_a_message() -> None:
    log = {0: b"a", 1: b"b"}
    sends = [Send(b"a", 0, OK, 0), Send(b"b", 0, OK, 1)]
    polls = [Poll("c", 0, 0, ((1, b"b"),), 2)]
    assert kinds(sends, polls, {0: log}) == {"poll-skip", "unseen"}
    gap = [Poll("c", 0, 0, ((0, b"a"),), 1), Poll("c", 0, 2, (), 2)]
    assert "poll-skip" in kinds(sends, gap, {0: log}, is_drained=False)


def test_a_consumer_that_goes_back() -> None:
    log = {0: b"a", 1: b"b"}
    sends = [Send(b"a", 0, OK, 0), Send(b"b", 0, OK, 1)]
    assert kinds(sends, [whole(log), whole(log)], {0: log}) == {"nonmonotonic-poll"}
    assert not kinds(sends, [whole(log, "one"), whole(log, "two")], {0: log})


def test_an_answered_message_that_nobody_was_given() -> None:
    log = {0: b"a"}
    assert kinds([Send(b"a", 0, OK, 0)], [], {0: log}) == {"unseen"}
    assert not kinds([Send(b"a", 0, OK, 0)], [], {0: log}, is_drained=False)


@given(st.lists(st.sampled_from([OK, UNKNOWN, REFUSED]), max_size=12), st.data())
def test_any_damage_to_a_good_history_is_noticed(
    outcomes: list[Outcome], data: st.DataObject
) -> None:
    """A log of what was not refused; then one thing is changed."""
    values = [b"v%d" % number for number in range(len(outcomes))]
    kept = [v for v, o in zip(values, outcomes, strict=True) if o is not REFUSED]
    log = dict(enumerate(kept))
    places = {value: offset for offset, value in log.items()}
    sends = [
        Send(v, 0, o, places[v] if o is OK else -1) for v, o in zip(values, outcomes, strict=True)
    ]
    assert not kinds(sends, [whole(log)], {0: log})
    if not log:
        return
    place = data.draw(st.sampled_from(sorted(log)))
    damaged = {**log, place: b"other"}
    assert kinds(sends, [whole(log)], {0: damaged})
