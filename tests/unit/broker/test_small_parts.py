"""Names, versions, locks, subscriptions, delays, statistics: the broker's small pure parts."""

from __future__ import annotations

import pytest

from twinlog.broker import names
from twinlog.broker.delay.levels import delayed
from twinlog.broker.errors import BrokerError
from twinlog.broker.filter.subscription import (
    SubscriptionError,
    build_subscription,
    subscription_from_json,
)
from twinlog.broker.processors.admin_config import with_values
from twinlog.broker.put.send_properties import scan_properties
from twinlog.broker.stats.broker_stats import TOPIC_PUT_NUMS, BrokerStatsManager
from twinlog.broker.stats.runtime_info import human_bytes
from twinlog.broker.stats.store_stats import StoreStats
from twinlog.broker.tables import clients, consumer_offset, rebalance_lock
from twinlog.broker.tables.clients import ClientChannelInfo, ProducerManager
from twinlog.broker.tables.config_file import ConfigFile
from twinlog.broker.tables.consumer_offset import ConsumerOffsetManager
from twinlog.broker.tables.rebalance_lock import LOCK_LIVE_MS_MAX, RebalanceLockManager
from twinlog.message import perm
from twinlog.message.hashing import jhash
from twinlog.message.model import PutMessage
from twinlog.message.properties import decode_properties
from twinlog.remoting.bodies.common import DataVersion, version_of
from twinlog.remoting.bodies.stats import BrokerStatsItem
from twinlog.runtime.config import BrokerConfig, ConfigError, NamesrvConfig, update_config
from twinlog.runtime.config_format import parse_update
from twinlog.runtime.config_key import live_keys
from twinlog.testing.simdisk import SimDisk

CLUSTER = "CLUSTER\x01c"


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "a-b_c|d", "x" * 127])
def test_good_topics(topic: str) -> None:
    assert names.topic_fault(topic) is None


@pytest.mark.parametrize(
    ("topic", "word"),
    [
        (None, "blank"),
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal"),
        ("../etc", "illegal"),
        ("a/b", "illegal"),
        ("主题", "illegal"),
        ("a\n", "illegal"),
        ("x" * 128, "longer"),
    ],
)
def test_bad_topics_are_named_in_apaches_words(topic: str | None, word: str) -> None:
    assert word in (names.topic_fault(topic) or "")


def test_permission_letters() -> None:
    assert [perm.perm_text(p) for p in (6, 4, 2, 7, 0)] == ["RW-", "R--", "-W-", "RWX", "---"]


def test_data_versions_are_equal_when_both_numbers_are() -> None:
    version = DataVersion(1, 5).following(9)
    assert version == DataVersion(2, 9)
    assert version != DataVersion(1, 9)
    said = {"counter": 7, "timestamp": 8}
    assert version_of(said, version).to_json() == said
    assert version_of(None, version) is version


# Locks


def test_lock_is_the_clients_until_it_unlocks_or_expires() -> None:
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    assert locks.try_lock_batch("g", ["q0", "q1"], client_id="a", now_ms=0) == ["q0", "q1"]
    assert locks.try_lock_batch("g", ["q1", "q2"], client_id="b", now_ms=1) == ["q2"]
    locks.unlock_batch("g", ["q1"], client_id="b")
    assert locks.owner("g", "q1", 1) == "a", "only the owner unlocks"
    locks.unlock_batch("g", ["q1"], client_id="a")
    assert locks.try_lock_batch("g", ["q1"], client_id="b", now_ms=2) == ["q1"]


def test_lock_expires_60_s_after_the_last_renewal() -> None:
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    locks.try_lock_batch("g", ["q"], client_id="a", now_ms=0)
    locks.try_lock_batch("g", ["q"], client_id="a", now_ms=30_000)
    at_limit = 30_000 + LOCK_LIVE_MS_MAX
    assert locks.try_lock_batch("g", ["q"], client_id="b", now_ms=at_limit) == []
    assert locks.try_lock_batch("g", ["q"], client_id="b", now_ms=at_limit + 1) == ["q"]


def test_expired_locks_are_forgotten_and_groups_do_not_share() -> None:
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    locks.try_lock_batch("g", ["q"], client_id="a", now_ms=0)
    assert locks.try_lock_batch("h", ["q"], client_id="b", now_ms=0) == ["q"]
    locks.forget_expired(LOCK_LIVE_MS_MAX + 1)
    assert locks.owner("g", "q", 0) is None


