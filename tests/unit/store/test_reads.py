"""Reads: statuses, limits, filters, by time, by key, by offset."""

import pytest
from tests.support.stores import HOST, ManualClock, make_store, message, running_store, small_config

from twinlog.message.hashing import jhash
from twinlog.message.properties import decode_properties
from twinlog.message.record import decode_record
from twinlog.runtime.broker_config import BrokerRole
from twinlog.runtime.disk import PosixDisk
from twinlog.store.errors import RecordDamagedError
from twinlog.store.filter import TagsCodeFilter
from twinlog.store.status import GetMessageStatus
from twinlog.testing.simdisk import SimDisk


def _store(clock=None, disk=None, **values):
    return running_store(small_config("/store", **values), disk or SimDisk(), clock)


def _numbers(result):
    data = b"".join(result.buffers)
    numbers = []
    position = 0
    while position < len(data):
        record = decode_record(data, position)
        numbers.append(int(record.body[:8]))
        position += record.total_size
    assert len(numbers) == result.message_count
    assert len(data) == result.size
    return numbers


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, GetMessageStatus.FOUND, 5),
        (4, GetMessageStatus.FOUND, 5),
        (5, GetMessageStatus.OFFSET_OVERFLOW_ONE, 5),
        (9, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
    ],
)
async def test_statuses_of_a_queue(offset, status, next_offset):
    async with _store() as store:
        for number in range(5):
            store.put(message(number))
        store.write_pending()
        result = store.get_message("T", 0, offset, 32)
        assert result.status is status
        assert result.next_begin_offset == next_offset
        assert (result.min_offset, result.max_offset) == (0, 5)
        empty = store.get_message("T", 7, offset, 32)
        assert empty.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        assert empty.next_begin_offset == 0


async def test_slave_does_not_correct_offsets_unless_told():
    for is_checked, expected in ((False, 9), (True, 0)):
        config = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
        async with _store(offset_check_in_slave=is_checked, **config) as store:
            assert store.get_message("T", 0, 9, 32).next_begin_offset == expected


@pytest.mark.parametrize("written", [True, False])
async def test_messages_come_back_in_order_from_buffers_and_files(written):
    async with _store() as store:
        for number in range(700):
            store.put(message(number, queue_id=number % 3))
            if number % 50 == 0:
                store.write_pending()
                if written:
                    store.queue_table.write_all()
        store.write_pending()
        for queue_id in range(3):
            offset, numbers = 0, []
            while (result := store.get_message("T", queue_id, offset, 32)).message_count:
                numbers += _numbers(result)
                offset = result.next_begin_offset
            assert numbers == list(range(queue_id, 700, 3))


async def test_limits_of_one_read():
    async with _store() as store:
        for number in range(100):
            store.put(message(number, size=3000))
        store.write_pending()
        assert store.get_message("T", 0, 0, 10).message_count == 10
        assert store.get_message("T", 0, 0, 100).message_count == 32
        result = store.get_message("T", 0, 0, 100, max_bytes=10_000)
        assert result.message_count == 3
        assert store.get_message("T", 0, 0, 100, max_bytes=1).message_count == 1
        # Who says how many bytes are wanted gets as many messages as fit.
        assert store.get_message("T", 0, 0, 70, max_bytes=1 << 20).message_count == 70


async def test_old_messages_have_the_limits_of_the_disk_and_suggest_the_slave():
    config = small_config("/store")
    store = make_store(config, SimDisk(), memory_size=10_000)
    await store.load()
    store.open_for_puts()
    for number in range(100):
        store.put(message(number))
    store.write_pending()
    old = store.get_message("T", 0, 0, 32)
    assert old.message_count == 8
    assert old.suggest_pulling_from_slave
    new = store.get_message("T", 0, 90, 32)
    assert new.message_count == 10
    assert not new.suggest_pulling_from_slave
    await store.stop()


async def test_tag_filter_examines_and_skips():
    async with _store() as store:
        for number in range(40):
            store.put(message(number, tags="a" if number % 4 == 0 else "b"))
        store.write_pending()
        wanted = TagsCodeFilter(frozenset({jhash("a")}))
        result = store.get_message("T", 0, 0, 5, message_filter=wanted)
        assert _numbers(result) == [0, 4, 8, 12, 16]
        # Full is noticed at the next entry, which is not counted as examined.
        assert result.next_begin_offset == 17
        nothing = TagsCodeFilter(frozenset({jhash("z")}))
        result = store.get_message("T", 0, 0, 5, message_filter=nothing)
        assert result.status is GetMessageStatus.NO_MATCHED_MESSAGE
        assert result.next_begin_offset == 40


class _Even:
    """Wants the messages whose property `n` is even."""

    needs_properties = True
    pairs = None

    def matches_tags_code(self, tags_code):
        return True

    def matches_properties(self, properties):
        return int(decode_properties(properties)["n"]) % 2 == 0


