"""HA connections of Apache RocketMQ 4.9.7, byte for byte (see the README of the vectors)."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

from twinlog.ha.receiver import BodyReceived, HAReceiver, LogStarted, ReceiverSettings
from twinlog.ha.sender import HASender, SenderSettings
from twinlog.ha.wire import REPORT

VECTORS = Path(__file__).parents[2] / "vectors" / "ha"
SEGMENT_SIZE = 65536
BATCH_SIZE = 32768
STREAMS = ("attach_empty", "reattach")


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / name).read_text().splitlines()]


def receive(name: str, log: bytearray, log_end: int, rng: random.Random) -> list[int]:
    """Feed the master's stream in random pieces; returns the offsets reported."""
    stream = (VECTORS / name / "master_to_slave.bin").read_bytes()
    core = HAReceiver(ReceiverSettings(SEGMENT_SIZE, 5000, 20000), log_end=log_end, now_ms=0)
    sent = core.data_to_send(0)
    while stream:
        cut = rng.choice((1, 7, 12, 100, 5000, 100_000))
        core.receive_data(stream[:cut], 1)
        stream = stream[cut:]
        for event in core.events():
            if isinstance(event, LogStarted):
                core.appended(event.offset)
                continue
            assert isinstance(event, BodyReceived)
            body = b"".join(event.bodies)
            log[event.offset : event.offset + len(body)] = body
            core.appended(event.offset + event.size)
        sent += core.data_to_send(1)
    return [offset for (offset,) in REPORT.iter_unpack(sent)]


@pytest.mark.parametrize("seed", range(5))
def test_receiver_fed_apaches_bytes_builds_the_same_files(seed: int) -> None:
    rng = random.Random(seed)
    files = [e for e in lines("slave/MANIFEST.jsonl") if e["path"].startswith("commitlog/")]
    log = bytearray(9 * SEGMENT_SIZE)
    first = receive("attach_empty", log, 0, rng)
    second = receive("reattach", log, first[-1], rng)
    for name, reported in (("attach_empty", first), ("reattach", second)):
        captured = [entry["offset"] for entry in lines(f"{name}/reports.jsonl")]
        # The same offsets in the same order; idle reports repeat one and are a matter of time.
        assert list(dict.fromkeys(captured)) == reported
    assert len(files) == 6
    for entry in files:
        start = int(Path(entry["path"]).name)
        content = bytes(log[start : start + SEGMENT_SIZE])
        assert hashlib.sha256(content).hexdigest() == entry["sha256"], entry["path"]


def bursts(frames: list[dict[str, Any]]) -> list[tuple[float, int]]:
    """(time, end of the log): a frame that is cut by neither batch nor file ended at the log's."""
    ends: list[tuple[float, int]] = []
    start_ms: float | None = None
    for frame in frames:
        if frame["size"] == 0:
            continue
        start_ms = frame["ms"] if start_ms is None else start_ms
        end = frame["offset"] + frame["size"]
        if frame["size"] != BATCH_SIZE and end % SEGMENT_SIZE:
            ends.append((start_ms, end))
            start_ms = None
    if start_ms is not None:
        last = frames[-1]
        ends.append((start_ms, last["offset"] + last["size"]))
    return ends


@pytest.mark.parametrize("name", STREAMS)
def test_sender_given_the_captured_times_sends_the_same_frames(name: str) -> None:
    frames, reports = lines(f"{name}/frames.jsonl"), lines(f"{name}/reports.jsonl")
    appends = bursts(frames)
    settings = SenderSettings(SEGMENT_SIZE, BATCH_SIZE, 5000, 20000)
    core = HASender(settings, log_min=0, log_end=appends[0][1], now_ms=0)
    # At equal times (0.1 ms is the resolution) the frame came before the report that answers it.
    moments = [(ms, 0, end) for ms, end in appends[1:]]
    # A heartbeat is a matter of the timer alone: the writer looks at the times it was seen to.
    moments += [(entry["ms"], 1, 0) for entry in frames]
    moments += [(entry["ms"], 2, entry["offset"]) for entry in reports]
    sent: list[tuple[int, int]] = []
    for ms, kind, value in sorted(moments):
        if kind == 2:
            core.receive_data(REPORT.pack(value), int(ms))
        elif kind == 0:
            core.log_moved(0, value)
        if kind < 2:
            while run := core.next_run(int(ms), 1 << 20):
                sent += run.frames()
        core.tick(int(ms))
    assert core.reason == ""
    assert sent == [(entry["offset"], entry["size"]) for entry in frames]
    assert core.ack_offset == reports[-1]["offset"]
