"""The compiled pull path against the Python one: the same bytes in, the same bytes out.

One broker, two connections: what one of them reads goes through the lane, what the other reads
through Python alone. Answers, statistics, offsets and pulls that are held must be equal, request by
request. The store is one of real files, since only those are mapped.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.captured import open_without_ports
from support.request_frames import binary_frame, json_frame
from support.stores import message
from twinlog.broker.filter.consumer_filter import CompileBudget
from twinlog.broker.processors import pull
from twinlog.broker.server import Broker, build_broker
from twinlog.broker.tables.clients import ClientChannelInfo
from twinlog.message.names import TOOLS_GROUP
from twinlog.remoting.bodies.subscription import SubscriptionData
from twinlog.remoting.server import ServerConnection
from twinlog.runtime.config import BrokerConfig
from twinlog.runtime.disk import PosixDisk
from twinlog.store import reader
from twinlog.testing.manual_clock import ManualClock

pytestmark = pytest.mark.compiled
SEGMENT_SIZE = 65536
MESSAGES = 600
QUEUES = 3


class FrozenClock(ManualClock):
    """Time stands still: what sleeps stays out of the comparison, until its loop is closed."""

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.Event().wait()


class Wire(asyncio.Transport):
    """Takes what is written; says that it is congested above a limit, as transports do."""

    def __init__(self, protocol: ServerConnection, room: int) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 10911)})
        self._protocol = protocol
        self._room = room
        self.waiting = b""
        self.is_closed = False
        self.is_paused = False

    def write(self, data: Any) -> None:
        was_above = len(self.waiting) > self._room
        self.waiting += bytes(data)
        if len(self.waiting) > self._room and not was_above:
            self._protocol.pause_writing()

    def take(self) -> bytes:
        """What the peer reads: everything."""
        was_above = len(self.waiting) > self._room
        taken, self.waiting = self.waiting, b""
        if was_above:
            self._protocol.resume_writing()
        return taken

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def abort(self) -> None:
        self.is_closed = True

    close = abort


class Peer:
    """A connection; with `is_lane` what it reads may take the compiled path."""

    def __init__(self, broker: Broker, *, is_lane: bool, room: int = 1 << 40) -> None:
        self.connection = ServerConnection(broker.server, broker.requests.handle)
        self.wire = Wire(self.connection, room)
        self.connection.connection_made(self.wire)
        self.connection.data_received(frame({}, code=9999))  # It is plain text.
        assert self.wire.take()
        assert self.connection._lanes
        if not is_lane:
            self.connection._lanes = ()

    async def read(self, reads: list[bytes]) -> bytes:
        answers = b""
        for data in reads:
            if data and not self.connection.is_closed:
                self.connection.data_received(data)
            await asyncio.sleep(0)
            for _ in range(1000):  # Turns: some for each read, and for each answer that waits.
                answers += self.wire.take()
                await asyncio.sleep(0)
                if self.connection.is_closed or not self._has_work:
                    break
            else:
                raise AssertionError("what was read is not handled")
        return answers

    @property
    def _has_work(self) -> bool:
        connection = self.connection
        return bool(self.wire.waiting or connection._rest or connection._backlog)


class World:
    """A broker with a backlog, without ports."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self._monkeypatch = monkeypatch
        self._gather = reader._compiled

    async def outcome(self, reads: list[bytes], *, is_lane: bool, room: int) -> dict[str, Any]:
        """What follows from `reads` in one of the tiers, on a connection of its own."""
        broker = self.broker
        self._monkeypatch.setattr(reader, "_compiled", self._gather if is_lane else None)
        broker.offsets.table.clear()
        broker.offsets.pulled.clear()
        broker.skip_guard._passed.clear()
        broker.skip_guard._tries.clear()
        peer = Peer(broker, is_lane=is_lane, room=room)
        peer.connection.request_count = 0
        before = self._numbers()
        try:
            answers = await peer.read(reads)
            return self._outcome(peer, answers, before)
        finally:
            peer.connection.connection_lost(None)

    def _outcome(self, peer: Peer, answers: bytes, before: dict[Any, int]) -> dict[str, Any]:
        broker, after = self.broker, self._numbers()
        return {
            "answers": answers,
            "counted": {name: after[name] - before.get(name, 0) for name in after},
            "offsets": {key: dict(value) for key, value in broker.offsets.table.items()},
            "pulled": {key: dict(value) for key, value in broker.offsets.pulled.items()},
            "held": len(broker.pulls.hold),
            "requests": peer.connection.request_count,
            "in flight": peer.connection._requests_in_flight,
            "closed": peer.connection.is_closed,
        }

    def _numbers(self) -> dict[Any, int]:
        stats = self.broker.store_stats
        names = ("get_found_times", "get_miss_times", "get_transferred")
        return {
            **{name: getattr(stats, name) for name in names},
            **{
                (name, key, part): getattr(item, part)
                for name, items in self.broker.stats._items.items()
                for key, item in items.items()
                for part in ("value", "times")
            },
        }

    async def compare(self, reads: list[bytes], *, room: int = 1 << 40) -> dict[str, Any]:
        fast = await self.outcome(reads, is_lane=True, room=room)
        slow = await self.outcome(reads, is_lane=False, room=room)
        # An item of statistics that the first of them made stays, with nothing in it.
        for outcome in (fast, slow):
            outcome["counted"] = {name: n for name, n in outcome["counted"].items() if n}
        different = [name for name in fast if fast[name] != slow[name]]
        # Long bytes are not shown whole: to find their difference takes minutes.
        assert not different, [(n, str(fast[n])[:800], str(slow[n])[:800]) for n in different]
        return fast

    def taken(self, data: bytes) -> int:
        """How many bytes of it the lane takes."""
        peer = Peer(self.broker, is_lane=True)
        taken = self.broker.server.lanes[-1].read(peer.connection, data)
        peer.connection.connection_lost(None)
        return taken


