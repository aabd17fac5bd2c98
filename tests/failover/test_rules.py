"""The rules of controlled groups (R1 to R12) where brokers carry them out: each has a test.

The pure cores have theirs in tests/unit/ha and tests/unit/controller.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.local_brokers import until
from support.local_group import GROUP, LocalGroup, local_group
from twinlog.broker.group.role_change import RoleChange
from twinlog.broker.server import Broker
from twinlog.ha.twin.wire import ErrorCode, Hello
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand

TOPIC, QUEUE = "load", 0


async def send(group: LocalGroup, broker: Broker, body: bytes = b"body") -> tuple[int, str]:
    answer = await group.brokers.send(broker, body)
    return answer.code, answer.remark or ""


def visible(broker: Broker) -> int:
    return broker.store.max_offset_in_queue(TOPIC, QUEUE)


def placed(broker: Broker) -> int:
    queue = broker.store.queue_table.get(TOPIC, QUEUE)
    return 0 if queue is None else queue.next_offset


def stored_epoch(broker: Broker) -> int:
    path = Path(broker.config.store_path_root_dir) / "twinlog" / "group.json"
    return int(msgspec.json.decode(path.read_bytes())["knownEpoch"]) if path.exists() else 0


async def test_r1_nothing_is_confirmed_without_a_connection_of_each_member(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await group.cut_link(second)
        code, remark = await send(group, first)
        assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "replica 2 is not connected" in remark


async def test_r2_a_set_is_stored_before_it_is_counted_by(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert first.replicas is not None
        await group.brokers.end(second)
        await group.in_sync(1)
        path = Path(first.config.store_path_root_dir) / "twinlog" / "group.json"
        stored = msgspec.json.decode(path.read_bytes())["record"]
        assert stored["syncStateSet"] == [1]
        assert stored["syncStateSetEpoch"] == group.record.sync_state_set_epoch
        assert await send(group, first) == (ResponseCode.SUCCESS, ""), "alone, and it says so"


async def test_r3_a_replica_is_admitted_for_the_process_that_was_seen(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        _, second = await group.pair()
        assert second.replicas is not None
        assert group.record.admitted[2] == second.replicas.incarnation


async def test_r3_the_tables_are_in_the_log_once_for_those_who_join(tmp_path: Path) -> None:
    """A promotion writes them, and says where: admissions need no second copy."""
    async with local_group(tmp_path) as group:
        first = await group.start("first")
        await until(lambda: group.is_known and first.role.is_master)
        written = first.pair.writer.record_count
        assert written
        await group.start("second")
        await group.start("third")
        await group.in_sync(3)
        assert first.pair.writer.record_count == written


async def test_r4_an_epoch_is_stored_before_it_is_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    promote = RoleChange.promote

    async def watched(self: RoleChange, state, *arguments):  # type: ignore[no-untyped-def]
        seen.append((state.epoch, stored_epoch(self._broker)))
        return await promote(self, state, *arguments)

    monkeypatch.setattr(RoleChange, "promote", watched)
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        await group.brokers.end(first)
        await until(lambda: second.role.is_master)
        assert [epoch for epoch, _ in seen] == [1, 2]
        assert all(epoch == stored for epoch, stored in seen)


async def test_r4_older_epochs_are_refused_and_a_newer_one_ends_a_master(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert first.ha.group is not None
        hello = Hello(
            version=3, version_min=1, cluster="DefaultCluster", group="broker-a", replica_id=2,
            replica_uid=second.identity.replica_uid, store_id="", segment_size=1, log_min=0,
            log_end=0, epoch=0,
        )  # fmt: skip
        refusal = first.ha.group.hello_refusal(hello)
        assert refusal is not None
        assert refusal[0] is ErrorCode.STALE_EPOCH
        assert first.role.is_master
        stranger = msgspec.structs.replace(hello, epoch=1, replica_id=7)
        refusal = first.ha.group.hello_refusal(stranger)
        assert refusal is not None
        assert refusal[0] is ErrorCode.NOT_IN_GROUP
        refusal = first.ha.group.hello_refusal(msgspec.structs.replace(hello, epoch=9))
        assert refusal is not None
        assert refusal[0] is ErrorCode.STALE_EPOCH
        assert not first.role.is_master, "at once"
        assert not first.store.is_master
        await until(lambda: stored_epoch(first) == 9)
        # R12: the record is older than the group; the controller decides nothing by it.
        await until(lambda: first.replicas is not None and first.replicas.frozen)


async def test_r5_without_a_lease_nothing_is_answered_early(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(broker_role="ASYNC_MASTER")
        authority = first.ha.group.authority if first.ha.group is not None else None
        assert authority is not None
        assert first.ha.may_answer_early()
        await group.cut_link(second)
        await until(lambda: not first.ha.may_answer_early())
        assert (await send(group, first))[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_r6_a_lease_counts_from_the_moment_the_heartbeat_left(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first = await group.start("first", broker_role="ASYNC_MASTER")
        await until(lambda: first.ha.may_answer_early())
        assert first.ha.group is not None
        assert first.ha.group.authority is not None
        left_ms = first.ha.group.authority.lease_until_ms - first.clock.boot_ms()
        assert left_ms < 2_000, "the way there and back is taken off"


async def test_r7_only_members_are_elected(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first = await group.start("first")
        await until(lambda: first.role.is_master)
        second = await group.start("second", async_learner=True)
        await until(lambda: second.ha.is_linked)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await until(lambda: second.store.commit_log.max_offset == first.store.commit_log.max_offset)
        await group.brokers.end(first)
        await until(lambda: not second.ha.is_linked)
        await until(lambda: any(
            event["event"] == "not-elected" for event in group.controller.events.select()
        ))  # fmt: skip
        assert not second.role.is_master
        assert group.record.sync_state_set == {1}


async def test_r8_a_store_in_doubt_leaves_the_set_until_it_is_admitted_again(
    tmp_path: Path,
) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await group.brokers.end(second)
        await group.in_sync(1)
        saved = Path(second.config.store_path_root_dir) / "twinlog" / "replicas.json"
        saved.write_bytes(msgspec.json.encode({"boot_id": "another", "is_in_doubt": True}))
        again = await group.start("second")
        assert again.ha.is_in_doubt
        await group.in_sync(2)
        await until(lambda: not again.ha.is_in_doubt)
        assert not msgspec.json.decode(saved.read_bytes())["is_in_doubt"]


async def test_r9_a_divergent_tail_is_moved_aside_and_nothing_confirmed_is_cut(
    tmp_path: Path,
) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        for number in range(5):
            assert await send(group, first, b"kept %d" % number) == (ResponseCode.SUCCESS, "")
        await group.cut_link(second)
        common = second.store.commit_log.max_offset
        for number in range(3):
            code, _ = await send(group, first, b"lost %d" % number)
            assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert first.store.commit_log.max_offset > common
        await group.brokers.end(first)
        await group.restart_controller()
        await until(lambda: second.role.is_master)
        assert await send(group, second, b"after") == (ResponseCode.SUCCESS, "")
        again = await group.start("first")
        await group.in_sync(2)
        log, other = again.store.commit_log, second.store.commit_log
        await until(lambda: log.max_offset == other.max_offset)
        assert log.read(0, log.max_offset) == other.read(0, other.max_offset)
        aside = [p.name for p in (tmp_path / "first" / "twinlog").iterdir()]
        assert any(str(common) in name for name in aside), aside
        assert visible(again) == placed(again) == 6


async def test_r10_consumers_see_what_is_confirmed_and_no_more(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await until(lambda: visible(second) == 1)
        assert visible(first) == 1
        await group.cut_link(second)
        assert (await send(group, first))[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert (placed(first), visible(first)) == (2, 1)
        assert first.ha.group is not None
        second.ha.follow(first.ha_address)
        await until(lambda: visible(first) == 2)
        await until(lambda: visible(second) == 2, within_s=3)


async def test_r10_queries_by_key_and_by_id_show_no_more_either(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await group.cut_link(second)
        place = first.store.commit_log.max_offset
        answer = await group.brokers.send(first, b"unconfirmed", KEYS="k1")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        by_key = {"topic": TOPIC, "key": "k1", "maxNum": 9, "beginTimestamp": 0,
                  "endTimestamp": 1 << 60}  # fmt: skip
        asked = ((RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place}),
                 (RequestCode.QUERY_MESSAGE, by_key))  # fmt: skip
        for code, header in asked:
            assert (await group.brokers.call(first, code, header)).code != ResponseCode.SUCCESS
        second.ha.follow(first.ha_address)
        await until(lambda: first.ha.confirmed.value == first.store.commit_log.max_offset)
        for code, header in asked:
            found = await group.brokers.call(first, code, header)
            assert (found.code, found.remark) == (ResponseCode.SUCCESS, None)
            assert b"unconfirmed" in bytes(found.body)


async def test_r11_a_hint_is_no_order(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        header = {
            "masterAddress": second.address, "masterEpoch": 9, "syncStateSetEpoch": 9,
            "masterBrokerId": 2,
        }  # fmt: skip
        for broker in (first, second):
            code = RequestCode.NOTIFY_BROKER_ROLE_CHANGED
            answer = await group.brokers.call(broker, code, header)
            assert answer.code == ResponseCode.SUCCESS
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        assert first.role.is_master
        assert not second.role.is_master
        assert stored_epoch(first) == stored_epoch(second) == 1


async def test_below_the_smallest_set_sends_are_refused_before_the_append(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(min_in_sync_replicas=2)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await group.brokers.end(second)
        await group.in_sync(1)
        before = placed(first)
        code, remark = await send(group, first)
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "in-sync replicas 1 of 2" in remark
        assert placed(first) == before
        await group.start("second", min_in_sync_replicas=2)
        await group.in_sync(2)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")


async def test_the_event_of_a_removal_says_why_the_master_wanted_it(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        _, second = await group.pair()
        await group.brokers.end(second)
        await group.in_sync(1)
        events = group.controller.events.select(GROUP, None, None)
        [removed] = [event for event in events if event["event"] == "removed"]
        assert (removed["replica"], removed["reason"]) == (2, "its connection closed")


async def test_what_waits_when_the_set_becomes_too_small_is_not_called_safe(
    tmp_path: Path,
) -> None:
    """It was taken while the set was large enough, and is on one disk only."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair(min_in_sync_replicas=2)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        assert first.replicas is not None
        link, may_shrink = first.replicas._link, asyncio.Event()
        propose = link.propose

        async def held(*arguments: Any) -> None:
            await may_shrink.wait()
            await propose(*arguments)

        link.propose = held  # type: ignore[method-assign]
        await group.learnt(second)
        await group.part(second)
        sending = asyncio.create_task(send(group, first, b"in between"))
        await until(lambda: first.replies.waiting_count == 1)
        may_shrink.set()
        code, remark = await sending
        assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert "in-sync replicas 1 of 2" in remark