@pytest.mark.parametrize("host", [HOST, bytes(15) + b"\x01" + HOST[4:]], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("others", [0, 1, 40], ids=["dense", "near", "far"])
@pytest.mark.parametrize("topic", ["T", "T" * 127])
@pytest.mark.parametrize("disk", [SimDisk, PosixDisk], ids=["read", "mapped"])
async def test_property_filter_sees_the_properties(tmp_path, disk, topic, others, host):
    """Wherever the records lie: side by side, between others, or so that each is read alone."""
    async with running_store(small_config(str(tmp_path / "store")), disk()) as store:
        for number in range(40):
            wanted = message(number, topic=topic)
            wanted.properties += b"\x02n\x01%d" % number
            wanted.born_host = host
            store.put(wanted)
            for _ in range(others):
                store.put(message(0, size=1000, topic="U"))
        store.write_pending()
        result = store.get_message(topic, 0, 0, 12, message_filter=_Even())
        assert _numbers(result) == list(range(0, 24, 2))
        assert result.next_begin_offset == 23
        result = store.get_message(topic, 0, 23, 32, message_filter=_Even())
        assert _numbers(result) == list(range(24, 40, 2))
        assert result.next_begin_offset == 40


async def test_negative_tags_codes_match():
    assert TagsCodeFilter(frozenset({-(1 << 31)})).matches_tags_code(jhash("polygenelubricants"))


async def test_search_by_time_finds_the_nearest_message():
    clock = ManualClock(1_000_000)
    async with _store(clock) as store:
        for number in range(1000):  # More than three files of 300 entries.
            clock.wall_ms = 1_000_000 + number * 10
            store.put(message(number))
            store.write_pending()
        search = store.offset_in_queue_by_time
        assert search("T", 0, 1_000_000 + 4500) == 450
        assert search("T", 0, 1_000_000 + 4504) == 450
        assert search("T", 0, 1_000_000 + 4505) == 450  # A tie goes to the older one.
        assert search("T", 0, 1_000_000 + 4506) == 451
        assert search("T", 0, 0) == 0
        assert search("T", 0, 1 << 50) == 999
        assert search("T", 9, 5) == 0
        assert store.message_store_time("T", 0, 450) == 1_004_500
        assert store.message_store_time("T", 0, 5000) == -1
        assert store.earliest_message_time("T", 0) == 1_000_000
        assert store.earliest_message_time() == 1_000_000


async def test_query_by_key_with_time_range_and_limit():
    clock = ManualClock(1_000_000)
    async with _store(clock) as store:
        offsets = []
        for number in range(50):
            clock.wall_ms = 1_000_000 + number * 1000
            item = message(number)
            item.keys = (*item.keys, "common")
            offsets.append(store.put(item).physical_offset)
            store.write_pending()
        query = store.query_message
        assert query("T", "common", 64, 0, 1 << 50).physical_offsets == offsets
        assert query("T", "common", 3, 0, 1 << 50).physical_offsets == offsets[-3:]
        found = query("T", "common", 64, 1_010_000, 1_012_000)
        assert found.physical_offsets == offsets[10:13]
        assert found.index_last_update_offset == offsets[-1]
        assert found.index_last_update_timestamp == 1_049_000
        assert query("T", "none", 64, 0, 1 << 50).physical_offsets == []
        assert query("U", "common", 64, 0, 1 << 50).physical_offsets == []


async def test_records_are_found_by_their_physical_offset_only():
    async with _store() as store:
        results = [store.put(message(number)) for number in range(3)]
        store.write_pending()
        record = store.message_by_offset(results[1].physical_offset)
        assert decode_record(record).queue_offset == 1
        assert store.message_by_offset(results[-1].end_offset) is None
        assert store.message_by_offset(1 << 40) is None
        assert store.message_by_offset(-5) is None
        with pytest.raises(RecordDamagedError, match="10 bytes are not a record"):
            store.message_by_offset(results[1].physical_offset, 10)


async def test_reads_of_the_log_never_cross_a_segment_or_the_end():
    async with _store(mapped_file_size_commit_log=4096) as store:
        for number in range(40):
            store.put(message(number))
        store.write_pending()
        log = store.commit_log
        assert len(log.read(4000, 10_000)) == 96
        end = log.max_offset
        assert log.read(end, 100) == b""
        assert len(log.read(end - 10, 100)) == 10


def test_a_place_in_the_extension_of_a_queue_may_be_any_tag():
    """A broker with `enableConsumeQueueExt` leaves it where the hash of the tag would be."""
    wanted = TagsCodeFilter(frozenset({5, -7}))
    assert wanted.matches_tags_code(5)
    assert wanted.matches_tags_code(-7)
    assert not wanted.matches_tags_code(6)
    assert not wanted.matches_tags_code(-(1 << 31))
    for real_offset in (0, 20, (1 << 63) - (1 << 31) - 1):
        assert wanted.matches_tags_code(real_offset - (1 << 63))
