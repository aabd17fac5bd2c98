"""Locks of ordered queues while masters change: no two clients believe that a queue is theirs.

The machine plays a group whose log always survives (that it does is other tests' business) with
the production table of locks: any replica may lead, any process may end and begin again from what
it had saved, a deposed master may go on answering without a lease, records may be refused. A client
that has spoken to the new master does not turn back to the old one: routes are fenced.
"""

from __future__ import annotations

import copy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from twinlog.broker.tables.rebalance_lock import LOCK_LIVE_MS_MAX, RebalanceLockManager

GROUP = "g"
CLIENTS, QUEUE, REPLICAS = ("x", "y"), "q", (0, 1)
BELIEF_MS = 30_000  # What Java's clients and ours rely on after an answer.
LEASE_MS = 2_000
_clients, _replicas = st.sampled_from(CLIENTS), st.sampled_from(REPLICAS)


class Replica:
    """One broker: its table, how much of the log it has applied, and what it has on disk."""

    def __init__(self) -> None:
        self.locks: RebalanceLockManager[str] = RebalanceLockManager()
        self.place = 0
        self.saved: tuple[int, list[tuple[str, str, list[str]]]] = (0, [])


class LockMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.log: list[tuple[str, str, list[str]]] = []
        self.replicas = [Replica() for _ in REPLICAS]
        self.master = 0
        self.deposed_ms: dict[int, int] = {}
        self.knows: dict[str, int] = dict.fromkeys(CLIENTS, 0)
        self.is_full = False
        self.believes: dict[str, int] = {}
        self._lead(0)

    # What brokers do

    def _apply(self, replica: Replica) -> None:
        for group, client, queues in self.log[replica.place :]:
            replica.locks.heard(group, queues, client, self.now_ms)
        replica.place = len(self.log)

    def _lead(self, number: int) -> None:
        replica = self.replicas[number]
        self._apply(replica)
        replica.locks.renew_all(self.now_ms)

        def moved(group: str, client: str, queues: list[str]) -> bool:
            if self.is_full or self.master != number:
                return False  # Refused, or never confirmed: the answer does not leave.
            self.log.append((group, client, list(queues)))
            replica.place = len(self.log)
            return True

        replica.locks.on_moved = moved
        self.master = number
        self.deposed_ms.pop(number, None)

    # Events

    @rule(client=_clients, is_full=st.sampled_from((False, False, False, True)))
    def lock(self, client: str, is_full: bool) -> None:
        self.is_full = is_full
        self.knows[client] = self.master
        self._lock(self.master, client)
        self.is_full = False

    @precondition(lambda self: self.deposed_ms)
    @rule(client=_clients)
    def lock_at_a_deposed_master(self, client: str) -> None:
        if self.knows[client] != self.master:
            self._lock(1 - self.master, client)

    def _lock(self, number: int, client: str) -> None:
        replica = self.replicas[number]
        is_sure = self.now_ms < self.deposed_ms.get(number, self.now_ms) + LEASE_MS
        granted = replica.locks.try_lock_batch(
            GROUP, [QUEUE], client_id=client, now_ms=self.now_ms, is_sure=is_sure
        )
        if granted:
            self.believes[client] = self.now_ms + BELIEF_MS
        elif number == self.master:
            self.believes.pop(client, None)

    @rule(client=_clients)
    def unlock(self, client: str) -> None:
        self.believes.pop(client, None)
        self.knows[client] = self.master
        self.replicas[self.master].locks.unlock_batch(GROUP, [QUEUE], client_id=client)

    @rule()
    def save(self) -> None:
        for replica in self.replicas:
            replica.saved = (replica.place, copy.deepcopy(replica.locks.snapshot()))

    @rule(number=_replicas)
    def kill_and_restart(self, number: int) -> None:
        old, new = self.replicas[number], Replica()
        new.saved = old.saved
        new.place, locks = copy.deepcopy(old.saved)
        for group, client, queues in locks:
            new.locks.heard(group, queues, client, self.now_ms)
        self.replicas[number] = new
        self.deposed_ms.pop(number, None)
        if number == self.master:
            self._lead(number)

    @rule(is_alive=st.booleans())
    def switch(self, is_alive: bool) -> None:
        old = self.master
        self._lead(1 - old)
        if is_alive:
            self.deposed_ms[old] = self.now_ms  # Cut off, and does not know it.

    @rule()
    def follow(self) -> None:
        number = 1 - self.master
        self.deposed_ms.pop(number, None)
        self.replicas[number].locks.on_moved = None
        self._apply(self.replicas[number])

    @rule()
    def sweep(self) -> None:
        self.replicas[self.master].locks.forget_expired(self.now_ms)

    @rule(ms=st.sampled_from((1, 1_000, 15_000, BELIEF_MS, LOCK_LIVE_MS_MAX + 1)))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def nobody_shares_a_queue(self) -> None:
        owners = [client for client in CLIENTS if self.believes.get(client, 0) > self.now_ms]
        assert len(owners) <= 1, f"{owners} work in one queue"


TestLockMachine = LockMachine.TestCase
TestLockMachine.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_what_is_not_recorded_is_not_granted() -> None:
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    locks.on_moved = lambda group, client, queues: False
    assert locks.try_lock_batch(GROUP, ["q"], client_id="x", now_ms=0) == []
    assert locks.owner(GROUP, "q", 0) is None


def test_a_renewal_is_recorded_when_another_master_is_possible() -> None:
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    told: list[str] = []
    locks.on_moved = lambda group, client, queues: not told.append(client)
    locks.try_lock_batch(GROUP, ["q"], client_id="x", now_ms=0)
    assert locks.try_lock_batch(GROUP, ["q"], client_id="x", now_ms=1) == ["q"]
    assert told == ["x"], "with a lease a renewal costs nothing"
    assert locks.try_lock_batch(GROUP, ["q"], client_id="x", now_ms=2, is_sure=False) == ["q"]
    assert told == ["x", "x"]


def test_a_lock_that_ended_is_no_news_to_the_next_master() -> None:
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    told: list[tuple[str, list[str]]] = []
    locks.try_lock_batch(GROUP, ["q"], client_id="x", now_ms=0)
    locks.on_moved = lambda group, client, queues: not told.append((client, queues))
    locks.forget_expired(LOCK_LIVE_MS_MAX + 1)
    assert told == [("", ["q"])]


def test_a_new_master_counts_from_its_promotion() -> None:
    """Renewals are not in the log: when the last one was, only the old master knew."""
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    locks.heard(GROUP, ["q"], "x", now_ms=0)
    locks.renew_all(LOCK_LIVE_MS_MAX + 5_000)
    later = LOCK_LIVE_MS_MAX + 10_000
    assert locks.try_lock_batch(GROUP, ["q"], client_id="y", now_ms=later) == []
