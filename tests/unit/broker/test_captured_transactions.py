"""Transactions and replies: what Apache answered, stored and sent, in the state it was in."""

from __future__ import annotations

import pytest

from support.captured import (
    Peer,
    frame,
    records,
    request_frame,
    response,
    slave_config,
    world,
)
from support.captured_states import (
    TRANSACTION_CODES,
    assert_same_record,
    captured_names,
    producer,
)
from twinlog.broker.server import Broker
from twinlog.broker.tables.clients import ClientChannelInfo
from twinlog.message.properties import decode_properties
from twinlog.message.record import decode_record
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode, ResponseCode

END = "037_END_TRANSACTION"
CHECK = "039_CHECK_TRANSACTION_STATE.master-client.1"
RESUME = "323_RESUME_CHECK_HALF_MESSAGE.client-master.1"
PUSH = "326_PUSH_REPLY_MESSAGE_TO_CLIENT.master-client.1"
REPLIES = ("325_SEND_REPLY_MESSAGE_V2.client-master.1", "324_SEND_REPLY_MESSAGE.client-master.1")
FOREVER = {"file_reserved_time": 1_000_000}  # Whatever the date of the test, nothing is too old.

# Where Apache's log ended when the end of the transaction came; it stored there what follows.
STORED_BY_END = {f"{END}.client-master.1": 237633, f"{END}.client-master.2": 238362,
                 f"{END}.client-master.5": 240010}  # fmt: skip
UNDECIDED = {f"{END}.client-master.3": 238809, f"{END}.client-master.4": 240010}
ON_SLAVE = f"{END}.client-slave.1"


def test_every_frame_of_these_codes_is_compared() -> None:
    rows = {*STORED_BY_END, *UNDECIDED, ON_SLAVE, CHECK, RESUME, PUSH, *REPLIES}
    assert rows == {n for n in captured_names() if n.startswith(TRANSACTION_CODES)}


@pytest.mark.parametrize("name", STORED_BY_END)
async def test_end_stores_what_apache_stored(name: str) -> None:
    end = STORED_BY_END[name]
    async with world(end=end, tables=False) as broker:
        peer = Peer(broker.server)
        open_before = broker.transactions.pending_count
        peer.tell(request_frame(name))
        broker.store.write_pending()
        assert broker.store.commit_log.max_offset > end
        assert_same_record(broker, end)
        assert broker.transactions.pending_count == open_before - 1
        broker.turn.run()
        assert not peer.transport.written, "one-way"


@pytest.mark.parametrize("name", UNDECIDED)
async def test_unknown_leaves_the_transaction_open(name: str) -> None:
    end = UNDECIDED[name]
    async with world(end=end, tables=False) as broker:
        peer = Peer(broker.server)
        open_before = broker.transactions.pending_count
        peer.tell(request_frame(name))
        broker.store.write_pending()
        assert broker.store.commit_log.max_offset == end
        assert broker.transactions.pending_count == open_before


async def test_end_on_a_slave_is_answered_as_apache_answers_it() -> None:
    async with world(**slave_config()) as broker:
        answer = await Peer(broker.server).ask(request_frame(ON_SLAVE))
        expected = response(ON_SLAVE)
        assert (answer.code, answer.remark) == (expected.code, expected.remark)
        assert answer.ext() == expected.ext()


async def test_check_asks_the_producer_as_apache_asks_it() -> None:
    expected = decode_command(frame(CHECK, "request"))
    async with world(end=239360, tables=False, **FOREVER) as broker:
        peer = Peer(broker.server)
        info = ClientChannelInfo(peer.connection, "127.0.0.1@tx", "JAVA", 407)
        broker.producers.register("PID_tx", info, broker.clock.monotonic_ms())
        await broker.transactions.check()
        broker.store.write_pending()
        asked = peer.pushed()[0]
        assert (asked.code, asked.is_oneway) == (expected.code, True)
        assert asked.ext() == expected.ext()
        ours, apache = decode_record(asked.body), decode_record(expected.body)
        assert ours.property_map == apache.property_map
        for record in (ours, apache):
            record.properties, record._property_map = b"", None
        assert ours == apache
        moved = broker.store.message_by_offset(239360)
        assert moved is not None
        assert decode_record(moved).property_map["TRANSACTION_CHECK_TIMES"] == "1"


async def test_resume_stores_what_apache_stored() -> None:
    async with world(end=249186, tables=False) as broker:
        answer = await Peer(broker.server).ask(request_frame(RESUME))
        assert (answer.code, answer.remark, answer.ext()) == (0, None, {})
        assert_same_record(broker, 249186)


async def test_resume_refuses_the_id_of_another_kind_of_message() -> None:
    async with world(tables=False) as broker:
        command = decode_command(request_frame(RESUME))
        command.ext()["msgId"] = "7F00000100009FCF0000000000000000"
        answer = await Peer(broker.server).ask(encode_command(command))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "does not name a message of TRANS_CHECK_MAX_TIME_TOPIC" in (answer.remark or "")


