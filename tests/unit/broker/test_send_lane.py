"""The compiled send path against the Python one: the same bytes in, the same bytes out, each way.

Two brokers in the same state get the same reads; one has its compiled parts, the other has not.
Answers, commit log, consume queues, index entries and statistics must be equal.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.captured import open_without_ports
from support.request_frames import json_frame
from twinlog.broker.put import send_properties
from twinlog.broker.put.replies import PutReplies
from twinlog.broker.server import Broker, build_broker
from twinlog.message import properties
from twinlog.message.batch import BatchMember, encode_batch
from twinlog.message.hashing import index_key_hash
from twinlog.message.once import ONCE_PROPERTY
from twinlog.remoting.server import ServerConnection
from twinlog.runtime import compiled
from twinlog.runtime.config import BrokerConfig, BrokerRole
from twinlog.store.index.index_service import IndexService
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimDisk

pytestmark = pytest.mark.compiled
SEGMENT_SIZE = 4096  # So that records often meet the end of a file.


class FrozenClock(ManualClock):
    """Time stands still: what sleeps stays out of the comparison, until its loop is closed."""

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.Event().wait()


class Wire(asyncio.Transport):
    """Takes everything that is written."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 40000), "sockname": (host, 10911)})
        self.written = b""
        self.is_paused = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        pass

    close = abort


class World:
    """A broker without ports, and one connection to it."""

    def __init__(self, broker: Broker, host: str) -> None:
        self.broker = broker
        self.wire = Wire(host)
        self.connection = ServerConnection(broker.server, broker.requests.handle)
        self.connection.connection_made(self.wire)

    async def read(self, data: bytes) -> None:
        if data:
            self.connection.data_received(data)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def state(self) -> dict[str, Any]:
        store = self.broker.store
        log = store.commit_log
        starts = range(0, log.max_offset, SEGMENT_SIZE)
        records = b"".join(log.read(start, log.max_offset - start) for start in starts)
        assert store.index is not None
        return {
            "answers": self.wire.written,
            "log": records,
            "queues": {
                queue.key: (bytes(queue.tail), queue.next_offset, queue.max_offset)
                for queue in store.queue_table
            },
            "index": _waiting_keys(store.index),
            "bare": store.index.bare_offset,
            "stats": {
                (name, key): (item.value, item.times)
                for name, items in self.broker.stats._items.items()
                for key, item in items.items()
            },
            "halves": {
                offset: (half.topic, half.queue_id, half.half_offset, half.must_wait, half.message)
                for offset, half in self.broker.transactions.recent.by_offset.items()
            },
            "in flight": self.connection._requests_in_flight,
        }


def _waiting_keys(index: IndexService) -> list[tuple[int, int, int]]:
    """Those of batches are hashed at once, others later."""
    hashed = zip(index._hashes, index._offsets, index._timestamps, strict=True)
    return [*hashed] + [
        (index_key_hash(topic, key), offset, time)
        for topic, keys, offset, time in index.pending
        for key in keys
    ]


async def open_world(monkeypatch: Any, *, is_compiled: bool, host: str, **values: Any) -> World:
    monkeypatch.setenv("TWINLOG_PURE", "0" if is_compiled else "1")
    config = BrokerConfig(
        **{
            "store_path_root_dir": "/store",
            "mapped_file_size_commit_log": SEGMENT_SIZE,
            "max_message_size": 1000,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
            **values,
        }
    )
    broker = build_broker(config, rng=random.Random(1), disk=SimDisk(), clock=FrozenClock())
    await open_without_ports(broker)
    world = World(broker, host)
    await world.read(frame(ext()))  # The topic exists from now on.
    assert bool(world.connection._lanes) == is_compiled
    return world


def ext(**changes: Any) -> dict[str, Any]:
    return {
        "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000001",
        "h": "0", "i": "", "j": "0", "k": "false", "m": "false", **changes,
    }  # fmt: skip


def frame(fields: dict[str, Any], body: bytes = b"b", **changes: Any) -> bytes:
    return json_frame(changes.pop("code", 310), fields, body, **changes)


async def compare(monkeypatch: Any, reads: list[bytes], host: str = "127.0.0.1", **values: Any):
    states = []
    for is_compiled in (True, False):
        world = await open_world(monkeypatch, is_compiled=is_compiled, host=host, **values)
        for data in reads:
            await world.read(data)
        states.append(world.state())
    assert states[0] == states[1]
    return states[0]


