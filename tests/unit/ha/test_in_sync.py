"""When a master wants a replica out of its set, and when back."""

from __future__ import annotations

from itertools import pairwise

from twinlog.ha.in_sync import ADMISSION_MAX_MS, REFUSED_MAX_MS, InSync

BOTH = frozenset({1, 2})
NOBODY: frozenset[int] = frozenset()


def wish(watch: InSync, now_ms: int, members: frozenset[int]) -> tuple[int, bool] | None:
    found = watch.wish(now_ms, members, 1, NOBODY)
    return None if found is None else (found.replica_id, found.is_admission)


def test_silence_with_bytes_waiting_is_a_reason_and_silence_without_is_not() -> None:
    watch = InSync()
    watch.observe(0, 2, 100, 100)
    watch.observe(9_000, 2, 100, 100)
    assert wish(watch, 9_000, BOTH) is None
    watch.observe(9_100, 2, 100, 200)
    watch.observe(10_400, 2, 100, 300)
    assert wish(watch, 10_400, BOTH) is None
    assert wish(watch, 10_500, BOTH) == (2, False)


def test_slow_progress_is_progress() -> None:
    watch = InSync()
    for step in range(100):
        watch.observe(step * 1_000, 2, step, 10_000)
        assert wish(watch, step * 1_000, BOTH) is None


def test_a_closed_link_is_a_reason_at_once() -> None:
    watch = InSync()
    watch.observe(0, 2, 100, 100)
    watch.observe(100, 2, None, 100)
    assert wish(watch, 100, BOTH) == (2, False)


def test_a_new_master_gives_its_members_time_to_dial() -> None:
    watch = InSync()
    watch.observe(0, 2, None, 100)
    assert wish(watch, 1_499, BOTH) is None
    assert wish(watch, 1_500, BOTH) == (2, False)


def test_one_that_keeps_up_for_a_second_is_admitted() -> None:
    watch = InSync()
    for step in range(11):
        watch.observe(step * 100, 2, 90 + step * 10, 100 + step * 10)
        assert wish(watch, step * 100, frozenset({1})) == ((2, True) if step == 10 else None)


def test_falls_make_it_wait_longer_up_to_a_minute() -> None:
    watch, now = InSync(), 0
    waits = []
    for _ in range(9):
        watch.fell(now, 2)
        began = now
        while wish(watch, now, frozenset({1})) is None:
            now += 100
            watch.observe(now, 2, now, now)
        waits.append(now - began)
    assert [round(wait / 1_000) for wait in waits[:5]] == [1, 2, 4, 8, 16]
    assert max(waits) <= ADMISSION_MAX_MS + 200


def test_a_process_that_began_again_has_not_flapped() -> None:
    watch = InSync()
    for n in range(6):
        watch.observe(n * 10_000, 2, 100, 100, f"process {n}")
        watch.fell(n * 10_000, 2)
    watch.observe(60_000, 2, 100, 100, "process 7")
    watch.observe(61_000, 2, 100, 100, "process 7")
    assert wish(watch, 61_000, frozenset({1})) == (2, True)


def test_a_replica_that_nobody_has_seen_is_no_reason() -> None:
    assert wish(InSync(), 60_000, frozenset({1, 7})) is None


def test_one_that_the_controller_does_not_take_is_proposed_less_and_less_often() -> None:
    watch, asked = InSync(), []
    for now in range(0, 40_000, 100):
        watch.observe(now, 2, 100, 100, "a process")
        if wish(watch, now, frozenset({1})) is not None:
            asked.append(now)
            watch.refused(now, 2)
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses[:6] == [200, 400, 800, 1_600, 3_200, 5_000]
    assert max(pauses) == REFUSED_MAX_MS
    watch.observe(40_000, 2, 100, 100, "the next one")
    assert wish(watch, 40_000, frozenset({1})) == (2, True)
