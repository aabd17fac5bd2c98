"""Where epochs begin, compared with logs that were really written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.ha.epochs import EpochEntry, EpochHistory

Log = list[tuple[int, int]]  # (epoch, writer) of each byte


def history_of(log: Log) -> EpochHistory:
    history = EpochHistory()
    for offset, (epoch, _) in enumerate(log):
        if epoch > history.last_epoch:
            history.begin(EpochEntry(epoch, offset))
    return history


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """A common part, then each side goes on alone, in epochs that only one of them led."""
    common: Log = []
    for epoch in range(1, draw(st.integers(1, 4))):
        common += [(epoch, 0)] * draw(st.integers(1, 5))
    logs = []
    for side in (1, 2):
        log = list(common)
        for step in range(draw(st.integers(0, 3))):
            log += [(10 + 2 * step + side, side)] * draw(st.integers(1, 5))
        if common and draw(st.booleans()) and len(log) == len(common):
            log += [(common[-1][0], side)] * draw(st.integers(0, 4))
        logs.append(log)
    return logs[0], logs[1]


@given(two_logs())
def test_the_bound_is_never_below_what_is_really_common(logs: tuple[Log, Log]) -> None:
    mine, theirs = logs
    bound = history_of(mine).common_end(len(mine), history_of(theirs), len(theirs))
    pairs = list(zip(mine, theirs, strict=False))
    common = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
    assert common <= bound <= min(len(mine), len(theirs))


def test_another_record_before_an_epoch_is_another_epoch() -> None:
    mine = EpochHistory([EpochEntry(1, 0), EpochEntry(3, 50, 7)])
    theirs = EpochHistory([EpochEntry(1, 0), EpochEntry(3, 50, 8)])
    assert mine.common_end(100, theirs, 100) == 50


def test_a_cut_takes_the_epochs_behind_it_along() -> None:
    history = EpochHistory([EpochEntry(1, 0), EpochEntry(2, 40), EpochEntry(5, 80)])
    history.cut(80)
    assert history.last_epoch == 2
    assert [history.epoch_at(offset) for offset in (0, 39, 40, 79)] == [1, 1, 2, 2]


def test_a_history_knows_its_length() -> None:
    assert len(EpochHistory(())) == 0