_PIECES = st.sampled_from(
    [
        "KEYS\x01k1", "KEYS\x01k1 k2  k3", "KEYS\x01 ",
        "UNIQ_KEY\x01C0A8000100002A9F1234567800000001",
        "TAGS\x01TagA", "TAGS\x01Tag\u00e9", "WAIT\x01false", "WAIT\x01TRUE", "WAIT\x01x",
        "CLUSTER\x01other", "a\x01b", "a\x01b\x01c", "\x01b", "a\x01", "a", "",
        "DELAY\x011", "DELAY\x0118", "DELAY\x0100", "DELAY\x0119", "DELAY\x01+2", "DELAY\x01-1",
        "DELAY\x01x", "XWAIT\x01true",
        "REAL_TOPIC\x01R", "REAL_QID\x013", "PGROUP\x01pg", "TRAN_MSG\x01TRUE",
        "TRAN_MSG\x01true", "TRAN_MSG\x01false", "TWINLOG_ONCE\x01x",
        "q\x01\"\\/\n\t", "n\x01\x00", "long\x01" + "v" * 300, "key\u4e2d\x01v", "MSG_REGION\x01r",
    ]
)  # fmt: skip
_NUMBER = st.sampled_from(
    ["0", "1", "3", "4", "8", "-1", "-0", "007", "+1", "", " 1", "1.0", "2147483648", "x",
     "99999999999999999999", 0, 2, None, True]
)  # fmt: skip


@st.composite
def _frames(draw: Any) -> bytes:
    fields = ext(
        e=draw(st.sampled_from(["0", "1", "2", "3"])),
        i="\x02".join(draw(st.lists(_PIECES, max_size=5))),
    )
    body = draw(st.binary(max_size=60))
    changes: dict[str, Any] = {"opaque": draw(st.integers(0, 2**31 - 1))}
    if draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from("abcdefghijklmno"))
        fields[name] = draw(_NUMBER)
    if draw(st.integers(0, 4)) == 0:
        del fields[draw(st.sampled_from(sorted(fields)))]
    if draw(st.integers(0, 5)) == 0:
        fields["b"] = draw(
            st.sampled_from(["T2", "new", "%RETRY%pg", "a b", "T\u00e9", "", "t" * 127, "t" * 128])
        )
    if draw(st.integers(0, 5)) == 0:
        name, value = draw(
            st.sampled_from(
                [
                    ("code", 10), ("code", 11), ("code", 320), ("flag", 2), ("flag", 1),
                    ("opaque", -1), ("opaque", 2**31), ("opaque", 2**40), ("version", "x"),
                    ("language", 3), ("language", None), ("remark", "r"), ("remark", {"a": 1}),
                    ("extFields", None), ("extFields", {}), ("other", 1), ("version", ...),
                    ("code", ...), ("opaque", ...), ("serializeTypeCurrentRPC", ...),
                ]
            )
        )  # fmt: skip
        changes[name] = value
    if draw(st.integers(0, 9)) == 0:
        body = bytes(draw(st.sampled_from([0, 900, 1000, 1001])))
    return frame(fields, body, **changes)


@given(
    st.lists(st.lists(_frames(), min_size=1, max_size=6), min_size=1, max_size=4),
    st.floats(0, 1),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_reads_give_the_same(monkeypatch: Any, reads: list[list[bytes]], cut: float) -> None:
    """With one more cut somewhere: it may go through a frame."""
    pieces = [b"".join(frames) for frames in reads]
    first = pieces.pop(0)
    at = int(cut * len(first))
    asyncio.run(compare(monkeypatch, [first[:at], first[at:], *pieces]))


@st.composite
def _batches(draw: Any) -> bytes:
    members = [
        BatchMember(
            draw(st.binary(max_size=40)),
            "\x02".join(draw(st.lists(_PIECES, max_size=4))).encode(),
            draw(st.integers(-(2**31), 2**31 - 1)),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]
    body = encode_batch(members)
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(body)))
        body = body[:at] + draw(st.binary(max_size=3)) + body[at + draw(st.integers(0, 3)) :]
    text = draw(st.sampled_from(["", "WAIT\x01true", "WAIT\x01false", "a\x01b\x02", "KEYS\x01k"]))
    code = draw(st.sampled_from([320, 320, 310]))
    return frame(ext(e=draw(st.sampled_from("0123")), i=text, m="true"), body, code=code)