@asynccontextmanager
async def opened(
    directory: Path, monkeypatch: pytest.MonkeyPatch, **values: Any
) -> AsyncIterator[World]:
    config = BrokerConfig(
        **{
            "store_path_root_dir": str(directory / "store"),
            "mapped_file_size_commit_log": SEGMENT_SIZE,
            "mapped_file_size_consume_queue": 200 * 20,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
            "enable_property_filter": True,
            **values,
        }
    )
    broker = build_broker(config, rng=random.Random(1), disk=PosixDisk(), clock=FrozenClock())
    await open_without_ports(broker)
    try:
        fill(broker)
        yield World(broker, monkeypatch)
    finally:
        await broker.stop()


def fill(broker: Broker) -> None:
    """Messages of all sizes in a few queues, and consumers that say what they want of them."""
    rng = random.Random(7)
    for topic in ("T", "U"):
        broker.topics.create_in_send(topic, "TBW102", queue_count=QUEUES, sys_flag=0)
    for number in range(MESSAGES):
        size = rng.choice((1, 20, 300, 1000))
        broker.store.put(
            message(number, queue_id=rng.randrange(QUEUES), size=size, tags=rng.choice("abc"))
        )
        if rng.random() < 0.3:
            broker.store.write_pending()
    broker.store.write_pending()
    for group in ("G", "tags", "sql", "lonely"):  # Others are refused: to save one takes turns.
        broker.groups.find(group)
    broker.config.auto_create_subscription_group = False
    heartbeat(broker, "tags", SubscriptionData("T", "a || b", tags=("a", "b"), sub_version=5))
    sql = "TAGS IN ('a', 'c')"
    heartbeat(broker, "sql", SubscriptionData("T", sql, expression_type="SQL92", sub_version=5))
    heartbeat(broker, "G", SubscriptionData("T", sub_version=5))


def heartbeat(broker: Broker, group: str, data: SubscriptionData) -> None:
    connection = ServerConnection(broker.server, broker.requests.handle)
    channel = ClientChannelInfo(connection, f"client of {group}", "JAVA", 399)
    broker.consumers.register(
        group, channel, [data], consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET", must_notify=False, now_ms=0,
    )  # fmt: skip
    for _ in broker.filters.register(group, [data], CompileBudget()):
        pass


def ext(**changes: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG", **changes,
    }  # fmt: skip


