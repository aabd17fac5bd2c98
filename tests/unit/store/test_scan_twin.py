"""Many records at once: the same queues and index as record by record, byte for byte."""

from __future__ import annotations

import random
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.stores import (
    HOST,
    SEGMENT_SIZE,
    copy_apache_store,
    make_store,
    running_store,
    small_config,
)

from twinlog.message.crc import crc32
from twinlog.message.hashing import index_key_hash
from twinlog.message.layout import ENTRY
from twinlog.message.model import PutMessage
from twinlog.message.properties import tags_and_keys
from twinlog.message.record import encode_record, scan
from twinlog.message.sysflag import UNQUEUED_FLAG
from twinlog.runtime import compiled
from twinlog.runtime.disk import PosixDisk
from twinlog.store.errors import StoreDamagedError
from twinlog.store.index import index_entries, index_service
from twinlog.store.recovery import recover as recovery
from twinlog.store.recovery.dispatch import Dispatcher
from twinlog.store.recovery.recover import RecoveryReport

pytestmark = pytest.mark.compiled
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
    """Small chunks, and how many records each step of the compiled form took."""
    counts: list[int] = []
    plain = Dispatcher.dispatch_plain

    def counting(*arguments: Any, **named: Any) -> Any:
        found = plain(*arguments, **named)
        counts.append(0 if found is None else found.record_count)
        return found

    monkeypatch.setattr(recovery, "_CHUNK_SIZE", 4096)
    monkeypatch.setattr(Dispatcher, "dispatch_plain", counting)
    return counts


async def both_ways(
    root: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None] = lambda root: None
) -> tuple[tuple[object, dict[str, bytes]], tuple[object, dict[str, bytes]]]:
    """What recovery says and makes, all at once and record by record."""
    results = []
    for is_compiled in (True, False):
        copy = root.with_name(f"{root.name}-{is_compiled}")
        shutil.copytree(root, copy)
        change(copy)
        with monkeypatch.context() as patch:
            patch.setenv("TWINLOG_PURE", "0" if is_compiled else "1")
            if not is_compiled:
                for name in ("put_entries", "count_entries"):
                    pure = getattr(index_entries, f"{name}_in_python")
                    patch.setattr(index_entries, name, pure)
                patch.setattr(index_service, "_compiled", None)
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
    compiled_twin, loop = await both_ways(root, monkeypatch)
    assert sum(taken) > 300, "most of the log must go the way that is tested"
    assert compiled_twin[0] == loop[0]
    assert compiled_twin[1] == loop[1]


async def test_apaches_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[int]
) -> None:
    root = tmp_path / "store"
    copy_apache_store(root)
    compiled_twin, loop = await both_ways(root, monkeypatch)
    assert sum(taken) > 100
    assert compiled_twin == loop


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
    compiled_twin, loop = await both_ways(root, monkeypatch, damage)
    assert compiled_twin == loop


# The compiled form by itself

_MESSAGES = st.builds(
    PutMessage,
    st.sampled_from([*TOPICS, "t" * 127, "t" * 128]),
    st.integers(0, 2),
    st.binary(max_size=20) | st.just(bytes(5000)),
    st.lists(
        st.sampled_from(
            [
                b"UNIQ_KEY\x01%032X" % 7, b"UNIQ_KEY\x01", b"TAGS\x01TagA", b"TAGS\x01payment",
                b"TAGS\x01", b"KEYS\x01k", b"KEYS\x01 a  b ", b"KEYS\x01 ", b"ONCE\x01p", b"a\x01b",
                b"xTAGS\x01n", b"a\x01\xc3\xa9",
            ]
        ),
        max_size=4,
    ).map(b"\x02".join)
    | st.sampled_from([b"TAGS\x01\xff", b"KEYS\x01a \xff", b"a\x01\0", b"v" * 32767]),
    st.just(0),
    st.sampled_from([0, 0, 0, 0, 0, 1, 4, 8, 12, 16, 32]),
    st.just(1),
    st.sampled_from([HOST, HOST, HOST, HOST, bytes(20)]),
    st.just(HOST),
)  # fmt: skip


@given(
    st.lists(st.tuples(_MESSAGES, st.integers(0, 9)), min_size=1, max_size=6),
    st.none() | st.tuples(st.floats(0, 1), st.binary(max_size=4), st.integers(0, 4)),
    st.booleans(),
)
@settings(max_examples=800, deadline=None)
def test_any_bytes_give_the_records_of_scan(
    messages: list[tuple[PutMessage, int]], damage: Any, check_crc: bool
) -> None:
    module = compiled.load("twinlog.store.recovery._scan")
    assert module is not None
    data, numbers, time = b"", {}, 500
    for message, jump in messages:
        key = (message.topic, message.queue_id)
        number = numbers.get(key, 5) + (jump == 9)  # Seldom one that does not follow.
        time += 1
        data += encode_record(message, number, 1000 + len(data), time)
        numbers[key] = number + 1
    if damage is not None:
        at = int(damage[0] * len(data))
        data = data[:at] + damage[1] + data[at + damage[2] :]
    check = crc32 if check_crc else None
    plain = module.scan_plain(b"123" + data, 3, 1000, check, b"ONCE\x01")
    if plain is None:
        return
    entries = scan(data, 0, 1000, check_crc=check_crc).entries[: plain.count]
    assert len(entries) == plain.count
    # A transaction has other rules, and behind a zero a sector may be missing.
    assert not any(entry[4] & UNQUEUED_FLAG or b"\0" in entry[7] for entry in entries)
    assert module.scan_plain(data, 0, 1001, check, b"") is None
    assert plain.end == entries[-1][0] + entries[-1][1]
    assert plain.last_timestamp == entries[-1][5]
    assert plain.observed == [entry for entry in entries if b"ONCE\x01" in entry[7]]
    groups: dict[Any, list[Any]] = {}
    keys, bare = [], -1
    for offset, size, queue_id, number, _, stored_at, topic, properties in entries:
        tags_code, words = tags_and_keys(properties)
        packed = ENTRY.pack(offset, size, tags_code)
        groups.setdefault((topic, queue_id), []).append((number, offset, size, packed))
        keys += [(index_key_hash(topic, word), offset, stored_at) for word in words]
        bare = bare if words else offset
    assert [(group.topic, group.queue_id) for group in plain.groups] == list(groups)
    for group, members in zip(plain.groups, groups.values(), strict=True):
        assert [member[0] - group.first_number for member in members] == [*range(len(members))]
        assert group.entries == b"".join(member[3] for member in members)
        assert group.first_offset == members[0][1]
        assert group.end == members[-1][1] + members[-1][2]
    columns = (plain.key_hashes, plain.key_offsets, plain.key_timestamps)
    assert [*zip(*[array("q", bytes(column)) for column in columns], strict=True)] == keys
    assert plain.bare_offset == bare


def test_queues_beyond_those_of_one_pass_are_left() -> None:
    module = compiled.load("twinlog.store.recovery._scan")
    assert module is not None
    data = b""
    for queue_id in range(600):
        message = PutMessage(f"T{queue_id % 40}", queue_id, b"", b"a\x01b")
        data += encode_record(message, 0, len(data), 1)
    plain = module.scan_plain(data, 0, 0, None, b"")
    assert plain.count == len(plain.groups) == 512
    rest = module.scan_plain(data, plain.end, plain.end, None, b"")
    assert [group.queue_id for group in rest.groups] == list(range(512, 600))
