"""Transactions whose half message is still at hand: the same as when it is read from the log."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.captured import Peer, world
from support.local_brokers import until
from twinlog.broker.server import Broker
from twinlog.broker.stats.store_view import placed_end
from twinlog.broker.transaction.recent import RecentHalf, RecentHalves
from twinlog.message import sysflag
from twinlog.message.layout import HEAD_SIZE
from twinlog.message.model import PutMessage, Record
from twinlog.message.names import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP
from twinlog.message.record import decode_record
from twinlog.remoting.codec import encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode
from twinlog.remoting.command import RemotingCommand, Request
from twinlog.runtime import loop_share
from twinlog.runtime.watermark import Watermark
from twinlog.store.log.commit_log import CommitLog

FOREVER = {"file_reserved_time": 1_000_000}  # A half message of 2023 is not too old.
PROPERTIES = {
    "java": "KEYS\x01k1 k2\x02TRAN_MSG\x01true\x02UNIQ_KEY\x01U{n}\x02WAIT\x01true\x02TAGS\x01blue"
    "\x02PGROUP\x01tellers\x02",
    "without WAIT": "TRAN_MSG\x01true\x02PGROUP\x01tellers\x02UNIQ_KEY\x01U{n}",
    "not waiting": "PGROUP\x01other\x02PGROUP\x01tellers\x02TRAN_MSG\x01TRUE\x02WAIT\x01false",
    "parked before": "TRAN_MSG\x01true\x02PGROUP\x01tellers\x02REAL_TOPIC\x01X\x02REAL_QID\x017",
}


async def send(peer: Peer, number: int, properties: str) -> Request:
    ext = {
        "a": "tellers", "b": "accounts", "c": "TBW102", "d": "4", "e": str(number % 4), "f": "4",
        "g": "1700000000000", "h": "3", "i": properties.replace("{n}", str(number)), "j": "0",
        "k": "false", "m": "false",
    }  # fmt: skip
    command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, ext, b"body %d" % number)
    answer = await peer.ask(encode_command(command))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def end(half: Request, **changes: str) -> bytes:
    ext = half.ext()
    fields = {
        "producerGroup": "tellers", "tranStateTableOffset": ext["queueOffset"],
        "commitLogOffset": str(int(ext["msgId"][-16:], 16)), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": ext.get("transactionId", ""), **changes,
    }  # fmt: skip
    return encode_command(RemotingCommand.request(RequestCode.END_TRANSACTION, fields))


def forget(broker: Broker) -> None:
    """As after a restart: half messages are in the log only."""
    broker.transactions.recent = RecentHalves()


def last_record(broker: Broker, queue_id: int) -> Record:
    number = broker.store.max_offset_in_queue("accounts", queue_id) - 1
    found = broker.store.get_message("accounts", queue_id, number, 1)
    return decode_record(b"".join(found.buffers))


@pytest.mark.parametrize("properties", PROPERTIES.values(), ids=PROPERTIES)
async def test_committed_from_memory_is_what_is_committed_from_the_log(properties: str) -> None:
    async with world(end=0, tables=False) as broker:
        peer = Peer(broker.server)
        committed = []
        for is_at_hand in (False, True):  # That at hand is not at 0, the default place.
            half = await send(peer, 1, properties)
            assert len(broker.transactions.recent) == 1
            if not is_at_hand:
                forget(broker)
            assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS
            record = last_record(broker, 1)
            assert record.prepared_transaction_offset == int(half.ext()["msgId"][-16:], 16)
            committed.append(record)
        assert broker.transactions.pending_count == 0
        theirs, ours = committed
        assert ours.property_map == theirs.property_map
        assert ours.property_map["REAL_TOPIC"] == "accounts"
        assert ours.property_map.get("WAIT") == (
            None
            if "WAIT" not in properties
            else "true"
            if "WAIT\x01true" in properties
            else "false"
        )
        assert sysflag.transaction_type(ours.sys_flag) == sysflag.TRANSACTION_COMMIT_TYPE
        for name in (
            "body",
            "topic",
            "queue_id",
            "flag",
            "sys_flag",
            "born_timestamp",
            "born_host",
        ):
            assert getattr(ours, name) == getattr(theirs, name)
        keys = broker.store.query_message("accounts", "k1", 9, 0, 1 << 62)
        assert len(keys.buffers) == (2 if "KEYS" in properties else 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"producerGroup": "others"}, "producer group wrong"),
        ({"tranStateTableOffset": "7"}, "state table offset wrong"),
        ({"commitLogOffset": "3"}, "Find prepared transaction message failed"),
        ({"msgId": "U2", "transactionId": "U2"}, "belongs to another transaction, U1"),
    ],
)
@pytest.mark.parametrize("kind", ["8", "12"], ids=["commit", "rollback"])
async def test_a_wrong_end_is_refused_and_the_right_one_still_counts(
    changes: dict[str, str], words: str, kind: str
) -> None:
    async with world(end=0, tables=False) as broker:
        peer = Peer(broker.server)
        half = await send(peer, 1, PROPERTIES["java"])
        answer = await peer.ask(end(half, commitOrRollback=kind, **changes))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert words in (answer.remark or "")
        assert broker.transactions.pending_count == 1
        assert (await peer.ask(end(half, commitOrRollback=kind))).code == ResponseCode.SUCCESS
        assert broker.transactions.pending_count == 0
        again = await peer.ask(end(half, commitOrRollback=kind))
        assert "ended before" in (again.remark or "")
        count = broker.store.max_offset_in_queue("accounts", 1)
        assert count == (1 if kind == "8" else 0)


async def test_one_that_a_check_has_moved_is_committed_with_its_new_place() -> None:
    async with world(end=0, tables=False, transaction_time_out=0, **FOREVER) as broker:
        peer = Peer(broker.server)
        half = await send(peer, 1, PROPERTIES["java"])
        await broker.transactions.check()
        broker.store.write_pending()
        assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS
        assert last_record(broker, 1).property_map["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.parametrize("named", ["msgId", "transactionId"])
async def test_the_end_may_name_its_transaction_in_either_field(named: str) -> None:
    async with world(end=0, tables=False) as broker:
        peer = Peer(broker.server)
        half = await send(peer, 1, PROPERTIES["java"])
        ids = {"msgId": "7F000001", "transactionId": "7F000001", named: "U1"}
        assert (await peer.ask(end(half, **ids))).code == ResponseCode.SUCCESS


async def test_what_a_switch_has_cut_is_not_committed_for_what_is_in_its_place() -> None:
    """This broker was the master, then a slave whose end was cut, and leads again."""
    async with world(end=0, tables=False) as broker:
        peer = Peer(broker.server)
        cut = await send(peer, 1, PROPERTIES["java"])
        broker.transactions.stop()
        place = int(cut.ext()["msgId"][-16:], 16)
        broker.store.commit_log.truncate_to(place, reason="cut by a test")
        known = broker.transactions.recent
        broker.transactions.start(after_crash=True)
        forget(broker)
        other = await send(peer, 5, PROPERTIES["java"])
        assert other.ext()["msgId"] == cut.ext()["msgId"], "the same place"
        broker.transactions.stop()
        broker.transactions.recent = known  # The second one was put at another broker.
        broker.transactions.start(after_crash=True)
        assert (await peer.ask(end(other))).code == ResponseCode.SUCCESS
        assert last_record(broker, 1).body == b"body 5"


async def lead_again(broker: Broker, confirmed: Watermark) -> None:
    """A new master of a controlled group, which has all of the log and knows less to be confirmed:
    the rest is shown when the group has confirmed it."""
    broker.transactions.stop()
    broker.schedule.stop()
    broker.store.set_dispatch_limit(confirmed)
    broker.store.hide_unconfirmed()
    broker.schedule.start(after_crash=True)
    broker.transactions.start(after_crash=True)
    await until(lambda: not any(level.timer for level in broker.schedule._levels.values()))
    confirmed.advance(broker.store.commit_log.max_offset)


@pytest.mark.parametrize("seen", [0, 1])
async def test_what_was_decided_in_the_unconfirmed_end_is_decided(seen: int) -> None:
    """A check stored it again, the copy was committed, and the master died."""
    async with world(end=0, tables=False, transaction_time_out=0, **FOREVER) as broker:
        peer = Peer(broker.server)
        half = await send(peer, 1, PROPERTIES["java"])
        end_of_half = broker.store.commit_log.max_offset
        await broker.transactions.check()
        broker.store.write_pending()
        assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS
        await lead_again(broker, Watermark("confirmed", end_of_half * seen))
        await broker.transactions.check()
        broker.store.write_pending()
        assert broker.transactions.pending_count == 0
        assert placed_end(broker.store, HALF_TOPIC, 0) == 2, "nobody is asked again"


async def test_what_was_delivered_in_the_unconfirmed_end_is_not_delivered_again() -> None:
    async with world(end=0, tables=False, message_delay_level="1s") as broker:
        del broker.schedule.start  # type: ignore[misc]
        broker.schedule.start(after_crash=False)
        peer = Peer(broker.server)
        await send(peer, 0, PROPERTIES["java"])  # So that something is confirmed.
        place = broker.store.commit_log.max_offset
        delayed = PROPERTIES["java"].replace("TRAN_MSG\x01true\x02", "DELAY\x011\x02")
        ext = {
            "a": "tellers", "b": "accounts", "c": "TBW102", "d": "4", "e": "1", "f": "0",
            "g": "1700000000000", "h": "3", "i": delayed, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, ext, b"later")
        assert (await peer.ask(encode_command(command))).code == ResponseCode.SUCCESS
        await until(lambda: broker.store.max_offset_in_queue("accounts", 1) == 1)
        await lead_again(broker, Watermark("confirmed", place))
        await until(lambda: broker.schedule.to_json()["offsetTable"] == {1: 1})
        broker.store.write_pending()
        assert placed_end(broker.store, "accounts", 1) == 1


def test_the_oldest_are_dropped_when_they_are_too_many() -> None:
    recent = RecentHalves(size_max=10_000)
    for number in range(30):
        message = PutMessage(HALF_TOPIC, 0, bytes(1000))
        recent.add(number, RecentHalf(message, "T", 0, number, True))
    assert len(recent) == 6
    assert recent.take(23) is None
    assert recent.take(24) is not None
    assert recent.take(24) is None
    recent.add(29, RecentHalf(PutMessage(HALF_TOPIC, 0, b""), "T", 0, 99, True))
    replaced = recent.take(29)
    assert replaced is not None
    assert replaced.half_offset == 99
    for number in range(25, 29):
        recent.take(number)
    assert len(recent) == 0
    assert recent.size == 0


async def test_half_topic_is_listed_from_its_first_message_on_and_outlives_a_clean_up() -> None:
    """It is in no list otherwise, and a clean-up of unknown topics took the undecided with it."""
    async with world(end=0, tables=False) as broker:
        peer = Peer(broker.server)
        assert HALF_TOPIC not in broker.topics.table
        half = await send(peer, 1, PROPERTIES["java"])
        config = broker.topics.table[HALF_TOPIC]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
        clean_up = RemotingCommand.request(RequestCode.CLEAN_UNUSED_TOPIC)
        assert (await peer.ask(encode_command(clean_up))).code == ResponseCode.SUCCESS
        assert broker.store.max_offset_in_queue(HALF_TOPIC, 0) == 1
        forget(broker)
        assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS
        assert last_record(broker, 1).body == b"body 1"


async def test_a_check_of_many_leaves_turns_to_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_share, "SHARE_MS", 0)
    async with world(end=0, tables=False, transaction_time_out=0, **FOREVER) as broker:
        peer = Peer(broker.server)
        sent = [await send(peer, number, PROPERTIES["java"]) for number in range(20)]
        check = asyncio.get_running_loop().create_task(broker.transactions.check())
        while broker.store.max_offset_in_queue(HALF_TOPIC, 0) < 25:
            assert not check.done()
            await asyncio.sleep(0)
        # One that the check has not come to is decided meanwhile, and not asked about.
        assert (await peer.ask(end(sent[-1]))).code == ResponseCode.SUCCESS
        await check
        assert broker.transactions.pending_count == 19
        lines = [r.getMessage() for r in caplog.records if "no producer to ask" in r.getMessage()]
        assert len(lines) == 1
        assert "group=tellers count=19 " in lines[0]


def commit(code: RequestCode, offset: int) -> bytes:
    ext = {
        "consumerGroup": TRANSACTION_GROUP, "topic": HALF_TOPIC, "queueId": "0",
        "commitOffset": str(offset), "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5",
        "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return encode_command(RemotingCommand.request(code, ext))


async def test_no_client_moves_the_progress_of_transactions() -> None:
    """An offset behind the undecided would hide them from the next start, for good."""
    async with world(end=0, tables=False, **FOREVER) as broker:
        peer = Peer(broker.server)
        half = await send(peer, 1, PROPERTIES["java"])
        answer = await peer.ask(commit(RequestCode.UPDATE_CONSUMER_OFFSET, 1 << 62))
        assert "the broker's own" in (answer.remark or "")
        await peer.ask(commit(RequestCode.PULL_MESSAGE, 1 << 62))
        assert broker.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) < 1
        broker.transactions.start(after_crash=False)
        forget(broker)
        assert broker.transactions.pending_count == 1
        assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS


async def test_no_peer_moves_the_progress_of_transactions_by_other_requests() -> None:
    """Cloned from a group of theirs, as a slave's late commits, removed with the group."""
    async with world(end=0, tables=False, **FOREVER) as broker:
        peer = Peer(broker.server)
        await send(peer, 1, PROPERTIES["java"])
        await send(peer, 2, PROPERTIES["java"])
        broker.offsets.note_own(TRANSACTION_GROUP, HALF_TOPIC, 0)
        broker.offsets.commit("mine", HALF_TOPIC, 0, 2)
        clone = {
            "srcGroup": "mine", "destGroup": TRANSACTION_GROUP, "topic": HALF_TOPIC,
            "offline": "true",
        }  # fmt: skip
        slave = {
            "clusterName": broker.config.broker_cluster_name,
            "brokerName": broker.config.broker_name,
        }
        table = {"offsetTable": {f"{HALF_TOPIC}@{TRANSACTION_GROUP}": {"0": 2}}}
        remove = {"groupName": TRANSACTION_GROUP, "removeOffset": "true", "cleanOffset": "true"}
        for code, ext, body in (
            (RequestCode.CLONE_GROUP_OFFSET, clone, b""),
            (RequestCode.CLONE_GROUP_OFFSET, {**clone, "topic": ""}, b""),
            (RequestCode.TWINLOG_OFFSETS, slave, json.dumps(table).encode()),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, remove, b""),
        ):
            answer = await peer.ask(encode_command(RemotingCommand.request(code, ext, body)))
            if code == RequestCode.CLONE_GROUP_OFFSET:
                assert "the broker's own" in (answer.remark or "")
            assert broker.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0) == 0, code