async def test_what_was_held_for_the_next_master_is_refused_below_the_smallest_set(
    tmp_path: Path,
) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(min_in_sync_replicas=2)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await group.controller.stop()
        await group.brokers.end(first)
        sending = asyncio.create_task(send(group, second, b"by an old route"))
        await until(lambda: second.relay is not None and second.relay.count == 1)
        await group.restart_controller()
        assert (await sending)[0] == ResponseCode.SERVICE_NOT_AVAILABLE
        await until(lambda: second.role.is_master)
        assert placed(second) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_send_to_a_slave_is_passed_on_to_the_master(tmp_path: Path, host: str) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair(broker_ip1=host, broker_ip2=host)
        assert await send(group, first, b"direct") == (ResponseCode.SUCCESS, "")
        assert await send(group, second, b"by an old route") == (ResponseCode.SUCCESS, "")
        await until(lambda: placed(first) == 2)
        assert second.relay is not None
        assert second.relay.relayed_count == 1


async def test_a_topic_that_was_created_is_there_after_a_switch(tmp_path: Path) -> None:
    """RocketMQ's #9804: the answer left before anybody else had the topic."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        header = {
            "topic": "new", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 3,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }  # fmt: skip
        answer = await group.brokers.call(first, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert answer.code == ResponseCode.SUCCESS
        await group.cut_link(second)
        answer = await group.brokers.call(
            first, RequestCode.UPDATE_AND_CREATE_TOPIC, {**header, "topic": "late"}
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not confirmed" in (answer.remark or "")
        await group.brokers.end(first)
        await group.restart_controller()
        await until(lambda: second.role.is_master)
        topic = second.topics.select("new")
        assert topic is not None
        assert topic.write_queue_nums == 3


async def test_messages_of_a_deleted_topic_do_not_come_back_with_a_switch(tmp_path: Path) -> None:
    """Its queues are gone at every replica; what was sent after it was made again is there."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        for topic in ("load", "refilled"):
            for body in (b"old", b"older"):
                answer = await group.brokers.send(first, body, topic=topic)
                assert answer.code == ResponseCode.SUCCESS
            header = {"topic": topic}
            answer = await group.brokers.call(first, RequestCode.DELETE_TOPIC_IN_BROKER, header)
            assert answer.code == ResponseCode.SUCCESS
        answer = await group.brokers.send(first, b"new", topic="refilled")
        assert answer.code == ResponseCode.SUCCESS
        assert first.replicas is not None
        await first.replicas.resign()
        await until(lambda: second.role.is_master)
        assert placed(second) == 0
        assert await send(group, second, b"new") == (ResponseCode.SUCCESS, "")
        for broker in (first, second):
            for topic in ("load", "refilled"):
                await until(lambda b=broker, t=topic: b.store.max_offset_in_queue(t, QUEUE) == 1)


