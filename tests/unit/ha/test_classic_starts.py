"""Where the logs of classic slaves begin."""

from __future__ import annotations

from twinlog.ha.classic_starts import ClassicStarts


def test_an_empty_slave_that_comes_again_still_lacks_what_it_was_not_sent() -> None:
    starts = ClassicStarts()
    assert starts.joined("a", 500, 0, 100) == 500
    assert starts.joined("a", None, 50, 100) == 500
    assert starts.joined("b", None, 50, 100) == 0


def test_a_host_is_forgotten_when_nobody_can_wait_any_more() -> None:
    starts = ClassicStarts()
    starts.joined("a", 500, 0, 100)
    assert starts.joined("a", None, 101, 100) == 0


def test_the_last_time_it_was_empty_counts() -> None:
    starts = ClassicStarts()
    starts.joined("a", 500, 0, 100)
    starts.joined("a", 900, 60, 100)
    assert starts.joined("a", None, 150, 100) == 900