async def test_progress_behind_the_end_of_the_queue_hides_no_later_transaction() -> None:
    """A file may say so: written by an earlier version, or of a log that was longer."""
    async with world(end=0, tables=False, **FOREVER) as broker:
        peer = Peer(broker.server)
        await send(peer, 1, PROPERTIES["java"])
        broker.offsets.note_own(TRANSACTION_GROUP, HALF_TOPIC, 1 << 62)
        broker.transactions.start(after_crash=False)
        half = await send(peer, 2, PROPERTIES["java"])
        forget(broker)
        assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS


async def test_a_search_that_waits_for_a_replica_is_not_made_again_for_each_look() -> None:
    """There may be a million transactions: all of them were read every 200 ms, and once
    more for each damaged record."""
    async with world(end=0, tables=False, **FOREVER) as broker:
        peer, log = Peer(broker.server), broker.store.commit_log
        sent = [await send(peer, number, PROPERTIES["java"]) for number in range(60)]
        for half in sent[1:41]:  # The first stays undecided, so that all is read again.
            assert (await peer.ask(end(half))).code == ResponseCode.SUCCESS
        broker.transactions.stop()
        broker.store.write_pending()
        broker.store.damage.may_heal = lambda: True
        reader, reads = broker.store.reader, 0
        record_of = reader.record_of

        def counted(*arguments: object) -> bytes | None:
            nonlocal reads
            reads += 1
            return record_of(*arguments)  # type: ignore[arg-type]

        reader.record_of = counted  # type: ignore[method-assign]
        saved = [flipped(log, *entry_of(broker, *which)) for which in (
            (OP_HALF_TOPIC, 7), (OP_HALF_TOPIC, 20), (OP_HALF_TOPIC, 39), (HALF_TOPIC, 11),
            (HALF_TOPIC, 59),
        )]  # fmt: skip
        broker.transactions.start(after_crash=True)
        assert reads == 40
        for healed, wanted in ((0, 1), (2, 1), (3, 3 + 40 + 60), (4, 1), (5, 2 + 40 + 60)):
            for at, data in saved[:healed]:
                segment = log.segments.find(at)
                assert segment is not None
                segment.file.pwritev((data,), at - segment.start)
            timer = broker.transactions._waiting
            assert timer is not None
            timer.cancel()
            reads = 0
            broker.transactions._begin(after_crash=True)
            assert reads <= wanted, healed
        assert broker.transactions._waiting is None
        assert broker.transactions.pending.snapshot() == [0, *range(41, 60)]


def entry_of(broker: Broker, topic: str, number: int) -> tuple[int, int]:
    queue = broker.store.queue_table.get(topic, 0)
    assert queue is not None
    entry = queue.entry(broker.store.queue_table.pool, number)
    assert entry is not None
    return entry[:2]


def flipped(log: CommitLog, at: int, size: int) -> tuple[int, bytes]:
    """Where the first byte of a body was, and what it was."""
    at += HEAD_SIZE
    segment, right = log.segments.find(at), log.read(at, 1)
    assert segment is not None
    segment.file.pwritev((bytes([right[0] ^ 1]),), at - segment.start)
    return at, right