async def test_offsets_that_were_set_back_or_removed_stay_so_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that was reset consumes again, whoever leads: what is answered is in the log, not
    in a table that is written down every half second."""
    monkeypatch.setattr("twinlog.broker.pair.service.WRITE_INTERVAL_MS", 3_600_000)
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        for _ in range(3):
            assert await send(group, first) == (ResponseCode.SUCCESS, "")
        for name in ("reset", "removed"):
            for offset in (3, 1):
                header = {"consumerGroup": name, "topic": TOPIC, "queueId": 0}
                answer = await group.brokers.call(
                    first, RequestCode.UPDATE_CONSUMER_OFFSET, {**header, "commitOffset": offset}
                )
                assert answer.code == ResponseCode.SUCCESS
            await until(lambda n=name: second.offsets.query(n, TOPIC, QUEUE) == 1)
        header = {"groupName": "removed", "cleanOffset": True}
        answer = await group.brokers.call(first, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
        assert answer.code == ResponseCode.SUCCESS
        await until(lambda: second.offsets.query("removed", TOPIC, QUEUE) == -1)
        await group.cut_link(second)
        header = {"consumerGroup": "reset", "topic": TOPIC, "queueId": 0, "commitOffset": 0}
        answer = await group.brokers.call(first, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert "not confirmed" in (answer.remark or "")


async def test_a_deletion_that_could_not_be_recorded_is_not_called_done(tmp_path: Path) -> None:
    """The disk of the master is full: the next master would have the topic."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        await until(lambda: second.topics.select(TOPIC) is not None)
        first.store.close_for_puts("the disk is full")
        for _ in range(2):
            answer = await group.brokers.call(
                first, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}
            )
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "not in the log of the group" in (answer.remark or "")
        assert second.topics.select(TOPIC) is not None
        first.store.close_for_puts("")
        await until(lambda: second.topics.select(TOPIC) is None)


