"""Frames out of a byte stream, however it is cut, and what is refused before anything is parsed."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.remoting.framing import Frame, FrameSplitter


def frame(kind: int, header: bytes, body: bytes) -> bytes:
    opening = struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header))
    return opening + header + body


FRAMES: list[Frame] = [
    (0, b"{}", b""),
    (1, b"x" * 21, b"body"),
    (0, b"", b""),
    (0, b"h" * 300, b"b" * 5000),
    (1, b"", b"z"),
]
STREAM = b"".join(frame(*one) for one in FRAMES)


def test_whole_stream_in_one_read() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(STREAM) == FRAMES
    assert splitter.buffered == 0
    assert splitter.error is None


def test_one_byte_at_a_time() -> None:
    splitter = FrameSplitter()
    found = [
        one for index in range(len(STREAM)) for one in splitter.feed(STREAM[index : index + 1])
    ]
    assert found == FRAMES
    assert splitter.buffered == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_cuts(seed: int) -> None:
    numbers = random.Random(seed)
    splitter, found, position = FrameSplitter(), [], 0
    stream = STREAM * 5
    while position < len(stream):
        size = numbers.choice((1, 3, 7, 8, 9, 50, 300, 6000))
        found += splitter.feed(stream[position : position + size])
        position += size
    assert found == FRAMES * 5


@given(
    frames=st.lists(
        st.tuples(st.integers(0, 1), st.binary(max_size=80), st.binary(max_size=200)), max_size=8
    ),
    cuts=st.lists(st.integers(1, 100), max_size=40),
)
def test_any_frames_in_any_cuts(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(frame(*one) for one in frames)
    splitter, found, position = FrameSplitter(), [], 0
    for size in [*cuts, len(stream)]:
        found += splitter.feed(stream[position : position + size])
        position += size
    assert found == frames
    assert splitter.error is None


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(1, 60), max_size=12))
def test_any_bytes_give_frames_or_an_error_and_never_more_than_came(
    data: bytes, cuts: list[int]
) -> None:
    splitter, taken, position = FrameSplitter(frame_size_max=256, header_size_max=64), 0, 0
    for size in [*cuts, len(data)]:
        for _, header, body in splitter.feed(data[position : position + size]):
            taken += 8 + len(header) + len(body)
            assert len(header) <= 64
        position += size
        assert splitter.buffered <= 256
    assert taken + splitter.buffered <= len(data)


@pytest.mark.parametrize(
    ("opening", "reason"),
    [
        (struct.pack(">iI", -1, 0), "frame length -1 not in 4..16777212"),
        (struct.pack(">iI", -(2**31), 0), "frame length -2147483648"),
        (struct.pack(">iI", 3, 0), "frame length 3"),
        (struct.pack(">iI", 0, 0), "frame length 0"),
        (struct.pack(">iI", 2**31 - 1, 0), "frame length 2147483647"),
        (struct.pack(">iI", 16 * 1024 * 1024 - 3, 0), "frame length 16777213"),
        (struct.pack(">iI", 10, 7), "header length 7 beyond the frame's 6 bytes"),
        (struct.pack(">iI", 10, 2 << 24), "unknown serialisation type 2"),
        (struct.pack(">iI", 10, 0xFF << 24), "unknown serialisation type 255"),
        (struct.pack(">iI", 2**24 - 10, 1024 * 1024 + 1), "header length 1048577 above the limit"),
    ],
)
@pytest.mark.parametrize("cut", [1, 4, 5, 8])
def test_impossible_opening_is_refused_as_soon_as_it_is_known(
    opening: bytes, reason: str, cut: int
) -> None:
    splitter = FrameSplitter()
    good = splitter.feed(STREAM + opening[:cut])
    good += splitter.feed(opening[cut:])
    assert good == FRAMES, "what came before is still served"
    assert splitter.error is not None
    assert reason in str(splitter.error)
    assert splitter.buffered == 0
    assert splitter.feed(STREAM) == [], "nothing is accepted any more"


def test_largest_frame_is_accepted_in_many_reads() -> None:
    body = bytes(16 * 1024 * 1024 - 8 - 2)
    stream = frame(0, b"{}", body) + STREAM
    splitter, found = FrameSplitter(), []
    for position in range(0, len(stream), 65536):
        found += splitter.feed(stream[position : position + 65536])
    assert found == [(0, b"{}", body), *FRAMES]


def test_negative_length_is_refused_from_its_four_bytes_alone() -> None:
    splitter = FrameSplitter()
    splitter.feed(struct.pack(">i", -5))
    assert splitter.error is not None
