"""The route table: who is in it, what a route says, and when a broker is out."""

from __future__ import annotations

from typing import Any

import pytest

from twinlog.namesrv import routes as module
from twinlog.namesrv.routes import BrokerIdentity, RouteInfoManager, RouteTableFullError
from twinlog.remoting.bodies.common import DataVersion
from twinlog.remoting.bodies.topic import TopicConfig

MASTER = BrokerIdentity("c", "b", 0, "10.0.0.1:10911", "10.0.0.1:10912")
SLAVE = BrokerIdentity("c", "b", 1, "10.0.0.2:10911", "10.0.0.2:10912")


def register(
    table: RouteInfoManager, broker: BrokerIdentity, *topics: str, **changes: Any
) -> module.RegisterBrokerResult:
    arguments = {
        "data_version": DataVersion(1, 1),
        "topics": [TopicConfig(topic, 4, 4) for topic in topics],
        "connection": broker.address,
        "now_ms": 0,
    }
    return table.register(broker, **{**arguments, **changes})


def addresses(table: RouteInfoManager, name: str = "b") -> dict[int, str]:
    return dict(table.cluster_info().broker_addr_table[name].broker_addrs)


@pytest.fixture
def table() -> RouteInfoManager:
    return RouteInfoManager()


def test_master_gets_no_address_and_slave_gets_the_masters(table: RouteInfoManager) -> None:
    assert register(table, SLAVE).master_addr is None
    assert register(table, MASTER).master_addr is None
    answer = register(table, SLAVE)
    assert (answer.master_addr, answer.ha_server_addr) == ("10.0.0.1:10911", "10.0.0.1:10912")


def test_only_a_masters_topics_count(table: RouteInfoManager) -> None:
    register(table, SLAVE, "T")
    assert table.route("T") is None
    register(table, MASTER, "T")
    route = table.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert route.queue_datas[0].write_queue_nums == 4


def test_topic_missing_from_a_later_registration_stays(table: RouteInfoManager) -> None:
    register(table, MASTER, "A", "B")
    register(table, MASTER, "C", data_version=DataVersion(2, 2))
    assert table.all_topics().topic_list == ["A", "B", "C"]