def frame(fields: dict[str, Any], body: bytes = b"", **changes: Any) -> bytes:
    return json_frame(changes.pop("code", 11), fields, body, **changes)


def binary(fields: dict[str, Any], body: bytes = b"", **changes: Any) -> bytes:
    return binary_frame(changes.pop("code", 11), fields, body, **changes)


_NUMBER = st.sampled_from(
    ["0", "1", "3", "5", "7", "-1", "-0", "007", "+1", "", " 1", "1.0", "2147483648", "x",
     "9223372036854775807", "99999999999999999999", 0, 2, None, True]
)  # fmt: skip
_OFFSET = st.one_of(
    st.integers(0, MESSAGES // QUEUES + 30), st.sampled_from([-1, 0, 1, 199, 200, 201, 10**12])
)
_SUBSCRIPTIONS = st.sampled_from(
    [
        ("*", "TAG"), ("", "TAG"), (None, None), ("a", "TAG"), ("a || c", "TAG"), ("x", None),
        ("||", "TAG"), ("TAGS = 'b'", "SQL92"), ("TAGS = 'none'", "SQL92"), ("TAGS =", "SQL92"),
        ("TAGS IN ('a') AND n IS NULL", "SQL92"), ("é", "TAG"), ("\"a\"", "TAG"), ("a", "OTHER"),
        ("a" * 1100, "TAG"), ("TAGS IS NOT NULL", "SQL92"),
    ]
)  # fmt: skip
_OTHERS = [
    ("code", 361), ("code", 9998), ("flag", 2), ("flag", 1), ("opaque", -1), ("opaque", 2**31 - 1),
    ("version", "x"), ("language", 3), ("language", None), ("remark", "r"), ("extFields", None),
    ("extFields", {}), ("other", 1), ("version", ...), ("code", ...), ("opaque", ...),
]  # fmt: skip


@st.composite
def _frames(draw: Any) -> bytes:
    subscription, kind = draw(_SUBSCRIPTIONS)
    fields = ext(
        queueId=str(draw(st.integers(0, QUEUES))),
        queueOffset=str(draw(_OFFSET)),
        maxMsgNums=str(draw(st.sampled_from([-1, 0, 1, 2, 32, 64, 1000, 5000]))),
        sysFlag=str(draw(st.integers(0, 15))),
        commitOffset=str(draw(st.sampled_from([0, 5, -1, -2, 10**18]))),
        subVersion=str(draw(st.sampled_from([0, 5, 6]))),
        consumerGroup=draw(
            st.sampled_from(["G", "G", "tags", "sql", "lonely", "nobody", TOOLS_GROUP, ""])
        ),
        topic=draw(st.sampled_from(["T", "T", "T", "U", "none", "%RETRY%G"])),
        subscription=subscription,
        expressionType=kind,
    )
    changes: dict[str, Any] = {"opaque": draw(st.integers(0, 2**31 - 1))}
    body = b""
    if draw(st.integers(0, 3)) == 0:
        fields[draw(st.sampled_from(sorted(fields)))] = draw(_NUMBER)
    if draw(st.integers(0, 5)) == 0:
        del fields[draw(st.sampled_from(sorted(fields)))]
    if draw(st.integers(0, 5)) == 0:
        fields[draw(st.sampled_from(["maxMsgBytes", "bname", "é", "x" * 300]))] = draw(_NUMBER)
    if draw(st.integers(0, 9)) == 0:
        body = bytes(draw(st.sampled_from([1, 5000])))
    if draw(st.integers(0, 2)) == 0:
        if draw(st.integers(0, 5)) == 0:
            changes |= draw(
                st.sampled_from([{"code": 361}, {"flag": 2}, {"remark": "r"}, {"opaque": -1}])
            )
        return binary(fields, body, **changes)
    if draw(st.integers(0, 5)) == 0:
        name, value = draw(st.sampled_from(_OTHERS))
        changes[name] = value
    return frame(fields, body, **changes)


_READS = st.lists(st.lists(_frames(), min_size=1, max_size=5), min_size=1, max_size=3)
_SETTINGS = settings(
    max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"slave_read_enable": True, "access_message_in_memory_max_ratio": 0},
        {"max_transfer_count_on_message_in_memory": 7, "max_transfer_bytes_on_message_in_disk": 900,
         "access_message_in_memory_max_ratio": 0},
        {"max_transfer_bytes_on_message_in_memory": 3000, "twinlog_check_reads": False},
        {"enable_property_filter": False, "filter_support_retry": True},
    ],
)  # fmt: skip
async def test_any_reads_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    """With one more cut somewhere: it may go through a frame."""
    examples: list[tuple[list[list[bytes]], float]] = []

    @given(_READS, st.floats(0, 1))
    @settings(_SETTINGS, max_examples=40, database=None)
    def draw(reads: list[list[bytes]], cut: float) -> None:
        examples.append((reads, cut))

    draw()
    async with opened(tmp_path, monkeypatch, **values) as world:
        for reads, cut in examples:
            pieces = [b"".join(frames) for frames in reads]
            first = pieces.pop(0)
            at = int(cut * len(first))
            await world.compare([first[:at], first[at:], *pieces])


