"""Where the logs of slaves begin."""

from __future__ import annotations

import pytest

from twinlog.ha.starts import ClassicStarts, twin_start
from twinlog.ha.twin.wire import Hello


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


@pytest.mark.parametrize(
    ("log_min", "log_end", "sent_from", "start"),
    [
        (0, 0, 500, 500),  # Empty, and asks for the last file.
        (0, 0, 100, 0),  # Empty, and is sent all that there is.
        (300, 800, 800, 300),  # Came so before, or has deleted its older files.
        (100, 800, 800, 0),
        (0, 800, 800, 0),
    ],
)
def test_a_twin_slave_says_where_its_log_begins(
    log_min: int, log_end: int, sent_from: int, start: int
) -> None:
    hello = Hello(
        version=2, version_min=1, cluster="c", group="g", replica_id=1, replica_uid="u",
        segment_size=1000, log_min=log_min, log_end=log_end, store_id="",
    )  # fmt: skip
    assert twin_start(hello, sent_from, master_min=100) == start
