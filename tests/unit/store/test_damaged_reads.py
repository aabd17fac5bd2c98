"""Damage at rest is never handed out: bits flipped at random in the log and the queues of a running
store, read by both tiers, against what was put."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.stores import message, running_store, small_config
from twinlog.broker.filter.sql92 import Sql92Filter
from twinlog.message.hashing import jhash
from twinlog.message.record import decode_record
from twinlog.runtime import compiled
from twinlog.store import reader
from twinlog.store.errors import RecordDamagedError
from twinlog.store.filter import TagsCodeFilter
from twinlog.store.status import GetMessageStatus

QUEUES = 3
FILTERS = (
    None,
    TagsCodeFilter(frozenset({jhash("a"), jhash("b"), jhash("c")})),
    Sql92Filter("TAGS IN ('a', 'b', 'c')"),
)


def records(buffers: list[bytes]) -> Iterator[Any]:
    for buffer in buffers:
        at = 0
        while at < len(buffer):
            record = decode_record(buffer, at)
            yield record
            at += record.total_size


def flip(path: Path, position: int, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))


def read_queue(store: Any, queue_id: int, wanted: Any, count: int) -> list[tuple[Any, ...]]:
    """Every answer from the first message to the last, as a consumer gets them."""
    offset, answers = 0, []
    while offset < store.max_offset_in_queue("T", queue_id):
        result = store.get_message("T", queue_id, offset, count, message_filter=wanted)
        assert result.next_begin_offset > offset, result
        answers.append(
            (result.status, result.next_begin_offset, b"".join(result.buffers), result.reason)
        )
        offset = result.next_begin_offset
    return answers


@pytest.mark.parametrize("seed", range(12))
async def test_no_damaged_body_is_served_and_the_rest_of_the_queue_is(
    tmp_path: Path, monkeypatch: Any, seed: int
) -> None:
    rng = random.Random(seed)
    module = compiled.load("twinlog.store.queue._gather")
    async with running_store(small_config(tmp_path)) as store:
        bodies: dict[tuple[int, int], bytes] = {}
        places = []
        for number in range(300):
            queue_id = rng.randrange(QUEUES)
            put = message(
                number, queue_id=queue_id, size=rng.choice((1, 40, 700)), tags="abc"[number % 3]
            )
            result = store.put(put)
            bodies[queue_id, result.queue_offset] = put.body
            places.append((queue_id, result))
        store.write_pending()
        store.queue_table.write_all()
        hit: set[tuple[int, int]] = set()
        for _ in range(6):
            queue_id, victim = rng.choice(places)
            hit.add((queue_id, victim.queue_offset))
            if rng.random() < 0.6:
                segment = store.commit_log.segments.find(victim.physical_offset)
                at = rng.randrange(victim.physical_offset, victim.end_offset) - segment.start
                flip(Path(segment.path), at, rng)
            else:
                queue = store.queue_table.get("T", queue_id)
                at = victim.queue_offset * 20 + rng.randrange(12)
                flip(Path(queue.path_of(at - at % queue.file_size)), at % queue.file_size, rng)
        for queue_id in range(QUEUES):
            for wanted in FILTERS:
                count = rng.choice((1, 7, 32))
                monkeypatch.setattr(reader, "_compiled", module)
                fast = read_queue(store, queue_id, wanted, count)
                monkeypatch.setattr(reader, "_compiled", None)
                assert fast == read_queue(store, queue_id, wanted, count)
                served = {}
                for _, _, buffers, _ in fast:
                    for record in records([buffers]):
                        served[queue_id, record.queue_offset] = record.body
                assert all(bodies[place] == body for place, body in served.items())
                missing = {p for p in bodies if p[0] == queue_id} - set(served)
                assert missing <= hit
                named = [answer for answer in fast if answer[3]]
                assert all(answer[0] is GetMessageStatus.MESSAGE_DAMAGED for answer in named)
                if wanted is None:
                    assert len(named) == len(missing)


async def test_a_consumer_waits_at_a_damaged_message_while_it_may_be_healed(tmp_path: Path) -> None:
    async with running_store(small_config(tmp_path)) as store:
        results = []
        for number in range(3):
            results.append(store.put(message(number, queue_id=0, size=100)))
            store.write_pending()  # What was written last is read from memory.
        store.damage.may_heal = lambda: True
        flip(
            Path(store.commit_log.segments.segments[0].path),
            results[1].physical_offset + 120,
            random.Random(1),
        )
        assert store.get_message("T", 0, 0, 32).next_begin_offset == 1
        waiting = store.get_message("T", 0, 1, 32)
        assert (waiting.next_begin_offset, waiting.is_retried) == (1, True)
        assert f"at offset {results[1].physical_offset} of the log, is damaged" in waiting.reason
        (damage,) = store.damage.places.values()
        damage.is_lost = True
        gone_on = store.get_message("T", 0, 1, 32)
        assert (gone_on.next_begin_offset, gone_on.is_retried) == (2, False)
        with pytest.raises(RecordDamagedError):
            store.message_by_offset(results[1].physical_offset)
        assert store.damage.found_count == 2  # By its queue, and by its place.
        store.config.twinlog_check_reads = False
        assert store.get_message("T", 0, 1, 32).message_count == 2
