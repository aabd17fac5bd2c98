"""A slave becomes the master: with `twinlog ha promote`, and by hand as with RocketMQ."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Result, twinlog
from support.ha_load import ask, ha_status, send_once
from support.pair_story import CONFIG, Pair, in_thread, running_pair, stored_bodies, until
from support.processes import ProcessGroup, free_port, process_group, wait_until
from support.twinlog_servers import TwinlogBroker
from twinlog.client import Message, Producer, SendOutcome, SendReceipt
from twinlog.remoting import fastjson
from twinlog.remoting.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.timeout(240)


def committed(broker: TwinlogBroker, group: str = "g", topic: str = "load") -> str | None:
    """The offset of queue 0, None when there is none."""
    header = {"consumerGroup": group, "topic": topic, "queueId": 0}
    return ask(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header).ext().get("offset")


def commit(broker: TwinlogBroker, offset: int, group: str = "g", topic: str = "load") -> None:
    header = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    assert ask(broker.address, RequestCode.UPDATE_CONSUMER_OFFSET, header).code == 0


def send_many(broker: TwinlogBroker, count: int, prefix: bytes = b"m") -> list[bytes]:
    bodies = [b"%s%04d" % (prefix, number) for number in range(count)]
    assert [send_once(broker.address, body).code for body in bodies] == [0] * count
    return bodies


def kill_with_offsets_only_in_the_log(pair: Pair) -> None:
    send_many(pair.master, 50)
    commit(pair.master, 40)
    wait_until(lambda: committed(pair.slave) == "40", "the slave knows the offset")
    pair.slave.kill()
    pair.master.kill()
    saved = pair.slave.store / "config" / "consumerOffset.json"
    assert not saved.exists() or b"load@g" not in saved.read_bytes()


def test_a_killed_slave_that_is_made_master_by_hand_has_the_metadata_of_its_log(
    tmp_path: Path,
) -> None:
    with running_pair(tmp_path, flushConsumerOffsetInterval=3_600_000) as pair:
        kill_with_offsets_only_in_the_log(pair)
        promoted = pair.restart(pair.slave, brokerRole="SYNC_MASTER", brokerId=0)
        assert committed(promoted) == "40"
        # Also when it dies again before its tables are saved for the first time.
        promoted.kill()
        assert committed(pair.restart(promoted)) == "40"


class Trio(Pair):
    """A master with two slaves."""

    def __init__(self, directory: Path, group: ProcessGroup, **config: object) -> None:
        super().__init__(directory, group, **config)
        slave = {"brokerRole": "SLAVE", "brokerId": 2}
        self.second = self._start(directory / "c", **{**CONFIG, **config, **slave})
        wait_until(lambda: replica_count(self.master) == 2, "both slaves are in sync")
        wait_until(self._all_heard, "both slaves know of each other")

    def _all_heard(self) -> bool:
        return all(facts(slave)["replicaIds"] == [1, 2] for slave in (self.slave, self.second))


@contextmanager
def running_trio(directory: Path, **config: object) -> Iterator[Trio]:
    with process_group() as group:
        yield Trio(directory, group, **config)


def replica_count(broker: TwinlogBroker) -> int:
    replicas = ha_status(broker.address)["haConnectionInfo"]
    return sum(r["twinlog"]["state"] == "TRANSFER" and r["diff"] == 0 for r in replicas)


def facts(broker: TwinlogBroker) -> dict[str, Any]:
    answer = ask(broker.address, RequestCode.TWINLOG_REPLICA)
    assert answer.code == 0, answer.remark
    return dict(fastjson.loads(answer.body))


def promote(pair: Pair, *options: object) -> Result:
    return twinlog("ha", "promote", "broker-a", "-n", pair.name_server, *options)


def left_by_master(pair: Pair) -> None:
    """The slaves have noticed that their master is gone, and so has the name server."""
    wait_until(lambda: not facts(pair.slave)["isLinked"], "the slave has lost its master")
    wait_until(lambda: 0 not in registered(pair), "the name server has lost the master")


def registered(pair: Pair) -> dict[int, str]:
    answer = ask(pair.name_server, RequestCode.GET_BROKER_CLUSTER_INFO)
    table = fastjson.loads(answer.body)["brokerAddrTable"]
    addresses = table.get("broker-a", {}).get("brokerAddrs", {})
    return {int(number): address for number, address in addresses.items()}


def bodies_of(broker: TwinlogBroker) -> set[bytes]:
    return set(stored_bodies(broker.store, "load"))


def role_in_file(broker: TwinlogBroker) -> tuple[str, str]:
    text = (broker.directory / "broker.conf").read_text()
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return values["brokerRole"], values["brokerId"]


def test_the_slave_of_a_lost_master_is_promoted_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    with running_pair(tmp_path, flushConsumerOffsetInterval=3_600_000) as pair:
        wait_until(lambda: facts(pair.slave)["masterRole"], "the slave knows its master's role")
        acknowledged = send_many(pair.master, 50)
        commit(pair.master, 40)
        wait_until(lambda: committed(pair.slave) == "40", "the slave knows the offset")
        pair.master.kill()
        left_by_master(pair)
        dry = promote(pair, "--dry-run", "-o", "json").ok().json
        assert (dry["is_safe"], dry["lost_messages"]) == (True, 0)
        assert dry["target"] == pair.slave.address
        assert facts(pair.slave)["brokerRole"] == "SLAVE", "a dry run changes nothing"
        done = promote(pair, "--yes", "-o", "json").ok().json
        assert "is the master of broker-a now" in done["sentence"]
        assert registered(pair) == {0: pair.slave.address}
        assert role_in_file(pair.slave) == ("SYNC_MASTER", "0")
        assert set(acknowledged) <= bodies_of(pair.slave)
        assert committed(pair.slave) == "40"
        # It stays the master, whoever kills it.
        pair.slave.kill()
        again = TwinlogBroker.start_as_it_is(pair.slave)
        pair.group.add(again)
        assert facts(again)["brokerRole"] == "SYNC_MASTER"
        wait_until(lambda: registered(pair) == {0: again.address}, "the route leads to it again")
        already = promote(pair, "--to", again.address).ok()
        assert "already" in already.out


def test_the_shorter_of_two_slaves_is_refused_and_named_with_what_it_lacks(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        send_many(trio.master, 1, b"first")
        assert trio.slave.stop() == 0
        acknowledged = send_many(trio.master, 10, b"acked")
        trio.master.kill()
        # The one that was down for maintenance comes back, and is shorter.
        trio.slave = trio.restart(trio.slave)
        wait_until(lambda: set(registered(trio)) == {1, 2}, "both slaves are registered")
        refused = promote(trio, "--to", 1, "--yes", "-o", "json")
        assert refused.code == 1, refused.err
        assert f"{trio.second.address} (brokerId 2) has" in refused.err
        assert "loses 10 messages (" in refused.err
        missing = facts(trio.second)["logEnd"] - facts(trio.slave)["logEnd"]
        assert refused.json["lost_messages"] == 10
        assert refused.json["lost_bytes"] == missing > 0
        assert promote(trio, "--to", 1, "--force", "broker-b").code == 2
        # Without a name the longer one is chosen, and the other follows it.
        done = promote(trio, "--yes", "-o", "json").ok().json
        assert done["target"] == trio.second.address
        wait_until(lambda: replica_count(trio.second) == 1, "the other slave follows")
        assert set(acknowledged) <= bodies_of(trio.second)
        assert set(acknowledged) <= bodies_of(trio.slave)


def test_made_master_by_hand_the_shorter_of_two_slaves_does_not_start(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        send_many(trio.master, 1, b"first")
        assert trio.slave.stop() == 0
        acknowledged = send_many(trio.master, 10, b"acked")
        trio.master.kill()
        left_by_second(trio)
        values = {**trio.slave.config, "brokerRole": "SYNC_MASTER", "brokerId": 0}
        by_hand = TwinlogBroker(trio.slave.directory, values)
        trio.group.add(by_hand)
        assert by_hand.wait() == 1, by_hand.tail()
        assert f"the replica {trio.second.address} has" in by_hand.output()
        assert set(acknowledged) <= bodies_of(trio.second)
        # As a slave it may be promoted anyway, by who types the name and gives them up.
        trio.slave = trio.restart(trio.slave)
        wait_until(lambda: set(registered(trio)) == {1, 2}, "both slaves are registered")
        forced = promote(trio, "--to", 1, "--force", "broker-a", "-o", "json").ok().json
        assert forced["lost_messages"] == 10
        assert facts(trio.slave)["brokerRole"] == "SYNC_MASTER"


def test_of_diverged_logs_the_later_promotion_is_chosen_not_the_longer_log(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        send_many(trio.master, 3, b"first")
        # The master goes on alone for a while: nothing of it is acknowledged, all of it is longer.
        assert trio.slave.stop() == trio.second.stop() == 0
        alone = [send_once(trio.master.address, b"alone%03d" % n * 400).code for n in range(4)]
        assert alone == [11] * 4
        trio.master.kill()
        trio.slave, trio.second = trio.restart(trio.slave), trio.restart(trio.second)
        wait_until(lambda: set(registered(trio)) == {1, 2}, "both slaves are registered")
        promote(trio, "--yes", "--to", 1).ok()
        wait_until(lambda: replica_count(trio.slave) == 1, "the other slave follows")
        acknowledged = send_many(trio.slave, 10, b"acked")
        newest = facts(trio.slave)["promotion"]
        wait_until(lambda: facts(trio.second)["promotion"] == newest, "it knows the promotion")
        trio.slave.kill()
        left_by_second(trio)
        old = trio.restart(trio.master, brokerRole="SLAVE", brokerId=3)
        wait_until(lambda: set(registered(trio)) == {2, 3}, "two copies are registered")
        assert facts(old)["logEnd"] > facts(trio.second)["logEnd"]
        dry = promote(trio, "--dry-run", "-o", "json")
        assert dry.json["target"] == trio.second.address, dry.err
        assert "diverged" in dry.err
        assert dry.json["lost_messages"] is None
        # Who asks for the longer one is told which one it is.
        wrong = promote(trio, "--to", 3, "--yes")
        assert wrong.code == 1
        later = f"Promote {trio.second.address} (brokerId 2): it has followed the later promotion"
        assert later in wrong.err
        done = promote(trio, "--force", "broker-a", "--yes", "-o", "json").ok().json
        assert done["target"] == trio.second.address
        wait_until(lambda: replica_count(trio.second) == 1, "the old master follows")
        assert set(acknowledged) <= bodies_of(trio.second)
        assert set(acknowledged) <= bodies_of(old)


def left_by_second(trio: Trio) -> None:
    wait_until(lambda: not facts(trio.second)["isLinked"], "the other slave lost its master")
    wait_until(lambda: 0 not in registered(trio), "the name server lost the master")


def test_a_slave_that_does_not_answer_may_have_more_and_is_not_passed_over(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        send_many(trio.master, 1, b"first")
        assert trio.slave.stop() == 0
        send_many(trio.master, 10, b"acked")
        trio.master.kill()
        trio.second.kill()  # It alone has them.
        trio.slave = trio.restart(trio.slave)
        wait_until(lambda: registered(trio) == {1: trio.slave.address}, "one slave is registered")
        refused = promote(trio, "--yes")
        assert refused.code == 1
        assert "brokerId 2" in refused.err
        assert facts(trio.slave)["brokerRole"] == "SLAVE"


def test_no_slave_is_promoted_beside_a_living_master(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        wait_until(lambda: facts(pair.slave)["masterRole"], "the slave knows its master's role")
        for force in ((), ("--force", "broker-a")):
            refused = promote(pair, "--yes", *force)
            assert refused.code == 1
            assert f"the master {pair.master.address} (brokerId 0) lives" in refused.err
        header = {"brokerName": "broker-a", "brokerRole": "SYNC_MASTER", "logEnd": 0}
        direct = ask(pair.slave.address, RequestCode.TWINLOG_PROMOTE, header)
        assert direct.code == ResponseCode.NO_PERMISSION
        assert facts(pair.slave)["brokerRole"] == "SLAVE"
        # Nor by hand.
        assert pair.slave.stop() == 0
        values = {**pair.slave.config, "brokerRole": "SYNC_MASTER", "brokerId": 0}
        by_hand = TwinlogBroker(pair.slave.directory, values)
        pair.group.add(by_hand)
        assert by_hand.wait() == 1, by_hand.tail()
        assert f"the master of broker-a is alive at {pair.master.address}" in by_hand.output()


def test_an_old_master_does_not_become_a_second_one(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        wait_until(lambda: facts(pair.slave)["masterRole"], "the slave knows its master's role")
        send_many(pair.master, 5)
        pair.master.kill()
        left_by_master(pair)
        promote(pair, "--yes").ok()
        # It comes back as it was, as by systemd.
        old = TwinlogBroker.start_as_it_is(pair.master, wait=False)
        pair.group.add(old)
        assert old.wait() == 1, old.tail()
        assert f"{pair.slave.address} became the master of broker-a" in old.output()
        assert registered(pair)[0] == pair.slave.address
        # Without a name server it cannot know at its start: it is told.
        blind = TwinlogBroker(pair.master.directory, {**old.config, "namesrvAddr": ""})
        pair.group.add(blind)
        assert blind.wait() == 1, blind.tail()
        assert "twinlog broker ready" in blind.output()
        assert f"{pair.slave.address} became the master of broker-a" in blind.output()
        # As a slave it follows, and has what the new master has.
        slave = pair.restart(pair.master, brokerRole="SLAVE", brokerId=1)
        wait_until(lambda: replica_count(pair.slave) == 1, "the old master follows")
        assert facts(slave)["promotion"] >= 0


def test_an_old_master_does_not_take_over_again_while_its_successor_is_away(
    tmp_path: Path,
) -> None:
    """A slave that followed the successor is there, and knows: what the old one took from now on
    would be lost when the successor is back."""
    with running_trio(tmp_path) as trio:
        send_many(trio.master, 5)
        trio.master.kill()
        left_by_master(trio)
        wait_until(lambda: not facts(trio.second)["isLinked"], "so has the other one")
        promote(trio, "--to", 1, "--yes").ok()
        follows = trio.slave.address
        wait_until(lambda: facts(trio.second)["masterAddress"] == follows, "the other one follows")
        trio.slave.kill()
        wait_until(lambda: 0 not in registered(trio), "the name server has lost the successor")
        old = TwinlogBroker.start_as_it_is(trio.master, wait=False)
        trio.group.add(old)
        assert old.wait() == 1, old.tail()
        assert f"{trio.second.address} has followed a master of broker-a that was" in old.output()


def become_master(broker: TwinlogBroker) -> None:
    """What `twinlog ha promote` sends at its end."""
    end = facts(broker)["logEnd"]
    header = {"brokerName": "broker-a", "brokerRole": "SYNC_MASTER", "logEnd": end}
    assert ask(broker.address, RequestCode.TWINLOG_PROMOTE, header).code == 0


def roles_of(*brokers: TwinlogBroker) -> list[str]:
    """Sorted; empty while one of them does not answer."""
    try:
        return sorted(facts(broker)["brokerRole"] for broker in brokers)
    except (OSError, AssertionError):
        return []


def test_the_loser_of_a_race_of_promotions_is_a_slave_again(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        acknowledged = send_many(trio.master, 5)
        trio.master.kill()
        left_by_master(trio)
        left_by_second(trio)
        become_master(trio.slave)
        become_master(trio.second)
        both = (trio.slave, trio.second)
        wait_until(lambda: roles_of(*both) == ["SLAVE", "SYNC_MASTER"], "one of them has won")
        winner, loser = sorted(both, key=lambda b: facts(b)["brokerRole"], reverse=True)
        wait_until(lambda: replica_count(winner) == 1, "the loser follows the winner")
        assert winner.popen.poll() is loser.popen.poll() is None
        assert role_in_file(loser) == ("SLAVE", "1" if loser is trio.slave else "2")
        assert set(acknowledged) <= bodies_of(loser)
        wait_until(lambda: registered(trio)[0] == winner.address, "the route leads to the winner")
        assert send_once(winner.address, b"more").code == 0


@contextmanager
def two_promoted(
    tmp_path: Path, **config: Any
) -> Iterator[tuple[Trio, TwinlogBroker, TwinlogBroker]]:
    """Neither can see the other at its start, so both serve, the later one second, until a name
    server has both, which sleeps when this begins."""
    with running_trio(tmp_path, **config) as trio:
        acknowledged = send_many(trio.master, 5)
        trio.master.kill()
        left_by_master(trio)
        left_by_second(trio)
        trio.namesrv.suspend()
        become_master(trio.slave)
        become_master(trio.second)
        both = (trio.slave, trio.second)
        wait_until(lambda: roles_of(*both) == ["SYNC_MASTER"] * 2, "both are masters")
        earlier, later = sorted(both, key=lambda broker: facts(broker)["promotion"])
        yield trio, earlier, later
        assert set(acknowledged) <= bodies_of(earlier) & bodies_of(later)


def test_two_that_were_promoted_without_a_name_server_end_as_a_pair(tmp_path: Path) -> None:
    with two_promoted(tmp_path) as (trio, earlier, later):
        number = "1" if earlier is trio.slave else "2"
        trio.namesrv.resume()
        both = (earlier, later)
        wait_until(lambda: roles_of(*both) == ["SLAVE", "SYNC_MASTER"], "one of them has won")
        assert facts(later)["brokerRole"] == "SYNC_MASTER"
        assert role_in_file(earlier) == ("SLAVE", number)
        wait_until(lambda: replica_count(later) == 1, "the loser follows the winner")
        wait_until(lambda: registered(trio).get(0) == later.address, "the route leads to it")
        assert send_once(later.address, b"more").code == 0


def test_of_two_masters_the_one_that_was_sent_something_waits_for_a_person(tmp_path: Path) -> None:
    """Its tail would be cut: only an operator may say so."""
    with two_promoted(tmp_path) as (trio, earlier, later):
        send_once(earlier.address, b"only here")
        send_once(later.address, b"in its place")
        trio.namesrv.resume()
        assert earlier.wait() == 1, earlier.tail()
        assert "--as-slave" in earlier.output()
        back = TwinlogBroker.start_as_it_is(earlier, arguments=["--as-slave"])
        trio.group.add(back)
        wait_until(lambda: replica_count(later) == 1, "the loser follows the winner")
        wait_until(lambda: b"in its place" in bodies_of(earlier), "the tail was replaced")
        assert b"only here" not in bodies_of(earlier) | bodies_of(later)


def test_of_two_masters_the_earlier_one_follows_by_itself_when_it_is_told_to(
    tmp_path: Path,
) -> None:
    with two_promoted(tmp_path, twinlogReturnAsSlave="true") as (trio, earlier, later):
        send_once(earlier.address, b"only here")
        send_once(later.address, b"in its place")
        trio.namesrv.resume()
        wait_until(lambda: replica_count(later) == 1, "the loser follows the winner")
        assert facts(earlier)["brokerRole"] == "SLAVE"
        wait_until(lambda: b"in its place" in bodies_of(earlier), "the tail was replaced")
        assert b"only here" not in bodies_of(earlier) | bodies_of(later)


def test_a_replaced_master_returns_as_a_slave_by_the_command_that_it_names(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        acknowledged = send_many(trio.master, 5)
        trio.master.kill()
        left_by_master(trio)
        left_by_second(trio)
        promote(trio, "--yes", "--to", 1).ok()
        old = TwinlogBroker.start_as_it_is(trio.master, wait=False)
        trio.group.add(old)
        assert old.wait() == 1, old.tail()
        command = f"twinlog broker -c {trio.master.directory / 'broker.conf'} --as-slave"
        assert command in old.output()
        back = TwinlogBroker.start_as_it_is(trio.master, arguments=["--as-slave"])
        trio.group.add(back)
        wait_until(lambda: replica_count(trio.slave) == 2, "both slaves follow")
        # The new master is 0 now, and the other slave 2.
        assert role_in_file(back) == ("SLAVE", "1")
        assert set(acknowledged) <= bodies_of(back)
        assert send_once(trio.slave.address, b"more").code == 0


def test_a_slave_whose_disk_was_replaced_is_not_promoted_as_if_it_had_everything(
    tmp_path: Path,
) -> None:
    with running_pair(tmp_path) as pair:
        acknowledged = send_many(pair.master, 20)
        assert pair.slave.stop() == 0
        pair.master.kill()
        shutil.rmtree(pair.slave.store)
        pair.slave = pair.restart(pair.slave)
        wait_until(lambda: registered(pair) == {1: pair.slave.address}, "it is registered")
        refused = promote(pair, "--yes", "--role", "SYNC_MASTER")
        assert refused.code == 1
        assert "has not been connected to a master" in refused.err
        # The master, which has everything, may come back.
        pair.master = TwinlogBroker.start_as_it_is(pair.master)
        pair.group.add(pair.master)
        assert set(acknowledged) <= bodies_of(pair.master)


def test_an_old_master_that_has_not_followed_the_new_one_does_not_replace_it(
    tmp_path: Path,
) -> None:
    with running_trio(tmp_path) as trio:
        # It was a slave once: what it heard then says nothing of what its successor did.
        known = trio.slave.store / "twinlog" / "group.json"
        (trio.master.store / "twinlog" / "group.json").write_bytes(known.read_bytes())
        send_many(trio.master, 5, b"first")
        trio.master.kill()
        left_by_master(trio)
        left_by_second(trio)
        promote(trio, "--yes", "--to", 1).ok()
        wait_until(lambda: replica_count(trio.slave) == 1, "the other slave follows")
        acknowledged = send_many(trio.slave, 10, b"acked")
        trio.slave.kill()
        trio.second.kill()
        old = trio.restart(trio.master, brokerRole="SLAVE", brokerId=1)
        for _ in range(2):  # Also not after another start.
            wait_until(lambda: set(registered(trio)) == {1}, "it is registered")
            refused = promote(trio, "--yes", "--role", "SYNC_MASTER")
            assert refused.code == 1, refused.out
            assert "has not been connected to a master" in refused.err
            assert old.stop() == 0
            old = trio.restart(old)
        assert set(acknowledged) <= bodies_of(trio.slave)


def test_a_promotion_that_was_killed_is_void_when_the_others_went_on(tmp_path: Path) -> None:
    with running_trio(tmp_path) as trio:
        send_many(trio.master, 5, b"first")
        wait_until(lambda: facts(trio.second)["masterRole"], "the role is known")
        trio.master.kill()
        left_by_master(trio)
        left_by_second(trio)
        end = facts(trio.slave)["logEnd"]
        header = {"brokerName": "broker-a", "brokerRole": "SYNC_MASTER", "logEnd": end}
        assert ask(trio.slave.address, RequestCode.TWINLOG_PROMOTE, header).code == 0
        trio.slave.kill()
        assert role_in_file(trio.slave) == ("SYNC_MASTER", "0")
        # The operator takes the old master again, and the other slave follows that.
        trio.master = TwinlogBroker.start_as_it_is(trio.master)
        trio.group.add(trio.master)
        wait_until(lambda: replica_count(trio.master) == 1, "the other slave follows")
        acknowledged = send_many(trio.master, 10, b"acked")
        trio.master.kill()
        left_by_second(trio)
        # It takes its promotion back, and is the slave that it was.
        late = TwinlogBroker.start_as_it_is(trio.slave)
        trio.group.add(late)
        assert f"the replica {trio.second.address} has" in late.output()
        assert facts(late)["brokerRole"] == "SLAVE"
        assert role_in_file(late) == ("SLAVE", "1")
        assert set(acknowledged) <= bodies_of(trio.second)


def test_a_promotion_that_cannot_be_saved_leaves_a_slave(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        wait_until(lambda: facts(pair.slave)["masterRole"], "the slave knows its master's role")
        pair.master.kill()
        left_by_master(pair)
        in_the_way = pair.slave.store / "twinlog" / "identity.json.tmp"
        in_the_way.mkdir()
        refused = promote(pair, "--yes")
        assert refused.code == 1
        assert "nothing was changed" in refused.err
        assert role_in_file(pair.slave) == ("SLAVE", "1")
        in_the_way.rmdir()
        promote(pair, "--yes").ok()


async def send_over_a_switch(pair: Pair) -> list[SendReceipt]:
    """The name server starts again while no master lives: it knows brokers, and no topic."""
    options: dict[str, Any] = {"name_server": pair.name_server, "send_timeout_ms": 60_000}
    async with (
        Producer("once", idempotent=True, producer_id="p", **options) as once,
        Producer("plain", retry_count=0, **options) as plain,
    ):
        for producer in (once, plain):
            await producer.send(Message("load", b"before", sharding_key="k"))
        pair.master.kill()
        await in_thread(left_by_master, pair)
        pair.namesrv.kill()
        pair.namesrv = pair.namesrv.restart()
        pair.group.add(pair.namesrv)
        await until(lambda: set(registered(pair)) == {1}, "the slave is registered")
        sends = [
            asyncio.create_task(producer.send(Message("load", b"after", sharding_key="k")))
            for producer in (once, plain)
        ]
        promoted = await in_thread(promote, pair, "--yes")
        promoted.ok()
        return await asyncio.gather(*sends)


def test_sends_wait_for_the_new_master_though_the_name_server_forgot_the_topic(
    tmp_path: Path,
) -> None:
    with running_pair(tmp_path) as pair:
        wait_until(lambda: facts(pair.slave)["masterRole"], "the slave knows its master's role")
        receipts = asyncio.run(send_over_a_switch(pair))
        assert [receipt.outcome for receipt in receipts] == [SendOutcome.STORED] * 2
        assert stored_bodies(pair.slave.store, "load")[b"after"] == 2


def test_names_that_do_not_exist_and_brokers_that_do_not_answer(tmp_path: Path) -> None:
    with running_pair(tmp_path) as pair:
        server = ("-n", pair.name_server)
        assert twinlog("ha", "promote", "broker-z", *server).code == 3
        assert promote(pair, "--to", 7).code == 3
        assert twinlog("ha", "promote", "broker-a", "-n", f"127.0.0.1:{free_port()}").code == 4
        assert twinlog("ha", "promote").code == 2
