"""The compiled walk of a pull against the Python one: every question, the same answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from support.stores import message, running_store, small_config
from twinlog.broker.filter.sql92 import Sql92Filter
from twinlog.message.hashing import jhash
from twinlog.runtime import compiled
from twinlog.store import reader
from twinlog.store.filter import TagsCodeFilter

pytestmark = pytest.mark.compiled
FILTERS = (
    None,
    TagsCodeFilter(frozenset({jhash("a")})),
    TagsCodeFilter(frozenset({jhash("a"), jhash("b")})),
    TagsCodeFilter(frozenset()),
    Sql92Filter("TAGS = 'a' OR TAGS IN ('b', 'x')"),
    Sql92Filter("none IS NULL AND TAGS <> 'c'"),
    Sql92Filter("UNIQ_KEY = '" + f"{7:032X}" + "' OR TAGS = 'c'"),
)


def answer(store: Any, question: tuple[Any, ...]) -> tuple[Any, ...]:
    topic, queue_id, offset, count, wanted, bytes_max = question
    result = store.get_message(
        topic, queue_id, offset, count, message_filter=wanted, max_bytes=bytes_max
    )
    return (
        result.status,
        result.next_begin_offset,
        result.min_offset,
        result.max_offset,
        b"".join(result.buffers),
        result.message_count,
        result.size,
        result.suggest_pulling_from_slave,
    )


@pytest.mark.parametrize("seed", range(4))
async def test_same_answers(tmp_path: Path, monkeypatch: Any, seed: int) -> None:
    rng = random.Random(seed)
    module = compiled.load("twinlog.store.queue._gather")
    async with running_store(small_config(tmp_path)) as store:
        for number in range(600):
            tags = rng.choice("abc")
            size = rng.choice((1, 20, 300, 2000))
            store.put(message(number, queue_id=rng.randrange(3), size=size, tags=tags))
            if rng.random() < 0.3:
                store.write_pending()
        store.write_pending()
        for _ in range(rng.randrange(3)):
            store.commit_log.remove_first()
        found = 0
        for _ in range(400):
            question = (
                rng.choice(("T", "T", "T", "none")),
                rng.randrange(4),
                rng.choice((0, 1, rng.randrange(250), rng.randrange(250), 10_000)),
                rng.choice((1, 2, 32, 64, 1000, 2000)),
                rng.choice(FILTERS),
                rng.choice((None, None, 500, 4000)),
            )
            monkeypatch.setattr(store.reader, "_memory_threshold", rng.choice((3000, 1 << 40)))
            monkeypatch.setattr(reader, "_compiled", module)
            fast = answer(store, question)
            monkeypatch.setattr(reader, "_compiled", None)
            assert fast == answer(store, question), question
            found += fast[5]
        assert found > 200


async def test_common_pulls_are_taken(tmp_path: Path, monkeypatch: Any) -> None:
    """Else the comparison would compare the Python path with itself."""
    async with running_store(small_config(tmp_path)) as store:
        for number in range(20):
            store.put(message(number, queue_id=number % 2))
        store.write_pending()
        monkeypatch.setattr(reader, "QueueScan", None)
        for wanted in (*FILTERS[:3], *FILTERS[4:6]):
            assert answer(store, ("T", 0, 0, 32, wanted, None))[5] == 10
