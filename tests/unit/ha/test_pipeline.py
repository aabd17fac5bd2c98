"""How many frames may be on their way to a slave."""

from __future__ import annotations

from twinlog.ha.pipeline import FRAMES_MAX, FRAMES_PER_MS, PERIOD_MS, Pipeline


def _round_trip(pipeline: Pipeline, offset: int, now_ms: int, took_ms: int) -> None:
    pipeline.sent(offset, now_ms)
    pipeline.acked(offset, now_ms + took_ms)


def test_next_door_one_frame_is_on_its_way() -> None:
    pipeline = Pipeline(0)
    _round_trip(pipeline, 10, 0, 0)
    assert not pipeline.is_full
    pipeline.sent(20, 1)
    assert pipeline.is_full
    pipeline.acked(19, 1)
    assert pipeline.is_full
    pipeline.acked(20, 1)
    assert not pipeline.is_full


def test_an_unknown_distance_is_taken_for_a_short_one() -> None:
    pipeline = Pipeline(0)
    pipeline.sent(10, 0)
    assert pipeline.is_full


def test_far_away_frames_follow_each_other() -> None:
    pipeline = Pipeline(0)
    _round_trip(pipeline, 10, 0, 4)
    for number in range(1, 4 * FRAMES_PER_MS + 1):
        assert not pipeline.is_full
        pipeline.sent(10 + number, 5)
    assert pipeline.is_full
    pipeline.acked(12, 9)
    assert not pipeline.is_full
    assert len(pipeline) == 4 * FRAMES_PER_MS - 2


def test_the_shortest_round_trip_counts_also_when_a_busy_slave_follows() -> None:
    pipeline = Pipeline(0)
    _round_trip(pipeline, 10, 0, 0)
    _round_trip(pipeline, 20, 10, 9)
    assert pipeline.count_max == 1


def test_a_slave_that_has_moved_away_is_noticed_after_two_periods() -> None:
    pipeline = Pipeline(0)
    _round_trip(pipeline, 10, 0, 0)
    _round_trip(pipeline, 20, PERIOD_MS, 4)
    assert pipeline.count_max == 1
    _round_trip(pipeline, 30, 2 * PERIOD_MS + 4, 4)
    assert pipeline.count_max == 4 * FRAMES_PER_MS


def test_one_frame_at_a_time_is_timed() -> None:
    """Frames behind it, whose acknowledgements come together, say nothing about the way."""
    pipeline = Pipeline(0)
    pipeline.sent(10, 0)
    pipeline.sent(20, 4)
    pipeline.acked(20, 5)
    assert pipeline.count_max == 5 * FRAMES_PER_MS


def test_however_far_and_however_long_the_copy_the_frames_are_bounded() -> None:
    pipeline = Pipeline(0)
    _round_trip(pipeline, 1, 0, 10_000)
    assert pipeline.count_max == FRAMES_MAX
    for offset in range(2, 1000):
        pipeline.sent(offset, 10_000)
    assert len(pipeline) == FRAMES_MAX
    pipeline.acked(998, 20_000)
    assert pipeline.is_full is False
    assert len(pipeline) == 1
    pipeline.acked(999, 20_000)
    assert len(pipeline) == 0