@given(
    st.lists(st.lists(st.one_of(_batches(), _frames()), min_size=1, max_size=5), max_size=4),
    st.sampled_from(["127.0.0.1", "::1"]),
)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_batches_give_the_same(monkeypatch: Any, reads: list[list[bytes]], host: str) -> None:
    asyncio.run(compare(monkeypatch, [b"".join(frames) for frames in reads], host))


async def test_common_batches_are_taken(monkeypatch: Any) -> None:
    """As one piece, over the end of a segment too, and with singles between them."""
    members = [
        BatchMember(bytes(n), b"UNIQ_KEY\x01%032X\x02KEYS\x01a b\x02TAGS\x01A" % n)
        for n in range(9)
    ]
    batch = frame(ext(i="WAIT\x01true", m="true"), encode_batch(members), code=320)
    reads = [batch, batch + frame(ext(i="KEYS\x01k")) + batch]
    state = await compare(monkeypatch, reads)
    assert len(state["log"]) > SEGMENT_SIZE
    assert len(state["index"]) == 3 * 27 + 1
    monkeypatch.delattr("twinlog.broker.processors.send.decode_batch")
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1")
    await world.read(batch)
    assert world.state()["queues"]["T", 0][1] == 10


def damaged(rng: random.Random) -> bytes:
    """Sends with a few bytes changed, often to what JSON and properties are made of."""
    text = rng.choice(
        ["KEYS\x01k a\x02TAGS\x01A\x02WAIT\x01true", "UNIQ_KEY\x01C0A8\x02DELAY\x013", 'x\x01"\\\n']
    )
    data = bytearray()
    for number in range(rng.randrange(1, 5)):
        fields = ext(e=str(rng.randrange(5)), i=text)
        data += frame(fields, bytes(rng.randrange(40)), opaque=number)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), *b'"\\\0\1\2,:{}0-u'))
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
async def test_damaged_reads_give_the_same(monkeypatch: Any, seed: int) -> None:
    """Each on a connection of its own: some end it."""
    rng = random.Random(seed)
    worlds = [
        await open_world(monkeypatch, is_compiled=is_compiled, host="127.0.0.1")
        for is_compiled in (True, False)
    ]
    for _ in range(60):
        data = damaged(rng)
        for world in worlds:
            again = World(world.broker, "127.0.0.1")
            await again.read(frame(ext()))  # Plain text: the lane opens behind the first read.
            await again.read(data)
            world.wire.written += again.wire.written
        assert worlds[0].state() == worlds[1].state(), data


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("role", [BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER])
async def test_common_sends(monkeypatch: Any, host: str, role: BrokerRole) -> None:
    text = "KEYS\x01k\x02TAGS\x01A\x02UNIQ_KEY\x01C0A8\x02WAIT\x01true"
    reads = [
        b"".join(frame(ext(e=str(n % 4), i=text), bytes(n), opaque=n) for n in range(16))
        for _ in range(4)
    ]
    state = await compare(monkeypatch, reads, host, broker_role=role)
    assert len(state["log"]) > SEGMENT_SIZE
    assert sum(queue[1] for queue in state["queues"].values()) == 65


async def test_common_sends_are_taken(monkeypatch: Any) -> None:
    """Else the comparison would compare the Python path with itself."""
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1")
    for text in ("DELAY\x011", "DELAY\x0118", "TRAN_MSG\x01true"):
        await world.read(frame(ext(i=text)))  # These queues exist from now on, too.
    common = b"".join(frame(ext(i="KEYS\x01k\x02WAIT\x01true"), opaque=n) for n in range(5))
    taken = (
        common
        + frame(ext(i="DELAY\x011"))
        + frame(ext(i="WAIT\x01true\x02DELAY\x0118"))
        + frame(ext(i="TRAN_MSG\x01true\x02PGROUP\x01pg", f="4"))
    )
    data = taken + frame(ext(i="DELAY\x0119"))
    assert world.connection._lanes[0].read(world.connection, data) == len(taken)
    assert world.connection._lanes[0].read(world.connection, common[:-1]) == len(common) // 5 * 4


