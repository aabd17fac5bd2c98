"""Runs of plain messages: what ends one, and the compiled form against the Python one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.client.message import Message, SendStatus, encode_user_properties
from twinlog.client.producer import runs as run
from twinlog.client.producer.outgoing import batch_element, receipts_in_python
from twinlog.client.queues import MessageQueue
from twinlog.message.ids import UniqueIdGenerator
from twinlog.runtime import compiled

LIMITS = {"size_room": 1 << 16, "count_room": 1000, "body_size_max": 4095}


def unique_ids(address: bytes = b"\x7f\x00\x00\x01", taken: int = 0) -> UniqueIdGenerator:
    ids = UniqueIdGenerator(address, 7, 99, lambda: 1_794_776_861_250)
    if taken:
        ids.take(taken)
    return ids


def pack(messages: list[Any], start: int = 0, **limits: int) -> run.Run | None:
    return run.pack_run(messages, start, unique_ids(), **{**LIMITS, **limits})


def plain(count: int, **options: Any) -> list[Any]:
    return [Message("t", b"body %d" % n, **options) for n in range(count)]


def test_the_members_are_those_of_single_sends_and_ids_count_up() -> None:
    messages = [*plain(2), *plain(2, tags="red", flag=-5)]
    packed = pack(messages)
    assert packed is not None
    ids = unique_ids()
    expected = [ids.next_id() for _ in messages]
    assert packed.ids == expected
    assert packed.data == b"".join(
        batch_element(m.body, encode_user_properties(m, unique_id), m.flag)
        for m, unique_id in zip(messages, expected, strict=True)
    )


@pytest.mark.parametrize(
    "other",
    [
        None, "text", Message("other", b"x"), Message("t", b""), Message("t", "text"),  # type: ignore[arg-type]
        Message("t", bytearray(b"x")), Message("t", bytes(4096)), Message("t", b"x", keys=["k"]),
        Message("t", b"x", keys="k"), Message("t", b"x", properties={"a": "b"}),
        Message("t", b"x", delay_level=1), Message("t", b"x", sharding_key="k"),
        Message("t", b"x", wait_store_ok=False), Message("t", b"x", flag=1 << 31),
        Message("t", b"x", flag=True), Message("t", b"x", flag=1.5),  # type: ignore[arg-type]
        Message("t", b"x", tags=""), Message("t", b"x", tags="a b"), Message("t", b"x", tags="ä"),
        Message("t", b"x", tags="a" * 1025), Message("t", b"x", tags=5),  # type: ignore[arg-type]
        Message("t", b"x", wait_store_ok=None), Message(5, b"x"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_run_ends_where_something_else_comes(other: Any) -> None:
    packed = pack([*plain(3), other, *plain(2)])
    assert packed is not None
    assert len(packed.ids) == 3


def test_messages_without_waiting_are_runs_of_their_own() -> None:
    packed = pack(plain(3, wait_store_ok=False))
    assert packed is not None
    assert packed.data.count(b"WAIT\x01false") == 3


def test_a_run_is_never_larger_than_the_room() -> None:
    size = len(batch_element(b"body 0", encode_user_properties(plain(1)[0], "0" * 32), 0))

    def count(start: int = 0, **limits: int) -> int:
        packed = pack(plain(5), start, **limits)
        return 0 if packed is None else len(packed.ids)

    rooms = (size - 1, size, 2 * size - 1, 2 * size)
    assert [count(size_room=room) for room in rooms] == [0, 1, 1, 2]
    assert count(count_room=2) == 2
    assert count(3) == 2


def test_counters_of_ids_begin_again_after_the_last() -> None:
    ids = unique_ids(taken=0xFFFE)
    packed = run.pack_run(plain(4), 0, ids, **LIMITS)
    assert packed is not None
    assert [text[-4:] for text in packed.ids] == ["FFFE", "FFFF", "0000", "0001"]
    assert ids.next_id()[-4:] == "0002"


MESSAGES = st.lists(
    st.builds(
        Message,
        st.sampled_from(["t", "t", "t", "other"]),
        st.one_of(st.binary(max_size=200), st.just(bytes(5000))),
        tags=st.sampled_from([None, None, "a", "Tag1", "a b", "", "ü", "\x7f", "[", "`"]),
        flag=st.sampled_from([0, 0, 1, -1, 0x7FFFFFFF, -0x80000000, 1 << 40]),
        wait_store_ok=st.sampled_from([True, True, False]),
        delay_level=st.sampled_from([0, 0, 0, 3]),
        keys=st.sampled_from([(), (), (), ["k"], "k"]),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@pytest.mark.compiled
@given(MESSAGES, st.integers(0, 3000), st.integers(1, 30), st.booleans(), st.integers(0, 65535))
def test_the_compiled_twin_packs_the_same(
    messages: list[Message], room: int, count: int, is_v6: bool, taken: int
) -> None:
    address = bytes(16) if is_v6 else b"\x7f\x00\x00\x01"
    ids, twin_ids = unique_ids(address, taken), unique_ids(address, taken)
    twin = compiled.load("twinlog.client.producer._run")
    assert twin is not None
    for start in range(len(messages)):
        packed = run.pack_run_in_python(messages, start, ids, room, count, 4095)
        expected = None if packed is None else (packed.data, packed.ids)
        assert twin.pack_run(messages, start, twin_ids, room, count, 4095) == expected


@pytest.mark.compiled
def test_the_compiled_twin_writes_the_same_receipts() -> None:
    twin = compiled.load("twinlog.client.producer._run")
    assert twin is not None
    queue = MessageQueue("t", "b", 3)
    given_ = (SendStatus.SEND_OK, queue, ["u1", "u2"], range(7, 9), ["A", "B"])
    receipts = twin.receipts(*given_)
    assert receipts == receipts_in_python(*given_)
    assert [type(receipt) for receipt in receipts] == [type(receipts_in_python(*given_)[0])] * 2
    assert receipts[1].queue_offset == 8
    assert receipts[1].is_acknowledged
