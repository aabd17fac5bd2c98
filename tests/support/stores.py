"""Stores for tests: Apache's from the vectors, and ours on any disk with a clock that stands."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from twinlog.message.ids import pack_host
from twinlog.message.model import PutMessage
from twinlog.message.properties import encode_properties, tags_and_keys
from twinlog.message.record import decode_record
from twinlog.runtime.broker_config import BrokerConfig
from twinlog.runtime.disk import Disk, PosixDisk
from twinlog.runtime.tasks import TaskOwner
from twinlog.store.message_store import MessageStore

VECTORS = Path(__file__).parents[1] / "vectors"
SEGMENT_SIZE = 65536
HOST = pack_host("127.0.0.1", 10911)


def merged_properties(member: bytes, request: bytes) -> bytes:
    """What is stored for a member of a batch: its own properties, then those of the request."""
    if not member or member.endswith(b"\x02"):
        return member + request
    return member + b"\x02" + request


class _Timer:
    def cancel(self) -> None:
        """Nothing is pending."""


class ManualClock:
    """Time moves when the test says so; sleeping lets the loop run and takes that long."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.wall_ms = now_ms
        self.elapsed_ms = 0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.elapsed_ms

    def boot_ms(self) -> int:
        return self.monotonic_ms()

    def advance(self, duration_ms: int) -> None:
        self.wall_ms += duration_ms
        self.elapsed_ms += duration_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        self.advance(int(duration_ms))
        await asyncio.sleep(0)

    def call_later_ms(
        self, delay_ms: float, callback: Callable[..., object], *arguments: Any
    ) -> _Timer:
        return _Timer()


def small_config(root: Path | str, **values: Any) -> BrokerConfig:
    """The sizes of the vectors: everything rolls over soon."""
    defaults: dict[str, Any] = {
        "store_path_root_dir": str(root),
        "mapped_file_size_commit_log": SEGMENT_SIZE,
        "mapped_file_size_consume_queue": 6000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
    }
    return BrokerConfig(**(defaults | values))


def make_store(config: BrokerConfig, disk: Disk, clock: Any = None, **values: Any) -> MessageStore:
    return MessageStore(
        config, disk=disk, clock=clock or ManualClock(), delay_levels=config.delay_levels, **values
    )


@asynccontextmanager
async def running_store(
    config: BrokerConfig, disk: Disk | None = None, clock: Any = None
) -> AsyncIterator[MessageStore]:
    """A loaded store that accepts puts, without its background tasks; stopped cleanly."""
    own_disk = PosixDisk() if disk is None else None
    store = make_store(config, disk or own_disk, clock)  # type: ignore[arg-type]
    try:
        await store.load()
        store.open_for_puts()
        yield store
        await store.stop()
    finally:
        if own_disk is not None:
            own_disk.close()


@asynccontextmanager
async def started_store(
    config: BrokerConfig, disk: Disk, clock: Any
) -> AsyncIterator[tuple[MessageStore, TaskOwner]]:
    """A store with its background tasks on a clock that is real enough to wait for."""
    store = make_store(config, disk, clock)
    tasks = TaskOwner("store-test")
    await store.load()
    await store.start(tasks)
    try:
        yield store, tasks
    finally:
        await tasks.stop()
        await store.stop()


def message(
    number: int = 0, *, topic: str = "T", queue_id: int = 0, size: int = 100, tags: str = "a"
) -> PutMessage:
    """A message that tells its number, with a unique key."""
    key = f"{number:032X}"
    properties = encode_properties({"UNIQ_KEY": key, "TAGS": tags})
    tags_code, keys = tags_and_keys(properties)
    return PutMessage(
        topic=topic,
        queue_id=queue_id,
        body=(b"%08d" % number).ljust(size, b"."),
        properties=properties,
        born_timestamp=1_700_000_000_000,
        born_host=HOST,
        store_host=HOST,
        tags_code=tags_code,
        keys=keys,
    )


# Apache's store


def manifest(side: str = "store") -> dict[str, dict[str, Any]]:
    lines = (VECTORS / side / "MANIFEST.jsonl").read_text().splitlines()
    entries = map(json.loads, lines)
    return {entry["path"]: entry for entry in entries if not entry["path"].endswith("/")}


def apache_file(path: str, side: str = "store") -> bytes:
    """A file of Apache's store in full length."""
    data = (VECTORS / side / path).read_bytes()
    length: int = manifest(side)[path]["length"]
    return data.ljust(length, b"\0")


def copy_apache_store(root: Path, *, without: tuple[str, ...] = ()) -> None:
    """Apache's master store after its clean stop."""
    for path, entry in manifest().items():
        if path.startswith(("config", "lock", *without)):
            continue
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = (VECTORS / "store" / path).read_bytes()
        target.write_bytes(data.ljust(entry["length"], b"\0"))


def expected_records() -> list[dict[str, Any]]:
    lines = (VECTORS / "expected" / "commitlog.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def expected_entries(side: str = "expected") -> list[dict[str, Any]]:
    lines = (VECTORS / side / "consumequeue.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def expected_index() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((VECTORS / "expected" / "index.json").read_text())
    return result


def packed_host(text: str) -> bytes:
    address, _, port = text.rpartition(":")
    return pack_host(address, int(port))


def stored_properties(entry: dict[str, Any]) -> bytes:
    """The property bytes: a batch member carries WAIT a second time, which no mapping can hold."""
    data = encode_properties(entry["properties"])
    if entry["propertiesTrailingSeparator"]:
        data += b"\x02"
    hosts = len(packed_host(entry["bornHost"])) + len(packed_host(entry["storeHost"]))
    size = 75 + hosts + entry["bodyLength"] + len(entry["topic"].encode()) + len(data)
    if entry["totalSize"] > size:
        own = {name: value for name, value in entry["properties"].items() if name != "CLUSTER"}
        request = {"CLUSTER": entry["properties"]["CLUSTER"], "WAIT": "true"}
        data = merged_properties(encode_properties(own), encode_properties(request))
    return data


def message_of(entry: dict[str, Any]) -> PutMessage:
    """What a producer of the vectors' run sent, from the expected fields.

    Long bodies are known by their hash only and are taken from the record.
    """
    if "body" in entry:
        body = base64.b64decode(entry["body"])
    else:
        offset = entry["physicalOffset"]
        start = offset // SEGMENT_SIZE * SEGMENT_SIZE
        body = decode_record(apache_file(f"commitlog/{start:020d}"), offset - start).body
    properties = stored_properties(entry)
    tags_code, keys = tags_and_keys(properties)
    return PutMessage(
        topic=entry["topic"],
        queue_id=entry["queueId"],
        body=body,
        properties=properties,
        flag=entry["flag"],
        sys_flag=entry["sysFlag"],
        born_timestamp=entry["bornTimestamp"],
        born_host=packed_host(entry["bornHost"]),
        store_host=packed_host(entry["storeHost"]),
        reconsume_times=entry["reconsumeTimes"],
        prepared_transaction_offset=entry["preparedTransactionOffset"],
        tags_code=tags_code,
        keys=keys,
    )