ROOMY = {"mapped_file_size_commit_log": 1 << 20}


def numbered(count: int, first: int = 0, body: bytes = b"b") -> bytes:
    return b"".join(frame(ext(), body, opaque=first + n) for n in range(count))


async def test_a_long_read_is_put_in_shares(monkeypatch: Any) -> None:
    """Of one read a turn takes so many: another connection comes in between, nothing is lost, and
    nothing is read from the first until its rest is put."""
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1", **ROOMY)
    other = World(world.broker, "127.0.0.2")
    await other.read(numbered(1))
    queue = next(queue for queue in world.broker.store.queue_table if queue.key == ("T", 0))
    before = queue.next_offset
    world.connection.data_received(numbered(600))
    assert queue.next_offset == before + 256
    assert world.wire.is_paused
    other.connection.data_received(numbered(20, first=900))
    assert queue.next_offset == before + 256 + 8  # Some of each, however much there is already.
    for _ in range(20):
        await asyncio.sleep(0)
    assert queue.next_offset == before + 620
    assert not world.wire.is_paused
    assert not other.wire.is_paused
    assert opaques(world.wire) == [7, *range(600)]
    assert opaques(other.wire) == [0, *range(900, 920)]


async def test_large_bodies_fill_a_turn_sooner(monkeypatch: Any) -> None:
    sizes = {"mapped_file_size_commit_log": 16 << 20, "max_message_size": 1 << 20}
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1", **sizes)
    world.connection.data_received(numbered(40, body=bytes(100_000)))
    assert world.broker.store.commit_log.tail < 12 * 100_000
    for _ in range(20):
        await asyncio.sleep(0)
    assert opaques(world.wire) == [7, *range(40)]


async def test_shares_of_reads_give_the_same(monkeypatch: Any) -> None:
    """Also when a request of another kind stands in the rest, or a frame that is not complete."""
    odd = frame(ext(i="DELAY\x0119"), opaque=5000)
    data = numbered(300) + odd + numbered(30, first=6000)
    reads = [data[:-10], b"", b"", b"", data[-10:] + numbered(3), b""]
    state = await compare(monkeypatch, reads, **ROOMY)
    assert sum(queue[1] for queue in state["queues"].values()) == 1 + 331 + 3


async def test_the_rest_of_a_closed_connection_is_not_put(monkeypatch: Any) -> None:
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1", **ROOMY)
    await world.read(numbered(1))
    world.connection.data_received(numbered(600))
    world.connection.connection_lost(None)
    await world.read(b"")
    assert sum(queue.next_offset for queue in world.broker.store.queue_table) == 2 + 256


def opaques(wire: Wire) -> list[int]:
    found, at = [], 0
    while at < len(wire.written):
        size, header_size = struct.unpack_from(">ii", wire.written, at)
        found.append(json.loads(wire.written[at + 8 : at + 8 + header_size])["opaque"])
        at += 4 + size
    return found


async def test_delayed_and_half_messages(monkeypatch: Any) -> None:
    texts = [
        "KEYS\x01k\x02TAGS\x01A\x02UNIQ_KEY\x01C0\x02WAIT\x01true\x02DELAY\x013",
        "WAIT\x01false\x02DELAY\x0118", "DELAY\x0119", "DELAY\x010", "DELAY\x011\x02DELAY\x012",
        "TRAN_MSG\x01true\x02PGROUP\x01pg\x02KEYS\x01a b\x02WAIT\x01true\x02TAGS\x01B",
        "TRAN_MSG\x01true\x02DELAY\x013", "TRAN_MSG\x01true\x02REAL_TOPIC\x01R",
        "DELAY\x013\x02REAL_TOPIC\x01R\x02REAL_QID\x011", "TRAN_MSG\x01false\x02DELAY\x013",
    ]  # fmt: skip
    reads = [
        b"".join(
            frame(ext(e=str(n % 4), i=text, f=str(flag), j=str(times)), b"b%d" % n, opaque=n)
            for n, text in enumerate(texts)
        )
        for flag in (0, 4, 8, 12, 1)
        for times in (0, 2)
    ]
    state = await compare(monkeypatch, [reads[0], *reads])
    assert state["queues"]["SCHEDULE_TOPIC_XXXX", 17][1] > 10
    assert len(state["halves"]) > 10
    refusing = await compare(monkeypatch, reads, reject_transaction_message=True)
    assert refusing["halves"] == {}