def test_locks_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that do not exist can be locked: names of them cost nothing to make up."""
    monkeypatch.setattr(rebalance_lock, "LOCKS_MAX", 3)
    locks: RebalanceLockManager[str] = RebalanceLockManager()
    assert locks.try_lock_batch("g", ["q0", "q1"], client_id="a", now_ms=0) == ["q0", "q1"]
    assert locks.try_lock_batch("h", ["q0", "q1"], client_id="a", now_ms=0) == ["q0"]
    assert locks.try_lock_batch("g", ["q0", "q2"], client_id="a", now_ms=1) == ["q0"], "renewed"
    locks.unlock_batch("g", ["q1"], client_id="a")
    assert locks.try_lock_batch("h", ["q1"], client_id="a", now_ms=1) == ["q1"]
    locks.forget_expired(LOCK_LIVE_MS_MAX + 2)
    assert len(locks.try_lock_batch("i", ["q0", "q1", "q2"], client_id="b", now_ms=2)) == 3


# Offsets


def test_offsets_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_offset, "PLACES_MAX", 3)
    offsets = ConsumerOffsetManager(ConfigFile(SimDisk(), "/config/offsets.json"))
    assert all(offsets.commit("g", "t", queue_id, 1) for queue_id in range(3))
    assert not offsets.commit("g", "t", 3, 1)
    assert not offsets.commit("h", "t", 0, 1)
    assert set(offsets.table) == {"t@g"}
    assert offsets.commit("g", "t", 1, 9), "what is there goes on"
    offsets.note_own("CID_RMQ_SYS_TRANS", "half", 1)
    offsets.replace({"offsetTable": {"t@g": {"0": 1}}})
    assert offsets.commit("h", "t", 0, 1)


def test_a_group_has_offsets_of_as_many_queues_as_a_topic_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_offset, "TOPIC_QUEUES_MAX", 3)
    offsets = ConsumerOffsetManager(ConfigFile(SimDisk(), "/config/offsets.json"))
    assert [offsets.commit("g", "t", queue_id, 1) for queue_id in range(4)] == [True] * 3 + [False]
    assert offsets.commit("g", "u", 3, 1)


# Clients


def test_a_connection_is_in_so_many_groups_and_leaves_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A heartbeat brings a thousand names, and the next one a thousand others."""
    monkeypatch.setattr(clients, "GROUPS_MAX", 3)
    monkeypatch.setattr(clients, "MEMBERSHIPS_MAX", 4)
    producers = ProducerManager()
    first, second = object(), object()

    def join(connection: object, group: str) -> None:
        producers.register(group, ClientChannelInfo(connection, "c", "JAVA", 407), 0)

    for number in (0, 1, 2, 0):
        join(first, f"g{number}")
    with pytest.raises(BrokerError, match="at most 3 groups"):
        join(first, "g3")
    join(second, "g0")
    with pytest.raises(BrokerError, match="all clients together in 4"):
        join(second, "g1")
    assert set(producers.groups) == {"g0", "g1", "g2"}
    producers.connection_closed(first)
    assert set(producers.groups) == {"g0"}
    join(second, "g1")
    producers.unregister("g1", second)
    producers.connection_closed(second)
    assert not producers.groups


# Properties of a send


def test_scan_takes_wait_out_and_puts_cluster_in() -> None:
    text = "KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02WAIT\x01true\x02TAGS\x01TagA"
    stored, code, keys, must_wait, rare = scan_properties(text, CLUSTER)
    assert stored == b"KEYS\x01k1 k2\x02UNIQ_KEY\x01U\x02TAGS\x01TagA\x02CLUSTER\x01c"
    assert (code, keys) == (jhash("TagA"), ("U", "k1", "k2"))
    assert must_wait
    assert rare is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b\x02\x02\x01x\x02y\x01\x02z", {"a": "b"}),
        ("a\x01b\x01c", {"a": "b\x01c"}),
        ("a\x011\x02a\x012", {"a": "2"}),
        ("CLUSTER\x01old", {}),
    ],
)
def test_scan_drops_what_java_drops(text: str, expected: dict[str, str]) -> None:
    stored = scan_properties(text, CLUSTER)[0]
    assert decode_properties(stored) == {**expected, "CLUSTER": "c"}


@pytest.mark.parametrize(
    ("value", "must_wait"), [("true", True), ("TRUE", True), ("false", False), ("1", False)]
)
def test_scan_reads_wait_as_java_does(value: str, must_wait: bool) -> None:
    assert scan_properties(f"WAIT\x01{value}", CLUSTER)[3] is must_wait


@pytest.mark.parametrize("text", ["DELAY\x013", "TRAN_MSG\x01true", "REAL_TOPIC\x01T"])
def test_scan_tells_what_goes_elsewhere(text: str) -> None:
    name, value = text.split("\x01")
    assert scan_properties(f"{name}\x01other\x02{text}", CLUSTER)[4] == {name: value}
    assert scan_properties("MY_" + text, CLUSTER)[4] is None