async def test_commits_of_the_last_moment_reach_the_next_master(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        for _ in range(3):
            assert await send(group, first) == (ResponseCode.SUCCESS, "")
        header = {"consumerGroup": "g", "topic": TOPIC, "queueId": QUEUE, "commitOffset": 3}
        await group.brokers.call(first, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        assert first.replicas is not None
        await first.replicas.resign()
        await until(lambda: second.role.is_master)
        await until(lambda: second.offsets.query("g", TOPIC, QUEUE) == 3)


async def test_a_fixed_pair_is_adopted_when_all_its_replicas_are_there(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        fixed = {"enable_controller_mode": False, "controller_addr": "", "broker_name": GROUP}
        master = await group.start("first", **fixed)
        slave = await group.start(
            "second", **{**fixed, "broker_role": "SLAVE", "broker_id": 1},
            ha_master_address=f"127.0.0.1:{master.ha.listen_port}",
        )  # fmt: skip
        await until(lambda: len(master.ha.acks) == 1)
        assert await send(group, master, b"before") == (ResponseCode.SUCCESS, "")
        for broker in (slave, master):
            await group.brokers.end(broker)
        second = await group.start("second", total_replicas=2)
        await until(lambda: group.is_known and 1 in group.record.replicas)
        assert not second.role.is_master
        first = await group.start("first", total_replicas=2)
        await until(lambda: first.role.is_master)
        assert visible(first) <= placed(first) == 1
        await group.in_sync(2)
        await until(lambda: visible(first) == visible(second) == 1)
        assert await send(group, first, b"after") == (ResponseCode.SUCCESS, "")


async def test_a_lost_list_of_epochs_is_made_again_out_of_the_log(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        await group.brokers.end(first)
        await until(lambda: second.role.is_master)
        assert second.ha.group is not None
        known = [(entry.epoch, entry.start) for entry in second.ha.group.history]
        assert [epoch for epoch, _ in known] == [1, 2]
        await group.brokers.end(second)
        own = tmp_path / "second" / "twinlog"
        for name in ("epochs", "epochs.bak"):
            (own / name).write_bytes(b"damaged")
        again = await group.start("second")
        assert again.ha.group is not None
        history = [(entry.epoch, entry.start) for entry in again.ha.group.history]
        assert history[: len(known)] == known


async def test_a_disk_that_promises_less_than_the_group_is_not_taken(tmp_path: Path) -> None:
    async with local_group(tmp_path) as group:
        first = await group.start("first", flush_disk_type="SYNC_FLUSH")
        await until(lambda: first.role.is_master)
        second = await group.start("second")
        reasons: list[str] = []
        second.on_end = reasons.append
        await until(lambda: reasons)
        assert "promises SYNC_FLUSH" in reasons[0]


async def test_a_slave_of_a_controlled_group_is_not_promoted_by_hand(tmp_path: Path) -> None:
    """It would write the role into its file, start again, and be a slave as before."""
    async with local_group(tmp_path) as group:
        _, second = await group.pair()
        await group.brokers.end(group.master)
        header = {"brokerName": GROUP, "brokerRole": "SYNC_MASTER", "logEnd": 0, "promotion": 1}
        answer = await group.brokers.call(second, RequestCode.TWINLOG_PROMOTE, header)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert f"twinlog ha elect {GROUP} --unclean {GROUP}" in (answer.remark or "")
        asked = await group.brokers.call(second, RequestCode.TWINLOG_REPLICA)
        assert msgspec.json.decode(asked.body)["isControlled"]


async def test_without_a_controller_a_slave_that_began_again_follows_its_master(
    tmp_path: Path,
) -> None:
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        await group.controller.stop()
        await group.brokers.end(second)
        second = await group.start("second")
        await until(lambda: second.ha.is_linked)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")


async def test_without_controller_and_slave_sends_end_with_12_and_then_14(tmp_path: Path) -> None:
    """Once it is suspect a master stores nothing more that nobody may ever confirm."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair(slave_timeout=30_000)
        await group.cut_link(second)
        code, remark = await send(group, first)
        assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT, remark
        end = first.store.commit_log.max_offset
        code, remark = await send(group, first)
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert remark.startswith("service not available now: no word from the controller")
        assert first.store.commit_log.max_offset == end


async def test_a_switch_does_not_make_a_master_suspect_while_a_slave_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives its lease back for the switch, and hears its controller all the time."""
    async with local_group(tmp_path) as group:
        first, _ = await group.pair(slave_timeout=30_000)
        await group.brokers.send(first)
        monkeypatch.setattr(first.ha.group, "acked", lambda *_: None)
        sending = asyncio.create_task(send(group, first))
        await until(lambda: first.replies.waits_for_replicas_ms() > 700)
        header = {"clusterName": "DefaultCluster", "brokerName": GROUP, "brokerId": 2,
                  "designateElect": "true"}  # fmt: skip
        command = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        answer = await group.brokers.client.invoke(group.controller.address, command, 30_000)
        assert (answer.remark or "").startswith("no switch"), answer.remark
        assert await sending == (ResponseCode.SUCCESS, ""), "the slave leaves the set after 1.5 s"


async def test_a_deposed_master_that_cannot_store_the_epoch_passes_sends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is full: it follows nobody, but knows who leads."""
    async with local_group(tmp_path) as group:
        first, second = await group.pair()
        assert first.replicas is not None
        assert first.relay is not None

        async def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(first.replicas._stored, "save", full)
        header = {"clusterName": "DefaultCluster", "brokerName": GROUP, "brokerId": 2,
                  "designateElect": "true"}  # fmt: skip
        command = RemotingCommand.request(RequestCode.CONTROLLER_ELECT_MASTER, header)
        answer = await group.brokers.client.invoke(group.controller.address, command, 30_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await until(lambda: second.role.is_master)
        await group.in_sync(1)
        assert await send(group, first) == (ResponseCode.SUCCESS, "")
        assert first.relay.relayed_count == 1
        monkeypatch.undo()
        await until(lambda: first.ha.is_linked)
