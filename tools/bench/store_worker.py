"""One sample of a store row: `store_worker.py MODE DIRECTORY JSON`, answers with one line of JSON.

Messages are made between the measured turns and their cost is taken off: a client makes them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from twinlog.message.ids import UniqueIdGenerator, pack_host
from twinlog.message.model import PutMessage
from twinlog.message.properties import encode_properties, tags_code_of
from twinlog.runtime.broker_config import BrokerConfig, FlushDiskType
from twinlog.runtime.clock import SystemClock
from twinlog.runtime.disk import PosixDisk
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.integrity.scrub import Scrubber
from twinlog.store.message_store import MessageStore
from twinlog.store.status import PutMessageStatus

_TURN = 64  # Messages in one turn of the loop: a busy broker's.
_QUEUES = 8
_HOST = pack_host("127.0.0.1", 10911)
_CLOCK = SystemClock()
_MEBIBYTE = 1024 * 1024


class Messages:
    """What a producer sends: a unique id, a key, a tag."""

    def __init__(self, size: int, topics: int = 1, queues: int = _QUEUES) -> None:
        self._ids = UniqueIdGenerator(b"\x7f\0\0\1", os.getpid(), 1, _CLOCK.now_ms)
        self._body = b"x" * size
        self._topics = [f"Topic{number:05d}" for number in range(topics)]
        self._queues = queues
        self._tags_code = tags_code_of(b"TagA")
        self._number = 0
        self.wall = self.cpu = 0.0

    def make(self, count: int) -> list[PutMessage]:
        wall, cpu = time.perf_counter(), time.thread_time()
        messages = [self._one() for _ in range(count)]
        self.wall += time.perf_counter() - wall
        self.cpu += time.thread_time() - cpu
        return messages

    def _one(self) -> PutMessage:
        number = self._number
        self._number += 1
        unique, key = self._ids.next_id(), f"order-{number}"
        properties = {"UNIQ_KEY": unique, "KEYS": key, "TAGS": "TagA", "CLUSTER": "bench"}
        topic, rest = number // self._queues % len(self._topics), number % self._queues
        return PutMessage(
            topic=self._topics[topic],
            queue_id=rest,
            body=self._body,
            properties=encode_properties(properties),
            born_timestamp=_CLOCK.now_ms(),
            born_host=_HOST,
            store_host=_HOST,
            tags_code=self._tags_code,
            keys=(unique, key),
        )


async def open_store(directory: Path, **changes: object) -> MessageStore:
    config = BrokerConfig(
        store_path_root_dir=str(directory),
        disk_space_warning_level_ratio=100,
        **changes,  # type: ignore[arg-type]
    )
    directory.mkdir(parents=True, exist_ok=True)
    store = MessageStore(config, disk=PosixDisk(), clock=_CLOCK, delay_levels=config.delay_levels)
    await store.load()
    await store.start(TaskOwner("bench", on_failure=_die))
    return store


def _die(name: str, error: BaseException) -> None:
    print(f"{name}: {error}", file=sys.stderr, flush=True)
    os._exit(1)


async def put_all(store: MessageStore, messages: Messages, count: int) -> dict[str, float]:
    """Append `count` records turn by turn; rate and CPU without the making of messages."""
    wall, cpu = time.perf_counter(), time.process_time()
    done = 0
    while done < count:
        for message in messages.make(min(_TURN, count - done)):
            result = store.put(message)
            if result.status is not PutMessageStatus.PUT_OK:
                raise RuntimeError(result.reason)
        done += _TURN
        await asyncio.sleep(0)
    wall = time.perf_counter() - wall - messages.wall
    cpu = time.process_time() - cpu - messages.cpu
    return {"rate": count / wall, "cpu": 1e6 * cpu / count}


def anonymous_mebibytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def run_append(directory: Path, *, size: int, count: int) -> dict[str, float]:
    store = await open_store(directory)
    # The first turns fill caches and grow the heap.
    await put_all(store, Messages(size), min(count // 10, 5000))
    answer = await put_all(store, Messages(size), count)
    return answer | {"anonymous": anonymous_mebibytes()}


async def run_flush(directory: Path, *, seconds: float) -> dict[str, float]:
    store = await open_store(directory, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    messages = Messages(1024)
    return {
        "flushes": await _durable_rate(store, messages, 1, seconds),
        "grouped": await _durable_rate(store, messages, _TURN, seconds),
    }


async def _durable_rate(
    store: MessageStore, messages: Messages, waiting: int, seconds: float
) -> float:
    count = 0
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        results = [store.put(message) for message in messages.make(waiting)]
        deadline = _CLOCK.monotonic_ms() + 10_000
        await store.flushed.reached(results[-1].end_offset, deadline)
        count += waiting
    return count / elapsed


async def run_fill(directory: Path, *, size: int, bytes: int) -> dict[str, float]:
    """Write that many bytes, answer, and go on writing until killed."""
    store = await open_store(directory)
    messages = Messages(size)
    records = 0
    while store.commit_log.tail < bytes:
        await put_all(store, messages, 1000)
        records += 1000
    print(json.dumps({"records": records}), flush=True)
    for _ in range(1000):
        await put_all(store, messages, _TURN)
    await asyncio.sleep(3600)
    return {}


async def run_recover(directory: Path) -> dict[str, float]:
    started = time.perf_counter()
    config_started = time.process_time()
    config = BrokerConfig(store_path_root_dir=str(directory), disk_space_warning_level_ratio=100)
    store = MessageStore(config, disk=PosixDisk(), clock=_CLOCK, delay_levels=config.delay_levels)
    report = await store.load()
    load = time.perf_counter() - started
    await store.start(TaskOwner("bench", on_failure=_die))
    result = store.put(Messages(1024).make(1)[0])
    store.write_pending()
    if store.appended.value < result.end_offset:
        raise RuntimeError("the put was not accepted")
    return {
        "load": load,
        "load_cpu": time.process_time() - config_started,
        "scanned": report.record_count,
        "records": report.record_count,
        "anonymous": anonymous_mebibytes(),
    }


async def run_topics(directory: Path, *, topics: int, queues: int, rounds: int) -> dict[str, float]:
    store = await open_store(directory)
    messages = Messages(128, topics, queues)
    answer = await put_all(store, messages, topics * queues * rounds)
    # Every queue has its file once all waiting entries are written.
    store.queue_table.write_all()
    used = sum(
        os.stat(os.path.join(path, name)).st_blocks * 512
        for base in ("consumequeue", "index")
        for path, _, names in os.walk(directory / base)
        for name in names
    )
    return answer | {
        "disk": used / _MEBIBYTE,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "anonymous": anonymous_mebibytes(),
    }


async def run_integrity(directory: Path, *, size: int, count: int) -> dict[str, float]:
    """What a checked read costs more than an unchecked one, and what the scrub takes."""
    store = await open_store(
        directory, twinlog_scrub_cpu_percent=100, twinlog_scrub_rate_max=1 << 40
    )
    end = (await _filled(store, Messages(size), count)).commit_log.max_offset
    checked, unchecked = [
        min(_read_cpu(store, count, is_checked=is_checked) for _ in range(3))
        for is_checked in (True, False)
    ]
    scrubber = Scrubber(store, PosixDisk(), _CLOCK, str(directory / "twinlog"))
    scrubber.hurry()
    # The index is compared with the log in a walk of its own, at the end of a pass.
    looks, scrubber.at_end = scrubber.at_end, []
    cpu = time.process_time()
    while not scrubber.state.passes:
        await scrubber.step()
    walked = time.process_time()
    for look in looks:
        await look()
    if store.damage.found_count or scrubber.index_check.healed_count:
        raise RuntimeError("a sound store was taken for a damaged one")
    return {
        "checked": 1e6 * checked,
        "unchecked": 1e6 * unchecked,
        "scrub": end / _MEBIBYTE / (walked - cpu),
        "index": end / _MEBIBYTE / (time.process_time() - walked),
    }


async def _filled(store: MessageStore, messages: Messages, count: int) -> MessageStore:
    await put_all(store, messages, count)
    store.write_pending()
    end = store.commit_log.max_offset
    await store.flushed.reached(end, _CLOCK.monotonic_ms() + 60_000)
    return store


def _read_cpu(store: MessageStore, count: int, *, is_checked: bool) -> float:
    """CPU seconds a message, 32 at a time, from the page cache."""
    store.config.twinlog_check_reads = is_checked
    cpu, read = time.process_time(), 0
    for queue_id in range(_QUEUES):
        offset = 0
        while (found := store.get_message("Topic00000", queue_id, offset, 32)).message_count:
            read += found.message_count
            offset = found.next_begin_offset
    if read != count:
        raise RuntimeError(f"{read} of {count} messages were read")
    return (time.process_time() - cpu) / count


_MODES = {
    "integrity": run_integrity,
    "append": run_append,
    "flush": run_flush,
    "fill": run_fill,
    "recover": run_recover,
    "topics": run_topics,
}


async def main() -> None:
    mode, directory, arguments = sys.argv[1:]
    answer = await _MODES[mode](Path(directory), **json.loads(arguments))  # type: ignore[operator]
    print(json.dumps(answer), flush=True)
    # Whoever asked kills this process: a clean stop would take time that nobody measures.
    await asyncio.sleep(3600)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