ENDS = {"T": {0: 100, 1: 0, 2: 10**6}}  # In the queue, at its begin, behind all that it has.


async def test_same_after_a_promotion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard looks at a reader until it has passed; here it comes again, and goes back."""
    rng = random.Random(11)
    async with opened(tmp_path, monkeypatch) as world:
        world.broker.skip_guard.log_is_shorter(ENDS)
        for _ in range(60):
            pulls = [
                frame(
                    ext(
                        consumerGroup=rng.choice(["G", "tags", TOOLS_GROUP, "lonely"]),
                        queueId=str(rng.randrange(QUEUES)),
                        queueOffset=str(rng.choice([0, 50, 100, 101, 150, 190, 250])),
                        sysFlag=str(rng.choice([4, 5, 7])),
                        commitOffset=str(rng.choice([0, 90, 160])),
                    )
                )
                for _ in range(12)
            ]
            cut = rng.randrange(12)
            await world.compare([b"".join(pulls[:cut]), b"".join(pulls[cut:])])


async def test_who_has_passed_the_guard_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promotion does not make an hour of pulls dearer; members of a broadcast are looked at."""
    async with opened(tmp_path, monkeypatch, **ROOMY) as world:
        world.broker.skip_guard.log_is_shorter(ENDS)
        for group in ("G", TOOLS_GROUP):
            data = frame(ext(consumerGroup=group))
            assert world.taken(data) == 0
            await world.outcome([data], is_lane=True, room=1 << 40)
            assert world.taken(data) == len(data)
            other = frame(ext(consumerGroup=group, queueId="2"))
            assert world.taken(other) == 0
        data = frame(ext())
        await world.outcome([data], is_lane=True, room=1 << 40)
        world.broker.consumers.groups["G"].message_model = "BROADCASTING"
        assert world.taken(data) == 0


@pytest.mark.parametrize("seed", range(3))
async def test_same_while_records_rot_and_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Bits flip in the log and in the queues, a file is cut short, the oldest segment is gone."""
    rng = random.Random(seed)
    seen: set[int] = set()
    wait_ms = rng.choice((0, 60_000))
    async with opened(tmp_path, monkeypatch, twinlog_damage_wait_millis=wait_ms) as world:
        store = world.broker.store
        for queue in store.queue_table:
            store.housekeeping.write_queue(queue)
        for step in range(12):
            _harm(rng, tmp_path / "store")
            if step == 6:
                store.commit_log.remove_first()
            for _ in range(8):
                fields = ext(
                    queueId=str(rng.randrange(QUEUES)),
                    queueOffset=str(rng.randrange(MESSAGES // QUEUES)),
                    maxMsgNums=str(rng.choice((1, 8, 32, 500))),
                    subscription=rng.choice(("*", "a || b", "c")),
                )
                if rng.random() < 0.3:
                    fields |= {"subscription": "TAGS <> 'b'", "expressionType": "SQL92"}
                outcome = await world.compare([rng.choice((frame, binary))(fields)])
                if outcome["answers"][4] == 0:
                    seen.add(json.loads(_header(outcome["answers"]))["code"])
    assert {0, 20} <= seen, seen  # Found, and go on behind it: damage was met.


def _header(answer: bytes) -> bytes:
    return answer[8 : 8 + struct.unpack_from(">i", answer, 4)[0]]


def _harm(rng: random.Random, root: Path) -> None:
    log = sorted((root / "commitlog").iterdir())
    queues = sorted(path for path in (root / "consumequeue").rglob("*") if path.is_file())
    kind = rng.random()
    if kind < 0.1:
        os.truncate(rng.choice(log[:-1]), rng.randrange(SEGMENT_SIZE))
        return
    path = rng.choice(queues) if queues and kind < 0.3 else rng.choice(log)
    with path.open("r+b") as file:
        position = rng.randrange(max(1, path.stat().st_size // 2))
        file.seek(position)
        byte = file.read(1) or b"\0"
        file.seek(position)
        file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))


async def test_same_while_the_peer_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More pulls in one read than their answers find room for."""
    pulls = [frame(ext(queueId=str(n % QUEUES), queueOffset=str(n)), opaque=n) for n in range(60)]
    async with opened(tmp_path, monkeypatch) as world:
        outcome = await world.compare([b"".join(pulls)], room=30_000)
        assert outcome["requests"] == len(pulls)
        assert outcome["in flight"] == 0