def test_unchanged_data_version_leaves_queues_as_they_are(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    assert table.wipe_write_perm("b") == 1
    register(table, MASTER, "T")
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    register(table, MASTER, "T", data_version=DataVersion(2, 1))
    assert route is not None
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 6


def test_slave_that_becomes_master_leaves_its_old_place(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    register(table, SLAVE)
    register(table, BrokerIdentity("c", "b", 0, SLAVE.address))
    # The old master lives: the place is its own until it is gone, and then the new one's at once.
    assert addresses(table) == {0: MASTER.address}
    table.connection_lost(MASTER.address)
    assert addresses(table) == {0: SLAVE.address}


def test_last_address_takes_name_cluster_and_topics_with_it(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    register(table, SLAVE)
    table.unregister(MASTER)
    assert table.route("T") is not None
    table.unregister(SLAVE)
    assert table.route("T") is None
    assert table.all_topics().topic_list == []
    assert table.cluster_info().cluster_addr_table == {}
    table.unregister(SLAVE)


def test_lost_connection_removes_only_who_registered_over_it_last(table: RouteInfoManager) -> None:
    register(table, MASTER, "T", connection="old")
    register(table, MASTER, "T", connection="new")
    assert table.connection_lost("old") == []
    assert table.route("T") is not None
    assert table.connection_lost("new") == [MASTER.address]
    assert table.route("T") is None


def test_broker_without_registration_expires_after_two_minutes(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    assert table.expire(120_000) == []
    table.touch(MASTER.address, 1_000)
    assert table.expire(121_000) == []
    ((live, reason),) = table.expire(121_001)
    assert live.address == MASTER.address
    assert reason == "no registration for 120001 ms"
    assert table.route("T") is None


def test_broker_that_sent_heartbeats_expires_after_three_seconds(table: RouteInfoManager) -> None:
    assert not table.heartbeat(MASTER.address, 0)
    register(table, MASTER, "T")
    assert table.heartbeat(MASTER.address, 10_000)
    assert table.expire(13_000) == []
    register(table, MASTER, "T", now_ms=13_000)
    assert table.expire(16_000) == []
    ((_, reason),) = table.expire(16_001)
    assert reason == "no heartbeat for 3001 ms"


def test_lists_by_cluster_and_unit_flags(table: RouteInfoManager) -> None:
    topics = [TopicConfig(f"t{flag}", 4, 4, topic_sys_flag=flag) for flag in range(4)]
    register(table, MASTER, topics=topics)
    register(table, BrokerIdentity("d", "x", 0, "10.0.0.3:1"), "only-d")
    assert table.topics_of_cluster("c").topic_list == ["t0", "t1", "t2", "t3"]
    assert table.topics_of_cluster("d").topic_list == ["only-d"]
    assert table.topics_of_cluster("no").topic_list == []
    assert table.unit_topics().topic_list == ["t1", "t3"]
    assert table.unit_sub_topics().topic_list == ["t2", "t3"]
    assert table.unit_sub_ununit_topics().topic_list == ["t2"]
    system = table.system_topics()
    assert system.topic_list == ["c", "b", "d", "x"]
    assert system.broker_addr == MASTER.address


def test_topic_is_deleted_everywhere_or_in_one_cluster(table: RouteInfoManager) -> None:
    other = BrokerIdentity("d", "x", 0, "10.0.0.3:1")
    register(table, MASTER, "T")
    register(table, other, "T")
    table.delete_topic("T", "d")
    route = table.route("T")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["b"]
    table.delete_topic("T", "unknown")
    assert table.route("T") is not None
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.route("T") is None


def test_permission_edits_of_an_unknown_broker_touch_nothing(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    assert table.wipe_write_perm("nobody") == 0
    assert table.add_write_perm("nobody") == 0


def test_filter_servers_appear_in_the_route_until_they_are_gone(table: RouteInfoManager) -> None:
    register(table, MASTER, "T", filter_servers=["f:1"])
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {MASTER.address: ["f:1"]}
    register(table, MASTER, "T", filter_servers=[])
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {}


def test_full_table_refuses_new_names_and_topics(
    table: RouteInfoManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BROKERS_MAX", 1)
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    register(table, MASTER, "A", "B")
    with pytest.raises(RouteTableFullError, match="1 broker names"):
        register(table, BrokerIdentity("c", "other", 0, "10.0.0.9:1"))
    with pytest.raises(RouteTableFullError, match="2 topics"):
        register(table, MASTER, "A", "C", data_version=DataVersion(3, 3))


def test_full_table_refuses_new_addresses(
    table: RouteInfoManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name may have as many ids as there are numbers."""
    monkeypatch.setattr(module, "ADDRESSES_MAX", 2)
    register(table, MASTER, "A")
    register(table, BrokerIdentity("c", "b", 1, "10.0.0.9:1"))
    with pytest.raises(RouteTableFullError, match="2 addresses"):
        register(table, BrokerIdentity("c", "b", 2, "10.0.0.9:2"))
    register(table, MASTER, "A")


def test_brokers_of_one_connection_leave_together(table: RouteInfoManager) -> None:
    register(table, MASTER, "T", "U", connection="other")
    for number in range(3):
        broker = BrokerIdentity("c", f"x{number}", 0, f"10.0.0.8:{number}")
        register(table, broker, "T", f"X{number}", connection="one")
    rival = BrokerIdentity("c", "x0", 0, "10.0.0.8:9")
    register(table, rival, "T", connection="one")
    assert len(table.connection_lost("one")) == 4
    assert sorted(table.all_topics().topic_list) == ["T", "U"]
    assert table.cluster_info().cluster_addr_table == {"c": ["b"]}
    route = table.route("T")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["b"]


STALE = BrokerIdentity("c", "b", 0, "10.0.0.9:10911", "10.0.0.9:10912")


def test_a_second_master_is_known_but_not_in_the_route(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    answer = register(table, STALE, "T", "only-on-the-stale-one")
    assert (answer.rival, answer.is_in_route) == (MASTER.address, False)
    for _ in range(3):
        again = register(table, MASTER, "T")
        assert (again.rival, again.is_in_route) == (STALE.address, True)
        register(table, STALE, "T", "only-on-the-stale-one")
        assert addresses(table) == {0: MASTER.address}
    assert table.all_topics().topic_list == ["T"]
    assert [(r.address, r.holder) for r in table.rivals()] == [(STALE.address, MASTER.address)]


@pytest.mark.parametrize("broker_id", [0, 1])
def test_a_stale_broker_that_stops_leaves_the_living_one_in_the_route(
    table: RouteInfoManager, broker_id: int
) -> None:
    living = BrokerIdentity("c", "b", broker_id, "10.0.0.3:10911")
    stale = BrokerIdentity("c", "b", broker_id, "10.0.0.4:10911")
    register(table, living, "T")
    register(table, stale, "T")
    table.unregister(stale)
    assert addresses(table) == {broker_id: living.address}
    assert table.rivals() == []
    # Nor may one do it that was never registered.
    table.unregister(BrokerIdentity("c", "b", broker_id, "10.0.0.5:10911"))
    assert addresses(table) == {broker_id: living.address}


@pytest.mark.parametrize("end", ["unregister", "connection", "heartbeat"])
def test_a_rival_has_the_place_as_soon_as_the_holder_is_gone(
    table: RouteInfoManager, end: str
) -> None:
    register(table, MASTER, "T")
    register(table, SLAVE)
    register(table, STALE, "T", "new")
    assert table.heartbeat(MASTER.address, 1)
    if end == "unregister":
        table.unregister(MASTER)
    elif end == "connection":
        table.connection_lost(MASTER.address)
    else:
        table.expire(3_100)
    assert addresses(table) == {0: STALE.address, 1: SLAVE.address}
    assert table.rivals() == []
    # Its topics count from its next registration on, whatever version it says.
    assert register(table, STALE, "T", "new", now_ms=3_200).is_in_route
    assert sorted(table.all_topics().topic_list) == ["T", "new"]


def test_a_master_on_a_new_address_takes_over_from_one_that_is_silent(
    table: RouteInfoManager,
) -> None:
    """An Apache master whose machine lost power: no heartbeat, and its connection stands."""
    register(table, MASTER, "T")
    assert not register(table, STALE, "T", now_ms=60_000).is_in_route
    assert register(table, STALE, "T", now_ms=module.HELD_MS + 1).is_in_route
    assert addresses(table) == {0: STALE.address}


def test_the_word_of_a_silent_heart_does_not_hold_a_place(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    table.heartbeat(MASTER.address, 1)
    assert not register(table, STALE, "T", now_ms=2_000).is_in_route
    assert register(table, STALE, "T", now_ms=module.HEARTBEAT_EXPIRED_MS + 10).is_in_route


def test_an_address_that_changes_its_role_gives_its_place_to_the_rival(
    table: RouteInfoManager,
) -> None:
    register(table, MASTER, "T")
    register(table, STALE, "T")
    register(table, BrokerIdentity("c", "b", 1, MASTER.address))
    assert addresses(table) == {0: STALE.address, 1: MASTER.address}


def test_a_late_goodbye_of_an_earlier_role_changes_nothing(table: RouteInfoManager) -> None:
    register(table, MASTER, "T")
    register(table, BrokerIdentity("c", "b", 1, MASTER.address))
    table.unregister(MASTER)
    assert addresses(table) == {1: MASTER.address}


def test_a_registration_of_all_topics_drops_the_others_of_that_name(
    table: RouteInfoManager,
) -> None:
    other = BrokerIdentity("c", "other", 0, "10.0.1.1:10911")
    register(table, other, "A", "B")
    register(table, MASTER, "A", "B", "C")
    before = table.wipe_write_perm("b")
    answer = register(table, MASTER, "A", "D", scope=module.TopicScope.ALL)
    assert before == 3
    assert sorted(table.all_topics().topic_list) == ["A", "B", "D"]
    route = table.route("A")
    assert route is not None
    perms = {queues.broker_name: queues.perm for queues in route.queue_datas}
    assert perms == {"other": 6, "b": 4}, "an edited permission stays while nothing changed"
    expected = RouteInfoManager()
    assert answer.topics_digest == register(expected, MASTER, "D", "A").topics_digest


def test_topics_that_changed_count_whatever_the_version_says(table: RouteInfoManager) -> None:
    register(table, MASTER, "A")
    answer = register(table, MASTER, "B", scope=module.TopicScope.SOME)
    assert table.all_topics().topic_list == ["A", "B"]
    assert answer.topics_digest != 0
    table.delete_topic("A")
    table.delete_topic("B")
    assert register(table, MASTER).topics_digest == 0


def elected(epoch: int, address: str, cluster: str = "c", lineage: str = "") -> dict[str, Any]:
    """What the master of a controlled group registers with."""
    broker = BrokerIdentity(cluster, "b", 0, address, f"{address}2", lineage)
    return {"broker": broker, "data_version": DataVersion(1, 1, epoch)}


def test_a_master_of_a_newer_epoch_has_the_place_and_the_older_one_hears_of_it(
    table: RouteInfoManager,
) -> None:
    register(table, **elected(3, "10.0.0.1:10911", lineage="L"))
    assert register(table, **elected(4, "10.0.0.2:10911", lineage="L")).is_in_route
    old = register(table, **elected(3, "10.0.0.1:10911", lineage="L"))
    assert (old.newer_epoch, old.is_in_route) == (4, False)
    assert addresses(table) == {0: "10.0.0.2:10911"}


@pytest.mark.parametrize(
    "stranger",
    [
        {"cluster": "other", "lineage": "theirs"},
        {"cluster": "other"},
        {"lineage": "theirs"},
    ],
)
def test_an_epoch_of_another_group_of_that_name_deposes_nobody(
    table: RouteInfoManager, stranger: dict[str, str]
) -> None:
    """Epochs are numbers of one group. That of another cluster, or of another controller's, says
    nothing about ours: its master is a rival like any other."""
    register(table, **elected(3, "10.0.0.1:10911", lineage="ours"))
    theirs = register(table, **elected(90, "10.0.9.9:10911", **stranger))
    assert (theirs.is_in_route, theirs.rival) == (False, "10.0.0.1:10911")
    ours = register(table, **elected(3, "10.0.0.1:10911", lineage="ours"))
    assert (ours.newer_epoch, ours.is_in_route) == (None, True)
    assert addresses(table) == {0: "10.0.0.1:10911"}


def test_a_group_that_was_made_anew_begins_with_its_first_epoch(table: RouteInfoManager) -> None:
    """Its stores and its controller were wiped; the name server was not."""
    register(table, **elected(90, "10.0.0.1:10911", lineage="before"))
    again = register(table, **elected(1, "10.0.0.1:10911", lineage="after"))
    assert (again.newer_epoch, again.is_in_route) == (None, True)
    later = register(table, **elected(2, "10.0.0.2:10911", lineage="after"))
    assert later.is_in_route
    assert register(table, **elected(1, "10.0.0.1:10911", lineage="after")).newer_epoch == 2


def test_a_stranger_has_the_place_when_its_holder_is_gone(table: RouteInfoManager) -> None:
    register(table, **elected(90, "10.0.0.1:10911", lineage="before"))
    moved = elected(1, "10.0.0.2:10911", lineage="after")
    assert not register(table, **moved).is_in_route
    assert register(table, **moved, now_ms=module.HELD_MS + 1).is_in_route
