"""States in which a captured request was answered, and what is compared of an answer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.captured import (
    FRAMES,
    Peer,
    body_of,
    frame,
    records,
    request_frame,
    response,
    slave_config,
)
from twinlog.broker.filter.consumer_filter import CompileBudget
from twinlog.broker.filter.subscription import build_subscription
from twinlog.broker.server import Broker
from twinlog.broker.tables.clients import ClientChannelInfo
from twinlog.broker.tables.topic_config import topic_from_json
from twinlog.message.names import OP_HALF_TOPIC
from twinlog.message.record import decode_record
from twinlog.remoting import fastjson
from twinlog.remoting.bodies.common import version_of
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.bodies.subscription_group import group_from_json
from twinlog.remoting.codec import decode_command, encode_command
from twinlog.remoting.codes import RequestCode
from twinlog.remoting.command import Request
from twinlog.runtime.watermark import Watermark
from twinlog.store.status import PutMessageStatus

Setup = Callable[[Broker, Peer], Any]


@dataclass(frozen=True)
class Case:
    """How the state of one captured pair is reached, and what cannot be equal."""

    end: int | None = None  # None: from the answer.
    setup: Setup | None = None
    config: dict[str, Any] = field(default_factory=dict)
    tables: bool = True
    masked: frozenset[str] = frozenset()
    is_held: bool = False
    on_vip_port: bool = False


def masked(*names: str, **case: Any) -> Case:
    return Case(masked=frozenset(names), **case)


def slave(**case: Any) -> Case:
    return Case(config=slave_config(), **case)


# States


def online(
    group: str, topic: str, expression: str = "*", version: int = 1 << 60, kind: str = "TAG"
) -> Setup:
    """A member of `group` that subscribes to `topic`."""

    def setup(broker: Broker, peer: Peer) -> None:
        data = build_subscription(topic, expression, kind, version)
        deque(broker.filters.register(group, [data], CompileBudget()), maxlen=0)
        _register(broker, peer, group, f"127.0.0.1@{group}", [data])

    return setup


def _register(
    broker: Broker, peer: Peer, group: str, client_id: str, wanted: list[SubscriptionData]
) -> None:
    broker.consumers.register(
        group,
        ClientChannelInfo(peer.connection, client_id, "JAVA", 407),
        wanted,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        must_notify=False,
        now_ms=broker.clock.monotonic_ms(),
    )


TAGS = "TagA || TagB || Zip"
PUSH_VEC = online("GID_push", "TopicVec", TAGS)
SQL = "price > 2 AND price IS NOT NULL"


def member(group: str, client_id: str, topics: dict[str, str]) -> Setup:
    """A member with a client id and several subscriptions."""

    def setup(broker: Broker, peer: Peer) -> None:
        wanted = [build_subscription(t, e, "TAG", 1) for t, e in topics.items()]
        _register(broker, peer, group, client_id, wanted)

    return setup


def offsets_of_answer(name: str, group: str) -> Setup:
    """Consumer offsets as the captured statistics show them."""

    def setup(broker: Broker, peer: Peer) -> None:
        body = body_of(response(name))
        broker.offsets.table.clear()
        for key, value in body["offsetTable"].items():
            queue = fastjson.loads(key)
            offset = value if isinstance(value, int) else value["consumerOffset"]
            broker.offsets.commit(group, queue["topic"], queue["queueId"], offset)

    return setup


def all_offsets_of_answer(name: str) -> Setup:
    def setup(broker: Broker, peer: Peer) -> None:
        body = body_of(response(name))
        broker.offsets.table.clear()
        broker.groups.table = {
            group: group_from_json({"groupName": group})
            for entry in body["consumeStatsList"]
            for group in entry
        }
        for entry in body["consumeStatsList"]:
            for group, stats in entry.items():
                for one in stats:
                    for key, value in one["offsetTable"].items():
                        queue = fastjson.loads(key)
                        broker.offsets.commit(
                            group, queue["topic"], queue["queueId"], value["consumerOffset"]
                        )

    return setup


def both(*setups: Setup) -> Setup:
    def setup(broker: Broker, peer: Peer) -> None:
        for one in setups:
            one(broker, peer)

    return setup


def tables_of_answer(name: str) -> Setup:
    """Topics or groups as the answer shows them: what is compared is their form."""

    def setup(broker: Broker, peer: Peer) -> None:
        body = body_of(response(name))
        if "topicConfigTable" in body:
            table = body["topicConfigTable"]
            broker.topics.table = {t: topic_from_json(t, v) for t, v in table.items()}
            broker.topics.data_version = version_of(body["dataVersion"], broker.topics.data_version)
        elif "subscriptionGroupTable" in body:
            table = body["subscriptionGroupTable"]
            broker.groups.table = {g: group_from_json(v) for g, v in table.items()}
            broker.groups.data_version = version_of(body["dataVersion"], broker.groups.data_version)
        elif decode_command(request_frame(name)).code == RequestCode.GET_ALL_DELAY_OFFSET:
            broker.schedule.replace(body)
        else:
            broker.offsets.replace(body)

    return setup


def delays_of_answer(name: str) -> Setup:
    """Delay offsets as the captured runtime table shows them."""

    def setup(broker: Broker, peer: Peer) -> None:
        table = body_of(response(name))["table"]
        prefix = "scheduleMessageOffset_"
        broker.schedule.replace(
            {
                "offsetTable": {
                    key.removeprefix(prefix): value.split(",")[0]
                    for key, value in table.items()
                    if key.startswith(prefix)
                }
            }
        )

    return setup


def producer(group: str, client_id: str, port: int = 44516) -> Setup:
    def setup(broker: Broker, peer: Peer) -> None:
        other = Peer(broker.server, port=port)
        info = ClientChannelInfo(other.connection, client_id, "JAVA", 407)
        broker.producers.register(group, info, broker.clock.monotonic_ms())

    return setup


class StalledSlave:
    """A slave that is there and confirms nothing."""

    def __init__(self) -> None:
        self.confirmed = Watermark("confirmed")

    def timeout_reason(self, end_offset: int) -> str:
        return "it is stalled"

    def check_sync(self, end_offset: int) -> tuple[PutMessageStatus | None, str]:
        return None, ""


def stalled_slave(broker: Broker, peer: Peer) -> None:
    broker.replies._replication = StalledSlave()


def delete_before(topic: str) -> Setup:
    def setup(broker: Broker, peer: Peer) -> None:
        broker.topics.delete(topic)
        broker.store.delete_topics([topic])

    return setup


def counted(name: str, key: str) -> Setup:
    def setup(broker: Broker, peer: Peer) -> None:
        item = broker.stats.item(name, key)
        broker.stats.sample(0)
        for _ in range(28):
            item.add(1)
        item.value += 3
        for now_ms in range(10_000, 70_000, 10_000):
            broker.stats.sample(now_ms)

    return setup


def relaying(name: str, group: str, client_id: str) -> Setup:
    """A member that answers what is relayed to it with the captured answer of Apache's client."""

    def setup(broker: Broker, peer: Peer) -> None:
        client = Peer(broker.server, port=53494)
        member(group, client_id, {"TopicVec": TAGS})(broker, client)

        async def answer() -> None:
            code = decode_command(frame(name, "request")).code
            asked = await client.next(lambda c: not c.is_response and c.code == code)
            same_request(asked, decode_command(frame(name, "request")))
            reply = decode_command(frame(name, "response"))
            reply.opaque = asked.opaque
            client.tell(encode_command(reply))

        broker.tasks.job("client", answer())

    return setup


