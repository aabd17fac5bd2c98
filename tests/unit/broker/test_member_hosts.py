"""Who may pass requests on: replicas by address, by the address of their replication, by name."""

from __future__ import annotations

from twinlog.broker.group.member_hosts import LOOK_UP_PAUSE_MS, MemberHosts, addresses_of
from twinlog.controller.record import GroupRecord, Replica
from twinlog.testing.manual_clock import ManualClock

NAMES = {"broker-one": {"10.0.0.1", "fd00::1"}, "gone": set[str]()}


def record(*addresses: tuple[str, str]) -> GroupRecord:
    replicas = {
        n: Replica(broker_id=n, address=address, ha_address=ha_address)
        for n, (address, ha_address) in enumerate(addresses, 1)
    }
    return GroupRecord(cluster="c", group="g", replicas=replicas)


class Hosts(MemberHosts):
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.clock = ManualClock(1_000_000)

        async def look_up(name: str) -> set[str]:
            self.asked.append(name)
            return NAMES[name]

        super().__init__(self.clock, look_up)


def test_both_addresses_of_a_replica_count_and_no_other() -> None:
    hosts = Hosts()
    known = record(("192.0.2.1:10911", "10.0.0.1:10912"), ("[fd00::2]:10911", ""), ("nonsense", ""))
    for host in ("192.0.2.1", "10.0.0.1", "fd00::2"):
        assert hosts.knows(known, host)
    assert not hosts.knows(known, "192.0.2.9")
    assert not hosts.may_look_up(known), "there is no name"


async def test_a_name_is_looked_up_now_and_then() -> None:
    hosts = Hosts()
    known = record(("broker-one:10911", "gone:10912"))
    assert not hosts.knows(known, "10.0.0.1")
    assert hosts.may_look_up(known)
    await hosts.look_up(known)
    assert hosts.knows(known, "10.0.0.1")
    assert hosts.knows(known, "fd00::1")
    assert not hosts.knows(known, "10.0.0.2")
    assert sorted(hosts.asked) == ["broker-one", "gone"]
    assert not hosts.may_look_up(known), "strangers cost one look-up in a while"
    hosts.clock.advance(LOOK_UP_PAUSE_MS)
    assert hosts.may_look_up(known)
    assert not hosts.knows(record(("other:1", "")), "10.0.0.1"), "of names in the record only"


async def test_what_nobody_knows_stands_for_nothing() -> None:
    assert "127.0.0.1" in await addresses_of("localhost")
    assert await addresses_of("no such name.invalid") == set()
    assert await addresses_of("x" * 300) == set()