async def test_replies_in_runs(monkeypatch: Any) -> None:
    """Answers of two connections in turn, with numbers of every length."""
    written: list[list[bytes]] = []
    for is_compiled in (True, False):
        world = await open_world(monkeypatch, is_compiled=is_compiled, host="127.0.0.1")
        other = World(world.broker, "127.0.0.2")
        replies: PutReplies = world.broker.replies
        sends: list[Any] = []
        for number in range(40):
            connection = (world if number % 5 < 3 else other).connection
            connection.count_requests(1, 0)
            sends.append((connection, 2**number % 2**31, 0, number, 3**number, 7**number % 2**63))
        replies._release_plain(sends)
        world.connection.flush()
        other.connection.flush()
        written.append([world.wire.written, other.wire.written])
    assert written[0] == written[1]


@given(
    st.lists(
        st.tuples(
            st.text(max_size=9),
            st.lists(st.text(max_size=30), max_size=3).map(tuple),
            st.integers(0, 2**40),
            st.integers(0, 2**41),
        ),
        max_size=5,
    ),
    st.integers(-1, 2**39),
)
def test_hashes_of_pending_keys(pending: list[Any], floor: int) -> None:
    hashes: list[int] = []
    offsets: list[int] = []
    times: list[int] = []
    module = compiled.load("twinlog.message._hashing")
    assert module is not None
    module.hash_pending(pending, floor, hashes, offsets, times)
    expected = [
        (index_key_hash(topic, key), offset, time)
        for topic, keys, offset, time in pending
        if offset > floor
        for key in keys
    ]
    assert list(zip(hashes, offsets, times, strict=True)) == expected


_NAMES = sorted(
    value for name, value in vars(properties).items() if name.startswith("PROPERTY_")
)  # fmt: skip
_VALUES = ("true", "TRUE", "false", "1", "3", "19", "x", "a b", "R")


@pytest.mark.parametrize("first", range(0, len(_NAMES), 6))
async def test_every_property_that_has_a_name_gives_the_same(monkeypatch: Any, first: int) -> None:
    """One read each, so that a difference in one is not hidden by those before it."""
    texts = [
        f"{before}{name}\x01{value}"
        for name in _NAMES[first : first + 6]
        for value in _VALUES
        for before in ("", "WAIT\x01true\x02UNIQ_KEY\x01C0\x02")
    ]
    await compare(monkeypatch, [frame(ext(i=text), opaque=n) for n, text in enumerate(texts)])


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.one_of(
                    st.sampled_from([*_NAMES, ONCE_PROPERTY]),
                    # Near to one that is known: longer, shorter, in other letters.
                    st.sampled_from(_NAMES).map(lambda name: name[:-1]),
                    st.sampled_from(_NAMES).map(lambda name: name + "S"),
                    st.sampled_from(_NAMES).map(str.lower),
                    st.text(min_size=1, max_size=12),
                ),
                st.one_of(st.sampled_from(_VALUES), st.text(max_size=8)),
            ),
            max_size=5,
        ),
        min_size=1,
        max_size=6,
    )
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_properties_give_the_same(monkeypatch: Any, sends: list[list[Any]]) -> None:
    texts = ["\x02".join(f"{name}\x01{value}" for name, value in pairs) for pairs in sends]
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    asyncio.run(compare(monkeypatch, [frame(ext(i=text)) for text in texts]))


async def test_a_special_property_that_the_lane_does_not_know_is_not_taken(
    monkeypatch: Any,
) -> None:
    monkeypatch.setitem(send_properties.KINDS, "SPECIAL_ONE", send_properties.OTHER)
    world = await open_world(monkeypatch, is_compiled=True, host="127.0.0.1")
    await world.read(frame(ext()))  # Its route is known from now on.
    taken = frame(ext(i="KEYS\x01k\x02SPECIAL_ON\x01v\x02SPECIAL_ONES\x01v"))
    special = frame(ext(i="KEYS\x01k\x02SPECIAL_ONE\x01v"))
    assert world.connection._lanes[0].read(world.connection, taken + special) == len(taken)
