"""Where undecided half messages are: found under every place they had, however many there are."""

from __future__ import annotations

import time

from twinlog.broker.transaction.pending import HalfPlace, PendingHalves

MANY = 40_000
CPU_S_MAX = 8.0  # Linear work takes a hundredth; looking through all for each takes minutes.


def test_moving_one_does_not_look_through_all() -> None:
    pending = PendingHalves()
    began = time.thread_time()
    for offset in range(2 * MANY):
        pending.add(offset, HalfPlace(offset, 1))
        if offset >= MANY:
            pending.moved(offset - MANY, offset)
    pending.forget_moves_of_done()
    assert time.thread_time() - began < CPU_S_MAX
    assert [pending.find(offset) for offset in (0, 1, MANY)] == [MANY, MANY + 1, MANY]


def test_one_is_found_under_every_place_it_had() -> None:
    pending = PendingHalves()
    for offset in range(4):
        pending.add(offset, HalfPlace(offset, 1))
    pending.moved(0, 2)
    pending.moved(2, 3)
    assert [pending.find(offset) for offset in range(4)] == [3, 1, 3, 3]
    pending.forget_moves_of_done()
    assert pending.find(0) == 3
    pending.done(3)
    pending.forget_moves_of_done()
    assert [pending.find(offset) for offset in range(4)] == [None, 1, None, None]
