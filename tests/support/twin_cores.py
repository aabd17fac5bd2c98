"""The two cores of the twin dialect, driven against each other over a pretended link."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from typing import Any

from twinlog.ha.receiver import BodyReceived, MasterGone
from twinlog.ha.sender import ConnectionEnded, SlaveAcked, SlaveJoined
from twinlog.ha.twin import sender as master_side
from twinlog.ha.twin.common import DigestsWanted
from twinlog.ha.twin.completeness import TailVerdict, judge_tail
from twinlog.ha.twin.receiver import (
    SlaveFacts,
    Started,
    TailWanted,
    TruncateWanted,
    TwinReceiver,
)
from twinlog.ha.twin.sender import (
    BoundariesWanted,
    HelloReceived,
    MasterFacts,
    RecordWanted,
    SlaveIsLonger,
    TailReceived,
    TwinSender,
)
from twinlog.ha.twin.wire import BODY_SIZE_MAX, ErrorCode, Hello
from twinlog.ha.wire import HAConnectionState

INTERVALS = {"heartbeat_interval_ms": 5000, "housekeeping_interval_ms": 20_000}
SEGMENT = 1 << 20
MAGIC = struct.pack(">i", -626843481)


def record(rng: random.Random, size: int) -> bytes:
    return struct.pack(">i", size) + MAGIC + rng.randbytes(size - 8)


def log_of(seed: int, size: int) -> bytes:
    """Whole records, `size` bytes of them."""
    rng = random.Random(seed)
    parts: list[bytes] = []
    missing = size
    while missing:
        take = min(missing, rng.randrange(91, 600))
        take = missing if missing - take < 91 else take
        parts.append(record(rng, take))
        missing -= take
    return b"".join(parts)


def record_ends(log: bytes) -> list[int]:
    ends, position = [], 0
    while position < len(log):
        position += struct.unpack_from(">i", log, position)[0]
        ends.append(position)
    return ends


class Pair:
    """A master's log, a slave's log, the two cores, and a link that may be tampered with."""

    def __init__(
        self,
        master: bytes,
        slave: bytes,
        *,
        facts: MasterFacts | None = None,
        hello: dict[str, object] | None = None,
        secret: str = "",
        reseed: str = "tail",
        tamper: Callable[[bytes], bytes] = bytes,
        cut: Callable[[int], int] = lambda size: size,
    ) -> None:
        self.master, self.slave = bytearray(master), bytearray(slave)
        self.facts = facts or master_facts("c", "g", "store-1", SEGMENT)
        values: dict[str, object] = {
            "version": 1, "version_min": 1, "cluster": "c", "group": "g", "replica_id": 1,
            "replica_uid": "u", "store_id": "store-1" if slave else "", "segment_size": SEGMENT,
            "log_min": 0, "log_end": len(slave), "nonce": "s", "has_secret": bool(secret),
        }  # fmt: skip
        values |= hello or {}
        self.sender = TwinSender(self.facts, 0, len(master), 0, "m")
        self.receiver = TwinReceiver(
            slave_facts(Hello(**values), secret=secret, reseed=reseed),
            0,  # type: ignore[arg-type]
        )
        self.tamper, self.cut = tamper, cut
        self.aside = b""
        self.acks: list[int] = []
        self.ended: dict[str, str] = {}
        self.flush = True
        self.own_confirmed = 0
        self.verdict: TailVerdict | None = None

    def run(self, rounds: int = 2000) -> None:
        for _ in range(rounds):
            if not self.step():
                return
        raise AssertionError("the two never came to rest")

    def step(self) -> bool:
        to_master = self.receiver.data_to_send(0)
        to_slave = self.sender.data_to_send() + self.next_frames()
        self.deliver(to_master, self.sender)
        self.run_sender_events()
        self.deliver(self.tamper(to_slave), self.receiver)
        self.run_receiver_events()
        return bool(to_master or to_slave)

    def next_frames(self) -> bytes:
        run = self.sender.next_run(0, BODY_SIZE_MAX)
        if run is None:
            return b""
        body = bytes(self.master[run.offset : run.offset + run.size])
        return b"".join(self.sender.frames(run, body, confirmed=self.sender.ack_offset))

    def deliver(self, data: bytes, core: TwinSender | TwinReceiver) -> None:
        position = 0
        while position < len(data) and core.state is not HAConnectionState.SHUTDOWN:
            size = max(1, self.cut(len(data) - position))
            core.receive_data(data[position : position + size], 0)
            position += size

    def run_sender_events(self) -> None:
        while events := self.sender.events():
            self.run_each_sender_event(events)

    def run_each_sender_event(self, events: list[master_side.TwinSenderEvent]) -> None:
        for event in events:
            match event:
                case HelloReceived():
                    self.sender.admit()
                case DigestsWanted():
                    self.sender.digests_computed([digest(self.master, r) for r in event.ranges])
                case RecordWanted():
                    self.sender.record_found(first_record(self.master, event.start, event.end))
                case BoundariesWanted():
                    ends = record_ends(bytes(self.master))
                    anchor = max([0, *(end for end in ends if end <= event.start)])
                    self.sender.boundaries(anchor, [e for e in ends if anchor < e <= event.end])
                case SlaveIsLonger():
                    self.slave_is_longer(event.common)
                case TailReceived():
                    assert event.offset == len(self.master)
                    self.master += event.body
                    self.sender.tail_stored(0, len(self.master))
                case SlaveAcked():
                    self.acks.append(event.offset)
                case SlaveJoined():
                    pass
                case ConnectionEnded():
                    self.ended["master"] = event.reason

    def slave_is_longer(self, common: int) -> None:
        hello = self.sender.hello
        assert hello is not None
        self.verdict = judge_tail(
            common,
            own_end=len(self.master),
            own_confirmed=self.own_confirmed,
            slave_confirmed=hello.confirmed,
            is_sync=True,
            can_fetch=self.sender.can_fetch,
        )
        match self.verdict:
            case TailVerdict.TRUNCATE:
                self.sender.truncate_slave(common)
            case TailVerdict.REFUSE:
                self.sender.refuse(ErrorCode.CONFIRMED_DIFFERS, "differs")
            case _:
                del self.master[common:]
                self.sender.log_moved(0, common)
                self.sender.fetch(common)

    def run_receiver_events(self) -> None:
        for event in self.receiver.events():
            match event:
                case DigestsWanted():
                    self.receiver.digests_computed([digest(self.slave, r) for r in event.ranges])
                case TruncateWanted():
                    self.aside = bytes(self.slave[event.offset :])
                    del self.slave[event.offset :]
                    self.receiver.truncated(event.offset)
                case TailWanted():
                    end = event.offset + event.size
                    self.receiver.tail_read(event.offset, bytes(self.slave[event.offset : end]))
                case Started():
                    assert event.offset == len(self.slave) or not self.slave
                case BodyReceived():
                    assert event.offset == len(self.slave)
                    self.slave += event.bodies[0]
                    self.receiver.appended(len(self.slave))
                    if self.flush:
                        self.receiver.flushed(len(self.slave))
                case MasterGone():
                    self.ended["slave"] = event.reason


def first_record(log: bytes | bytearray, start: int, end: int) -> int | None:
    starts = [0, *record_ends(bytes(log))]
    return min((at for at in starts if start <= at < end), default=None)


def digest(log: bytes | bytearray, span: tuple[int, int]) -> str:
    return hashlib.sha256(log[span[0] : span[1]]).hexdigest()


def next_range(sender: TwinSender, now_ms: int) -> tuple[int, int] | None:
    """What is sent next, as [start, end)."""
    run = sender.next_run(now_ms, BODY_SIZE_MAX)
    return None if run is None else (run.offset, run.offset + run.size)


def master_facts(*who: Any, **more: Any) -> MasterFacts:
    """With RocketMQ's intervals."""
    return MasterFacts(*who, **{**INTERVALS, **more})


def slave_facts(hello: Hello, **more: Any) -> SlaveFacts:
    return SlaveFacts(hello, **{**INTERVALS, **more})


def stored(starts_at: int, sizes: list[int]) -> bytes:
    """Records with their own offset in the header, as a log has them."""
    parts, position = [], starts_at
    for size in sizes:
        header = struct.pack(">i", size) + MAGIC + b"h" * 20 + struct.pack(">q", position)
        parts.append(header + b"b" * (size - 36))
        position += size
    return b"".join(parts)
