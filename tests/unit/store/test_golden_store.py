"""Against Apache RocketMQ 4.9.7's own files: opened, served, rebuilt and written byte for byte."""

import asyncio
import shutil

import pytest
from tests.support.stores import (
    SEGMENT_SIZE,
    ManualClock,
    apache_file,
    copy_apache_store,
    expected_entries,
    expected_index,
    expected_records,
    manifest,
    message_of,
    running_store,
    small_config,
)

from twinlog.message.layout import ENTRY
from twinlog.runtime.broker_config import BrokerRole
from twinlog.runtime.watermark import Outcome
from twinlog.store.index import index_entries
from twinlog.store.queue.consume_queue import PRE_BLANK
from twinlog.store.recovery.reput import GATHER_MS
from twinlog.store.status import GetMessageStatus, PutMessageStatus

RECORDS = expected_records()
MESSAGES = [entry for entry in RECORDS if entry["kind"] == "message"]
LAST = MESSAGES[-1]
LOG_END = LAST["physicalOffset"] + LAST["totalSize"]


def _assert_same_files(root, prefix, *, side="store", ignore=()):
    """Every file of Apache's under `prefix` is there with the same bytes, and no other."""
    wanted = {path for path in manifest(side) if path.startswith(prefix)}
    found = {
        path.relative_to(root).as_posix() for path in (root / prefix).rglob("*") if path.is_file()
    }
    assert {path for path in found if not path.startswith(ignore or ("-",))} == wanted
    for path in sorted(wanted):
        assert (root / path).read_bytes() == apache_file(path, side), path


def _assert_same_index(root, side="store"):
    """Names are creation times; order and bytes must agree."""
    ours = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    names = sorted(path for path in manifest(side) if path.startswith("index/"))
    assert ours == [apache_file(path, side) for path in names]


def _assert_same_store(root):
    _assert_same_files(root, "commitlog")
    _assert_same_files(root, "consumequeue")
    _assert_same_index(root)
    assert (root / "checkpoint").read_bytes() == apache_file("checkpoint")
    assert (root / "lock").read_bytes() == b"lock"
    assert not (root / "abort").exists()


async def test_apache_store_opens_and_a_clean_stop_changes_nothing(tmp_path):
    copy_apache_store(tmp_path)
    async with running_store(small_config(tmp_path)) as store:
        assert store.appended.value == LOG_END
        assert store.dispatched.value == LOG_END
        assert store.last_store_timestamp == LAST["storeTimestamp"]
    _assert_same_store(tmp_path)


async def test_every_queue_entry_is_served_as_apache_wrote_it(tmp_path):
    copy_apache_store(tmp_path)
    async with running_store(small_config(tmp_path)) as store:
        for entry in expected_entries():
            result = store.get_message(entry["topic"], entry["queueId"], entry["queueOffset"], 1)
            assert result.status is GetMessageStatus.FOUND
            assert result.message_count == 1
            assert b"".join(result.buffers) == store.message_by_offset(entry["physicalOffset"])
            queue = store.queue_table.get(entry["topic"], entry["queueId"])
            values = queue.entry(store.queue_table.pool, entry["queueOffset"])
            assert values == (entry["physicalOffset"], entry["size"], entry["tagsCode"])


async def test_queries_answer_what_the_live_master_answered(tmp_path):
    copy_apache_store(tmp_path)
    async with running_store(small_config(tmp_path)) as store:
        for query in expected_index()["queries"]:
            found = store.query_message(query["topic"], query["key"], query["maxNum"], 0, 1 << 62)
            assert found.physical_offsets == query["physicalOffsets"], query
            expected = (
                f"{{indexLastUpdatePhyoffset={found.index_last_update_offset}, "
                f"indexLastUpdateTimestamp={found.index_last_update_timestamp}}}"
            )
            assert query["responseExt"] in (expected, None, "{}") or not found.physical_offsets


@pytest.mark.parametrize("without", [("consumequeue",), ("index",), ("consumequeue", "index")])
async def test_deleted_queues_and_index_are_rebuilt_byte_for_byte(tmp_path, without):
    copy_apache_store(tmp_path, without=without)
    async with running_store(small_config(tmp_path)) as store:
        # Apache's rebuild brings the queues of a deleted topic back, too: the log has them.
        store.delete_topics(["TopicGone"])
    _assert_same_store(tmp_path)


@pytest.mark.parametrize("without", [(), ("checkpoint",), ("consumequeue", "index", "checkpoint")])
async def test_apache_store_recovers_after_a_crash(tmp_path, without):
    copy_apache_store(tmp_path, without=without)
    (tmp_path / "abort").touch()
    async with running_store(small_config(tmp_path)) as store:
        assert store.appended.value == LOG_END
        store.delete_topics(["TopicGone"])
        store.checkpoint.index_timestamp = store.index.full_timestamp
    _assert_same_files(tmp_path, "commitlog")
    _assert_same_files(tmp_path, "consumequeue")
    _assert_same_index(tmp_path)


