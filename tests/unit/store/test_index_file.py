"""The hash index: the specification's vectors, batches against one by one, recovery."""

import errno
import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stores import ManualClock

from support.tiers import TIERS
from twinlog.message.hashing import index_key_hash
from twinlog.runtime.compiled import load
from twinlog.store.index import index_entries
from twinlog.store.index.index_file import ENTRY, HEADER, IndexFile, index_file_size
from twinlog.store.index.index_service import IndexService
from twinlog.testing.simdisk import SimDisk

T0 = 1_700_000_000_000


def _file(slots=100, entries=10, disk=None):
    disk = disk or SimDisk()
    handle = disk.open("/index", create=True)
    handle.truncate(index_file_size(slots, entries))
    return IndexFile("/index", handle, slots, entries)


def use(tier, monkeypatch):
    module = load("twinlog.store.index._index") if tier == "compiled" else None
    for name in ("put_entries", "count_entries"):
        pure = getattr(index_entries, f"{name}_in_python")
        monkeypatch.setattr(index_entries, name, getattr(module, name) if module else pure)


def put(file, hashes, offsets, times):
    return file.put_many(array("q", hashes), array("q", offsets), array("q", times))


def _content(file):
    file.write_slots()
    return file.file.pread(file.file.size(), 0)


def test_specified_puts_give_the_specified_bytes():
    file = _file()
    file.start(0, 0)
    hashes = [index_key_hash("TopicTest", key) for key in ("KEY1", "KEY2", "KEY1")]
    assert put(file, hashes, [1000, 1100, 1200], [T0, T0 + 1500, T0 + 3000]) == 3
    data = _content(file)
    assert len(data) == 640
    assert HEADER.unpack_from(data) == (T0, T0 + 3000, 1000, 1200, 2, 4)
    slots = [int.from_bytes(data[40 + 4 * n : 44 + 4 * n], "big") for n in range(100)]
    assert {n: value for n, value in enumerate(slots) if value} == {16: 3, 15: 2}
    assert [ENTRY.unpack_from(data, 440 + 20 * n) for n in (1, 2, 3)] == [
        (1656969516, 1000, 0, 0),
        (1656969515, 1100, 1, 0),
        (1656969516, 1200, 3, 1),
    ]


def test_first_entry_of_a_follow_up_file_counts_from_the_file_before():
    file = _file()
    file.start(1_700_000_006_000, 4000)
    put(file, [index_key_hash("TopicTest", "KEY1")], [5000], [1_700_000_060_000])
    data = _content(file)
    assert HEADER.unpack_from(data)[0] == 1_700_000_060_000
    assert ENTRY.unpack_from(data, 460) == (1656969516, 5000, 54, 0)


def test_full_file_takes_one_entry_less_than_its_number():
    file = _file(entries=10)
    file.start(0, 0)
    assert put(file, list(range(20)), list(range(20)), [T0] * 20) == 9
    assert file.is_full
    assert put(file, [1], [30], [T0]) == 0


