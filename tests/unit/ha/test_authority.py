"""R1, R2, R3, R5, R6 on the master's side, and a machine that knows every set that may count."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from twinlog.ha.authority import Authority, SetProposal

REPLICAS = (2, 3, 4)


def master(members: set[int], epoch_start: int = 10) -> Authority:
    authority = Authority(
        own_id=1,
        incarnation="i1",
        epoch=5,
        epoch_start=epoch_start,
        members=frozenset(members),
        set_epoch=7,
    )
    authority.own_end(100)
    return authority


class TestConfirmed:
    """R1."""

    def test_an_older_set_that_comes_late_changes_nothing(self) -> None:
        authority = master({1, 2})
        authority.committed(7, frozenset({1}))
        assert (authority.set_epoch, authority.members) == (7, {1, 2})

    def test_every_member_must_have_it(self) -> None:
        authority = master({1, 2, 3})
        authority.connected(2, 20, "i2", 90)
        assert authority.confirmed == 0
        authority.connected(3, 30, "i3", 80)
        assert authority.confirmed == 80
        authority.acknowledged(3, 30, 95)
        assert authority.confirmed == 90

    def test_a_member_without_a_proved_connection_confirms_nothing(self) -> None:
        authority = master({1, 2})
        authority.connected(2, 20, "i2", 50)
        authority.disconnected(2, 20)
        authority.acknowledged(2, 20, 100)
        assert authority.confirmed == 50

    def test_a_replaced_connection_is_not_counted(self) -> None:
        authority = master({1, 2})
        authority.connected(2, 20, "i2", 50)
        authority.connected(2, 21, "i2b", 40)
        authority.acknowledged(2, 20, 100)
        authority.disconnected(2, 20)
        assert (authority.confirmed, authority.acked_by(2)) == (50, 40)

    def test_the_process_that_is_connected_is_known(self) -> None:
        authority = master({1, 2})
        assert authority.process_of(2) == ""
        authority.connected(2, 20, "i2", 50)
        authority.connected(2, 21, "i2b", 40)
        assert authority.process_of(2) == "i2b"

    def test_alone_its_own_end_counts(self) -> None:
        assert master({1}).confirmed == 100


class TestSets:
    """R2 and R3."""

    def test_a_shrink_counts_only_once_it_is_committed(self) -> None:
        authority = master({1, 2})
        authority.shrink(2)
        assert authority.confirmed == 0
        authority.committed(8, frozenset({1}))
        assert authority.confirmed == 100

    def test_a_joining_replica_counts_before_it_is_proposed(self) -> None:
        authority = master({1})
        authority.connected(2, 20, "i2", 60)
        authority.join(2)
        authority.own_end(200)
        assert authority.confirmed == 100, "frozen until it has caught up"
        assert authority.proposal() is None
        authority.acknowledged(2, 20, 100)
        proposal = authority.proposal()
        assert proposal == SetProposal(5, 7, frozenset({1, 2}), {2: "i2"})
        assert authority.proposal() is proposal, "asked again as it was"

    def test_one_that_leaves_while_it_joins_is_given_up(self) -> None:
        authority = master({1})
        authority.connected(2, 20, "i2", 60)
        authority.join(2)
        authority.own_end(200)
        authority.disconnected(2, 20)
        assert (authority.confirmed, authority.proposal()) == (200, None)

    def test_one_that_does_not_catch_up_is_given_up(self) -> None:
        authority = master({1})
        authority.connected(2, 20, "i2", 60)
        authority.join(2)
        authority.own_end(200)
        authority.give_up_joining()
        assert (authority.confirmed, authority.is_changing) == (200, False)

    def test_it_must_have_the_first_record_of_the_epoch(self) -> None:
        authority = master({1, 3}, epoch_start=90)
        authority.connected(2, 20, "i2", 89)
        authority.join(2)
        assert authority.proposal() is None
        authority.acknowledged(2, 20, 90)
        assert authority.proposal() is not None

    def test_a_process_that_ended_since_is_not_proposed(self) -> None:
        authority = master({1})
        authority.connected(2, 20, "i2", 60)
        authority.join(2)
        authority.connected(2, 21, "i2b", 100)
        assert authority.proposal() is None

    def test_a_rejected_proposal_counts_until_the_present_set_is_committed(self) -> None:
        authority = master({1})
        authority.connected(2, 20, "i2", 100)
        authority.join(2)
        assert authority.proposal() is not None
        authority.rejected(7)
        assert authority.proposal() == SetProposal(5, 7, frozenset({1}), {})
        authority.own_end(200)
        assert authority.confirmed == 100
        authority.committed(8, frozenset({1}))
        assert authority.confirmed == 200

    def test_a_withdrawn_proposal_counts_no_more(self) -> None:
        """RocketMQ's controller: refused, and nothing of it is on its way."""
        authority = master({1})
        authority.connected(2, 20, "i2", 100)
        authority.join(2)
        proposal = authority.proposal()
        assert proposal is not None
        authority.own_end(200)
        assert authority.confirmed == 100
        authority.withdrawn(proposal)
        assert authority.confirmed == 200
        assert authority.proposal() is None
        assert not authority.is_changing