# Comparison


def same_request(ours: Request, apache: Request) -> None:
    assert ours.code == apache.code
    assert ours.is_oneway == apache.is_oneway
    assert ours.serialize_type == apache.serialize_type
    assert ours.ext() == apache.ext()
    assert plain(body_of(ours), frozenset()) == plain(body_of(apache), frozenset())


# A row of the runtime table that holds a path, and rows about replication that Apache has not.
OWN_OR_LOCAL = ("twinlog",
    "commitLogDiskRatio_", "contained", "haC", "haI", "haK", "haL", "haM", "haR", "haS", "metadata",
)  # fmt: skip


def plain(value: Any, hidden: frozenset[str]) -> Any:
    """Masked where it cannot be equal, lists as sets: Java's order is that of its hashes."""
    if isinstance(value, dict):
        return {
            _key(key): "masked" if key in hidden else plain(member, hidden)
            for key, member in value.items()
            if not key.startswith(OWN_OR_LOCAL)
        }
    if isinstance(value, list):
        return sorted((plain(item, hidden) for item in value), key=repr)
    return value


def _key(key: str) -> str:
    """A key that is an object: its members in one order."""
    return json.dumps(fastjson.loads(key), sort_keys=True) if key.startswith("{") else key


def assert_same_record(broker: Broker, offset: int) -> None:
    """What we stored at `offset` is what Apache stored there, but for times and born host."""
    rows = [row for row in records() if row["physicalOffset"] >= offset]
    data = broker.store.message_by_offset(offset)
    while data is not None:
        ours, row = decode_record(data), rows.pop(0)
        assert ours.physical_offset == row["physicalOffset"]
        assert ours.total_size == row["totalSize"]
        assert ours.property_map == row["properties"]
        for attribute, column in (
            ("topic", "topic"), ("queue_id", "queueId"), ("queue_offset", "queueOffset"),
            ("flag", "flag"), ("sys_flag", "sysFlag"), ("body_crc", "bodyCRC"),
            ("born_timestamp", "bornTimestamp"), ("reconsume_times", "reconsumeTimes"),
            ("store_host_text", "storeHost"),
            ("prepared_transaction_offset", "preparedTransactionOffset"),
        ):  # fmt: skip
            if (row["topic"], column) != (OP_HALF_TOPIC, "bornTimestamp"):
                assert getattr(ours, attribute) == row[column], column
        data = broker.store.message_by_offset(ours.end_offset)


TRANSACTION_CODES = ("037_", "039_", "323_", "324_", "325_", "326_")


def captured_names() -> list[str]:
    """Every captured frame to or from a broker."""
    rows = (json.loads(line) for line in (FRAMES / "frames.jsonl").read_text().splitlines())
    return [row["name"] for row in rows if "namesrv" not in (row["from"], row["to"])]
