"""Many records at once: the same queues and index as record by record, byte for byte."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.stores import (
    HOST,
    SEGMENT_SIZE,
    copy_apache_store,
    make_store,
    running_store,
    small_config,
)

from twinlog.message.model import PutMessage
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import encode_record
from twinlog.runtime.disk import PosixDisk
from twinlog.store import bulk, recovery
from twinlog.store.bulk import BULK_MIN, read_columns
from twinlog.store.errors import StoreDamagedError
from twinlog.store.recovery import RecoveryReport

PLAIN = [
    b"UNIQ_KEY\x01%032X\x02TAGS\x01TagA",
    b"KEYS\x01order-%d\x02UNIQ_KEY\x017F000001%024X\x02CLUSTER\x01c\x02",
    b"TAGS\x01payment\x02a\x01%d",  # Its hash is negative.
    b"x\x01%d",
]
ODD = [
    b"",
    b"KEYS\x01one two %d\x02UNIQ_KEY\x01u",
    "TAGS\x01Größe\x02KEYS\x01schlüssel".encode(),
    b"TAGS\x01a\x02TAGS\x01b",
    b"KEYS\x01\x02TAGS\x01",
    b"a\x01nul \0 inside\x02TAGS\x01t",
    b"XTAGS\x01no\x02TAGSX\x01no\x02UNIQ_KEYS\x01no",
    b"TAGS\x01v\x01w\x02KEYS\x01k\x01%d",
]
TOPICS = ["T", "Orders", "Ordes2", "Größe"]


def odd_message(rng: random.Random, number: int) -> PutMessage:
    template = rng.choice(PLAIN if rng.random() < 0.99 else ODD)
    count = template.count(b"%")
    properties = template % ((number,) * count) if count else template
    tags_code, keys = tags_and_keys(properties)
    is_odd = rng.random() < 0.005
    return PutMessage(
        topic=rng.choice(TOPICS[:3]) if rng.random() < 0.995 else TOPICS[3],
        queue_id=rng.randrange(3),
        body=bytes(rng.randrange(0, 60)),
        properties=properties,
        sys_flag=rng.choice([0x4, 0x8, 0xC]) if is_odd else 0,
        born_timestamp=1,
        born_host=bytes(20) if rng.random() < 0.005 else HOST,
        store_host=HOST,
        tags_code=tags_code,
        keys=keys,
    )


async def fill(root: Path, seed: int, count: int = 1500) -> None:
    rng = random.Random(seed)
    async with running_store(small_config(root)) as store:
        for number in range(count):
            store.put(odd_message(rng, number))
            store.write_pending()


async def rebuild(root: Path) -> RecoveryReport:
    """Queues, index and checkpoint made again from the log alone."""
    for name in ("consumequeue", "index", "twinlog"):
        shutil.rmtree(root / name, ignore_errors=True)
    (root / "checkpoint").unlink(missing_ok=True)
    disk = PosixDisk()
    store = make_store(small_config(root), disk)
    try:
        report = await store.load()
        store.open_for_puts()
        await store.stop()
    finally:
        disk.close()
    return report


def derived(root: Path) -> dict[str, bytes]:
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / "consumequeue").rglob("*"))
        if path.is_file()
    }
    # Names of index files are the time at which they were made.
    index = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    return files | {f"index {number}": data for number, data in enumerate(index)}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Small chunks, and how many records each bulk step took."""
    counts: list[int] = []

    def counting(*arguments: object, **named: object) -> object:
        columns = read_columns(*arguments, **named)  # type: ignore[arg-type]
        counts.append(0 if columns is None else len(columns.offsets))
        return columns

    monkeypatch.setattr(bulk, "BULK_MIN", 3)
    monkeypatch.setattr(recovery, "_CHUNK_SIZE", 4096)
    monkeypatch.setattr(recovery, "read_columns", counting)
    return counts


async def both_ways(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None] = lambda root: None
) -> tuple[tuple[object, dict[str, bytes]], tuple[object, dict[str, bytes]]]:
    """What recovery says and makes, with arrays and record by record."""
    results = []
    for with_arrays in (True, False):
        copy = root.with_name(f"{root.name}-{with_arrays}")
        shutil.copytree(root, copy)
        change(copy)
        with monkeypatch.context() as patch:
            if not with_arrays:
                patch.setattr(bulk, "np", None)
            try:
                said = await rebuild(copy)
            except StoreDamagedError as error:
                # What was made until then may be at different points; it is made again anyway.
                results.append(((error.physical_offset, str(error).replace(str(copy), "")), {}))
                continue
        results.append((said, derived(copy)))
    return results[0], results[1]


@pytest.mark.parametrize("seed", range(4))
async def test_records_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int], seed: int
) -> None:
    root = tmp_path / "store"
    await fill(root, seed)
    arrays, loop = await both_ways(root, monkeypatch)
    assert sum(taken) > 300, "most of the log must go the way that is tested"
    assert arrays[0] == loop[0]
    assert arrays[1] == loop[1]


async def test_apaches_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    root = tmp_path / "store"
    copy_apache_store(root)
    arrays, loop = await both_ways(root, monkeypatch)
    assert sum(taken) > 100
    assert arrays == loop


@pytest.mark.parametrize("seed", range(8))
async def test_damage_is_found_at_the_same_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int], seed: int
) -> None:
    root = tmp_path / "store"
    await fill(root, 1, count=600)
    rng = random.Random(seed)
    segment = rng.choice(sorted(p.name for p in (root / "commitlog").iterdir())[:2])
    at, value = rng.randrange(SEGMENT_SIZE // 2), rng.randrange(256)

    def damage(copy: Path) -> None:
        with (copy / "commitlog" / segment).open("r+b") as file:
            file.seek(at)
            file.write(bytes([value]) * rng.choice([1, 1, 4, 600]))
        rng.seed(seed)  # The same again for the other copy.

    rng.seed(seed)
    arrays, loop = await both_ways(root, monkeypatch, damage)
    assert arrays == loop


def test_columns_of_plain_records() -> None:
    records, position = [], 1000
    for number in range(2 * BULK_MIN):
        message = odd_message(random.Random(number * 7 + 1), number)
        message.sys_flag, message.born_host, message.topic = 0, HOST, "T"
        message.properties = b"UNIQ_KEY\x01%032X\x02TAGS\x01TagA" % number
        records.append(encode_record(message, number, position, 5))
        position += len(records[-1])
    columns = read_columns(b"".join(records), 1000, check_crc=True)
    assert columns is not None
    assert columns.end == position
    assert columns.queue_offsets.tolist() == list(range(2 * BULK_MIN))
    assert set(columns.tags_codes.tolist()) == {2598919}
    assert read_columns(b"".join(records), 1001, check_crc=True) is None
    assert read_columns(b"".join(records[: BULK_MIN - 1]), 1000, check_crc=True) is None
    assert read_columns(b"".join(records), 1000, check_crc=True, observed=b"TagA") is None


def test_topics_of_one_length_are_told_apart() -> None:
    records, position, topics = [], 0, []
    for number in range(2 * bulk.BULK_MIN):
        message = odd_message(random.Random(number), number)
        message.sys_flag, message.born_host, message.properties = 0, HOST, b"a\x01b"
        message.topic = ("Orders", "Ordes2", "T")[number % 3]
        topics.append(message.topic)
        records.append(encode_record(message, number, position, 5))
        position += len(records[-1])
    columns = read_columns(b"".join(records), 0, check_crc=True)
    assert columns is not None
    assert [columns.topics[number] for number in columns.topic_numbers] == topics
