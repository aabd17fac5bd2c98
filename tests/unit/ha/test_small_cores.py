"""The small pure parts of replication: damage, redialling, who a broker is to its peer."""

from __future__ import annotations

import pytest

from support.ha_fake_store import FakeLog, FakeStore
from support.twin_cores import log_of, record_ends
from twinlog.broker.put.durability import Demand, DurabilityQueue
from twinlog.ha.acks import AckTable
from twinlog.ha.authority import Authority
from twinlog.ha.damage import FINGERPRINT_SIZE_MAX, DamageGuard, DamageVerdict
from twinlog.ha.epoch_file import EpochFile
from twinlog.ha.group_replication import GroupReplication
from twinlog.ha.redial import DELAYS_MS, RedialPolicy
from twinlog.ha.settings import HASettings
from twinlog.ha.twin.identity import TwinIdentity
from twinlog.runtime.address_set import AddressSet
from twinlog.runtime.watermark import Watermark

AGAIN, STAY = DamageVerdict.ASK_AGAIN, DamageVerdict.STAY


def test_the_same_damaged_bytes_a_second_time_are_the_masters() -> None:
    guard = DamageGuard()
    assert guard.found(10, b"abcdef") is AGAIN
    assert guard.found(10, b"abc") is STAY, "as far as both were seen"
    assert guard.found(10, b"abX") is AGAIN
    assert guard.found(20, b"abX") is AGAIN
    assert guard.found(20, b"") is AGAIN, "nothing is like nothing"
    guard.found(30, b"x" * (FINGERPRINT_SIZE_MAX + 1))
    assert guard.found(30, b"x" * FINGERPRINT_SIZE_MAX + b"y") is STAY
    guard.reset()
    assert guard.found(30, b"x") is AGAIN


def test_pauses_grow_until_a_connection_brings_something() -> None:
    redial = RedialPolicy()
    pauses = [redial.next_delay_ms(brought_data=False) for _ in range(6)]
    assert pauses == [*DELAYS_MS, DELAYS_MS[-1], DELAYS_MS[-1]]
    assert redial.next_delay_ms(brought_data=True) == 0
    assert redial.next_delay_ms(brought_data=False) == DELAYS_MS[0]
    redial.reset()
    assert redial.next_delay_ms(brought_data=False) == DELAYS_MS[0]


def identity(**changes: object) -> TwinIdentity:
    values = {
        "cluster": "c", "group": "g", "replica_id": 2, "store_id": "s", "replica_uid": "u",
        "new_nonce": lambda: "n", "adopt_store_id": lambda store_id: None,
    }  # fmt: skip
    return TwinIdentity(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "host", "is_local", "is_served"),
    [
        ({}, "127.0.0.1", False, True),
        ({}, "?", False, True),
        ({}, "10.0.0.5", True, True),
        ({}, "10.0.0.5", False, False),
        ({}, "a.host.name", False, False),
        ({"secret": "x"}, "127.0.0.1", True, False),
        ({"has_tls": True}, "127.0.0.1", True, False),
        ({"secret": "x", "classic_peers": AddressSet("10.0.0.0/8")}, "10.0.0.5", False, True),
    ],
)
def test_who_is_served_without_credentials(
    given: dict[str, object], host: str, is_local: bool, is_served: bool
) -> None:
    refusal = identity(**given).classic_refusal(host, is_local=is_local)
    assert (refusal == "") == is_served
    assert is_served or "twinlogHAClassicPeers" in refusal


def test_a_twin_without_a_secret_is_near_or_named() -> None:
    assert identity().open_refusal("::1") == ""
    assert identity(secret="x").open_refusal("10.0.0.5") == ""
    assert identity(classic_peers=AddressSet("10.0.0.5")).open_refusal("10.0.0.5") == ""
    assert "no credentials" in identity().open_refusal("10.0.0.5")


def test_a_classic_master_cannot_prove_itself() -> None:
    named = identity(secret="x", classic_peers=AddressSet("10.0.0.5"))
    assert identity().master_refusal("10.0.0.5") == ""
    assert named.master_refusal("10.0.0.5") == ""
    assert "cannot prove itself" in named.master_refusal("10.0.0.6")


def test_what_is_said_of_a_log_and_of_an_empty_one() -> None:
    log = log_of(1, 20_000)
    settings = HASettings(send_heartbeat_interval_ms=7)
    own = identity(secret="x")
    facts = own.slave_facts(settings, FakeLog(1 << 20, log))
    said = facts.hello
    assert (said.store_id, said.log_min, said.log_end, said.has_secret) == ("s", 0, 20_000, True)
    assert (facts.heartbeat_interval_ms, said.confirmed, said.epoch) == (7, 0, 0)
    assert own.slave_facts(settings, FakeLog()).hello.store_id == ""
    master = own.master_facts(settings, 1 << 20)
    assert (master.store_id, master.secret, master.is_controlled) == ("s", "x", False)


def test_a_member_of_a_group_says_its_epoch_and_its_own_id() -> None:
    log = FakeLog(1 << 20, log_of(1, 5000))
    group = GroupReplication(FakeStore(log), Watermark("confirmed"), EpochFile(), True)
    group.own_id, group.epoch, group.incarnation, group.is_learner = 9, 4, "i", True
    said = identity().slave_facts(HASettings(), log, group).hello
    assert (said.replica_id, said.epoch, said.incarnation) == (9, 4, "i")
    assert (said.is_learner, said.is_durable) == (True, True)
    facts = identity().master_facts(HASettings(), 1 << 20, group)
    assert (facts.is_controlled, facts.epochs) == (True, group.wire_epochs())


def test_half_a_record_is_not_confirmed() -> None:
    log = log_of(1, 20_000)
    ends = record_ends(log)
    for mark, counted in ((ends[3] + 1, ends[3]), (ends[3], ends[3]), (10**9, 20_000)):
        own = identity()
        own.mark.note(mark)
        assert own.confirmed_in(FakeLog(1 << 20, log)) == counted


def test_small_questions() -> None:
    acks = AckTable()
    assert acks.lowest == 1 << 62
    acks.join("a", 70, 0)
    acks.join("b", 50, 0)
    assert acks.lowest == 50
    authority = Authority(
        own_id=1, incarnation="i", epoch=1, epoch_start=0, members=frozenset({1}), set_epoch=1
    )
    assert not authority.is_joining
    queue: DurabilityQueue[str] = DurabilityQueue()
    assert queue.slave_deadline_ms is None
    for demand, deadline in ((Demand.FLUSH, 1), (Demand.REPLICATE, 30), (Demand.BOTH, 20)):
        queue.add(demand, 100, "r", flush_deadline_ms=0, slave_deadline_ms=deadline)
    assert queue.slave_deadline_ms == 20