def requester(broker: Broker) -> Peer:
    client = Peer(broker.server, port=44516)
    info = ClientChannelInfo(client.connection, "127.0.0.1@main", "JAVA", 407)
    broker.producers.register("PID_vec", info, broker.clock.monotonic_ms())
    return client


@pytest.mark.parametrize("name", REPLIES)
async def test_reply_is_pushed_stored_and_answered_as_by_apache(name: str) -> None:
    expected = response(name)
    end = int(expected.ext()["msgId"][-16:], 16)
    async with world(end=end) as broker:
        client, peer = requester(broker), Peer(broker.server, port=57710)
        peer.tell(request_frame(name))
        pushed = await client.next(
            lambda c: c.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and not c.is_response
        )
        if name == REPLIES[0]:
            apache = decode_command(frame(PUSH, "request"))
            assert pushed.body == apache.body
            assert _of_push(pushed.ext()) == _of_push(apache.ext())
        answer = decode_command(frame(PUSH, "response"))
        answer.opaque = pushed.opaque
        client.tell(encode_command(answer))
        answered = await peer.next(lambda c: c.is_response)
        assert (answered.code, answered.remark) == (expected.code, expected.remark)
        assert answered.ext() == expected.ext()
        assert_same_record(broker, end)


def _of_push(ext: dict[str, str]) -> dict[str, object]:
    properties = decode_properties(ext["properties"].encode())
    assert properties.pop("PUSH_REPLY_TIME")
    return {**ext, "storeTimestamp": "", "properties": properties}


async def test_reply_to_nobody_is_an_error_that_says_so() -> None:
    async with world() as broker:
        answer = await Peer(broker.server).ask(request_frame(REPLIES[0]))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "127.0.0.1@main" in (answer.remark or "")


# What Apache does not check, or forgets over a crash.


async def test_transaction_ends_only_once() -> None:
    name = f"{END}.client-master.1"
    async with world(end=STORED_BY_END[name], tables=False) as broker:
        peer = Peer(broker.server)
        command = decode_command(request_frame(name))
        command.flag = 0
        assert (await peer.ask(encode_command(command))).code == 0
        again = await peer.ask(encode_command(command))
        assert again.code == ResponseCode.SYSTEM_ERROR
        assert "ended before" in (again.remark or "")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("producerGroup", "another", "producer group wrong"),
        ("tranStateTableOffset", "1", "state table offset wrong"),
        ("commitLogOffset", "0", "Find prepared transaction message failed"),
        ("commitLogOffset", "999999999", "Find prepared transaction message failed"),
        ("commitOrRollback", "5", "commitOrRollback"),
    ],
)
async def test_wrong_end_is_refused_with_the_reason(field: str, value: str, words: str) -> None:
    name = f"{END}.client-master.1"
    async with world(end=STORED_BY_END[name], tables=False) as broker:
        command = decode_command(request_frame(name))
        command.flag = 0
        command.ext()[field] = value
        answer = await Peer(broker.server).ask(encode_command(command))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert words in (answer.remark or "")
        assert broker.transactions.pending_count == 1


async def test_late_end_finds_the_message_that_a_check_moved() -> None:
    """The producer answers the send after the check stored the half message again."""
    name = f"{END}.client-master.1"
    async with world(end=STORED_BY_END[name], tables=False, **FOREVER) as broker:
        await broker.transactions.check()
        broker.store.write_pending()
        assert broker.transactions.pending_count == 1
        peer = Peer(broker.server)
        peer.tell(request_frame(name))
        broker.store.write_pending()
        assert broker.transactions.pending_count == 0
        assert broker.store.max_offset_in_queue("TopicTrans", 1) == 1


async def test_crash_between_message_and_note_does_not_open_the_transaction_again() -> None:
    """The committed record is at 237633, its op message would begin at 237921."""
    async with world(end=237921, tables=False, **FOREVER) as broker:
        assert broker.transactions.pending_count == 0
        assert broker.store.max_offset_in_queue("TopicTrans", 1) == 1


async def test_open_transactions_after_a_crash_are_those_apache_had_open() -> None:
    """Copies that checks made, and what was decided, do not count: only `never` is open."""
    end = next(r["physicalOffset"] for r in records() if r["physicalOffset"] > 244665)
    async with world(end=end, tables=False, **FOREVER) as broker:
        assert broker.transactions.pending_count == 1


async def test_undecided_message_is_given_up_after_the_last_check() -> None:
    async with world(end=247188, tables=False, **FOREVER) as broker:
        producer("PID_tx", "127.0.0.1@tx")(broker, Peer(broker.server))
        assert broker.transactions.pending_count == 1
        await broker.transactions.check()
        broker.store.write_pending()
        assert broker.transactions.pending_count == 0
        assert_same_record(broker, 247188)
        broker.transactions.note_progress()
        assert broker.offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) == 9
        assert broker.offsets.query("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_OP_HALF_TOPIC", 0) == 3
