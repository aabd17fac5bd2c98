"""How long a master that stops waits for its slaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from twinlog.ha.acks import AckTable
from twinlog.ha.drain import drain
from twinlog.testing.manual_clock import ManualClock

END = 1000


async def waited_ms(acked: Callable[[int], int | None]) -> int:
    """How long a stop takes with one slave whose acknowledgement is a function of the time; it is
    gone when that is None."""
    acks, clock = AckTable(), ManualClock()
    acks.join("s", acked(0) or 0, 0)

    def move(passed_ms: int) -> None:
        if (offset := acked(passed_ms)) is None:
            acks.leave("s")
        else:
            acks.ack("s", offset, sent_offset=END, end_offset=END, now_ms=passed_ms)

    for passed_ms in range(10, 5000, 10):
        clock.call_later_ms(passed_ms, move, passed_ms)
    start_ms = clock.monotonic_ms()
    await drain(acks, END, clock)
    return clock.monotonic_ms() - start_ms


@pytest.mark.parametrize(
    ("acked", "expected_ms"),
    [
        pytest.param(lambda ms: END, 0, id="has it"),
        pytest.param(lambda ms: min(ms // 2, END), 2000, id="comes nearer"),
        pytest.param(lambda ms: 500, 1000, id="takes nothing"),
        pytest.param(lambda ms: min(ms // 10, 100), 2000, id="stands still after a while"),
        pytest.param(lambda ms: ms // 100, 5000, id="is too slow"),
        pytest.param(lambda ms: None if ms >= 300 else 500, 300, id="is gone"),
    ],
)
async def test_as_long_as_a_slave_comes_nearer(
    acked: Callable[[int], int | None], expected_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert abs(await waited_ms(acked) - expected_ms) <= 20
    has_all = acked(5000) in (END, None)
    assert ("a slave lacks the end of the log" in caplog.text) is not has_all
