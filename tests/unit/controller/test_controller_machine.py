"""Any events in any order: what the controller's core decides stays within its rules.

The machine plays replicas that come and go, a store that answers late, wrongly or never, and an
operator. The oracle keeps every record that was written and every lease that was granted.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from twinlog.controller import events
from twinlog.controller.core import Controller
from twinlog.controller.events import DEFAULT_TIMING, Commit, Reload, Reply
from twinlog.controller.membership import Proposal
from twinlog.controller.record import Election, GroupRecord, Policy, Replica, changed

GROUP = "broker-a"
IDS = (1, 2, 3)
LEASE = DEFAULT_TIMING.lease_ms


class ControllerMachine(RuleBasedStateMachine):
    """`written` are all records that the store ever took, in order."""

    @initialize(
        role=st.sampled_from(["SYNC_MASTER", "ASYNC_MASTER"]),
        members=st.sampled_from([{1}, {1, 2}, {1, 2, 3}]),
        is_new=st.booleans(),
    )
    def begin(self, role: str, members: set[int], is_new: bool) -> None:
        policy = Policy(broker_role=role, total_replicas=len(IDS))
        replicas = {n: Replica(broker_id=n) for n in IDS}
        self.stored = GroupRecord(cluster="c", group=GROUP, policy=policy, replicas=replicas)
        if not is_new:
            self.stored = changed(
                self.stored,
                master_epoch=4,
                master_broker_id=1,
                master_incarnation="1.0",
                sync_state_set=frozenset(members),
                sync_state_set_epoch=9,
            )
        self.mood = "done"
        self.now = 1_000_000
        self.core = Controller([self.stored], self.now)
        self.pending: GroupRecord | None = None
        self.late: list[GroupRecord] = []
        self.boots = dict.fromkeys(IDS, 0)
        self.connections = {n: n for n in IDS}
        self.next_connection = 10
        self.doubts: set[int] = set()
        self.known = dict.fromkeys(IDS, self.stored.master_epoch)
        self.leases: dict[str, int] = {}
        for n in IDS:
            self.send_beat(n, 20, 0, drained=None)

    # The world around the core

    def tell(self, event: Any) -> None:
        for effect in self.core.handle(self.now, event):
            match effect:
                case Commit():
                    assert self.pending is None, "one commit at a time"
                    self.pending = effect.record
                    if self.mood == "done":
                        self.store_answers("done")
                case Reload():
                    self.tell(events.Loaded(GROUP, self.stored))
                case Reply() if effect.token is not None:
                    self.answered(effect)

    def answered(self, reply: Reply) -> None:
        n, incarnation = reply.token
        if reply.record is not None:
            self.known[n] = max(self.known[n], reply.record.master_epoch)
        if reply.lease_ms:
            assert reply.record is not None
            assert (reply.record.master_broker_id, reply.record.master_incarnation) == (
                n, incarnation,
            )  # fmt: skip
            assert self.pending is None, "no lease while something is being written"
            self.leases[incarnation] = self.now + LEASE

    def write(self, record: GroupRecord) -> bool:
        before = self.stored
        if record.version != before.version + 1:
            return False
        record.check()
        assert record.master_epoch >= before.master_epoch
        assert record.sync_state_set_epoch >= before.sync_state_set_epoch
        if record.master_epoch == before.master_epoch:
            assert record.master_broker_id == before.master_broker_id
        else:
            self.elected(before, record)
        self.stored = record
        return True

    def elected(self, before: GroupRecord, after: GroupRecord) -> None:
        assert after.master_epoch == before.master_epoch + 1
        if before.master_epoch:
            is_lost = after.election is Election.INCOMPLETE and before.sync_state_set <= self.doubts
            assert is_lost or after.master_broker_id in before.sync_state_set, "R7, R8"
        if after.policy.needs_lease:
            # R6: nobody who lives believes in a lease any more, unless he has given it up.
            for incarnation, until in self.leases.items():
                is_alive = incarnation == self.incarnation(int(incarnation[0]))
                assert not is_alive or until <= self.now, (incarnation, until, self.now)

    def incarnation(self, n: int) -> str:
        return f"{n}.{self.boots[n]}"

    # What happens

    @rule(n=st.sampled_from(IDS), end=st.integers(0, 50), link=st.sampled_from([None, 0, 5_000]))
    def beat(self, n: int, end: int, link: int | None) -> None:
        self.send_beat(n, end, link, drained=None)

    @rule(n=st.sampled_from(IDS))
    def beat_drained(self, n: int) -> None:
        self.leases.pop(self.incarnation(n), None)  # Given up before it is said.
        self.send_beat(n, 50, 0, drained=50)

    def send_beat(self, n: int, end: int, link: int | None, drained: int | None) -> None:
        self.tell(
            events.Heartbeat(
                group=GROUP,
                broker_id=n,
                connection=self.connections[n],
                incarnation=self.incarnation(n),
                known_epoch=self.known[n],
                last_epoch=self.known[n],
                end=end,
                is_complete=n not in self.doubts,
                link_ms=link,
                drained_end=drained,
                token=(n, self.incarnation(n)),
            )
        )

    @rule(n=st.sampled_from(IDS), has_power=st.booleans(), is_told=st.booleans())
    def restart(self, n: int, has_power: bool, is_told: bool) -> None:
        if is_told:
            self.tell(events.ConnectionClosed(self.connections[n]))
        self.boots[n] += 1
        self.next_connection += 1
        self.connections[n] = self.next_connection
        if not has_power:
            self.doubts.add(n)

    @rule(ms=st.sampled_from([10, 500, 2_000, 2_300, 12_000]))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.tell(events.Tick())

    @rule(members=st.sets(st.sampled_from(IDS)), age=st.integers(0, 1))
    def propose(self, members: set[int], age: int) -> None:
        record = self.core.groups[GROUP].record
        if record.master_broker_id is None:
            return
        proposal = Proposal(
            broker_id=record.master_broker_id,
            incarnation=record.master_incarnation,
            master_epoch=record.master_epoch,
            set_epoch=record.sync_state_set_epoch - age,
            members=frozenset(members | {record.master_broker_id}),
            incarnations={n: self.incarnation(n) for n in members},
        )
        self.tell(events.AlterSyncStateSet(GROUP, proposal))

    @rule(n=st.sampled_from(IDS))
    def switch(self, n: int) -> None:
        self.tell(events.ElectMaster(GROUP, designate=n))

    @rule(mood=st.sampled_from(["done", "slow"]))
    def store_changes_its_mood(self, mood: str) -> None:
        self.mood = mood

    @rule(fate=st.sampled_from(["done", "done", "lost", "late", "unsaid"]))
    def store_answers(self, fate: str) -> None:
        record, self.pending = self.pending, None
        if record is None:
            return
        if fate == "late":
            self.late.append(record)
        is_written = fate in ("done", "unsaid") and self.write(record)
        if is_written and fate == "done":
            self.tell(events.CommitDone(GROUP, record.version))
        else:
            self.tell(events.CommitUnknown(GROUP, record.version))

    @rule()
    def late_write_arrives(self) -> None:
        if self.late and self.pending is None:
            before = self.stored
            self.write(self.late.pop())
            core = self.core.groups[GROUP].record
            assert self.stored == before or core.version < self.stored.version
            assert self.stored == before, "a write that was given up must be stale by now"

    @rule()
    def controller_restarts(self) -> None:
        self.late.clear()  # Who leads now has fenced those before.
        self.pending = None
        self.core = Controller([self.stored], self.now)

    # Two corners that take many steps

    @rule(wanted=st.sampled_from(IDS), is_restarted=st.booleans())
    def master_is_not_heard(self, wanted: int, is_restarted: bool) -> None:
        """Its connection ends while it lives; perhaps the controller's process ends, too."""
        master = self.stored.master_broker_id
        if master is None:
            return
        self.send_beat(master, 50, 0, drained=None)
        if is_restarted:
            self.controller_restarts()
        else:
            self.tell(events.ConnectionClosed(self.connections[master]))
            self.next_connection += 1
            self.connections[master] = self.next_connection
        for _ in range(3):
            self.wait(500)
            for n in IDS:
                if n != master:
                    self.send_beat(n, 50, None, drained=None)
            self.switch(wanted)


ControllerMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestControllerMachine = ControllerMachine.TestCase