ROOMY = {"mapped_file_size_commit_log": 1 << 20}  # Everything in one segment.


async def test_common_pulls_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the comparison would compare the Python path with itself."""
    known = {"sysFlag": "0", "subVersion": "5", "subscription": None, "expressionType": None}
    sql = {"subscription": "TAGS = 'b'", "expressionType": "SQL92"}
    taken = [
        frame(ext()),
        binary(ext()),
        frame(ext(), code=361),
        frame(ext(sysFlag="7", commitOffset="3", queueOffset="5")),
        frame(ext(subscription="a || b")),
        frame(ext(subscription="none")),  # Nothing is of this tag: go on behind them.
        frame(ext(**sql)),
        binary({key: value for key, value in ext(consumerGroup="tags", **known).items() if value}),
        frame({k: v for k, v in ext(consumerGroup="sql", **known).items() if v is not None}),
        frame({k: v for k, v in ext(consumerGroup="G", **known).items() if v is not None}),
        frame(ext(consumerGroup=TOOLS_GROUP, maxMsgNums="1000")),
    ]
    left = [  # At the end, one-way, with a body, no such topic, an escape, no pull.
        frame(ext(queueOffset=str(MESSAGES))),
        frame(ext(), flag=2),
        frame(ext(), b"body"),
        frame(ext(topic="none")),
        frame(ext(subscription="a\\b")),
        frame(ext(), code=310),
    ]
    async with opened(tmp_path, monkeypatch, **ROOMY) as world:
        for data in taken:
            assert world.taken(data) == len(data), data
            assert world.taken(data[:-1]) == 0
        for data in left:
            assert world.taken(taken[0] + data) == len(taken[0]), data
            assert world.taken(data) == 0, data
        world.broker.config.broker_permission = 2
        assert world.taken(taken[0]) == 0


async def test_a_turn_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection does not keep the loop for all the pulls that it sent at once."""
    pulls = b"".join(frame(ext(maxMsgNums="1000", subscription="a"), opaque=n) for n in range(100))
    async with opened(tmp_path, monkeypatch, **ROOMY) as world:
        lane = world.broker.server.lanes[-1]
        taken = world.taken(pulls)
        assert 0 < taken < len(pulls)
        assert lane.is_full
        outcome = await world.compare([pulls])
        assert outcome["requests"] == 100
        assert world.taken(pulls[: len(pulls) // 100]) == len(pulls) // 100
        assert not lane.is_full


async def test_the_lane_leaves_what_raises_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, monkeypatch, **ROOMY) as world:

        def fail(*_: Any) -> None:
            raise OSError("no")

        monkeypatch.setattr(world.broker.store.reader, "begin_walk", fail)
        assert world.taken(frame(ext())) == 0
        pull._posted_wanted.cache_clear()
        assert world.taken(frame(ext(subscription="TAGS =", expressionType="SQL92"))) == 0