def test_delayed_message_is_parked_with_its_destination() -> None:
    message = PutMessage("T", 3, b"b")
    parked = delayed(message, {"DELAY": "99", "KEYS": "k"}, 99, {1: 1000, 2: 5000})
    assert (parked.topic, parked.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert decode_properties(parked.properties) == {
        "DELAY": "2", "KEYS": "k", "REAL_TOPIC": "T", "REAL_QID": "3",
    }  # fmt: skip


# Subscriptions


@pytest.mark.parametrize("text", [None, "", "*"])
def test_everything_is_subscribed_by_a_star(text: str | None) -> None:
    data = build_subscription("T", text)
    assert data.is_all
    assert data.sub_string == "*"


def test_tags_are_split_and_hashed() -> None:
    data = build_subscription("T", " a || b||a|| ")
    assert data.tags_set == ("a", "b")
    assert data.code_set == {jhash("a"), jhash("b")}


def test_nothing_between_the_bars_is_an_error() -> None:
    with pytest.raises(SubscriptionError):
        build_subscription("T", "||")
    with pytest.raises(SubscriptionError):
        build_subscription("T", "", "SQL92")


def test_heartbeat_of_the_cpp_client_is_read_and_its_hashes_are_not_believed() -> None:
    data = subscription_from_json({"topic": "T", "subString": "a||b", "subVersion": "17",
                                   "codeSet": [1], "tagsSet": ["a", "b"]})  # fmt: skip
    assert data.sub_version == 17
    assert data.code_set == {jhash("a"), jhash("b")}


# Statistics


def test_statistics_over_the_last_minute() -> None:
    stats = BrokerStatsManager()
    item = stats.item(TOPIC_PUT_NUMS, "T")
    for second in range(0, 70, 10):
        stats.sample(second * 1000)
        item.add(20)
    minute = item.told().stats_minute
    assert minute == BrokerStatsItem(avgpt=20.0, sum=120, tps=2.0)
    assert stats.find(TOPIC_PUT_NUMS, "other") is None
    stats.topic_deleted("T")
    assert stats.find(TOPIC_PUT_NUMS, "T") is None


def test_statistics_hold_what_came_before_the_first_sample() -> None:
    stats = BrokerStatsManager()
    stats.item(TOPIC_PUT_NUMS, "T").add(8)
    stats.sample(1_000_000)
    shown = stats.item(TOPIC_PUT_NUMS, "T").told()
    assert shown.stats_minute == BrokerStatsItem(avgpt=8.0, sum=8, tps=0.8)
    assert shown.stats_hour == BrokerStatsItem(avgpt=8.0, sum=8, tps=8 / 600)
    assert shown.stats_day == BrokerStatsItem(avgpt=8.0, sum=8, tps=8 / 3600)
    stats.item(TOPIC_PUT_NUMS, "T").add(1)
    stats.sample(1_010_000)
    assert stats.item(TOPIC_PUT_NUMS, "T").told().stats_minute.sum == 9


def test_rates_are_empty_until_their_window_is_full() -> None:
    stats = StoreStats(0)
    for second in range(12):
        stats.sample(second * 1000)
        stats.put_times += 5
    table = stats.table(11_000)
    assert table["putTps"] == "5.0  "
    assert table["getTotalTps"] == "0.0 0.0 0.0"
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 11 seconds ]"


def test_put_times_are_counted_by_apaches_buckets() -> None:
    stats = StoreStats(0)
    stats.put_done(99, 0)
    stats.put_done(1, 700)
    assert stats.table(0)["putMessageDistributeTime"].startswith("[<=0ms]:99 [0~10ms]:0 ")
    assert "[500ms~1s]:1 " in stats.table(0)["putMessageDistributeTime"]
    assert stats.table(0)["putLatency99"] == "0.00"
    assert stats.table(0)["putLatency999"] == "1000.00"
    assert stats.put_time_max_ms == 700


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 1536, 5 << 30)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 GiB",
    ]  # fmt: skip


def test_configuration_file_keeps_its_other_lines() -> None:
    text = "# mine\nbrokerName=b\nfileReservedTime=1\nfileReservedTime=2\n"
    changed = with_values(text, {"fileReservedTime": "48", "slaveTimeout": "9"})
    assert changed == "# mine\nbrokerName=b\nfileReservedTime=48\nslaveTimeout=9\n"


@pytest.mark.parametrize("config", [BrokerConfig, NamesrvConfig])
def test_no_request_writes_a_second_line_into_the_configuration(
    config: type[BrokerConfig | NamesrvConfig],
) -> None:
    """An update is written as it was read: no key that may be updated takes any text."""
    for key in live_keys(config):
        for text in (r"04\naclEnable=false", r"1\raclEnable=false", r"a\u000aaclEnable=false"):
            with pytest.raises(ConfigError):
                update_config(config(), parse_update(f"{key}={text}".encode()))
