"""A store on a simulated disk next to a model of what must be in it.

The model knows every record that was put and how far `flushed` was seen. After a power cut it asks
the recovered store for everything, through queues, by key and by offset, and compares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from twinlog.message.ids import pack_host
from twinlog.message.model import PutMessage
from twinlog.message.properties import encode_properties
from twinlog.message.record import decode_record
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.disk import write_atomically
from twinlog.runtime.failures import Failures
from twinlog.store.message_store import MessageStore
from twinlog.store.status import PutMessageStatus
from twinlog.testing.manual_clock import ManualClock
from twinlog.testing.simdisk import SimDisk

ROOT = "/store"
TOPICS = ("alpha", "beta")
QUEUES = 2
CONFIG_PATH = f"{ROOT}/config/topics.json"
_HOST = pack_host("127.0.0.1", 10911)
_FAR_FUTURE = 1 << 60


class _NoTasks:
    """The model drives flushing and housekeeping itself: nothing runs by the side."""

    def __init__(self) -> None:
        self.failures = Failures()

    def vital(self, name: str, factory: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        pass

    contained = vital


def small_config(**changes: Any) -> BrokerConfig:
    """Files so small that every boundary is met all the time."""
    values: dict[str, Any] = {
        "store_path_root_dir": ROOT,
        "mapped_file_size_commit_log": 1024,
        "mapped_file_size_consume_queue": 60,
        "max_hash_slot_num": 4,
        "max_index_num": 6,
        "file_reserved_time": 1,
        "delete_when": "00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
    }
    return BrokerConfig(**(values | changes))


class StoreModel:
    """Drive a store, cut its power, check what is left."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk(now_ms=self.clock.now_ms)
        self.disk.make_directories(f"{ROOT}/config")
        self.disk.fsync_directory("/")
        self.disk.fsync_directory(ROOT)
        self.store: MessageStore | None = None
        self.records: dict[int, bytes] = {}  # Physical offset: what is in the log, as put.
        self.flushed = 0
        self.removed_below = 0
        self.saves: list[bytes] = []
        self.saved = -1  # The newest save that returned.
        self.count = 0

    @property
    def live(self) -> MessageStore:
        assert self.store is not None
        return self.store

    # What is done to the store

    async def open(self) -> None:
        config = small_config()
        self.store = MessageStore(
            config, disk=self.disk, clock=self.clock, delay_levels=config.delay_levels
        )
        self.report = await self.store.load()
        await self.store.start(_NoTasks())  # type: ignore[arg-type]

    def put(self, size: int, *, topic: int = 0, queue_id: int = 0, keyed: bool = True) -> None:
        self.count += 1
        key = f"k{self.count}"
        properties = encode_properties({"UNIQ_KEY": key, "TAGS": "t"} if keyed else {"TAGS": "t"})
        message = PutMessage(
            topic=TOPICS[topic],
            queue_id=queue_id,
            body=bytes([self.count % 251 + 1]) * size,
            properties=properties,
            born_timestamp=self.count,
            born_host=_HOST,
            store_host=_HOST,
            keys=(key,) if keyed else (),
        )
        result = self.live.put(message)
        assert result.status is PutMessageStatus.PUT_OK, result.reason
        # Known before it is written: the power may go in the middle of that.
        self.records[result.physical_offset] = self.live.commit_log.pieces[-1]

    def write(self) -> None:
        """End of a turn of the loop."""
        self.live.write_pending()

    async def flush(self) -> None:
        self.flushed = max(self.flushed, await self.live.flush_service.flush())

    async def save_round(self) -> None:
        await self.live.housekeeping.save_round()
        self.flushed = max(self.flushed, self.live.flushed.value)

    def tick(self) -> None:
        self.clock.advance(1000)
        self.live.housekeeping._tick(self.clock.monotonic_ms())

    async def prepare(self) -> None:
        if self.live.commit_log.needs_next:
            await self.live.commit_log.prepare_next()

    async def clean(self) -> None:
        """Retention: everything but the last segment is old."""
        self.clock.advance(2 * 3_600_000)
        # From here on older segments may be gone, whether or not the call returns.
        segments = self.live.commit_log.segments.segments
        if len(segments) > 1:
            self.removed_below = max(self.removed_below, segments[-1].start)
        await self.live.cleaner.clean()

    def save_metadata(self) -> None:
        self.saves.append(b'{"counter":%d}' % len(self.saves) + b" " * (7 * len(self.saves)))
        write_atomically(self.disk, CONFIG_PATH, self.saves[-1], keep_backup=True)
        self.saved = len(self.saves) - 1

    async def stop(self) -> None:
        """A clean stop, then a start."""
        await self.live.stop()
        self.flushed = max(self.flushed, self.live.flushed.value)
        assert not self.disk.exists(f"{ROOT}/abort")
        await self.open()
        assert self.report.was_clean

    # Power

    def cut_power(self, rng: random.Random | None) -> None:
        self.disk = self.disk.crash(rng)
        self.store = None

    def kill(self) -> None:
        self.disk = self.disk.kill()
        self.store = None

    async def recover(self) -> None:
        """Start on what is left; what was put behind the end that was found is gone."""
        await self.open()
        end = self.live.commit_log.max_offset
        self.records = {offset: data for offset, data in self.records.items() if offset < end}
        self.flushed = min(self.flushed, end)

    # What must hold

    def check_after_crash(self, flushed: int) -> None:
        """`flushed` is what was promised before the power went."""
        log = self.live.commit_log
        assert log.max_offset >= flushed, f"log ends at {log.max_offset}, flushed was {flushed}"
        assert log.min_offset <= max(self.removed_below, 0)
        self.check()
        self.check_metadata()

    def check(self) -> None:
        """Everything that is served was put, and everything in the log is served."""
        log = self.live.commit_log
        expected = {o: d for o, d in self.records.items() if log.min_offset <= o < log.max_offset}
        served: dict[int, bytes] = {}
        for topic, queue_id in self.live.queues:
            served |= self._read_queue(topic, queue_id)
        assert served == expected, self._difference(served, expected)
        for offset, data in expected.items():
            self._check_key(offset, data)

    def _read_queue(self, topic: str, queue_id: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset = self.live.min_offset_in_queue(topic, queue_id)
        end = self.live.max_offset_in_queue(topic, queue_id)
        while offset < end:
            result = self.live.get_message(topic, queue_id, offset, 32)
            assert result.message_count, f"{topic}-{queue_id} at {offset}: {result.status}"
            data = b"".join(result.buffers)
            position = 0
            while position < len(data):
                record = decode_record(data, position)
                assert record.topic == topic
                assert record.queue_id == queue_id
                assert record.queue_offset == offset
                found[record.physical_offset] = data[position : position + record.total_size]
                position += record.total_size
                offset += 1
        return found

    def _check_key(self, offset: int, data: bytes) -> None:
        assert self.live.message_by_offset(offset) == data
        record = decode_record(data)
        key = record.property_map.get("UNIQ_KEY")
        if key is not None:
            found = self.live.query_message(record.topic, key, 10, 0, _FAR_FUTURE)
            assert found.physical_offsets.count(offset) == 1, (
                f"key {key} of the record at {offset}: found {found.physical_offsets}"
            )

    @staticmethod
    def _difference(served: dict[int, bytes], expected: dict[int, bytes]) -> str:
        missing = sorted(set(expected) - set(served))
        invented = sorted(o for o in served if served[o] != expected.get(o))
        return f"missing at {missing}, not as put at {invented}"

    def check_metadata(self) -> None:
        """The newest save that returned, or a later one; never a part of one."""
        if self.saved < 0:
            return
        data = self.disk.read_bytes(CONFIG_PATH)
        assert data in self.saves[self.saved :], data[:40]