async def _write_everything(root, *, drain_each):
    clock = ManualClock()
    async with running_store(small_config(root), clock=clock) as store:
        for entry in MESSAGES:
            clock.wall_ms = entry["storeTimestamp"]
            result = store.put(message_of(entry))
            assert result.status is PutMessageStatus.PUT_OK
            assert result.physical_offset == entry["physicalOffset"]
            assert result.queue_offset == entry["queueOffset"]
            assert result.store_timestamp == entry["storeTimestamp"]
            store.write_pending()
            if drain_each:
                store.housekeeping.drain_index()
                store.queue_table.write_all()
        store.delete_topics(["TopicGone"])


@pytest.mark.parametrize("drain_each", [True, False])
async def test_store_written_from_the_same_inputs_is_byte_identical(tmp_path, drain_each):
    await _write_everything(tmp_path, drain_each=drain_each)
    _assert_same_store(tmp_path)


async def test_index_of_the_python_reference_is_byte_identical(tmp_path, monkeypatch):
    monkeypatch.setattr(index_entries, "put_entries", index_entries.put_entries_in_python)
    await _write_everything(tmp_path, drain_each=False)
    _assert_same_store(tmp_path)


async def test_batch_members_are_stored_as_apache_did(tmp_path):
    """The batch of the vectors: members with their own properties, WAIT twice."""
    from twinlog.message.batch import BatchMember
    from twinlog.message.properties import encode_properties

    members = [
        entry
        for entry in MESSAGES
        if "WAIT" in entry["properties"] and message_of(entry).properties.count(b"WAIT\x01") == 2
    ]
    assert members
    first = members[0]
    group = [
        entry
        for entry in members
        if entry["storeTimestamp"] == first["storeTimestamp"] and entry["topic"] == first["topic"]
    ]
    request = {"CLUSTER": first["properties"]["CLUSTER"], "WAIT": "true"}
    batch = []
    for entry in group:
        own = {name: value for name, value in entry["properties"].items() if name != "CLUSTER"}
        body = bytes(message_of(entry).body)
        batch.append(BatchMember(body, encode_properties(own), entry["flag"]))
    clock = ManualClock(first["storeTimestamp"])
    async with running_store(small_config(tmp_path), clock=clock) as store:
        head = message_of(first)
        head.properties = encode_properties(request)
        result = store.put_batch(head, batch)
        store.write_pending()
        assert result.message_count == len(group)
        for number, entry in enumerate(group):
            record = store.message_by_offset(result.offsets[number])
            start = entry["physicalOffset"] // SEGMENT_SIZE * SEGMENT_SIZE
            data = apache_file(f"commitlog/{start:020d}")
            wanted = data[entry["physicalOffset"] - start :][: entry["totalSize"]]
            # All but the two offsets, which depend on what was stored before.
            assert record[:20] + record[36:] == wanted[:20] + wanted[36:]


SLAVE_START = 196608


@pytest.mark.parametrize("chunk", [32768, 7919])
async def test_slave_fed_with_raw_bytes_builds_what_apaches_slave_built(tmp_path, chunk):
    config = small_config(tmp_path, broker_role=BrokerRole.SLAVE, broker_id=1)
    async with running_store(config) as store:
        log = store.commit_log
        log.start_at(SLAVE_START)
        for start in range(SLAVE_START, LOG_END, SEGMENT_SIZE):
            data = apache_file(f"commitlog/{start:020d}")[: max(0, LOG_END - start)]
            for at in range(0, len(data), chunk):
                store._clock.advance(GATHER_MS)
                log.append_raw(start + at, data[at : at + chunk])
                await asyncio.sleep(0)
        assert await store.dispatched.reached(LOG_END, 1 << 62) is Outcome.REACHED
    _assert_same_files(tmp_path, "consumequeue", side="slave")
    _assert_same_index(tmp_path, side="slave")
    for start in range(SLAVE_START, LOG_END, SEGMENT_SIZE):
        name = f"commitlog/{start:020d}"
        assert (tmp_path / name).read_bytes() == apache_file(name)


async def test_rebuilding_a_slaves_queues_puts_blank_entries_before_the_first(tmp_path):
    copy_apache_store(tmp_path, without=("consumequeue", "index", "checkpoint"))
    for start in range(0, SLAVE_START, SEGMENT_SIZE):
        (tmp_path / f"commitlog/{start:020d}").unlink()
    async with running_store(small_config(tmp_path)) as store:
        assert store.commit_log.min_offset == SLAVE_START
        blanks = 0
        for queue in store.queue_table:
            low = queue.min_offset(store.queue_table.pool, SLAVE_START)
            blanks += low - queue.first_offset
            assert store.min_offset_in_queue(queue.topic, queue.queue_id) == low
    assert blanks > 0
    _assert_same_files(tmp_path, "consumequeue", side="slave")
    shutil.rmtree(tmp_path / "consumequeue")


def test_pre_blank_entry_has_the_specified_bytes():
    assert PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"
    assert ENTRY.pack(0x12345678, 114, 2598919).hex() == "000000001234567800000072000000000027a807"