class TestLease:
    """R5 and R6."""

    def test_a_lease_counts_from_when_the_heartbeat_left(self) -> None:
        authority = master({1, 2})
        assert not authority.may_answer_early(0)
        authority.granted(1_000, 2_000, 5, "i1")
        assert authority.may_answer_early(2_999)
        assert not authority.may_answer_early(3_000)

    def test_it_is_bound_to_epoch_and_process(self) -> None:
        authority = master({1, 2})
        authority.granted(1_000, 2_000, 4, "i1")
        authority.granted(1_000, 2_000, 5, "earlier")
        assert not authority.may_answer_early(1_001)

    def test_it_is_given_up_before_a_hand_over(self) -> None:
        authority = master({1, 2})
        authority.granted(1_000, 2_000, 5, "i1")
        authority.surrender()
        assert not authority.may_answer_early(1_001)


class SetMachine(RuleBasedStateMachine):
    """The controller commits any proposal that was ever sent and is not stale, whenever it likes.

    The oracle keeps all sets that are committed or may be, and what each replica really has; what
    is confirmed must be in every replica of every one of them.
    """

    @initialize(members=st.sets(st.sampled_from(REPLICAS)))
    def begin(self, members: set[int]) -> None:
        self.authority = master({1, *members}, epoch_start=0)
        self.committed = (7, frozenset({1, *members}))
        self.sent: list[SetProposal] = []
        self.ends = dict.fromkeys(REPLICAS, 0)
        self.connections: dict[int, int] = {}
        self.next_connection = 10
        self.own = 100

    @rule(step=st.integers(1, 50))
    def append(self, step: int) -> None:
        self.own += step
        self.authority.own_end(self.own)

    @rule(n=st.sampled_from(REPLICAS))
    def connect(self, n: int) -> None:
        self.next_connection += 1
        self.connections[n] = self.next_connection
        self.authority.connected(n, self.next_connection, f"i{n}", self.ends[n])

    @rule(n=st.sampled_from(REPLICAS), share=st.floats(0, 1))
    def acknowledge(self, n: int, share: float) -> None:
        if n in self.connections:
            self.ends[n] += int((self.own - self.ends[n]) * share)
            self.authority.acknowledged(n, self.connections[n], self.ends[n])

    @rule(n=st.sampled_from(REPLICAS))
    def disconnect(self, n: int) -> None:
        if n in self.connections:
            self.authority.disconnected(n, self.connections.pop(n))

    @rule(n=st.sampled_from(REPLICAS))
    def change(self, n: int) -> None:
        authority = self.authority
        if authority.is_changing:
            return
        if n in authority.members:
            self.sent.append(authority.shrink(n))
        elif n in self.connections:
            authority.join(n)

    @rule()
    def ask(self) -> None:
        proposal = self.authority.proposal()
        if proposal is not None:
            self.sent.append(proposal)

    @rule()
    def give_up(self) -> None:
        self.authority.give_up_joining()

    @rule(data=st.data())
    def controller_commits(self, data: st.DataObject) -> None:
        live = [p for p in self.sent if p.set_epoch == self.committed[0]]
        if live:
            chosen = data.draw(st.sampled_from(live))
            self.committed = (self.committed[0] + 1, chosen.members)

    @rule()
    def controller_rejects(self) -> None:
        self.authority.rejected(self.authority.set_epoch)

    @precondition(lambda self: self.committed[0] > self.authority.set_epoch)
    @rule()
    def master_hears(self) -> None:
        self.authority.committed(*self.committed)

    @invariant()
    def confirmed_is_in_every_set_that_may_count(self) -> None:
        if not hasattr(self, "authority"):
            return
        may_count = {self.committed[1]}
        may_count |= {p.members for p in self.sent if p.set_epoch == self.committed[0]}
        for members in may_count:
            for n in members - {1}:
                assert self.authority.confirmed <= self.ends[n], (n, members)


SetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSetMachine = SetMachine.TestCase