@pytest.mark.compiled
@pytest.mark.parametrize("batch", [1, 7, 16, 64, 300])
def test_batches_of_the_compiled_twin_equal_the_loop(monkeypatch, batch):
    rng = random.Random(batch)
    keys = [rng.randrange(1 << 31) % 97 for _ in range(300)]
    offsets = [100 * n for n in range(300)]
    times = [T0 + rng.randrange(10_000) for _ in range(300)]
    files = []
    for tier in ("compiled", "pure"):
        use(tier, monkeypatch)
        file = _file(slots=50, entries=400)
        file.start(0, 0)
        for start in range(0, 300, batch):
            part = slice(start, start + batch)
            put(file, keys[part], offsets[part], times[part])
        files.append(_content(file))
    assert files[0] == files[1]


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kept", [0, 1, 150, 299, 300])
def test_rebuild_keeps_the_entries_before_an_offset(monkeypatch, tier, kept):
    use(tier, monkeypatch)
    rng = random.Random(kept)
    keys = [rng.randrange(1, 1 << 31) for _ in range(300)]
    offsets = [100 * (n + 1) for n in range(300)]
    times = [T0 + 10 * n for n in range(300)]
    disk = SimDisk()
    file = _file(slots=50, entries=400, disk=disk)
    file.start(0, 0)
    put(file, keys, offsets, times)
    _content(file)
    again = IndexFile("/index", disk.open("/index"), 50, 400)
    again.load_header()
    again.rebuild(100 * kept + 1, lambda offset: T0 + 10 * (offset // 100 - 1))
    wanted = _file(slots=50, entries=400)
    wanted.start(0, 0)
    put(wanted, keys[:kept], offsets[:kept], times[:kept])
    if kept:
        assert _content(again) == _content(wanted)
    assert again.entry_count == kept


_NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 5)
_OFFSETS = st.integers(0, 5) | st.sampled_from([-1, 1 << 40])


@pytest.mark.compiled
@given(
    st.lists(st.tuples(_NUMBERS, _OFFSETS, _NUMBERS, st.integers(-1, 6)), max_size=8),
    st.integers(0, 2),
    st.integers(-1, 6),
)
def test_any_entries_on_disk_are_counted_the_same(entries, begin_offset, offset_end):
    """Damaged ones too: both stop at the same."""
    counted = []
    for tier in ("compiled", "pure"):
        with pytest.MonkeyPatch.context() as patch:
            use(tier, patch)
            file = _file(slots=7, entries=10)
            file.start(T0, begin_offset)
            data = b"".join(ENTRY.pack(*entry) for entry in entries)
            file.file.pwritev([data], HEADER.size + 4 * 7 + ENTRY.size)
            file.rebuild(offset_end, lambda offset: T0 + offset)
            counted.append((_content(file), file.end_offset, file.slot_count))
    assert counted[0] == counted[1]


def test_a_chain_that_points_to_itself_ends():
    file = _file()
    file.start(0, 0)
    put(file, [5, 5], [100, 200], [T0, T0])
    file.file.pwritev([ENTRY.pack(7, 200, 0, 2)], 440 + 40)
    assert file.select(5, 10, 0, 1 << 60) == []


@pytest.mark.parametrize("is_prepared", [True, False])
async def test_memory_made_ahead_and_used_again_holds_nothing_old(is_prepared):
    """Three files, the second and third in the memory of the one before."""
    disk = SimDisk()
    clock = ManualClock()

    def service():
        return IndexService(disk, clock, "/index", slots_max=100, index_max=40)

    index = service()
    if is_prepared:
        await index.prepare()
    index.pending = [("T", (f"key-{n}",), 100 * n, T0) for n in range(60)]
    index.drain()
    index.write_slots()
    index.close()

    index = service()  # A restart: the slots of the last file are read ahead.
    index.load()
    if is_prepared:
        await index.prepare()
    index.pending = [("T", (f"key-{n}",), 100 * n, T0) for n in range(60, 100)]
    index.drain()
    assert len(index.files) == 3
    for number in range(100):
        assert index.query("T", f"key-{number}", 10, 0, T0 * 2)[0] == [100 * number]
    assert index.query("T", "key-100", 10, 0, T0 * 2)[0] == []


async def test_slots_read_ahead_do_not_replace_newer_ones():
    file = _file()
    file.start(0, 0)
    stale = file.read_slots()
    put(file, [5], [1000], [T0])
    file.offer_slots(stale)
    assert file.select(5, 10, 0, T0 * 2) == [1000]


def test_a_query_on_a_full_disk_finds_what_was_not_written():
    disk = SimDisk()
    disk.make_directories("/index")
    index = IndexService(disk, ManualClock(), "/index", slots_max=100, index_max=40)
    index.add_many("t", [("a",)], [100], T0)
    assert index.query("t", "a", 9, 0, T0 * 2)[0] == [100]
    index.add_many("t", [("a",), ("b",), ("a",)], [200, 300, 400], T0 + 5)
    for _ in range(20):
        disk.fail("pwritev", number=errno.ENOSPC)
    assert index.query("t", "a", 9, 0, T0 * 2)[0] == [400, 200, 100]
    assert index.query("t", "a", 2, 0, T0 * 2)[0] == [400, 200]
    assert index.query("t", "b", 9, 0, T0 - 1)[0] == []
    assert len(index._hashes) == 3, "the disk was full"
    disk._faults.clear()
    assert index.query("t", "a", 9, 0, T0 * 2)[0] == [400, 200, 100], "each once, now written"


def test_a_query_where_not_even_the_first_file_has_room():
    disk = SimDisk()
    disk.make_directories("/index")
    index = IndexService(disk, ManualClock(), "/index", slots_max=100, index_max=40)
    index.add_many("t", [("a",)], [100], T0)
    disk.fail("open", number=errno.ENOSPC)
    assert index.query("t", "a", 9, 0, T0 * 2) == ([100], 0, 0)
